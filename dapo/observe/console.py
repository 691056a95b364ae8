"""The run on the screen: a live view in a terminal, plain lines elsewhere, or only warnings.

Whatever a model or a data file said is untrusted: it goes through ``text.clean`` and is never read as markup.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Any, Literal, Self, TextIO, cast

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from dapo.links import addressed
from dapo.observe import supervised
from dapo.observe.held_out import HeldOut
from dapo.observe.live_view import RunState, dashboard
from dapo.observe.sentences import broken_off_said
from dapo.observe.terminal_lines import sample_lines, step_line, validation_lines
from dapo.observe.text import clean, duration
from dapo.observe.why import evaluating_line, filling_line, heartbeat
from dapo.types.evaluation import EvaluationProgress
from dapo.types.evidence import CollectProgress, Stillness
from dapo.words import counted

log = logging.getLogger(__name__)

Mode = Literal["auto", "live", "plain", "quiet"]
Advance = Callable[[int], None]

SLOW = 4
"""A batch takes long when this many times the wanted groups were judged."""
QUIET_STEPS = 10
"""Steps after which the same level of slowness is reported again."""
HEARTBEAT = 60.0
"""Seconds without a line after which plain mode shows that a batch still fills."""

_WORKING = ("learn", "report", "save")
"""Phases in which the driver waits for nothing that it asked for while sampling."""
_LOG_WIDTH = 100


class UnbreakableStream:
    """Passes everything on to a text stream until a write fails; from then on it swallows what it gets.

    Its reader may go away (`dapo train ... | head`, a closed terminal, a full disk), and the run goes on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.silent = False

    def write(self, text: str) -> int:
        if not self.silent:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._silence(error)
            except RuntimeError:  # a signal handler speaks in the middle of another write: that word is lost
                pass
        return len(text)

    def flush(self) -> None:
        if not self.silent:
            try:
                self._stream.flush()
            except OSError as error:
                self._silence(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _silence(self, error: OSError) -> None:
        self.silent = True
        _discard_what_follows(self._stream)
        log.info("the console is silent from here on: it cannot be written (%s); the run goes on", error)


def _discard_what_follows(stream: TextIO) -> None:
    """Whatever else is written there, by the interpreter at its exit or by a library, goes nowhere without an error."""
    with suppress(OSError, ValueError):
        gone = os.fstat(stream.fileno())
        devnull = os.open(os.devnull, os.O_WRONLY)
        try:
            for other in (stream, sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    number = other.fileno()
                    if os.path.samestat(os.fstat(number), gone):  # `2>&1 | head`: both have the same reader
                        os.dup2(devnull, number)
        finally:
            os.close(devnull)


class Console:
    """Output of the trainer in a terminal. Every method may be called in every mode. As a context manager, it restores
    the terminal after an exception."""

    def __init__(
        self, mode: Mode = "auto", rich: RichConsole | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``rich``: where to write; default the standard output, in ``quiet`` mode the standard error.

        All output goes to the logger of this module too, whatever the mode and even if the stream is closed.
        """
        stream = cast("IO[str]", UnbreakableStream(sys.stderr if mode == "quiet" else sys.stdout))
        self.rich = rich or RichConsole(file=stream, highlight=False)
        if mode == "auto":
            mode = "live" if self.rich.is_terminal and not self.rich.is_dumb_terminal else "plain"
        self.mode: Mode = mode
        self._clock = clock
        self._run: RunState | None = None
        self._live: Live | None = None
        self._still_told = 0.0  # seconds of stillness when it was shown last
        self._cause_told: int | None = None  # step in which the cause of a slow batch was told last
        self._told: dict[int, int] = {}  # level of slowness -> step that told it
        self._line_at = 0.0  # when plain mode last told where the run is
        self._evaluation: tuple[float, TaskID | None] | None = None  # the one that goes on: its begin, its bar
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
            self._run.ended = broken_off_said(kind)
        self.close()

    def start(self, run_name: str, total_steps: int, first_step: int = 0, *, clips_tokens: bool = True) -> None:
        """Show that a run begins.

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
        what = f"from step {first_step} to {total_steps}" if first_step else counted(total_steps, "step")
        self._plain(Text(f"{clean(run_name, newlines=False)}: {what}"))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished training step. Step 0, which only evaluates, shows nothing here."""
        if step == 0:
            return
        run = self._started()
        run.add_step(step, metrics, self._clock())
        line = Text(step_line(run, self._width))
        if supervised.MARK in metrics and step % supervised.lines_apart(run.total_steps) and step != run.total_steps:
            log.info("%s", line.plain)
            return
        self._line_at = run.marks[-1]
        self._plain(line)

    def filling(self, progress: CollectProgress) -> None:
        """Show progress after a judged group of the batch. Called for every group: cheap when nothing is due.

        The live view shows how far the batch is. A batch that starves or takes long is reported with its likely cause,
        unless the mode is ``quiet``, and again at each doubling; plain mode says once a minute that it is still at
        work.
        """
        if self.mode == "quiet" or self._run is None:
            return
        self._run.filling = progress
        level = (progress.judged // (SLOW * max(1, progress.wanted))).bit_length() + progress.starves
        if level and progress.kept < progress.wanted and self._is_news(level, progress.step):
            # the cause once a step: further on in it, it is the same
            again, self._cause_told = self._cause_told == progress.step, progress.step
            self._say_where(filling_line(progress, cause=not again), "yellow")
        elif self.mode == "plain" and self._clock() - self._line_at >= HEARTBEAT:
            self._say_where(heartbeat(progress))

    def stillness(self, stillness: Stillness | None, line: str) -> None:
        """Show ``line`` on a run in which nothing happens, again at each doubling of the time; None: it goes on.

        A learner, a callback of the user's and a checkpoint may work for minutes without a word, which is no news.
        """
        if stillness is None:
            self._still_told = 0.0
        elif stillness.phase not in _WORKING and stillness.seconds >= 2 * self._still_told:
            self._still_told = stillness.seconds
            self.warn(f"step {stillness.step}: {line}")

    def evaluating(self, progress: EvaluationProgress) -> None:
        """How far an evaluation is: a bar in the live view, a line a minute in plain mode. Cheap when none is due."""
        if self._evaluation is None:
            bar = self._tasks.add_task("evaluating", total=progress.total) if self.mode == "live" else None
            self._evaluation, self._line_at = (self._clock(), bar), self._clock()
            if bar is not None and self._live is None:
                self._open_live()
        began, bar = self._evaluation
        if progress.scored >= progress.total:
            self._end_evaluation()
        elif bar is not None:
            what = f"evaluating: {progress.answered} answered, {progress.scored} scored"
            self._tasks.update(bar, completed=progress.scored, description=what)
        elif self.mode == "plain" and self._clock() - self._line_at >= HEARTBEAT:
            spent = self._clock() - began
            left = spent * (progress.total - progress.scored) / progress.scored if progress.scored else None
            self._say_where(evaluating_line(progress, "" if left is None else duration(left)))

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            bar, self._evaluation = self._evaluation[1], None
            if bar is not None:
                self._tasks.remove_task(bar)
                if self._run is None:  # opened for the bar alone
                    self._close_live()

    def evaluation(
        self,
        step: int,
        metrics: Mapping[str, float],
        reasons: Mapping[str, str] | None = None,
        held_out: HeldOut | None = None,
    ) -> None:
        """Show a finished evaluation.

        Args:
            step: of training.
            metrics: with the keys of ``validation/``.
            reasons: by set, why most of its unscored responses are.
            held_out: its problems, for a comparison with another evaluation.
        """
        self._started().add_validation(step, metrics, held_out)
        for line in validation_lines(step, metrics, self._width, reasons):
            self._tell(line)

    def sample(self, prompt: str, response: str, accuracy: float | None, reward: float | None = None) -> None:
        """Show one response with its accuracy (None: unscored), and its reward where that is another number."""
        self._tell(sample_lines(prompt, response, accuracy, reward, width=self._width))

    def say(self, message: str, style: str = "") -> None:
        """Print a line that stays on the screen."""
        self._tell(Text(addressed(clean(message)), style=style))

    def warn(self, message: str) -> None:
        """Print a line in every mode."""
        log.info("warning: %s", message)
        self.show_warning(message)

    def show_warning(self, message: str) -> None:
        """Show a warning, as ``warn`` does, that is in the log already."""
        self._print(Text.assemble(("warning: ", "bold yellow"), (addressed(clean(message)), "yellow")))

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """Show a bar for work of known size (warm-up, evaluation); call the value with the work done since."""
        began, done, told = self._clock(), 0, 0
        title = clean(title, newlines=False)
        live = self.mode == "live"
        task = self._tasks.add_task(title, total=total) if live else None
        opened = live and self._live is None
        if opened:
            self._open_live()
        alone = self._run is None  # inside a run the step lines tell enough
        if alone:
            self._plain(Text(f"{title}..."))

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
        """Show that the run ended: the last state of the view stays, followed by ``summary``."""
        self.close()
        if summary:
            self.say(summary)

    def print(self, renderable: RenderableType, soft_wrap: bool = False) -> None:
        """Print something made for rich (the summary). ``soft_wrap``: leave long lines whole, for copying."""
        paper = RichConsole(file=io.StringIO(), width=_LOG_WIDTH, color_system=None, _environ={})
        paper.print(renderable, soft_wrap=soft_wrap)
        log.info("%s", cast("io.StringIO", paper.file).getvalue().rstrip())
        if self.mode != "quiet":
            self.rich.print(renderable, soft_wrap=soft_wrap)

    def close(self) -> None:
        """Give the terminal back. May be called twice."""
        self._end_evaluation()
        self._close_live()
        self._run = None

    def _is_news(self, level: int, step: int) -> bool:
        """Return whether to report this level of slowness now; afterwards neither it nor a lower one is due for a
        while."""
        if level in self._told and step - self._told[level] < QUIET_STEPS:
            return False
        self._told |= dict.fromkeys(range(level + 1), step)
        return True

    def _say_where(self, line: str, style: str = "") -> None:
        self._line_at = self._clock()
        self._tell(Text(line, style=style))

    def _started(self) -> RunState:
        assert self._run is not None, "Console.start comes first"
        return self._run

    def _tell(self, renderable: Text) -> None:
        """To the log, and to the screen unless that is to be quiet."""
        log.info("%s", renderable.plain)
        if self.mode != "quiet":
            self._print(renderable)

    def _plain(self, renderable: Text) -> None:
        """To the log, and to the screen in plain mode: the live view shows it in another way."""
        log.info("%s", renderable.plain)
        if self.mode == "plain":
            self._print(renderable)

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
