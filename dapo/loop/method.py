"""Define what a method of training (by reward, by examples) gives to the loop of ``dapo.loop.trainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from dapo.config.schema import Recipe
from dapo.errors import LearnerLost
from dapo.types.batch import Group, Learned, LearnStep, Metrics
from dapo.types.evaluation import EvaluationResult
from dapo.types.evidence import Awaited, DataEnded, LeftInStep
from dapo.types.protocols import Learner


@dataclass(slots=True)
class Counters:
    """Two kinds of steps that peers confuse, and tokens."""

    training_steps: int = 0  # batches trained on
    optimizer_steps: int = 0  # weight updates
    trained_tokens: int = 0  # response tokens that carried loss


@dataclass(frozen=True, slots=True)
class Work:
    """A training step that the learner can begin."""

    plan: LearnStep
    metrics: Metrics  # known before the learner works
    finished: Sequence[Group] = ()  # groups that were judged or discarded on the way


@dataclass(frozen=True, slots=True)
class StepDone:
    """A training step that is recorded."""

    step: int
    metrics: Metrics  # as recorded
    finished: Sequence[Group]  # groups that were judged or discarded in it


class Method(Protocol):
    """The parts of a training step that differ between methods. The trainer calls them in this order.

    An error of ``prepare`` costs nothing that is learned: the trainer calls ``give_up`` and saves the steps before.
    After ``learn`` the step counts: an error of ``publish`` or ``evaluate`` is raised once the step is recorded and
    saved.
    """

    learner: Learner

    def start(self, look: Callable[[], None]) -> None:
        """Forget the time that passed before the first step.

        ``look`` is to be called where ``prepare`` and ``evaluate`` wait. It raises if the run is asked to end. If it
        did within ``prepare``, ``leave`` is called then.
        """

    def prepare(self, step: int, done: Counters, rate: Callable[[int], float]) -> Work | DataEnded:
        """Return the work of training step ``step``, or why there is none left.

        Args:
            step: number of the training step, from 1.
            done: what is trained so far.
            rate: learning rate of the optimizer step with this number in the training step, from 0.
        """

    def give_up(self, step: int, error: Exception) -> None:
        """Make ``state`` one that can be saved, after ``prepare`` raised ``error``."""

    def leave(self) -> LeftInStep | None:
        """Make ``state`` one that goes on in the middle of ``prepare``, which ``look`` ended; say what it has."""

    def learn(self, work: Work, *, last: bool) -> Learned:
        """Train on ``work``; ``last``: no training step follows."""

    def measure(self, work: Work, learned: Learned) -> Metrics:
        """Return the metrics of a step that is learned, those of ``work`` included."""

    def publish(self, version: int) -> Metrics:
        """Give the learner's weights to whatever generates with them, and check that they arrived."""

    def evaluates_every(self, recipe: Recipe) -> int:
        """Return the training steps between two evaluations; 0: no held-out data, or none are asked for."""

    def evaluate(self, step: int) -> EvaluationResult:
        """Measure the weights of ``step``, the last one done, on held-out data, and record the answers."""

    def awaited(self) -> Awaited | None:
        """Return what engine, environments and verifiers owe; None: there are none. Any thread may call it."""

    def timing(self, metrics: Metrics, seconds: Mapping[str, float]) -> Metrics:
        """Return metrics of waiting and speed, from a step's metrics and its seconds of each phase."""

    def state(self) -> dict[str, Any]:
        """Return what the next step depends on besides the learner, for a checkpoint."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: another method wrote it.
            DataError: the training data are others.
        """


@contextmanager
def on_failure(act: Callable[[Exception], bool]) -> Iterator[None]:
    """Call ``act`` with an error that is raised in this context; then raise it, unless ``act`` returns True.

    What no error is (``SystemExit``, ``KeyboardInterrupt``) passes: see ``on_leaving``.

    A lost learner is passed on without a call: its weights are gone, so nothing can be saved or gone on with. The run
    continues from its last checkpoint.
    """
    try:
        yield
    except LearnerLost:
        raise
    except Exception as error:
        if not act(error):
            raise


@contextmanager
def on_leaving(act: Callable[[BaseException], None]) -> Iterator[None]:
    """Call ``act`` with whatever leaves this context, ``SystemExit`` and ``KeyboardInterrupt`` too; then raise it.

    As in ``on_failure``, a lost learner is passed on without a call.
    """
    try:
        yield
    except LearnerLost:
        raise
    except BaseException as error:
        act(error)
        raise
