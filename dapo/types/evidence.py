"""Facts of a step that collects a batch, and its state when it gave up: counts, shares and codes.

The code that shows them finds the words (``dapo.observe.sentences``, ``dapo.observe.why``, ``dapo.report``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

HEALTHY = 0.3
"""Share of groups kept from which nothing needs a fix: a step then costs at most 3.3 batches."""
FRACTION = 0.1
"""Mean accuracy from which all-wrong groups may be partly right rather than wrong."""
BOTH = 0.25
"""Share of all-wrong and of all-correct groups from which neither is the cause alone."""
UNREAD = 0.2
"""Share of responses with an answer below which the verifier is suspected, and not the model."""
SURE = 16
"""Judged groups from which the share that is kept says whether the batch will fill; a quarter of P where that is more,
and of a cap where that is less."""
LARGER = 4
"""Times the group size: the larger groups of which ``Hopeless`` tells."""

Met = Literal["cap.groups", "cap.tokens", "data", "retired"]
"""What a step met before its batch was full: a cap, the end of the data, or nothing left but retired prompts."""


class Cause(StrEnum):
    """The likely cause of a batch that does not fill; ``Shares`` has its numbers."""

    UNJUDGED = "unjudged"  # no group was judged
    NONE = "none"  # enough groups are kept
    FRACTIONS = "fractions"  # all wrong, yet partly right: ``correct_at`` is too high for scores that are fractions
    TRUNCATED = "truncated"  # all wrong, and most responses are cut off
    UNREAD = "unread"  # all wrong, and the verifier finds no answer in nearly all of the responses
    TOO_HARD = "too_hard"
    SOLVED = "solved"
    FEW_BETWEEN = "few_between"  # solved or hopeless, few between
    TOO_FEW_SCORED = "too_few_scored"  # groups with fewer than two responses that vote
    NO_VOTE = "no_vote"  # the same, since most responses are truncated, and those do not vote
    OUT_OF_BAND = "out_of_band"
    UNIFORM = "uniform"
    UNKNOWN = "unknown"  # few are kept, and no verdict says why


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Prompts that were all wrong at their last visit and were judged before.

    By each one's pass rate until then: the last visit chose these prompts, so it says nothing of how often they are
    solved.

    >>> Hopeless(prompts=3, solved=1, mixed=0.2, mixed_larger=0.6).prompts
    3
    """

    prompts: int
    solved: int  # of them, those that were ever solved
    mixed: float  # mean probability that a group of G of theirs has both correct and wrong responses
    mixed_larger: float  # the same of a group of ``LARGER`` x G


ENGINE = "engine: "
"""What begins the reason of a response that the engine, and not the verifier, could not finish."""
ENVIRONMENT = "environment: "
"""What begins the reason of a response whose environment failed."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Use of the judged groups. Shares of groups unless said; they need not add up to 1.

    >>> Shares(kept=0.25, all_wrong=0.75, judged=40, prompts_per_step=32, group_size=16).judged
    40
    """

    kept: float = 0.0
    all_correct: float = 0.0
    all_wrong: float = 0.0
    uniform: float = 0.0
    out_of_band: float = 0.0
    too_few_scored: float = 0.0
    judged: int = 0  # groups behind these shares
    truncated: float = 0.0  # share of the responses
    accuracy: float = 0.0  # mean over the scored responses
    correct_at: float = 1.0  # accuracy from which a response is correct
    answered: float | None = None  # share of the scored responses in which the verifier found an answer; None: unknown
    truncated_vote: bool = False  # whether truncated responses vote
    unscored: Mapping[str, int] = field(default_factory=dict)  # responses without a score, by reason
    prompts_per_step: int = 0  # P
    group_size: int = 0  # G
    dispatched: int = 0  # groups
    generated_tokens: int = 0
    data_ended: bool = False  # the passes that the recipe allows are over
    all_retired: bool = False  # no prompt is left that is not retired
    hopeless: Hopeless | None = None


