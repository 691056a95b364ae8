"""The coefficient of the entropy term that follows the entropy of the last step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class EntropyControl:
    """Adaptive entropy control (Skywork-OR1, arXiv 2505.22312, section 4). After each training step the coefficient
    moves by ``step``: up if the step's mean entropy was below ``target``, down if it was above.

    It acts in the next step only as far as it points the right way: a bonus after an entropy at or below the target, a
    tax (a coefficient below 0) after one above it.
    """

    coefficient: float  # where it is now
    target: float  # nats
    step: float = 0.005
    low: float = 0.0
    high: float = 0.1
    measured: float | None = None  # the last training step's mean entropy, nats

    @property
    def now(self) -> float:
        """Coefficient of the next training step."""
        if self.measured is None:
            return self.coefficient
        return max(self.coefficient, 0.0) if self.measured <= self.target else min(self.coefficient, 0.0)

    def update(self, entropy: float) -> None:
        """Move the coefficient by the mean entropy of a training step's tokens with loss; nan (no such token) changes
        nothing."""
        if math.isnan(entropy):
            return
        self.measured = entropy
        moved = self.coefficient + (self.step if entropy <= self.target else -self.step)
        self.coefficient = min(self.high, max(self.low, moved))

    def state(self) -> list[float | None]:
        """For checkpoints."""
        return [self.coefficient, self.measured]

    def load(self, state: Sequence[float | None]) -> None:
        """Take over what ``state`` returned. A run that begins to adapt at a resume begins at its recipe's value."""
        if state:
            self.coefficient = min(self.high, max(self.low, float(state[0] or 0.0)))
            self.measured = None if state[1] is None else float(state[1])
