"""Problems that come as a conversation: a list of messages, each with a role and a content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Message = dict[str, Any]

SYSTEM = ("system", "developer")
LAST = "user"  # who speaks last in a prompt: the response is the assistant's
ASSISTANT = "assistant"
DIALOGUES = ("messages", "conversations", "conversation")
"""Usual names of fields that hold a conversation, the likeliest first."""
_SHAREGPT = {"human": LAST, "gpt": ASSISTANT, "chatgpt": ASSISTANT}


def read_messages(value: Any, field: str, *, answered: bool = False) -> tuple[list[Message] | None, str | None]:
    """Return the messages of a field, and what the assistant says after them.

    Args:
        value: the field's. None is returned for what is no list of messages, such as the problem's text.
        field: its name, for errors.
        answered: the assistant's message at the end is the answer, and no part of the problem.

    Raises:
        ValueError: a list that is no conversation which a response could follow.
    """
    messages = message_list(value)
    if messages is None:
        return None, None
    roles = [message["role"] for message in messages]
    said = messages.pop()["content"] if answered and roles[-1:] == [ASSISTANT] else None
    if not messages or messages[-1]["role"] != LAST:
        move = (
            f"take the answer out, or say that it is the gold answer: `fields: {{problem: {field}, answer: {field}}}`"
            if roles[-2:] == [LAST, ASSISTANT]
            else "take the answer out of the messages"
        )
        raise ValueError(
            f"expected messages whose last one is the user's (the response follows it), found {roles}; {move}"
        )
    return messages, said


def message_list(value: Any) -> list[Message] | None:
    """Return the messages of a field, whichever role comes last; None if it holds something else.

    A text that is a JSON list of messages counts as that list: CSV files and some Parquet columns hold it so. The keys
    ``from`` and ``value`` (ShareGPT) count as ``role`` and ``content``.

    Raises:
        ValueError: a list of something else than messages.
    """
    if isinstance(value, str):
        value = _from_text(value)
    if not isinstance(value, list):
        return None
    return [_message(number, _renamed(item)) for number, item in enumerate(value, start=1)]


def is_answered(value: Any) -> bool:
    """Return whether a field holds messages of which the assistant's is the last."""
    try:
        messages = message_list(value)
    except ValueError:
        return False
    return bool(messages and messages[-1]["role"] == ASSISTANT)


def _renamed(item: Any) -> Any:
    """Return a turn of ShareGPT under the usual names."""
    if not isinstance(item, Mapping) or item.get("role") is not None or not {"from", "value"} <= item.keys():
        return item
    rest = {key: part for key, part in item.items() if key not in ("from", "value", "role", "content")}
    return {"role": _SHAREGPT.get(str(item["from"]), item["from"]), "content": item["value"], **rest}


def _from_text(text: str) -> Any:
    start = text.lstrip()[:200]
    if not start.startswith("[") or not any(f'"{key}"' in start or f"'{key}'" in start for key in ("role", "from")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if start.lstrip("[ \n").startswith("{'"):
            raise ValueError(
                "a list of messages as Python prints it, which cannot be read back safely; write it as JSON "
                "(json.dumps), or save the set as JSONL or Parquet"
            ) from None
        return None
    is_messages = isinstance(value, list) and all(
        isinstance(item, dict) and ("role" in item or {"from", "value"} <= item.keys()) for item in value
    )
    return value if is_messages and value else None


def _message(number: int, item: Any) -> Message:
    if not isinstance(item, Mapping) or not isinstance(item.get("role"), str) or "content" not in item:
        found = sorted(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
        raise ValueError(f"message {number}: expected an object with `role` and `content`, found {found}")
    # Parquet gives every message the columns of all of them: null is "not there".
    message = {str(key): part for key, part in item.items() if part is not None or key == "content"}
    message["content"] = _content(number, message)
    return message


def _content(number: int, message: Mapping[str, Any]) -> str:
    """Text, from text or from a list of text parts."""
    content = message["content"]
    if content is None and message.get("tool_calls"):
        return ""
    if isinstance(content, list):
        kinds = [part.get("type") if isinstance(part, Mapping) else type(part).__name__ for part in content]
        if any(kind != "text" for kind in kinds):
            raise ValueError(f"message {number}: expected text, found parts of the kinds {kinds}")
        content = "".join(str(part.get("text") or "") for part in content)
    if not isinstance(content, str):
        raise ValueError(f"message {number}: expected text as `content`, found {type(content).__name__}")
    return content


def without_system(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without instructions to the model."""
    return [message for message in messages if message["role"] not in SYSTEM]


def dialogue(messages: Iterable[Message]) -> str:
    """Return a conversation as one text."""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)
