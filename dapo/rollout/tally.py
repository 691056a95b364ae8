"""What a pool counts of its engines' work."""

from __future__ import annotations

from collections import Counter

from dapo.types.batch import Metrics


class Tally:
    """Turns and losses.

    Attributes:
        busy: seconds within turns, of all engines together, from the beginning on.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self._turns: list[float] = []  # seconds of each, since ``metrics``
        self._counts = Counter[str]()  # likewise

    def turn(self, seconds: float) -> None:
        """One came back."""
        self.busy += seconds
        self._turns.append(seconds)

    def loss(self, resubmitted: int) -> None:
        """An engine is gone, and so many responses that it had begun are made again."""
        self._counts.update(losses=1, resubmitted=resubmitted)

    def metrics(self, engines: int) -> Metrics:
        """Of a pool with so many engines at work, since it was asked last."""
        turns, self._turns = self._turns, []
        counts, self._counts = self._counts, Counter()
        return {
            "cluster/engines": float(engines),
            "cluster/engine_losses": float(counts["losses"]),
            "cluster/resubmitted": float(counts["resubmitted"]),
            "cluster/turns": float(len(turns)),
            "cluster/turn_seconds": sum(turns) / max(1, len(turns)),
        }
