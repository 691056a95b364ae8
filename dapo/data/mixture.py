"""Prompts from several sources in given proportions, and levels of a procedural task that follow the accuracy."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo.config.schema.data import Curriculum
from dapo.data.stream import EpochStream
from dapo.errors import DataError
from dapo.types.batch import Prompt
from dapo.types.codec import NOT_SAVED, fill, to_tree

LEVEL = "level"
"""Column of a prompt that says which level of its task it is of, from 1."""


@dataclass(frozen=True, slots=True)
class MixturePart:
    """Share of one source in a mixture."""

    name: str
    weight: float
    levels_L: list[list[Prompt]]  # one list where the source has no levels


@dataclass(slots=True)
class _Source:
    part: MixturePart = field(metadata=NOT_SAVED)
    streams_L: list[EpochStream] = field(metadata=NOT_SAVED)
    share: float = field(metadata=NOT_SAVED)  # of all prompts
    taken: int = 0
    level: int = 0  # index
    recent: deque[float] = field(default_factory=deque)  # accuracies of the last groups of this level


class MixtureStream:
    """A ``PromptStream`` that keeps proportions at every moment: prompt n comes from the source that is furthest behind
    its share of n. No chance is in it; each source has its own shuffled passes.
    """

    def __init__(self, parts: Sequence[MixturePart], *, seed: int, shuffle: bool, curriculum: Curriculum) -> None:
        """Start before the first prompt, every source at its first level.

        Args:
            parts: sources with their weights, which need not add up to 1.
            seed: of the shuffling.
            shuffle: a new order each pass.
            curriculum: when a level goes up or down.

        Raises:
            DataError: a source, or a level of it, without a prompt.
        """
        total = sum(part.weight for part in parts)
        self._curriculum = curriculum
        self._sources: list[_Source] = []
        for number, part in enumerate(parts):
            if empty := [level for level, prompts in enumerate(part.levels_L, start=1) if not prompts]:
                raise DataError(f"{part.name} has no prompt left{f' at level {empty[0]}' * (len(part.levels_L) > 1)}")
            streams = [EpochStream(prompts, seed=seed + number, shuffle=shuffle) for prompts in part.levels_L]
            self._sources.append(_Source(part, streams, part.weight / total))
        self._size = sum(len(prompts) for part in parts for prompts in part.levels_L)

    @property
    def size(self) -> int:
        """Prompts in the data, of all levels."""
        return self._size

    @property
    def pass_length(self) -> int:
        """Prompts after which every source was passed over once at its present level."""
        return max(int(s.streams_L[s.level].size / s.share) + 1 for s in self._sources)

    @property
    def sources(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(source.part.name for source in self._sources)

    def take(self, n: int) -> list[Prompt]:
        """Return the next ``n`` prompts."""
        taken: list[Prompt] = []
        for _ in range(n):
            made = sum(source.taken for source in self._sources) + 1
            source = max(self._sources, key=lambda s: s.share * made - s.taken)  # of equal ones the first
            source.taken += 1
            taken += source.streams_L[source.level].take(1)
        return taken

    def judged(self, prompt: Prompt, accuracy: float) -> None:
        """Take note of the mean accuracy of a judged group of ``prompt``; its source's level may follow."""
        rule = self._curriculum
        for source in self._sources:
            if source.part.name != prompt.source or prompt.extra.get(LEVEL, 1) != source.level + 1:
                continue
            if len(source.streams_L) == 1:
                continue
            source.recent.append(accuracy)
            if len(source.recent) < rule.window:
                continue
            mean = sum(source.recent) / len(source.recent)
            up, down = mean >= rule.raise_at, mean <= rule.lower_at
            moved = min(max(source.level + up - down, 0), len(source.streams_L) - 1)
            if moved != source.level:
                source.level = moved
                source.recent.clear()
            else:
                source.recent.popleft()

    def levels(self) -> dict[str, int]:
        """Return the present level of each source that has some, from 1."""
        return {source.part.name: source.level + 1 for source in self._sources if len(source.streams_L) > 1}

    def state(self) -> dict[str, Any]:
        """Return the position in every source, with the identity of the data."""
        return {
            "sources": [
                {
                    "name": source.part.name,
                    "weight": source.part.weight,
                    "at": to_tree(source),
                    "streams": [stream.state() for stream in source.streams_L],
                }
                for source in self._sources
            ],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            DataError: it belongs to other sources, weights or data.
        """
        saved = state.get("sources")
        mine = [(source.part.name, source.part.weight, len(source.streams_L)) for source in self._sources]
        if saved is None or [(s["name"], s["weight"], len(s["streams"])) for s in saved] != mine:
            raise DataError(
                "the saved position belongs to another mixture: sources, weights and levels may not change on a "
                "resume; start a new run"
            )
        for source, one in zip(self._sources, saved, strict=True):
            for stream, position in zip(source.streams_L, one["streams"], strict=True):
                stream.load(position)
            fill(source, one["at"])
