"""The messages of a worker, as the driver reads them: strictly, because user code shares the worker's process."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from dapo.environments.forms import HUGE, MOST_STATE
from dapo.environments.shapes import MOST_NUMBERS
from dapo.processes import workers
from dapo.processes.workers import Loading, Short, StrictMessage
from dapo.types.environment import Abilities, Said

MAX_FRAME = 1 << 24  # bytes of one message
_Name = Annotated[str, Field(max_length=200)]
_Numbers = Annotated[dict[_Name, float], Field(max_length=MOST_NUMBERS)]
_Content = Annotated[str, Field(max_length=HUGE + 200)]


class SaidMessage(StrictMessage):
    """A reply."""

    messages: Annotated[list[dict[_Name, _Content]], Field(max_length=256)]
    done: bool
    reward: float
    scores: _Numbers
    facts: _Numbers
    calls: Annotated[list[_Name], Field(max_length=256)]
    tool_errors: int
    cut: bool
    failure: Short | None
    conversation: dict[str, Any] | None = None

    def said(self) -> Said:
        """Return the reply as the driver uses it."""
        fields = dict(self)
        return Said(**{**fields, "messages": tuple(self.messages), "calls": tuple(self.calls)})


class ReadyEnvironment(StrictMessage):
    """The environment is loaded."""

    type: Literal["ready"]
    concurrent: bool
    abilities: Abilities


class Refused(StrictMessage):
    """The environment cannot be loaded."""

    type: Literal["refused"]
    error: Short


class Answered(StrictMessage):
    """The answer to the question with this number."""

    type: Literal["answered"]
    number: int
    reply: SaidMessage | None
    replayed: list[SaidMessage | None] | None
    state: Annotated[str, Field(max_length=MOST_STATE)] | None
    seconds: float
    failure: Short | None
    members: list[SaidMessage]


class Closed(StrictMessage):
    """An episode was closed, as the driver asked for under this number."""

    type: Literal["closed"]
    number: int


FromWorker = Closed | Loading | ReadyEnvironment | Refused | Answered
_ADAPTER: TypeAdapter[list[FromWorker]] = TypeAdapter(list[Annotated[FromWorker, Field(discriminator="type")]])


def read_messages(body: bytes) -> list[FromWorker]:
    """Return the messages in a frame.

    Raises:
        WireError: they are none.
    """
    return workers.read_messages(_ADAPTER, body)