@dataclass(frozen=True, slots=True)
class CollectProgress:
    """How far the batch of a step is, after a judged group.

    >>> CollectProgress(step=4, kept=20, wanted=32, judged=50, shares=Shares()).wanted
    32
    """

    step: int
    kept: int  # groups ready to train, those carried into the step included
    wanted: int  # P
    judged: int  # groups, in this step
    shares: Shares  # of this step
    generated_tokens: int = 0  # in this step
    waiting: int = 0  # responses that ended and have no score yet
    cap_groups: float | None = None  # that the step may dispatch; None: without a limit
    cap_tokens: float | None = None  # that it may generate

    @property
    def groups_needed(self) -> float:
        """Groups that are judged until the batch is full, if the share that was kept so far stays; inf: no batch gets
        full."""
        missing = max(0, self.wanted - self.kept)
        return self.judged + (missing / self.shares.kept if self.shares.kept else math.inf if missing else 0.0)

    @property
    def starves(self) -> bool:
        """Whether enough groups were judged to say that the batch never gets full, or not before a cap is met."""
        groups = math.inf if self.cap_groups is None else self.cap_groups
        if self.judged < min(max(SURE, self.wanted / 4), groups / 4):
            return False
        tokens = math.inf if self.cap_tokens is None else self.cap_tokens
        needed = self.groups_needed
        spent = self.generated_tokens / max(1, self.judged) * needed if math.isfinite(needed) else math.inf
        return math.isinf(needed) or needed > groups or spent > tokens


@dataclass(frozen=True, slots=True)
class Awaited:
    """Counts of what engine, environments and verifiers owe; equal ones show that nothing happened in between.

    >>> Awaited(scores=12, clock=30).scores
    12
    """

    decoding: int = 0  # responses that the engine makes or will make
    replies: int = 0  # episodes whose environment is to answer
    scores: int = 0  # responses whose verifier is to answer
    scored: int = 0  # responses with a score that is not in effect
    effect_at: int | None = None  # engine step at which the first of those scores takes effect; None: it has no step
    clock: int = 0  # the engine's step
    happened: int = 0  # responses that ended, replies that took effect and scores that arrived, so far


@dataclass(frozen=True, slots=True)
class Stillness:
    """Nothing moved for a while.

    >>> Stillness(step=3, phase="score", seconds=60.0, since=1e9, awaited=Awaited(scores=1)).phase
    'score'
    """

    step: int  # the training step that goes on
    phase: str  # of it: a name of ``dapo.metrics.glossary.PHASES``, or "other"
    seconds: float  # since something moved last
    since: float  # when that was, in seconds since 1970
    awaited: Awaited | None  # None: the method samples nothing


@dataclass(frozen=True, slots=True)
class StuckEvidence:
    """A batch that can never fill: groups are held, and nothing is awaited that could change them.

    >>> StuckEvidence(step=2, kept=3, wanted=4, groups=1, awaited=Awaited(scored=4, effect_at=32, clock=30)).kind
    'stuck'
    """

    step: int
    kept: int  # groups ready to train
    wanted: int  # P
    groups: int  # held and not judged
    awaited: Awaited
    kind: Literal["stuck"] = "stuck"


@dataclass(frozen=True, slots=True)
class Example:
    """One response of a rejected group. Untrusted text.

    >>> Example("3 + 4", "7", "8", accuracy=0.0).response
    '8'
    """

    problem: str
    answer: str  # the gold answer
    response: str
    accuracy: float | None  # None: unscored
    reason: str | None = None  # why it is unscored


@dataclass(frozen=True, slots=True)
class StopEvidence:
    """A step could not fill its batch, and the recipe says ``cap.then: stop``.

    >>> StopEvidence("cap.groups", 20.0, kept=3, wanted=32, shares=Shares(), cause=Cause.TOO_HARD).cause.value
    'too_hard'
    """

    met: Met
    limit: float | None  # of a cap: groups for each group of the batch, or tokens
    kept: int  # groups ready to train, those carried into the step included
    wanted: int  # P
    shares: Shares  # of this step
    cause: Cause
    example: Example | None = None  # of the commonest reason for rejection
    kind: Literal["unfilled"] = "unfilled"


