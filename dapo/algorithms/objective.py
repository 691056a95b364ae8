"""What a loss needs and promises, in one place: whoever runs one asks its ``Objective`` and not its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch

from dapo.algorithms.kl import KlEstimator, kl_estimate
from dapo.algorithms.losses import (
    LossInputs,
    cispo_loss,
    clip_cov_loss,
    clipped_loss,
    kl_cov_loss,
    sapo_loss,
)

if TYPE_CHECKING:
    from torch import Tensor

Loss = Callable[[LossInputs], "tuple[Tensor, Mapping[str, Tensor]]"]
"""Loss of every token, unreduced, and bool flags by name."""

Need = Literal["entropy", "reference", "marks"]
"""``entropy``: ``LossInputs.entropy`` carries a gradient. ``reference``: ``LossInputs.reference_logprobs`` is there.
``marks``: ``LossInputs.marked`` is."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss with what must be known about it. A recipe's ``algorithm.loss.kind`` may name one of these as well.

    Example::

        from dapo.algorithms.objective import Objective

        def bold(inputs):  # REINFORCE with a bonus for entropy
            return -inputs.logprobs * inputs.advantages - 0.01 * inputs.entropy, {}

        loss = Objective(bold, needs=frozenset({"entropy"}))
    """

    loss: Loss
    needs: frozenset[Need] = frozenset()
    zero_advantage_is_free: bool = False
    """A token with advantage 0 has no gradient, so rows without any advantage are run forward only, for their
    metrics. False for a loss with a term that acts on every token (entropy, KL)."""
    clips_tokens: bool = False
    """The ratio is bounded token by token, so that the clipped share says how far a step goes."""
    kl_coefficient: float = 0.0
    """Of the KL term, which acts on every token with loss, untouched by clipping and importance correction."""
    kl_estimator: KlEstimator = "k3"
    entropy_term: bool = False
    """There is an entropy term as well; its coefficient comes with each step, since it may adapt."""

    @property
    def entropy(self) -> Literal["value", "gradient"]:
        """How the forward pass has to compute the entropy."""
        return "gradient" if "entropy" in self.needs else "value"

    def terms(self, inputs: LossInputs, entropy_coefficient: float = 0.0) -> Tensor | None:
        """``kl_coefficient`` KL - ``entropy_coefficient`` H of every token [tokens], to be added to L under the same
        weights, whatever the advantage; 0 where no loss is carried. None where there is neither term.
        """
        if not (self.kl_coefficient or self.entropy_term):
            return None
        total = torch.zeros_like(inputs.logprobs)
        if self.kl_coefficient:
            assert inputs.reference_logprobs is not None, "`needs` has it"
            # masked before, so that not even a nan where no loss is carried reaches the gradient
            own, theirs = (torch.where(inputs.loss_mask, x, 0.0) for x in (inputs.logprobs, inputs.reference_logprobs))
            total = total + self.kl_coefficient * kl_estimate(own, theirs, self.kl_estimator)
        if self.entropy_term:
            assert inputs.entropy is not None
            total = total - entropy_coefficient * inputs.entropy
        return torch.where(inputs.loss_mask, total, 0.0)


def clip_objective(
    *, low: float, high: float, dual: float | None = None, ratio: Literal["token", "sequence"] = "token"
) -> Objective:
    """``clipped_loss`` with its settings: DAPO, GRPO, GSPO."""
    return Objective(
        partial(clipped_loss, low=low, high=high, dual=dual, ratio=ratio),
        zero_advantage_is_free=True,
        clips_tokens=ratio == "token",
    )


def cispo_objective(*, cap: float = 5.0, floor: float | None = None) -> Objective:
    """``cispo_loss`` with its settings."""
    return Objective(partial(cispo_loss, cap=cap, floor=floor), zero_advantage_is_free=True)


def sapo_objective(*, positive: float = 1.0, negative: float = 1.05) -> Objective:
    """``sapo_loss`` with its settings."""
    return Objective(partial(sapo_loss, positive=positive, negative=negative), zero_advantage_is_free=True)


def clip_cov_objective(*, low: float, high: float) -> Objective:
    """``clip_cov_loss`` with its settings."""
    return Objective(
        partial(clip_cov_loss, low=low, high=high),
        needs=frozenset({"marks"}),
        zero_advantage_is_free=True,
        clips_tokens=True,
    )


def kl_cov_objective(*, coefficient: float = 1.0) -> Objective:
    """``kl_cov_loss`` with its settings. A marked token may have advantage 0 and a gradient all the same."""
    return Objective(partial(kl_cov_loss, coefficient=coefficient), needs=frozenset({"marks"}))


def with_terms(
    objective: Objective, *, kl_coefficient: float = 0.0, kl_estimator: KlEstimator = "k3", entropy: bool = False
) -> Objective:
    """The objective with a KL term (where the coefficient is not 0) and an entropy term beside its loss.

    Rows without any advantage have a gradient then, since both terms act on them.
    """
    if not (kl_coefficient or entropy):
        return objective
    of_kl: list[Need] = ["reference"] if kl_coefficient else []
    of_entropy: list[Need] = ["entropy"] if entropy else []
    return replace(
        objective,
        needs=objective.needs.union(of_kl, of_entropy),
        zero_advantage_is_free=False,
        kl_coefficient=kl_coefficient,
        kl_estimator=kl_estimator,
        entropy_term=entropy,
    )
