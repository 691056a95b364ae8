"""How a run looks in a terminal: pure functions from what is known of it to rich renderables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dapo.observe.text import clean, duration, number, percent, shorten, sparkline
from dapo.observe.why import Filling

GOOD, BAD, ACCENT, QUIET = "green", "red", "cyan", "bright_black"

TILES: list[tuple[str, str, Callable[[float | None], str]]] = [
    ("training accuracy", "reward/accuracy", percent),
    ("groups kept", "sampling/acceptance_rate", percent),
    ("entropy", "train/entropy", number),
    ("gradient norm", "train/grad_norm", number),
    ("response length", "response/length_mean", number),
    ("truncated", "response/truncated_share", percent),
    ("clipped high", "train/clip_high", lambda value: percent(value, 2)),
    ("tokens/s", "time/tokens_per_second", number),
]
"""The few numbers that matter: title, key, format."""

RECENT_STEPS = 20


@dataclass
class RunState:
    """What the console knows of a run. Times are seconds of the console's clock."""

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
    filling: Filling | None = None  # the last one of the run

    def add_step(self, step: int, metrics: Mapping[str, float], now: float) -> None:
        self.step, self.metrics = step, dict(metrics)
        self.marks.append(now)
        for _, key, _ in TILES:
            if key in metrics:
                self.history.setdefault(key, []).append(metrics[key])

    def add_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.validation, self.validation_step = dict(metrics), step
        self.first_validation = self.first_validation or self.validation
        if "validation/accuracy" in metrics:
            self.history.setdefault("validation/accuracy", []).append(metrics["validation/accuracy"])

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
    """The live view: progress, held-out accuracy, tiles."""
    inner = min(width, 200) - 4  # two border columns and one blank on either side
    parts: list[RenderableType] = [
        _progress(state, now),
        *_collecting(state, inner),
        Text(),
        _validation(state, inner),
        Text(),
        _tiles(state, inner),
    ]
    unscored = state.metrics.get("reward/unscored", 0)
    if unscored:
        parts += [Text(), Text(f"{unscored:.0f} responses unscored; the reasons stand in rollouts/", style="yellow")]
    title = Text(clean(state.name, newlines=False), style="bold")
    title.truncate(inner - 4, overflow="ellipsis")  # a panel grows with its title otherwise
    return Panel(Group(*parts), title=title, title_align="left", box=box.ROUNDED, border_style=QUIET, width=inner + 4)


def step_line(state: RunState) -> str:
    """One step as a plain line of about 80 characters."""
    digits, left = len(str(state.total_steps)), state.seconds_left
    metrics = state.metrics
    parts = [
        f"step {state.step:>{digits}}/{state.total_steps}",
        f"accuracy {percent(metrics.get('reward/accuracy'))}",
        f"kept {percent(metrics.get('sampling/acceptance_rate'), 0)}",
        f"entropy {number(metrics.get('train/entropy'))}",
        f"length {number(metrics.get('response/length_mean'))}",
        f"{number(metrics.get('time/tokens_per_second'))} tok/s",
    ]
    if metrics.get("reward/unscored"):
        parts.append(f"unscored {number(metrics['reward/unscored'])}")
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def validation_lines(step: int, metrics: Mapping[str, float]) -> list[Text]:
    """An evaluation as lines that stay: the mean, then each set when there are several."""
    suffix = "/accuracy"
    sets = [key[len("validation/") : -len(suffix)] for key in metrics if key.endswith(suffix) and key.count("/") > 1]
    names = ["", *sets] if len(sets) > 1 else [""]
    lines = []
    for name in names:
        prefix = f"validation/{name}/" if name else "validation/"
        line = Text(no_wrap=True, overflow="ellipsis")
        if name:
            line.append(f"  {clean(name, newlines=False)}  ")
        else:
            line.append(f"step {step}  ", style=QUIET).append("held-out ", style="bold")
        line.append_text(_interval(metrics, prefix))
        for label, key, form in (
            ("greedy", "greedy_accuracy", percent),
            ("length", "length_mean", number),
            ("truncated", "truncated_share", percent),
        ):
            if prefix + key in metrics:
                line.append(f"  {label} ", style=QUIET).append(form(metrics[prefix + key]))
        lines.append(line)
    return lines


def sample_lines(prompt: str, response: str, score: float | None, limit: int = 400) -> Text:
    """A prompt and its response, with a bar at the left; everything in it is untrusted."""
    mark, style = ("?", "yellow") if score is None else ("✓", GOOD) if score >= 1 else ("✗", BAD)
    text = Text()
    for line in shorten(clean(prompt).strip(), limit).splitlines():
        text.append("  ┃ ", style=QUIET).append(line + "\n", style=QUIET)
    lines = shorten(clean(response).strip(), limit).splitlines() or [""]
    for line in lines:
        text.append("  ┃ ", style=style).append(line + "\n")
    verdict = "unscored" if score is None else f"score {score:g}"
    return text.append(f"  {mark} {verdict}", style=style)


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
        Text("" if left is None else f"{duration(left)} left", style="bold"),
        Text(duration(now - state.began), style=QUIET),
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
    for name, share in (
        ("all wrong", shares.all_wrong),
        ("all correct", shares.all_correct),
        ("uniform", shares.uniform),
        ("out of band", shares.out_of_band),
        ("too few scored", shares.too_few_scored),
    ):
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
    if not state.validation:
        return Text("held-out accuracy: not evaluated yet", style=QUIET)
    line = Text.assemble(("held-out accuracy ", QUIET), _interval(state.validation, "validation/"))
    if state.validation_step and state.first_validation is not state.validation:
        line.append(f"  from {percent(state.first_validation.get('validation/accuracy'))}", style=QUIET)
    if "validation/greedy_accuracy" in state.validation:
        line.append("  greedy ", style=QUIET).append(percent(state.validation["validation/greedy_accuracy"]))
    line.append(f"  step {state.validation_step}  ", style=QUIET)
    room = min(60, inner - line.cell_len)
    return line.append(sparkline(state.history.get("validation/accuracy", []), max(1, room)), style=GOOD)


def _interval(metrics: Mapping[str, float], prefix: str) -> Text:
    text = Text(percent(metrics.get(f"{prefix}accuracy")), style=f"bold {GOOD}")
    low, high = metrics.get(f"{prefix}accuracy_low"), metrics.get(f"{prefix}accuracy_high")
    if low is not None and high is not None:
        text.append(f" ({100 * low:.1f}–{100 * high:.1f})", style=f"not bold {QUIET}")
    return text


def _tiles(state: RunState, inner: int) -> RenderableType:
    columns = 8 if inner >= 150 else 4 if inner >= 70 else 2
    room = inner // columns - 2
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1, no_wrap=True)
    for first in range(0, len(TILES), columns):
        row = TILES[first : first + columns]
        grid.add_row(*(Text(title, style=QUIET) for title, _, _ in row))
        grid.add_row(*(Text(form(state.metrics.get(key)), style="bold") for _, key, form in row))
        last = first + columns >= len(TILES)
        grid.add_row(
            *(
                Text(sparkline(state.history.get(key, []), room) + ("" if last else "\n"), style=ACCENT)
                for _, key, _ in row
            )
        )
    return grid
