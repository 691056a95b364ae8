"""Options of the kinds of loss, reduction, advantage and importance correction: one class for each kind.

A section with kinds holds one of these classes; its key ``kind`` says which. The docstring of a class is what
docs/configuration.md and ``dapo explain`` say of the kind. An option that several kinds have means the same in each, in
the same words. A kind of loss or advantage is its class here, named in the union below it, and the function that the
class names. All other code asks the class, and never for the name of a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dapo.config.section import LARGE, Above, Factor, Hook, OneOf, Positive, Section, Signed

# ---------------------------------------------------------------------- reductions


class TokenMean(Section):
    """the mean over the tokens with loss of an optimiser step (DAPO)"""

    kind: Literal["token_mean"] = "token_mean"


class PromptMean(Section):
    """the mean over prompts of each prompt's token mean (DAPO, eq. 8)"""

    kind: Literal["prompt_mean"] = "prompt_mean"


class SequenceMean(Section):
    """the mean over responses of each response's token mean (GRPO)"""

    kind: Literal["sequence_mean"] = "sequence_mean"


class SequenceSum(Section):
    """the mean over responses of each response's token sum"""

    kind: Literal["sequence_sum"] = "sequence_sum"


class Constant(Section):
    """the sum over tokens, divided by the number of responses and a fixed length (Dr. GRPO)"""

    kind: Literal["constant"] = "constant"
    length: Positive | None = None
    """The fixed length; null: ``rollout.max_response_tokens``."""


class MicroBatchMean(Section):
    """the mean over micro-batches of each one's token mean (verl up to 0.6, bnpo)"""

    kind: Literal["micro_batch_mean"] = "micro_batch_mean"
    sequences: Positive
    """Responses of a micro-batch."""
    weighted: bool = True
    """Weight micro-batches by their number of responses (verl <= 0.6) or not (bnpo)."""


Reduction = Annotated[
    TokenMean | PromptMean | SequenceMean | SequenceSum | Constant | MicroBatchMean,
    OneOf(),
]

# ---------------------------------------------------------------------- losses


class Clip(Section):
    low: Above = 0.2
    """eps_low."""
    high: Above = 0.28
    """eps_high: clip-higher when above ``low``."""
    dual: Annotated[float, Field(gt=1, le=LARGE)] | None = None
    """Dual clip c: with a negative advantage the loss is at most -A c. Not in the paper; 10 in its scripts."""


class LossKind(Section):
    """Settings that every loss has, and what other code asks of one."""

    function: ClassVar[str] = ""
    """``module:function`` that makes a ``dapo.algorithms.objective.Objective`` of the bounds and options."""
    clips: ClassVar[tuple[str, ...]] = ()
    """Keys of ``algorithm.clip`` that the loss reads."""
    penalises_distance: ClassVar[bool] = False
    """It has a term in abs(log r): no slope where every ratio is 1, and rounding of the ratio gives a direction."""

    kind: str
    reduction: Reduction = TokenMean()
    """How token losses become one number; see docs/algorithm.md."""

    @property
    def clips_tokens(self) -> bool:
        """The bounds act token by token, so that the clipped share says how far a step goes."""
        return "low" in self.clips

    def contradictions(self, clip: Clip) -> Iterator[tuple[str, str]]:
        """Yield what cannot be: a key below ``algorithm``, and what is wrong with its value."""
        yield from ()

    def doubts(self) -> Iterator[str]:
        """Yield warnings about options that are allowed and hardly meant."""
        yield from ()


