"""Files that somebody planted in a run folder: nothing in them runs, and the refusal names the file and a next move."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import quick
from small_run import write_recipe

import dapo
from dapo.cli.main import main
from dapo.errors import DapoError

MARK = "planted code ran"
QUICK = ["trainer.steps=2", "validation.every=0", "logging.console=quiet"]


class Planted:
    """Whoever unpickles it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    assert main(["train", str(write_recipe(folder)), *QUICK]) == 0
    return folder / "run"


@pytest.fixture
def run(base, tmp_path):
    return Path(shutil.copytree(base, tmp_path / "run"))


def checkpoint(run):
    return run / "checkpoints" / "step_000002"


def tensors(folder, planted):
    (folder / "learner" / "rank-00000-of-00001.safetensors").write_bytes(planted)


def learner_state(folder, planted):
    (folder / "learner" / "state.json").write_bytes(planted)


def run_state(folder, planted):
    (folder / "state.json").write_bytes(planted)


def arrays(folder, planted):
    """Members of an archive whose type is object are pickles."""
    mark = folder.parents[2] / MARK
    np.savez(folder / "state.npz", **dict.fromkeys(np.load(folder / "state.npz").files, np.array([Planted(mark)])))


PLACES = {
    tensors: r"rank-00000-of-00001\.safetensors is no whole safetensors file.*resume from another one",
    learner_state: r"learner is not a complete learner checkpoint.*resume from another one",
    run_state: r"state\.json cannot be read.*delete this folder",
    arrays: r"state\.npz cannot be read.*delete this folder",
}


PLANTED = [*((place, "pickle") for place in PLACES), (tensors, "torch.save")]


def write_manifest(folder):
    """As a stranger would, who wants the checksums to hold."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"]
    manifest = {str(p.relative_to(folder)): [p.stat().st_size, zlib.crc32(p.read_bytes())] for p in files}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("place", "kind"), quick(PLANTED, PLANTED[3:4]))
def test_nothing_planted_in_a_checkpoint_runs(run, tmp_path, capsys, place, kind):
    mark = tmp_path / MARK
    if kind == "pickle":
        planted = pickle.dumps(Planted(mark))
    else:
        torch.save({"model/weight": Planted(mark)}, tmp_path / "saved.pt")
        planted = (tmp_path / "saved.pt").read_bytes()
    place(checkpoint(run), planted)
    write_manifest(checkpoint(run))
    commands = [
        ["export", str(run), str(tmp_path / "out")],
        ["evaluate", str(run)],
        ["train", "--resume", str(run), "trainer.steps=3"],
    ]
    for command in commands:
        capsys.readouterr()
        if command[0] == "evaluate" and place in (run_state, arrays):  # which it has no use for
            assert main(command) == 0
            assert not mark.exists()
            continue
        assert main(command) == 2, command
        said = " ".join(capsys.readouterr().err.split())
        assert not mark.exists(), command
        assert re.search(PLACES[place], said), (command, said)
    calls = [lambda: dapo.Run(run).export(tmp_path / "out"), dapo.Run(run).model, lambda: dapo.resume(run)]
    calls += [lambda: dapo.evaluate(run)] * (place not in (run_state, arrays))
    for call in calls:
        with pytest.raises(DapoError):
            call()
        assert not mark.exists()


def test_a_pickle_beside_a_sound_checkpoint_is_not_read(run, tmp_path):
    mark = tmp_path / MARK
    (checkpoint(run) / "learner" / ".metadata").write_bytes(pickle.dumps(Planted(mark)))
    write_manifest(checkpoint(run))
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    assert main(["train", "--resume", str(run), "trainer.steps=3", "logging.console=quiet"]) == 0
    assert not mark.exists()


@pytest.mark.parametrize("name", ["log.txt", "lock", "status.json", "machine.jsonl"])
def test_a_resume_writes_through_no_link(run, tmp_path, capsys, name):
    other = tmp_path / "of somebody else"
    other.write_text("precious\n")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(other)
    assert main(["train", "--resume", str(run), "trainer.steps=3"]) == 2
    assert f"{run / name} is a link" in " ".join(capsys.readouterr().err.split())
    assert other.read_text() == "precious\n"


def test_a_fingerprint_that_is_no_mapping_is_damage(run, tmp_path, capsys):
    file = checkpoint(run) / "learner" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fingerprint": [1]}))
    write_manifest(checkpoint(run))
    assert main(["export", str(run), str(tmp_path / "out")]) == 2
    assert "is not a complete learner checkpoint" in capsys.readouterr().err


@pytest.mark.cluster
def test_nothing_planted_in_a_checkpoint_runs_in_a_rank(run, tmp_path, capsys):
    mark = tmp_path / MARK
    tensors(checkpoint(run), pickle.dumps(Planted(mark)))
    write_manifest(checkpoint(run))
    assert main(["train", "--resume", str(run), "trainer.steps=3", "learner.ranks=2"]) == 2
    assert re.search(PLACES[tensors], " ".join(capsys.readouterr().err.split()))
    assert not mark.exists()
