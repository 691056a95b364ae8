"""Loaded models that a program gives, saved as folders that a recipe names like any other.

A folder lies in ``RUN_DIR/.models`` under a name made of its content: workers, engines and a resume read it, and need
nothing of the program that gave the model.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dapo.errors import ModelError, RecipeError, raise_for_machine

FOLDER = ".models"
_ROWS = (2, 24)  # tokens on which a model and its saved copy are compared
_CLOSE = 1e-3  # nats in the mean, in float32: both run the same code on the same numbers
_CLOSE_LOW = 0.05
_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "num_beams",
    "max_new_tokens",
    "max_length",
)


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model that was given as an object."""

    path: Path
    dtype: str  # of its parameters
    notes: list[str]  # what of it has no effect, in sentences


def saved_model(model: Any, tokenizer: Any, folder: Path, *, trust_remote_code: bool = False) -> SavedModel:
    """Save a loaded model and its tokenizer, unless a folder with the same content is there.

    Args:
        model: a causal language model of transformers. Nothing keeps it afterwards.
        tokenizer: its tokenizer.
        folder: holds the folders of all such models.
        trust_remote_code: run Python code that comes with the model.

    Raises:
        RecipeError: they are something else, or the saved copy answers otherwise.
    """
    from dapo.models.cached import make_once
    from dapo.models.quiet import quiet_transformers

    _check_model(model)
    _check_tokenizer(tokenizer, model)
    plain = _untouched(tokenizer)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished, quiet_transformers():
        made = Path(unfinished)
        try:
            model.save_pretrained(made)
            plain.save_pretrained(made)
        except Exception as error:  # such as a generation_config that contradicts itself
            raise_for_machine(error, f"saving the loaded model under {folder}")
            raise RecipeError(
                f"model=... cannot be saved, as a run needs it: {' '.join(str(error).split())[:300]}"
            ) from error
        _check_saved_tokenizer(plain, made, trust_remote_code)
        _check_saved_model(model, made, trust_remote_code)
        kept = make_once(folder / _name(model, made), lambda empty: _move(made, empty))
    return SavedModel(kept.absolute(), str(model.dtype).removeprefix("torch."), list(_not_read(model)))


def _check_model(model: Any) -> None:
    import torch
    from transformers import PreTrainedModel

    name = type(model).__name__
    if hasattr(model, "peft_config"):
        raise RecipeError(
            "model=... has an adapter of PEFT: give model.merge_and_unload(), or the folder that run.export(...) of a "
            "run writes; model.lora.rank trains a new adapter"
        )
    if not isinstance(model, PreTrainedModel) or model.get_output_embeddings() is None:
        raise RecipeError(
            f"model=... is {name}, expected a folder, a hub name, or what AutoModelForCausalLM.from_pretrained returns"
        )
    if getattr(model, "is_quantized", False) or any(parameter.is_meta for parameter in model.parameters()):
        raise RecipeError(
            f"model=...: the {name} is quantised, or parts of it are offloaded, and cannot be trained whole: load it "
            "without quantization_config and device_map"
        )
    frozen = [where for where, parameter in model.named_parameters() if not parameter.requires_grad]
    if 0 < len(frozen) < len(list(model.parameters())):  # a merged adapter leaves all of them frozen
        raise RecipeError(
            f"model=...: {frozen[0]} and {len(frozen) - 1} other parameters have requires_grad=False, and a run trains "
            "every parameter: call model.requires_grad_(True)"
        )
    if model.dtype not in (torch.float32, torch.bfloat16):
        raise RecipeError(
            f"model=... is {str(model.dtype).removeprefix('torch.')}, expected float32 or bfloat16: give "
            "model.float() or model.bfloat16()"
        )


def _check_tokenizer(tokenizer: Any, model: Any) -> None:
    from transformers import PreTrainedTokenizerBase

    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    found = (
        "no tokenizer is given with model=..." if tokenizer is None else f"tokenizer=... is {type(tokenizer).__name__}"
    )
    source = getattr(model.config, "_name_or_path", "") or "NAME"
    raise RecipeError(f"{found}: give tokenizer=AutoTokenizer.from_pretrained({source!r})")


