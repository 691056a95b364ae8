"""Scores of ended responses, in the order in which they take effect.

A score takes effect a fixed number of engine steps after its response ended, and a late one is waited for: which
verifier was fast changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from dapo.contracts.phases import Phases
from dapo.contracts.types import Completion, Key, Prompt, Score
from dapo.errors import RewardError
from dapo.loop.rollouts import Rollouts


class Scores:
    """Hands training's responses to the verifiers and gives their scores back in order of (tick, key)."""

    def __init__(self, rollouts: Rollouts, lag: int, phases: Phases, pulse: Callable[[], None] = lambda: None) -> None:
        """``lag``: engine steps between the end of a response and the effect of its score.

        ``pulse`` is called whenever a score arrived that was waited for.
        """
        self.rollouts, self.lag, self.phases, self.pulse = rollouts, lag, phases, pulse
        self._ended: deque[tuple[int, Key]] = deque()  # (tick at which the score takes effect, key)
        self._arrived: dict[Key, Score] = {}

    def submit(self, key: Key, prompt: Prompt, completion: Completion, tick: int, failure: str | None = None) -> None:
        """A response ended at ``tick``; ``failure``: why, where the engine could not finish it."""
        self.rollouts.judge(key, prompt, completion, failure)
        self._ended.append((tick + self.lag, key))

    def due(self, until: int | None) -> Iterator[tuple[Key, Score]]:
        """Scores that take effect up to tick ``until`` (None: all); waits for a late one.

        Raises:
            RewardError: a score never came back.
        """
        while self._ended and (until is None or self._ended[0][0] <= until):
            _, key = self._ended.popleft()
            if key not in self._arrived:
                self._wait_for(key)
            yield key, self._arrived.pop(key)

    def _wait_for(self, key: Key) -> None:
        with self.phases("score"):
            while key not in self._arrived:
                scores = self.rollouts.scores("train")
                if not scores:
                    raise RewardError(f"the score of response {key.sample} of group {key.group} never came back")
                self._arrived.update(scores)
                self.pulse()

    @property
    def waiting(self) -> int:
        """Responses that were handed over and whose score has not arrived."""
        return sum(key not in self._arrived for _, key in self._ended)
