"""The engine that a recipe names."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

from dapo.config.schema import Recipe
from dapo.config.schema_rollout import Rollout
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

        return VllmEngine(
            loaded,
            longest=longest,
            slots=rollout.slots,
            settings=rollout.vllm,
            trust_remote_code=recipe.model.trust_remote_code,
        )
    if rollout.engine == "vllm_server":
        return _server_engine(rollout, loaded, longest, folder)
    return EmbeddedEngine(loaded, slots=rollout.slots)


def _server_engine(rollout: Rollout, loaded: LoadedModel, longest: int, folder: Path | None) -> Engine:
    from dapo.rollout.vllm_server import ServerEngine

    server = rollout.server
    assert server.url is not None  # the recipe's checks
    if server.weights_dir is not None:
        weights = Path(server.weights_dir)
    else:
        weights = Path(tempfile.mkdtemp(prefix="dapo-weights-")) if folder is None else folder / "weights"
    return ServerEngine(
        server.url,
        weights,
        vocabulary=loaded.model.get_input_embeddings().weight.shape[0],
        longest=longest,
        slots=rollout.slots,
        patience=server.patience,
        api_key=_api_key(server.api_key_variable),
    )


def _api_key(variable: str | None) -> str | None:
    """The key in the environment.

    Raises:
        RecipeError: the environment has no such variable.
    """
    if variable is None:
        return None
    if variable not in os.environ:
        raise RecipeError(f"rollout.server.api_key_variable names {variable}, which is not set in the environment")
    return os.environ[variable]
