"""A report and the view tell on what a run was computed; the file may be anyone's."""

from __future__ import annotations

import json

import pytest

from dapo.report.bundle import bundle_of
from dapo.report.machines import in_one_line, machine_of, without_repeats
from dapo.report.reader import read_run

LINE = {
    "step": 0,
    "time": 1.8e9,
    "system": "Linux 6.1 x86_64",
    "cpu": "AMD EPYC",
    "cores": 2,
    "memory_gib": 31.4,
    "accelerators": [],
    "threads": "1",
    "engine": "embedded",
    "versions": {"python": "3.11.2", "dapo": "0.1.0", "torch": "2.13.0"},
    "commit": "0123456789abcdef" * 2,
    "dirty": True,
}


def test_the_facts_in_words():
    said = dict(machine_of(LINE)["facts"])
    assert said["processor"] == "AMD EPYC, 2 cores"
    assert said["accelerator"] == "none"
    assert said["memory"] == "31.4 GiB"
    assert said["packages"] == "python 3.11.2, dapo 0.1.0, torch 2.13.0"
    assert said["commit"] == "0123456789ab, with changes that are not committed"
    assert dict(machine_of(LINE | {"dirty": False})["facts"])["commit"] == "0123456789ab"
    assert in_one_line(machine_of(LINE)).startswith("AMD EPYC, 2 cores; accelerator none; memory 31.4 GiB; threads 1; ")


def test_where_ranks_and_engines_were_is_told_by_machine():
    """Of a run on a Ray cluster; any other has no such line."""
    hosts = {"rank-0": "node-1", "rank-1": "node-2", "engine-0": "node-1", "engine-1": "node-2"}
    said = machine_of(LINE | {"hosts": hosts})
    assert dict(said["facts"])["hosts"] == "node-1: rank-0, engine-0; node-2: rank-1, engine-1"
    assert "; hosts node-1: rank-0, engine-0; node-2: rank-1, engine-1; python " in in_one_line(said)
    for none in ({}, [], "node-1", {"rank-0": 3}):
        assert "hosts" not in dict(machine_of(LINE | {"hosts": none})["facts"])


@pytest.mark.parametrize("line", [None, [], {}, {"step": -1}, {"step": "0"}, {"step": True}])
def test_what_is_no_line_is_left_out(line):
    assert machine_of(line) is None


def test_fields_of_other_kinds_are_left_out():
    odd = {key: {"a": [1]} for key in LINE} | {"step": 3}
    assert machine_of(odd) == {"step": 3, "time": None, "facts": [("accelerator", "none")]}
    long = machine_of(LINE | {"cpu": "x" * 10_000, "memory_gib": float("nan"), "versions": {"torch": 5}})
    assert max(len(value) for _, value in long["facts"]) <= 200
    assert {"memory", "packages"}.isdisjoint(dict(long["facts"]))


def test_a_resume_elsewhere_is_a_second_column_and_one_on_the_same_machine_is_not(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    lines = [LINE, LINE | {"step": 4, "time": 1.9e9}, LINE | {"step": 8, "cpu": "Intel"}]
    (folder / "machine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "cpu"')
    (view,) = bundle_of([read_run(folder)], live=True)["runs"]
    assert [machine["step"] for machine in view["machines"]] == [0, 8]
    assert dict(view["machines"][1]["facts"])["processor"] == "Intel, 2 cores"
    assert without_repeats([]) == []


def test_an_older_run_has_none(tmp_path, make_run):
    (view,) = bundle_of([read_run(make_run(tmp_path / "run"))], live=True)["runs"]
    assert view["machines"] == []


def test_model_and_data_are_told_beside_the_difference(tmp_path, make_run):
    settings = {
        "data": {"train": [{"task": "signed_sum", "seed": 3}], "validation": [{"task": "signed_sum", "seed": 4}]}
    }
    (view,) = bundle_of([read_run(make_run(tmp_path / "run", settings=settings))], live=True)["runs"]
    assert view["recipe"]["made_of"] == [
        ("model.path", '"a/b"'),
        ("data.train.0.task", '"signed_sum"'),
        ("data.train.0.seed", "3"),
        ("data.validation.0.task", '"signed_sum"'),
        ("data.validation.0.seed", "4"),
    ]
    assert "model.path" not in {path for path, _, _ in view["recipe"]["difference"]}