class ClippedLoss(LossKind):
    """DAPO, GRPO and GSPO: L = -min(r A, clip(r, 1 - low, 1 + high) A)"""

    function = "dapo.algorithms.objective:clip_objective"
    clips = ("low", "high", "dual")

    kind: Literal["clip"] = "clip"
    ratio: Literal["token", "sequence"] = "token"
    """``sequence``: GSPO's ratio, with clip bounds near 3e-4 / 4e-4 and reduction sequence_mean (preset ``gspo``)."""

    @property
    def clips_tokens(self) -> bool:
        return self.ratio == "token"

    def contradictions(self, clip: Clip) -> Iterator[tuple[str, str]]:
        if self.ratio == "sequence" and max(clip.low, clip.high) > 0.05:
            yield (
                "clip",
                f"bounds of {clip.low:g} / {clip.high:g} never bind on a sequence ratio, which averages over tokens; "
                "use 3e-4 / 4e-4 (algorithm.clip.low, algorithm.clip.high)",
            )

    def doubts(self) -> Iterator[str]:
        if self.ratio == "sequence" and self.reduction.kind not in ("sequence_mean", "sequence_sum"):
            yield (
                f"algorithm.loss.ratio: sequence with reduction: {self.reduction.kind}: GSPO is a mean over responses "
                "(algorithm.loss.reduction=sequence_mean, as in the preset gspo), and LUSPO a mean of sums "
                "(sequence_sum); here a response's one ratio counts by other weights"
            )


class Cispo(LossKind):
    """CISPO (arXiv 2506.13585): L = -sg(min(r, cap)) A logp"""

    function = "dapo.algorithms.variants.cispo:cispo_objective"

    kind: Literal["cispo"] = "cispo"
    cap: Above = 5.0
    """Absolute upper bound of the ratio."""
    floor: Factor | None = None
    """Lower bound of the ratio; null: none."""

    def contradictions(self, clip: Clip) -> Iterator[tuple[str, str]]:
        if (self.floor or 0) >= self.cap:
            yield "loss.floor", f"must be below cap = {self.cap:g}"


class Sapo(LossKind):
    """SAPO (arXiv 2511.20347): L = -(4 / tau) sigmoid(tau (r - 1)) A"""

    function = "dapo.algorithms.variants.sapo:sapo_objective"

    kind: Literal["sapo"] = "sapo"
    positive: Above = 1.0
    """tau, the steepness of the gate, where the advantage is above 0."""
    negative: Above = 1.05
    """tau elsewhere."""


class Covariance(LossKind):
    """Settings that both losses with covariances have."""

    share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of the tokens with loss that are treated apart, one at least."""


class ClipCov(Covariance):
    """Clip-Cov (arXiv 2505.22617): the clipped surrogate, and 0 in some tokens with a large covariance"""

    function = "dapo.algorithms.variants.covariance:clip_cov_objective"
    clips = ("low", "high")

    kind: Literal["clip_cov"] = "clip_cov"
    above: Signed = 1.0
    """Only tokens with a covariance above it are treated apart."""
    below: Signed = 5.0
    """Only tokens with a covariance below it are treated apart."""

    def contradictions(self, clip: Clip) -> Iterator[tuple[str, str]]:
        if self.above >= self.below:
            yield "loss.below", f"must be above {self.above:g} (algorithm.loss.above)"


class KlCov(Covariance):
    """KL-Cov (arXiv 2505.22617): L = -r A, and ``coefficient`` abs(log r) more in the tokens of largest covariance"""

    function = "dapo.algorithms.variants.covariance:kl_cov_objective"
    penalises_distance = True

    kind: Literal["kl_cov"] = "kl_cov"
    coefficient: Above = 1.0
    """Of the penalty on the tokens that are treated apart."""


class OwnLoss(LossKind):
    """your function"""

    kind: Hook
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of your function."""


Loss = Annotated[ClippedLoss | Cispo | Sapo | ClipCov | KlCov | OwnLoss, OneOf()]

# ---------------------------------------------------------------------- advantages


class AdvantageKind(Section):
    """Settings that every advantage has, and what other code asks of one."""

    function: ClassVar[str] = ""
    """``module:function`` from rewards and voters of all groups, and with ``by_reward`` from each reward by itself."""
    by_reward: ClassVar[bool] = False
    """It reads each reward by itself, and no shaped sum of them."""

    kind: str


