"""Decide which prompt comes next (``PromptSelector``), how many groups to dispatch now, and when a batch is full.

The selector leaves out prompts that teach nothing: retired (solved) ones, and those that GRESO skips. Unless the recipe
asks for either, every prompt is taken as the stream gives it. ``Refill``, ``is_full`` and ``in_time`` are functions of
counts and ages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dapo.algorithms.variants.greso import Greso
from dapo.config.schema import DynamicSampling, Selection
from dapo.types.batch import BoolArray, Group, Prompt
from dapo.types.codec import NOT_SAVED, fill, to_tree
from dapo.types.enums import Verdict
from dapo.types.protocols import PromptStream
from dapo.types.seeds import SELECTION, derive_seed

# The acceptance estimate forgets: each step the counts behind it are multiplied by this.
ACCEPTANCE_MEMORY = 0.7
# Never plan for less than this acceptance: a run that accepts nothing must meet its cap, not fill the machine.
LOWEST_ACCEPTANCE = 0.05

VERDICTS = list(Verdict)
_ZERO_VARIANCE = (Verdict.ALL_CORRECT, Verdict.ALL_WRONG, Verdict.UNIFORM)


@dataclass(slots=True)
class PromptRecord:
    """Count the visits of one prompt. A visit is a judged group; only voters are counted as responses."""

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
        """Return the correct share of the last visit's voters; 0 before there was one."""
        return self.last_correct / self.last_responses if self.last_responses else 0.0


_FIELDS = tuple(PromptRecord.__dataclass_fields__)


class PromptHistory:
    """Keep a record of each prompt that was judged, by ``Prompt.id``; checkpoints have it."""

    def __init__(self, correct_at: float = 1.0) -> None:
        """Begin without records; ``correct_at`` is the accuracy from which a response is correct."""
        self.correct_at = correct_at
        self.records: dict[str, PromptRecord] = {}

    def __len__(self) -> int:
        return len(self.records)

    def visited(self, group: Group, voters_G: BoolArray, step: int) -> None:
        """Take in a judged group. A group with too few voters says only that its prompt was tried."""
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
        """Return the pass rates before the last visit, of prompts seen before that were all wrong at that visit."""
        wrong = VERDICTS.index(Verdict.ALL_WRONG)
        before = [
            (r.correct - r.last_correct, r.responses - r.last_responses)
            for r in self.records.values()
            if r.verdict == wrong
        ]
        return [correct / responses for correct, responses in before if responses]

    def state(self) -> dict[str, Any]:
        """Return columns of equal length: ``ids`` and one int64 array per field of :class:`PromptRecord`.

        ``verdicts`` says what the numbers in the column ``verdict`` mean.
        """
        columns = {name: np.array([getattr(r, name) for r in self.records.values()], np.int64) for name in _FIELDS}
        return {"ids": list(self.records), "verdicts": [verdict.value for verdict in VERDICTS], **columns}

    def load(self, state: Mapping[str, Any]) -> None:
        here = np.array([VERDICTS.index(Verdict(name)) for name in state["verdicts"]], np.int64)
        state = {**state, "verdict": here[state["verdict"]]}
        rows = zip(*(state[name].tolist() for name in _FIELDS), strict=True)
        self.records = {name: PromptRecord(*row) for name, row in zip(state["ids"], rows, strict=True)}


