"""Needs and promises of a loss, in one place: code that runs a loss asks its ``Objective`` and not its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dapo.algorithms.kl import KlEstimator, kl_estimate
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.teacher import TeacherTerm
from dapo.errors import HookError
from dapo.types.extra import Extra, Span, of_response

if TYPE_CHECKING:
    from torch import Tensor

Loss = Callable[[LossInputs], "tuple[Tensor, Mapping[str, Tensor]]"]
"""Loss of every token, unreduced, and bool flags by name."""

Need = Literal["entropy", "reference"]
"""``entropy``: ``LossInputs.entropy`` carries a gradient. ``reference``: ``LossInputs.reference_logprobs`` is there."""


class StepRow(Protocol):
    """Parts of a response for a function of extra arrays. Arrays are [response tokens], numbers of the whole."""

    @property
    def group(self) -> int: ...

    @property
    def sample(self) -> int: ...  # index in its group

    @property
    def prompt_ids(self) -> NDArray[np.integer]: ...  # [prompt tokens]

    @property
    def token_ids(self) -> NDArray[np.integer]: ...

    @property
    def loss_mask(self) -> NDArray[np.bool_]: ...

    @property
    def sampler_logprobs(self) -> NDArray[np.float32]: ...  # nats

    @property
    def versions(self) -> NDArray[np.int32]: ...  # of the weights that made each token

    @property
    def advantage(self) -> float: ...

    @property
    def extra(self) -> Extra: ...  # what the engine gave


ExtraOf = Callable[[Sequence[StepRow], Sequence[int]], Sequence[Extra]]
"""All responses of one optimiser step, and a seed for each -> further arrays of each response, by name."""


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
    reads: Mapping[str, Span] = field(default_factory=dict)
    """Arrays that the loss finds in ``LossInputs.extra``, and the tokens along the first axis of each: those of the
    response, or of prompt and response (``sequence``), of which the loss gets the part of the response."""
    extra: ExtraOf | None = None
    """Makes such arrays, on the driver and once for an optimiser step; None: they are those that the engine gives."""
    zero_advantage_is_free: bool = False
    """A token with advantage 0 has no gradient, so rows without any advantage are run forward only, for their
    metrics. False for a loss with a term that acts on every token (entropy, KL)."""
    by_token: bool = False
    """The loss of a token depends on that token alone, so a response may be cut into parts of several passes. False:
    all parts of a response (``environment.rows: turns``) are in one pass, and ``LossInputs.rows`` joins them."""
    kl_coefficient: float = 0.0
    """Of the KL term, which acts on every token with loss, untouched by clipping and importance correction."""
    kl_estimator: KlEstimator = "k3"
    entropy_term: bool = False
    """There is an entropy term as well; its coefficient comes with each step, since it may adapt."""
    teacher: TeacherTerm | None = None
    """What log-probabilities of a teacher do; None: there is none."""

    @property
    def entropy(self) -> Literal["value", "gradient"]:
        """How the forward pass has to compute the entropy."""
        return "gradient" if "entropy" in self.needs else "value"

    def extra_tensors(self, rows: Sequence[StepRow]) -> dict[str, Tensor]:
        """Return the arrays that the loss reads, those of all rows end to end: [response tokens, ...].

        Raises:
            HookError: a row lacks one, or one does not span the tokens that ``reads`` says.
        """
        found = {}
        for name, span in self.reads.items():
            parts = []
            for row in rows:
                which = f"response {row.sample} of group {row.group}"
                if name not in row.extra:
                    raise HookError(
                        f"the loss reads extra {name!r}, and {which} has {', '.join(row.extra) or 'none'}: an engine "
                        "gives such an array with every response, or the objective makes it (Objective.extra)"
                    )
                try:
                    own = row.extra[name]
                    parts.append(of_response(name, own, span, prompt=len(row.prompt_ids), response=len(row.token_ids)))
                except ValueError as error:
                    raise HookError(f"{which}: {error}") from None
            found[name] = torch.from_numpy(np.concatenate(parts))
        return found

    def terms(self, inputs: LossInputs, entropy_coefficient: float = 0.0) -> Tensor | None:
        """``kl_coefficient`` KL - ``entropy_coefficient`` H of every token [tokens], and a teacher's term.

        They are added to L under the same weights, whatever the advantage; 0 where no loss is carried. None: there is
        no term.
        """
        taught = None if self.teacher is None else self.teacher.loss(inputs)
        if not (self.kl_coefficient or self.entropy_term):
            return taught
        total = torch.zeros_like(inputs.logprobs) if taught is None else taught
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
        by_token=ratio == "token",
    )


def with_terms(
    objective: Objective,
    *,
    kl_coefficient: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    entropy: bool = False,
    teacher: TeacherTerm | None = None,
) -> Objective:
    """Return the objective with a KL term (if the coefficient is not 0), an entropy term and a teacher added.

    Rows without any advantage have a gradient then, since all of these act on them.
    """
    if not (kl_coefficient or entropy or teacher):
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
        teacher=teacher,
    )
