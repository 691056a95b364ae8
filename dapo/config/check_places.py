"""Rules about addresses, numbers of engines and ranks, and the way of weights between them."""

from __future__ import annotations

import re

from dapo.config.deployment import Deployment
from dapo.config.faults import Broken
from dapo.config.schema import Recipe
from dapo.config.section import BARE, MOST_MANY, is_bare
from dapo.words import divisors


def _engines(r: Recipe) -> Broken:
    """Yield problems of addresses, counts and slots."""
    rollout, urls, found = r.rollout, r.rollout.server.url, Deployment(r)
    given = [urls] if isinstance(urls, str) else urls or []
    if found.engine == "vllm_server" and not given:
        running = "the address of a running server, such as http://localhost:8000; docs/vllm_server.md starts one"
        yield "rollout.server.url", f"engine: vllm_server needs {running}"
    for n, url in enumerate(given):
        if not is_bare(url):
            key = f"rollout.server.url.{n}" if isinstance(urls, list) else "rollout.server.url"
            yield key, f"expected {BARE}, rollout.server.api_key_variable"
    if len({url.rstrip("/") for url in given}) < len(given):
        yield "rollout.server.url", "names a server twice; one server is one engine"
    if found.engine == "vllm_server" and rollout.engines not in (1, max(1, len(given))):
        servers = f"the servers in rollout.server.url are the engines ({len(given)})"
        yield "rollout.engines", f"{servers}; leave this at 1, or name more servers"
    if found.engine == "own" and rollout.engines > 1:
        own = "an engine of your own is one, in the trainer's process, over the learner's weights"
        yield "rollout.engines", f"{own}; leave this at 1"
    if isinstance(rollout.slots, list):
        if len(rollout.slots) != found.engines:
            counts = f"{len(rollout.slots)} numbers for {found.engines} engines"
            yield "rollout.slots", f"has {counts}; give one for each, or a single number"
        if any(not 0 < slots <= MOST_MANY for slots in rollout.slots):
            yield "rollout.slots", f"expected whole numbers from 1 to {MOST_MANY:,}"


def _ray(r: Recipe) -> Broken:
    cluster, found = r.cluster, Deployment(r)
    if not found.on_ray:
        return
    if found.learner == "here" and not found.engines_on_ray:
        yield (
            "launch.backend",
            f"nothing of this recipe would live on a Ray cluster: the engine ({r.rollout.engine}) does not, and a "
            "learner of one rank is in the program's own process; use local, or set learner.ranks above 1",
        )
    named = re.fullmatch(r"auto|(?:[^/?#@\s:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", cluster.address or "auto")
    if named is None or not 0 < int(named["port"] or 1) < 65_536:
        yield (
            "cluster.address",
            "expected HOST:PORT (1 to 65535) of the cluster's head, as `ray start --head` prints it; the program "
            "itself has to run on a machine of the cluster, not as a client of one (ray://)",
        )
    if cluster.colocate and found.overlaps:
        together = "ranks and engines work at the same time with rollout.max_staleness above 0"
        yield "cluster.colocate", f"{together} and cannot take turns"


def _transfer(r: Recipe) -> Broken:
    """Yield a problem if ``rollout.weight_transfer`` cannot reach the engines of this recipe."""
    key, route, found = "rollout.weight_transfer", r.rollout.weight_transfer, Deployment(r)
    if route == "folder" and found.route == "shared":
        yield key, "nothing travels: the engine reads the learner's own tensors; take it out"
    elif route not in ("auto", "folder") and (why := _nowhere(found) or _not_by(route, found)):
        yield key, f"{why}; use auto"


def _nowhere(found: Deployment) -> str:
    """Return why only a folder or the learner's own tensors reach the engines; "" if other routes do, too."""
    if found.engine == "vllm_server":
        return "a vLLM server reads new weights from a folder (rollout.server.weights_dir)"
    if not found.pool:
        return "the engine is in the program's own process: nothing but a folder leads there from a learner of ranks"
    turns = "a learner of one rank that takes turns with the engines is in the program's own process, and writes files"
    return turns if found.learner == "here" else ""


def _not_by(route: str, found: Deployment) -> str:
    """Return why this route cannot be used; "" if it can."""
    device, on_ray, shared = found.recipe.model.device, found.on_ray, found.shares_places
    if route == "object_store" and not found.engines_on_ray:
        return "the object store is Ray's, and launch.backend is local"
    if route in ("broadcast", "ipc") and found.lockstep and found.overlaps:
        lost = "in lockstep a lost engine is led back to where it was"
        return f"{lost}, and while a learner works these weights cannot be had again"
    if route in ("broadcast", "ipc") and found.engine_devices > 1:
        return (
            "all tensors would gather on one of the engine's devices (rollout.vllm.tensor_parallel_size), where they "
            "may not fit; by folder or object_store each worker takes its own part"
        )
    if route == "ipc" and device == "cpu":
        return "memory of a CUDA device is lent, and model.device is cpu"
    if route == "ipc" and on_ray and not shared:
        return "rank and engine have to share a device (cluster.colocate), and here each has its own"
    if route == "broadcast" and device.startswith("cuda") and on_ray and shared:
        return "NCCL wants a device for each member, and here rank and engine share one (cluster.colocate)"
    return ""


def _ranks(r: Recipe) -> Broken:
    """Yield settings that do not work over ranks."""
    learner, device, shards = r.learner, r.model.device, r.learner.ranks // r.learner.replicas
    if learner.ranks % learner.replicas:
        cut = "each copy of the model is cut over ranks / replicas"
        yield "learner.replicas", f"does not divide learner.ranks = {learner.ranks}: {cut}"
    elif shards % learner.context_parallel:
        yield (
            "learner.context_parallel",
            f"does not divide learner.ranks / learner.replicas = {shards}: ranks that share rows are of one copy of "
            f"the model; expected one of {divisors(shards)}",
        )
    if learner.context_parallel > 1 and r.model.attention == "padded":
        move = "use auto or packed there, or take this out"
        yield "learner.context_parallel", f"cuts packed rows, and model.attention is padded; {move}"
    if learner.ranks == 1:
        return
    if Deployment(r).engine in ("generate", "own"):
        apart = "which lie in other processes with learner.ranks above 1"
        yield "rollout.engine", f"computes with the learner's own tensors, {apart}; use embedded"
    if learner.cpu_offload and learner.optimizer == "adamw_8bit":
        moments = "learner.cpu_offload keeps the moments in the processor's memory"
        yield "learner.optimizer", f"updates on the GPU, and {moments}; use one of both"
    if learner.cpu_offload and device == "cpu":
        yield "learner.cpu_offload", "moves slices away from a CUDA device; model.device is cpu"
    if ":" in device:
        own = "names one device, and every rank takes one of its own"
        yield "model.device", f"{own}: use cuda, and CUDA_VISIBLE_DEVICES to choose"


RULES = (_engines, _ray, _transfer, _ranks)