class Normalised(AdvantageKind):
    """Settings that both built-in advantages have."""

    ddof: Literal[0, 1] = 1
    """Degrees of freedom of the standard deviation."""
    eps: Factor = 1e-6
    """Added to the standard deviation."""


class GroupAdvantage(Normalised):
    """eq. 9 and its variants"""

    function = "dapo.algorithms.advantages:group_advantages"

    kind: Literal["group"] = "group"
    baseline: Literal["mean", "leave_one_out", "batch_mean", "batch_leave_one_out", "none"] = "mean"
    """What is subtracted: the mean of the group's rewards, or of all others of the group; the same of the batch; or
    nothing."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What is divided by; ``none`` is Dr. GRPO."""


class Gdpo(Normalised):
    """GDPO, each reward by itself"""

    function = "dapo.algorithms.variants.gdpo:gdpo_advantages"
    by_reward = True

    kind: Literal["gdpo"] = "gdpo"


class OwnAdvantage(AdvantageKind):
    """your function"""

    kind: Hook
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of your function."""


Advantage = Annotated[GroupAdvantage | Gdpo | OwnAdvantage, OneOf()]


class AdvantageNorm(Section):
    """AReaL's ``adv_norm``; each advantage counts once for each of its response's tokens with loss"""

    mean: Literal["batch", "group", "none"] = "batch"
    """Whose mean is subtracted."""
    std: Literal["batch", "group", "none"] = "batch"
    """Whose deviation from what is subtracted divides."""
    leave_one_out: bool = False
    """Take the mean of all other tokens."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom of the deviation."""
    eps: Factor = 1e-5
    """Added to the deviation."""


class AdvantageClip(Section):
    low: Annotated[float, Field(ge=-LARGE, le=0)] | None = None
    """Smallest advantage; null: no bound."""
    high: Factor | None = None
    """Largest advantage; null: no bound."""


# ---------------------------------------------------------------------- importance corrections


class CorrectionKind(Section):
    """Settings that every correction has."""

    kind: str


class Capped(CorrectionKind):
    cap: Above = 2.0
    """Upper bound: C of TIS, and that of both masks for a token's ratio or a response's geometric mean."""


class Auto(Capped):
    """none where the ratio runs against the sampler's numbers, else ``truncate``"""

    kind: Literal["auto"] = "auto"


class NoCorrection(CorrectionKind):
    """w = 1"""

    kind: Literal["none"] = "none"


class ReportOnly(CorrectionKind):
    """w = 1, and the gap is in the metrics as always"""

    kind: Literal["report"] = "report"


class Untruncated(CorrectionKind):
    """the ratio itself"""

    kind: Literal["untruncated"] = "untruncated"


class Truncate(Capped):
    """TIS"""

    kind: Literal["truncate"] = "truncate"


class TruncateSequence(CorrectionKind):
    """TIS of a whole response"""

    kind: Literal["truncate_sequence"] = "truncate_sequence"
    sequence_cap: Above = 5.0
    """Upper bound of the product of a response's ratios."""


class Mask(Capped):
    floor: Factor = 0.5
    """Lower bound of the mask."""


class MaskToken(Mask):
    """IcePop"""

    kind: Literal["mask_token"] = "mask_token"


class MaskSequence(Mask):
    """rejection of whole responses by the geometric mean of their ratios"""

    kind: Literal["mask_sequence"] = "mask_sequence"
    token_cap: Above | None = 2.0
    """Upper bound of a token's ratio in a response that passes; null: untruncated."""


class MaskOffPolicy(CorrectionKind):
    """no loss in a response with a negative advantage that the policy has left (DeepSeek-V3.2)"""

    kind: Literal["mask_off_policy"] = "mask_off_policy"
    threshold: Above = 0.5
    """Largest mean of log sampler - log policy over the loss tokens of a response, nats."""


Correction = Annotated[
    Auto
    | NoCorrection
    | ReportOnly
    | Untruncated
    | Truncate
    | TruncateSequence
    | MaskToken
    | MaskSequence
    | MaskOffPolicy,
    OneOf(),
]
