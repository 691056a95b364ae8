"""``ModelFacts`` of a loaded model, or of its folder alone: config and tokenizer are read, no weight is."""

from __future__ import annotations

from typing import Any

from dapo.models.adapter import linear_layers, shapes
from dapo.models.checksum import dtype_name
from dapo.models.load import fingerprint_of, torch_dtype
from dapo.models.loaded import LoadedModel
from dapo.models.positions import exact_positions
from dapo.models.skeleton import model_without_weights
from dapo.models.tokenizer import load_tokenizer
from dapo.models.vocabulary import check_vocabulary, pad_token_of, stop_tokens_of
from dapo.types.model import ModelFacts


def facts_of(loaded: LoadedModel) -> ModelFacts:
    """Return the facts of a loaded model."""
    return _facts(
        loaded.model,
        name=loaded.name,
        dtype=dtype_name(loaded.dtype),
        stop_token_ids=loaded.stop_token_ids,
        pad_token_id=loaded.pad_token_id,
        exact_positions=loaded.exact_positions,
        fingerprint=loaded.fingerprint,
    )


def read_facts(name: str, dtype: str, *, trust_remote_code: bool = False, tokenizer: Any = None) -> ModelFacts:
    """Return the facts of a model without loading its weights: equal to ``facts_of(load_model(name, ...))``.

    Args:
        name: Local Hugging Face folder, or a name on the model hub.
        dtype: Parameter type that it would be loaded in.
        trust_remote_code: Run Python code that comes with the model.
        tokenizer: The model's own, where it is here already.

    Raises:
        ModelError: the configuration or the tokenizer cannot be used; the message names the next move.
    """
    model = model_without_weights(name, torch_dtype(dtype), trust_remote_code)
    tokenizer = load_tokenizer(name, trust_remote_code, notes=[]) if tokenizer is None else tokenizer
    check_vocabulary(name, model, tokenizer)
    stops = stop_tokens_of(model, tokenizer)
    return _facts(
        model,
        name=name,
        dtype=dtype,
        stop_token_ids=stops,
        pad_token_id=pad_token_of(model, tokenizer, stops),
        exact_positions=exact_positions(model),
        fingerprint=fingerprint_of(model, torch_dtype(dtype)),
    )


def _facts(model: Any, **known: Any) -> ModelFacts:
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None) or 1  # one without attention keeps no keys and values
    hidden = getattr(config, "hidden_size", None) or model.get_input_embeddings().weight.shape[1]
    return ModelFacts(
        vocabulary=model.get_input_embeddings().weight.shape[0],
        positions=getattr(model.config, "max_position_embeddings", None),
        shapes=shapes(model),
        layers=getattr(config, "num_hidden_layers", None) or 0,
        hidden=hidden,
        ffn=getattr(config, "intermediate_size", None) or 4 * hidden,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or hidden // heads,
        config=model.config.to_dict(),
        linear=linear_layers(model),
        **known,
    )
