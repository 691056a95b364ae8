"""processes.json: what the recorder writes is what the report reads; turns become spans of a lane of their own."""

import json

import pytest

from dapo.observe.processes import FILE, write_processes
from dapo.report.reader import read_run
from dapo.types.protocols import ProcessState


def test_what_is_written_is_read(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=2)
    assert read_run(folder).processes == []
    spans = {"turns": ((1.8e9, 0.5),), "starts": ((1.79e9, 4.0),)}
    engine = ProcessState("engine-0", "engine", "node-2", 7, False, 3, 1.8e9, 0.5, 600.0, **spans)
    write_processes(folder, 2, [ProcessState("driver", "driver", "node-1"), engine])
    driver, found = read_run(folder).processes
    assert driver["memory_mib"] is None
    assert found == {
        "name": "engine-0",
        "role": "engine",
        "machine": "node-2",
        "process": 7,
        "alive": False,
        "restarts": 3,
        "last_turn": 1.8e9,
        "turn_seconds": 0.5,
        "memory_mib": 600.0,
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"processes": 3}', '{"processes": [3, {"name": 1}, {"name": "a", "role": "b", "machine": "c"}]}'],
)
def test_a_file_of_anyone_is_left_out(tmp_path, make_run, text):
    folder = make_run(tmp_path / "run", steps=1)
    (folder / FILE).write_text(text)
    assert read_run(folder).processes == []


def test_odd_values_of_a_row_are_left_out(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=1)
    row = {"name": "e\ud800" * 150, "role": "engine", "machine": "m", "alive": True, "restarts": 0}
    (folder / FILE).write_text(json.dumps({"processes": [{**row, "memory_mib": 1e300, "process": -1}] * 2000}))
    found = read_run(folder).processes
    assert len(found) == 1000
    assert found[0]["memory_mib"] is None
    assert found[0]["process"] is None
    assert len(found[0]["name"]) == 200
