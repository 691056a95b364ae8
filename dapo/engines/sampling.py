"""Drawing tokens: truncation, inverse-CDF sampling with exact log-probabilities.

The uniform number behind token t of a request is a pure function of (request seed, t), ``dapo.types.seeds``. So
which slot a response decodes in, what decodes beside it, and whether it was interrupted and continued from a prefix
cannot change it.

Truncation means an order of the vocabulary, and of 152,000 words most are never kept. So a few candidates are put in
order first (:func:`truncate_by_few`): the kept set is that of the whole order, to the last token, or the row is marked
with nan. The caller reads the tokens anyway, sees the mark then, and draws those rows again by the whole order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dapo.types.batch import SamplingParams


class SamplingSettings(NamedTuple):
    """Parameters that decide how a token is drawn. Rows with equal settings are drawn together."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def truncates(self) -> bool:
        """Some tokens cannot be drawn."""
        return self.temperature > 0.0 and (self.top_k > 0 or self.top_p < 1.0)


def settings_of(params: SamplingParams) -> SamplingSettings:
    """Return the part of ``params`` that concerns drawing."""
    return SamplingSettings(params.temperature, params.top_p, params.top_k)


class Candidates:
    """How many of a row's likeliest tokens are put in order before all are: more, once so many did not settle a row."""

    def __init__(self) -> None:
        self.count = FEW

    def missed(self) -> None:
        """Widen the candidates, since they did not settle some row."""
        self.count *= _MORE

    def forget(self) -> None:
        """Forget the candidates, since the distributions have changed."""
        self.count = FEW


FEW = 1024
_MORE = 4  # the next try looks at so many times more; one of more than a quarter of the vocabulary is not worth while
_WIDTH = 1024  # tokens of a part of the vocabulary; both looks then go through some hundred to a thousand numbers
_MANY_WORDS = 4096  # vocabulary from which parts are faster on a CPU, too: 7 times at 8,000
_PART = 2**24  # numbers that are widened to float64 at once


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


def truncate_by_few(logits: Tensor, top_k: int, top_p: float, candidates: int) -> Tensor:
    """:func:`truncate` from the ``candidates`` likeliest tokens of each row; nan in rows that they do not settle.

    A row is settled when its first candidates reach ``top_p``, no border lies so near a token's that the rounding of
    another order of the same sums could decide, and no token outside is as likely as the least likely one that is kept.
    ``candidates`` is more than ``top_k`` and less than the vocabulary.
    """
    vocabulary = logits.shape[-1]
    ids = logits.topk(candidates, dim=-1, sorted=False).indices.sort(dim=-1).values  # by id: of equals, the smaller
    ordered, places = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, places)
    kept = torch.ones_like(ordered, dtype=torch.bool)
    settled = kept[:, 0]
    by_rank = 0 < top_k < vocabulary
    if by_rank:
        kept[:, top_k:] = False
    if top_p < 1.0:
        mass = (ordered.double() - ordered[:, :1]).exp_()
        mass = mass.masked_fill_(~kept, 0.0) if by_rank else mass
        mass /= mass.sum(-1, keepdim=True) if by_rank else _whole_mass(logits, ordered[:, :1])
        before = mass.cumsum(dim=-1) - mass
        before[:, 0] = 0.0
        doubt = 4 * (vocabulary + 64) * torch.finfo(torch.float64).eps  # of two orders of such sums, and their terms
        near = ((before - top_p).abs() <= doubt) | before.isnan()
        settled = ~near.any(dim=-1)
        if not by_rank:
            settled &= before[:, -1] >= top_p
        kept &= before < top_p
    settled = settled & (ordered.masked_fill(~kept, torch.inf).amin(dim=-1) > ordered[:, -1])
    ordered = ordered.masked_fill(~kept, -torch.inf).masked_fill_(~settled[:, None], torch.nan)
    return torch.full_like(logits, -torch.inf).scatter_(-1, ids, ordered)


