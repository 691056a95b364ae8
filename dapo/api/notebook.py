"""Training inside a notebook: one display that is updated, with a bar and the curve so far."""

from __future__ import annotations

import math
import sys
from html import escape
from typing import Any

from dapo.api.run import curve_svg
from dapo.observe.console import Console
from dapo.observe.metrics import read_metrics
from dapo.types.events import Callback, EndEvent, EvaluationEvent, StartEvent, StepEvent


def in_notebook() -> bool:
    """Whether this is a kernel whose output is a page."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


class NotebookProgress(Callback):
    """A bar, the last numbers and the curve, in one display that every step updates."""

    name = "notebook"
    needs_texts = False

    def start(self, event: StartEvent) -> None:
        from IPython.display import HTML, display

        self._html, self._start = HTML, event
        self._rows: list[dict[str, Any]] = read_metrics(event.folder / "metrics.jsonl")  # of a resume, what was before
        self._handle = display(HTML(self._page("starting", event.first_step)), display_id=True)

    def step(self, event: StepEvent) -> None:
        self._rows.append({"step": event.step, **event.metrics})
        accuracy = event.metrics.get("reward/accuracy")
        known = accuracy is not None and math.isfinite(accuracy)
        said = f"step {event.step} of {self._start.steps}"
        self._show(f"{said}, accuracy {accuracy:.1%}" if known else said, event.step)

    def evaluation(self, event: EvaluationEvent) -> None:
        accuracy = event.metrics.get("validation/accuracy")
        if accuracy is not None:
            self._show(f"step {event.step}: held-out accuracy {accuracy:.1%}", event.step)

    def end(self, event: EndEvent) -> None:
        said = "finished" if event.finished else "stopped and saved"
        self._show(f"{said} after step {event.step}{': ' + event.why if event.why else ''}", event.step)

    def _show(self, said: str, step: int) -> None:
        if self._handle is not None:
            self._handle.update(self._html(self._page(said, step)))

    def _page(self, said: str, step: int) -> str:
        total = max(1, self._start.steps)
        bar = f'<progress value="{step}" max="{total}" style="width:20em"></progress>'
        return f"<div>{bar} <b>{escape(self._start.name)}</b> {escape(said)}</div>{curve_svg(self._rows)}"


def console_for(mode: Any) -> tuple[Console, list[Callback]]:
    """Return the console of a run that Python started, and the callbacks of a notebook.

    Args:
        mode: ``logging.console``; in a notebook ``auto`` is the display, beside which only warnings are printed.
    """
    if mode == "auto" and in_notebook():
        return Console("quiet"), [NotebookProgress()]
    return Console(mode), []
