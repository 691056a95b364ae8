"""The run on the screen: a live view in a terminal, plain lines elsewhere, or only warnings.

Whatever a model or a data file said is untrusted: it goes through ``text.clean`` and is never read as markup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from dapo.observe.text import clean, duration
from dapo.observe.view import RunState, dashboard, sample_lines, step_line, validation_lines
from dapo.observe.why import Filling, filling_line, heartbeat

Mode = Literal["auto", "live", "plain", "quiet"]
Advance = Callable[[int], None]

SLOW = 4
"""A batch takes long when this many times the wanted groups were judged; it is told again at each doubling."""
QUIET_STEPS = 10
"""Steps after which the same level of slowness is told again."""
HEARTBEAT = 60.0
"""Seconds without a line after which plain mode shows that a batch still fills."""

_ENDINGS = {"KeyboardInterrupt": "left at once", "SamplingStopped": "could not fill its batch"}


class Console:
    """What the trainer tells a person. Every method may be called in every mode; used as a context manager, the
    terminal is whole again after an exception."""

    def __init__(
        self, mode: Mode = "auto", rich: RichConsole | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``rich``: where to write; default the standard output, in ``quiet`` mode the standard error."""
        self.rich = rich or RichConsole(stderr=mode == "quiet", highlight=False)
        if mode == "auto":
            mode = "live" if self.rich.is_terminal and not self.rich.is_dumb_terminal else "plain"
        self.mode: Mode = mode
        self._clock = clock
        self._run: RunState | None = None
        self._live: Live | None = None
        self._cause_told: int | None = None  # step in which the cause of a slow batch was told last
        self._told: dict[int, int] = {}  # level of slowness -> step that told it
        self._line_at = 0.0  # when plain mode last told where the run is
        self._tasks = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=self.rich,
            expand=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None and self._run is not None:  # the last picture of the live view says so
            self._run.ended = _ENDINGS.get(kind.__name__, "ended by an error")
        self.close()

    def start(self, run_name: str, total_steps: int, first_step: int = 0, *, clips_tokens: bool = True) -> None:
        """A run begins.

        Args:
            run_name: its name.
            total_steps: training steps that it wants.
            first_step: of them done already (0 unless resumed).
            clips_tokens: the loss clips token by token, so that the clipped share says how far a step goes.
        """
        now = self._clock()
        self._run = RunState(run_name, total_steps, first_step, now, clips_tokens=clips_tokens)
        self._run.marks.append(now)
        self._told, self._line_at = {}, now
        if self.mode == "live":
            self._open_live()
        elif self.mode == "plain":
            what = f"from step {first_step} to {total_steps}" if first_step else f"{total_steps} steps"
            self._print(Text(f"{clean(run_name, newlines=False)}: {what}"))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done. Step 0, which only evaluates, has nothing to show here."""
        if step == 0:
            return
        run = self._started()
        run.add_step(step, metrics, self._clock())
        if self.mode == "plain":
            self._line_at = run.marks[-1]
            self._print(Text(step_line(run, self._width)))

    def filling(self, progress: Filling) -> None:
        """A group of the batch that is being collected was judged. Called for every group: cheap when nothing is due.

        The live view shows how far the batch is. A batch that takes long is told with its likely cause in every mode
        but ``quiet``; plain mode says once a minute that it is still at work.
        """
        if self.mode == "quiet" or self._run is None:
            return
        self._run.filling = progress
        slow = progress.judged // (SLOW * max(1, progress.wanted))
        if slow and progress.kept < progress.wanted and self._is_news(slow.bit_length() - 1, progress.step):
            # the cause once a step: further on in it, it is the same
            again, self._cause_told = self._cause_told == progress.step, progress.step
            self._say_where(filling_line(progress, cause=not again), "yellow")
        elif self.mode == "plain" and self._clock() - self._line_at >= HEARTBEAT:
            self._say_where(heartbeat(progress))

    def evaluation(self, step: int, metrics: Mapping[str, float], reasons: Mapping[str, str] | None = None) -> None:
        """An evaluation is done.

        Args:
            step: of training.
            metrics: with the keys of ``validation/``.
            reasons: by set, why most of its unscored responses are.
        """
        self._started().add_validation(step, metrics)
        if self.mode != "quiet":
            for line in validation_lines(step, metrics, self._width, reasons):
                self._print(line)

    def sample(self, prompt: str, response: str, score: float | None) -> None:
        """Show one response. ``score`` is its accuracy, None when it is unscored."""
        if self.mode != "quiet":
            self._print(sample_lines(prompt, response, score, width=self._width))

    def say(self, message: str, style: str = "") -> None:
        """A line that stays on the screen."""
        if self.mode != "quiet":
            self._print(Text(clean(message), style=style))

    def warn(self, message: str) -> None:
        """A line that is shown in every mode."""
        self._print(Text.assemble(("warning: ", "bold yellow"), (clean(message), "yellow")))

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """A bar for work of known size (warm-up, evaluation); the value is called with what was done since."""
        began, done, told = self._clock(), 0, 0
        title = clean(title, newlines=False)
        live = self.mode == "live"
        task = self._tasks.add_task(title, total=total) if live else None
        opened = live and self._live is None
        if opened:
            self._open_live()
        alone = self._run is None  # inside a run the step lines tell enough
        if alone and self.mode == "plain":
            self._print(Text(f"{title}..."))

        def advance(n: int = 1) -> None:
            nonlocal done, told
            done += n
            if task is not None:
                self._tasks.update(task, completed=done)
            elif alone and self.mode == "plain" and done < total and 4 * done // max(1, total) > told:
                told = 4 * done // max(1, total)  # a line at each quarter
                self._print(Text(f"{title}: {100 * done // total}%"))

        try:
            yield advance
        finally:
            if task is not None:
                self._tasks.remove_task(task)
            if opened:
                self._close_live()
        if alone:
            self.say(f"{title}: done in {duration(self._clock() - began)}")

    def finish(self, summary: str = "") -> None:
        """The run ended: the last state of the view stays, followed by ``summary``."""
        self.close()
        if summary:
            self.say(summary)

    def print(self, renderable: RenderableType, soft_wrap: bool = False) -> None:
        """Print something made for rich (the summary). ``soft_wrap``: leave long lines whole, for copying."""
        if self.mode != "quiet":
            self.rich.print(renderable, soft_wrap=soft_wrap)

    def close(self) -> None:
        """Give the terminal back. May be called twice."""
        self._close_live()
        self._run = None

    def _is_news(self, level: int, step: int) -> bool:
        """Whether this level of slowness is to be told now; once it is, neither it nor a lower one is for a while."""
        if level in self._told and step - self._told[level] < QUIET_STEPS:
            return False
        self._told |= dict.fromkeys(range(level + 1), step)
        return True

    def _say_where(self, line: str, style: str = "") -> None:
        self._line_at = self._clock()
        self._print(Text(line, style=style))

    def _started(self) -> RunState:
        assert self._run is not None, "Console.start comes first"
        return self._run

    def _print(self, renderable: Text) -> None:
        # Outside a terminal nothing knows the reader's width: lines are left as long as they are.
        if not self.rich.is_terminal:
            self.rich.print(renderable, soft_wrap=True)
        else:  # `print` joins its arguments into a new Text, which forgets whether a line may be wrapped
            self.rich.print(renderable, no_wrap=renderable.no_wrap, overflow=renderable.overflow)

    @property
    def _width(self) -> int | None:
        """Cells of a line; None outside a terminal."""
        return self.rich.width if self.rich.is_terminal else None

    def _view(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._run is not None:
            parts.append(dashboard(self._run, self.rich.width, self._clock()))
        if self._tasks.tasks:
            parts.append(self._tasks.get_renderable())
        return Group(*parts)

    def _open_live(self) -> None:
        if self._live is None:
            # Twice a second from a thread of its own, so that time goes on during a long step.
            self._live = Live(get_renderable=self._view, console=self.rich, refresh_per_second=2)
            self._live.start()

    def _close_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
