"""The one forward pass that turns a micro-batch into log-probabilities of its response tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch

# Logits held at once (rows x vocabulary). Above it the head runs chunk by chunk and again in the backward pass.
MAX_LOGITS = 2**24
MIN_CHUNK = 256  # rows of a chunk; fewer would starve the matrix product


def token_logprobs(
    loaded: LoadedModel, batch: PackedBatch, temperature: float, *, want_entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probability of every response token, and the entropy of the distribution it was drawn from.

    Both are those of logits / temperature, in float32 (float64 for float64 models).

    Args:
        loaded: The model; its probe decided whether batches are packed or padded.
        batch: From ``pack`` or ``pad``, with N response tokens.
        temperature: Of sampling.
        want_entropy: Off saves a pass over the logits; the entropy is then zeros.

    Returns:
        logprobs [N], differentiable, and entropy [N] in nats, without gradient.
    """
    hidden = hidden_states(loaded, batch).flatten(0, 1).index_select(0, batch.predictors)
    vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
    chunk = max(MIN_CHUNK, MAX_LOGITS // vocabulary)
    if len(hidden) <= chunk:
        return _head_logprobs(loaded, hidden, batch.targets, temperature, want_entropy)
    parts = [
        checkpoint(_head_logprobs, loaded, rows, targets, temperature, want_entropy, use_reentrant=False)
        for rows, targets in zip(torch.split(hidden, chunk), torch.split(batch.targets, chunk), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def hidden_states(loaded: LoadedModel, batch: PackedBatch) -> Tensor:
    """Last hidden states, shaped as ``batch.input_ids`` with the model's width behind."""
    inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
    if batch.context is not None:
        inputs["attention_context"] = batch.context
    else:
        inputs["attention_mask"] = batch.attention_mask
    hidden: Tensor = loaded.decoder(**inputs).last_hidden_state
    return hidden


def _head_logprobs(
    loaded: LoadedModel, hidden: Tensor, targets: Tensor, temperature: float, want_entropy: bool
) -> tuple[Tensor, Tensor]:
    """hidden [n, width], targets [n] -> log-probabilities [n] and entropies [n]."""
    logits = loaded.head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = (logits if temperature == 1.0 else logits / temperature).log_softmax(-1)
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    if not want_entropy:
        return chosen, torch.zeros_like(chosen, requires_grad=False)
    with torch.no_grad():
        # A token that a model masks with -inf has probability 0 and adds 0, not nan.
        entropy = -(logprobs.exp() * logprobs.clamp_min(torch.finfo(logprobs.dtype).min)).sum(-1)
    return chosen, entropy
