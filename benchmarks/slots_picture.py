"""How many slots are busy at each decode step: whole rounds, larger rounds and ours, over four training steps.

    python benchmarks/slots_picture.py            # two minutes; writes docs/images/dynamic_sampling_slots.png

A real run of the embedded engine on the setting ``tail-0.5`` of ``dynamic_sampling.py``: half of the groups are kept,
and a few responses ramble on to the limit of 256 tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dynamic_sampling
import numpy as np
import torch
from dynamic_sampling import HERE, OURS, SETTINGS, CountingEngine, make_arms, make_recipe

from dapo.observe.console import Console
from dapo.run.reinforcement import reward_session
from dapo.types.batch import SampleEvent

SHOWN = {
    "rounds of P": "whole rounds of P",
    "rounds of 3P": "rounds of 3P",
    f"{OURS}, lookahead=0": "ours, lookahead 0",
    OURS: "ours, lookahead 0.5 (default)",
}
BEFORE, STEPS = 3, 4
DARK, LIGHT = "#0072b2", "#7fb9dc"


class TracedEngine(CountingEngine):
    """Writes down how many slots each decode step used."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.busy: list[int] = []

    def _step(self) -> list[SampleEvent]:
        before = self._stats["busy_slot_steps"]
        events = super()._step()
        self.busy.append(self._stats["busy_slot_steps"] - before)
        return events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=HERE.parent / "runs" / ".models", help="cache of base models")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "images" / "dynamic_sampling_slots.png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dynamic_sampling.CountingEngine = TracedEngine  # type: ignore[misc]
    setting = next(s for s in SETTINGS if s.name == "tail-0.5")
    with Console("quiet") as console:
        session = reward_session(make_recipe(setting, options.models), console)
    arms = make_arms(session, None, ["lookahead=0"])
    traces = {}
    for name, title in SHOWN.items():
        arm = arms[name]
        ends = []
        for _ in range(BEFORE + STEPS):
            arm.step()
            ends.append(len(arm.engine.busy))  # type: ignore[attr-defined]
        busy = np.array(arm.engine.busy)  # type: ignore[attr-defined]
        traces[title] = [busy[a:b] for a, b in zip(ends[BEFORE - 1 :], ends[BEFORE:], strict=False)]
    session.close()
    draw(traces, arms[OURS].engine.capacity, options.out)


def draw(traces: dict[str, list[np.ndarray]], slots: int, path: Path) -> None:
    """One row a rule; shades alternate by training step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(traces), 1, figsize=(10, 6.5), dpi=110, sharex=True, sharey=True)
    longest = max(sum(map(len, steps)) for steps in traces.values())
    for panel, (title, steps) in zip(panels, traces.items(), strict=True):
        start = 0
        for number, busy in enumerate(steps):
            x = np.arange(start, start + len(busy) + 1)
            panel.stairs(busy, x, fill=True, color=LIGHT if number % 2 else DARK)
            start += len(busy)
        work = sum(int(busy.sum()) for busy in steps)
        said = f"{title}: {start:,} decode steps, {work:,} tokens, {work / (slots * start):.0%} of the slots busy"
        panel.set_title(said, loc="left", fontsize=10)
        panel.set(xlim=(0, longest * 1.01), ylim=(0, slots * 1.05), ylabel="busy slots")
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("decode steps; a change of shade is a new training step of 32 kept groups of 16")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
