"""The command line: exit codes, refusals without a traceback, and help that answers at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import typer

import dapo
from dapo.cli.evaluate_recipe import evaluation_recipe
from dapo.cli.main import main
from dapo.config import recipe_from_dict
from dapo.config.yaml_files import RESOLVED
from dapo.errors import LearnerError, RecipeError, Terminated

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "dapo/recipes/quickstart.yaml")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """``dapo.run`` in place of the real one: records what it was called with."""
    fake = types.SimpleNamespace(calls=[], outcome=0)

    def record(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> int:
            fake.calls.append((name, *arguments, *([named] if named else [])))
            if isinstance(fake.outcome, BaseException):
                raise fake.outcome
            return int(fake.outcome)

        return call

    module = types.ModuleType("dapo.run")
    module.Subject = lambda *fields: fields  # type: ignore[attr-defined]
    for name in ("train", "resume", "evaluate", "export"):
        setattr(module, name, record(name))
    monkeypatch.setitem(sys.modules, "dapo.run", module)
    monkeypatch.setattr(dapo, "run", module, raising=False)
    return fake


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    given = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}
    (tmp_path / RESOLVED).write_text(recipe_from_dict(given).resolved)
    return tmp_path


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.whole
@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["check", QUICKSTART + "x"], ["--version"]])
def test_help_and_refusals_import_no_torch(arguments: list[str]) -> None:
    heavy = "('torch', 'transformers', 'numpy', 'matplotlib')"
    code = f"import sys; from dapo.cli.main import main; main({arguments!r}); "
    code += f"print('heavy:', [m for m in {heavy} if m in sys.modules])"
    assert python(code).endswith("heavy: []")


def test_import_dapo_is_light() -> None:
    assert python("import sys, dapo; dapo.load_recipe; print('torch' in sys.modules)") == "False"


def test_python_m_dapo() -> None:
    done = subprocess.run([sys.executable, "-m", "dapo", "--version"], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout.strip()) == (0, f"dapo {dapo.__version__}")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["train", QUICKSTART, "algorithm.clip.hi=0.3"], "algorithm.clip.high"),
        (["check", QUICKSTART, "rollout.group_size=1"], "a group of one"),
        (["train", "missing.yaml"], "recipe file not found"),
        (["train"], "a recipe is missing"),
        (["train", "trainer.steps=3"], "recipe file comes first"),
        (["train", "--resume", "nowhere"], "not a run folder"),
        (["train", "--resume", "nowhere", QUICKSTART], "takes the recipe from the run folder"),
        (["train", QUICKSTART, "--steps", "3"], "did you mean `trainer.steps=VALUE`"),
        (["train", QUICKSTART, "--learning-rate=3"], "`learner.learning_rate=VALUE`"),
        (["train", QUICKSTART, "--zzzz", "3"], "no such option"),
        (["evaluate", "some/model"], "there is nothing of that name"),
        (["evaluate", "some/model"], "--data"),
        (["evaluate", "some/model", "--data", "task:signed_sum", "--step", "3"], "--step"),
        (["evaluate", "some/model", "--data", "task:signed_sum", "--against", "b", "--against-step", "3"], "b is none"),
        (["evaluate", "some/model", "--data", "task:signed_sum", "--samples", "0"], "samples"),
        (["export", "nowhere", "out"], "not a run folder"),
        (["trian", QUICKSTART], "trian"),
    ],
)
def test_refused_input_exits_with_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], commands: types.SimpleNamespace
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert part in told.err
    assert "Traceback" not in told.err
    assert told.out == ""
    assert commands.calls == []


def test_errors_are_told_word_for_word(capsys: pytest.CaptureFixture[str], commands: types.SimpleNamespace) -> None:
    commands.outcome = LearnerError("5 steps [bold]in a row[/bold] :smile: had no finite gradient; " + "x" * 200)
    assert main(["train", QUICKSTART]) == 1
    assert capsys.readouterr().err == f"error: {commands.outcome}\n"


@pytest.mark.parametrize("code", [0, 1, 130])
def test_the_exit_code_is_that_of_the_command(code: int, commands: types.SimpleNamespace) -> None:
    commands.outcome = code
    assert main(["train", QUICKSTART]) == code


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, typer.Abort])  # which of them arrives depends on typer
def test_a_keyboard_interrupt_exits_with_130(
    commands: types.SimpleNamespace, interruption: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    commands.outcome = interruption()
    assert main(["train", QUICKSTART]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_sigterm_has_a_code_of_its_own(commands: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    commands.outcome = Terminated()
    assert main(["train", QUICKSTART]) == 143
    assert capsys.readouterr().err == "ended by SIGTERM\n"


def test_ctrl_c_while_a_process_works() -> None:
    code = (
        # started in the background of a shell, a process inherits that Ctrl-C is ignored
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys, time, types, dapo; m = types.ModuleType('dapo.run')\n"
        "def train(loaded): print('started', flush=True); time.sleep(60)\n"
        "m.train = train; sys.modules['dapo.run'] = m; dapo.run = m\n"
        f"from dapo.cli.main import main; sys.exit(main(['train', {QUICKSTART!r}]))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=240)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


def test_train_hands_over_the_recipe_with_its_overrides(commands: types.SimpleNamespace) -> None:
    assert main(["train", QUICKSTART, "trainer.steps=20", "run.name=other"]) == 0
    ((name, loaded),) = commands.calls
    assert name == "train"
    assert (loaded.recipe.trainer.steps, loaded.recipe.run.name) == (20, "other")
    assert loaded.overrides == ("trainer.steps=20", "run.name=other")


def test_resume_hands_over_folder_and_overrides(commands: types.SimpleNamespace, run_folder: Path) -> None:
    assert main(["train", "--resume", str(run_folder), "trainer.steps=20"]) == 0
    assert commands.calls == [("resume", run_folder, ["trainer.steps=20"])]


def test_resume_refuses_what_is_fixed(
    commands: types.SimpleNamespace, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", str(run_folder), "run.seed=9"]) == 2
    assert "(fixed)" in capsys.readouterr().err
    assert commands.calls == []


def test_export(commands: types.SimpleNamespace, run_folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(run_folder), str(tmp_path / "out"), "--step", "3"]) == 0
    assert commands.calls == [("export", run_folder, tmp_path / "out", 3, {"adapter": False})]
    assert main(["export", str(run_folder), str(run_folder)]) == 2  # holds files already


def test_evaluate_a_run(commands: types.SimpleNamespace, run_folder: Path) -> None:
    arguments = ["evaluate", str(run_folder), "--data", "task:signed_sum", "-k", "8", "--no-greedy", "--limit", "5"]
    assert main([*arguments, "--seed", "7", "validation.temperature=0.6", "--step", "2"]) == 0
    ((name, loaded, run, step, more),) = commands.calls
    assert (name, run, step) == ("evaluate", run_folder, 2)
    assert more == {"against": None, "out": None, "as_json": False}
    validation = loaded.recipe.validation
    assert (validation.samples, validation.greedy, validation.limit, validation.temperature) == (8, False, 5, 0.6)
    assert loaded.recipe.run.seed == 7
    assert [s.task for s in loaded.recipe.data.validation] == ["signed_sum"]


def test_evaluate_against_another(commands: types.SimpleNamespace, run_folder: Path, tmp_path: Path) -> None:
    ask = ["evaluate", str(run_folder), "--data", "task:signed_sum", "-k", "3", "--json", "--out", "a.jsonl"]
    assert main([*ask, "--against", "some/model"]) == 0
    *_, more = commands.calls.pop()
    assert (more["as_json"], more["out"]) == (True, Path("a.jsonl"))
    loaded, run, step = more["against"]
    assert (loaded.recipe.model.path, run, step) == ("some/model", None, None)
    assert loaded.recipe.validation.samples == 3
    assert main([*ask, "--against", str(run_folder), "--against-step", "4"]) == 0
    *_, more = commands.calls.pop()
    assert more["against"][1:] == (run_folder, 4)
    answers = tmp_path / "answers.jsonl"
    answers.touch()
    assert main([*ask, "--against", str(answers)]) == 0
    *_, more = commands.calls.pop()
    assert more["against"] == answers
    assert main([*ask, "--against-step", "4"]) == 2


def test_evaluation_of_a_bare_model() -> None:
    loaded, run = evaluation_recipe("some/model", ["task:signed_sum"], {"validation.samples": None})
    assert run is None
    assert loaded.recipe.model.path == "some/model"
    assert [r.kind for r in loaded.recipe.rewards] == ["task"]
    loaded, _ = evaluation_recipe("some/model", ["hub:a/b"], {}, ["rewards.0.kind=exact"])
    assert [r.kind for r in loaded.recipe.rewards] == ["exact"]
    with pytest.raises(RecipeError, match="--data"):
        evaluation_recipe("some/model", [], {})


def test_evaluation_of_a_run_keeps_the_names_that_its_rewards_use(tmp_path: Path) -> None:
    given = {
        "model": {"path": "a/b"},
        "data": {
            "train": [{"task": "signed_sum"}, {"path": "hub:x/words"}],
            "validation": [{"task": "signed_sum", "name": "held", "seed": 3}],
        },
        "rewards": [
            {"name": "accuracy", "kind": "task", "sources": ["signed_sum", "held"]},
            {"name": "accuracy", "kind": "math", "sources": ["words"]},
        ],
    }
    (tmp_path / RESOLVED).write_text(recipe_from_dict(given).resolved)
    loaded, run = evaluation_recipe(str(tmp_path), [], {})
    assert run == tmp_path
    assert [s.name for s in loaded.recipe.data.train] == ["signed_sum", "words"]
    assert [s.path for s in loaded.recipe.data.train] == [None, None]  # training data is not read again


GROUPS = {
    "Start": ["init", "recipes", "check", "explain", "import"],
    "Train": ["train", "sft", "launch"],
    "Look": ["compare", "report", "view", "data", "rollouts"],
    "Use": ["evaluate", "export"],
}


def test_help_groups_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    panels = re.split(r"╭─ (\w+) ─+╮", told)
    found = {
        title: re.findall(r"^│ (\w+) ", body, re.MULTILINE)
        for title, body in zip(panels[1::2], panels[2::2], strict=True)
    }
    assert {title: names for title, names in found.items() if title in GROUPS} == GROUPS
    assert list(found) == ["Options", *GROUPS]


@pytest.mark.parametrize("command", [name for names in GROUPS.values() for name in names])
def test_usage_lines_are_conventional(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    told = capsys.readouterr().out
    (usage,) = re.findall(r"Usage: (.*)", told)
    assert usage.startswith(f"dapo {command} ")
    assert "]..." not in usage
    if command in ("train", "check", "sft", "launch"):
        assert usage.strip() == f"dapo {command} RECIPE [KEY=VALUE ...] [OPTIONS]"
    if command in ("init", "recipes", "import", "report", "rollouts", "evaluate", "export"):  # which write something
        assert re.search(r"--out +-o ", told)


@pytest.mark.parametrize(
    ("arguments", "said", "command"),
    [
        (["trian"], "no such command 'trian'. Did you mean 'train'", "dapo"),
        (["train"], "a recipe is missing", "dapo train"),
        (["train", "quickstart", "--nothing"], "no such option: --nothing", "dapo train"),
        (["data"], "missing argument 'RUN'", "dapo data"),
        (["view", "--port", "x"], "invalid value for '--port'", "dapo view"),
        (["export", "a"], "one folder to write is needed", "dapo export"),
        (["export", "a", "b", "-o", "c"], "two folders to write", "dapo export"),
    ],
)
def test_wrong_words_have_the_voice_of_every_error(
    arguments: list[str], said: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert said in told.err
    assert told.err.rstrip().endswith(f"`{command} --help` shows what it takes.")


def test_view_has_a_port_of_its_own() -> None:
    from dapo.cli.view import PORT

    assert PORT not in (
        5000,
        6006,
        7860,
        8000,
        8080,
        8265,
        8501,
        8888,
    )  # MLflow, TensorBoard, Gradio, vLLM, Ray, Jupyter
