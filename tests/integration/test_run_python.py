"""Training from Python, in this process: functions, data, callbacks, steps one at a time, resumes."""

import os
import random
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

import dapo
from dapo.errors import LearnerLost, RecipeError
from dapo.learner.driver import LearnerDriver
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import without_clock

PROBLEMS = [{"problem": f"{n} +2 =", "answer": str(n + 2)} for n in range(24)]
LOCK = threading.Lock()
HEARD = []


def settings(folder, name, **more):
    return {
        "model": str(folder / "model"),
        "train": PROBLEMS,
        "validation": {"few": PROBLEMS[:4]},
        "run": {"dir": str(folder / "runs"), "name": name},
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_response_tokens": 16},
        "learner": {"minibatch_prompts": 2, "learning_rate": 1e-2},
        "algorithm": {
            "overlong_filtering": False,
            "dynamic_sampling": {"mode": "off"},
            "reward_scaling": {"source_max": 1.1},
        },
        "logging.console": "quiet",
        "validation.samples": 1,
        "validation.every": 2,
        "trainer.steps": 3,
        **more,
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """One run with everything that a program can give, its functions those of no module."""
    folder = tmp_path_factory.mktemp("python")
    make_tiny_model(folder / "model", "llama", seed=0)
    wanted = "=1"

    def score(prompt, completion):
        return {"accuracy": float(wanted in completion.text), "digits": sum(c.isdigit() for c in completion.text)}

    def short(prompt, completion):
        with LOCK:  # which cannot be sent to a worker
            return float(len(completion.text) < 40)

    class Hostile(dapo.Callback):
        def step(self, event):
            HEARD.append(event)
            random.seed(0)
            torch.manual_seed(0)
            for response in event.groups[0].completions_G if event.groups else ():
                with pytest.raises(ValueError, match="read-only"):
                    response.logprobs[:] = 1e9

        checkpoint = evaluation = start = end = lambda self, event: HEARD.append(event)

    rewards = [score, {"name": "short", "kind": "function", "function": short, "weight": 0.1}]
    run = dapo.train(**settings(folder, "given", rewards=rewards), callbacks=[Hostile])
    return SimpleNamespace(folder=folder, run=run, rewards=rewards, functions=[score, short])


def rows(run):
    return [without_clock(row) for row in run.metrics]


def test_a_run_is_what_its_folder_holds(world):
    run = world.run
    assert run.finished
    assert run.metrics.column("step") == [0, 1, 2, 3]
    assert set(run.metrics.column("reward/digits")[1:]) != {0.0}
    responses = run.rollouts(step=2)
    assert len(responses) == 16
    assert set(responses[0]) >= {"group", "reward", "advantage"}
    assert run.best["validation/accuracy"] == max(run.metrics.column("validation/accuracy"))
    assert {sample["step"] for sample in run.samples} == {0, 2, 3}
    assert "given" in repr(run)
    assert "<svg" in run._repr_html_()
    assert run.checkpoints == [3]
    texts = {(row["group"], row["sample"]): row["response"] for row in responses}
    recorded = run.tokens(step=2)
    assert recorded
    for row in recorded:
        assert len(row["pieces"]) == len(row["sampler"]) > 0
        plain = re.sub(r"<\w+>", "", "".join(row["pieces"]))  # special tokens are shown here
        assert plain.strip() == texts[row["group"], row["sample"]].strip()
    assert run.tokens().column("step")[0] == 3
    for read in (run.rollouts, run.tokens):
        with pytest.raises(RecipeError, match=f"no {read.__name__} of step 9; there are 1 to 3"):
            read(step=9)


def test_records_become_a_data_frame_where_pandas_is(world):
    pandas = pytest.importorskip("pandas")
    frame = world.run.metrics.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["step"]) == [0, 1, 2, 3]


def test_callbacks_hear_of_everything_in_order(world):
    names = [type(event).__name__.removesuffix("Event") for event in HEARD]
    assert names[:3] == ["Start", "Evaluation", "Step"]
    assert names[-3:] == ["Step", "Checkpoint", "End"]
    assert names.count("Step") == 4
    assert HEARD[-1].finished


