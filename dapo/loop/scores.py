"""Scores of ended responses, in the order in which they take effect.

A score takes effect a fixed number of engine steps after its response ended, or later: with the last one of its group,
for nothing depends on a group that is not whole. A late one is waited for then, so which verifier was fast changes
nothing. Where the wall clock decides anyhow (generation beside learning), a group takes effect when all of its scores
are there, and nobody waits: a slow verifier never stops an engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from dapo.errors import RewardError
from dapo.loop.rollouts import Rollouts
from dapo.metrics.phases import Phases
from dapo.types.batch import Completion, Key, Prompt, Score


class Scores:
    """Hands training's responses to the verifiers and gives their scores back group by group."""

    def __init__(
        self,
        rollouts: Rollouts,
        lag: int,
        phases: Phases,
        pulse: Callable[[], None] = lambda: None,
        *,
        waits: bool = True,
    ) -> None:
        """``lag``: engine steps between the end of a response and the earliest effect of its score.

        ``pulse`` is called whenever a score arrived that was waited for. ``waits``: for a late one.
        """
        self.rollouts, self.lag, self.phases, self.pulse, self.waits = rollouts, lag, phases, pulse, waits
        self._ended: deque[tuple[int, Key]] = deque()  # (tick at which the score may take effect, key)
        self._due: dict[int, list[Key]] = {}  # those of groups that are not whole, by group
        self._arrived: dict[Key, Score] = {}
        self._asked: set[Key] = set()  # handed over, and not yet in effect
        self.waiting = 0  # responses that were handed over and whose score has not arrived

    def submit(self, key: Key, prompt: Prompt, completion: Completion, tick: int, failure: str | None = None) -> None:
        """A response ended at ``tick``; ``failure``: why, where the engine could not finish it.

        Said again of one whose score has not taken effect, it changes nothing.
        """
        if key in self._asked:
            return
        self._asked.add(key)
        self.rollouts.judge(key, prompt, completion, failure)
        self._ended.append((tick + self.lag, key))
        self.waiting += 1

    def due(self, until: int | None, missing: Callable[[int], int]) -> Iterator[tuple[Key, Score]]:
        """Scores that take effect up to tick ``until``; waits for a late one.

        A group's scores come together and in the order in which its responses ended, groups in the order of their last.

        Args:
            until: the engine's clock; None: everything that was submitted, also of groups that are not whole.
            missing: of a group's id, how many of its responses have not got a score here before.

        Raises:
            RewardError: a score never came back.
        """
        self._arrived_now(0)
        while self._ended and (until is None or self._ended[0][0] <= until):
            _, key = self._ended.popleft()
            self._due.setdefault(key.group, []).append(key)
            if len(self._due[key.group]) == missing(key.group) and (self.waits or until is None):
                yield from self._scores(self._due.pop(key.group))
        for group in [] if self.waits or until is None else list(self._due):
            keys = self._due[group]
            if len(keys) == missing(group) and all(key in self._arrived for key in keys):
                yield from self._scores(self._due.pop(group))
        if until is None:
            due, self._due = self._due, {}
            for keys in due.values():
                yield from self._scores(keys)

    def _scores(self, keys: list[Key]) -> Iterator[tuple[Key, Score]]:
        for key in keys:
            if key not in self._arrived:
                self._wait_for(key)
            self._asked.discard(key)
            yield key, self._arrived.pop(key)

    def wait(self, seconds: float) -> None:
        """Nothing else is to be done: wait for a score, so long at most."""
        self._arrived_now(seconds)

    def _wait_for(self, key: Key) -> None:
        while key not in self._arrived:
            if not self._arrived_now(None):
                raise RewardError(f"the score of response {key.sample} of group {key.group} never came back")
            self.pulse()

    def _arrived_now(self, timeout: float | None) -> bool:
        """Take in what there is (None: wait for it), while the verifiers go on with what was submitted."""
        if not self.waiting:
            return False
        with self.phases("score"):
            scores = self.rollouts.scores("train", timeout)
        self._arrived.update(scores)
        self.waiting -= len(scores)
        return bool(scores)
