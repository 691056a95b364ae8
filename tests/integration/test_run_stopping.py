"""Stopping well, through the command line: a limit of time, the best checkpoint, checkpoints on another disk."""

import json
import re

import pytest
from small_run import dapo, write_recipe

from dapo.checkpoint.store import CheckpointStore
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