@dataclass(frozen=True, slots=True)
class UnscoredEvidence:
    """Not one response of a step, and of those right before it, could be scored.

    >>> UnscoredEvidence(responses=32, reasons={"timeout": 32}, engine=False).kind
    'unscored'
    """

    responses: int
    reasons: Mapping[str, int]  # responses by the commonest reasons
    engine: bool  # most of them are responses that the engine could not finish
    kind: Literal["unscored"] = "unscored"


@dataclass(frozen=True, slots=True)
class SilentEvidence:
    """Held-out sets of which no response has an accuracy.

    >>> SilentEvidence({"held_out": "timeout"}, engine=False).kind
    'silent'
    """

    reasons: Mapping[str, str]  # by set: the commonest reason
    engine: bool  # the engine finished none of them
    kind: Literal["silent"] = "silent"


@dataclass(frozen=True, slots=True)
class DataEnded:
    """No prompt is left: the run is at its end before ``trainer.steps``.

    >>> DataEnded(steps=40, retired=False).kind
    'data_ended'
    """

    steps: int  # training steps that are done
    retired: bool  # every prompt is retired; False: ``data.epochs`` are over
    rejected: int = 0  # groups judged since, none of which could be trained on
    kind: Literal["data_ended"] = "data_ended"


@dataclass(frozen=True, slots=True)
class NoGain:
    """``trainer.early_stop``: the metric was not better for too long, so the run is at its end.

    >>> NoGain("validation/accuracy", times=5, patience=5, best=0.6, best_step=40).best_step
    40
    """

    metric: str
    times: int  # in a row
    patience: int
    best: float
    best_step: int
    kind: Literal["no_gain"] = "no_gain"


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """``trainer.max_hours``: no time for another step; a resume goes on.

    >>> OutOfTime(hours=4.0, passed=14_000.0, longest=130.0).kind
    'out_of_time'
    """

    hours: float
    passed: float  # seconds since the command began
    longest: float | None  # seconds of the longest step; None: there was none
    kind: Literal["out_of_time"] = "out_of_time"
    in_step: bool = False  # a step was begun, and left in its middle


@dataclass(frozen=True, slots=True)
class ClusterLost:
    """Nothing starts on the run's Ray cluster any more. What runs there may go on for a while; a resume goes on.

    >>> ClusterLost("head", "node-1:6379").silent
    False
    """

    part: Literal["head", "machine"]  # its gcs_server; the raylet of the driver's own machine
    address: str  # of the head
    silent: bool = False  # it is there, and does not answer; else it is gone
    kind: Literal["cluster_lost"] = "cluster_lost"


Evidence = (
    StopEvidence | UnscoredEvidence | StuckEvidence | SilentEvidence | DataEnded | NoGain | OutOfTime | ClusterLost
)


@dataclass(frozen=True, slots=True)
class PoorBatch:
    """``cap.then: train_partial`` or ``fill`` goes on where a batch did not fill.

    >>> PoorBatch(useful=3, in_a_row=2, shares=None).useful
    3
    """

    useful: int  # groups to learn from
    in_a_row: int  # steps of which that is so, this one included
    shares: Shares | None


@dataclass(frozen=True, slots=True)
class Clamping:
    """Reward scaling clamps rewards away: what differs beyond its range teaches nothing, whatever its weight.

    >>> Clamping(share=0.1, low=0.0, high=1.0, least=0.0, greatest=1.2).greatest
    1.2
    """

    share: float  # of the rewards of a step
    low: float  # the range of the scaling
    high: float
    least: float  # the range of the rewards
    greatest: float


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """A supervised run measured its held-out sets.

    >>> HeldOutLoss(loss=0.7).loss
    0.7
    """

    loss: float  # nats a token, over the tokens of all sets; nan: they have none