def _whole_mass(logits: Tensor, top: Tensor) -> Tensor:
    """Sum of exp(logits - top) over the vocabulary, in float64 [rows, 1]."""
    rows = max(1, _PART // logits.shape[-1])
    pairs = zip(torch.split(logits, rows), torch.split(top, rows), strict=True)
    return torch.cat([(part.double() - highest).exp_().sum(-1, keepdim=True) for part, highest in pairs])


def _truncated(logits: Tensor, settings: SamplingSettings, candidates: int | None) -> Tensor:
    if candidates is not None:
        count = max(candidates, 2 * settings.top_k)
        if _MORE * count <= logits.shape[-1]:
            return truncate_by_few(logits, settings.top_k, settings.top_p, count)
    return truncate(logits, settings.top_k, settings.top_p)


def draw(
    logits: Tensor, uniform: Tensor, settings: SamplingSettings, candidates: int | None = None
) -> tuple[Tensor, Tensor]:
    """One token per row, and its log-probability under the distribution that it was drawn from.

    Args:
        logits: [rows, vocabulary], float32.
        uniform: [rows, 1], float64 in (0, 1).
        settings: temperature 0 takes the likeliest token; its log-probability is that of the softmax at temperature 1.
        candidates: put so many tokens of each row in order, not the vocabulary, where the settings truncates.

    Returns:
        token ids [rows, 1] int64 and log-probabilities [rows, 1] float32: of logits / temperature, renormalised
        over the kept tokens. Non-finite logits give a non-finite log-probability, and so does a row that the candidates
        do not settle: draw it again without them.
    """
    if settings.temperature == 0.0:
        tokens = logits.argmax(dim=-1, keepdim=True)
        return tokens, torch.log_softmax(logits, dim=-1).gather(1, tokens)
    if settings.temperature != 1.0:
        logits = logits / settings.temperature
    if settings.truncates:
        logits = _truncated(logits, settings, candidates)
    if logits.is_cuda or logits.shape[-1] >= _MANY_WORDS:
        return draw_by_parts(logits, uniform)
    logprobs = torch.log_softmax(logits, dim=-1)
    # float64: over a large vocabulary a float32 running sum would lose the unlikely tokens.
    cdf = torch.exp(logprobs).cumsum(dim=-1, dtype=torch.float64)
    # right=True: the first token whose running sum exceeds the threshold; it has non-zero probability.
    tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True)
    tokens.clamp_(max=logits.shape[-1] - 1)  # only non-finite logits get there
    return tokens, logprobs.gather(1, tokens)


def draw_by_parts(logits: Tensor, uniform: Tensor, width: int = _WIDTH) -> tuple[Tensor, Tensor]:
    """Finish :func:`draw` in two looks: find the part of the vocabulary, then which of its ``width`` tokens.

    A running sum over 152,000 words of every row, in float64, costs about what the layers of a small model do.
    Here the vocabulary is read for one softmax and one sum of each part. The running sum over the parts is float64's;
    inside its part a token is looked for by the share of the part's sum, so that rounding of such a sum (1e-7 of it)
    falls on all of its tokens alike, and none is drawn that has no probability.
    """
    probabilities, vocabulary = torch.softmax(logits, dim=-1), logits.shape[-1]
    even = vocabulary // width * width
    sums = probabilities[:, :even].view(len(logits), even // width, width).sum(dim=-1)
    if even < vocabulary:
        sums = torch.cat([sums, probabilities[:, even:].sum(dim=-1, keepdim=True)], dim=-1)
    upto = sums.cumsum(dim=-1, dtype=torch.float64)
    aim = uniform * upto[:, -1:]
    part = torch.searchsorted(upto, aim, right=True).clamp_(max=sums.shape[-1] - 1)
    own = sums.gather(1, part).double()
    share = (1 - (upto.gather(1, part) - aim) / own).clamp_(min=0.0)
    places = part * width + torch.arange(width, device=logits.device)
    inside = probabilities.gather(1, places.clamp(max=vocabulary - 1)).masked_fill_(places >= vocabulary, 0.0)
    upto = inside.cumsum(dim=-1, dtype=torch.float64)
    within = torch.searchsorted(upto, share * upto[:, -1:], right=True)
    tokens = (part * width + within).clamp_(max=vocabulary - 1)  # only non-finite logits get there
    return tokens, probabilities.gather(1, tokens).log_()


def draw_mixed(
    logits: Tensor,
    uniform: Tensor,
    groups: Sequence[tuple[SamplingSettings, Tensor | None]],
    candidates: int | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`draw` where rows follow different settings.

    Args:
        logits: [rows, vocabulary].
        uniform: [rows, 1].
        groups: settings with the rows that follow them; None for the rows means all.
        candidates: as for :func:`draw`.
    """
    if len(groups) == 1:
        return draw(logits, uniform, groups[0][0], candidates)
    tokens = torch.empty((logits.shape[0], 1), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty((logits.shape[0], 1), dtype=torch.float32, device=logits.device)
    for setting, rows in groups:
        tokens[rows], logprobs[rows] = draw(logits[rows], uniform[rows], setting, candidates)
    return tokens, logprobs
