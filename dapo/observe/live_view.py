"""How a run looks in a terminal while it goes on: pure functions from what is known of it to rich renderables."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dapo.metrics.printed import SUPERVISED_VIEW, VIEW
from dapo.observe import supervised
from dapo.observe.held_out import AccuracyPoint, HeldOut, accuracy_of, chance_between
from dapo.observe.metrics import shown
from dapo.observe.text import clean, duration, interval, number, percent, sparkline
from dapo.observe.why import by_verdict
from dapo.types.evidence import CollectProgress

GOOD, BAD, ACCENT, QUIET = "green", "red", "cyan", "bright_black"

RECENT_STEPS = 20
ENDS = 5
"""Steps whose mean is a metric's beginning or end, for a hint."""
COLLAPSED = 0.15
"""Share of its first entropy below which a policy hardly tries anything any more."""
CUT_OFF = 0.2
"""Share of truncated responses from which many answers are lost."""
CLIPPED = 0.05
"""Share of tokens clipped from which the steps are too large; a few are meant to be."""


@dataclass
class RunState:
    """The console's view of a run. Times are seconds of the console's clock."""

    name: str
    total_steps: int
    step: int
    began: float
    marks: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS + 1))  # ends of the last steps
    metrics: Mapping[str, float] = field(default_factory=dict)
    history: dict[str, list[float]] = field(default_factory=dict)
    first_validation: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    validation_step: int = 0
    best: AccuracyPoint | None = None  # of the evaluations
    last: AccuracyPoint | None = None
    filling: CollectProgress | None = None  # the last one of the run
    clips_tokens: bool = True  # the loss clips token by token; False for GSPO, CISPO and a loss of one's own
    ended: str = ""  # how it ended where that was not well, in a few words

    def add_step(self, step: int, metrics: Mapping[str, float], now: float) -> None:
        self.step, self.metrics = step, dict(metrics)
        self.marks.append(now)
        for key in self.tiles.values():
            if key in metrics:
                self.history.setdefault(key, []).append(metrics[key])

    @property
    def tiles(self) -> Mapping[str, str]:
        """The few numbers that matter: title and key."""
        return SUPERVISED_VIEW if supervised.MARK in self.metrics else VIEW

    def add_validation(self, step: int, metrics: Mapping[str, float], held_out: HeldOut | None = None) -> None:
        self.validation, self.validation_step = dict(metrics), step
        self.first_validation = self.first_validation or self.validation
        self.last = accuracy_of({"step": step, **metrics}, lambda step: held_out)
        if self.last is not None:
            if self.best is None or self.last.accuracy >= self.best.accuracy:
                self.best = self.last
            self.history.setdefault("validation/accuracy", []).append(self.last.accuracy)

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the last steps, evaluations and saving included."""
        if len(self.marks) < 2:
            return None
        return (self.marks[-1] - self.marks[0]) / (len(self.marks) - 1)

    @property
    def seconds_left(self) -> float | None:
        rate = self.seconds_per_step
        return None if rate is None else rate * (self.total_steps - self.step)


def dashboard(state: RunState, width: int, now: float) -> RenderableType:
    """Return the live view: progress, held-out accuracy, tiles."""
    inner = min(width, 200) - 4  # two border columns and one blank on either side
    parts: list[RenderableType] = [
        _progress(state, now),
        *_collecting(state, inner),
        Text(),
        _validation(state, inner),
        Text(),
        _tiles(state, inner),
    ]
    hints = [Text(line, style="yellow", no_wrap=True, overflow="ellipsis") for line in hint_lines(state)]
    parts += [Text(), *hints] if hints else []
    title = Text(clean(state.name, newlines=False), style="bold")
    ending = f" {clean(state.ended, newlines=False)}" if state.ended else ""
    title.truncate(max(1, inner - 4 - len(ending)), overflow="ellipsis")  # a panel grows with its title otherwise
    title.append(ending, style=f"bold {BAD}")
    title.truncate(inner - 4, overflow="ellipsis")
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        box=box.ROUNDED,
        border_style=BAD if state.ended else QUIET,
        width=inner + 4,
    )


def hint_lines(state: RunState) -> list[str]:
    """Return hints from the last numbers alone; the report's rules look closer."""
    lines = []
    best, last = state.best, state.last
    if best and last and best.accuracy - last.accuracy > chance_between(best, last):
        lines.append(f"held-out accuracy was {percent(best.accuracy)} before, and fell")
    first, now = _ends(state.history.get("train/entropy", ()))
    if first is not None and now is not None and now < COLLAPSED * first:
        lines.append(f"entropy is at {percent(now / first, 0)} of its beginning: answers hardly vary any more")
    _, cut = _ends(state.history.get("response/truncated_share", ()))
    if cut is not None and cut >= CUT_OFF:
        lines.append(f"{percent(cut, 0)} of the answers are cut off at rollout.max_response_tokens")
    _, clipped = _ends(state.history.get("train/clip_high", ()))
    if clipped is not None and clipped >= CLIPPED and state.clips_tokens:
        lines.append(f"{percent(clipped, 0)} of the tokens are clipped: the steps may be too large")
    unscored = state.metrics.get("reward/unscored", 0)
    if unscored > 0:
        lines.append(f"{unscored:.0f} responses unscored; the reasons are in rollouts/")
    return lines


