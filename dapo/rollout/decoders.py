"""Which decoder serves a model: the fused one, the generic one, or a refusal that names the way out."""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.models.attention import own_attention
from dapo.models.loaded import LoadedModel
from dapo.models.probe import probe_length
from dapo.rollout import fused
from dapo.rollout.cache import CacheShape, DecodeBatch, Prefilled, SlotCache
from dapo.rollout.fused import FusedDecoder
from dapo.rollout.generic import GenericDecoder, sampling_mode

log = logging.getLogger(__name__)

# Accepted |difference| of log-probabilities to the model's own: (mean, maximum). A wrong mask is off by 0.1 to 5.
_TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float32: (1e-4, 1e-2)}
_COARSE_TOLERANCE = (0.05, 0.5)  # bfloat16 keeps 8 bits


class Decoder(Protocol):
    """Logits from tokens, over a slot cache."""

    name: str
    shape: CacheShape

    def refresh(self) -> None:
        """The model's weights have changed."""

    def stale(self) -> list[str]:
        """What is derived from the weights, by name, and is not what the present ones give."""

    def prefill(self, tokens: Tensor, lengths: list[int]) -> Prefilled:
        """Keys, values and next-token logits of ``tokens`` [sequences, length], right-padded."""

    def decode(self, tokens: Tensor, batch: DecodeBatch) -> Tensor:
        """Logits [rows, vocabulary] of the token after ``tokens`` [rows], which enter the cache."""


def choose_decoder(loaded: LoadedModel) -> Decoder:
    """The fastest decoder whose log-probabilities equal the model's own on a few tokens.

    Raises:
        EngineError: Neither decoder does; ``rollout.engine: generate`` serves any model.
    """
    reasons = []
    reason = fused.why_not(loaded.model)
    if reason is None:
        decoder: Decoder = FusedDecoder(loaded)
        reason = difference(loaded, decoder)
        if reason is None:
            return decoder
        log.warning("fused decoding is not used for %s: %s", loaded.name or type(loaded.model).__name__, reason)
    reasons.append(f"fused decoding: {reason}")
    try:
        decoder = GenericDecoder(loaded)
        reason = difference(loaded, decoder)
    except (EngineError, NotImplementedError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason is None:
        return decoder
    reasons.append(f"generic decoding: {reason}")
    raise EngineError(
        f"the embedded engine cannot decode {loaded.name or 'this model'} ({type(loaded.model).__name__}): "
        f"{'; '.join(reasons)}. Set rollout.engine: generate, which is slower and serves any model"
    )


@torch.inference_mode()
def difference(loaded: LoadedModel, decoder: Decoder) -> str | None:
    """Compare ``decoder`` with the model's own logits on two fixed sequences; None when equal, else the difference.

    Both sequences are prefilled to different lengths, then decoded together token by token; where the model's attention
    changes beyond some length, two more, of which one passes it while it decodes and one in its prefill.
    """
    starts = [(5, 3)]
    if long := probe_length(loaded):
        starts.append((long - 1, long - 8))
    pairs = [_compared(loaded, decoder, start) for start in starts]
    found, expected = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    off = (found - expected).abs().nan_to_num(torch.inf)
    mean, largest = float(off.mean()), float(off.max())
    accepted = _TOLERANCE.get(loaded.dtype, _COARSE_TOLERANCE)
    if mean <= accepted[0] and largest <= accepted[1]:
        return None
    return f"its log-probabilities differ from the model's own by {mean:.2g} in the mean (at most {largest:.2g})"


def _compared(loaded: LoadedModel, decoder: Decoder, starts: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities [tokens, vocabulary] by the decoder and by the model, of two sequences from ``starts`` on."""
    vocabulary, seats, steps = loaded.model.get_input_embeddings().weight.shape[0], np.arange(2), 7
    tokens = np.random.default_rng(0).integers(0, vocabulary, (2, max(starts) + steps))
    ids = torch.from_numpy(tokens).to(loaded.device)
    with own_attention(loaded.model), sampling_mode(loaded.model):
        own = loaded.model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
    cache = SlotCache(decoder.shape, seats=2)
    prefilled = decoder.prefill(ids[:, : max(starts)], list(starts))
    expected = [own[row, start - 1] for row, start in enumerate(starts)]
    found = list(prefilled.logits.log_softmax(-1))
    cache.insert(seats, np.array(starts), prefilled, rows=np.arange(2))
    batch = cache.layout()
    for step in range(steps):
        if batch.full:
            batch = cache.layout()
        at = torch.tensor([start + step for start in starts])
        rows = torch.from_numpy(batch.seats)
        found += decoder.decode(ids[rows, at[rows]], batch).log_softmax(-1)
        expected += [own[row, at[row]] for row in rows]
        cache.advance(batch)
    return torch.stack(found), torch.stack(expected)
