"""What a part gets: where it runs, how long it may, where it writes, and what was found before it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Skipped(Exception):
    """A part cannot be run here; the message says what is missing."""


@dataclass
class Room:
    """The surroundings of one part.

    Args:
        device: ``cuda`` or ``cpu``.
        folder: For files of the part; it is deleted afterwards.
        ends: ``time.monotonic()`` at which the part should be done.
        write: Takes each row at once.
        before: Rows of the parts before this one.
    """

    device: str
    folder: Path
    ends: float = math.inf
    write: Callable[[Row], None] = lambda row: None
    before: Iterable[Row] = ()
    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def on_card(self) -> bool:
        return self.device != "cpu"

    @property
    def left(self) -> float:
        """Seconds until the part should be done."""
        return self.ends - time.monotonic()

    def sized(self, on_card: Any, rehearsed: Any) -> Any:
        """The first on a card, the second in a rehearsal: the code is the same, sizes are not."""
        return on_card if self.on_card else rehearsed

    def note(self, what: str, value: Any, unit: str = "", *, main: bool = False) -> None:
        """Something found that nothing is asked of; ``main``: it is told at once, and again at the end."""
        self._add({"what": what, "value": _plain(value), "unit": unit, **({"main": True} if main else {})})

    def rate(self, what: str, value: Any, unit: str = "", *, main: bool = False) -> None:
        """As ``note``, of how fast something is: nobody is told of a rehearsal's, which says nothing of a card."""
        self._add(
            {"what": what, "value": _plain(value), "unit": unit, "rate": True, **({"main": True} if main else {})}
        )

    def expect(
        self, what: str, value: Any, *, at_most: float = math.inf, at_least: float = -math.inf, unit: str = ""
    ) -> bool:
        """Something that must lie between two bounds, both included; nan never does."""
        value = _plain(value)
        good = at_least <= value <= at_most
        bounds = {
            name: bound for name, bound in (("at_least", at_least), ("at_most", at_most)) if not math.isinf(bound)
        }
        self._add({"what": what, "value": value, "unit": unit, **bounds, "ok": good})
        if not good:
            self.failed.append(f"{what}: {_short(value)}, expected {_between(at_least, at_most)}")
        return good

    def expect_true(self, what: str, good: bool, said: str = "") -> bool:
        """Something that must be so; ``said`` is what was found instead."""
        self._add({"what": what, "value": bool(good), "unit": "", "ok": bool(good), **({"said": said} if said else {})})
        if not good:
            self.failed.append(f"{what}: not so{f' ({said})' if said else ''}")
        return bool(good)

    def found(self, part: str, what: str) -> float | None:
        """A number that an earlier part noted; None: that part did not get so far."""
        for row in self.before:
            if row.get("part") == part and row.get("what") == what:
                return float(row["value"])
        return None

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.write(row)


def _plain(value: Any) -> Any:
    """A number of torch's or numpy's as Python's own, for JSON."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _between(low: float, high: float) -> str:
    if math.isinf(high):
        return f"at least {_short(low)}"
    if math.isinf(low):
        return f"at most {_short(high)}"
    return f"{_short(low)} to {_short(high)}"