def _ends(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Means of the first and of the last steps; None where there are too few to tell them apart."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2 * ENDS:
        return None, None
    return sum(known[:ENDS]) / ENDS, sum(known[-ENDS:]) / ENDS


def _progress(state: RunState, now: float) -> RenderableType:
    rate, left = state.seconds_per_step, state.seconds_left
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(no_wrap=True, justify="right")
    grid.add_row(
        Text.assemble("step ", (str(state.step), "bold"), f" of {state.total_steps}"),
        ProgressBar(total=max(1, state.total_steps), completed=state.step, complete_style=ACCENT, finished_style=GOOD),
        Text("" if rate is None else f"{number(rate)} s/step"),
        Text("" if left is None else f"{duration(left)} left" if left > 0 else "done", style="bold"),
        Text(f"{duration(now - state.began)} so far", style=QUIET),
    )
    return grid


def _collecting(state: RunState, inner: int) -> list[RenderableType]:
    """How far the batch is, in one line or, where it is narrow, two.

    Between batches they stay and grow dim: the view must not jump at every step.
    """
    filling = state.filling
    if filling is None:
        return []
    busy = filling.step > state.step and filling.kept < filling.wanted
    bar_style, style = (ACCENT, "") if busy else (QUIET, QUIET)
    shares = filling.shares
    said = [f"{filling.judged} judged", f"{percent(shares.kept, 0)} kept"]
    for name, share in sorted(by_verdict(shares)[1:], key=lambda pair: -pair[1]):  # where the line is cut, the least go
        if share >= 0.005:
            said.append(f"{percent(share, 0)} {name}")
    details = Text(" · ".join(said), style=QUIET, no_wrap=True, overflow="ellipsis")
    of = f" of {filling.wanted}" if filling.kept < filling.wanted else ""
    title = f"{'collecting' if busy else 'collected'} {filling.kept}{of} groups"
    wide = inner >= 120
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    bar = ProgressBar(
        total=max(1, filling.wanted), completed=filling.kept, complete_style=bar_style, finished_style=bar_style
    )
    if wide:
        grid.add_column(no_wrap=True, justify="right")
    grid.add_row(Text(title, style=style), bar, *([details] if wide else []))
    return [grid] if wide else [grid, details]


def _validation(state: RunState, inner: int) -> RenderableType:
    if supervised.MARK in state.metrics:
        return Text("supervised: imitates examples", style=QUIET)
    if not state.validation:
        return Text("held-out accuracy: not evaluated yet", style=QUIET)
    now, first = (known.get("validation/accuracy") for known in (state.validation, state.first_validation))
    style = "" if now is None or first is None or now == first else GOOD if now > first else BAD
    line = Text.assemble(("held-out accuracy ", QUIET), accuracy_text(state.validation, "validation/", style))
    if state.validation_step and state.first_validation is not state.validation:
        line.append(f"  from {percent(state.first_validation.get('validation/accuracy'))}", style=QUIET)
    if "validation/greedy_accuracy" in state.validation:
        line.append("  greedy ", style=QUIET).append(percent(state.validation["validation/greedy_accuracy"]))
    line.append(f"  step {state.validation_step}  ", style=QUIET)
    history = state.history.get("validation/accuracy", [])
    room = max(1, min(60, inner - line.cell_len))
    wide = max(1, min(3, room // max(1, len(history))))  # few evaluations get broad bars
    bars = "".join(bar * wide for bar in sparkline(history, room))
    return line.append(bars, style=style or ACCENT)


def accuracy_text(metrics: Mapping[str, float], prefix: str, style: str = GOOD) -> Text:
    """Return the held-out accuracy of ``prefix`` with its interval."""
    text = Text(percent(metrics.get(f"{prefix}accuracy")), style=f"bold {style}".strip())
    ends = interval(metrics.get(f"{prefix}accuracy_low"), metrics.get(f"{prefix}accuracy_high"))
    if ends:
        text.append(f" ({ends})", style=f"not bold {QUIET}")
    return text


def _tiles(state: RunState, inner: int) -> RenderableType:
    columns = 8 if inner >= 150 else 4 if inner >= 70 else 2
    room = inner // columns - 2
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1, no_wrap=True)
    tiles = list(state.tiles.items())
    for first in range(0, len(tiles), columns):
        row = tiles[first : first + columns]
        end = "" if first + columns >= len(tiles) else "\n"
        grid.add_row(*(Text(title, style=QUIET) for title, _ in row))
        grid.add_row(*(Text(shown(key, state.metrics.get(key)), style="bold") for _, key in row))
        grid.add_row(*(Text(sparkline(state.history.get(key, []), room) + end, style=ACCENT) for _, key in row))
    return grid
