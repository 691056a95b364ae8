"""What ``soak.py`` counts of a run sees each fault that a lost process could leave."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
WELL = [  # by step: the groups of its file, and how each ended there
    {0: "trained", 1: "trained", 2: "carried"},
    {2: "trained", 3: "trained", 4: "discarded", 5: "carried"},
]


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    return soak


def write_run(soak, folder, lines=None, more=()):
    """Write a run of two steps; ``more``: rows (step, group, sample, disposition) beside those of ``WELL``."""
    said = {"groups/trained": 2, "total/groups/dispatched": 7, "groups/waiting": 1, "groups/unfinished": 1}
    steps = [{"step": step, **said} for step in (1, 2)]
    lines = steps if lines is None else [steps[n - 1] for n in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rollouts").mkdir()
    for step, groups in enumerate(WELL, 1):
        rows = [(group, sample, fate) for group, fate in groups.items() for sample in range(soak.GROUP)]
        rows += [row for of, *row in more if of == step]
        table = pa.table(dict(zip(("group", "sample", "disposition"), map(list, zip(*rows, strict=True)), strict=True)))
        pq.write_table(table, folder / "rollouts" / f"step_{step:06d}.parquet")


def false(counted):
    return [what for what, value in counted.items() if value is False]


def test_a_sound_run_is_sound(soak, tmp_path):
    write_run(soak, tmp_path)
    counted = soak.count(tmp_path)
    assert false(counted) == []
    assert (counted["steps"], counted["groups dispatched"], counted["groups trained"]) == (2, 7, 4)


@pytest.mark.parametrize("lines", [(1, 1, 2), (1, 2, 2), (2, 1), (2,)], ids=["first", "last", "order", "missing"])
def test_a_step_that_is_written_twice_or_not_at_all_is_seen(soak, tmp_path, lines):
    write_run(soak, tmp_path, lines)
    assert "each step once, in order" in false(soak.count(tmp_path))


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ([(2, 1, n, "trained") for n in range(8)], "no group with two ends"),
        ([(2, 4, n, "trained") for n in range(8)], "no group with two ends"),
        ([(2, 4, 0, "trained")], "no group with two ends"),
        ([(1, 0, 0, "trained")], "each response of a group once"),
        ([(1, 0, n, "trained") for n in range(8)], "each response of a group once"),
        ([(2, 6, n, "trained") for n in range(7)], "each response of a group once"),
        ([(2, 6, n, "trained") for n in range(8)], "as many as the steps say"),
        ([(2, 6, n, "discarded") for n in range(8)], "no group is missing"),
        ([(2, 6, n, "carried") for n in range(8)], "waiting groups are those that the last step names"),
        ([(2, 9, n, "discarded") for n in range(8)], "no group that was not dispatched"),
    ],
)
def test_a_group_that_is_counted_wrongly_is_seen(soak, tmp_path, more, seen):
    write_run(soak, tmp_path, more=more)
    assert seen in false(soak.count(tmp_path))


@pytest.mark.parametrize("looked", [True, False], ids=["seen before", "by its environment"])
def test_a_process_whose_parent_ended_is_left(soak, looked):
    marker = "0" if looked else f"soak-{os.getpid()}"
    process = subprocess.Popen(
        ["sh", "-c", "sleep 60 > /dev/null & echo $!; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **({} if looked else {soak.MARKER: marker})},
    )
    family = soak.Family(process.pid, marker)
    orphan = int(process.stdout.readline())
    try:
        if looked:
            assert orphan in family.living()
        process.communicate(b"\n")  # the shell ends, and its child is nobody's
        assert family.left() == [orphan]
    finally:
        os.kill(orphan, signal.SIGKILL)
    while soak.born(orphan):
        pass
    assert family.left() == []


def test_a_run_in_which_nothing_is_killed_waits_for_no_loss(soak):
    assert soak.pause(random.Random(0), math.inf) == math.inf
    assert 0 < soak.pause(random.Random(0), 120.0) < 60


@pytest.mark.parametrize(
    ("code", "counted", "wrong"),
    [
        (130, {"each": True, "processes left": 0}, []),
        (1, {"each": True, "processes left": 0}, ["exit code"]),
        (130, {"each": False, "processes left": 2}, ["each", "processes left"]),
    ],
)
def test_what_is_wrong_is_named(soak, code, counted, wrong):
    whole = {soak.FAILURES["not_repeatable"]: 0, "shared memory left, MiB": 0, **counted}
    assert soak.wrong(code, whole) == wrong


def test_failures_are_metrics_that_a_run_writes(soak):
    from dapo.metrics.glossary import GLOSSARY

    assert {f"environment/{key}" for key in soak.FAILURES} <= set(GLOSSARY)
