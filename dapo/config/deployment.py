"""Answer from a recipe alone where its learner and engines run, and refuse combinations that cannot work.

The checks of a recipe need these answers before anything is made. ``dapo.run.deployment`` collects them into one value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, cast

from dapo.config.problems import Problem
from dapo.config.schema import Recipe
from dapo.config.section import MOST_MANY
from dapo.words import divisors

if TYPE_CHECKING:  # numpy comes with it
    from dapo.types.batch import Route

EngineKind = Literal["embedded", "generate", "vllm", "vllm_server", "own"]
LearnerPlace = Literal["here", "apart", "ranks"]


def engine_kind(recipe: Recipe) -> EngineKind:
    """Return the kind of ``rollout.engine``; ``own`` is a class of the user, ``package.module:Class``."""
    engine = recipe.rollout.engine
    return "own" if ":" in engine else cast(EngineKind, engine)


def sends_adapter(recipe: Recipe) -> bool:
    """Return whether engines get an adapter by itself, and not merged into the weights."""
    lora = recipe.model.lora
    if lora.rank is None or lora.merge is not None:
        return lora.rank is not None and lora.merge is False
    return engine_kind(recipe) == "vllm" and recipe.model.dtype == "bfloat16" and not lora.modules_to_save


def overlaps(recipe: Recipe) -> bool:
    """Return whether engines generate while the learner works."""
    return recipe.rollout.max_staleness > 0


def learner_place(recipe: Recipe) -> LearnerPlace:
    """Return where a learner that trains runs.

    ``here``: in the process of the program. ``apart``: in a process of its own, because the program hands out the turns
    of engines that work at the same time. ``ranks``: in several processes, ``learner.ranks``.
    """
    if recipe.learner.ranks > 1:
        return "ranks"
    return "apart" if overlaps(recipe) else "here"


def server_urls(recipe: Recipe) -> list[str]:
    """Return the addresses of vLLM servers; other engines have none."""
    url = recipe.rollout.server.url
    if engine_kind(recipe) != "vllm_server" or url is None:
        return []
    return [url] if isinstance(url, str) else list(url)


def engine_count(recipe: Recipe) -> int:
    """Return the number of engines."""
    return max(1, len(server_urls(recipe))) if engine_kind(recipe) == "vllm_server" else recipe.rollout.engines


def is_pool(recipe: Recipe) -> bool:
    """Return whether a pool of engines generates, instead of one engine of the program's own process.

    A single engine that overlaps with the learner or runs on a Ray cluster is a pool of one, unless it is a server.
    """
    apart = overlaps(recipe) or engines_on_ray(recipe) > 0
    return engine_count(recipe) > 1 or (apart and engine_kind(recipe) != "vllm_server")


def engines_on_ray(recipe: Recipe) -> int:
    """Return the number of engines that run on a Ray cluster; servers and an engine of the user do not."""
    placed = recipe.launch.backend == "ray" and engine_kind(recipe) in ("embedded", "generate", "vllm")
    return recipe.rollout.engines if placed else 0


def engine_devices(recipe: Recipe) -> int:
    """Return the number of devices that one engine uses, if the machine has devices."""
    return recipe.rollout.vllm.tensor_parallel_size if engine_kind(recipe) == "vllm" else 1


def keeps_8_bits(recipe: Recipe) -> bool:
    """Return whether the engine keeps keys and values in 8 bits."""
    return engine_kind(recipe) == "vllm" and recipe.rollout.vllm.kv_cache_dtype == "fp8"


def is_colocated(recipe: Recipe) -> bool:
    """Return whether ranks and engines share places on a Ray cluster (``cluster.colocate``)."""
    asked = recipe.cluster.colocate
    return not overlaps(recipe) if asked is None else asked


def engine_slots(recipe: Recipe) -> list[int | None]:
    """Return how many responses each engine decodes at once; None: the engine chooses."""
    slots = recipe.rollout.slots
    return list(slots) if isinstance(slots, list) else [slots] * engine_count(recipe)


def is_by_the_clock(recipe: Recipe) -> bool:
    """Return whether the wall clock decides how far generation gets beside learning."""
    return overlaps(recipe) and recipe.rollout.overlap_turns is None


def is_lockstep(recipe: Recipe) -> bool:
    """Return ``rollout.lockstep``; by default it is on if engines repeat their digits and no clock hands out turns."""
    rollout = recipe.rollout
    if rollout.lockstep is not None:
        return rollout.lockstep
    return engine_kind(recipe) in ("embedded", "generate") and not is_by_the_clock(recipe)


def weight_route(recipe: Recipe) -> Route:
    """Return how a learner in processes of its own sends weights to the engines."""
    asked = recipe.rollout.weight_transfer
    return "folder" if asked == "auto" else asked


def check_pool(r: Recipe) -> Iterator[Problem]:
    """Yield problems of addresses, counts, slots and the backend."""
    rollout, urls, kind = r.rollout, r.rollout.server.url, engine_kind(r)
    given = [urls] if isinstance(urls, str) else urls or []
    if kind == "vllm_server" and not given:
        yield Problem(
            "rollout.server.url",
            "engine: vllm_server needs the address of a running server, such as http://localhost:8000; "
            "docs/vllm_server.md starts one",
        )
    for url in given:
        if not re.fullmatch(r"https?://[^/?#@]+/?", url):
            move = (
                "expected http://HOST:PORT or https://HOST:PORT, without a path, a user or a password; a key is given "
                "by the name of an environment variable, rollout.server.api_key_variable"
            )
            yield Problem("rollout.server.url", move, url)
    if len({url.rstrip("/") for url in given}) < len(given):
        yield Problem("rollout.server.url", "names a server twice; one server is one engine", urls)
    if kind == "vllm_server" and rollout.engines not in (1, max(1, len(given))):
        move = (
            f"the servers in rollout.server.url are the engines ({len(given)}); leave this at 1, or name more servers"
        )
        yield Problem("rollout.engines", move, rollout.engines)
    if kind == "own" and rollout.engines > 1:
        move = "an engine of your own is one, in the trainer's process, over the learner's weights; leave this at 1"
        yield Problem("rollout.engines", move, rollout.engines)
    if isinstance(rollout.slots, list):
        if len(rollout.slots) != engine_count(r):
            move = (
                f"has {len(rollout.slots)} numbers for {engine_count(r)} engines; give one for each, or a single number"
            )
            yield Problem("rollout.slots", move, rollout.slots)
        if any(not 0 < slots <= MOST_MANY for slots in rollout.slots):
            yield Problem("rollout.slots", f"expected whole numbers from 1 to {MOST_MANY:,}", rollout.slots)
    if r.launch.backend == "ray":
        yield from _check_ray(r)


def _check_ray(r: Recipe) -> Iterator[Problem]:
    cluster = r.cluster
    if learner_place(r) == "here" and not engines_on_ray(r):
        move = (
            f"nothing of this recipe would live on a Ray cluster: the engine ({r.rollout.engine}) does not, and a "
            "learner of one rank is in the program's own process; use local, or set learner.ranks above 1"
        )
        yield Problem("launch.backend", move, "ray")
    named = re.fullmatch(r"auto|(?:[^/?#@\s:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", cluster.address or "auto")
    if named is None or not 0 < int(named["port"] or 1) < 65_536:
        move = (
            "expected HOST:PORT (1 to 65535) of the cluster's head, as `ray start --head` prints it; the program "
            "itself has to run on a machine of the cluster, not as a client of one (ray://)"
        )
        yield Problem("cluster.address", move, cluster.address)
    if cluster.colocate and overlaps(r):
        move = "ranks and engines work at the same time with rollout.max_staleness above 0 and cannot take turns"
        yield Problem("cluster.colocate", move, True)


def check_transfer(r: Recipe) -> Iterator[Problem]:
    """Yield a problem if ``rollout.weight_transfer`` cannot reach the engines of this recipe."""
    route = r.rollout.weight_transfer
    if route in ("auto", "folder"):
        if route == "folder" and not is_pool(r) and r.learner.ranks == 1 and engine_kind(r) != "vllm_server":
            yield Problem(_KEY, "nothing travels: the engine reads the learner's own tensors; take it out", route)
        return
    if why := _nowhere(r) or _not_by(r):
        yield Problem(_KEY, f"{why}; use auto", route)


_KEY = "rollout.weight_transfer"


def _nowhere(r: Recipe) -> str:
    """Return why only a folder or the learner's own tensors reach the engines; "" if other routes do, too."""
    if engine_kind(r) == "vllm_server":
        return "a vLLM server reads new weights from a folder (rollout.server.weights_dir)"
    if not is_pool(r):
        return "the engine is in the program's own process: nothing but a folder leads there from a learner of ranks"
    if learner_place(r) == "here":
        return (
            "a learner of one rank that takes turns with the engines is in the program's own process, and writes files"
        )
    return ""


