"""Output of a supervised run: its line, its tiles, its curve and its outcome are losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from dapo.metrics.printed import SUPERVISED_STEP
from dapo.observe.metrics import Row, series
from dapo.observe.text import number

MARK = "sft/epoch"
"""A metric that every step of a supervised run has, and no other."""
TRAINED, HELD_OUT = "train/loss", "validation/loss"

MOST_LINES = 20
"""Lines of steps that a supervised run prints: its steps are many and short."""


def lines_apart(steps: int) -> int:
    """Return the number of steps between two printed lines of a supervised run."""
    return -(-max(1, steps) // MOST_LINES)


def is_supervised(rows: Sequence[Row]) -> bool:
    return any(MARK in row for row in rows)


def step_parts(metrics: Mapping[str, float]) -> list[str]:
    """Return a step in a few words, the most important first."""
    values = {word: metrics.get(key) for word, key in SUPERVISED_STEP.items()}
    return [
        f"loss {number(values['loss'])}",
        f"epoch {values['epoch']:.2f}",
        f"gradient norm {number(values['gradient norm'])}",
        f"{number(values['tok/s'])} tok/s",
    ]


def loss_table(rows: Sequence[Row]) -> Table:
    """Return the first and the last loss, trained and held out, nats a token."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bright_black")
    for column in ("loss, nats a token", "first", "last"):
        table.add_column(column, justify="left" if column.startswith("loss") else "right")
    for title, key in (("training", TRAINED), ("held out", HELD_OUT)):
        steps, values = series(rows, key)
        if steps:
            ends = [f"{values[end]:.4f} (step {steps[end]})" for end in (0, -1)]
            table.add_row(title, *ends)
    return table
