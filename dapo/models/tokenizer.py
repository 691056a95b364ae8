"""The tokenizer that belongs to a model: what its tokenizer.json says, whatever class transformers picks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dapo.errors import ModelError, ModelUnreachable, first_line, raise_for_machine
from dapo.hub import offline, unreachable

PROBE_TEXT = "Solve: 4 +7 -8 = ?  \\boxed{3.5} x^2, don't\n<b>Ünïcode</b> 12345 日本"


def load_tokenizer(name: str, trust_remote_code: bool, notes: list[str]) -> Any:
    """AutoTokenizer, unless its ids differ from those of tokenizer.json.

    A custom tokenizer beside, say, a qwen2 config is read as a Qwen2Tokenizer, whose pre-tokenizer silently replaces
    the saved one; the generic class keeps to the file.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils import cached_file

    if not _is_here(name) and (why := unreachable()):
        raise ModelUnreachable(_no_tokenizer(name, why))
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
        file = cached_file(name, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        reference = Tokenizer.from_file(str(file)) if file else None
    except Exception as error:
        raise_for_machine(error, f"loading the tokenizer of {name!r}")
        kind = ModelUnreachable if offline() and not _is_here(name) else ModelError
        raise kind(_no_tokenizer(name, first_line(error).rstrip("."))) from error
    if reference is None:
        return tokenizer
    text = probe_text(reference)
    expected = reference.encode(text, add_special_tokens=False).ids
    if tokenizer.encode(text, add_special_tokens=False) == expected:
        return tokenizer
    generic = PreTrainedTokenizerFast.from_pretrained(name)
    if generic.encode(text, add_special_tokens=False) == expected:
        notes.append(
            f"{type(tokenizer).__name__}, which AutoTokenizer chose, splits text otherwise than the model's "
            "tokenizer.json; tokenizer.json is used"
        )
        return generic
    raise ModelError(
        f"the tokenizer of {name!r} gives other ids than its own tokenizer.json, as {type(tokenizer).__name__} and as "
        "PreTrainedTokenizerFast; save it again with tokenizer.save_pretrained(folder), or set tokenizer_class in "
        "tokenizer_config.json"
    )


def _is_here(name: str) -> bool:
    """Return whether the name is a folder, in the hub's cache, or none that the hub could have."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(name).is_dir() or isinstance(try_to_load_from_cache(name, "tokenizer_config.json"), str)
    except HFValidationError:
        return True


def _no_tokenizer(name: str, said: str) -> str:
    if Path(name).is_dir():
        return (
            f"no tokenizer can be loaded from {name!r}: {said}; expected tokenizer.json in the model's folder "
            "(tokenizer.save_pretrained(folder) writes it)"
        )
    return (
        f"model.path {name!r} is no folder here, and the hub did not give its tokenizer: {said}. Correct the name, or, "
        f"without a network, fetch it elsewhere (`hf download {name} --local-dir FOLDER`) and give the folder as "
        "model.path. A copy in the cache is used with HF_HUB_OFFLINE=1. For `dapo check` a folder with config.json and "
        "the tokenizer's files is enough"
    )


def probe_text(tokenizer: Any) -> str:
    """Mixed text and 64 entries spread over the vocabulary, so that a word-level vocabulary is met as well."""
    size = len(tokenizer.get_vocab())
    entries = [tokenizer.decode([index]) for index in range(0, size, max(1, size // 64))]
    return PROBE_TEXT + " " + " ".join(entries)
