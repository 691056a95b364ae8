"""Events of a run for its callbacks: five kinds, with copies of what the run holds that cannot be written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from dapo.types.batch import Group
from dapo.types.evaluation import ValidationSets

Numbers = Mapping[str, float]


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
    groups: Sequence[Group] = ()  # that were finished in this step: trained on, held for a later one, or dropped


@dataclass(frozen=True, slots=True)
class EvaluationEvent:
    """The held-out problems were answered.

    >>> EvaluationEvent(10, {"validation/accuracy": 0.6}).step
    10
    """

    step: int
    metrics: Numbers  # validation/...
    sets: ValidationSets = field(default_factory=dict)  # responses to each problem of each validation set


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
        needs_texts: whether it reads ``groups`` and ``sets``, of which a copy is made for it.
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


def sealed(value: Any) -> Any:
    """Return a copy that cannot be written to, nor anything that it holds. Arrays are read-only views."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, Mapping):
        return MappingProxyType({key: sealed(each) for key, each in value.items()})
    if type(value) in (list, tuple):
        return tuple(map(sealed, value))
    if is_dataclass(value):
        return replace(value, **{one.name: sealed(getattr(value, one.name)) for one in fields(value)})  # type: ignore[type-var]
    return value
