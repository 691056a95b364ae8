"""The learning rate as a pure function of a step count, with an explicit unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, then constant, linear or cosine decay.

    ``unit`` names what is counted: rollout (training) steps, as in verl and the paper, or optimiser steps.
    """

    peak: float
    kind: Literal["constant", "linear", "cosine"] = "constant"
    unit: Literal["rollout", "optimizer"] = "rollout"
    warmup: int = 0  # in ``unit``
    total: int = 0  # in ``unit``; only linear and cosine read it
    final_ratio: float = 0.0

    def at(self, rollout_step: int, optimizer_step: int) -> float:
        """Learning rate of the update after ``rollout_step`` training and ``optimizer_step`` optimiser steps (from 0).

        The first of w warm-up steps has peak / w, the w-th and later ones the peak.
        """
        done = rollout_step if self.unit == "rollout" else optimizer_step
        if done < self.warmup:
            return self.peak * (done + 1) / self.warmup
        if self.kind == "constant":
            return self.peak
        progress = min(1.0, (done - self.warmup) / max(1, self.total - self.warmup))
        shape = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.peak * (self.final_ratio + (1.0 - self.final_ratio) * shape)
