"""The recipe's section ``algorithm``: DAPO and its relatives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.schema.kinds import (
    Advantage,
    AdvantageClip,
    AdvantageNorm,
    Auto,
    Clip,
    ClippedLoss,
    Correction,
    GroupAdvantage,
    Loss,
)
from dapo.config.section import FREE, Above, Factor, Hook, Pair, Positive, Section, Signed, Variable, Whole


class Replace(Section):
    min_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Copies are made once more than this share of P is kept; until then prompts are added."""


class Cap(Section, resume="free"):
    groups: Annotated[float, Field(ge=1, le=1e6)] | None = 20.0
    """Groups that a step may dispatch, in multiples of P. null: no cap (a warning says so)."""
    tokens: Positive | None = None
    """After so many generated tokens a step dispatches nothing more; begun responses are finished."""
    then: Literal["stop", "train_partial", "fill"] = "stop"
    """At a cap or the end of the data: ``stop`` (state saved, the error names the cause), ``train_partial`` (smaller
    batch), ``fill`` (top up with rejected groups; their tokens count in N)."""


class Retire(Section):
    at: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Pass rate of its last visit from which a prompt is retired."""
    review: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Probability that a retired prompt is taken all the same when its turn comes."""


class GresoSection(Section):
    target: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of zero-variance groups aimed at, one third of it all correct, two thirds all wrong."""


class Easy(Section):
    at: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Pass rate of its last visit from which a prompt is easy."""
    share: Annotated[float, Field(ge=0.01, le=1)]
    """Probability that an easy prompt is taken when its turn comes."""


class Hard(Section):
    at: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Pass rate of its last visit up to which a prompt is hard."""
    share: Annotated[float, Field(ge=0.01, le=1)]
    """Probability that a hard prompt is taken when its turn comes."""


class Selection(Section):
    retire: Retire | None = None
    """Retire solved prompts, such as ``{at: 1.0}``; null: never."""
    greso: GresoSection | None = None
    """Skip prompts whose groups had no variance, more likely the longer they had none (GRESO, arXiv 2506.02177), such
    as ``{target: 0.25}``; null: take them."""
    easy: Easy | None = None
    """Take easy prompts less often, such as ``{share: 0.25}``; null: as often as others."""
    hard: Hard | None = None
    """Take hard prompts less often, such as ``{share: 0.25}``; null: as often as others."""


class DynamicSampling(Section):
    mode: Literal["off", "filter", "mask", "replace"] = "filter"
    """``filter``: rejected groups are replaced by new ones until P are kept. ``mask``: zero-variance groups are dropped
    without refill (OLMo, ScaleRL). ``replace``: rejected groups are replaced by copies of kept ones (SkyRL). ``off``:
    every group with two voters trains."""
    metric: str = "accuracy"
    """Score the keep decision reads; ``mixed`` says how."""
    mixed: Literal["auto", "correct", "spread"] = "auto"
    """When a group can teach. ``correct``: 0 < correct < G, by ``correct_at``. ``spread``: max - min > ``tolerance``,
    for scores that are fractions. ``auto``: ``correct`` for an accuracy that is 0 or 1; ``spread`` for other scores,
    and for an accuracy of ``kind: service`` or of ``kind: code`` with ``partial``."""
    keep: Hook | None = None
    """Your own keep rule, ``package.module:function``."""
    correct_at: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Accuracy from which a response is correct."""
    tolerance: Factor = 1e-6
    """For ``spread``: the largest difference of scores that counts as none."""
    band: Pair | None = None
    """Keep only groups whose mean metric lies in [low, high]."""
    oversample: Annotated[float, Field(ge=1, le=1000)] | None = None
    """Groups dispatched per missing group, in rounds: at the start of a step, and then only when nothing is under way.
    null: 1 / measured acceptance rate, and each rejected group is replaced at once."""
    lookahead: Annotated[float, Field(ge=0, le=100)] = 0.5
    """Work for the next step that is started early, in multiples of what a step needs, so that slots do not idle while
    the last responses end. Only with ``surplus`` and ``unfinished`` at ``carry``. Fewer decode steps, older tokens."""
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
    verdict_lag: Whole | None = None
    """Engine steps after the last response of a group ended at which its verdict takes effect; null: 0 where every
    reward is quick (`exact`, `regex`, what runs in the driver), 16 otherwise. Without effect where
    ``rollout.max_staleness`` is above 0 and ``rollout.overlap_turns`` null: a verdict takes effect when it is there."""
    replace: Replace = Replace()
    """For ``mode: replace``."""
    cap: Cap = Cap()
    """What one step may spend, and what happens then."""
    selection: Selection = Selection()
    """Which prompts are taken less often, by the history of their groups. Each part is off unless it is given."""


class OverlongPunishment(Section):
    enabled: bool = True
    """Soft overlong punishment (eq. 13), added after the keep decision."""
    max_length: Positive | None = None
    """Lmax; null: ``rollout.max_response_tokens``."""
    cache_length: Positive | None = None
    """Lcache: the penalty grows from Lmax - Lcache; null: Lmax / 5."""
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