def test_what_cannot_be_sent_is_said_and_what_a_resume_needs_too(world):
    log = (world.run.path / "log.txt").read_text()
    assert "the reward 'short' runs in this process" in log
    assert "dapo.resume(RUN, rewards=[score, short])" in log


def test_steps_one_at_a_time_are_the_same_run_to_the_bit_and_so_is_one_that_was_left(world):
    given = settings(world.folder, "steps", rewards=world.rewards)
    with dapo.Trainer(**given) as trainer:
        first = next(trainer)
        assert first.step == trainer.step == 1
        assert len(first.groups) == 4
        evaluated = trainer.evaluate()  # asked in between: it changes nothing
        assert len(evaluated.answers) == 8
        assert "few" in str(evaluated)
    assert trainer.run.status.state == "interrupted"
    assert trainer.run.checkpoints == [1]
    with pytest.raises(RecipeError, match=r"rewards=\[score, short\]"):
        dapo.resume(trainer.run)
    run = dapo.resume(trainer.run, rewards=world.functions)
    assert run.finished
    assert rows(run) == rows(world.run)


@pytest.mark.whole
def test_a_run_with_a_living_trainer_has_no_second_writer(world):
    with dapo.Trainer(**settings(world.folder, "one", rewards=world.rewards)) as trainer:
        next(trainer)
        with trainer.run.path.joinpath("lock").open() as other:
            assert f"pid {os.getpid()} on " in other.read()
        with pytest.raises(RecipeError, match=r"written by this process.*Close its Trainer first"):
            dapo.resume(trainer.run, rewards=world.functions)
        next(trainer)
    assert trainer.run.status.state == "interrupted"


@pytest.mark.whole
def test_settings_change_between_steps_where_they_may(world):
    given = settings(world.folder, "changed", rewards=world.rewards)
    with dapo.Trainer(**given) as trainer:
        next(trainer)
        assert trainer.change({"learner.learning_rate": 1e-3}) == ["learner.learning_rate: 0.01 -> 0.001 (ask)"]
        next(trainer)
        with pytest.raises(RecipeError, match="fixed"):
            trainer.change({"rollout.group_size": 8})
        trainer.change({"rollout.temperature": 0.9})  # saved, closed and resumed
        last = next(trainer)
        assert trainer.recipe.rollout.temperature == 0.9
        assert list(trainer) == []
        with pytest.raises(RecipeError, match="the run has ended"):
            trainer.save()
    assert last.step == 3
    rates = trainer.run.metrics.column("train/learning_rate")
    assert rates[1] == pytest.approx(rates[0] * 2 / 10)  # the second of ten warm-up steps, of a tenth
    assert [row["step"] for row in trainer.run.metrics] == [0, 1, 2, 3]


@pytest.mark.whole
def test_a_change_outlives_a_learner_that_is_lost(world, monkeypatch):
    """Steps behind the checkpoint are done again, with the settings that the run has by now."""
    learn, lost = LearnerDriver.learn, []

    def fails(learner, step):
        if step.version == 2 and not lost:
            lost.append(step.learning_rates[-1])
            raise LearnerLost("its process is gone")
        return learn(learner, step)

    monkeypatch.setattr(LearnerDriver, "learn", fails)
    given = settings(world.folder, "lost", rewards="math", **{"checkpoint.every": 1, "learner.warmup": 0})
    with dapo.Trainer(**given) as trainer:
        next(trainer)
        trainer.change({"learner.learning_rate": 1e-3})
        assert [step.step for step in trainer] == [2, 3]
        assert trainer.recipe.learner.learning_rate == 1e-3
    assert lost == [1e-3]
    assert trainer.run.metrics.column("train/learning_rate") == [1e-2, 1e-3, 1e-3]
    assert "learning_rate: 0.001" in (trainer.run.path / "recipe.resolved.yaml").read_text()
    log = (trainer.run.path / "log.txt").read_text()
    assert "its process is gone. Restart 1 of at most 3" in log
    # the checkpoint of step 2 was written by the changed run, so that nothing is other than there
    assert "other than at the checkpoint" not in log


