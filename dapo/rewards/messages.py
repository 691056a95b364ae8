"""The messages of a worker, as the driver reads them: strictly, for user code shares the worker's process."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dapo.rewards.function import MAX_VALUES
from dapo.rewards.judges import KINDS, Outcome
from dapo.rewards.wire import WireError

_Text = Annotated[str, Field(max_length=4000)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Loading(_Message):
    """Importing what the reward ``name`` needs."""

    type: Literal["loading"]
    name: _Text


class Ready(_Message):
    """All rewards are loaded."""

    type: Literal["ready"]


class Failed(_Message):
    """A reward could not be loaded."""

    type: Literal["failed"]
    error: _Text


class Began(_Message):
    """An answer was read; ``digest`` identifies what its verdict depends on."""

    type: Literal["began"]
    item: int
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Done(_Message):
    """A verdict."""

    type: Literal["done"]
    item: int
    outcome: Annotated[dict[_Text, float], Field(max_length=MAX_VALUES)] | _Text
    answer: _Text | None
    time: float  # of the machine's monotonic clock, the same in all processes


Message = Loading | Ready | Failed | Began | Done
_ADAPTER: TypeAdapter[list[Message]] = TypeAdapter(list[Annotated[Message, Field(discriminator="type")]])


def read_messages(body: bytes) -> list[Message]:
    """Return the messages in a frame.

    Raises:
        WireError: they are none.
    """
    try:
        messages = _ADAPTER.validate_json(body)
    except ValidationError as error:
        raise WireError(f"{error.error_count()} faults in a message, the first: {error.errors()[0]['msg']}") from None
    for message in messages:
        if isinstance(message, Done) and isinstance(message.outcome, str) and not is_failure(message.outcome):
            raise WireError("a failure of no known kind")
    return messages


def is_failure(outcome: Outcome) -> bool:
    """Whether an outcome says why there is no value, in one of the kinds that are counted."""
    return isinstance(outcome, str) and outcome.partition(":")[0] in KINDS
