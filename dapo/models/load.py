"""From a folder or hub name to a probed model: weights, tokenizer, end-of-sequence ids, packed or padded."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from dapo.errors import DapoError, ModelError, first_line, raise_for_machine
from dapo.models import attention
from dapo.models.adapter import CONFIG as ADAPTER_CONFIG
from dapo.models.adapter import TENSORS as ADAPTER_TENSORS
from dapo.models.adapter import add_adapter, merge_first
from dapo.models.loaded import LoadedModel
from dapo.models.positions import exact_positions
from dapo.models.probe import probe, unseen_threshold
from dapo.models.quiet import quiet_transformers
from dapo.models.recompute import recompute
from dapo.models.routing import find_routing
from dapo.models.skeleton import model_without_weights
from dapo.models.slices import own_part
from dapo.models.tokenizer import load_tokenizer
from dapo.models.vocabulary import check_vocabulary, pad_token_of, stop_tokens_of
from dapo.system import NO_MPS

if TYPE_CHECKING:  # the schema needs pydantic, and a model without an adapter does not
    from dapo.config.schema import Lora

log = logging.getLogger(__name__)

Inside = Callable[[Callable[[], Any]], Any]
"""Runs a function where the parameters of a model that is cut over ranks can be used, and returns its result."""
Spread = Callable[[LoadedModel], Inside]
"""Cuts a model whose parameters have no memory over ranks, and reads its weights into the slices."""


def load_model(
    path: str | Path,
    *,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "auto",
    trust_remote_code: bool = False,
    attention_mode: Literal["auto", "packed", "padded"] = "auto",
    fp32_head: bool = False,
    activation_checkpointing: Literal["none", "full", "selective"] = "none",
    lora: Lora | None = None,
    seed: int = 0,
    spread: Spread | None = None,
) -> LoadedModel:
    """Load a causal language model and its tokenizer, and probe both.

    Args:
        path: Local Hugging Face folder, or a name on the model hub. Weights must be safetensors.
        dtype: Parameter type, as a torch type or its name.
        device: ``auto`` takes CUDA where there is any.
        trust_remote_code: Run Python code that comes with the model.
        attention_mode: ``packed`` and ``auto`` compare packed rows with the model's own attention; on a difference
            ``packed`` raises and ``auto`` falls back to padded rows, with the reason in ``LoadedModel.notes``.
        fp32_head: Compute logits in float32 from bfloat16 hidden states.
        activation_checkpointing: Recompute activations in the backward pass: all, or what is not a matrix product or
            attention.
        lora: With a rank: freeze the model and train an adapter of these settings.
        seed: Of the adapter's random start.
        spread: Cuts the model over ranks; it is then made without weights, which ``spread`` reads.

    Raises:
        ModelError: The folder, the weights or the tokenizer cannot be used; the message names the next move.
    """
    name = str(path)
    if isinstance(dtype, str):
        dtype = torch_dtype(dtype)
    target = find_device(device)
    check_files(name)
    notes: list[str] = []
    tokenizer = load_tokenizer(name, trust_remote_code, notes)
    if spread is None:
        model = _to_device(name, whole_model(name, dtype, trust_remote_code), target)
    else:
        model = _float32(model_without_weights(name, dtype, trust_remote_code))
    check_vocabulary(name, model, tokenizer)
    loaded = _unprobed(name, model, tokenizer, device=target, dtype=dtype, fp32_head=fp32_head)
    if not loaded.stop_token_ids:
        notes.append("no end-of-sequence token is known; set rollout.stop_token_ids, or every response is truncated")
    _quiet(model, activation_checkpointing)
    inside = _as_it_is if spread is None else spread(loaded)
    _check_finite(name, model)
    loaded.packed = _choose_attention(loaded, attention_mode, notes, inside)
    if lora is not None and lora.rank is not None:
        add_adapter(model, lora, name=name, seed=seed)
        loaded.adapter = True
    notes += _not_seen(loaded)
    loaded.notes = tuple(notes)
    for note in notes:
        log.warning("%s: %s", name, note)
    return loaded


def load_structure(name: str, dtype: torch.dtype, tokenizer: Any, *, trust_remote_code: bool = False) -> LoadedModel:
    """Return a model of a folder or hub name whose tensors are all on the meta device: shapes without numbers.

    Raises:
        ModelError: its configuration cannot be used.
    """
    model = model_without_weights(name, dtype, trust_remote_code).to("meta")
    return _unprobed(name, model, tokenizer, device=torch.device("meta"), dtype=dtype, fp32_head=False)


def _not_seen(loaded: LoadedModel) -> Iterator[str]:
    """Yield what the probe could not compare."""
    if (unseen := unseen_threshold(loaded)) is not None:
        yield (
            f"the model's attention changes beyond {unseen} tokens; sequences that long were not compared with its own "
            "attention, which would take too long here"
        )
    yield from notes_on_cuda(loaded)


def _unprobed(
    name: str, model: Any, tokenizer: Any, *, device: torch.device, dtype: torch.dtype, fp32_head: bool
) -> LoadedModel:
    """With all that configuration and tokenizer say; whether rows can be packed is not known yet."""
    stops = stop_tokens_of(model, tokenizer)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        stop_token_ids=stops,
        pad_token_id=pad_token_of(model, tokenizer, stops),
        device=device,
        dtype=dtype,
        packed=False,
        fp32_head=fp32_head,
        name=name,
        fingerprint=fingerprint_of(model, dtype),
        exact_positions=exact_positions(model),
        routing=find_routing(model),
    )


def torch_dtype(name: str) -> torch.dtype:
    """``bfloat16`` -> ``torch.bfloat16``; ModelError for what is no floating-point type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ModelError(f"model.dtype is {name!r}; use float32 or bfloat16")
    return dtype


