"""Follow the rows of an episode whose turns have prompts of their own, while it is played."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dapo.types.batch import IntArray, Response, Turn


@dataclass(slots=True, eq=False)  # a row is itself: two may hold the same tokens
class RowOfTurns:
    """A row of an episode: its prompt, and where its tokens begin."""

    prompt_ids: IntArray
    first: int  # index of its first token in the episode
    messages: list[dict[str, Any]] = field(default_factory=list)  # of an agent: those that its tokens hold
    tools: list[Any] = field(default_factory=list)  # that the prompt shows


def present(whole: Response, first: int) -> Response | None:
    """Return the tokens of a row that begins at ``first``, as far as it got; None: it has none."""
    if len(whole) == first:
        return None
    turns = tuple(
        Turn(turn.first - first, turn.stop - first, turn.who, turn.text) for turn in whole.turns if turn.first >= first
    )
    return replace(whole.cut(len(whole), first=first), turns=turns)


def before(prompt_ids: IntArray, episode: Response, turn: Turn) -> IntArray:
    """Return the tokens that the model saw before a turn of its own."""
    first = 0
    for earlier in (each for each in episode.turns if each.first <= turn.first):
        if earlier.prompt_ids is not None:
            prompt_ids, first = earlier.prompt_ids, earlier.first
    return np.concatenate([prompt_ids, episode.token_ids[first : turn.first]])


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two messages must share to be the same: role, content, calls."""
    calls = [_call(call.get("function", call)) for call in message.get("tool_calls") or ()]
    kept = {name: message[name] for name in ("name", "tool_call_id") if name in message}
    return {"role": message["role"], "content": message.get("content") or "", "tool_calls": calls, **kept}


def _call(function: Mapping[str, Any]) -> tuple[str, str]:
    arguments = function["arguments"]
    return function["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)


def rows_of_requests(episode: Response) -> list[RowOfTurns]:
    """Return the rows of an agent's episode, from the requests that are recorded with it."""
    lines: list[RowOfTurns] = []
    for turn in (each for each in episode.turns if each.asked is not None):
        assert turn.asked is not None, "chosen above"
        messages = list(map(plain_message, turn.asked["messages"]))
        if lines and (said := turn.asked.get("answered")):
            lines[-1].messages.append(plain_message(said))
        if turn.prompt_ids is not None:
            lines.append(RowOfTurns(turn.prompt_ids, turn.stop, messages, list(turn.asked.get("tools") or ())))
        else:
            lines[-1].messages = messages
    return lines