class PromptSelector:
    """Take prompts from a stream, leaving out those that teach nothing according to the history.

    A choice is a function of (run seed, number of the draw, history), so it is the same after a resume.
    """

    def __init__(self, stream: PromptStream, history: PromptHistory, settings: Selection, run_seed: int) -> None:
        self.stream, self.history, self.settings, self.run_seed = stream, history, settings, run_seed
        self.greso = Greso() if settings.greso is None else Greso(settings.greso.target)  # not asked while it is off
        self.draws = 0
        self.skipped = 0  # since ``end_step``
        self._data_ended = False
        self._all_retired = False  # a whole pass found nothing, and no prompt came back since

    @property
    def ended(self) -> Literal["data", "retired"] | None:
        """Say why there is no further prompt; a retired one may come back while groups are under way."""
        return "data" if self._data_ended else "retired" if self._all_retired else None

    def take(self, n: int) -> list[Prompt]:
        """Take the next ``n`` prompts worth a group; fewer only when the data has ended or all of it is retired."""
        taken: list[Prompt] = []
        retired_in_a_row = 0
        while len(taken) < n and self.ended is None:
            drawn = self.stream.take(n - len(taken))
            self._data_ended = not drawn
            for prompt in drawn:
                record = self.history.records.get(prompt.id)
                if self._worth_it(record):
                    taken.append(prompt)
                    retired_in_a_row = 0
                else:
                    self.skipped += 1
                    retired_in_a_row = retired_in_a_row + 1 if record and self.is_retired(record) else 0
            # a review brings a retired prompt back sooner or later
            self._all_retired = self._never_reviews and retired_in_a_row >= self.pass_length
        return taken

    @property
    def pass_length(self) -> int:
        """Return the number of prompts of the stream among which each is found once."""
        return int(getattr(self.stream, "pass_length", self.stream.size))

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the stream's sources; none where it does not name them."""
        return tuple(getattr(self.stream, "sources", ()))

    def levels(self) -> Mapping[str, int]:
        """Return the present level of each source that has levels."""
        return dict(self.stream.levels()) if hasattr(self.stream, "levels") else {}

    def visited(self, group: Group, voters_G: BoolArray, step: int) -> None:
        """Take in a judged group; its prompt may be worth generating for again."""
        self.history.visited(group, voters_G, step)
        if hasattr(self.stream, "judged") and voters_G.any():
            self.stream.judged(group.prompt, float(group.accuracies()[voters_G].mean()))
        self._all_retired &= self.is_retired(self.history.records[group.prompt.id])

    def explore(self, record: PromptRecord) -> float:
        """Return the probability with which a prompt of this record is taken when its turn comes."""
        if self.settings.retire is not None and self.is_retired(record):
            return self.settings.retire.review
        greso = 1.0
        if self.settings.greso is not None:
            greso = self.greso.explore(record.streak, record.last_pass_rate)
        return self._pool_share(record) * greso

    def _pool_share(self, record: PromptRecord) -> float:
        """Return the share of easy or of hard prompts to take; 1 for those between, and for those never judged."""
        easy, hard, rate = self.settings.easy, self.settings.hard, record.last_pass_rate
        if not record.last_responses:
            return 1.0
        if easy is not None and rate >= easy.at:
            return easy.share
        return hard.share if hard is not None and rate <= hard.at else 1.0

    def is_retired(self, record: PromptRecord) -> bool:
        """Return whether the last visit's pass rate reached ``retire.at``. A review may bring the prompt back."""
        retire = self.settings.retire
        return retire is not None and record.last_responses > 0 and record.last_pass_rate >= retire.at

    @property
    def _never_reviews(self) -> bool:
        return self.settings.retire is not None and not self.settings.retire.review

    def retired(self) -> int:
        """Count the prompts that are retired now."""
        if self.settings.retire is None:
            return 0
        return sum(self.is_retired(record) for record in self.history.records.values())

    def end_step(self, verdicts: Mapping[Verdict, int]) -> None:
        """Adapt to the verdicts of a step."""
        self.skipped = 0
        judged = sum(verdicts.values())
        if self.settings.greso is not None and judged:
            self.greso.end_step(
                verdicts.get(Verdict.ALL_CORRECT, 0) / judged, verdicts.get(Verdict.ALL_WRONG, 0) / judged
            )

    def state(self) -> dict[str, Any]:
        return {
            "stream": self.stream.state(),
            "history": self.history.state() | {"greso": to_tree(self.greso), "size": self.stream.size},
            "draws": self.draws,
            "skipped": self.skipped,
            "all_retired": self._all_retired,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.stream.load(state["stream"])
        self.history.load(state["history"])
        fill(self.greso, state["history"]["greso"])
        self.draws, self.skipped = state["draws"], state["skipped"]
        # with other settings than before, prompts may come back
        still = self._never_reviews and all(map(self.is_retired, self.history.records.values()))
        self._all_retired = state["all_retired"] and still

    def _worth_it(self, record: PromptRecord | None) -> bool:
        self.draws += 1
        if record is None or (explore := self.explore(record)) >= 1.0:
            return True
        return derive_seed(self.run_seed, SELECTION, self.draws) / 2**63 < explore


@dataclass(slots=True)
class Refill:
    """Decide how many groups to dispatch: the deficit of the batch over a running acceptance estimate."""

    settings: DynamicSampling = field(metadata=NOT_SAVED)
    prompts_per_step: int = field(metadata=NOT_SAVED)
    begins: bool = True  # nothing was asked in this step
    accepted: float = 0.0  # groups that were kept, of
    of: float = 0.0  # groups that were judged; those of earlier steps count less

    def begin(self) -> None:
        """Begin a step: groups judged before it count less in the estimate."""
        self.begins = True
        self.accepted *= ACCEPTANCE_MEMORY
        self.of *= ACCEPTANCE_MEMORY

    def judged(self, accepted: bool) -> None:
        """Take in whether a group was kept."""
        self.of += 1.0
        self.accepted += accepted

    @property
    def acceptance(self) -> float:
        """Return the running estimate of the share of groups that are kept; 1 before anything was judged."""
        return max(LOWEST_ACCEPTANCE, (self.accepted + 1.0) / (self.of + 1.0))

    def wanted(self, kept: int, under_way: int, free: int, dispatched: int, carried: int, lag: int = 0) -> int:
        """Return how many groups to dispatch now.

        With a fixed ``oversample`` there are rounds: at the first call of a step, and then when nothing is under way.

        Args:
            kept: groups kept and not yet trained.
            under_way: groups dispatched and not yet judged.
            free: groups that the engine has free slots for.
            dispatched: groups dispatched in this step.
            carried: groups that were held when the step began.
            lag: versions by which the engine's weights are older than those that this step trains: 0 once they are
                published, 1 while the learner works on the step before. A group that would be too old to train in
                this very step is not dispatched.
        """
        settings, prompts = self.settings, self.prompts_per_step
        if lag > settings.max_age:
            return 0
        begins, self.begins = self.begins, False
        if settings.oversample is not None and under_way and not begins:
            return 0  # whole rounds, as in the published scripts: the next when nothing is under way
        if settings.mode == "filter":
            wanted = self._by_deficit(kept, under_way, free, lag)
        elif settings.mode == "replace" and dispatched + carried >= prompts:
            missing = least_kept(settings, prompts) - kept
            wanted = min(math.ceil(missing / self.acceptance), prompts) - under_way
        else:
            return max(0, prompts - dispatched - carried)
        if settings.cap.groups is not None:
            wanted = min(wanted, math.ceil(settings.cap.groups * prompts) - dispatched)
        return max(0, wanted)

    def _by_deficit(self, kept: int, under_way: int, free: int, lag: int) -> int:
        """Divide what is missing for the batch, and for ``lookahead`` of the next, by the acceptance estimate."""
        settings, prompts = self.settings, self.prompts_per_step
        carries = settings.unfinished == "carry" and settings.surplus == "carry"
        missing = prompts * (1.0 + (settings.lookahead if carries else 0.0)) - kept
        factor = settings.oversample or 1.0 / self.acceptance
        wanted = math.ceil(missing * factor - 1e-9) - under_way
        if settings.oversample is None:
            # Beyond the engine's slots a group would only wait, and by then the estimate is better.
            wanted = min(wanted, max(free, 0 if under_way else 1))
        if settings.surplus == "carry" and settings.on_max_age == "wait":
            wanted = min(wanted, prompts * (settings.max_age - lag + 1) - kept - under_way)
        return wanted


def least_kept(settings: DynamicSampling, prompts_per_step: int) -> int:
    """Return how many groups mode ``replace`` must keep before copies complete a batch."""
    return math.floor(settings.replace.min_ratio * prompts_per_step) + 1


def is_full(
    settings: DynamicSampling,
    prompts_per_step: int,
    step: int,
    kept: Sequence[int],
    unfinished: Sequence[int],
    tried: int,
) -> bool:
    """Return whether the batch of ``step`` can be taken.

    Args:
        kept: ``born`` of each kept group, in any order.
        unfinished: the same of groups not yet judged.
        tried: groups dispatched in this step, and those held when it began.
    """
    if settings.mode != "filter":
        enough = settings.mode != "replace" or len(kept) >= least_kept(settings, prompts_per_step)
        return enough and tried >= prompts_per_step and not unfinished
    if len(kept) < prompts_per_step:
        return False
    if not unfinished or settings.unfinished == "drain":
        return not unfinished
    if settings.unfinished == "discard" or settings.on_max_age == "drop":
        return True
    surplus = sorted(kept)[prompts_per_step:] if settings.surplus == "carry" else []
    return in_time([*surplus, *unfinished], step, prompts_per_step, settings.max_age)


def in_time(births: Iterable[int], step: int, prompts_per_step: int, max_age: int) -> bool:
    """Return whether all groups left after the batch of ``step`` can train before they are older than ``max_age``.

    The oldest train first, P a step: for every k, at most P x k of them may be due within the next k steps.
    ``Refill`` holds at most P (max_age + 1) groups at once, P less for each version by which the engine lags. Waiting
    for the groups that still decode therefore always makes this true in the end. So no trained group is ever older
    than ``max_age``, and no group is dropped.

    Args:
        births: ``born`` of each group that is left, decoding ones included.
    """
    due = Counter(max(0, born + max_age - step) for born in births)
    total = 0
    for k in range(max_age + 1):
        total += due[k]
        if total > prompts_per_step * k:
            return False
    return True
