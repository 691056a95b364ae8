"""Where a run shows itself: what the loop tells it, as facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from dapo.contracts.evaluation import EvaluationProgress, EvaluationResult
from dapo.contracts.evidence import CollectProgress, Ending, Notice
from dapo.contracts.phases import Span
from dapo.contracts.types import Group, Metrics, TokenTrace


class Recorder(Protocol):
    """Where a run shows itself: metrics file, rollout files, console, trackers."""

    def step(self, step: int, metrics: Metrics, finished: Sequence[Group], traces: Sequence[TokenTrace]) -> None: ...

    def traced(self, finished: Sequence[Group]) -> Collection[int]:
        """Ids of the groups of this step whose tokens the learner shall keep on record for ``step``."""

    def span(self, span: Span) -> None:
        """A stretch of a phase has ended."""

    def evaluation(self, step: int, result: EvaluationResult) -> None: ...

    def saved(self, step: int, folder: Path) -> None:
        """A checkpoint of ``step`` lies in ``folder``."""

    def stopped(self, step: int, judged: Sequence[Group]) -> None:
        """Step ``step`` could not fill its batch: what was judged on the way is the evidence."""

    def filling(self, progress: CollectProgress) -> None:
        """The batch is being collected; called after every judged group."""

    def evaluating(self, progress: EvaluationProgress) -> None:
        """An evaluation is going on; called whenever a response ended or was scored."""

    def notice(self, step: int, notice: Notice) -> None:
        """Something of step ``step`` that a person should know, though the run goes on."""

    def ending(self, ending: Ending) -> None:
        """No further step is begun, and why."""

    def state(self) -> dict[str, Any]: ...
