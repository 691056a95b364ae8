"""What a study of paired arms says of the seeds and the command that it is of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dapo.observe.status import StatusWriter

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
MACHINE = {"cpu": "x", "python": "3", "packages": {"torch": "2"}, "date": "d", "commit": "HEAD"}


@pytest.fixture
def paired(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import paired

    monkeypatch.setattr(paired, "describe_machine", lambda: MACHINE | {"command": "python benchmarks/a_study.py"})
    return paired


@pytest.fixture
def study(paired):
    return paired.Study(
        file="a_study",
        title="A study",
        said="Of nothing.",
        seeds=(1, 2, 3),
        arms={"task": {"off": {}, "on": {"a": 1}}},
        measures={"task": [paired.Measure("accuracy, %", paired.at("accuracy", 1), 100)]},
        run=lambda *given: pytest.fail("a run is begun"),
    )


def finish(paired, work, arm, seed, accuracy, commit="0123456"):
    folder = paired.folder_of(work, "task", arm, seed)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "accuracy": accuracy}) + "\n")
    StatusWriter(folder / "status.json", steps=1).end("finished")
    (folder / "commit").write_text(commit)


def published(paired, study, work, monkeypatch, *options):
    arguments = ["a_study.py", "--work", str(work), "--no-runs", "--out", str(work / "out"), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    paired.main(study, "doc")
    return (work / "out/a_study.md").read_text()


def test_differences_are_of_one_seed_and_unfinished_seeds_are_named(paired, study, tmp_path, monkeypatch):
    for seed, off, on in ((1, 0.2, 0.3), (2, 0.6, 0.7)):  # the seeds differ by more than the arms
        finish(paired, tmp_path, "off", seed, off)
        finish(paired, tmp_path, "on", seed, on)
    finish(paired, tmp_path, "off", 3, 0.9)
    page = published(paired, study, tmp_path, monkeypatch)
    assert "Seeds 1, 2. Not finished: 3." in page
    assert "| on less off | +10.0 [+10.0, +10.0] |" in page
    assert "`python benchmarks/a_study.py --work WORK`: x" in page
    assert "commit 0123456" in page


def test_a_pair_of_different_code_is_named(paired, study, tmp_path, monkeypatch):
    for seed, commit in ((1, "0123456"), (2, "abcdef0"), (3, "0123456")):
        finish(paired, tmp_path, "off", seed, 0.5)
        finish(paired, tmp_path, "on", seed, 0.5, commit)
    page = published(paired, study, tmp_path, monkeypatch)
    assert "Seeds 1, 2, 3. Arms of seed 2 were made by different commits." in page


def test_the_command_names_what_was_chosen(paired, study, tmp_path, monkeypatch):
    finish(paired, tmp_path, "off", 2, 0.5)
    finish(paired, tmp_path, "on", 2, 0.5)
    page = published(paired, study, tmp_path, monkeypatch, "--seeds", "2", "--tasks", "task")
    assert "`python benchmarks/a_study.py --work WORK --seeds 2`: x" in page
    assert "Seeds 2." in page
    assert "Not finished" not in page
