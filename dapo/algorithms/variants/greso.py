"""GRESO (arXiv 2506.02177): skip prompts whose groups had no variance, more likely the longer they had none."""

from __future__ import annotations

from dataclasses import dataclass, field

from dapo.types.codec import NOT_SAVED

LEAST, MOST, STEP, START = 0.05, 0.95, 0.01, 0.5
"""Bounds and step of the exploration probabilities, and their start."""
LEAST_EXPLORATION = 0.01
EASY_SHARE = 1 / 3
"""Part of the target share of zero-variance groups that may be all correct; the rest may be all wrong."""


@dataclass(slots=True)
class Greso:
    """Keep the two exploration probabilities: of prompts whose groups are all correct, and all wrong."""

    target: float = field(default=0.0, metadata=NOT_SAVED)  # share of zero-variance groups aimed at
    p_easy: float = START  # of the easy prompts, for each visit in a row without variance
    p_hard: float = START  # of the hard ones

    def explore(self, streak: int, pass_rate: float) -> float:
        """Return the probability with which a prompt is taken when its turn comes.

        Args:
            streak: visits in a row whose rewards did not differ.
            pass_rate: of the last visit: easy from one half on (for a metric other than accuracy, the nearer side).
        """
        base = self.p_easy if pass_rate >= 0.5 else self.p_hard
        return float(max(base**streak, LEAST_EXPLORATION)) if streak else 1.0

    def end_step(self, easy: float, hard: float) -> None:
        """Move each probability: down when its kind of zero-variance group is above its target share, else up.

        Args:
            easy: share of this step's judged groups that were all correct.
            hard: share of them that were all wrong.
        """
        self.p_easy = _moved(self.p_easy, easy > EASY_SHARE * self.target)
        self.p_hard = _moved(self.p_hard, hard > (1 - EASY_SHARE) * self.target)


def _moved(probability: float, down: bool) -> float:
    return min(MOST, max(LEAST, probability - STEP if down else probability + STEP))
