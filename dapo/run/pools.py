"""The pool that a recipe names: its hosts, where they live, and how weights reach them."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from dapo.config.pool import engine_count, engine_slots, is_lockstep, server_urls
from dapo.config.schema import Recipe
from dapo.models.load import find_device
from dapo.models.weights import SETS
from dapo.processes.left_over import claim, delete_left, leave
from dapo.processes.threads import ThreadTransport
from dapo.processes.transport import ROOM, HostSpec, Transport
from dapo.rollout.hosted import EngineOrder, ServerOrder, engine_host, server_host
from dapo.rollout.member import Limits
from dapo.rollout.pool import EnginePool
from dapo.rollout.requests import Gate
from dapo.rollout.stops import StopStrings
from dapo.run.places import Places, transport_of
from dapo.system import shared_memory
from dapo.types.model import ModelFacts

_SETS = 2.5  # sets of weights that shared memory has to hold: the present one, the next, and some room


def make_pool(
    recipe: Recipe,
    facts: ModelFacts,
    *,
    longest: int,
    weights: Path,
    run: Path | None,
    api_key: str | None = None,
    strings: StopStrings | None = None,
    places: Places | None = None,
) -> EnginePool:
    """The engines of a recipe that has several.

    Args:
        recipe: Its sections ``rollout``, ``launch`` and ``cluster``.
        facts: Of the learner's model.
        longest: Tokens of the longest sequence that will be asked for.
        weights: Where the learner publishes to.
        run: The run's folder, which takes what hosts print; None: that is dropped.
        api_key: Of servers.
        places: Where hosts live; None: in processes of this machine. Clients of servers are threads.
        strings: Finds stop strings, where the recipe has some.

    Raises:
        EngineError: an engine does not start, or cannot run the model.
        ModelError: an engine cannot load it.
    """
    if server_urls(recipe):
        transport: Transport = ThreadTransport()
        specs = _servers(recipe, facts, longest, weights, api_key, strings)
    else:
        transport = transport_of(run, places)
        specs = _engines(recipe, facts, longest, strings, places)
    cluster = recipe.cluster
    return EnginePool(
        transport,
        specs,
        Gate(facts.vocabulary, min(filter(None, (facts.positions, facts.exact_positions)), default=None), strings),
        turn_steps=recipe.rollout.turn_steps,
        lockstep=is_lockstep(recipe),
        limits=Limits(cluster.start_timeout, cluster.engine_timeout, cluster.max_engine_restarts),
    )


def _engines(
    recipe: Recipe, facts: ModelFacts, longest: int, strings: StopStrings | None, places: Places | None
) -> list[HostSpec]:
    model = recipe.model
    cuda = find_device(model.device).type == "cuda" if places is None else places.cuda
    specs = []
    for number, slots in enumerate(engine_slots(recipe)):
        order = EngineOrder(
            recipe.rollout,
            facts,
            facts.name,
            model.dtype,
            "cuda" if cuda else "cpu",
            longest,
            slots,
            recipe.run.threads,
            model.matmul_precision,
            model.trust_remote_code,
            model.fp32_head,
            strings if recipe.rollout.engine == "vllm" else None,
        )
        environment = {"OMP_NUM_THREADS": str(recipe.run.threads)}
        if cuda and places is None:  # places have devices of their own
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(_devices(recipe, number, torch.cuda.device_count()))
        specs.append(HostSpec(f"engine-{number}", engine_host, (order,), environment))
    return specs


def _devices(recipe: Recipe, number: int, count: int) -> list[str]:
    """Devices of an engine: behind the learner's first one where there are enough, else all are shared in turn."""
    width = recipe.rollout.vllm.tensor_parallel_size if recipe.rollout.engine == "vllm" else 1
    first = number * width + (1 if engine_count(recipe) * width < count else 0)
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    known = names if len(names) == count and all(names) else [str(n) for n in range(count)]
    return [known[(first + n) % count] for n in range(width)]


def _servers(
    recipe: Recipe, facts: ModelFacts, longest: int, weights: Path, api_key: str | None, strings: StopStrings | None
) -> list[HostSpec]:
    server = recipe.rollout.server
    return [
        HostSpec(
            f"server {url}",
            server_host,
            (
                ServerOrder(
                    url,
                    weights,
                    facts.vocabulary,
                    longest,
                    facts.config,
                    slots,
                    server.patience,
                    api_key,
                    own_folder=server.weights_dir is None,
                    strings=strings,
                ),
            ),
        )
        for url, slots in zip(server_urls(recipe), engine_slots(recipe), strict=True)
    ]


def shared_weights(facts: ModelFacts, run: Path | None, *, memory: bool = True) -> Path:
    """A folder of this run alone for weights on their way to processes of this machine: in memory, where that has room.

    What runs that were killed left there is deleted. With ``memory=False``, for processes of several machines: in the
    run's folder.
    """
    folder = shared_memory()
    if folder is not None:
        delete_left(folder, _PREFIX)
    if run is not None:
        delete_sets(run / "weights")
    if memory and folder is not None and _room(folder) >= _SETS * _size(facts):
        with suppress(OSError):
            return Path(claim(lambda: _new_folder(folder)))
    return Path(tempfile.mkdtemp(prefix=_PREFIX)) if run is None else run / "weights"


def room_of() -> Path:
    """A folder, in memory where there is such a file system, that hosts of this run alone use on every machine."""
    parent = shared_memory() or Path(tempfile.gettempdir())
    return parent / f"{ROOM}{secrets.token_hex(8)}"


_PREFIX = "dapo-weights-"


def delete_sets(folder: Path) -> None:
    """Weights that a trainer left in a folder of its own, and the folder, when nothing else is in it."""
    with suppress(FileNotFoundError):
        for left in os.listdir(folder):
            if left.startswith(SETS):
                shutil.rmtree(folder / left, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()
    leave(str(folder))


def _size(facts: ModelFacts) -> int:
    return facts.parameters * 4  # at most


def _room(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _new_folder(parent: Path) -> str:
    folder = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return str(folder)
