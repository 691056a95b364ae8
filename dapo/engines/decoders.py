"""Which decoder serves a model: the fused one, the generic one, or a refusal that names the way out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dapo.engines import fused
from dapo.engines.cache import DecodeBatch, SlotCache
from dapo.engines.fused import FusedDecoder
from dapo.engines.generic import GenericDecoder, sampling_mode
from dapo.engines.kept import Past
from dapo.engines.pools import CacheShape, Prefilled
from dapo.errors import EngineError, first_line
from dapo.models.agreement import disagreement, float32_outputs, otherwise, repeating
from dapo.models.attention import own_attention
from dapo.models.loaded import LoadedModel
from dapo.models.precision import exact_matmuls
from dapo.models.probe import probe_length
from dapo.models.routing import RoutedPass

log = logging.getLogger(__name__)

# Accepted |difference| of a float32 model's log-probabilities to its own: (mean, maximum). A wrong mask is off by 0.1
# to 5. It is asked of exact products; with TF32 a run's numbers differ by 0.002 to 0.004 in the mean.
_TOLERANCE = (1e-4, 1e-2)


class Decoder(Protocol):
    """Logits from tokens, over a slot cache."""

    name: str
    shape: CacheShape

    def refresh(self) -> None:
        """Take up the model's weights, which have changed."""

    def stale(self) -> list[str]:
        """Return the names of derived tensors that do not follow from the present weights."""

    def prefill(self, tokens: Tensor, lengths: list[int], past: Past | None = None) -> Prefilled:
        """Keys, values and next-token logits of ``tokens`` [sequences, length], right-padded.

        With ``past`` they follow its tokens, and the keys and values are those of all tokens.
        """

    def decode(self, tokens: Tensor, batch: DecodeBatch) -> Tensor:
        """Logits [rows, vocabulary] of the token after ``tokens`` [rows], which enter the cache."""


def choose_decoder(loaded: LoadedModel) -> Decoder:
    """Return the fastest decoder whose log-probabilities equal the model's own on a few tokens.

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
    raise _cannot_decode(loaded, *reasons, f"generic decoding: {reason}")


def check_structure(loaded: LoadedModel) -> str | None:
    """Refuse what no decoder computes, of a model on the meta device: its layers are asked, its numbers are not there.

    Returns why the layers could not be asked; None: they were.

    Raises:
        EngineError: as ``choose_decoder``, for layers of a kind that the slot cache does not hold or compute.
    """
    if fused.why_not(loaded.model) is None:
        return None
    try:
        GenericDecoder(loaded)
    except EngineError as error:
        raise _cannot_decode(loaded, f"generic decoding: {error}") from error
    except (NotImplementedError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        return first_line(error)  # the engine asks again, with the numbers
    return None


def _cannot_decode(loaded: LoadedModel, *reasons: str) -> EngineError:
    return EngineError(
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
    with exact_matmuls():
        parts = [_compared(loaded, decoder, start) for start in starts]
        off = disagreement(
            loaded,
            torch.cat([part.found for part in parts]),
            torch.cat([part.expected for part in parts]),
            _TOLERANCE,
            lambda: _together([part.precise(loaded) for part in parts]),
        )
    if (elsewhere := otherwise([made for part in parts for made in part.made])) is not None:
        return f"it {elsewhere}"
    if off is None:
        return None
    return f"its log-probabilities differ from the model's own by {off[0]:.2g} in the mean (at most {off[1]:.2g})"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Log-probabilities [tokens, vocabulary] by the decoder and by the model."""

    ids: Tensor  # [sequences, length]
    at: list[tuple[int, int]]  # (sequence, position) of each token's predecessor
    found: Tensor
    expected: Tensor
    routes: Tensor | None  # [sequences x length, routers, k] by the model, where the decoder repeats them
    made: list[RoutedPass | None]  # the decoder's passes

    def precise(self, loaded: LoadedModel) -> Tensor | None:
        """Return the model's own log-probabilities with float32 weights; None where they cannot be computed."""
        with repeating(loaded, self.routes):
            own = _own(loaded, self.ids, partial(float32_outputs, loaded))
        return None if own is None else torch.stack([own[row, position] for row, position in self.at])


def _together(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if len(there) == len(parts) else None


def _own(loaded: LoadedModel, ids: Tensor, model: Callable[..., Any]) -> Any:
    """[sequences, length, vocabulary] by the model's own attention; None where ``model`` gives nothing."""
    with own_attention(loaded.model), sampling_mode(loaded.model):
        outputs = model(input_ids=ids, use_cache=False)
    return None if outputs is None else outputs.logits.float().log_softmax(-1)


def _compared(loaded: LoadedModel, decoder: Decoder, starts: tuple[int, int]) -> _Comparison:
    """Two sequences from ``starts`` on."""
    vocabulary, seats, steps = loaded.model.get_input_embeddings().weight.shape[0], np.arange(2), 7
    tokens = np.random.default_rng(0).integers(0, vocabulary, (2, max(starts) + steps))
    ids = torch.from_numpy(tokens).to(loaded.device)
    with repeating(loaded) as made:
        own = _own(loaded, ids, loaded.model)
    routes = None if made is None else made.routes()  # of all tokens, sequence by sequence
    cache = SlotCache(decoder.shape, seats=2)
    begins = np.arange(max(starts)) + np.array([[0], [tokens.shape[1]]])
    with repeating(loaded, None if routes is None else routes[begins.ravel()]) as made:
        prefilled = decoder.prefill(ids[:, : max(starts)], list(starts))
    passes = [made]
    places = [(row, start - 1) for row, start in enumerate(starts)]
    found = list(prefilled.logits.log_softmax(-1))
    cache.insert(seats, np.array(starts), prefilled, rows=np.arange(2))
    batch = cache.layout()
    for step in range(steps):
        if batch.full:
            batch = cache.layout()
        now = [(int(row), starts[row] + step) for row in batch.seats]
        flat = [row * tokens.shape[1] + column for row, column in now]
        with repeating(loaded, None if routes is None else routes[flat]) as made:
            logits = decoder.decode(torch.stack([ids[place] for place in now]), batch)
        passes.append(made)
        found += logits.log_softmax(-1)
        places += now
        cache.advance(batch)
    return _Comparison(ids, places, torch.stack(found), torch.stack([own[place] for place in places]), routes, passes)
