"""Options of the kinds of loss, reduction, advantage and importance correction: one class for each kind.

A section with kinds holds one of these classes; its key ``kind`` says which. The first line of a class is what
docs/configuration.md says of the kind. An option that several kinds have means the same in each, in the same words.
``dapo/algorithms/registry.py`` has the functions, and ``dapo/config/check_loss.py`` refuses options that contradict.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dapo.config.section import Above, Factor, Hook, OneOf, Positive, Section, Signed

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
    """The fixed length; None: ``rollout.max_response_tokens``."""


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


class LossKind(Section):
    """Settings that every loss has."""

    clips: ClassVar[tuple[str, ...]] = ()
    """Keys of ``algorithm.clip`` that the loss reads."""

    kind: str
    reduction: Reduction = TokenMean()
    """How token losses become one number; see docs/algorithm.md."""


class ClippedLoss(LossKind):
    """DAPO, GRPO and GSPO"""

    clips = ("low", "high", "dual")

    kind: Literal["clip"] = "clip"
    ratio: Literal["token", "sequence"] = "token"
    """``sequence``: GSPO's ratio, with clip bounds near 3e-4 / 4e-4 and reduction sequence_mean (preset ``gspo``)."""


class Cispo(LossKind):
    """CISPO"""

    kind: Literal["cispo"] = "cispo"
    cap: Above = 5.0
    """Absolute upper bound of the ratio."""
    floor: Factor | None = None
    """Lower bound of the ratio; None: none."""


class Sapo(LossKind):
    """SAPO"""

    kind: Literal["sapo"] = "sapo"
    positive: Above = 1.0
    """Steepness of the gate where the advantage is above 0."""
    negative: Above = 1.05
    """Steepness of the gate elsewhere."""


class Covariance(LossKind):
    """Settings that both losses with covariances have."""

    share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of the tokens with loss that are treated apart, one at least."""


class ClipCov(Covariance):
    """Clip-Cov"""

    clips = ("low", "high")

    kind: Literal["clip_cov"] = "clip_cov"
    above: Signed = 1.0
    """Only tokens with a covariance above it are treated apart."""
    below: Signed = 5.0
    """Only tokens with a covariance below it are treated apart."""


class KlCov(Covariance):
    """KL-Cov"""

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
    """Settings that every advantage has."""

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

    kind: Literal["group"] = "group"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What is subtracted."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What is divided by; ``none`` is Dr. GRPO."""


class Gdpo(Normalised):
    """GDPO, each reward by itself"""

    by_reward = True

    kind: Literal["gdpo"] = "gdpo"


class OwnAdvantage(AdvantageKind):
    """your function"""

    kind: Hook
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of your function."""


Advantage = Annotated[GroupAdvantage | Gdpo | OwnAdvantage, OneOf()]

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
    """Upper bound of a token's ratio in a response that passes; None: untruncated."""


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
