"""What README and docs show is what happens: each command is run or its recipe loaded, each example executed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from small_run import dapo, write_recipe

from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import read_metrics
from dapo.observe.rollouts import read_rollouts

ROOT = Path(__file__).resolve().parents[2]


def commands(page: str) -> list[list[str]]:
    """Every indented `.venv/bin/dapo ...` line of a page, as arguments behind `dapo`."""
    lines = re.findall(r"^    (?:\$ )?\.venv/bin/dapo (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(line.split("   #")[0]) for line in lines]


def block(page: str, language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[number]


def test_the_shown_refusal_is_what_is_said():
    said = dapo("train", "quickstart", "epsilon_high=0.3", cwd=ROOT, expect=2).stderr
    text = (ROOT / "docs/peers.md").read_text()
    shown = re.split(r"\n\n(?=\S)", text[text.index("    error: quickstart was refused") :])[0]
    for line in filter(None, (line.strip() for line in shown.splitlines())):
        assert line in " ".join(said.split()) or line in said, line


def test_ones_own_model_on_ones_own_data_as_the_readme_shows_it(tmp_path):
    """The README's recipe and its commands, in its order, with a tiny model and a hundred problems."""
    make_tiny_model(tmp_path / "my-model", "qwen3", seed=1)
    for name, first in (("train", 0), ("test", 60)):
        rows = [{"question": f"{i} +7 =", "target": str(i + 7)} for i in range(first, first + 40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.yaml").write_text(block("README.md", "yaml"))
    small = ["rollout.prompts_per_step=2", "rollout.group_size=2", "rollout.max_response_tokens=6", "run.dir=runs"]
    small += ["algorithm.dynamic_sampling.mode=off", "validation.samples=1", "validation.limit=2"]
    ran = []
    for name, *arguments in commands("README.md"):
        if "quickstart" in arguments[0]:
            continue
        if name == "train":
            arguments += ["trainer.steps=1", *small]
        ran.append(name)
        assert dapo(name, *arguments, cwd=tmp_path).stdout
    assert ran == ["check", "train", "report", "export"]
    assert (tmp_path / "runs/mine/report/report.html").exists()
    dapo("train", "--resume", "runs/mine", "trainer.steps=2", cwd=tmp_path)
    assert [row["step"] for row in read_metrics(tmp_path / "runs/mine/metrics.jsonl")] == [0, 1, 2]


@pytest.mark.whole
def test_the_python_example_of_the_readme(tmp_path):
    names = executed(block("README.md", "python"), tmp_path)
    assert names["run"].finished
    assert (tmp_path / "from_python" / "metrics.jsonl").exists()


def executed(program: str, folder: Path) -> dict[str, Any]:
    """Execute a program of the pages with a small recipe in the quickstart's place and one step; return its names."""
    recipe = write_recipe(folder, "logging: {console: quiet}\n")
    program = program.replace('"quickstart"', repr(str(recipe))).replace('steps": 20', 'steps": 1')
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(program, names)
    return names


@pytest.mark.whole
@pytest.mark.parametrize("name", ["reward", "loss", "lora"])
def test_an_example_trains(name, tmp_path, capsys):
    names = executed((ROOT / f"examples/{name}.py").read_text(), tmp_path)
    assert names["run"].finished
    assert names["run"].metrics[-1]["step"] == 1
    assert "held-out accuracy: 0." in capsys.readouterr().out


@pytest.mark.whole
def test_the_example_of_two_stages_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = (ROOT / "examples/sft_then_dapo.py").read_text()
    program = program.replace("EXAMPLES = 11_000", "EXAMPLES = 64").replace("STEPS = 20", "STEPS = 1")
    small = '"rollout": {"prompts_per_step": 2, "group_size": 2, '
    program = program.replace('"rollout": {"prompts_per_step": 32, "group_size": 16, ', small)
    program = program.replace('"minibatch_prompts": 8', '"minibatch_prompts": 2').replace('"size": 128', '"size": 4')
    program = program.replace('{"cache_length": 8}}', '{"cache_length": 8}, "dynamic_sampling": {"mode": "off"}}')
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(program, names)
    assert names["run"].finished
    assert "held-out accuracy: 0.0 -> " in capsys.readouterr().out
    assert (names["imitated"].path / "export/config.json").exists()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("game", "turns in an episode: "),
        ("calculator", "episodes that call the tool: "),
        ("stateful_environment", "height: "),
        ("agent", "turns in an episode: "),
    ],
)
def test_an_example_with_an_environment_trains(name, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = (ROOT / f"examples/{name}.py").read_text().replace("steps: int = 80", "steps: int = 1")
    if name == "agent":
        pytest.importorskip("openai")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # processes of the environment find the example
        make_tiny_model("model", "llama", seed=1)  # whose answers are all wrong
        program = program.replace("builtin/signed-sum", "model")
        program = program.replace('"group_size": 16', '"group_size": 4')
        program = program.replace('"rollout": {', '"algorithm": {"dynamic_sampling": {"mode": "off"}}, "rollout": {')
    program = program.replace("steps: int = 20", "steps: int = 1")
    program = program.replace('"trainer": {"steps": 10}', '"trainer": {"steps": 1}').replace(
        '"steps": 20}', '"steps": 1}'
    )
    program = program.replace('"size": 60', '"size": 4').replace('"prompts_per_step": 8', '"prompts_per_step": 2')
    program = program.replace('"size": 64', '"size": 4').replace('"minibatch_prompts": 4', '"minibatch_prompts": 2')
    names: dict[str, Any] = {"__name__": "__main__"}
    monkeypatch.setattr("sys.argv", ["example"])
    exec(program, names)
    assert names["run"].finished
    assert said in capsys.readouterr().out
    assert any(row["turns"] for row in names["run"].rollouts())


def test_every_example_is_tested():
    tested = {"reward", "loss", "lora", "sft_then_dapo", "game", "calculator", "stateful_environment", "agent"}
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == tested


HOOKS = """
import torch

def advantage(rewards_PG, voters_PG):
    return [(r - r[v].mean()) * v for r, v in zip(rewards_PG, voters_PG)]

def loss(inputs):
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    return -torch.where(inputs.loss_mask, ratio * inputs.advantages, 0.0), {"above_one": ratio > 1}

def shaping(rewards_G, lengths_G, truncated_G):
    penalties = -0.01 * lengths_G
    return rewards_G + penalties, penalties

def keep(values_G, voters_G):
    from dapo.types.enums import Verdict
    return Verdict.KEPT if values_G[voters_G].max() > 0 else Verdict.ALL_WRONG

def score(prompt, completion):
    return {"accuracy": float("=1" in completion.text), "tokens": float(len(completion))}
"""


@pytest.mark.whole
def test_all_hooks_of_a_researcher_together(tmp_path):
    (tmp_path / "mine.py").write_text(HOOKS)
    recipe = write_recipe(tmp_path)
    dapo(
        "train",
        recipe,
        "trainer.steps=2",
        "algorithm.advantage.kind=mine:advantage",
        "algorithm.loss.kind=mine:loss",
        "algorithm.shaping=mine:shaping",
        "algorithm.dynamic_sampling.keep=mine:keep",
        "rewards.0.kind=function",
        "rewards.0.function=mine:score",
        "rewards.0.pattern=null",
        "validation.every=0",
        cwd=tmp_path,
    )
    row = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert 0 <= row["custom/above_one"] <= 1
    assert row["reward/tokens"] == pytest.approx(row["response/length_mean"])
    assert row["response/penalty_mean"] == pytest.approx(-0.01 * row["response/length_trained_mean"], rel=1e-6)


@pytest.mark.whole
@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_plain_engine_with_learner_log_probabilities_and_truncated_sampling(tmp_path, minibatches):
    """``generate`` under nucleus sampling: old log-probabilities from the learner, corrected by TIS, gap reported."""
    dapo(
        "train",
        write_recipe(tmp_path),
        "trainer.steps=2",
        "rollout.engine=generate",
        "rollout.top_p=0.9",
        f"learner.minibatch_prompts={4 // minibatches}",
        "rollout.max_response_tokens=8",
        "validation.every=0",
    )
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl"):
        assert 0.01 < row["train/gap_mean"] < 1.0  # renormalised over the nucleus against the whole softmax
        assert 0.5 < row["train/correction_mean"] < 1.0
        if minibatches == 1:
            assert row["train/ratio_mean"] == pytest.approx(1.0)  # the old ones are the detached current ones


@pytest.mark.whole
def test_a_batch_that_cannot_fill_stops_with_its_state_saved_and_goes_on_with_other_settings(tmp_path):
    recipe = write_recipe(tmp_path)
    stopped = dapo("train", recipe, "rewards.0.pattern='never'", "rewards.1.weight=0.0", "validation.every=0", expect=1)
    assert "all wrong" in stopped.stderr
    assert "cannot read the answers" in stopped.stderr
    run = tmp_path / "run"
    assert f"dapo train --resume {run}" in stopped.stderr
    assert "For example: " in stopped.stderr
    assert (run / "checkpoints" / "step_000000").is_dir()
    evidence = read_rollouts(run / "stopped" / "step_000001.parquet").to_pylist()
    assert {row["verdict"] for row in evidence} == {"all_wrong"}
    partial = ["algorithm.dynamic_sampling.cap.then=fill", "algorithm.dynamic_sampling.cap.groups=2", "trainer.steps=2"]
    dapo("train", "--resume", run, *partial)
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["groups/filled"] for row in rows] == [4, 4]
    assert [row["train/grad_norm"] for row in rows] == [0, 0]  # they count in N, and teach nothing