class ReferenceSection(Section, resume="fixed"):
    refresh_every: Positive | None = None
    """Training steps after which the reference becomes the present policy; null: it stays the model of the start."""
    offload: Annotated[bool, FREE] = False
    """Keep the reference's weights in the CPU's memory between passes."""


class TeacherSection(Section):
    path: str | None = None
    """Model that judges each token of the student's responses: a folder, a GGUF file, a hub name, or the address of a
    vLLM server, such as ``http://localhost:8000``, with the student's vocabulary (docs/distillation.md). null: there is
    none, or only those of ``by_source``."""
    by_source: dict[str, str] = Field(default_factory=dict)
    """Teachers of single data sources, by the source's name, such as ``{math: FOLDER}``. Other sources have that of
    ``path``, or none."""
    term: Literal["advantage", "loss"] = "advantage"
    """Where the reverse KL of a token acts. ``advantage``: log p_teacher - log p_student, a constant, is added to the
    token's advantage. ``loss``: an estimate of KL(student, teacher) is added to the loss, past clip and correction."""
    coefficient: Factor = 1.0
    """Multiplies the term. It acts along with rewards, or alone where no reward has a weight (``rewards: []``)."""
    estimator: Literal["k1", "k2", "k3"] = "k2"
    """For ``term: loss``; docs/losses.md has the formulas. The mean gradient of k2 is that of the reverse KL."""
    offload: Annotated[bool, FREE] = False
    """Keep the teacher's weights in the CPU's memory between passes."""
    patience: Annotated[float, Field(gt=0, le=2_592_000), FREE] = 600.0
    """Seconds that a server may take for an answer, or be away, before the run is saved and stopped."""
    api_key_variable: Annotated[Variable | None, FREE] = None
    """Name of the environment variable that holds the servers' key; None: they want none."""


class EntropyControlSection(Section):
    target: Above | None = None
    """Mean entropy of the tokens with loss to adapt the coefficient to, nats; null: it is fixed. The bonus acts only in
    steps after one below the target (a penalty, with ``min`` below 0, only after one above)."""
    delta: Above = 0.005
    """What the coefficient moves by after each training step: up below the target, down above it."""
    min: Signed = 0.0
    """Lower bound of the coefficient; below 0 entropy can be taxed as well."""
    max: Signed = 0.1
    """Upper bound of the coefficient."""


class AlgorithmSection(Section):
    clip: Clip = Clip()
    """Bounds of the probability ratio, for losses with a clip."""
    loss: Loss = ClippedLoss()
    """The surrogate and its reduction."""
    advantage: Advantage = GroupAdvantage()
    """Group-relative advantage."""
    advantage_norm: AdvantageNorm | None = None
    """Normalise the advantages once more, such as ``{mean: batch, std: batch}`` over all tokens with loss of a training
    step; null: they stay as they are."""
    advantage_clip: AdvantageClip = AdvantageClip()
    """Bounds of the advantages, after all else (``reward/advantage_clipped``)."""
    dynamic_sampling: DynamicSampling = DynamicSampling()
    """Which groups train, and what happens until enough do."""
    overlong_punishment: OverlongPunishment = OverlongPunishment()
    """Length penalty."""
    overlong_filtering: bool = True
    """Truncated responses carry no loss and do not vote."""
    truncated_vote: bool | None = None
    """Truncated responses count in mean, std and keep decision; null: unless ``overlong_filtering``."""
    truncated_factor: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Multiplies the scaled rewards of truncated responses, where those vote (NeMo RL's
    ``stop_properly_penalty_coef``)."""
    reward_scaling: RewardScaling = RewardScaling()
    """DAPO rewards are +1 / -1."""
    shaping: Hook | None = None
    """Your own reward shaping instead of scaling and length penalty, ``package.module:function``."""
    old_logprobs: Literal["auto", "sampler", "learner", "interpolated"] = "auto"
    """What the ratio runs against. ``auto``: sampler for the embedded engine in float32, learner for any other engine,
    in bfloat16, where engine and learner round differently, and without ``rollout.embedded.recompute_cache``.
    ``interpolated`` (A-3PO): between both, by the age of each token, instead of a forward pass of ``learner``."""
    correction: Correction = Auto()
    """Sampler-learner importance correction, for ``old_logprobs: learner`` and ``interpolated`` (``mask_off_policy``:
    for all); docs/correction.md has
    the formulas."""
    kl_coefficient: Factor = 0.0
    """KL against a reference, the model that the run began with. 0, as in DAPO: no reference is kept."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the term in the loss; docs/losses.md has the formulas. GRPO has k3."""
    kl_in_reward: bool = False
    """Subtract the KL from each response's reward (k1, summed over its tokens) instead of adding it to the loss."""
    reference: ReferenceSection = ReferenceSection()
    """What KL is measured against."""
    teacher: TeacherSection = TeacherSection()
    """On-policy distillation: another model judges the student's own tokens."""
    entropy_coefficient: Signed = 0.0
    """Bonus for entropy in the loss (below 0: a tax); with ``entropy_control.target`` where the coefficient begins."""
    entropy_control: EntropyControlSection = EntropyControlSection()
    """A coefficient that follows the entropy."""
