"""The log-probabilities below the ratio in each epoch of a training step: from before its first update."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from dapo.learner.metrics import Rated
from dapo.learner.plan import RankStep
from dapo.types.batch import FloatArray, Row


class OldLogprobs:
    """Old log-probabilities of a training step's rows, frozen before the first update of the first epoch.

    Later epochs draw their minibatches anew. A rank may get rows that another rank had before, so ranks exchange what
    they found. With one minibatch every epoch deals the same rows to the same ranks.

    Args:
        step: the training step.
        first: for each minibatch of the first epoch, what was computed in advance; None: nothing was.
        shared: whether other ranks have rows of the step.
    """

    def __init__(self, step: RankStep, first: Sequence[list[FloatArray] | None], *, shared: bool) -> None:
        self._first = first
        self._freezes = step.epochs > 1 and step.ratio_against == "learner"
        self._to_exchange = shared and len(first) > 1
        self._frozen: dict[tuple[int, int, int], FloatArray] = {}

    def of(self, number: int, rows: Sequence[Row]) -> list[FloatArray] | None:
        """Return those of ``rows`` in minibatch ``number``; None: the ratio runs against other numbers.

        All ranks ask for the same minibatches in one order.
        """
        if number < len(self._first):
            return self._first[number]
        if not self._freezes:
            return None
        if self._to_exchange:
            self._exchange()
        return [self._frozen[row.group, row.sample, row.part] for row in rows]

    def keep(self, rated: Sequence[Rated]) -> None:
        """Keep what the ratios of a minibatch ran against."""
        if self._freezes:
            self._frozen |= {(r.row.group, r.row.sample, r.row.part): r.old_logprobs for r in rated}

    def _exchange(self) -> None:
        parts: list[dict[tuple[int, int, int], FloatArray]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, self._frozen)
        for part in parts:
            self._frozen |= part
        self._to_exchange = False