Notice = PoorBatch | Clamping | SilentEvidence | HeldOutLoss
"""What a person should know of a step, though the run goes on."""


Signal = Literal["Ctrl-C", "SIGTERM"]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A first signal: the run saves and ends.

    >>> Interrupted("SIGTERM").cause
    'SIGTERM'
    """

    cause: Signal


@dataclass(frozen=True, slots=True)
class LeftInStep:
    """Say in which step a stop left the sampling, and what the checkpoint has of it.

    >>> LeftInStep(step=5, kept=True, groups=3, wanted=8, responses=12).step
    5
    """

    step: int
    kept: bool  # a resume goes on from there; False: it samples the step anew, to the same digits
    groups: int  # kept for the batch
    wanted: int  # groups of a batch
    responses: int  # unfinished


@dataclass(frozen=True, slots=True)
class LeftAtOnce:
    """A second signal: the process ends in the middle of a step.

    >>> LeftAtOnce(saved=40, folder="runs/mine/checkpoints").saved
    40
    """

    saved: int | None  # step of the last checkpoint
    folder: str  # of the checkpoints


Ending = DataEnded | NoGain | OutOfTime | ClusterLost | Interrupted | LeftInStep | LeftAtOnce
"""Why no further step is begun, told at once; a run that ends well at ``trainer.steps`` has none."""


def cause_of(shares: Shares) -> Cause:
    """Return the likely cause of a batch that does not fill: the commonest verdict of rejected groups, looked at
    closely."""
    if not shares.judged:
        return Cause.UNJUDGED
    if shares.kept >= HEALTHY:
        return Cause.NONE
    by_verdict = {
        Cause.TOO_HARD: shares.all_wrong,
        Cause.SOLVED: shares.all_correct,
        Cause.TOO_FEW_SCORED: shares.too_few_scored,
        Cause.OUT_OF_BAND: shares.out_of_band,
        Cause.UNIFORM: shares.uniform,
    }
    commonest = max(by_verdict, key=lambda cause: by_verdict[cause])
    if not by_verdict[commonest]:
        return Cause.UNKNOWN
    alike = shares.all_wrong + shares.all_correct
    if alike > 0.5 and (by_verdict[commonest] < 0.5 or min(shares.all_wrong, shares.all_correct) >= BOTH):
        return Cause.FEW_BETWEEN
    cut_off = shares.truncated > 0.5 or (shares.truncated > 0.0 and not shares.unscored)
    if commonest is Cause.TOO_FEW_SCORED and cut_off and not shares.truncated_vote:
        return Cause.NO_VOTE
    if commonest is not Cause.TOO_HARD:
        return commonest
    if shares.accuracy > max(FRACTION, 1.0 - shares.all_wrong):  # more than the other groups give, were they all right
        return Cause.FRACTIONS
    if shares.truncated > 0.5:
        return Cause.TRUNCATED
    if shares.answered is not None and shares.answered < UNREAD:
        return Cause.UNREAD
    return Cause.TOO_HARD


def mixed(pass_rate: float, group_size: int) -> float:
    """Probability that a group of a problem solved with ``pass_rate`` has both correct and wrong responses."""
    return 1.0 - pass_rate**group_size - (1.0 - pass_rate) ** group_size


def hopeless_of(rates: Sequence[float], group_size: int) -> Hopeless | None:
    """``rates``: of each such prompt, its pass rate before the last visit. None where there is none."""
    if not rates:
        return None
    now, larger = (sum(mixed(rate, size) for rate in rates) / len(rates) for size in (group_size, LARGER * group_size))
    return Hopeless(len(rates), sum(rate > 0 for rate in rates), now, larger)


def silent_of(reasons: Mapping[str, str]) -> SilentEvidence:
    """Make the evidence of an evaluation in which no response of a set has a known accuracy.

    ``reasons`` is the commonest reason of each such set.
    """
    return SilentEvidence(dict(reasons), all(reason.startswith(ENGINE) for reason in reasons.values()))
