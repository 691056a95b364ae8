"""Whether rewards read a gold answer, and the answer that a worked solution ends in."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

from dapo.config.check_data import source_name
from dapo.config.schema import Recipe, Reward
from dapo.data.conversations import ASSISTANT, message_list
from dapo.data.values import answer_text, plain_text
from dapo.rewards.marks import extract_answer, unwrap

_CONCLUSION = re.compile(r"(?i)\banswer is:?\s+(\S[^\n]*)\s*$")
_SHORT = 64  # characters of one line that is an answer as a whole


class Answers(StrEnum):
    """Say what the rewards of a source do with its gold answers."""

    COMPARED = "compared"  # each problem needs one
    PASSED_ON = "passed_on"  # your function, a service or an environment gets them where there are any
    UNREAD = "unread"


_UNREAD = ("code", "regex", "task")


def answers_read(recipe: Recipe) -> dict[str, Answers]:
    """Return what the rewards of each source do with gold answers, by the source's name."""
    return {
        name: _most([r for r in recipe.rewards if r.sources is None or name in r.sources], recipe)
        for name in map(source_name, [*recipe.data.train, *recipe.data.validation])
    }


def _most(rewards: list[Reward], recipe: Recipe) -> Answers:
    if recipe.scorer is not None:
        return Answers.PASSED_ON
    if any(r.kind in ("math", "exact", "last_number") or "{answer}" in (r.template or "") for r in rewards):
        return Answers.COMPARED
    unread = recipe.environment.kind is None and all(reward.kind in _UNREAD for reward in rewards)
    return Answers.UNREAD if unread else Answers.PASSED_ON


def worked_answer(value: Any, answers: Answers) -> str:
    r"""Return the answer of a worked solution, an assistant's message or a list of messages.

    That is the last marked one (``\boxed{42}``, ``#### 42``, ``Answer: 42``), what follows "the answer is", or a short
    line as a whole. Of a longer text it is "" where rewards compare, and the text elsewhere.

    Raises:
        ValueError: the value is neither text nor a finite number.
    """
    messages = message_list(value)
    if messages is not None:
        value = next((one["content"] for one in reversed(messages) if one["role"] == ASSISTANT), "")
    text = answer_text(value)
    marked = extract_answer(text)
    if marked is not None:
        return marked
    conclusion = _CONCLUSION.search(text)
    if conclusion is not None:
        return unwrap(conclusion[1])
    short = len(text) <= _SHORT and "\n" not in text
    return text if short or answers is not Answers.COMPARED else ""


def stated_answer(value: Any) -> str:
    """Return a gold answer as text; of one with GSM8K's mark (``#### 42``) what follows the last mark."""
    return plain_text(value).rpartition("####")[2].strip()
