"""Drawing tokens: counter-based uniform numbers, truncation, inverse-CDF sampling with exact log-probabilities.

The uniform number behind token t of a request is a pure function of (request seed, t). So which slot a response
decodes in, what decodes beside it, and whether it was interrupted and continued from a prefix cannot change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.contracts.types import SamplingParams

# SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every input bit reaches every output bit."""
    for shift, factor in _MIX:
        z = (z ^ (z >> shift)) * factor
    return z ^ (z >> _LAST_SHIFT)


def stream_keys(seeds: Sequence[int]) -> NDArray[np.uint64]:
    """Starting state of each request's stream [requests]; mixing keeps neighbouring seeds' streams apart."""
    return _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64) + _GAMMA)


def uniforms(keys: NDArray[np.uint64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """The uniform number in (0, 1) behind response token ``index`` of each stream: 53 bits of a counter-based hash.

    Args:
        keys: [rows] from :func:`stream_keys`.
        index: [rows] index t of the token in its whole response, prefix included.
    """
    words = _mix(keys + (index.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    # The half keeps the number off 0 and 1, so that u * total lies strictly inside the distribution.
    return np.asarray(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


class Law(NamedTuple):
    """What decides how a token is drawn. Rows that share a law are drawn together."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


def law_of(params: SamplingParams) -> Law:
    """The part of ``params`` that concerns drawing."""
    return Law(params.temperature, params.top_p, params.top_k)


def truncate(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """``logits`` [rows, vocabulary] with everything outside the top-k set and then the nucleus at -inf.

    Top-k keeps exactly k tokens (of equal logits the smaller ids). The nucleus is the smallest set of likeliest
    tokens, after top-k, whose mass reaches ``top_p``; it holds at least one token.
    """
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    if 0 < top_k < logits.shape[-1]:
        ordered[:, top_k:] = -torch.inf
    if top_p < 1.0:
        mass = torch.softmax(ordered, dim=-1, dtype=torch.float64)
        before = mass.cumsum(dim=-1) - mass
        before[:, 0] = 0.0  # the likeliest token stays, whatever rounding says
        ordered[before >= top_p] = -torch.inf
    return torch.empty_like(logits).scatter_(-1, ids, ordered)


def draw(logits: Tensor, uniform: Tensor, law: Law) -> tuple[Tensor, Tensor]:
    """One token per row, and its log-probability under the distribution that it was drawn from.

    Args:
        logits: [rows, vocabulary], float32.
        uniform: [rows, 1], float64 in (0, 1).
        law: temperature 0 takes the likeliest token; its log-probability is that of the softmax at temperature 1.

    Returns:
        token ids [rows, 1] int64 and log-probabilities [rows, 1] float32: of logits / temperature, renormalised
        over the kept tokens. Non-finite logits give a non-finite log-probability.
    """
    if law.temperature == 0.0:
        tokens = logits.argmax(dim=-1, keepdim=True)
        return tokens, torch.log_softmax(logits, dim=-1).gather(1, tokens)
    if law.temperature != 1.0:
        logits = logits / law.temperature
    if law.top_k > 0 or law.top_p < 1.0:
        logits = truncate(logits, law.top_k, law.top_p)
    logprobs = torch.log_softmax(logits, dim=-1)
    # float64: over a large vocabulary a float32 running sum would lose the unlikely tokens.
    cdf = torch.exp(logprobs).cumsum(dim=-1, dtype=torch.float64)
    # right=True: the first token whose running sum exceeds the threshold; it has non-zero probability.
    tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True)
    tokens.clamp_(max=logits.shape[-1] - 1)  # only non-finite logits get there
    return tokens, logprobs.gather(1, tokens)


def draw_mixed(logits: Tensor, uniform: Tensor, groups: Sequence[tuple[Law, Tensor | None]]) -> tuple[Tensor, Tensor]:
    """:func:`draw` where rows follow different laws.

    Args:
        logits: [rows, vocabulary].
        uniform: [rows, 1].
        groups: laws with the rows that follow them; None for the rows means all.
    """
    if len(groups) == 1:
        return draw(logits, uniform, groups[0][0])
    tokens = torch.empty((logits.shape[0], 1), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty((logits.shape[0], 1), dtype=torch.float32, device=logits.device)
    for law, rows in groups:
        tokens[rows], logprobs[rows] = draw(logits[rows], uniform[rows], law)
    return tokens, logprobs
