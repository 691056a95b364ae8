"""Checksums of the weights in vLLM's workers, under the checkpoint's names. Imports no vLLM.

vLLM fuses matrices (query, key and value; gate and up), shards them over workers, pads vocabularies, and on a CPU packs
each matrix for its kernel and lets go of the original. A packed matrix is read through that very kernel: the unit
vectors in, its columns out, exactly, as every product but one is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.models.adapter import PREFIX, is_adapter
from dapo.models.checksum import checksum, dtype_name
from dapo.types.batch import TensorSum

_PARTS = {"q": 0, "k": 1, "v": 2}
_REARRANGED = ("query_key_value", "c_attn", "c_proj", "c_fc", "W_pack")  # turned or interleaved on their way in
_WRAPPED = ".base_layer"
MIXTRAL = ".block_sparse_moe"  # its layers of experts
_UNITS = 256  # unit vectors at once
_WRAP = 2**64


@dataclass(slots=True)
class _Place:
    """Location of a published tensor, or of a part of it, in one worker."""

    held: Tensor
    start: int  # of ``held`` in the published tensor, along ``axis``
    axis: int
    counted: bool  # False: another worker holds the same and counts it
    sharded: bool  # other workers may hold the rest


def name_in(model: Any, name: str) -> str:
    """Return what vLLM's ``model`` calls a published tensor, as far as it names layers of experts otherwise.

    transformers calls them ``mlp`` in every architecture, vLLM keeps Mixtral's own name.
    """
    if ".mlp." in name and any(part.endswith(MIXTRAL) for part, _ in model.named_modules()):
        return name.replace(".mlp.", f"{MIXTRAL}.", 1)
    return name


class _Reader:
    def __init__(self, model: Any) -> None:
        self.model = model
        modules = dict(model.named_modules(remove_duplicate=False))
        self.adapted = {name: module for name, module in modules.items() if hasattr(module, "lora_a_stacked")}
        # vLLM wraps a layer that may get an adapter, and the layer is then the wrapper's ``base_layer``.
        self.modules = {name.replace(_WRAPPED, ""): module for name, module in modules.items()}
        self.own = {
            name.replace(_WRAPPED, ""): tensor for name, tensor in model.named_parameters(remove_duplicate=False)
        }
        self.last: tuple[str, Tensor] | None = None  # fused matrices are read once for all their parts
        self.claimed: set[str] = set()

    def target(self, name: str) -> tuple[str, Any]:
        """vLLM's name for a tensor of the checkpoint, and which part of that it is (None: all)."""
        name = name_in(self.model, name)
        part, mapper = None, getattr(self.model, "hf_to_vllm_mapper", None)
        if mapper is not None:
            name, part = mapper._map_name_with_shard(name) or (name, None)
        if name in self.own or part is not None:
            return name, part
        path, _, leaf = name.rpartition(".")
        above, _, last = path.rpartition(".")
        for fused, parts in (getattr(self.model, "packed_modules_mapping", None) or {}).items():
            if last in parts and len(parts) > 1:
                return f"{above}.{fused}.{leaf}", parts.index(last)
        return name, None

    def effective(self, target: str, columns: int) -> Tensor:
        """[rows, columns] or [rows]: what the next token is computed from."""
        if self.last is not None and self.last[0] == target:
            return self.last[1]
        path, _, leaf = target.rpartition(".")
        module, tensor = self.modules[path], self.own[target].detach()
        packed = vars(module).get("cpu_linear") if leaf == "weight" else None
        if packed is not None and type(module).__name__ != "VocabParallelEmbedding":  # which is looked up in
            units = torch.eye(columns, dtype=tensor.dtype, device=tensor.device)
            tensor = torch.cat([packed(some, tensor, None) for some in torch.split(units, _UNITS)]).T
        self.last = (target, tensor)
        return self.last[1]

    def place(self, name: str, shape: Sequence[int]) -> _Place | None:
        """None: not where it is looked for, or in another form."""
        if is_adapter([name]):
            return self.adapter_place(name, shape)
        target, part = self.target(name)
        if target not in self.own or any(word in target for word in _REARRANGED):
            return None
        self.claimed.add(target)
        module = self.modules[target.rpartition(".")[0]]
        kinds = {kind.__name__ for kind in type(module).__mro__}
        size, rank = getattr(module, "tp_size", 1), getattr(module, "tp_rank", 0)
        by_columns = "RowParallelLinear" in kinds and len(shape) == 2
        held = self.effective(target, shape[-1] // size if by_columns else shape[-1])
        if held.dim() != len(shape):
            return None
        if "VocabParallelEmbedding" in kinds:
            rows = module.shard_indices
            return _Place(held[: rows.num_org_elements], rows.org_vocab_start_index, 0, True, size > 1)
        if by_columns:
            return _Place(held, rank * held.shape[1], 1, True, size > 1)
        replicas = 1
        if part is not None:
            number = _PARTS.get(part) if isinstance(part, str) else part
            if not isinstance(number, int):
                return None
            sizes = [rows // size for rows in module.output_sizes]
            held = held[sum(sizes[:number]) : sum(sizes[: number + 1])]
            if "QKVParallelLinear" in kinds and number:
                replicas = module.num_kv_head_replicas
        elif size > 1 and hasattr(module, "output_sizes"):
            return None  # whole in the checkpoint, and its parts sharded one by one
        if "ColumnParallelLinear" in kinds:
            return _Place(held, rank // replicas * held.shape[0], 0, rank % replicas == 0, size > 1)
        return _Place(held, 0, 0, rank == 0, False)

    def adapter_place(self, name: str, shape: Sequence[int]) -> _Place | None:
        """As ``place``, of A or B of the one adapter that vLLM applies."""
        layer, _, kind = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        target, part = self.target(f"{layer}.weight")
        wrapper = self.adapted.get(target.removesuffix(".weight"))
        if wrapper is None or getattr(wrapper, "tp_size", 1) > 1:
            return None
        stacked = wrapper.lora_a_stacked if kind == "lora_A" else wrapper.lora_b_stacked
        number = _PARTS.get(part, 0) if isinstance(part, str) else part or 0
        if number >= len(stacked):
            return None
        return _Place(stacked[number][0, 0, : shape[0], : shape[1]], 0, 0, True, False)


@torch.no_grad()
def weight_sums(model: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return the checksums of one worker's weights.

    Args:
        model: vLLM's.
        shapes: Of the published tensors, by their names in the checkpoint.

    Returns:
        ``sums``: (type, this worker's share of the checksum) by name; ``unread``: names that could not be read;
        ``strange``: vLLM tensors for which nothing was published; ``stale``: those that share a published
        tensor's memory and do not compute with it. To be read by :func:`together`.
    """
    reader, sums, unread = _Reader(model), {}, []
    for name, shape in shapes.items():
        place = reader.place(name, shape)
        share = None if place is None else _share(place, shape)
        if place is None or share is None:
            unread.append(name)
        else:
            sums[name] = (dtype_name(place.held.dtype), share)
    stale, strange = [], []
    published = {id(reader.own[name]): name for name in reader.claimed}
    for name, tensor in reader.own.items():
        if name in reader.claimed:
            continue
        if id(tensor) not in published:
            strange.append(name)
        elif not torch.equal(reader.effective(name, tensor.shape[-1]), tensor):
            stale.append(name)
    return {"sums": sums, "unread": unread, "strange": strange, "stale": stale}


def _share(place: _Place, shape: Sequence[int]) -> int | None:
    """Return this worker's share of the whole tensor's checksum; None if the shapes do not fit, or a value is not
    finite."""
    held, axis = place.held, place.axis
    if any(have != want for n, (have, want) in enumerate(zip(held.shape, shape, strict=True)) if n != axis):
        return None
    end = place.start + held.shape[axis]
    if end > shape[axis] or (end < shape[axis] and not place.sharded) or not torch.isfinite(held).all():
        return None
    if not place.counted:
        return 0
    if tuple(held.shape) == tuple(shape):
        return checksum(held)
    whole = torch.zeros(tuple(shape), dtype=held.dtype, device=held.device)  # zeros add nothing to a checksum
    whole.narrow(axis, place.start, held.shape[axis]).copy_(held)
    return checksum(whole)


def together(workers: Iterable[Mapping[str, Any]], engine: str) -> dict[str, TensorSum]:
    """Join the checksums of all workers to those of whole tensors.

    Args:
        workers: What :func:`weight_sums` returned in each.
        engine: Its name in messages.

    Raises:
        EngineError: vLLM's model has tensors that the published one has not, or derived something from old weights.
    """
    answers = list(workers)
    unread = {name for answer in answers for name in answer["unread"]}
    strange = sorted({name for answer in answers for name in answer["strange"]})
    stale = sorted({name for answer in answers for name in answer["stale"]})
    if stale:
        raise EngineError(
            f"{engine} took the new weights, and {', '.join(stale[:3])} still computes with old ones: what vLLM "
            "derived from a shared tensor was not made again. Use the vLLM that docs/engines.md names, with "
            "--worker-extension-cls where it is a server, or set another `rollout.engine`"
        )
    if strange and not unread:
        raise EngineError(
            f"the model of {engine} has {len(strange)} tensors for which nothing was published ({_few(strange)}): "
            "it is another model than the run's, with more layers or other parts, and these would stay as they are. "
            "Start it on the folder in `model.path`"
        )
    names = [name for name in (answers[0]["sums"] if answers else ()) if name not in unread]
    return {name: TensorSum(answers[0]["sums"][name][0], _signed(_add(answers, name))) for name in names}


def _add(answers: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(int(answer["sums"][name][1]) for answer in answers)


def _signed(number: int) -> int:
    return (number + _WRAP // 2) % _WRAP - _WRAP // 2


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
