"""Weights of a Hugging Face folder, read into a model that is there already: into each rank's slices and no further.

The model was made without weights (``dapo.models.skeleton``) and cut over ranks before; no rank ever holds all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dapo.errors import ModelError, first_line, raise_for_machine
from dapo.models.adapter import base_name
from dapo.models.checksum import same_bits
from dapo.models.file_names import Stack, stacks_of
from dapo.models.head import LOW
from dapo.models.load import is_constant, whole_model
from dapo.models.skeleton import model_without_weights
from dapo.models.slices import own_part, own_slice
from dapo.models.weight_files import opened

log = logging.getLogger(__name__)


def give_memory(model: nn.Module, device: torch.device) -> None:
    """Parameters on the meta device get memory on ``device``; every buffer keeps what it holds.

    ``to_empty`` empties buffers as well, and the rotations' frequencies are in no file to be read again.
    """
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])


def read_weights_of(name: str, model: Any, dtype: torch.dtype, *, trust_remote_code: bool) -> None:
    """Parameters and persistent buffers of ``model`` from the folder or hub name ``name``.

    Parameters are as the files hold them: ranks keep them in float32, and compute in ``dtype``. Buffers are rounded to
    ``dtype``, as in one process.

    A rank reads its own slices, also of experts that the files hold one by one. Only where files differ from the model
    by more than names and stacking, transformers has to translate: each rank reads the whole model once, into the
    processor's memory.

    Raises:
        ModelError: a tensor is missing, has another shape, or has no place in the model.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    folder = _local_folder(name)
    there: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    sizes = {one: tuple(found.size) for one, found in there.items()}
    aliases = _aliases(model)
    sources = _sources(model, aliases, sizes)
    if sources is None:
        log.warning("%s names its weights otherwise than its architecture: each rank reads all of them once", name)
        kept = torch.float32 if _in_float32(folder) else dtype
        whole = dict(whole_model(name, kept, trust_remote_code).state_dict())
        for names, tensor in aliases:
            own_part(tensor).copy_(own_slice(whole[names[0]], tensor))
        _round_buffers(model, dtype)
        return
    unequal = [
        names[0]
        for (names, tensor), source in zip(aliases, sources, strict=True)
        if (source.shape(sizes) if isinstance(source, Stack) else sizes[source]) != tuple(tensor.shape)
    ]
    if unequal:
        raise ModelError(
            f"model.path {name!r}: {len(unequal)} weights have another shape than config.json says "
            f"({', '.join(unequal[:3])}): use a complete checkpoint"
        )
    pairs = [(source, tensor) for source, (_, tensor) in zip(sources, aliases, strict=True)]
    try:
        plain = {source: tensor for source, tensor in pairs if isinstance(source, str)}
        load(plain, storage_reader=HuggingFaceStorageReader(str(folder)))
        with opened(sorted(folder.glob("*.safetensors"))) as places:
            files = {one: found[0] for one, found in places.items()}
            for source, tensor in pairs:
                if isinstance(source, Stack):
                    source.read(tensor, files)
    except Exception as error:  # torch raises CheckpointException, OSError and others for a damaged file
        raise_for_machine(error, f"reading {name!r}")
        raise ModelError(f"model.path {name!r} cannot be read: {first_line(error)}; fetch it again") from error
    _round_buffers(model, dtype)


def float32_weights(name: str, model: Any, *, trust_remote_code: bool) -> dict[str, Tensor]:
    """Return the low-precision parameters of a model by name whose files hold float32: as they are there.

    AdamW's float32 copies begin with them. Copies of rounded numbers would lie in the middle between two roundings, and
    many small steps would pass before any weight that computes moves.

    Args:
        name: folder or hub name that the model was loaded from.
        model: transformers' model, whole.
        trust_remote_code: run Python code that comes with the model.

    Raises:
        ModelError: they cannot be read.
    """
    rounded = {one for one, parameter in model.named_parameters() if parameter.dtype in LOW}
    if not rounded or not (exact := _in_float32(folder := _local_folder(name))):
        return {}
    if exact <= model.state_dict().keys():
        with opened(sorted(folder.glob("*.safetensors"))) as places:
            return {one: places[one][0].get_tensor(one).float() for one in sorted(exact & rounded)}
    whole = whole_model(name, torch.float32, trust_remote_code)  # files name their weights otherwise
    return {one: parameter.detach() for one, parameter in whole.named_parameters() if one in rounded}


def _in_float32(folder: Path) -> set[str]:
    """Return the names of the tensors in a folder's files that bfloat16 would round."""
    with opened(sorted(folder.glob("*.safetensors"))) as places:
        kinds = {one: found[0].get_slice(one).get_dtype() for one, found in places.items()}
    return {one for one, kind in kinds.items() if kind in ("F32", "F64") and not is_constant(one)}


def _sources(
    model: Any, aliases: list[tuple[list[str], Tensor]], sizes: Mapping[str, tuple[int, ...]]
) -> list[str | Stack] | None:
    """Return where each tensor of the model is in the files; None: transformers has to say, or one is missing."""
    known = {alias for names, _ in aliases for alias in names}
    there: Mapping[str, str | Stack] | None = {one: one for one in sizes}
    if not {one for one in sizes if not is_constant(one)} <= known:
        there = stacks_of(model, [one for one in sizes if not is_constant(one)], known)
    if there is None or not set(there) <= known:
        return None
    chosen = [next((there[alias] for alias in names if alias in there), None) for names, _ in aliases]
    return [one for one in chosen if one is not None] if None not in chosen else None


def check_buffers(name: str, model: Any, dtype: torch.dtype, *, trust_remote_code: bool) -> None:
    """Check that buffers without values in the files are what the architecture computes.

    Raises:
        ModelError: one is not: it would rotate or mask wrongly, and the loss would only be a little worse.
    """
    fresh = dict(model_without_weights(name, dtype, trust_remote_code).named_buffers())
    read = model.state_dict(keep_vars=True)
    wrong = [
        one
        for one, buffer in model.named_buffers()
        if one not in read and (own := base_name(one)) and not same_bits(buffer.cpu(), fresh[own].cpu())
    ]
    if wrong:
        raise ModelError(
            f"{len(wrong)} buffers of {name!r} are not what {type(model).__name__} computes ({', '.join(wrong[:3])}): "
            "they were lost while the model was cut over ranks. This is a defect of the program; with learner.ranks=1 "
            "they are computed where they stay"
        )


def _aliases(model: Any) -> list[tuple[list[str], Tensor]]:
    """Each tensor that the files hold once, with all of its names there: a tied head has two."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if (own := base_name(name)) is not None:
            found.setdefault(id(tensor), ([], tensor.detach()))[0].append(own)
    return list(found.values())


@torch.no_grad()
def _round_buffers(model: Any, dtype: torch.dtype) -> None:
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, nn.Parameter) and base_name(name) is not None and tensor.is_floating_point():
            part = own_part(tensor)
            part.copy_(part.to(dtype))


def _local_folder(name: str) -> Path:
    """Return the folder itself, or the one with the hub's files of that name."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.safetensors.index.json"]))
