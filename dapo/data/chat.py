"""Conversations through a chat template: examples, a system message, tools, and variables of one's own."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from dapo.config.check_data import tool_problem
from dapo.config.schema import Data
from dapo.data.conversations import LAST, SYSTEM, Message
from dapo.data.formats import RawProblem
from dapo.errors import DataError

log = logging.getLogger(__name__)


def has_template(data: Data, tokenizer: Any) -> bool:
    """Whether there is a chat template, the recipe's own or the tokenizer's."""
    return bool(data.chat_template or getattr(tokenizer, "chat_template", None))


def shows_tools(data: Data, tokenizer: Any) -> bool:
    """Return whether the chat template reads schemas of tools."""
    text = _template_text(data, tokenizer)
    return text is None or re.search(r"\btools\b", text) is not None


def check_variables(data: Data, tokenizer: Any) -> None:
    """Refuse what the template does not read: it would have no effect.

    Raises:
        DataError: a name in ``chat_template_kwargs`` that stands nowhere in the template, or tools for a template
            that shows none.
    """
    text = _template_text(data, tokenizer)
    if text is None:
        return
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    for name in data.chat_template_kwargs:
        if name not in words:
            near = get_close_matches(name, sorted(words), n=1, cutoff=0.7)
            raise DataError(
                f"`data.chat_template_kwargs.{name}`: the chat template reads no variable of this name, so it would "
                f"change nothing{f'; did you mean {near[0]}?' if near else '; take it out'}"
            )
    if "strftime_now" in words and "date_string" not in data.chat_template_kwargs:
        _check_date(words)
    if (data.tools or data.tools_field) and "tools" not in words:
        raise DataError(
            f"`data.{'tools' if data.tools else 'tools_field'}` is set, but the chat template shows no tools; describe "
            "them in `data.system_prompt`, or give a template that does (`data.chat_template`)"
        )


def _check_date(words: set[str]) -> None:
    """Refuse a template that writes the day's date: its prompts change each day, and a resume would be refused
    tomorrow.

    Raises:
        DataError: it takes a date instead.
    """
    if "date_string" in words:
        raise DataError(
            "the chat template writes the day's date into every prompt, so that a run would see other prompts tomorrow "
            "and could not be resumed; fix it: `data.chat_template_kwargs: {date_string: '26 Jul 2024'}`"
        )
    log.warning(
        "the chat template can write the day's date into prompts: where it does, a run cannot be resumed on another "
        "day. A template of your own (data.chat_template) with a date in it has no such limit"
    )


def _template_text(data: Data, tokenizer: Any) -> str | None:
    """Return the template; of a tokenizer with several by name, all of them. None: it is no text."""
    template = data.chat_template or getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else None


def render_chat(problem: RawProblem, text: str, data: Data, tokenizer: Any, *, ask: bool = True) -> str:
    """Return the conversation as the chat template writes it, up to where the response begins.

    Args:
        problem: with its messages, where it has some.
        text: what the user says last.
        data: the recipe's section.
        tokenizer: whose template it is, unless the recipe has one.
        ask: up to where the assistant's answer begins; False: up to the end of what was said.

    Raises:
        DataError: the template refuses the messages, or leaves out what the system or the user says; tools that are
            none.
    """
    messages = _messages(problem, text, data)
    return chat_text(problem.row, messages, data, tokenizer, tools=_tools(problem, data), ask=ask)


def conversation(problem: RawProblem, data: Data) -> dict[str, Any]:
    """Return what the chat template makes a prompt of: its messages and tools."""
    return {
        "messages": _messages(problem, with_instruction(problem.problem, data), data),
        "tools": list(_tools(problem, data)),
    }


def chat_text(
    where: str, messages: list[Message], data: Data, tokenizer: Any, *, tools: list[Any] | None = None, ask: bool = True
) -> str:
    """Messages as the chat template writes them, with the recipe's variables.

    Args:
        where: they come from, for errors.
        messages: as they are; nothing of the recipe's is added.
        data: the recipe's section.
        tokenizer: whose template it is, unless the recipe has one.
        tools: schemas that the template gets; None: those of ``data.tools``.
        ask: up to where the assistant's next answer begins.

    Raises:
        DataError: the template refuses the messages, or leaves out what the system or the user says.
    """
    options: dict[str, Any] = dict(data.chat_template_kwargs)
    if data.chat_template is not None:
        options["chat_template"] = data.chat_template
    if tools := data.tools if tools is None else tools:
        options["tools"] = tools
    roles = [message["role"] for message in messages]
    whose = "`data.chat_template`" if data.chat_template is not None else "the tokenizer's chat template"
    try:
        rendered = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask, **options))
    except Exception as error:  # jinja's own errors, and whatever a template raises on purpose
        raise DataError(
            f"{where}: {whose} failed on messages of {roles}: {type(error).__name__}: {error}"
            f"{_without_system(roles, data)}"
        ) from error
    _check_shown(where, whose, messages, rendered, data)
    return rendered


def _check_shown(where: str, whose: str, messages: list[Message], rendered: str, data: Data) -> None:
    """Refuse a rendering in which a message of the system or the user is missing.

    White space does not count, since templates trim and join it. What the user says must be there in its order; an
    assistant's earlier turn may be shortened, as templates take thinking out.

    Raises:
        DataError: the message that is missing, and the next move.
    """
    shown, reached = _without_blanks(rendered), 0
    for message in messages:
        content = _without_blanks(str(message["content"]))
        if message["role"] in SYSTEM and content not in shown:
            raise DataError(
                f"{where}: {whose} leaves the system message out: the model would never see it"
                f"{_without_system([m['role'] for m in messages], data)}"
            )
        if message["role"] != LAST:
            continue
        start = shown.find(content, reached)
        if start < 0:
            raise DataError(
                f"{where}: {whose} leaves the user's message out: {message['content'][:80]!r} is not in the prompt "
                f"{rendered[:80]!r}, so the model would not see the problem; give a template that shows every message "
                "(`data.chat_template`)"
            )
        reached = start + len(content)


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _without_system(roles: list[str], data: Data) -> str:
    """Return the next move if a template takes no system message."""
    if not any(role in SYSTEM for role in roles):
        return ""
    if data.system_prompt is not None:
        return "; remove `data.system_prompt` if the template accepts none (`data.instruction` follows each problem)"
    return "; take the system message out of the records if the template accepts none"


def _messages(problem: RawProblem, text: str, data: Data) -> list[Message]:
    """Return the conversation: the recipe's system message, examples, and the record's own turns.

    Raises:
        DataError: the recipe and the record both have a system message.
    """
    last: Message = {"role": LAST, "content": text}
    own = [*problem.messages[:-1], {**problem.messages[-1], **last}] if problem.messages else [last]
    system = [message for message in own[:1] if message["role"] in SYSTEM]
    if data.system_prompt is not None:
        if any(message["role"] in SYSTEM for message in own):
            raise DataError(
                f"{problem.row}: its messages hold a system message of their own, and `data.system_prompt` is set; "
                "remove one of them"
            )
        system = [{"role": "system", "content": data.system_prompt}]
        own = [*system, *own]
    shots: list[Message] = []
    for shot in data.few_shot:
        shots.append({"role": LAST, "content": with_instruction(shot.problem, data)})
        shots.append({"role": "assistant", "content": shot.response})
    return [*system, *shots, *own[len(system) :]]


def with_instruction(text: str, data: Data) -> str:
    """Return the user's message: the problem, then the instruction."""
    return f"{text}\n\n{data.instruction}" if data.instruction else text


def _tools(problem: RawProblem, data: Data) -> list[Any]:
    """Return the schemas that the template gets.

    Raises:
        DataError: the record's column is not there, or holds no list of schemas.
    """
    if data.tools_field is None:
        return data.tools
    if data.tools_field not in problem.extra:
        raise DataError(
            f"{problem.row}: `data.tools_field: {data.tools_field}` names no column of this record; it has "
            f"{', '.join(problem.extra) or 'none besides problem and answer'}"
        )
    value = problem.extra[data.tools_field]
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{problem.row}, field {data.tools_field!r}: the tools are no JSON: {error}") from None
    if not value:
        return []
    found = value if isinstance(value, list) else [value]
    for tool in found:
        if wrong := tool_problem(tool):
            raise DataError(f"{problem.row}, field {data.tools_field!r}: {wrong}; found {str(tool)[:80]}")
    return found