@pytest.mark.whole
def test_a_stop_is_a_saved_end(world):
    with dapo.Trainer(**settings(world.folder, "stopped", rewards="math")) as trainer:
        assert [step.step for step in trainer if trainer.stop("enough") is None] == [1]
    assert trainer.run.status.said == "stopped by enough after step 1, and saved"


@pytest.mark.whole
def test_a_run_that_is_left_behind_its_last_step_is_finished(world):
    with dapo.Trainer(**settings(world.folder, "left", rewards="math", **{"trainer.steps": 1})) as trainer:
        for _ in trainer:
            break
    assert (trainer.run.finished, trainer.run.status.said) == (True, "")
    log = (trainer.run.path / "log.txt").read_text()
    assert "1 training step\n" in log
    assert "--resume" not in log


@pytest.mark.whole
def test_the_trained_model_and_its_evaluation(world):
    model = world.run.model()
    assert type(model).__name__ == "LlamaForCausalLM"
    found = dapo.evaluate(world.run, PROBLEMS[:3], samples=2, greedy=False, rewards=world.functions[0])
    assert len(found.answers) == 6
    low, high = found.interval
    assert low <= found.accuracy <= high
    assert found.metrics["held_out/accuracy"] == found.accuracy
    other = dapo.evaluate(world.folder / "model", PROBLEMS[:3], samples=1, rewards="exact")
    assert other.step is None


def test_a_check_is_what_the_command_prints(world, capsys):
    report = dapo.check(**settings(world.folder, "check", rewards="exact"))
    assert any("4 prompts x 4 responses" in line for line in report.sections["arithmetic"])
    assert report.good == (report.doubts == ())
    assert "arithmetic" in str(report)
    assert capsys.readouterr().out == ""


@pytest.mark.whole
def test_a_program_may_change_its_working_directory(world, tmp_path, monkeypatch, capsys):
    """In a callback, in the first step: everything goes on where it began, also what is read again after a loss."""
    learn, lost = LearnerDriver.learn, []

    def fails(learner, step):
        if step.version == 2 and not lost:
            lost.append(step.version)
            raise LearnerLost("its process is gone")
        return learn(learner, step)

    class Moves(dapo.Callback):
        def step(self, event):
            os.chdir(elsewhere)

    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(LearnerDriver, "learn", fails)
    monkeypatch.chdir(home)
    (home / "model").symlink_to(world.folder / "model")
    own = {"model": "model", "run": {"dir": "runs", "name": "moved"}, "checkpoint": {"every": 1, "dir": "saved"}}
    run = dapo.train(**settings(home, "moved", rewards="math", **own), callbacks=[Moves])
    assert lost
    assert os.getcwd() == str(elsewhere)
    assert run.path == home / "runs" / "moved"
    assert [row["step"] for row in run.metrics] == [0, 1, 2, 3]
    assert (home / "saved" / "moved" / "step_000003").is_dir()
    assert list(elsewhere.iterdir()) == []


LEFT_OPEN = """
import dapo
from test_run_python import settings
from pathlib import Path

trainer = dapo.Trainer(**settings(Path({folder!r}), "open", rewards="math", **{{"logging.console": "quiet"}}))
print("step", next(trainer).step)
keeps = [trainer, lambda: keeps]
"""


@pytest.mark.whole
def test_a_trainer_that_is_left_open_is_saved_at_the_programs_end(world):
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN.format(folder=str(world.folder))],
        capture_output=True, text=True, check=False, timeout=200,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path]), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "step 1\n"), done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr
    run = dapo.Run(world.folder / "runs" / "open")
    assert run.checkpoints == [1]
    assert run.status.state == "interrupted"


@pytest.mark.whole
def test_settings_that_are_none_get_a_sentence(world):
    with dapo.Trainer(**settings(world.folder, "wrong", rewards="math")) as trainer:
        for wrong in (5, None, "trainer.steps=3", [("trainer.steps", 3)], {5: 3}):
            with pytest.raises(RecipeError, match=r"expected .*learner\.learning_rate"):
                trainer.change(wrong)
        assert next(trainer).step == 1
