"""The results folder: a line of JSON for each row as it comes, and a table that is written again after every part."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import Part
from benchmarks.gpu.room import Row

BAD = ("failed", "error", "timeout", "died")
_REHEARSED = (
    "**No card was here.** Each number is of a CPU at tiny sizes. They show that the code runs and computes what it "
    "should. Rates are left out, since a CPU's say nothing of a card. What only a card can show is named at the end."
)
_ROWS, _TABLE, LOG = "results.jsonl", "table.md", "log.txt"


def folder_for(parent: Path, card: str) -> Path:
    """A new folder ``<card>-<date>``; a number behind it where there is one already."""
    name = re.sub(r"[^a-z0-9.]+", "-", (card or "rehearsal without a card").lower()).strip("-")
    name += time.strftime("-%Y-%m-%d", time.gmtime())
    for number in range(1, 1000):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent} is full of {name}; give --out another folder")


class Results:
    """What came so far. A run that is killed leaves it on the disk."""

    def __init__(self, folder: Path, machine: dict[str, Any], plan: Sequence[Part]) -> None:
        self.folder, self.machine, self.plan = folder, machine, plan
        self.rows: list[Row] = []
        self.ends: dict[str, Row] = {}
        self._file = (folder / _ROWS).open("a", encoding="utf-8")
        self._write({"event": "machine", **machine})

    def row(self, row: Row) -> None:
        """A number that a part found."""
        self.rows.append({key: value for key, value in row.items() if key != "event"})
        self._write(row)

    def end(self, row: Row) -> None:
        """A part is over."""
        self.ends[row["part"]] = row
        self._write(row)
        self.table()

    def _write(self, row: Row) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    @property
    def bad(self) -> list[str]:
        """Parts that did not go well."""
        return [name for name, row in self.ends.items() if row["status"] in BAD]

    def close(self) -> None:
        self.table()
        self._file.close()

    def table(self) -> None:
        (self.folder / _TABLE).write_text("\n".join(self.lines()) + "\n", encoding="utf-8")

    def lines(self) -> list[str]:
        """The whole as markdown."""
        about = self.machine
        shown = [name for name in self.plan if name.name in self.ends]
        lines = [f"# {about.get('card') or 'Rehearsal without a card'}, {about['date']}", ""]
        if not about.get("card"):
            lines += [_REHEARSED, ""]
        lines += [f"- {key}: {value}" for key, value in about.items() if key not in ("card", "date")]
        counts = {status: sum(row["status"] == status for row in self.ends.values()) for status in _order(self.ends)}
        lines += ["- parts: " + ", ".join(f"{count} {status}" for status, count in counts.items()), ""]
        lines += ["| part | status | seconds | shows, or what was found |", "| --- | --- | --- | --- |"]
        for part in shown:
            end = self.ends[part.name]
            status = end["status"] if end["status"] not in BAD else f"**{end['status']}**"
            said = end["said"] or part.shows
            lines.append(f"| `{part.name}` | {status} | {end['seconds']:.1f} | {_cell(said)} |")
        if short := self.short():
            lines += ["", "## In short", "", *short]
        lines += ["", "| part | what | value | unit | accepted |", "| --- | --- | --- | --- | --- |"]
        for row in self.rows:
            lines.append(
                f"| `{row['part']}` | {_cell(row['what'])} | {_value(row['value'])} | {row['unit']} | {_bounds(row)} |"
            )
        if hidden := self.not_shown():
            lines += ["", "## Not shown by this run", "", *hidden]
        return lines

    def short(self) -> list[str]:
        """The numbers that the run was made for, and why parts did not go well."""
        bad = [f"- `{name}` {self.ends[name]['status']}: {_cell(self.ends[name]['said'])}" for name in self.bad]
        return [f"- `{row['part']}`: {told(row)}" for row in self.rows if row.get("main")] + bad

    def not_shown(self) -> list[str]:
        """By name: what nobody knows after this run."""
        lines, rehearsed = [], []
        for part in self.plan:
            end = self.ends.get(part.name)
            if end is None:
                lines.append(f"- `{part.name}` was not run: {part.shows}")
            elif end["status"] in ("skipped", "not shown", "not reached", "timeout", "died", "error"):
                lines.append(f"- `{part.name}` ({end['status']}; {_cell(end['said'])}): {part.shows}")
            elif not self.machine.get("card"):
                rehearsed.append(f"- `{part.name}` on a card: here its code ran at a small size on a CPU")
        return lines + rehearsed  # what was not run at all stands first


def told(row: Row) -> str:
    """A number in words."""
    return " ".join(filter(None, [f"{_cell(row['what'])}: {_value(row['value'])}", row["unit"]]))


def _order(ends: dict[str, Row]) -> list[str]:
    return sorted({row["status"] for row in ends.values()}, key=lambda status: (status != "passed", status))


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return _cell(str(value))


def _bounds(row: Row) -> str:
    if "ok" not in row:
        return ""
    bounds = [f"{word} {_value(row[key])}" for key, word in (("at_least", "≥"), ("at_most", "≤")) if key in row]
    return f"{' '.join(bounds) or 'yes'}{'' if row['ok'] else ': **no**'}"
