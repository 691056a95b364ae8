"""Parts and callbacks that a program gives to a run in addition to its recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dapo.config.deployment import Deployment
from dapo.config.schema import Recipe
from dapo.errors import RecipeError
from dapo.models.loaded import LoadedModel
from dapo.observe.commands import GIVEN, record_given
from dapo.run.algorithm import load_hook
from dapo.types.batch import Prompt
from dapo.types.events import Callback
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine, PromptStream, Scorer


@dataclass(frozen=True, slots=True)
class Context:
    """Facts of a run for a user's part that is made for it."""

    recipe: Recipe
    tokenizer: Any
    prompts: Sequence[Prompt]  # to train on
    folder: Path | None  # of the run; None: it leaves no files
    facts: ModelFacts | None = None  # of the model; None for a scorer, which is made first
    loaded: LoadedModel | None = None  # the learner's model; an engine may read it and never writes to it
    longest: int = 0  # tokens of the longest sequence that is asked for
    weights: Path | None = None  # the folder through which the learner publishes; None: the tensors are shared

    @property
    def model(self) -> Any:
        """The learner's model of transformers; None: it is in other processes."""
        return None if self.loaded is None else self.loaded.model

    @property
    def slots(self) -> int | None:
        """``rollout.slots``: responses that the engine decodes at once; None: the engine chooses."""
        return Deployment(self.recipe).slots[0]


_REPLACES = {
    "engine": "makes the responses; rollout.engine and its sections are not read",
    "scorer": "scores them; the recipe's rewards are not asked",
    "stream": "hands out the prompts; data.shuffle and data.epochs are not read",
}
"""Parts that a program may give, and what that means for the recipe."""


@dataclass(frozen=True, slots=True)
class Given:
    """Each part is an object that keeps its protocol, or a class or function that makes one of a ``Context``."""

    engine: Any = None
    scorer: Any = None
    stream: Any = None
    callbacks: Sequence[Callback] = field(default_factory=tuple)
    objects: Mapping[str, str] = field(default_factory=dict)  # of the recipe: functions that are no module's, by key
    python: bool = False  # a Python program starts the run, and no command

    def words(self) -> list[str]:
        """Return sentences on the given parts that replace the recipe's."""
        lines = [f"{name_of(part)}, given from Python, {_REPLACES[name]}" for name, part in self._parts().items()]
        if needed := self.needed():
            lines.append(
                f"this run needs objects of the program that started it ({', '.join(needed.values())}): only "
                f"dapo.resume(RUN, {', '.join(needed)}) from Python goes on with it, `dapo train --resume` cannot"
            )
        return lines

    def needed(self) -> dict[str, str]:
        """Return what a resume needs again: the argument as it is written, and its name."""
        needed: dict[str, str] = {}
        names = {key: hook.partition(":")[2] for key, hook in self.objects.items()}
        for argument, section in (("rewards", "rewards."), ("tools", "environment.tools.")):
            if listed := ", ".join(name for key, name in names.items() if key.startswith(section)):
                needed[f"{argument}=[{listed}]"] = listed
        arguments = {"algorithm.loss.kind": "objective", "environment.kind": "environment"}
        for key, name in names.items():
            if not key.startswith(("rewards.", "environment.tools.")):
                needed[f"{arguments.get(key, key)}={name}"] = name
        return needed | {f"{name}=...": name_of(part) for name, part in self._parts().items()}

    def _parts(self) -> dict[str, Any]:
        """Return the parts in place of the recipe's, by their arguments."""
        return {name: part for name in _REPLACES if (part := getattr(self, name)) is not None}

    def with_callbacks(self, more: Sequence[Callback]) -> Given:
        """With further callbacks."""
        return replace(self, callbacks=(*self.callbacks, *more))

    def with_named(self, recipe: Recipe) -> Given:
        """Return the parts with those that the recipe names.

        Raises:
            RecipeError: A name leads nowhere, or a part is named and given from Python as well.
        """
        named = {"stream": ("data.stream", recipe.data.stream), "scorer": ("scorer", recipe.scorer)}
        found: dict[str, Any] = {}
        for part, (setting, hook) in named.items():
            if hook is None:
                continue
            if (own := getattr(self, part)) is not None:
                raise RecipeError(f"{setting}: the recipe names {hook}, and {part}={name_of(own)} is given: drop one")
            found[part] = load_hook(hook, setting)
        return replace(self, **found)

    def with_objects(self, objects: Mapping[str, str]) -> Given:
        """With these objects of the recipe."""
        return replace(self, objects=objects)

    def record(self, folder: Path) -> None:
        """Record what a resume has to be given again, of a run that a Python program starts."""
        names = {name: name_of(part) for name, part in self._parts().items()}
        if names or self.python:
            record_given(folder, list(self.needed()), names)

    def check(self, folder: Path) -> None:
        """Refuse to go on with a run whose parts were given from Python and are not given again, or the reverse.

        Raises:
            RecipeError: with the argument that is missing, or has no place.
        """
        try:
            before = json.loads((folder / GIVEN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = {}
        for name in _REPLACES:
            part = getattr(self, name)
            if name in before and part is None:
                raise RecipeError(
                    f"{folder} was started with {name}={before[name]}, given from Python: go on with "
                    f"dapo.resume({str(folder)!r}, {name}=...), for `dapo train --resume` has none"
                )
            if name not in before and part is not None:
                raise RecipeError(f"{folder} was started with the recipe's {name}: {name}={name_of(part)} has no place")


NOTHING_GIVEN = Given()


def check_beside_engine(recipe: Recipe) -> None:
    """Refuse what a recipe cannot hold where its engine is an object of this program.

    Raises:
        RecipeError: with the key and the next move.
    """
    if recipe.launch.backend == "ray" and recipe.learner.ranks == 1:
        raise RecipeError(
            "launch.backend=ray: nothing of this run would live on a Ray cluster, for the engine is given from Python "
            "and a learner of one rank is in this process too: use launch.backend=local, or set learner.ranks above 1"
        )
    if (route := recipe.rollout.weight_transfer) not in ("auto", "folder"):
        raise RecipeError(
            f"rollout.weight_transfer={route}: an engine that is given from Python finds new weights in its ticket's "
            "folder or in the learner's own tensors; use auto"
        )


ENGINE_METHODS = "submit poll abort load checksums sleep stats close"


def make_engine_of(given: Any, context: Context) -> Engine:
    """Return the user's engine: the object, or what the class or function makes of ``context``.

    Raises:
        RecipeError: it is none.
    """
    return _made(given, context, "an engine", Engine, f"{ENGINE_METHODS} capacity")  # type: ignore[no-any-return]


def make_scorer_of(given: Any, context: Context) -> Scorer:
    """Make the user's scorer, as ``make_engine_of`` does."""
    return _made(given, context, "a scorer", Scorer, "submit poll close")  # type: ignore[no-any-return]


def make_stream_of(given: Any, context: Context) -> PromptStream:
    """Make the user's prompt stream, as ``make_engine_of`` does."""
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
            "(recipe, tokenizer, prompts, folder, facts, loaded, model, slots, longest, weights)"
        ) from error
    if missing := [name for name in wanted if not hasattr(part, name)]:
        raise RecipeError(
            f"{name_of(part)} is not {what}: it has no {', '.join(missing)}. The protocol is "
            f"dapo.types.protocols.{protocol.__name__}; docs/extending.md has an example"
        )
    return part
