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

    nodes: int = 1
    ranks: int = 1  # GPUs that learn
    engine_gpus: int = 0  # GPUs that generate; 0: another program does
    each: int = 1  # GPUs of one engine
    shared: bool = True  # learning and generating share their GPUs
    context: int = 1  # ranks that share a row
    founds: tuple[SourceValue, ...] = ()
    of_engines: tuple[SourceValue, ...] = ()
    of_context: tuple[SourceValue, ...] = ()
    copies: tuple[SourceValue, int] | None = None  # copies of the model, where several hold one each


def convert(r: Reading) -> None:
    """Write the lines of ranks, engines and machines."""
    layout = _READ[r.title](r)
    total = 0 if layout is None else layout.ranks + (0 if layout.shared else layout.engine_gpus)
    if layout is None or not any(found.given for found in layout.founds) or total <= 1:
        return
    if "learner.ranks" in r.lines and not all(found.given for found in layout.founds):
        return  # all GPUs that sbatch reserves: half of what the source says is a default
    per_node = -(-total // layout.nodes)
    how = f"{layout.nodes} machines of {per_node} GPUs" if layout.nodes > 1 else f"{total} GPUs of one machine"
    if layout.ranks > 1:
        r.put("learner.ranks", layout.ranks, *layout.founds, note=f"{how}; {_whose(layout)}")
    if layout.context > 1:
        r.put("learner.context_parallel", layout.context, *layout.of_context)
    if layout.copies is not None and layout.copies[1] > 1:
        r.put(
            "learner.replicas", layout.copies[1], layout.copies[0], note=f"{layout.ranks} ranks, so many for each copy"
        )
    engines = layout.engine_gpus // layout.each
    vllm = "rollout.engine" in r.lines and r.lines["rollout.engine"].value == "vllm"
    if vllm and layout.each > 1:
        r.put("rollout.vllm.tensor_parallel_size", layout.each, *layout.of_engines)
    if vllm and engines > 1:
        note = f"{layout.engine_gpus} GPUs, {layout.each} for each engine"
        r.put("rollout.engines", engines, *layout.founds, *layout.of_engines, note=note)
    if layout.nodes > 1 and not layout.shared:
        r.put("cluster.colocate", False, *layout.founds, note="generation has GPUs of its own")
    if layout.nodes > 1 and "slurm.nodes" not in r.lines:
        r.put("slurm.nodes", layout.nodes, *layout.founds, note="for `dapo launch`")
        r.put("slurm.options", {"gpus-per-node": per_node}, *layout.founds, note="for `dapo launch`")


def _whose(layout: Layout) -> str:
    return "engines share them" if layout.shared else f"{layout.engine_gpus} more generate"


def _verl(r: Reading) -> Layout:
    actor = "actor_rollout_ref.actor"
    nodes, each = r.count("trainer.nnodes", default=1), r.count("trainer.n_gpus_per_node", default=8)
    per_engine = r.count("actor_rollout_ref.rollout.tensor_model_parallel_size", default=2)
    parts = ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
    spread = [r.number(f"{actor}.{part}") for part in (*parts, "megatron.context_parallel_size")]
    context = next((found for found in spread if found is not None and found.value > 1), None)
    gpus = nodes.value * each.value
    shards = r.number(f"{actor}.fsdp_config.fsdp_size")
    copies = gpus // int(shards.value) if shards is not None and 0 < shards.value < gpus else 1
    return Layout(
        nodes.value,
        gpus,
        gpus,
        min(per_engine.value, gpus),
        context=1 if context is None else int(context.value),
        founds=(nodes, each),
        of_engines=(per_engine,),
        of_context=() if context is None else (context,),
        copies=None if shards is None else (shards, copies),
    )


def _skyrl(r: Reading) -> Layout:
    place, engine = "trainer.placement", "generator.inference_engine"
    nodes, each = (
        r.count(f"{place}.policy_num_nodes", default=1),
        r.count(f"{place}.policy_num_gpus_per_node", default=1),
    )
    engines = r.count(f"{engine}.num_engines", "generator.num_inference_engines", default=1)
    size = r.count(f"{engine}.tensor_parallel_size", "generator.inference_engine_tensor_parallel_size", default=1)
    shared = r.flag(f"{place}.colocate_all", default=True)
    context = r.count("trainer.policy.sequence_parallel_size", default=1)
    return Layout(
        nodes.value,
        nodes.value * each.value,
        engines.value * size.value,
        size.value,
        bool(shared.value),
        context.value,
        (nodes, each, engines, shared),
        (size,),
        (context,),
    )


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
    return Layout(
        nodes.value,
        _product(learner),
        _product(engine),
        _product(engine) // engine.get("d", 1),
        shared=whole.given and "+" not in whole.value,
        context=learner.get("c", 1),
        founds=(learns, nodes),
        of_engines=() if whole.given else (generates,),
        of_context=() if whole.given else (learns,),
    )


def _dimensions(text: str) -> dict[str, int]:
    """Return the sizes in ``fsdp:d4p1t2`` by their letters; empty for another text."""
    found = re.fullmatch(r"(?:\w+:)?((?:[a-z]\d{1,5})+)", text.strip())
    return {letter: int(size) for letter, size in re.findall(r"([a-z])(\d+)", found[1])} if found else {}


def _product(sizes: dict[str, int]) -> int:
    gpus = 1
    for letter in "dptc":
        gpus *= max(1, sizes.get(letter, 1))
    return gpus


def _nemo(r: Reading) -> Layout:
    nodes, each = r.count("cluster.num_nodes", default=1), r.count("cluster.gpus_per_node", default=1)
    backend = r.text("policy.generation.backend", default="vllm")
    size = r.count("policy.generation.vllm_cfg.tensor_parallel_size", default=1)
    shared = r.flag("policy.generation.colocated.enabled", default=True)
    own = "policy.generation.colocated.resources"
    engine_nodes, engine_gpus = r.number(f"{own}.num_nodes"), r.number(f"{own}.gpus_per_node")
    megatron = r.flag("policy.megatron_cfg.enabled", default=False).value
    context = r.count(f"policy.{'megatron' if megatron else 'dtensor'}_cfg.context_parallel_size", default=1)
    gpus = nodes.value * each.value
    apart = 0
    if not shared.value:
        apart = int(engine_gpus.value) if engine_gpus else each.value
        apart *= int(engine_nodes.value) if engine_nodes and nodes.value > 1 else 1
    more = tuple(found for found in (engine_nodes, engine_gpus) if found is not None)
    return Layout(
        nodes.value,
        gpus - apart,
        apart or gpus,
        size.value if backend.value == "vllm" else 1,
        bool(shared.value),
        context.value,
        (nodes, each, *more),
        (size, shared),
        (context,),
    )


def _transformers(r: Reading) -> Layout | None:
    """Read the processes of TRL and ms-swift; a server of vLLM is another program."""
    if not r.source.devices:
        return None
    devices = SourceValue(r.source.devices, f"from {r.source.devices} processes", True)
    size = r.count("vllm_tensor_parallel_size", default=1)
    context = r.count("sequence_parallel_size", default=1) if r.title == "ms-swift" else SourceValue(1, "", False)
    alone = "rollout.engine" in r.lines and r.lines["rollout.engine"].value == "vllm_server"
    return Layout(
        ranks=devices.value,
        engine_gpus=0 if alone else devices.value,
        each=size.value,
        context=context.value,
        founds=(devices,),
        of_engines=(size,),
        of_context=(context,),
    )


_READ: dict[str, Callable[[Reading], Layout | None]] = {
    "verl": _verl,
    "SkyRL": _skyrl,
    "AReaL": _areal,
    "NeMo RL": _nemo,
    "TRL": _transformers,
    "ms-swift": _transformers,
}
