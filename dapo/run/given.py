"""What a program gives to a run beside its recipe: parts of its own, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo.config.schema import Recipe
from dapo.contracts.events import Callback
from dapo.contracts.model import ModelFacts
from dapo.contracts.protocols import Engine, PromptStream, Scorer
from dapo.contracts.types import Prompt
from dapo.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Context:
    """What a part that is made for a run may want to know of it."""

    recipe: Recipe
    tokenizer: Any
    prompts: Sequence[Prompt]  # to train on
    folder: Path | None  # of the run; None: it leaves no files
    facts: ModelFacts | None = None  # of the model; None for a scorer, which is made first
    model: Any = None  # the learner's, of transformers; an engine may read it and never writes to it
    longest: int = 0  # tokens of the longest sequence that is asked for
    weights: Path | None = None  # the folder through which the learner publishes; None: the tensors are shared


@dataclass(frozen=True, slots=True)
class Given:
    """Each part is an object that keeps its protocol, or a class or function that makes one of a ``Context``."""

    engine: Any = None
    scorer: Any = None
    stream: Any = None
    callbacks: Sequence[Callback] = field(default_factory=tuple)

    def words(self) -> list[str]:
        """What takes the place of what the recipe names, in sentences."""
        told = {
            "engine": (self.engine, "makes the responses; rollout.engine and its sections are not read"),
            "scorer": (self.scorer, "scores them; the recipe's rewards are not asked"),
            "stream": (self.stream, "hands out the prompts; data.shuffle and data.epochs are not read"),
        }
        return [f"{name_of(part)}, given from Python, {what}" for part, what in told.values() if part is not None]


NOTHING_GIVEN = Given()


def make_engine_of(given: Any, context: Context) -> Engine:
    """The user's engine.

    Raises:
        RecipeError: it is none.
    """
    return _made(given, context, "an engine", Engine, "submit poll abort load checksums sleep stats close capacity")  # type: ignore[no-any-return]


def make_scorer_of(given: Any, context: Context) -> Scorer:
    """The user's scorer. As ``make_engine_of``."""
    return _made(given, context, "a scorer", Scorer, "submit poll close")  # type: ignore[no-any-return]


def make_stream_of(given: Any, context: Context) -> PromptStream:
    """The user's prompt stream. As ``make_engine_of``."""
    return _made(given, context, "a prompt stream", PromptStream, "take size state load")  # type: ignore[no-any-return]


def name_of(part: Any) -> str:
    """How a part is called in messages."""
    return str(getattr(part, "__name__", None) or type(part).__name__)


def _made(given: Any, context: Context, what: str, protocol: type, names: str) -> Any:
    wanted = names.split()
    make: Callable[[Context], Any] | None = None
    if isinstance(given, type) or not any(hasattr(given, name) for name in wanted):
        make = given if callable(given) else None
    try:
        part = given if make is None else make(context)
    except TypeError as error:
        raise RecipeError(
            f"{name_of(given)} cannot be made into {what}: {error}. It is called with one argument, the context "
            "(recipe, tokenizer, prompts, folder, facts, model, longest, weights)"
        ) from error
    if missing := [name for name in wanted if not hasattr(part, name)]:
        raise RecipeError(
            f"{name_of(part)} is not {what}: it has no {', '.join(missing)}. The protocol is "
            f"dapo.contracts.protocols.{protocol.__name__}; docs/extending.md has an example"
        )
    return part
