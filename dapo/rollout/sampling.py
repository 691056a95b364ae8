"""Drawing tokens: truncation, inverse-CDF sampling with exact log-probabilities.

The uniform number behind token t of a request is a pure function of (request seed, t), ``dapo.contracts.seeds``. So
which slot a response decodes in, what decodes beside it, and whether it was interrupted and continued from a prefix
cannot change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dapo.contracts.types import SamplingParams


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