def _not_by(r: Recipe) -> str:
    """Return why this route cannot be used; "" if it can."""
    route = r.rollout.weight_transfer
    if route == "object_store" and not engines_on_ray(r):
        return "the object store is Ray's, and launch.backend is local"
    if route in ("broadcast", "ipc") and is_lockstep(r) and overlaps(r):
        return (
            "in lockstep a lost engine is led back to where it was, and beside a learner at work these weights cannot "
            "be had again"
        )
    if route in ("broadcast", "ipc") and engine_devices(r) > 1:
        return (
            "all tensors would gather on one of the engine's devices (rollout.vllm.tensor_parallel_size), where they "
            "may not fit; by folder or object_store each worker takes its own part"
        )
    if route == "ipc" and r.model.device == "cpu":
        return "memory of a CUDA device is lent, and model.device is cpu"
    if route == "ipc" and r.launch.backend == "ray" and not is_colocated(r):
        return "rank and engine have to share a device (cluster.colocate), and here each has its own"
    if route == "broadcast" and r.model.device.startswith("cuda") and r.launch.backend == "ray" and is_colocated(r):
        return "NCCL wants a device for each member, and here rank and engine share one (cluster.colocate)"
    return ""


def check_ranks(r: Recipe) -> Iterator[Problem]:
    """Yield settings that have no effect, and settings that do not work over ranks."""
    learner = r.learner
    if learner.ranks % learner.replicas:
        yield Problem(
            "learner.replicas",
            f"does not divide learner.ranks = {learner.ranks}: each copy of the model is cut over ranks / replicas",
            learner.replicas,
        )
    elif (shards := learner.ranks // learner.replicas) % learner.context_parallel:
        move = (
            f"does not divide learner.ranks / learner.replicas = {shards}: ranks that share rows are of one copy of "
            f"the model; expected one of {divisors(shards)}"
        )
        yield Problem("learner.context_parallel", move, learner.context_parallel)
    if learner.context_parallel > 1 and r.model.attention == "padded":
        move = "cuts packed rows, and model.attention is padded; use auto or packed there, or take this out"
        yield Problem("learner.context_parallel", move, learner.context_parallel)
    if learner.ranks == 1:
        for key, value, given in (
            ("learner.reshard_after_forward", learner.reshard_after_forward, learner.reshard_after_forward != "auto"),
            ("learner.cpu_offload", True, learner.cpu_offload),
        ):
            if given:
                yield Problem(key, "is only read with learner.ranks above 1; take it out, or set learner.ranks", value)
        return
    if engine_kind(r) in ("generate", "own"):
        move = "computes with the learner's own tensors, which lie in other processes with learner.ranks above 1; "
        yield Problem("rollout.engine", f"{move}use embedded", r.rollout.engine)
    if learner.cpu_offload and learner.optimizer == "adamw_8bit":
        move = (
            "updates on the GPU, and learner.cpu_offload keeps the moments in the processor's memory; use one of both"
        )
        yield Problem("learner.optimizer", move, learner.optimizer)
    if learner.cpu_offload and r.model.device == "cpu":
        yield Problem("learner.cpu_offload", "moves slices away from a CUDA device; model.device is cpu", True)
    if ":" in r.model.device:
        move = "names one device, and every rank takes one of its own: use cuda, and CUDA_VISIBLE_DEVICES to choose"
        yield Problem("model.device", move, r.model.device)
