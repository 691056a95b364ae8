"""On-policy distillation: a teacher judges the tokens that the student sampled, and the student follows it.

A token's reverse KL, log p_student - log p_teacher, is estimated from the token itself: no other token of the
vocabulary is asked about. It acts as an advantage, or as a term of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from dapo.algorithms.kl import KlEstimator, kl_estimate
from dapo.algorithms.ratio import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dapo.algorithms.losses import LossInputs


@dataclass(frozen=True, slots=True)
class TeacherTerm:
    """How a teacher's log-probabilities act on the tokens with loss that it judged; on others nothing acts."""

    coefficient: float = 1.0
    term: Literal["advantage", "loss"] = "advantage"
    estimator: KlEstimator = "k2"  # of the term in the loss

    def advantages(self, inputs: LossInputs) -> Float[Tensor, " tokens"]:
        """Return the advantages [tokens] with coefficient x (log teacher - log old) added, a constant.

        The old policy made the tokens, so that with ratio 1 the mean gradient is that of coefficient x KL(policy,
        teacher) of each token, given those before it (arXiv 2306.13649; arXiv 2601.02780, eq. 8). The difference is
        clamped to +-20 as log-ratios are.
        """
        if self.term != "advantage":
            return inputs.advantages
        judged, theirs = _judged(inputs)
        old = torch.where(judged, inputs.old_logprobs, 0.0)
        return inputs.advantages + self.coefficient * (theirs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).detach()

    def loss(self, inputs: LossInputs) -> Float[Tensor, " tokens"] | None:
        """Return coefficient x KL(policy, teacher) of each token, by the estimator; None where there is no such
        term."""
        if self.term != "loss":
            return None
        judged, theirs = _judged(inputs)
        own = torch.where(judged, inputs.logprobs, 0.0)  # before, so that no nan reaches the gradient
        return self.coefficient * torch.where(judged, kl_estimate(own, theirs, self.estimator), 0.0)


def _judged(inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return which tokens with loss a teacher judged, and its log-probabilities, 0 at all others."""
    assert inputs.teacher_logprobs is not None, "`needs` has it"
    judged = inputs.loss_mask & ~inputs.teacher_logprobs.isnan()
    return judged, torch.where(judged, inputs.teacher_logprobs, 0.0)
