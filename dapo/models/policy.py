"""The one root module of the forward pass: a micro-batch in, log-probabilities of its response tokens out.

Whatever wraps modules (sharding, compilation, hooks) wraps this one, and nothing enters the decoder or the head past
it: FSDP2 gathers a root's parameters in the root's own forward and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dapo.models.adapter import active
from dapo.models.context import Stretch
from dapo.models.head import gradient_sink
from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch

# Logits held at once (rows x vocabulary). Above it the head runs chunk by chunk and again in the backward pass. On CUDA
# few rows would leave the card idle; there they and what is made of them take some 3 GB.
MAX_LOGITS = 2**24
MAX_LOGITS_CUDA = 2**27
MIN_CHUNK = 256  # rows of a chunk; fewer would starve the matrix product

Entropy = Literal["none", "value", "gradient"]


class Policy(nn.Module):
    """A language model as the learner sees it.

    Args:
        loaded: The model; its probe decided whether batches are packed or padded.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.model = loaded.model
        self.output = Output(loaded)
        self._loaded = loaded

    def forward(
        self, batch: PackedBatch | Callable[[], Any], temperature: float = 1.0, entropy: Entropy = "value"
    ) -> Any:
        """Compute the log-probability of every response token, and the entropy of the policy before it.

        Both are those of logits / temperature over the whole vocabulary, in float32 (float64 for float64 models).
        Sampling with ``top_p`` or ``top_k`` draws from a part of that distribution.

        Args:
            batch: From ``pack`` or ``pad``, with N response tokens. A function instead is called, and its result
                returned: whatever has to run where a root's parameters are gathered, such as the probe.
            temperature: Of sampling.
            entropy: ``value``: without gradient. ``gradient``: differentiable. ``none``: zeros, which saves a pass
                over the logits.

        Returns:
            logprobs [N], differentiable, and entropy [N] in nats.
        """
        if callable(batch):
            return batch()
        if self._loaded.unit is None:
            hidden = batch.sources.take(hidden_states(self._loaded, batch).flatten(0, 1))
            return self.output(hidden, batch.targets, temperature, entropy)
        stretch = Stretch(batch, self._loaded.unit)
        states = hidden_states(self._loaded, stretch.batch)
        stretch.context.check_calls(len(self._loaded.decoder.layers))
        # Also where nothing is predicted: the other ranks' exchanges wait for this rank's backward pass.
        logprobs, entropies = self.output(
            stretch.sources.take(states.flatten(0, 1)), stretch.targets, temperature, entropy
        )
        return stretch.gather(logprobs), stretch.gather(entropies)


class Output(nn.Module):
    """The output head, in one pass however many chunks its logits take: ranks gather a large head once, all of them."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.head = loaded.model.get_output_embeddings()
        self._loaded = loaded

    def forward(self, hidden: Tensor, targets: Tensor, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor]:
        """hidden [N, width], targets [N] -> log-probabilities [N] and entropies [N]."""
        weight = active(self.head).weight
        chunk = max(MIN_CHUNK, (MAX_LOGITS_CUDA if hidden.is_cuda else MAX_LOGITS) // weight.shape[0])
        if len(hidden) <= chunk:
            return _head_logprobs(self._loaded, hidden, targets, temperature, entropy)
        sink = gradient_sink(weight)
        parts = [
            checkpoint(_head_logprobs, self._loaded, rows, own, temperature, entropy, sink, use_reentrant=False)
            for rows, own in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True)
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
    loaded: LoadedModel,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    entropy: Entropy,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """hidden [n, width], targets [n] -> log-probabilities [n] and entropies [n]; ``sink`` as of ``head``."""
    logits = loaded.head(hidden, sink)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = (logits if temperature == 1.0 else logits / temperature).log_softmax(-1)
    # A copy: sharding hooks on what comes out, and a view's hook would be lost in an operation in place.
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1).clone()
    if entropy == "none":
        return chosen, torch.zeros_like(chosen, requires_grad=False)
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        # A token that a model masks with -inf has probability 0 and adds 0, not nan.
        entropies = -(logprobs.exp() * logprobs.clamp_min(torch.finfo(logprobs.dtype).min)).sum(-1)
    return chosen, entropies
