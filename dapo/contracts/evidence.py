"""What a step saw on its way to a batch: counts and shares. Whoever shows them finds the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shares:
    """What became of the groups that were judged. Shares of groups unless said; they need not add up to 1."""

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
    cap: str = ""  # what a step may spend, where that was met: "40 groups"
    answered: float | None = None  # share of the scored responses in which the verifier found an answer; None: unknown
    truncated_vote: bool = False  # whether truncated responses vote
    unscored: Mapping[str, int] = field(default_factory=dict)  # responses without a score, by reason
    prompts_per_step: int = 0  # P
    group_size: int = 0  # G
    dispatched: int = 0  # groups
    generated_tokens: int = 0
    data_ended: bool = False  # the passes that the recipe allows are over
    all_retired: bool = False  # no prompt is left that is not retired
    hopeless_rates: Sequence[float] = ()
    """Of each prompt that was all wrong at its last visit and was judged before: its pass rate until then. (The last
    visit chose these prompts, so it says nothing of how often they are solved.)"""


@dataclass(frozen=True, slots=True)
class CollectProgress:
    """How far the batch of a step is, after a judged group."""

    step: int
    kept: int  # groups ready to train, those carried into the step included
    wanted: int  # P
    judged: int  # groups, in this step
    shares: Shares  # of this step
    generated_tokens: int = 0  # in this step
    waiting: int = 0  # responses that ended and have no score yet
