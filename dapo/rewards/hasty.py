"""Patterns are asked in the driver first, for a moment: nearly all are done in microseconds, which no message is.

What takes longer, because the pattern backtracks on this text, is asked again in a worker process, where the reward's
time limit rules. The verdict is the same in both places.
"""

from __future__ import annotations

from dapo.rewards.judges import Judge, Outcome, Verifier, ask, make_judge
from dapo.rewards.simple import TookLong
from dapo.types.batch import Completion, Prompt

MOMENT = 0.02
"""Seconds that a pattern may take in the driver."""
TRIES = 32
"""Moments that a reward may lose in the driver: one that backtracks on everything goes to workers from then on."""


class Hasty:
    """A reward of a pattern, in the driver.

    Args:
        verifier: of kind ``exact`` or ``regex``, with a pattern.
        moment: seconds for one response.
    """

    def __init__(self, verifier: Verifier, moment: float = MOMENT) -> None:
        self._judge: Judge = make_judge(verifier, moment)
        self._tries = TRIES

    def __call__(self, prompt: Prompt, completion: Completion) -> tuple[Outcome, str | None] | None:
        """Verdict and answer for votes; None: it takes too long here."""
        if not self._tries:
            return None
        try:
            return ask(self._judge, prompt, completion)
        except TookLong:
            self._tries -= 1
            return None