def _untouched(tokenizer: Any) -> Any:
    """Return the tokenizer without the truncation and padding that an earlier call left in it."""
    plain = deepcopy(tokenizer)
    if (backend := getattr(plain, "backend_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
    return plain


def _check_saved_tokenizer(tokenizer: Any, made: Path, trust_remote_code: bool) -> None:
    from dapo.models.tokenizer import load_tokenizer, probe_text

    text = probe_text(tokenizer)
    copy = load_tokenizer(str(made), trust_remote_code, notes=[])
    same = copy.encode(text) == tokenizer.encode(text) and copy.get_vocab() == tokenizer.get_vocab()
    if not same or copy.chat_template != tokenizer.chat_template:
        raise RecipeError(
            f"tokenizer=...: what save_pretrained wrote of the {type(tokenizer).__name__} gives other tokens when it "
            "is loaded again; a run needs one that can be saved, such as PreTrainedTokenizerFast"
        )


def _check_saved_model(model: Any, made: Path, trust_remote_code: bool) -> None:
    """Compare the model with its saved copy: hooks, changed code and untied weights are not in any file."""
    import torch

    from dapo.models.load import whole_model

    name = type(model).__name__
    try:
        copy = whole_model(str(made), model.dtype, trust_remote_code)
    except ModelError as error:
        raise RecipeError(f"model=...: the {name} cannot be loaded again once it is saved: {error}") from error
    own, loaded = (
        {where: str(parameter.dtype) for where, parameter in each.named_parameters()} for each in (model, copy)
    )
    if changed := sorted(own.items() ^ loaded.items()):
        where = changed[0][0]
        raise RecipeError(
            f"model=...: {where} is {own.get(where, 'tied or missing')}, and {loaded.get(where, 'tied or missing')} "
            "once the model is saved and loaded: parameters of a run have one type (model.float(), model.bfloat16()), "
            "and are tied as config.tie_word_embeddings says"
        )
    tokens = torch.randint(model.get_input_embeddings().weight.shape[0], _ROWS, generator=torch.Generator())
    off = (_answers(model, tokens) - _answers(copy.to(model.device), tokens)).abs().mean()
    if off > (_CLOSE if model.dtype == torch.float32 else _CLOSE_LOW):
        raise RecipeError(
            f"model=...: the {name} answers otherwise than its saved copy (log-probabilities differ by {off:.2g} nats "
            "in the mean): hooks, a changed forward() and untied weights are in no file. Give a model whose "
            "save_pretrained holds all of it"
        )


def _answers(model: Any, tokens: Any) -> Any:
    """Return log-probabilities [row, token, vocabulary] in evaluation mode; each part's mode stays as it is."""
    import torch

    from dapo.models.attention import own_attention

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), own_attention(model):
            logits = model(input_ids=tokens.to(model.device), use_cache=False).logits
    finally:
        for module, mode in modes:
            module.training = mode
    return logits.float().log_softmax(-1).nan_to_num()  # a NaN in weights is told when they are loaded


def _name(model: Any, made: Path) -> str:
    """Return a name that says where the model came from, and a hash of the files."""
    digest = hashlib.sha256()
    for file in sorted(path for path in made.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(made)}\n".encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    source = str(getattr(model.config, "_name_or_path", "")).rstrip("/").rpartition("/")[2] or type(model).__name__
    stem = re.sub(r"[^\w.-]+", "_", source).lstrip(".")[:60]
    return f"{stem}-{digest.hexdigest()[:12]}"


def _move(made: Path, empty: Path) -> None:
    for path in made.iterdir():
        shutil.move(path, empty / path.name)


def _not_read(model: Any) -> Iterator[str]:
    """Yield what of a loaded model has no effect on a run."""
    own = model.generation_config
    asked = [
        f"{key}={value}" for key in _SAMPLING if (value := getattr(own, key, None)) != getattr(type(own)(), key, None)
    ]
    if own is not None and asked:
        yield (
            f"of the loaded model's generation_config only the end tokens are read, not {', '.join(asked)}: the "
            "sections rollout and validation decide how it samples"
        )
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        yield "gradient checkpointing of the loaded model is not taken over: set model.activation_checkpointing"