def find_device(device: torch.device | str) -> torch.device:
    """Return the device of the model; ``auto`` is CUDA where there is any.

    Raises:
        ModelError: no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"model.device is {device!r}, which torch does not know; use auto, cpu or cuda") from error
    if target.type == "mps":
        seen = "torch sees one here" if torch.backends.mps.is_available() else "torch sees none here"
        raise ModelError(f"model.device is {device!r}, Apple's GPU ({seen}); {NO_MPS}")
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("model.device is 'cuda', but torch sees no CUDA device here; set model.device=cpu or auto")
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"model.device is {device!r}, but torch sees {torch.cuda.device_count()} CUDA devices here")
    return target


def check_files(name: str) -> None:
    """Refuse a local folder that cannot be loaded, before any heavy work. Hub names are checked by loading.

    Raises:
        ModelError: what is missing or of the wrong kind, and what to do.
    """
    check_configuration(name)
    if missing := missing_weights(name):
        raise ModelError(missing)


def missing_weights(name: str) -> str | None:
    """Return why a local folder has no weights that can be loaded; None if it has some, or if it is a hub name."""
    folder = Path(name).expanduser()
    try:
        files = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else None
    except OSError:  # ``check_configuration`` says why
        files = None
    if files is None:
        return None
    if any(file.endswith(".safetensors") and file != ADAPTER_TENSORS for file in files):
        return None
    if ADAPTER_CONFIG in files:
        return f"model.path {name!r} holds no weights but an adapter{merge_first(folder)}"
    pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth"))]
    if pickled:
        return (
            f"model.path {name!r} holds pickled weights ({', '.join(pickled[:3])}), which can run code when read; "
            "only safetensors are loaded: convert once with model.save_pretrained(folder) where you trust the file"
        )
    return f"model.path {name!r} has no *.safetensors file; expected model.safetensors or its shards"


def check_configuration(name: str) -> None:
    """Refuse a local folder that is none, cannot be read, or has no configuration; its weights are not looked at.

    Raises:
        ModelError: what is missing or of the wrong kind, and what to do.
    """
    folder = Path(name).expanduser()
    try:
        _check_configuration(name, folder)
    except (OSError, ValueError) as error:  # no right to read it; a name that no file can have
        if isinstance(error, DapoError):
            raise
        raise ModelError(
            f"model.path {name!r} cannot be read ({first_line(error)}); give a folder that this user may read, with "
            "config.json and *.safetensors"
        ) from error


def _check_configuration(name: str, folder: Path) -> None:
    if not folder.exists():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelError(
                f"model.path {name!r} is not a folder here; check the path (hub names look like owner/name)"
            )
        return
    if not folder.is_dir():
        raise ModelError(
            f"model.path {name!r} is a file; give the folder that holds config.json and *.safetensors, or a GGUF file"
        )
    unreadable = sorted(file.name for file in folder.iterdir() if not (file.is_file() or file.is_dir()))
    if unreadable:
        raise ModelError(
            f"model.path {name!r}: {unreadable[0]} is no regular file but a pipe, device, socket or broken link; "
            "fetch the model again"
        )
    files = {file.name for file in folder.iterdir()}
    if "config.json" not in files:
        expected = f"has no config.json; expected a Hugging Face folder, found {sorted(files)[:8]}"
        raise ModelError(f"model.path {name!r} {_other_kind(name, files) or expected}")


def _other_kind(name: str, files: set[str]) -> str | None:
    """Return what a folder without a model's configuration holds instead, and the next move; None: nothing known."""
    if ADAPTER_CONFIG in files:
        return f"holds nothing but an adapter{merge_first(Path(name).expanduser())}"
    if found := sorted(file for file in files if file.endswith(".gguf")):
        return f"holds {len(found)} GGUF files; name one: model.path={Path(name) / found[0]}"
    return None


