"""What a recipe says of its engines together: how many there are, how much each takes, and what of that cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dapo.config.problems import Problem
from dapo.config.schema import Recipe
from dapo.config.section import MOST_MANY


def server_urls(recipe: Recipe) -> list[str]:
    """Addresses of vLLM servers, none for other engines."""
    url = recipe.rollout.server.url
    if recipe.rollout.engine != "vllm_server" or url is None:
        return []
    return [url] if isinstance(url, str) else list(url)


def engine_count(recipe: Recipe) -> int:
    """Engines, each with weights of its own."""
    return max(1, len(server_urls(recipe))) if recipe.rollout.engine == "vllm_server" else recipe.rollout.engines


def is_pool(recipe: Recipe) -> bool:
    """Whether the driver asks a pool for turns, and not one engine of its own process.

    An engine that works beside the learner (``rollout.max_staleness``) or on a Ray cluster lives elsewhere: a server
    does, any other becomes a pool of one.
    """
    apart = recipe.rollout.max_staleness > 0 or engines_on_ray(recipe) > 0
    return engine_count(recipe) > 1 or (apart and recipe.rollout.engine != "vllm_server")


def engines_on_ray(recipe: Recipe) -> int:
    """Engines that live on a Ray cluster; servers and an engine of your own do not."""
    placed = recipe.launch.backend == "ray" and recipe.rollout.engine in ("embedded", "generate", "vllm")
    return recipe.rollout.engines if placed else 0


def engine_devices(recipe: Recipe) -> int:
    """Devices of an engine, where there are any."""
    return recipe.rollout.vllm.tensor_parallel_size if recipe.rollout.engine == "vllm" else 1


def is_colocated(recipe: Recipe) -> bool:
    """Whether rank n and engine n share a place on a Ray cluster (``cluster.colocate``)."""
    asked = recipe.cluster.colocate
    return recipe.rollout.max_staleness == 0 and engine_devices(recipe) == 1 if asked is None else asked


def engine_slots(recipe: Recipe) -> list[int | None]:
    """Responses that decode at once, by engine; None: the engine's own choice."""
    slots = recipe.rollout.slots
    return list(slots) if isinstance(slots, list) else [slots] * engine_count(recipe)


def is_lockstep(recipe: Recipe) -> bool:
    """``rollout.lockstep``; None: where engines repeat themselves, and no clock decides when they are asked."""
    rollout = recipe.rollout
    by_clock = rollout.max_staleness > 0 and rollout.overlap_turns is None
    return rollout.engine in ("embedded", "generate") and not by_clock if rollout.lockstep is None else rollout.lockstep


def check_pool(r: Recipe) -> Iterator[Problem]:
    """Addresses, counts and slots that do not go together, and a backend that is not there."""
    rollout, urls = r.rollout, r.rollout.server.url
    given = [urls] if isinstance(urls, str) else urls or []
    if rollout.engine == "vllm_server" and not given:
        yield Problem(
            "rollout.server.url",
            "engine: vllm_server needs the address of a running server, such as http://localhost:8000; "
            "docs/engines.md starts one",
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
    if rollout.engine == "vllm_server" and rollout.engines not in (1, max(1, len(given))):
        move = (
            f"the servers in rollout.server.url are the engines ({len(given)}); leave this at 1, or name more servers"
        )
        yield Problem("rollout.engines", move, rollout.engines)
    if ":" in rollout.engine and rollout.engines > 1:
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
    if r.learner.ranks == 1 and r.rollout.max_staleness == 0 and not engines_on_ray(r):
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
    if cluster.colocate and r.rollout.max_staleness > 0:
        move = "ranks and engines work at the same time with rollout.max_staleness above 0 and cannot take turns"
        yield Problem("cluster.colocate", move, True)
    if cluster.colocate and engine_devices(r) > 1:
        move = "an engine of several devices (rollout.vllm.tensor_parallel_size) has places of its own; take it out"
        yield Problem("cluster.colocate", move, True)


def describe_pool(recipe: Recipe) -> str:
    """How several engines work together; "" for one."""
    if not is_pool(recipe):
        return ""
    how = "in lockstep: repeatable" if is_lockstep(recipe) else "each at its own pace: not repeatable"
    place = "servers" if server_urls(recipe) else "engines in processes of this machine"
    if engine_count(recipe) == 1:
        place = "engine in a process of its own"
    if engines_on_ray(recipe):
        place = "engine on a Ray cluster" if engine_count(recipe) == 1 else "engines on a Ray cluster"
    return f"{engine_count(recipe)} {place}, turns of {recipe.rollout.turn_steps} decode steps, {how}"
