"""The messages of a worker, as the driver reads them: strictly, because user code shares the worker's process."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dapo.environments.forms import HUGE, MOST_STATE
from dapo.environments.shapes import MOST_NUMBERS
from dapo.rewards.wire import WireError
from dapo.types.environment import Said

MAX_FRAME = 1 << 24  # bytes of one message
_Text = Annotated[str, Field(max_length=4000)]
_Name = Annotated[str, Field(max_length=200)]
_Numbers = Annotated[dict[_Name, float], Field(max_length=MOST_NUMBERS)]
_Content = Annotated[str, Field(max_length=HUGE + 200)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SaidMessage(_Message):
    """A reply."""

    messages: Annotated[list[dict[_Name, _Content]], Field(max_length=256)]
    done: bool
    reward: float
    scores: _Numbers
    facts: _Numbers
    calls: Annotated[list[_Name], Field(max_length=256)]
    tool_errors: int
    cut: bool
    failure: _Text | None
    conversation: dict[str, Any] | None = None

    def said(self) -> Said:
        """Return the reply as the driver uses it."""
        fields = dict(self)
        return Said(**{**fields, "messages": tuple(self.messages), "calls": tuple(self.calls)})


class Loading(_Message):
    """Importing the environment."""

    type: Literal["loading"]
    name: _Text


class Ready(_Message):
    """The environment is loaded."""

    type: Literal["ready"]
    kind: _Name
    concurrent: bool
    opens: bool
    ends: bool
    restores: bool
    role: _Name
    tools: list[dict[str, Any]]
    scores: bool
    compares: bool


class Refused(_Message):
    """The environment cannot be loaded."""

    type: Literal["refused"]
    error: _Text


class Answered(_Message):
    """The answer to the question with this number."""

    type: Literal["answered"]
    number: int
    reply: SaidMessage | None
    replayed: list[SaidMessage | None] | None
    state: Annotated[str, Field(max_length=MOST_STATE)] | None
    seconds: float
    failure: _Text | None
    members: list[SaidMessage]


class Closed(_Message):
    """An episode was closed, as the driver asked for under this number."""

    type: Literal["closed"]
    number: int


FromWorker = Closed | Loading | Ready | Refused | Answered
_ADAPTER: TypeAdapter[list[FromWorker]] = TypeAdapter(list[Annotated[FromWorker, Field(discriminator="type")]])


def read_messages(body: bytes) -> list[FromWorker]:
    """Return the messages in a frame.

    Raises:
        WireError: they are none.
    """
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        raise WireError(f"{error.error_count()} faults in a message, the first: {error.errors()[0]['msg']}") from None
