"""What a step shows that a person should hear of while the run goes on: data, and no sentence."""

from __future__ import annotations

import math

from dapo.loop.algorithm import Algorithm
from dapo.types.batch import Metrics, StepBatch
from dapo.types.enums import Disposition
from dapo.types.evidence import Clamping, PoorBatch
from dapo.types.protocols import Recorder


class Notices:
    """Tells the recorder, and not too often."""

    def __init__(self, recorder: Recorder, algorithm: Algorithm) -> None:
        self._recorder, self._algorithm = recorder, algorithm
        self._poor_batches = 0  # in a row
        self._told_of_clamping = False

    def poor_batch(self, batch: StepBatch) -> None:
        """``train_partial`` and ``fill`` go on where a batch did not fill: say so, ever more seldom."""
        useful = sum(group.disposition is not Disposition.FILLED for group in batch.groups_P)
        poor = not useful or batch.metrics["sampling/cap_reached"]
        self._poor_batches = self._poor_batches + 1 if poor else 0
        if self._poor_batches and self._poor_batches.bit_count() == 1:  # 1, 2, 4, 8...
            self._recorder.notice(batch.step, PoorBatch(useful, self._poor_batches, batch.shares))

    def clamping(self, step: int, metrics: Metrics) -> None:
        """Once: a reward that scaling clamps away teaches nothing, whatever its weight."""
        if self._told_of_clamping or not metrics["reward/clamped"] > 0:  # nan: nothing was scored
            return
        self._told_of_clamping = True
        low, high = self._algorithm.source_range or (-math.inf, math.inf)
        least, greatest = metrics["reward/raw_min"], metrics["reward/raw_max"]
        self._recorder.notice(step, Clamping(metrics["reward/clamped"], low, high, least, greatest))
