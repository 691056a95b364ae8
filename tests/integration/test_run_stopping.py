"""Stopping well, through the command line: limits of time, signals, the best checkpoint, another disk."""

import json
import random
import re
import signal
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file
from small_run import dapo, write_recipe

from dapo.checkpoint.store import CheckpointStore
from dapo.loop.stopping import Stopping
from dapo.observe.metrics import read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts
from dapo.observe.status import read_status


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that had no time, resumed with more of it."""
    folder = tmp_path_factory.mktemp("stopping")
    recipe = write_recipe(folder)
    settings = ["checkpoint.best=validation/accuracy", f"checkpoint.dir={folder}/disk", "validation.every=1"]
    limit = ["trainer.max_hours=1.0e-9", "trainer.steps=3", "checkpoint.keep=1"]
    done = dapo("train", recipe, *settings, *limit, expect=75)
    assert "trainer.max_hours = 1e-09 left no time for a single step: what comes before" in done.stdout
    assert "stopped and saved. Continue with:" in done.stdout
    status = read_status(folder / "run" / "status.json")
    assert (status.state, status.said) == ("interrupted", "stopped by trainer.max_hours after step 0, and saved")
    said = dapo("train", "--resume", folder / "run", "trainer.max_hours=null").stdout
    assert re.search(
        r"best checkpoint: step \d, validation/accuracy [\d.e-]+ \(before training, which counts as no", said
    )
    return folder / "run"


@pytest.mark.whole
def test_checkpoints_lie_on_the_other_disk(run):
    assert (run / "checkpoints").resolve() == (run.parent / "disk" / "run").resolve()
    store = CheckpointStore(run.parent / "disk" / "run")
    assert store.best_step() in store.steps()
    assert store.steps()[-1] == 3


def test_the_best_one_is_exported_and_evaluated(run, tmp_path):
    best = CheckpointStore(run / "checkpoints").best_step()
    out = dapo("export", run, tmp_path / "model", "--best").stdout
    assert f"step_{best:06d} ->" in out
    said = json.loads(dapo("evaluate", run, "--best", "--json", "-k", "1").stdout)
    assert said["step"] == best
    refused = dapo("export", run, tmp_path / "other", "--best", "--step", "3", expect=2)
    assert "give one of them" in refused.stderr
    refused = dapo("evaluate", run.parent / "model", "--best", "--data", "task:signed_sum", expect=2)
    assert "it needs a run" in refused.stderr


def test_a_resume_with_other_rewards_says_that_old_scores_stay(tmp_path):
    recipe = write_recipe(tmp_path)
    dapo("train", recipe, "trainer.steps=1")
    told = "responses that were scored before this resume keep their scores"
    same = dapo("train", "--resume", tmp_path / "run", "trainer.steps=2").stdout
    other = dapo("train", "--resume", tmp_path / "run", "trainer.steps=3", "rewards.1.weight=0.05").stdout
    assert [told in " ".join(shown.split()) for shown in (same, other)] == [False, True]


# ---------------------------------------------------------------- signals in the middle of steps


@pytest.fixture
def looks(monkeypatch):
    """Counts the moments at which a run may be left; ``at`` is the one at which this process gets SIGTERM."""
    seen, look = SimpleNamespace(count=0, at=None), Stopping.look

    def counted(stopping):
        seen.count += 1
        if seen.count == seen.at:
            signal.raise_signal(signal.SIGTERM)
        look(stopping)

    monkeypatch.setattr(Stopping, "look", counted)
    return seen


def recorded(run):
    """Return what a run wrote that no clock decides; an evaluation that was made up belongs to the line of its step."""
    lines = {}
    for row in read_metrics(run / "metrics.jsonl"):
        lines.setdefault(row["step"], {}).update(without_clock(row))
    rollouts = {file.name: read_rollouts(file).to_pylist() for file in sorted((run / "rollouts").iterdir())}
    newest = CheckpointStore(run / "checkpoints").path()
    weights = {
        name: values.tobytes()
        for file in sorted((newest / "learner").glob("*.safetensors"))
        for name, values in load_file(file).items()
    }
    return repr(lines), repr(rollouts), weights


def test_ten_signals_at_random_moments_change_no_digit(tmp_path, looks):
    settings = ["rollout.slots=12", "rollout.max_response_tokens=40", "validation.every=3", "validation.limit=2"]
    recipe = write_recipe(tmp_path)
    dapo("train", recipe, *settings, "run.name=whole")
    chance, most = random.Random(44), looks.count // 7
    command, said = ["train", recipe, *settings], []
    for _ in range(10):
        looks.count, looks.at = 0, chance.randint(1, most)
        dapo(*command, expect=130)
        said.append(read_status(tmp_path / "run" / "status.json").said)
        command = ["train", "--resume", tmp_path / "run"]
    looks.at = None
    dapo(*command)
    assert recorded(tmp_path / "run") == recorded(tmp_path / "whole")
    assert sum("is left in its middle: a resume goes on with" in each for each in said) >= 3, said
