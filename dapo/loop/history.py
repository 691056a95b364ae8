"""What a run knows of each prompt: visits, pass rate, and how long it has taught nothing. Saved in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo.types.batch import BoolArray, Group
from dapo.types.enums import Verdict

VERDICTS = list(Verdict)
_ZERO_VARIANCE = (Verdict.ALL_CORRECT, Verdict.ALL_WRONG, Verdict.UNIFORM)


@dataclass(slots=True)
class PromptRecord:
    """One prompt (by content hash). A visit is a judged group; only voters are counted as responses."""

    visits: int = 0
    responses: int = 0
    correct: int = 0
    last_responses: int = 0  # of the last visit that had a voter, as are the next two
    last_correct: int = 0
    verdict: int = 0  # index into VERDICTS
    streak: int = 0  # visits in a row whose rewards did not differ
    last_step: int = 0

    @property
    def last_pass_rate(self) -> float:
        """Correct share of the last visit's voters; 0 before there was one."""
        return self.last_correct / self.last_responses if self.last_responses else 0.0


_FIELDS = tuple(PromptRecord.__dataclass_fields__)


class PromptHistory:
    """Records by ``Prompt.id``; a prompt without one was never judged."""

    def __init__(self, correct_at: float = 1.0) -> None:
        """``correct_at``: accuracy from which a response is correct."""
        self.correct_at = correct_at
        self.records: dict[str, PromptRecord] = {}

    def __len__(self) -> int:
        return len(self.records)

    def visited(self, group: Group, voters_G: BoolArray, step: int) -> None:
        """Take in a judged group. One with too few voters says nothing of its prompt but that it was tried."""
        assert group.verdict is not None
        record = self.records.setdefault(group.prompt.id, PromptRecord())
        record.visits += 1
        record.last_step = step
        if group.verdict is Verdict.TOO_FEW_SCORED and record.last_responses:
            return
        record.verdict = VERDICTS.index(group.verdict)
        if group.verdict is Verdict.TOO_FEW_SCORED:
            return
        record.last_responses = int(voters_G.sum())
        record.last_correct = int((group.accuracies()[voters_G] >= self.correct_at).sum())
        record.responses += record.last_responses
        record.correct += record.last_correct
        record.streak = record.streak + 1 if group.verdict in _ZERO_VARIANCE else 0

    def hopeless_rates(self) -> list[float]:
        """Pass rate, its last visit left out, of each prompt that was all wrong at its last visit and seen before."""
        wrong = VERDICTS.index(Verdict.ALL_WRONG)
        before = [
            (r.correct - r.last_correct, r.responses - r.last_responses)
            for r in self.records.values()
            if r.verdict == wrong
        ]
        return [correct / responses for correct, responses in before if responses]

    def state(self) -> dict[str, Any]:
        """Columns of equal length: ``ids`` and one int64 array per field of :class:`PromptRecord`.

        ``verdicts`` says what the numbers in the column ``verdict`` mean.
        """
        columns = {name: np.array([getattr(r, name) for r in self.records.values()], np.int64) for name in _FIELDS}
        return {"ids": list(self.records), "verdicts": [verdict.value for verdict in VERDICTS], **columns}

    def load(self, state: Mapping[str, Any]) -> None:
        here = np.array([VERDICTS.index(Verdict(name)) for name in state["verdicts"]], np.int64)
        state = {**state, "verdict": here[state["verdict"]]}
        rows = zip(*(state[name].tolist() for name in _FIELDS), strict=True)
        self.records = {name: PromptRecord(*row) for name, row in zip(state["ids"], rows, strict=True)}
