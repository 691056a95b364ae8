"""Episodes of the recipe's environment, played with canned turns before a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dapo.config import Recipe
from dapo.errors import EpisodeError
from dapo.types.batch import MODEL, Key, Prompt, Response, SampleRequest
from dapo.types.enums import FinishReason
from dapo.types.row_parts import parts_of
from dapo.words import counted

if TYPE_CHECKING:
    from dapo.run.episodes import Playing
    from dapo.types.model import ModelFacts

_SHOWN = 100  # characters of a turn


def play_episode(recipe: Recipe, playing: Playing, tokenizer: Any, facts: ModelFacts, prompt: Prompt) -> list[str]:
    """Play an episode whose first turn repeats the problem, and one of gold answers alone. Returns lines.

    Later turns of the first one are gold answers too. Where the tokenizer cannot write them, a line says so in
    place of the second one.

    Raises:
        RecipeError: the end of a turn would not end it.
        EpisodeError: an episode failed, or the environment has scores that no reward reads.
    """
    from dapo.loop.sampling.rollouts import Rollouts
    from dapo.run.decoding import make_texts
    from dapo.run.reinforcement import check_end_of_turn
    from dapo.run.sampling import make_sampling

    check_end_of_turn(recipe, playing, facts)
    texts = make_texts(recipe, tokenizer)
    sampling = make_sampling(recipe, facts)
    closing = [int(token) for token in playing.speech.end_ids] or [sampling.stop_token_ids[0]]

    failures: list[bool] = []

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def played(*turns: str) -> Iterator[str]:
        engine = _Canned([[*ids_of(text), *closing] for text in turns])
        rollouts = Rollouts(engine, None, texts, playing.episodes(recipe, texts, waits=True))  # type: ignore[arg-type]
        rollouts.submit([SampleRequest(Key("check", 0, 0), prompt.token_ids, sampling, 1)], lambda key: prompt)
        while not rollouts.has_ended("check"):
            rollouts.pump()
        (response,) = rollouts.ended("check")
        failures.append(response.ended == "error")
        if failures[-1] and recipe.environment.on_error != "end":
            spoken = ", ".join(repr(turn[:_SHOWN]) for turn in turns)
            raise EpisodeError(f"an episode of the environment with the turns {spoken} failed: {response.reason}")
        parts = parts_of(response.turns)
        rows = [f"{len(part.prompt_ids)} + {part.stop - part.first}" for part in parts]
        said = [f"{counted(len(rows), 'row')} (tokens of prompt + turn): {', '.join(rows)}"] if rows else []
        return iter([*_lines(response), *said])

    gold = prompt.answer
    lines = [*played(prompt.problem, gold or prompt.problem)]
    if gold and tokenizer.decode(ids_of(gold), skip_special_tokens=True) == gold:
        lines += [f"with the gold answer {gold[:_SHOWN]!r} in every turn:", *played(gold)]
    elif gold:
        lines.append(f"no episode with the gold answer {gold[:_SHOWN]!r}: the tokenizer does not give it back as it is")
    if all(failures):
        raise EpisodeError(
            "every episode of the environment failed, though environment.on_error is end: with on_error: unscored the "
            "check says why"
        )
    if playing.pool.abilities.compares:
        lines.append("the rubric compares the responses of a group; each of these episodes was a group of its own")
    if playing.sandbox is not None:
        lines.append(playing.sandbox)
    end = playing.speech.end_of_turn
    if playing.speech.afresh:
        return [*lines, _rows_line(recipe)]
    kept = f"the chat template keeps earlier turns; {end!r} ends a turn"
    return [*lines, kept if end else "no chat template: replies are appended as raw text"]


def _rows_line(recipe: Recipe) -> str:
    """Return what rows by turn cost: every turn is learned with its own copy of the conversation."""
    turns = recipe.environment.max_turns
    longest = recipe.data.max_prompt_tokens + recipe.rollout.max_response_tokens
    return (
        f"rows: turns: a row for each turn, up to {turns} an episode of up to {longest:,} tokens each; the tokens to "
        "compute grow with the square of the turns (rows: append computes each token once)"
    )


def _lines(made: Response) -> Iterator[str]:
    for turn in made.turns:
        tokens = turn.stop - turn.first
        kind = "trained" if turn.who == MODEL else "not trained"
        text = " ".join(turn.text.split())
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        told = f"; calls {', '.join(turn.calls)}" if turn.calls else ""
        told += f"; reward {turn.reward:g}" if turn.reward else ""
        told += "".join(f"; {name} {value:g}" for name, value in turn.facts.items())
        yield f"[{turn.who}] {shown!r}: {tokens} tokens, {kind}{told}"
    ends = {"done": "the environment ended it", "turns": "max_turns ended it", "tokens": "its tokens are spent"}
    ends |= {"reply": "a reply left no token for the model", "error": f"it failed: {made.reason}"}
    scores = ", ".join(f"{name} {value:g}" for name, value in made.scores.items())
    yield f"{ends[made.ended or 'error']}; {f'scores: {scores}' if scores else 'no scores'}"


class _Canned:
    """An engine that writes prepared turns, the last one again and again."""

    shares_weights, version, clock, capacity = True, 0, 0, 1

    def __init__(self, turns: Sequence[list[int]]) -> None:
        self._turns, self._number = list(turns), 0
        self._asked: list[SampleRequest] = []

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        self._asked += requests

    def poll(self, timeout: float | None = None) -> list[Response]:
        """Write the next turn of every response."""
        self.clock += 1
        asked, self._asked = self._asked, []
        return [self._event(request) for request in asked]

    def abort(self, keys: Iterable[Key] | None = None) -> list[Response]:
        """Have nothing unfinished, and keep no slots."""
        return []

    def _event(self, request: SampleRequest) -> Response:
        ids = self._turns[min(self._number, len(self._turns) - 1)]
        self._number += 1
        room = request.sampling.max_tokens - (0 if request.prefix is None else len(request.prefix))
        ids, finish = ids[:room], FinishReason.STOP if len(ids) <= room else FinishReason.LENGTH
        count = len(ids)
        none = np.zeros(count, np.float32), np.zeros(count, np.int32)
        return Response(np.array(ids, dtype=np.int64), *none, finish, key=request.key, tick=self.clock)
