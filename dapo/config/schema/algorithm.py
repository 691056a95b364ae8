"""The recipe's section ``algorithm``: DAPO and its relatives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import LARGE, Above, Factor, Hook, Pair, Positive, Section, Signed, Whole


class Clip(Section):
    low: Above = 0.2
    """eps_low."""
    high: Above = 0.28
    """eps_high: clip-higher when above ``low``."""
    dual: Annotated[float, Field(gt=1, le=LARGE)] | None = None
    """Dual clip c: with a negative advantage the loss is at most -A c. Not in the paper; 10 in its scripts."""


class Loss(Section):
    kind: Literal["clip", "cispo", "sapo", "clip_cov", "kl_cov"] | Hook = "clip"
    """``clip`` (DAPO, GRPO, GSPO), ``cispo``, ``sapo``, ``clip_cov``, ``kl_cov``, or ``package.module:function``."""
    ratio: Literal["token", "sequence"] = "token"
    """``sequence``: GSPO's ratio, with clip bounds near 3e-4 / 4e-4 and reduction sequence_mean (preset ``gspo``)."""
    reduction: Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"] = (
        "token_mean"
    )
    """How token losses become one number; see docs/algorithm.md."""
    constant_length: Positive | None = None
    """For ``constant``: the fixed length; None: ``rollout.max_response_tokens``."""
    micro_batch_sequences: Positive | None = None
    """For ``micro_batch_mean``: sequences per micro-batch."""
    micro_batch_weighted: bool = True
    """For ``micro_batch_mean``: weight micro-batches by their number of sequences (verl <= 0.6) or not (bnpo)."""
    cispo_cap: Above = 5.0
    """For ``cispo``: absolute upper bound of the ratio."""
    cispo_floor: Factor | None = None
    """For ``cispo``: lower bound of the ratio."""
    sapo_positive: Above = 1.0
    """For ``sapo``: steepness of the gate where the advantage is above 0."""
    sapo_negative: Above = 1.05
    """For ``sapo``: steepness of the gate elsewhere."""
    cov_share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """For ``clip_cov`` and ``kl_cov``: share of the tokens with loss that are treated apart, one at least."""
    cov_above: Signed = 1.0
    """For ``clip_cov``: only tokens with a covariance above it."""
    cov_below: Signed = 5.0
    """For ``clip_cov``: and below it."""
    cov_coefficient: Above = 1.0
    """For ``kl_cov``: of the penalty on these tokens."""


class Advantage(Section):
    kind: Literal["group", "gdpo"] | Hook = "group"
    """``group`` (eq. 9 and its variants), ``gdpo`` (each reward by itself), or ``package.module:function``."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What is subtracted."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What is divided by; ``none`` is Dr. GRPO."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom of the standard deviation."""
    eps: Factor = 1e-6
    """Added to the standard deviation."""


