"""How many processes learn and generate: ranks, engines, machines and GPUs of each, as lines of the recipe.

Lines are written only where the source says how many GPUs there are. With one GPU there is nothing to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dapo.importing.reading import Reading, SourceValue


@dataclass(slots=True)
class Layout:
    """GPUs of a source, with the settings that say so."""

    founds: tuple[SourceValue, ...]  # what says how many there are
    nodes: int
    ranks: int  # GPUs that learn
    engine_gpus: int  # GPUs that generate; 0: another program does
    each: SourceValue  # GPUs of one engine
    context: SourceValue | None = None  # ranks that share a row
    shared: bool = True  # learning and generating share their GPUs
    copies: SourceValue | None = None  # copies of the model, where several hold one each


def convert(r: Reading) -> None:
    """Write the lines of ranks, engines and machines."""
    layout = _READ[r.title](r)
    total = 0 if layout is None else layout.ranks + (0 if layout.shared else layout.engine_gpus)
    if layout is None or not any(found.given for found in layout.founds) or total <= 1:
        return
    if "learner.ranks" in r.lines and not all(found.given for found in layout.founds):
        return  # all GPUs that sbatch reserves: half of what the source says is a default
    founds, nodes, per_node = layout.founds, layout.nodes, -(-total // layout.nodes)
    how = f"{nodes} machines of {per_node} GPUs" if nodes > 1 else f"{total} GPUs of one machine"
    if layout.ranks > 1:
        whose = "engines share them" if layout.shared else f"{layout.engine_gpus} more generate"
        r.put("learner.ranks", layout.ranks, *founds, note=f"{how}; {whose}")
    if layout.context is not None and layout.context.value > 1:
        r.take("learner.context_parallel", layout.context)
    if layout.copies is not None and layout.copies.value > 1:
        r.take("learner.replicas", layout.copies, note=f"{layout.ranks} ranks, so many for each copy")
    if r.lines["rollout.engine"].value == "vllm":
        engines = layout.engine_gpus // layout.each.value
        if layout.each.value > 1:
            r.take("rollout.vllm.tensor_parallel_size", layout.each)
        if engines > 1:
            note = f"{layout.engine_gpus} GPUs, {layout.each.value} for each engine"
            r.put("rollout.engines", engines, *founds, layout.each, note=note)
    if nodes > 1 and not layout.shared:
        r.put("cluster.colocate", False, *founds, note="generation has GPUs of its own")
    if nodes > 1 and "slurm.nodes" not in r.lines:
        r.put("slurm.nodes", nodes, *founds, note="for `dapo launch`")
        r.put("slurm.options", {"gpus-per-node": per_node}, *founds, note="for `dapo launch`")


def _verl(r: Reading) -> Layout:
    actor = "actor_rollout_ref.actor"
    nodes, each = r.count("trainer.nnodes", default=1), r.count("trainer.n_gpus_per_node", default=8)
    size = r.count("actor_rollout_ref.rollout.tensor_model_parallel_size", default=2)
    parts = ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
    spread = [r.number(f"{actor}.{part}") for part in (*parts, "megatron.context_parallel_size")]
    context = next((found for found in spread if found is not None and found.value > 1), None)
    gpus = nodes.value * each.value
    copies = r.number(f"{actor}.fsdp_config.fsdp_size")
    if copies is not None:
        held = int(copies.value) if 0 < copies.value < gpus else gpus
        copies = SourceValue(gpus // held, copies.said, True, copies.unread)
    size = SourceValue(min(size.value, gpus), size.said, size.given, size.unread)
    return Layout((nodes, each), nodes.value, gpus, gpus, size, context, copies=copies)


def _skyrl(r: Reading) -> Layout:
    place, engine = "trainer.placement", "generator.inference_engine"
    nodes, each = (r.count(f"{place}.policy_num_{what}", default=1) for what in ("nodes", "gpus_per_node"))
    engines = r.count(f"{engine}.num_engines", "generator.num_inference_engines", default=1)
    size = r.count(f"{engine}.tensor_parallel_size", "generator.inference_engine_tensor_parallel_size", default=1)
    shared = r.flag(f"{place}.colocate_all", default=True)
    context = r.count("trainer.policy.sequence_parallel_size", default=1)
    founds, gpus = (nodes, each, engines, shared), engines.value * size.value
    return Layout(founds, nodes.value, nodes.value * each.value, gpus, size, context, bool(shared.value))


def _areal(r: Reading) -> Layout | None:
    """Read ``sglang:d4p1t1+d4p1t1`` (engines, then learner), or one such word for each, as ``fsdp:d4``."""
    whole = r.text("allocation_mode")
    learns, generates = r.text("actor.backend"), r.text("rollout.backend")
    if whole.given:
        first, _, second = whole.value.partition("+")
        generates, learns = SourceValue(first, whole.said, True), SourceValue(second or first, whole.said, True)
    learner, engine = _dimensions(learns.value), _dimensions(generates.value)
    if not learner or not engine:
        return None
    nodes = r.count("cluster.n_nodes", default=1)
    r.find("cluster.n_gpus_per_node")
    gpus, context = _product(engine), SourceValue(learner.get("c", 1), learns.said, learns.given)
    size = SourceValue(gpus // engine.get("d", 1), generates.said, generates.given)
    shared = whole.given and "+" not in whole.value
    return Layout((learns, nodes), nodes.value, _product(learner), gpus, size, context, shared)


def _dimensions(text: str) -> dict[str, int]:
    """Return the sizes in ``fsdp:d4p1t2`` by their letters; empty for another text."""
    found = re.fullmatch(r"(?:\w+[:.])?((?:[a-z]\d{1,5})+)", text.strip())
    return {letter: int(size) for letter, size in re.findall(r"([a-z])(\d+)", found[1])} if found else {}


def _product(sizes: dict[str, int]) -> int:
    gpus = 1
    for letter in "dptc":
        gpus *= max(1, sizes.get(letter, 1))
    return gpus


def _nemo(r: Reading) -> Layout:
    nodes, each = r.count("cluster.num_nodes", default=1), r.count("cluster.gpus_per_node", default=1)
    size = r.count("policy.generation.vllm_cfg.tensor_parallel_size", default=1)
    if r.text("policy.generation.backend", default="vllm").value != "vllm":
        size = SourceValue(1, "", False)
    shared = r.flag("policy.generation.colocated.enabled", default=True)
    own = "policy.generation.colocated.resources"
    more = [r.number(f"{own}.num_nodes"), r.number(f"{own}.gpus_per_node")]
    megatron = r.flag("policy.megatron_cfg.enabled", default=False).value
    context = r.count(f"policy.{'megatron' if megatron else 'dtensor'}_cfg.context_parallel_size", default=1)
    gpus, apart = nodes.value * each.value, 0
    if not shared.value:
        apart = int(more[1].value) if more[1] else each.value
        apart *= int(more[0].value) if more[0] and nodes.value > 1 else 1
    founds = (nodes, each, *(found for found in more if found is not None), *([] if shared.value else [shared]))
    return Layout(founds, nodes.value, gpus - apart, apart or gpus, size, context, bool(shared.value))


def _transformers(r: Reading) -> Layout | None:
    """Read the processes of TRL and ms-swift; a server of vLLM is another program."""
    count = r.source.processes.devices
    if not count or r.source.processes.unread:
        return None
    size = r.count("vllm_tensor_parallel_size", default=1)
    context = r.count("sequence_parallel_size", default=1) if r.title == "ms-swift" else None
    devices = SourceValue(count, f"from {count} processes", True)
    alone = r.lines["rollout.engine"].value == "vllm_server"
    return Layout((devices,), 1, devices.value, 0 if alone else devices.value, size, context)


_READ: dict[str, Callable[[Reading], Layout | None]] = {
    "verl": _verl,
    "SkyRL": _skyrl,
    "AReaL": _areal,
    "NeMo RL": _nemo,
    "TRL": _transformers,
    "ms-swift": _transformers,
}