@pytest.mark.whole
def test_a_verifier_that_always_fails_is_told_at_once_and_stops_the_run(tmp_path):
    (tmp_path / "bad.py").write_text("def score(prompt, completion):\n    raise KeyError('answer')\n")
    override = ["rewards.0.kind=function", "rewards.0.function=bad:score", "rewards.0.pattern=null"]
    failed = dapo("train", write_recipe(tmp_path), *override, "validation.every=0", cwd=tmp_path, expect=1)
    assert "warning: response" in failed.stdout
    assert "KeyError" in failed.stdout
    assert "none of 32 responses could be scored" in failed.stderr
    assert "KeyError" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.whole
def test_a_stop_in_the_first_step_and_a_resume_leave_one_line_a_step(tmp_path):
    recipe = write_recipe(tmp_path)
    dapo("train", recipe, "algorithm.dynamic_sampling.cap.groups=1", "trainer.steps=1", expect=1)
    dapo("train", "--resume", tmp_path / "run", "algorithm.dynamic_sampling.cap.groups=50")
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1]


@pytest.mark.whole
def test_the_end_of_the_data_is_evaluated_and_told(tmp_path):
    more = ["data.train.0.size=14", "data.epochs=1", "algorithm.dynamic_sampling.mode=off", "validation.every=50"]
    done = dapo("train", write_recipe(tmp_path), *more)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    steps = max(row["step"] for row in rows)
    assert f"the data has ended after {steps} training steps" in done.stdout
    assert f"\n{steps} training steps" in done.stdout
    assert [row["step"] for row in rows if "validation/accuracy" in row] == [0, steps]