class DynamicSampling(Section):
    mode: Literal["off", "filter", "mask", "replace"] = "filter"
    """``filter``: rejected groups are replaced by new ones until P are kept. ``mask``: zero-variance groups are dropped
    without refill (OLMo, ScaleRL). ``replace``: rejected groups are replaced by copies of kept ones (SkyRL). ``off``:
    every group with two voters trains."""
    min_replace_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """For ``replace``: copies are made once more than this share of P is kept; until then prompts are added."""
    metric: str = "accuracy"
    """Score the keep decision reads. Accuracy: 0 < correct < G. Any other: max - min > tolerance."""
    keep: Hook | None = None
    """Your own keep rule, ``package.module:function``."""
    correct_at: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Accuracy from which a response is correct."""
    tolerance: Factor = 1e-6
    """For metrics other than accuracy."""
    band: Pair | None = None
    """Keep only groups whose mean metric lies in [low, high]."""
    oversample: Annotated[float, Field(ge=1, le=1000)] | None = None
    """Groups dispatched per missing group, in rounds: at the start of a step, and then only when nothing is under way.
    None: 1 / measured acceptance rate, and each rejected group is replaced at once."""
    lookahead: Annotated[float, Field(ge=0, le=100)] = 0.5
    """Work for the next step that is started early, in multiples of what a step needs, so that slots do not idle while
    the last responses end. Only with ``surplus`` and ``unfinished`` at ``carry``. Fewer decode steps, older tokens."""
    max_groups: Annotated[float, Field(ge=1, le=1e6)] | None = 20.0
    """Cap per step: groups dispatched, in multiples of P. None: no cap (a warning says so)."""
    max_tokens: Positive | None = None
    """Cap per step: from so many generated tokens on nothing more is dispatched; what is under way is finished."""
    on_cap: Literal["stop", "train_partial", "fill"] = "stop"
    """At a cap or the end of the data: ``stop`` (state saved, the error names the cause), ``train_partial`` (smaller
    batch), ``fill`` (top up with rejected groups; their tokens count in N)."""
    surplus: Literal["carry", "discard"] = "carry"
    """Kept groups beyond P."""
    unfinished: Literal["carry", "drain", "discard"] = "carry"
    """Responses still decoding when P groups are kept: ``carry`` (continued next step under the new weights, each token
    with its own version), ``drain`` (waited for) or ``discard``."""
    max_age: Whole = 4
    """Oldest a trained group may be, in versions of the weights: from those that the engine had when it was sent the
    group to those that are trained. Without overlap these are training steps. 0: nothing is carried over."""
    on_max_age: Literal["wait", "drop"] = "wait"
    """At the age limit: ``wait`` for what is held (drops nothing; at most P x (max_age + 1) groups are held at once),
    or ``drop`` it."""
    retire_at: Annotated[float, Field(gt=0, le=1)] | None = None
    """Retire a prompt when the pass rate of its last visit reaches this; None: never."""
    review_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Probability that a retired prompt is taken all the same when its turn comes."""
    easy_at: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With ``easy_share``: pass rate of its last visit from which a prompt is easy."""
    easy_share: Annotated[float, Field(ge=0.01, le=1)] = 1.0
    """Probability that an easy prompt is taken when its turn comes."""
    hard_at: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """With ``hard_share``: pass rate of its last visit up to which a prompt is hard."""
    hard_share: Annotated[float, Field(ge=0.01, le=1)] = 1.0
    """Probability that a hard prompt is taken when its turn comes."""
    greso: bool = False
    """Skip prompts whose groups had no variance, more likely the longer they had none (GRESO, arXiv 2506.02177)."""
    greso_target: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """For ``greso``: share of zero-variance groups aimed at, one third of it all correct, two thirds all wrong."""
    verdict_lag: Whole | None = None
    """Engine steps after the last response of a group ended at which its verdict takes effect; None: 0 where every
    reward is quick (`exact`, `regex`, what runs in the driver), 16 otherwise."""


class OverlongPunishment(Section):
    enabled: bool = True
    """Soft overlong punishment (eq. 13), added after the keep decision."""
    max_length: Positive | None = None
    """Lmax; None: ``rollout.max_response_tokens``."""
    cache_length: Positive | None = None
    """Lcache: the penalty grows from Lmax - Lcache; None: Lmax / 5."""
    factor: Factor = 1.0
    """Multiplies the penalty."""


class RewardScaling(Section):
    enabled: bool = True
    """Clamp the weighted sum of the rewards to source, then map it linearly to target."""
    source_min: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    """Smallest weighted sum; what lies below is clamped to it (``reward/clamped``)."""
    source_max: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Largest weighted sum, such as 1.2 for weights 1 and 0.2; what lies above is clamped to it."""
    target_min: Annotated[float, Field(ge=-1e6, le=1e6)] = -1.0
    """Lower end of the scaled reward."""
    target_max: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Upper end of the scaled reward."""


class Correction(Section):
    kind: Literal[
        "auto", "none", "report", "untruncated", "truncate", "truncate_sequence", "mask_token", "mask_sequence"
    ] = "auto"
    """For ``old_logprobs: learner`` and ``interpolated``; docs/algorithm.md has the formulas. ``truncate`` is TIS,
    ``mask_token`` IcePop. ``auto``: none where the ratio runs against the sampler's numbers, else truncate."""
    cap: Above = 2.0
    """C of TIS, and upper bound of both masks: of a token's ratio, or of a sequence's geometric mean."""
    floor: Factor = 0.5
    """Lower bound of both masks."""
    token_cap: Above | None = 2.0
    """For ``mask_sequence``: upper bound of a token's ratio in a sequence that passes; None: untruncated."""
    sequence_cap: Above = 5.0
    """For ``truncate_sequence``: upper bound of the product of a sequence's ratios."""


class Reference(Section):
    refresh_every: Positive | None = None
    """Training steps after which the reference becomes the present policy; None: it stays the model of the start."""
    offload: bool = False
    """Keep the reference's weights in the CPU's memory between passes."""


class EntropyControl(Section):
    target: Above | None = None
    """Mean entropy of the tokens with loss to adapt the coefficient to, nats; None: it is fixed. The bonus acts only in
    steps after one below the target (a penalty, with ``min`` below 0, only after one above)."""
    delta: Above = 0.005
    """What the coefficient moves by after each training step: up below the target, down above it."""
    min: Signed = 0.0
    """Lower bound of the coefficient; below 0 entropy can be taxed as well."""
    max: Signed = 0.1
    """Upper bound of the coefficient."""


class Algorithm(Section):
    clip: Clip = Clip()
    """Bounds of the probability ratio."""
    loss: Loss = Loss()
    """The surrogate and its reduction."""
    advantage: Advantage = Advantage()
    """Group-relative advantage."""
    dynamic_sampling: DynamicSampling = DynamicSampling()
    """Which groups train, and what happens until enough do."""
    overlong_punishment: OverlongPunishment = OverlongPunishment()
    """Length penalty."""
    overlong_filtering: bool = True
    """Truncated responses carry no loss and do not vote."""
    truncated_vote: bool | None = None
    """Truncated responses count in mean, std and keep decision; None: unless ``overlong_filtering``."""
    reward_scaling: RewardScaling = RewardScaling()
    """DAPO rewards are +1 / -1."""
    shaping: Hook | None = None
    """Your own reward shaping instead of scaling and length penalty, ``package.module:function``."""
    old_logprobs: Literal["auto", "sampler", "learner", "interpolated"] = "auto"
    """What the ratio runs against. ``auto``: sampler for the embedded engine in float32, learner for any other engine,
    in bfloat16, where engine and learner round differently, and without ``rollout.recompute_cache``. ``interpolated``
    (A-3PO): between both, by the age of each token, instead of a forward pass of ``learner``."""
    correction: Correction = Correction()
    """Sampler-learner importance correction."""
    kl_coefficient: Factor = 0.0
    """KL against a reference, the model that the run began with. 0, as in DAPO: no reference is kept."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the term in the loss; docs/algorithm.md has the formulas. GRPO has k3."""
    kl_in_reward: bool = False
    """Subtract the KL from each response's reward (k1, summed over its tokens) instead of adding it to the loss."""
    reference: Reference = Reference()
    """What KL is measured against."""
    entropy_coefficient: Signed = 0.0
    """Bonus for entropy in the loss (below 0: a tax); with ``entropy_control.target`` where the coefficient begins."""
    entropy_control: EntropyControl = EntropyControl()
    """A coefficient that follows the entropy."""
