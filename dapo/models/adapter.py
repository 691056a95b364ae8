"""LoRA adapters (arXiv 2106.09685) through PEFT: injected into a loaded model, merged for engines, saved alone.

A linear layer with weight W [out, in] becomes W + s B A, with A [rank, in] random, B [out, rank] zero, and s = alpha /
rank (rsLoRA, arXiv 2312.03732: alpha / sqrt(rank)). W is frozen. The learner computes W x + s B (A x); code that copies
weights gets the merged W + s B A, rounded once to the model's type.

PEFT's modules are recognized by their attributes, so that a model without an adapter needs no PEFT.

Of a model that is cut over ranks every tensor is a slice, A and B among them. A layer is then merged from the whole A
and B, which are small and gathered one layer at a time, into each rank's rows of W: to the bit what one process merges.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from dapo.errors import ModelError
from dapo.models.checksum import checksum
from dapo.models.slices import own_part, own_slice

if TYPE_CHECKING:  # the schema needs pydantic, and a model without an adapter does not
    from dapo.config.schema import Lora

NAME = "default"  # PEFT's, of a model's only adapter
TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"  # as PEFT names them
PREFIX = "base_model.model."  # before a tensor's name in PEFT's files
_PARTS = ("lora_A", "lora_B", "original_module")
_BASE, _SAVED, _ORIGINAL = ".base_layer.", f".modules_to_save.{NAME}.", ".original_module."


def add_adapter(model: Any, lora: Lora, *, name: str, seed: int) -> dict[str, Tensor]:
    """Freeze ``model`` and inject an adapter, in place; what it computes stays the same, since B is zero.

    Args:
        model: transformers' causal language model.
        lora: The recipe's ``model.lora``, with a rank.
        name: Of the model, for errors and the adapter's configuration.
        seed: Of A. The process's global generator is left as it was.

    Returns:
        What A and B begin with, by parameter name, in float32 in the processor's memory: of a model whose parameters
        are on the meta device they are nowhere else.

    Raises:
        ModelError: a target that is no linear layer. Names that the model lacks are refused by ``run.fits`` before.
    """
    from peft import inject_adapter_in_model

    with torch.random.fork_rng(devices=[]), _as_drawn() as drawn:
        torch.manual_seed(seed % 2**63)
        inject_adapter_in_model(_config(lora, name), model, NAME)
    found = list(_lora_layers(model))
    other = [where for where, layer in found if not isinstance(layer.get_base_layer(), nn.Linear)]
    if other or not found:
        raise ModelError(
            f"model.lora.target_modules names {other[0] if other else 'nothing'} of {name}, and adapters are for "
            "linear layers: leave the setting out for all of them"
        )
    start = {}
    for where, layer in found:
        for kind, part in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            part.to(layer.get_base_layer().weight.dtype)
            start[f"{where}.{kind}.{NAME}.weight"] = drawn[part[NAME]]
    return start


@contextmanager
def _as_drawn() -> Iterator[dict[nn.Module, Tensor]]:
    """Collect the weight of each module made meanwhile, as it was drawn: PEFT moves it to the model's device."""
    drawn: dict[nn.Module, Tensor] = {}

    def noted(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if name == "weight" and parameter is not None:
            drawn.setdefault(module, parameter.data)

    hook = register_module_parameter_registration_hook(noted)
    try:
        yield drawn
    finally:
        hook.remove()


@torch.no_grad()
def begin_adapter(model: nn.Module, start: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Begin an adapter whose model got its memory and frozen weights later. A and B come from ``start``, modules that
    are trained whole from their originals; all are rounded to ``dtype``, as in one process."""
    parameters = dict(model.named_parameters())
    for name, whole in start.items():
        own_part(parameters[name]).copy_(own_slice(whole, parameters[name]).to(dtype))
    for name, parameter in parameters.items():
        if _SAVED in name:
            own_part(parameter).copy_(own_part(parameters[name.replace(_SAVED, _ORIGINAL)]))


def merge_first(folder: Path) -> str:
    """Return the end of a sentence about a folder with an adapter and no model: which model it belongs to, and how to
    merge them."""
    try:
        said = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        said = None
    belongs = f" of {said}" if said else ""
    return (
        f"{belongs}: merge it first (AutoPeftModelForCausalLM.from_pretrained({str(folder)!r}).merge_and_unload()"
        ".save_pretrained('merged') of the package peft, and the tokenizer's files into the same folder), then "
        "model.path=merged; of a run of dapo's `dapo export RUN merged` does it"
    )


def weight_of(module: Any) -> Tensor:
    """Return the weight that a layer multiplies with: its own, or W + s B A [the layout of W] with an adapter."""
    if not _is_lora(module):
        weight: Tensor = module.weight
        return weight
    return _merged(module.get_base_layer().weight, module)


def active(module: Any) -> Any:
    """Return the copy that computes of a module trained whole: the trained one, or the original while the adapter is
    off. Any other module is returned as it is."""
    if not _is_saved(module):
        return module
    return module.original_module if module._disable_adapters else module.modules_to_save[NAME]


def published(model: nn.Module, *, aliases: bool = False) -> Published:
    """Parameters and persistent buffers under their names in the checkpoint, merged one by one as they are asked for.

    Args:
        model: with or without an adapter.
        aliases: name a tied tensor under each of its names; else under the first.
    """
    return Published(_entries(model, aliases=aliases))


def _entries(model: nn.Module, *, aliases: bool = False) -> dict[str, tuple[Tensor, Any]]:
    """By its published name each tensor, and the layer whose adapter is merged into it."""
    tensors = model.state_dict(keep_vars=True)
    layers = dict(_lora_layers(model)) if any(_BASE in name for name in tensors) else {}
    found: dict[str, tuple[Tensor, Any]] = {}
    seen: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if any(part in name.split(".") for part in _PARTS) or (id(tensor) in seen and not aliases):
            continue
        detached = seen.setdefault(id(tensor), tensor.detach())
        owner, _, last = name.rpartition(_BASE)
        layer = layers.get(owner) if last == "weight" else None
        found[_name(name)] = (detached, layer)
    return found


def _name(name: str) -> str:
    """Return a tensor's name in the checkpoint, without PEFT's additions."""
    return name.replace(_BASE, ".").replace(_SAVED, ".")


def base_name(name: str) -> str | None:
    """Return the name of a frozen tensor or buffer in the model's own files; None if it belongs to the adapter, or to a
    module's trained copy."""
    if any(part in name.split(".") for part in ("lora_A", "lora_B")) or _SAVED in name:
        return None
    return name.replace(_BASE, ".").replace(_ORIGINAL, ".")


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter by its name in the checkpoint; an adapter's are left out."""
    parameters = {_name(name) for name, _ in model.named_parameters()}
    return {name: tuple(found.shape) for name, (found, _) in _entries(model).items() if name in parameters}


def linear_layers(model: Any) -> tuple[str, ...]:
    """Return the names of the layers that can get an adapter: every linear one but the output head."""
    head = model.get_output_embeddings()
    names = {where: _name(f"{where}.weight").removesuffix(".weight") for where, _ in model.named_modules()}
    heads = {names[where] for where, module in model.named_modules() if module is head}
    found = {
        names[where]: None
        for where, module in model.named_modules()
        if isinstance(module, nn.Linear) and not any(part in where.split(".") for part in _PARTS)
    }
    return tuple(name for name in found if name not in heads)


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained tensors, under PEFT's names in ``adapter_model.safetensors``."""
    trained = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {file_name(name): tensor for name, tensor in trained.items()}


def adapter_parts(model: nn.Module) -> dict[str, Tensor]:
    """Return A and s B of each layer, in the type of its W, under PEFT's names: what an engine computes B (A x) from.

    The scale s is in B, so an engine needs no other number of the adapter. Slices stay slices.
    """
    found = {}
    for where, layer in _lora_layers(model):
        low = layer.get_base_layer().weight.dtype
        a, b = (part[NAME].weight.detach().to(low) for part in (layer.lora_A, layer.lora_B))
        scale = layer.scaling[NAME]
        found[f"{PREFIX}{where}.lora_A.weight"] = a
        found[f"{PREFIX}{where}.lora_B.weight"] = b if scale == 1 else (b.to(torch.float32) * scale).to(low)
    return found


def is_adapter(names: Sequence[str]) -> bool:
    """Return whether published tensors of these names are ``adapter_parts``, and not the model's weights."""
    return bool(names) and names[0].startswith(PREFIX)


def apart(model: nn.Module) -> Published:
    """Return the frozen weights as they are, each under every name, and ``adapter_parts``."""
    frozen = {name: (tensor, None) for name, (tensor, _) in _entries(model, aliases=True).items()}
    return Published(frozen | {name: (tensor, None) for name, tensor in adapter_parts(model).items()})


def write_adapter_parts(folder: Path, parts: Mapping[str, Tensor]) -> None:
    """Write what ``adapter_parts`` gave, whole, as a folder that PEFT and vLLM read."""
    rank = next(len(tensor) for name, tensor in parts.items() if name.endswith(".lora_A.weight"))
    layers = sorted({name.split(".")[-3] for name in parts})
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": layers, "bias": "none"}
    save_file({name: tensor.contiguous().cpu() for name, tensor in parts.items()}, folder / TENSORS)
    (folder / CONFIG).write_text(json.dumps(settings))


def file_name(parameter: str) -> str:
    """PEFT's name in its files for a parameter that is trained."""
    return PREFIX + parameter.replace(f".{NAME}.", ".").replace(".modules_to_save.", ".")


def adapter_config(model: nn.Module) -> str:
    """``adapter_config.json``, as PEFT reads it."""
    settings = getattr(model, "peft_config")[NAME].to_dict()  # noqa: B009 - PEFT puts it there
    settings["inference_mode"] = True
    return json.dumps(_plain(settings), indent=1, sort_keys=True)


def base_sums(model: nn.Module) -> dict[str, int]:
    """Checksums of the first and the last frozen weight that has an adapter: was it trained on this very model?"""
    layers = list(_lora_layers(model))
    return {name: checksum(_gathered(layer.get_base_layer().weight)) for name, layer in (layers[0], layers[-1])}


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Switch the adapter off, for passes without a gradient.

    By PEFT's own flag: its ``enable_adapters`` changes ``requires_grad`` as well, which sharded parameters keep.
    """
    parts: list[Any] = [module for module in model.modules() if _is_lora(module) or _is_saved(module)]
    for part in parts:
        part._disable_adapters = True
    try:
        yield
    finally:
        for part in parts:
            part._disable_adapters = False


def merge_error(model: nn.Module) -> float:
    """Return |round(W + D) - (W + D)| / |D| over all layers, with D = s B A and Frobenius norms; 0 where D is 0. This
    share of the adapter is lost when it is merged into weights of the model's type."""
    return relative(*merge_squares(model))


def relative(lost: float, whole: float) -> float:
    """sqrt(lost / whole) of the two sums of squares of ``merge_squares``, those of all ranks added up."""
    return math.sqrt(lost / whole) if whole else 0.0


@torch.no_grad()
def merge_squares(model: nn.Module) -> tuple[float, float]:
    """|round(W + D) - (W + D)|^2 and |D|^2 over the rows of all layers that lie here."""
    lost = whole = 0.0
    for _, layer in _lora_layers(model):
        weight = layer.get_base_layer().weight
        base, delta = own_part(weight), own_slice(_delta(layer), weight)
        exact = base.to(torch.float64) + delta
        lost += float((exact.to(base.dtype) - exact).square().sum())
        whole += float(delta.to(torch.float64).square().sum())
    return lost, whole


def adapter_parameters(shapes: Mapping[str, tuple[int, ...]], lora: Lora) -> int:
    """Numbers that are trained, from the shapes of a model's parameters alone (see ``dapo.types.model``)."""
    return sum(map(math.prod, adapter_shapes(shapes, lora)))


def adapter_shapes(shapes: Mapping[str, tuple[int, ...]], lora: Lora) -> Iterator[tuple[int, ...]]:
    """Yield the shape of each tensor that is trained."""
    if lora.rank is None:
        return
    for name, shape in shapes.items():
        layer, _, last = name.rpartition(".")
        if last == "weight" and len(shape) == 2 and is_target(layer, lora):
            yield from ((lora.rank, shape[1]), (shape[0], lora.rank))
        elif any(part in lora.modules_to_save for part in layer.split(".")):
            yield shape


def is_target(layer: str, lora: Lora) -> bool:
    """Whether the linear layer of that name gets an adapter; of ``all-linear`` all but embedding and output head."""
    if lora.target_modules == "all-linear":
        return not layer.endswith(_ENDS)
    return any(layer == target or layer.endswith(f".{target}") for target in lora.target_modules)


_ENDS = ("embed_tokens", "wte", "wpe", "embed_in", "embed_positions", "lm_head", "embed_out", "word_embeddings")


@dataclass(frozen=True, slots=True)
class Published(Mapping[str, Tensor]):
    """Tensors by name; a merged one is made when it is asked for, and not kept."""

    entries: dict[str, tuple[Tensor, Any]]  # the tensor, and the layer whose adapter is merged into it

    def __getitem__(self, name: str) -> Tensor:
        tensor, layer = self.entries[name]
        return tensor if layer is None else _merged(tensor, layer)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def like(self, name: str) -> Tensor:
        """Return a tensor of the same type, shape and device, without merging anything."""
        return self.entries[name][0]

    def same(self, name: str) -> tuple[int, int]:
        """Equal for names of one tensor (``aliases``)."""
        tensor, layer = self.entries[name]
        return id(tensor), id(layer)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@torch.no_grad()
def _merged(weight: Tensor, layer: Any) -> Tensor:
    """Return W + s B A, summed in float32 at least and rounded once. If W is cut over ranks, so is the result, and all
    ranks have to call together."""
    delta = own_slice(_delta(layer), weight)
    merged = (own_part(weight).to(delta.dtype) + delta).to(weight.dtype)
    if not isinstance(weight, DTensor):
        return merged
    return DTensor.from_local(
        merged, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )


@torch.no_grad()
def _delta(layer: Any) -> Tensor:
    """s B A [out, in], whole on every rank. A and B as they compute, in W's type: slices of theirs are wider.

    The product is not made of slices: a matrix product of fewer rows may round otherwise.
    """
    parts = (_gathered(part[NAME].weight) for part in (layer.lora_A, layer.lora_B))
    low = layer.get_base_layer().weight.dtype
    wide = torch.promote_types(low, torch.float32)
    a, b = (part.to(low).to(wide) for part in parts)
    delta: Tensor = (b @ a) * layer.scaling[NAME]
    return delta


def _gathered(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def _lora_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if _is_lora(module))


def _is_lora(module: Any) -> bool:
    return isinstance(getattr(module, "lora_A", None), nn.ModuleDict)


def _is_saved(module: Any) -> bool:
    return isinstance(getattr(module, "modules_to_save", None), nn.ModuleDict)


def _config(lora: Lora, name: str) -> Any:
    from peft import LoraConfig

    assert lora.rank is not None
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.rank if lora.lora_alpha is None else lora.lora_alpha,  # type: ignore[arg-type]
        target_modules=lora.target_modules,
        modules_to_save=lora.modules_to_save or None,
        use_rslora=lora.use_rslora,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=name,
    )


def _plain(value: Any) -> Any:
    """JSON-able, sets in order."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | list | tuple):
        items = [_plain(item) for item in value]
        return sorted(items) if isinstance(value, set) else items
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def scaling_settings(config: str) -> dict[str, Any]:
    """Return the settings that an adapter's tensors lack: rank, alpha and kind of scaling, from the text of its
    configuration."""
    settings = json.loads(config)
    return {key: settings.get(key) for key in ("r", "lora_alpha", "use_rslora")}