def whole_model(name: str, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Return the model with its weights, in the processor's memory.

    Raises:
        ModelError: the folder or name cannot be loaded, or holds other tensors than its configuration names.
    """
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers():
            model, info = AutoModelForCausalLM.from_pretrained(
                name,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they come back in ``info`` and are refused below, by name
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and others for a bad folder
        raise_for_machine(error, f"loading {name!r}")
        raise ModelError(
            f"model.path {name!r} cannot be loaded as a causal language model: {first_line(error)}; "
            "expected a folder or hub name with config.json and safetensors"
            + ("" if trust_remote_code else " (model.trust_remote_code=true runs code that comes with a model)")
        ) from error
    _check_tensors(name, model, info)
    return model


# Constants that old checkpoints hold and newer code computes: they carry nothing that was learned.
_CONSTANTS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
              "position_ids")  # fmt: skip


def _check_tensors(name: str, model: Any, info: dict[str, Any]) -> None:
    """Refuse a checkpoint whose tensors are not those of the architecture that config.json describes."""
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info.get("mismatched_keys", ()))
    if missing:
        raise ModelError(
            f"model.path {name!r} lacks {len(missing)} weights of its architecture, or has them in another shape "
            f"({', '.join(missing[:3])}...); they would be random: use a complete checkpoint"
        )
    unexpected = sorted(key for key in info["unexpected_keys"] if not is_constant(key))
    if unexpected:
        raise ModelError(
            f"model.path {name!r} holds {len(unexpected)} tensors for which {type(model).__name__} has no place as "
            f"config.json describes it ({', '.join(unexpected[:3])}{', ...' if len(unexpected) > 3 else ''}); it would "
            "be trained without them. Fix config.json (say num_hidden_layers) if they belong to the model, or save it "
            "without them (model.save_pretrained)"
        )


def is_constant(tensor: str) -> bool:
    """Whether a checkpoint's tensor of that name carries nothing that was learned."""
    return tensor.endswith(_CONSTANTS)


def _as_it_is(work: Callable[[], Any]) -> Any:
    return work()


def _check_finite(name: str, model: Any) -> None:
    """Refuse weights that hold NaN or infinity, of which a probe or a short run need not meet any.

    Raises:
        ModelError: names the first such tensor.
    """
    for where, parameter in model.named_parameters():
        numbers = own_part(parameter.detach())
        if not numbers.sum(dtype=torch.float32).isfinite() and not (fine := numbers.isfinite()).all():
            raise ModelError(
                f"model.path {name!r}: {int((~fine).sum()):,} of {fine.numel():,} numbers of {where} are NaN or "
                "infinite: the weights are damaged, or a training before went wrong; take an earlier checkpoint, or "
                "fetch the model again"
            )


def _float32(model: Any) -> Any:
    """Parameters without memory as float32 at least: what ranks hold slices of, and cast when they gather it."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.to(torch.float32)
    return model


def _to_device(name: str, model: Any, device: torch.device) -> Any:
    try:
        return model.to(device)
    except Exception as error:
        raise_for_machine(error, f"putting {name!r} on {device}")
        raise


def fingerprint_of(model: Any, dtype: torch.dtype) -> dict[str, Any]:
    """JSON-able identity of the architecture, compared when a checkpoint is loaded."""
    config = model.config.get_text_config()
    fields = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
    )
    return {
        "architecture": type(model).__name__,
        **{field: getattr(config, field, None) for field in fields},
        "vocabulary": model.get_input_embeddings().weight.shape[0],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "dtype": str(dtype).removeprefix("torch."),
    }


_RANDOM = re.compile("drop|jitter")  # dropout, attention_dropout, layerdrop, drop_prob, router_jitter_noise


def _quiet(model: Any, checkpointing: Literal["none", "full", "selective"]) -> None:
    """Dropout, layer drop and router jitter off for good: the sampler, with which the ratio compares, has none.

    Numbers on the modules are what functional dropout reads (``F.dropout(x, p=self.dropout)``: OPT, BioGPT, XGLM), in
    training mode, which activation checkpointing needs. The config stays as it is, for the export.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and _RANDOM.search(name):
                setattr(module, name, 0.0)
    model.eval()
    if checkpointing != "none":
        _group_experts(model)
        recompute(model, selective=checkpointing == "selective")


def _group_experts(model: Any) -> None:
    """Compute experts together: one by one, what is kept for the backward pass depends on which of them have tokens.

    The grouped product knows no float64, which only tests have.
    """
    one_by_one = getattr(model.config, "_experts_implementation", None) == "eager"
    if one_by_one and model.get_input_embeddings().weight.dtype != torch.float64:
        with suppress(ValueError):  # an architecture without experts, or with one way only
            model.set_experts_implementation("grouped_mm")


def _choose_attention(loaded: LoadedModel, mode: str, notes: list[str], inside: Inside) -> bool:
    """Probe packed rows unless told to pad; leaves the model set to the attention that is chosen."""
    if mode != "padded":
        attention.register()
        loaded.packed = True
        reason = inside(lambda: _probe(loaded))
        if reason is None:
            loaded.model.set_attn_implementation(attention.NAME)
            return True
        if loaded.unit is not None:
            raise ModelError(
                f"learner.context_parallel = {loaded.unit.size} cuts packed rows, and {loaded.name} {reason}; set "
                "learner.context_parallel=1"
            )
        if mode == "packed":
            raise ModelError(f"model.attention is 'packed', but {loaded.name} {reason}; use auto or padded")
        notes.append(f"packed rows are not used: it {reason}; rows are padded, which is slower")
        loaded.packed = False
    reason = inside(lambda: _probe(loaded))
    if reason is not None:
        noise = ", or has noise in training mode: model.activation_checkpointing=none does without that mode"
        raise ModelError(
            f"{loaded.name} {reason}, even with padded rows and its own attention: "
            f"{type(loaded.model).__name__} treats logits or padding in a way this trainer does not know"
            f"{noise if loaded.model.training else ''}"
        )
    return False


def _probe(loaded: LoadedModel) -> str | None:
    try:
        return probe(loaded)
    except DapoError:
        raise
    except Exception as error:  # whatever a model's own code raises
        raise_for_machine(error, f"a forward pass of {loaded.name}")
        dtype = str(loaded.dtype).removeprefix("torch.")
        raise ModelError(
            f"a forward pass of {loaded.name} with its own attention fails "
            f"({type(error).__name__}: {first_line(error)}); check that config.json describes the weights, "
            f"and that {type(loaded.model).__name__} runs as {dtype} on {loaded.device}"
        ) from error


def notes_on_cuda(loaded: LoadedModel) -> list[str]:
    """In sentences; [] on a CPU, and for what the kernel computes: windows, grouped heads and shared prompts."""
    if loaded.device.type != "cuda":
        return []
    if loaded.dtype == torch.float32:
        return _of_float32()
    reason = _without_kernel(loaded.model.config.get_text_config()) if loaded.packed else None
    if reason is None:
        return []
    return [
        f"the variable-length attention kernel of CUDA knows no {reason}: packed rows are computed one by one, with "
        "all their scores in memory; model.activation_checkpointing=full and a smaller learner.microbatch_tokens "
        "bound it"
    ]


def _of_float32() -> list[str]:
    notes = [
        "a float32 model has no variable-length attention kernel on CUDA: its rows are computed one by one, and matrix "
        "products without tensor cores. model.dtype=bfloat16 is many times faster"
    ]
    if torch.get_float32_matmul_precision() != "highest":
        notes.append(
            f"model.matmul_precision: {torch.get_float32_matmul_precision()} is TF32 on CUDA: the engine's "
            "log-probabilities differ from the learner's by some 0.002 to 0.004 nats in the mean (at highest: 1e-7). "
            "algorithm.old_logprobs=learner has the gap corrected"
        )
    return notes


def _without_kernel(config: Any) -> str | None:
    """Return the feature of the model's attention that the kernel lacks."""
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "soft cap of scores"
    values, keys = getattr(config, "v_head_dim", None), getattr(config, "qk_head_dim", None)
    return "values of another size than keys" if values is not None and keys not in (None, values) else None
