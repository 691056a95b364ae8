"""Checks of a model with its tokenizer: whether they belong together, what ends a response, what pads."""

from __future__ import annotations

from typing import Any

from dapo.errors import ModelError


def check_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    """Raise ModelError for a tokenizer with more tokens than the embedding has rows."""
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer of {name!r} has {len(tokenizer)} tokens, the model's embedding {rows} rows; they belong to "
            "different models, or tokens were added without model.resize_token_embeddings(len(tokenizer))"
        )


def stop_tokens_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every end-of-sequence id that config, generation config and tokenizer name."""
    generation = getattr(model, "generation_config", None)
    found: set[int] = set()
    for owner in (model.config, generation, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
    return tuple(sorted(found))


def pad_token_of(model: Any, tokenizer: Any, stops: tuple[int, ...]) -> int:
    """Return the id that fills padding. No mask is ever made from it, so a stop token or 0 does as well."""
    for candidate in (tokenizer.pad_token_id, getattr(model.config, "pad_token_id", None), *stops):
        if candidate is not None:
            break
    else:
        candidate = 0
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(candidate)
    return int(candidate)
