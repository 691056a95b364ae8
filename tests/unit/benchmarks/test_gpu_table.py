"""Numbers of ``python -m benchmarks.gpu`` are a card's: none of a CPU stands in its table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import burning_for_tests
import pytest

from benchmarks.gpu.child import run_parts
from benchmarks.gpu.plan import PLAN, Part
from benchmarks.gpu.results import Results
from benchmarks.gpu.room import Room
from benchmarks.gpu.runner import Runner

HERE = Path(__file__).parent


def rows(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.whole
def test_a_card_that_is_gone_is_not_replaced_by_the_cpu(tmp_path):
    """The next process would find none and rehearse the other parts: a CPU's numbers in the card's table."""
    said: list[str] = []
    runner = Runner(list(burning_for_tests.PLAN), "burning_for_tests", "auto", (600.0, 600.0), tmp_path / "out",
                    lambda card: {"card": card, "date": "2026-01-01"}, said.append)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("ASHES", str(tmp_path / "ashes"))
        results = runner.run()
    ends = {name: (row["status"], row["said"]) for name, row in results.ends.items()}
    assert ends["good"][0] == "passed"
    assert "signal SIGSEGV" in ends["burns"][1]
    assert ends["behind"] == ends["last"] == ("died", "the card does not answer any more: burnt")
    assert results.bad == ["burns", "behind", "last"]
    assert [row["value"] for row in rows(results.folder) if row["event"] == "row"] == [True]
    short = results.short()
    assert short[0] == "- `good`: on the card: yes"
    assert "`burns` died: its process ended with signal SIGSEGV" in short[1]  # where an end alone is kept, the reasons
    assert [line.split("`")[1] for line in short[1:]] == results.bad
    assert "good: on the card: yes" in said[1]  # at once, before the part has ended
    assert "## In short\n\n- `good`: on the card: yes\n- `burns` died: " in (results.folder / "table.md").read_text()


@pytest.mark.parametrize(("device", "told"), [("cpu", ["seen"]), ("cuda", ["seen", "speed"])])
def test_rates_of_a_rehearsal_are_told_to_nobody(monkeypatch, device, told):
    """Later parts find them all the same: their code runs as on a card."""
    found, rows = [], []

    def run(part, room):
        if part.name == "first":
            room.note("seen", 1)
            room.rate("speed", 7.0, "tokens/s", main=True)
        else:
            found.append(room.found("first", "speed"))

    monkeypatch.setattr("benchmarks.gpu.child.call", run)
    parts = [Part(name, "check", 60.0, "") for name in ("first", "second")]
    run_parts(parts, device, math.inf, rows.append, [], lambda device: True)
    assert [row["what"] for row in rows if row["event"] == "row"] == told
    assert found == [7.0]


def test_a_rehearsal_names_every_part_as_not_shown_on_a_card(tmp_path):
    results = Results(tmp_path, {"card": "", "date": "today"}, PLAN)
    results.end({"event": "end", "part": "greedy", "status": "passed", "said": "", "seconds": 1.0})
    named = [line.split("`")[1] for line in results.not_shown()]
    assert named == [*(part.name for part in PLAN if part.name != "greedy"), "greedy"]  # what was not run stands first
    assert "`greedy` on a card: here its code ran" in "\n".join(results.not_shown())
    assert (tmp_path / "table.md").read_text().startswith("# Rehearsal without a card, today\n\n**No card was here.**")


def test_bounds_are_two_sided_and_nan_lies_between_none():
    room = Room("cpu", Path())
    assert room.expect("a", 1.0, at_least=1.0, at_most=1.0)
    assert not room.expect("b", 0.5, at_least=1.0)
    assert not room.expect("c", 1.5, at_most=1.0)
    assert not room.expect("d", float("nan"))
    assert [text.partition(":")[0] for text in room.failed] == ["b", "c", "d"]