def test_a_refused_start_leaves_its_place_free(tmp_path):
    recipe = write_recipe(tmp_path)
    dapo("train", recipe, "algorithm.advantage.kind=nowhere:advantage", expect=2)
    assert not (tmp_path / "run").exists()
    dapo("train", recipe, f"model.path={tmp_path}", expect=2)  # a folder without a model
    assert not (tmp_path / "run").exists()


def test_bad_input_is_refused_with_exit_code_2(tmp_path):
    recipe = write_recipe(tmp_path)
    for override, expected in (
        ("rollout.group_sise=4", "group_size"),
        ("learner.minibatch_prompts=3", "does not divide"),
        ("model.path=/nowhere", "/nowhere"),
        ("rewards.0.kind=function", "function"),
    ):
        assert expected in dapo("train", recipe, override, expect=2).stderr
        assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.whole
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_examples_of_the_python_page(number, tmp_path, monkeypatch, capsys):
    """As they stand, but for the quickstart, in whose place a smaller recipe stands."""
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path, "logging: {console: quiet}\n")
    page = block("docs/python.md", "python", number).replace('"quickstart"', repr(str(recipe)))
    page = page.replace("builtin/signed-sum", str(tmp_path / "model"))  # which knows nothing: any digit is right
    exec(page.replace("completion.text.rstrip().endswith(prompt.answer)", "'=1' in completion.text"), {})
    said = capsys.readouterr().out
    assert ("[", "1 ", "held out:")[number] in said


@pytest.mark.whole
@pytest.mark.parametrize("part", ["stream", "scorer", "engine"])
def test_the_examples_of_parts_of_ones_own(part, tmp_path, monkeypatch, capsys):
    """As they stand, on a smaller recipe; a resume needs the part again."""
    number = ["stream", "scorer", "engine"].index(part)
    monkeypatch.chdir(tmp_path)
    small = "logging: {console: quiet}\n"
    recipe = write_recipe(tmp_path, small)
    text = recipe.read_text().replace("algorithm: {", "algorithm: {dynamic_sampling: {mode: 'off'}, ")
    recipe.write_text(text.replace("max_response_tokens: 24", "max_response_tokens: 8"))
    page = block("docs/extending.md", "python", number).replace('"quickstart"', repr(str(recipe)))
    names: dict[str, object] = {}
    exec(page, names)
    run = names["run"]
    assert run.finished
    assert 0 <= float(capsys.readouterr().out) <= 1
    if part == "stream":
        prompts = {r["prompt_id"]: r for r in run.rollouts()}
        assert len(prompts) >= 4
    refused = dapo("train", "--resume", run.path, "trainer.steps=2", expect=2).stderr
    assert f"{part}=..." in refused


def test_the_parts_of_ones_own_take_less_than_forty_lines_each():
    for number in range(3):
        lines = [line for line in block("docs/extending.md", "python", number).splitlines() if line.strip()]
        assert len(lines) < 40


@pytest.mark.whole
def test_the_notebook_of_the_pages(tmp_path, monkeypatch, capsys):
    """Its cells in their order, with a smaller recipe in the quickstart's place."""
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path, "logging: {console: quiet}\n")
    recipe.write_text(recipe.read_text().replace("run: {dir: " + str(tmp_path), "run: {dir: " + str(tmp_path / "runs")))
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        source = cell["source"].replace("STEPS = 20", "STEPS = 1").replace('"quickstart"', repr(str(recipe)))
        source = source.replace('"validation.limit": 64', '"validation.limit": 2')
        source = source.replace("said == prompt.answer", "'=1' in completion.text")
        source = source.replace("assert report.good\n", "")  # the model of this test knows nothing of its data
        exec(source, names)
        if source.endswith("\nreport"):
            assert "<details><summary>arithmetic</summary>" in names["report"]._repr_html_()
    assert names["run"].status.step == 3
    assert "right responses" in capsys.readouterr().out
