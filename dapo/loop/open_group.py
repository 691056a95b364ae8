"""A group on its way: dispatched, not yet judged; and its form in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dapo.loop.state import (
    completion_state,
    empty_partial,
    load_completion,
    load_partial,
    load_prompt,
    load_score,
    partial_state,
    prompt_state,
    score_state,
)
from dapo.types.batch import Completion, Group, Key, Partial, Prompt, SampleRequest, SamplingParams, Score
from dapo.types.seeds import TRAINING, derive_seeds


@dataclass(slots=True)
class OpenGroup:
    """A dispatched group that is not finished. ``partials_G`` is what the engine continues behind."""

    id: int
    prompt: Prompt
    born: int  # the training step whose weights were the engine's when it was dispatched
    partials_G: list[Partial]
    completions_G: list[Completion | None] = field(default_factory=list)
    scores_G: list[Score | None] = field(default_factory=list)
    unscored: int = field(init=False)  # responses without a score

    def __post_init__(self) -> None:
        self.unscored = sum(score is None for score in self.scores_G)

    def scored(self, index: int, score: Score) -> bool:
        """Take in a response's score. True when it was the last one that was missing."""
        self.scores_G[index] = score
        self.unscored -= 1
        return self.unscored == 0

    @classmethod
    def new(cls, number: int, prompt: Prompt, born: int, size: int) -> OpenGroup:
        """A group that is about to be dispatched."""
        return cls(number, prompt, born, [empty_partial()] * size, [None] * size, [None] * size)

    def tokens(self) -> int:
        """Response tokens that exist and are held here (what still decodes is not known before it ends)."""
        return sum(len(c if c is not None else p) for c, p in zip(self.completions_G, self.partials_G, strict=True))

    def missing(self) -> list[Key]:
        """Responses that did not end yet."""
        return [
            Key("train", self.id, index) for index, completion in enumerate(self.completions_G) if completion is None
        ]

    def requests(self, sampling: SamplingParams, run_seed: int) -> list[SampleRequest]:
        """What is still to be made of it."""
        seeds = derive_seeds(run_seed, TRAINING, self.id, count=len(self.completions_G))
        return [
            SampleRequest(
                key=key,
                prompt_ids=self.prompt.token_ids,
                sampling=sampling,
                seed=seeds[key.sample],
                prefix=self.partials_G[key.sample] if len(self.partials_G[key.sample]) else None,
                priority=self.id,
            )
            for key in self.missing()
        ]

    def unscored_completions(self) -> list[tuple[Key, Completion]]:
        """Responses that ended and whose score has not come."""
        return [
            (Key("train", self.id, index), completion)
            for index, completion in enumerate(self.completions_G)
            if completion is not None and self.scores_G[index] is None
        ]

    def close(self) -> Group:
        completions = [c for c in self.completions_G if c is not None]
        scores = [s for s in self.scores_G if s is not None]
        return Group(id=self.id, prompt=self.prompt, completions_G=completions, scores_G=scores, born=self.born)


def open_group_state(group: OpenGroup) -> dict[str, Any]:
    return {
        "id": group.id,
        "prompt": prompt_state(group.prompt),
        "born": group.born,
        "partials": [partial_state(p) for p in group.partials_G],
        "completions": [None if c is None else completion_state(c) for c in group.completions_G],
        "scores": [None if s is None else score_state(s) for s in group.scores_G],
    }


def load_open_group(state: dict[str, Any]) -> OpenGroup:
    return OpenGroup(
        id=state["id"],
        prompt=load_prompt(state["prompt"]),
        born=state["born"],
        partials_G=[load_partial(p) for p in state["partials"]],
        completions_G=[None if c is None else load_completion(c) for c in state["completions"]],
        scores_G=[None if s is None else load_score(s) for s in state["scores"]],
    )
