"""What a loss needs and promises, in one place: whoever runs one asks its ``Objective`` and not its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from dapo.algorithms.losses import LossInputs, cispo_loss, clipped_loss

if TYPE_CHECKING:
    from torch import Tensor

Loss = Callable[[LossInputs], "tuple[Tensor, Mapping[str, Tensor]]"]
"""Loss of every token, unreduced, and bool flags by name."""

Need = Literal["entropy", "reference"]
"""``entropy``: ``LossInputs.entropy`` carries a gradient. ``reference``: ``LossInputs.reference_logprobs`` is there."""


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

    @property
    def entropy(self) -> Literal["value", "gradient"]:
        """How the forward pass has to compute the entropy."""
        return "gradient" if "entropy" in self.needs else "value"


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
