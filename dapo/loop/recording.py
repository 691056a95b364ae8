"""What a step leaves behind: its line with seconds and rates, and the evaluation that belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dapo.errors import AccuracyUnknown
from dapo.loop.evaluation import Evaluator
from dapo.loop.idle import Idle
from dapo.loop.sampling.account import wasted_seconds
from dapo.metrics.phases import Phases
from dapo.observe.spans import peak_rss_mib
from dapo.types.batch import Group, Metrics, TokenTrace
from dapo.types.evaluation import EvaluationResult
from dapo.types.evidence import silent_of
from dapo.types.protocols import Recorder


class StepRecords:
    """Writes a step's line, with what the clock says of it."""

    def __init__(self, recorder: Recorder, phases: Phases, idle: Idle) -> None:
        self._recorder, self._phases, self._idle = recorder, phases, idle

    def start(self) -> None:
        """What came before is no part of the first step."""
        self._idle.take(self._phases.take()["time/step"])

    def step(
        self, step: int, metrics: Metrics, finished: Sequence[Group] = (), traces: Sequence[TokenTrace] = ()
    ) -> None:
        """Completes ``metrics``. The line is written before the step's checkpoint, which never knows more than the
        files beside it: ``report`` and ``save`` of a step therefore count in the next one's seconds.
        """
        seconds = self._phases.take()
        metrics |= self._idle.take(seconds["time/step"])
        metrics |= seconds | wasted_seconds(metrics, seconds) | {"memory/peak_rss_mib": peak_rss_mib()}
        metrics |= self._phases.peaks()
        learnt = seconds["time/step"] - metrics["time/learner_idle"]
        for name, tokens, took in (
            ("time/tokens_per_second", "sampling/generated_tokens", seconds.get("time/generate")),
            ("time/trained_tokens_per_second", "sampling/trained_tokens", learnt),
        ):
            if took and tokens in metrics:
                metrics[name] = metrics[tokens] / took
        with self._phases("report"):
            self._recorder.step(step, metrics, finished, traces)


class Evaluations:
    """Which steps are evaluated, and what is known of the last evaluation.

    Attributes:
        at: the step after which it took place; -1: none has.
        lost: the step that was loaded misses its evaluation.
    """

    def __init__(
        self,
        evaluator: Evaluator | None,
        recorder: Recorder,
        phases: Phases,
        aside: Callable[[], AbstractContextManager[Any]],
        *,
        every: int,
        steps: int,
    ) -> None:
        """``aside``: what else is under way waits in it. ``every`` and ``steps`` may be changed at any time."""
        self.evaluator, self._recorder, self._phases, self._aside = evaluator, recorder, phases, aside
        self.every, self.steps = every, steps
        self.at, self.lost = -1, False
        self._silent_sets: dict[str, str] = {}  # of the last one: sets without an accuracy, and why

    @property
    def wanted(self) -> bool:
        """There is something to evaluate on, and the recipe asks for it."""
        return self.evaluator is not None and bool(self.every)

    def due(self, step: int) -> bool:
        return self.wanted and (step % self.every == 0 or step == self.steps)

    def evaluate(self, step: int) -> EvaluationResult:
        """Answer the held-out problems with the weights of ``step``, the last one done; there must be some."""
        assert self.evaluator is not None
        with self._phases("evaluate"), self._aside():
            result = self.evaluator.evaluate()
            self._recorder.evaluation(step, result)
        self._silent_sets = {name: result.reasons[name] for name in result.silent}
        if self._silent_sets and step:
            self._recorder.notice(step, silent_of(self._silent_sets))
        self.at = step
        return result

    def if_due(self, step: int) -> Metrics:
        return self.evaluate(step).metrics if self.due(step) else {}

    def make_up(self, step: int) -> Metrics:
        """An engine or verifier that was lost took the evaluation of the last step along: a resume makes it up."""
        return self.if_due(step) if self.lost else {}

    def check_known(self) -> None:
        """Raise AccuracyUnknown: of a whole set no response has an accuracy, so that the run could never be judged."""
        if self._silent_sets:
            raise AccuracyUnknown(silent_of(self._silent_sets))

    def state(self, step: int) -> dict[str, Any]:
        return {"evaluated_at": self.at, "evaluation_lost": self.due(step) and self.at != step}

    def load(self, state: dict[str, Any]) -> None:
        self.at, self.lost = int(state.get("evaluated_at", -1)), bool(state.get("evaluation_lost", False))
