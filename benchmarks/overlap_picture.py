"""Who works when: engines and learner over time, in turns and side by side.

    python benchmarks/overlap_picture.py            # seconds; writes docs/images/overlap_timeline.png

The simulation of ``overlap_simulation.py`` on 8 devices (half of the groups are kept, learning is 30 % of a step of
turns): nothing here was measured on a device. The same seed draws the same picture everywhere.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from overlap_simulation import (
    PUBLISH_SECONDS,
    SLOTS,
    SWITCH_SECONDS,
    Case,
    OverlappedFleet,
    learn_seconds,
    make_collector,
    make_lengths,
    overlap,
    split,
)

from dapo.types.batch import SampleEvent, Ticket

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CASES = {
    "turns": Case("turns", 8, 0.5, 0.3, 0.7),
    "S = 1": Case("S=1", 8, 0.5, 0.3, 0.7),
    "S = 4": Case("S=4", 8, 0.5, 0.3, 0.7),
}
BEFORE, STEPS = 3, 4
DARK, LIGHT, LEARN, LEARN_LIGHT, INK = "#0072b2", "#7fb9dc", "#d55e00", "#eea87d", "#374151"


class TracedFleet(OverlappedFleet):
    """Writes down how many slots are busy whenever that may have changed."""

    def __init__(self, engines: int) -> None:
        super().__init__(make_lengths("log-normal"), engines=engines, slots=SLOTS)
        self.busy: list[tuple[float, float]] = []

    def poll(self, timeout: float | None = None) -> list[SampleEvent]:
        self._note()
        events = super().poll(timeout)
        self._note()
        return events

    def wait(self, clock: int) -> None:
        self._note()
        super().wait(clock)
        self._note()

    def _note(self) -> None:
        self.busy.append((self.time, self._live / self.capacity))


@dataclass
class Timeline:
    """Of one mode, in seconds."""

    devices: str
    busy: list[tuple[float, float]] = field(default_factory=list)  # time, share of the slots that is busy from then on
    learning: list[tuple[float, float]] = field(default_factory=list)  # from, to
    ends: list[float] = field(default_factory=list)  # of training steps

    def cut(self) -> Timeline:
        """The steps after the warm-up, from 0 on."""
        start, end = self.ends[BEFORE - 1], self.ends[-1]
        busy = [(max(0.0, time - start), share) for time, share in self.busy if time <= end]
        inside = [(a - start, b - start) for a, b in self.learning if b > start and a < end]
        learning = [(max(0.0, a), min(b, end - start)) for a, b in inside]
        return Timeline(self.devices, busy, learning, [time - start for time in self.ends[BEFORE:]])

    def use(self) -> tuple[float, float]:
        """Shares of the time: of the engines' slots, and of the learner."""
        whole = self.ends[-1]
        pairs = zip(self.busy, [*self.busy[1:], (whole, 0.0)], strict=True)
        return sum(share * (b - a) for (a, share), (b, _) in pairs) / whole, sum(
            b - a for a, b in self.learning
        ) / whole


def in_turns(case: Case) -> Timeline:
    """All devices generate, hand their memory over, learn."""
    engine, seen = TracedFleet(case.devices), Timeline(f"all {case.devices} devices do both")
    collector, learning, later = make_collector(case, engine), learn_seconds(case, case.devices), 0.0
    for step in range(1, BEFORE + STEPS + 1):
        collector.collect(step)
        seen.busy += [(time + later, share) for time, share in engine.busy]
        engine.busy.clear()
        began = engine.time + later + SWITCH_SECONDS / 2
        seen.busy.append((engine.time + later, 0.0))
        seen.learning.append((began, began + learning))
        later += learning + SWITCH_SECONDS + PUBLISH_SECONDS
        engine.load(Ticket(step, "shared", "", ()))
        seen.ends.append(engine.time + later)
    return seen


def side_by_side(case: Case) -> Timeline:
    """Some devices learn while the others generate."""
    learners = split(case)
    engine = TracedFleet(case.devices - learners)
    seen = Timeline(f"{case.devices - learners} devices generate, {learners} learn")
    collector, learning = make_collector(case, engine), learn_seconds(case, learners)
    for step in range(1, BEFORE + STEPS + 1):
        collector.collect(step)
        seen.learning.append((engine.time, engine.time + learning))
        overlap(collector, engine, step + 1, learning)
        engine.load(Ticket(step, "shared", "", ()), "keep")
        seen.ends.append(engine.time)
    seen.busy = engine.busy
    return seen


def draw(lines: dict[str, Timeline], path: Path) -> None:
    """Two lanes a mode; shades alternate by training step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(lines), 1, figsize=(10, 6.5), dpi=110, sharex=True)
    longest = max(line.ends[-1] for line in lines.values())
    for panel, (mode, line) in zip(panels, lines.items(), strict=True):
        _lanes(panel, line)
        engines, learner = line.use()
        per_step = line.ends[-1] / STEPS
        said = f"{mode} ({line.devices}): {per_step:.0f} s a step; slots busy {engines:.0%}, learner busy {learner:.0%}"
        panel.set_title(said, loc="left", fontsize=10)
        panel.set(xlim=(0, longest * 1.01), ylim=(0, 2.2))
        panel.set_yticks([0.4, 1.6], ["learner", "engines"])
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(
        f"simulated seconds; {STEPS} training steps, a change of shade is a new one; lines: new weights"
    )
    figure.tight_layout()
    figure.savefig(path, facecolor="white")
    plt.close(figure)


def _lanes(panel: Axes, line: Timeline) -> None:
    starts = [0.0, *line.ends[:-1]]
    for number, (start, end) in enumerate(zip(starts, line.ends, strict=True)):
        times = [start, *(time for time, _ in line.busy if start < time < end), end]
        shares = [next((s for time, s in reversed(line.busy) if time <= t), 0.0) for t in times]
        above = [1.1 + share for share in shares]
        panel.fill_between(times, 1.1, above, step="post", color=LIGHT if number % 2 else DARK, linewidth=0)
        panel.plot([end, end], [0.0, 2.15], color=INK, linewidth=0.8)
    for number, (start, end) in enumerate(line.learning):
        panel.barh(0.4, end - start, 0.7, start, color=LEARN_LIGHT if number % 2 else LEARN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    images = Path(__file__).resolve().parents[1] / "docs" / "images"
    parser.add_argument("--out", type=Path, default=images / "overlap_timeline.png")
    options = parser.parse_args()
    lines = {mode: side_by_side(case) if case.staleness else in_turns(case) for mode, case in CASES.items()}
    draw({mode: line.cut() for mode, line in lines.items()}, options.out)
    for mode, line in lines.items():
        seconds, (engines, learner) = line.cut().ends[-1] / STEPS, line.cut().use()
        print(f"{mode:6} {seconds:6.0f} s a step, slots busy {engines:.0%}, learner busy {learner:.0%}")


if __name__ == "__main__":
    main()
