"""The messages of a worker, as the driver reads them: strictly, for user code shares the worker's process."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from dapo.processes import workers
from dapo.processes.wire import WireError
from dapo.processes.workers import Loading, Short, StrictMessage
from dapo.rewards.function import MAX_VALUES
from dapo.rewards.judges import KINDS, Outcome


class Ready(StrictMessage):
    """All rewards are loaded."""

    type: Literal["ready"]


class Failed(StrictMessage):
    """A reward could not be loaded."""

    type: Literal["failed"]
    error: Short


class Began(StrictMessage):
    """An answer was read; ``digest`` identifies what its verdict depends on."""

    type: Literal["began"]
    item: int
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Warming(StrictMessage):
    """A function's first call in this worker begins (``done`` is false) or is over; its result counts for nothing."""

    type: Literal["warming"]
    done: bool


_Outcome = Annotated[dict[Short, float], Field(max_length=MAX_VALUES)] | Short


class Judged(StrictMessage):
    """A verdict, or one for each response of a group."""

    type: Literal["done"]
    item: int
    outcome: _Outcome | list[_Outcome]
    answer: Short | None
    time: float  # of the machine's monotonic clock, the same in all processes


Message = Loading | Ready | Failed | Began | Warming | Judged
_ADAPTER: TypeAdapter[list[Message]] = TypeAdapter(list[Annotated[Message, Field(discriminator="type")]])


def read_messages(body: bytes) -> list[Message]:
    """Return the messages in a frame.

    Raises:
        WireError: they are none.
    """
    messages = workers.read_messages(_ADAPTER, body)
    for message in messages:
        if isinstance(message, Judged):
            outcomes = message.outcome if isinstance(message.outcome, list) else [message.outcome]
            if any(isinstance(each, str) and not is_failure(each) for each in outcomes):
                raise WireError("a failure of no known kind")
    return messages


def is_failure(outcome: Outcome) -> bool:
    """Whether an outcome says why there is no value, in one of the kinds that are counted."""
    return isinstance(outcome, str) and outcome.partition(":")[0] in KINDS
