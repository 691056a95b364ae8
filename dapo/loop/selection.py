"""Which prompts of the stream are worth generating for: retirement of solved ones, and GRESO's skipping.

Both are off unless the recipe asks for them; then every prompt is taken as the stream gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dapo.config.schema import DynamicSampling
from dapo.loop.history import PromptHistory, PromptRecord
from dapo.types.batch import BoolArray, Group, Prompt
from dapo.types.enums import Verdict
from dapo.types.protocols import HasLevels, HasPasses, HasSources, LearnsAccuracy, PromptStream
from dapo.types.seeds import SELECTION, derive_seed

# GRESO (arXiv 2506.02177): bounds and step of the exploration probabilities, and their start.
LEAST, MOST, STEP, START = 0.05, 0.95, 0.01, 0.5
LEAST_EXPLORATION = 0.01
EASY_SHARE = 1 / 3
"""Part of the target share of zero-variance groups that may be all correct; the rest may be all wrong."""


class PromptSelector:
    """Takes prompts from a stream, leaving out those that history says teach nothing.

    A choice is a function of (run seed, number of the draw, history), so it is the same after a resume.
    """

    def __init__(self, stream: PromptStream, history: PromptHistory, settings: DynamicSampling, run_seed: int) -> None:
        self.stream, self.history, self.settings, self.run_seed = stream, history, settings, run_seed
        self.p_easy = self.p_hard = START
        self.draws = 0
        self.skipped = 0  # since ``end_step``
        self._data_ended = False
        self._all_retired = False  # a whole pass found nothing, and no prompt came back since

    @property
    def ended(self) -> Literal["data", "retired"] | None:
        """Why there is no further prompt; a retired one may come back while groups are under way."""
        return "data" if self._data_ended else "retired" if self._all_retired else None

    def take(self, n: int) -> list[Prompt]:
        """The next ``n`` prompts worth a group; fewer only when the data has ended or all of it is retired."""
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
            # what is reviewed comes to its turn some day
            self._all_retired = not self.settings.review_share and retired_in_a_row >= self.pass_length
        return taken

    @property
    def pass_length(self) -> int:
        """Return the number of prompts of the stream among which each is found once."""
        return self.stream.pass_length if isinstance(self.stream, HasPasses) else self.stream.size

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the stream's sources; none where it does not name them."""
        return tuple(self.stream.sources) if isinstance(self.stream, HasSources) else ()

    def levels(self) -> Mapping[str, int]:
        """Return the present level of each source that has levels."""
        return self.stream.levels() if isinstance(self.stream, HasLevels) else {}

    def visited(self, group: Group, voters_G: BoolArray, step: int) -> None:
        """A group was judged; its prompt may be worth generating for again."""
        self.history.visited(group, voters_G, step)
        if isinstance(self.stream, LearnsAccuracy) and voters_G.any():
            self.stream.judged(group.prompt, float(group.accuracies()[voters_G].mean()))
        self._all_retired &= self.is_retired(self.history.records[group.prompt.id])

    def explore(self, record: PromptRecord) -> float:
        """Probability with which a prompt of this record is taken when its turn comes."""
        if self.is_retired(record):
            return self.settings.review_share
        return self._pool_share(record) * self._greso_share(record)

    def _pool_share(self, record: PromptRecord) -> float:
        """Of the easy prompts, of the hard ones, or 1: those between the two, and those that no voter has judged."""
        settings = self.settings
        if not record.last_responses:
            return 1.0
        if record.last_pass_rate >= settings.easy_at:
            return settings.easy_share
        return settings.hard_share if record.last_pass_rate <= settings.hard_at else 1.0

    def _greso_share(self, record: PromptRecord) -> float:
        if self.settings.greso and record.streak:
            base = self.p_easy if self._is_easy(record) else self.p_hard
            return float(max(base**record.streak, LEAST_EXPLORATION))
        return 1.0

    def is_retired(self, record: PromptRecord) -> bool:
        """Solved: the pass rate of its last visit reached ``retire_at``. A review may bring it back."""
        at = self.settings.retire_at
        return at is not None and record.last_responses > 0 and record.last_pass_rate >= at

    def retired(self) -> int:
        """Prompts that are retired now."""
        if self.settings.retire_at is None:
            return 0
        return sum(self.is_retired(record) for record in self.history.records.values())

    def end_step(self, verdicts: Mapping[Verdict, int]) -> None:
        """Move GRESO's probabilities: down when a kind of zero-variance group is above its target share, else up."""
        self.skipped = 0
        judged = sum(verdicts.values())
        if not self.settings.greso or not judged:
            return
        target = self.settings.greso_target
        easy, hard = verdicts.get(Verdict.ALL_CORRECT, 0) / judged, verdicts.get(Verdict.ALL_WRONG, 0) / judged
        self.p_easy = _moved(self.p_easy, easy > EASY_SHARE * target)
        self.p_hard = _moved(self.p_hard, hard > (1 - EASY_SHARE) * target)

    def state(self) -> dict[str, Any]:
        own = {
            "p_easy": self.p_easy,
            "p_hard": self.p_hard,
            "draws": self.draws,
            "all_retired": self._all_retired,
            "size": self.stream.size,
        }
        return {"stream": self.stream.state(), "history": self.history.state() | own}

    def load(self, state: Mapping[str, Any]) -> None:
        self.stream.load(state["stream"])
        history = state["history"]
        self.history.load(history)
        self.p_easy, self.p_hard, self.draws = history["p_easy"], history["p_hard"], history["draws"]
        # with other settings than before, prompts may come back
        still = not self.settings.review_share and all(map(self.is_retired, self.history.records.values()))
        self._all_retired = history["all_retired"] and still

    def _worth_it(self, record: PromptRecord | None) -> bool:
        self.draws += 1
        if record is None or (explore := self.explore(record)) >= 1.0:
            return True
        return derive_seed(self.run_seed, SELECTION, self.draws) / 2**63 < explore

    @staticmethod
    def _is_easy(record: PromptRecord) -> bool:
        return record.last_pass_rate >= 0.5  # all correct; for another metric's uniform groups the nearer side


def _moved(probability: float, down: bool) -> float:
    return min(MOST, max(LEAST, probability - STEP if down else probability + STEP))
