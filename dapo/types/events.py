"""Events of a run for its callbacks: five kinds, with copies that cannot be written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from dapo.types.batch import Group
from dapo.types.evaluation import Evaluated

Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ResponseSeen:
    """One response of a group that a step finished.

    >>> ResponseSeen("7", 2, False, 1.0, 1.0, 0.7, {"accuracy": 1.0}).reason is None
    True
    """

    text: str
    tokens: int
    truncated: bool
    accuracy: float | None  # None: it is unknown
    reward: float | None  # after scaling and length penalty; None: unscored, or the group was dropped before
    advantage: float | None
    values: Numbers  # of every reward, by its name
    reason: str | None = None  # why it is unscored


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """One group that a step finished: trained on, held for a later step, or dropped.

    >>> GroupSeen(0, "3 + 4 =", "3 + 4", "7", "sums", "kept", "trained", responses=()).verdict
    'kept'
    """

    id: int
    prompt: str  # what the model saw
    problem: str
    answer: str
    source: str
    verdict: str  # kept, all_correct, all_wrong...
    disposition: str  # trained, carried, discarded...
    responses: tuple[ResponseSeen, ...]


@dataclass(frozen=True, slots=True)
class AnswerSeen:
    """One response to a held-out problem.

    >>> AnswerSeen("held_out", "3 + 4", "7", "8", accuracy=0.0, tokens=2, truncated=False, greedy=True).accuracy
    0.0
    """

    dataset: str
    problem: str
    answer: str
    response: str
    accuracy: float | None
    tokens: int
    truncated: bool
    greedy: bool


@dataclass(frozen=True, slots=True)
class StartEvent:
    """The run begins, or goes on after a resume.

    >>> StartEvent("mine", Path("runs/mine"), first_step=0, steps=100, config={}).steps
    100
    """

    name: str
    folder: Path
    first_step: int  # training steps that are done: 0 unless resumed
    steps: int  # that the recipe wants
    config: Mapping[str, Any]  # the recipe as plain values, secrets hidden
    state: Mapping[str, Any] = field(
        default_factory=dict
    )  # what this callback's ``state()`` gave to the checkpoint that is resumed


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A training step is done and recorded (step 0: the evaluation before the first one).

    >>> StepEvent(4, {"reward/accuracy": 0.5}).metrics["reward/accuracy"]
    0.5
    """

    step: int
    metrics: Numbers  # as in metrics.jsonl
    groups: tuple[GroupSeen, ...] = ()  # that were finished in this step


@dataclass(frozen=True, slots=True)
class EvaluationEvent:
    """The held-out problems were answered.

    >>> EvaluationEvent(10, {"validation/accuracy": 0.6}).step
    10
    """

    step: int
    metrics: Numbers  # validation/...
    answers: tuple[AnswerSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    """A checkpoint was written.

    >>> CheckpointEvent(10, Path("runs/mine/checkpoints/step_000010")).folder.name
    'step_000010'
    """

    step: int
    folder: Path


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The run ended: nothing comes after it.

    >>> EndEvent(100, finished=True).why
    ''
    """

    step: int
    finished: bool  # it got to its end; False: interrupted, or ended by an error
    why: str = ""


Event = StartEvent | StepEvent | EvaluationEvent | CheckpointEvent | EndEvent


class Callback:
    """Hears of a run. Take what you need::

        class Print(dapo.Callback):
            def step(self, event):
                print(event.step, event.metrics["reward/accuracy"])

    What it gets is a copy: nothing it does to it changes what is computed.

    Attributes:
        name: under which its state is saved, and it is named in messages; "" is the class's name.
        on_error: what becomes of an exception in it. ``warn``: it is reported, and the callback left out from then on;
            ``stop``: the run ends with it.
        needs_texts: whether it reads ``groups`` and ``answers``, which cost a copy of every response.
    """

    name: str = ""
    on_error: Literal["warn", "stop"] = "warn"
    needs_texts: bool = True

    def start(self, event: StartEvent) -> None: ...

    def step(self, event: StepEvent) -> None: ...

    def evaluation(self, event: EvaluationEvent) -> None: ...

    def checkpoint(self, event: CheckpointEvent) -> None: ...

    def end(self, event: EndEvent) -> None: ...

    def state(self) -> dict[str, Any]:
        """Return what a resumed run gives back to ``start``: a dict of what JSON can hold, and arrays."""
        return {}


def groups_seen(groups: Sequence[Group]) -> tuple[GroupSeen, ...]:
    """Return copies of finished groups."""
    return tuple(
        GroupSeen(
            id=group.id,
            prompt=group.prompt.text,
            problem=group.prompt.problem,
            answer=group.prompt.answer,
            source=group.prompt.source,
            verdict=group.verdict.value if group.verdict else "",
            disposition=group.disposition.value if group.disposition else "",
            responses=tuple(_response(group, n) for n in range(len(group.completions_G))),
        )
        for group in groups
    )


def answers_seen(responses: Sequence[Evaluated]) -> tuple[AnswerSeen, ...]:
    """Return copies of the answers to held-out problems."""
    return tuple(
        AnswerSeen(
            dataset=r.dataset,
            problem=r.prompt.problem,
            answer=r.prompt.answer,
            response=r.completion.shown,
            accuracy=r.score.accuracy,
            tokens=r.completion.model_tokens,
            truncated=r.completion.truncated,
            greedy=r.sample < 0,
        )
        for r in responses
    )


def frozen(numbers: Numbers) -> Numbers:
    """Return a copy that cannot be written to."""
    return MappingProxyType(dict(numbers))


def _response(group: Group, n: int) -> ResponseSeen:
    completion, score = group.completions_G[n], group.scores_G[n]
    return ResponseSeen(
        text=completion.shown,
        tokens=completion.model_tokens,
        truncated=completion.truncated,
        accuracy=score.accuracy,
        reward=None if group.rewards_G is None or not score.scored else float(group.rewards_G[n]),
        advantage=None if group.advantages_G is None else float(group.advantages_G[n]),
        values=frozen(score.values),
        reason=score.reason,
    )
