"""The engine that a recipe names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dapo.config.schema import Recipe
from dapo.contracts.protocols import Engine
from dapo.errors import RecipeError
from dapo.models.loaded import LoadedModel
from dapo.rollout.embedded import EmbeddedEngine
from dapo.rollout.generate import GenerateEngine

_PACKAGES = {"vllm": "vllm", "vllm_server": "aiohttp"}


def check_engine(recipe: Recipe) -> None:
    """Refuse an engine whose package is missing before anything is loaded.

    Raises:
        RecipeError: the package of the extra that ``rollout.engine`` needs cannot be found.
    """
    package = _PACKAGES.get(recipe.rollout.engine)
    if package is not None and importlib.util.find_spec(package) is None:
        raise RecipeError(
            f"rollout.engine: {recipe.rollout.engine} needs the package {package}, which is not installed: "
            f"`pip install 'dapo-rl[{recipe.rollout.engine}]'` (docs/engines.md), or set rollout.engine: embedded"
        )


def make_engine(recipe: Recipe, loaded: LoadedModel, *, longest: int, folder: Path | None) -> Engine:
    """The engine that the recipe names. The embedded and the plain one share the learner's weights.

    Args:
        recipe: Its section ``rollout``.
        loaded: The learner's model.
        longest: Tokens of the longest sequence that will be asked for.
        folder: The run's; weights travel through it to a server, unless the recipe names another one.

    Raises:
        EngineError: the engine does not start, or cannot run the model.
    """
    rollout = recipe.rollout
    if rollout.engine == "generate":
        return GenerateEngine(loaded, slots=rollout.slots)
    if rollout.engine == "vllm":
        from dapo.rollout.vllm import VllmEngine

        return VllmEngine(loaded, longest=longest, slots=rollout.slots, settings=rollout.vllm)
    return EmbeddedEngine(loaded, slots=rollout.slots)
