"""Write replies as tokens that follow what was sampled, and refuse templates that rewrite earlier turns.

With ``environment.rows: append`` prompt, sampled tokens and reply tokens are one row, so a reply may only be appended.
With a chat template the tokens of a reply are what the template writes after the end-of-turn token of a dummy turn,
encoded alone. Without one a reply is its text, encoded alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dapo.config.schema import Data
from dapo.data.chat import chat_text
from dapo.environments.call_formats import FORMATS, PROBE, detect
from dapo.errors import DataError, RecipeError
from dapo.types.batch import IntArray

_ASKED, _SAID = "What is asked?", "What is said."
_REPLIED = "What is replied."
_CALL_ID = "t0000c000"


class TemplateSpeech:
    """Write replies as the chat template does.

    Raises:
        RecipeError: by ``check``, a template that cannot be appended to.
    """

    afresh = False

    def __init__(self, data: Data, tokenizer: Any) -> None:
        self._data, self._tokenizer = data, tokenizer
        self._specials = _special_texts(tokenizer)
        self._checked: set[str] = set()  # roles
        self.end_of_turn = self._end_of_turn()
        self.end_ids = _encode(self.end_of_turn, tokenizer)

    def opening(self, messages: Sequence[Mapping[str, str]]) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        told = [dict(message) for message in messages]
        try:
            asked, whole = self._render([_user()], ask=False), self._render([_user(), *told], ask=True)
        except DataError as error:
            raise _no_opening(str(error)) from None
        ids = _encode(whole.removeprefix(asked), self._tokenizer)
        if not whole.startswith(asked):
            raise _no_opening("it writes the problem in another way once the environment speaks")
        if [*_encode(asked, self._tokenizer), *ids] != _encode(whole, self._tokenizer):
            raise _no_opening("its tokens depend on what stands before them")
        return np.asarray(ids, dtype=np.int64)

    def reply(self, messages: Sequence[Mapping[str, str]], *, closed: bool, ask: bool = True) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        for role in dict.fromkeys(message["role"] for message in messages):
            self.check(role)
        text = self._delta(messages, ask)
        ids = _encode(text if closed else self.end_of_turn + text, self._tokenizer)
        return np.asarray(ids, dtype=np.int64)

    def written(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        given = [dict(message) for message in messages]
        try:
            text = chat_text("environment", given, self._data, self._tokenizer, tools=list(tools) or None)
        except DataError as error:
            raise ValueError(str(error)) from None
        return np.asarray(_encode(text, self._tokenizer), dtype=np.int64)

    def shorten(self, text: str, limit: int) -> str:
        """See ``dapo.types.environment.Speech``."""
        return _shorten(text, limit, self._tokenizer)

    def check(self, role: str) -> None:
        """Refuse a template that does not keep earlier turns as they were when this role answers.

        Raises:
            RecipeError: with what the template does, and the next moves.
        """
        if role in self._checked:
            return
        message = _answered(role)
        said, thinking = _SAID, self._data.thinking
        if thinking.enabled:
            said = f"{thinking.open}\nWhat is thought.\n{thinking.close}\n\n{_SAID}"
        try:
            asked = self._render([_user()], ask=True)
            one = self._render([_user(), _assistant(said)], ask=False)
        except DataError as error:
            raise _refusal(role, f"it refuses an assistant's turn: {error}") from None
        begun = said.removeprefix(f"{thinking.open}\n") if asked.rstrip().endswith(thinking.open) else said
        kept = asked + begun + self.end_of_turn  # what the row holds
        try:
            two = self._render([_user(), _assistant(said), message], ask=True)
            three = self._render([_user(), _assistant(said), message, _assistant(said), message], ask=True)
        except DataError as error:
            if self._with_call(message) is None:
                raise _refusal(role, f"it refuses such messages: {error}") from None
            self._checked.add(role)
            return
        if not two.startswith(kept):
            alone = "" if one.startswith(kept) else " even before that"
            raise _refusal(role, f"it writes an assistant's turn in another way once the {role} answers{alone}")
        if not three.startswith(two + begun + self.end_of_turn):
            raise _refusal(role, "it rewrites earlier turns when the conversation goes on")
        delta = two[len(kept) :]
        ids = _encode(delta, self._tokenizer)
        if str(self._tokenizer.decode(ids, skip_special_tokens=False)) != delta:
            raise _refusal(role, f"the tokenizer does not decode the tokens of a reply to the text: {delta[:60]!r}")
        if [*_encode(kept, self._tokenizer), *ids] != _encode(two, self._tokenizer):
            raise _refusal(role, "the tokens of a reply depend on what stands before it")
        self._checked.add(role)

    def _delta(self, messages: Sequence[Mapping[str, str]], ask: bool) -> str:
        given = [dict(message) for message in messages]
        try:
            whole = self._render([_user(), _assistant(_SAID), *given], ask=ask)
        except DataError as error:
            text = self._with_call(*given, ask=ask)
            if text is None:
                raise ValueError(str(error)) from None
            return text
        end = whole.find(self.end_of_turn, whole.find(_SAID) + len(_SAID))
        if _SAID not in whole or end < 0:
            raise ValueError("the chat template leaves out the assistant's turn before this reply")
        return whole[end + len(self.end_of_turn) :]

    def _with_call(self, *messages: Mapping[str, Any], ask: bool = True) -> str | None:
        """Return the delta after an assistant's turn that calls tools, as some templates ask for; None: refused."""
        ids = [str(message.get("tool_call_id", _CALL_ID)) for message in messages if message["role"] == "tool"]
        calling = [_user(), _calls(ids or [_CALL_ID])]
        try:
            one = self._render(calling, ask=False)
            two = self._render([*calling, *map(dict, messages)], ask=ask)
        except DataError:
            return None
        kept = self._kept(one)
        return two[len(kept) :] if two.startswith(kept) else None

    def _end_of_turn(self) -> str:
        """Return the text of the special token with which the template ends an assistant's turn.

        Raises:
            RecipeError: there is none.
        """
        try:
            shown = self._render([_user(), _assistant(_SAID)], ask=False)
        except DataError as error:
            raise _no_end(f"it refuses an assistant's turn: {error}") from None
        rest = shown[shown.rindex(_SAID) + len(_SAID) :] if _SAID in shown else ""
        found = [text for text in self._specials if rest.lstrip().startswith(text)]
        if not found:
            raise _no_end(f"what follows it is {rest[:40]!r}")
        return max(found, key=len)

    def _kept(self, shown: str) -> str:
        """Return a rendering up to its last end-of-turn token, white space after it left out."""
        return shown[: shown.rindex(self.end_of_turn) + len(self.end_of_turn)]

    def _render(self, messages: list[dict[str, Any]], *, ask: bool) -> str:
        return chat_text("environment", messages, self._data, self._tokenizer, ask=ask)


class FreshSpeech(TemplateSpeech):
    """Write the whole conversation afresh before each turn, for templates that rewrite earlier turns.

    The tokens of a reply alone are those of its contents. They are recorded and count for the limit of the episode.
    """

    afresh = True

    def opening(self, messages: Sequence[Mapping[str, str]]) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        return self.reply(messages, closed=True)

    def reply(self, messages: Sequence[Mapping[str, str]], *, closed: bool, ask: bool = True) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        for role in dict.fromkeys(message["role"] for message in messages):
            self.check(role)
        text = "\n".join(message["content"] for message in messages)
        return np.asarray(_encode(text, self._tokenizer), dtype=np.int64)

    def check(self, role: str) -> None:
        """Refuse a template that does not show what this role answers.

        Raises:
            RecipeError: with what the template does, and the next move.
        """
        if role in self._checked:
            return
        message = _answered(role)
        try:
            shown, why = self._render([_user(), _assistant(_SAID), message], ask=True), ""
        except DataError as error:
            shown, why = "", f": {error}"
        if _REPLIED not in shown:
            raise RecipeError(
                f"environment: the chat template does not show what the role `{role}` answers{why}; answer in another "
                "role, or give another `data.chat_template`"
            )
        self._checked.add(role)


class PlainSpeech:
    """Write replies as their text, for models without a chat template."""

    afresh = False
    end_of_turn = ""
    end_ids: Sequence[int] = ()

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def opening(self, messages: Sequence[Mapping[str, str]]) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        return self.reply(messages, closed=True)

    def reply(self, messages: Sequence[Mapping[str, str]], *, closed: bool, ask: bool = True) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        text = "".join(message["content"] for message in messages)
        ids = _encode(text, self._tokenizer)
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        if unknown is not None and unknown in ids:
            raise ValueError(f"the tokenizer has no tokens for a part of {text[:80]!r}")
        return np.asarray(ids, dtype=np.int64)

    def written(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> IntArray:
        """See ``dapo.types.environment.Speech``."""
        return self.reply(messages, closed=True)

    def shorten(self, text: str, limit: int) -> str:
        """See ``dapo.types.environment.Speech``."""
        return _shorten(text, limit, self._tokenizer)

    def check(self, role: str) -> None:
        """Accept every role: none is written."""


def make_speech(
    data: Data, tokenizer: Any, *, chat: bool, rows: Literal["append", "turns"] = "append"
) -> TemplateSpeech | PlainSpeech:
    """Return what writes replies.

    Args:
        data: the recipe's section.
        tokenizer: of the model.
        chat: prompts are made by the chat template.
        rows: the recipe's ``environment.rows``.

    Raises:
        RecipeError: ``turns`` without a chat template, or a template without an end of turn.
    """
    if rows == "turns" and not chat:
        raise RecipeError(
            "environment.rows: turns writes the conversation with the chat template, and there is none; use append, "
            "which keeps every turn as it was"
        )
    if not chat:
        return PlainSpeech(tokenizer)
    return FreshSpeech(data, tokenizer) if rows == "turns" else TemplateSpeech(data, tokenizer)


def find_format(data: Data, tokenizer: Any, *, chat: bool) -> str:
    """Name the format in which the chat template writes calls.

    Raises:
        RecipeError: the template does not show it.
    """
    shown = ""
    if chat:
        try:
            shown = chat_text("environment", [_user(), _calls([_CALL_ID])], data, tokenizer, ask=False)
        except DataError:
            shown = ""
    found = detect(shown)
    if found is None:
        why = "the chat template shows no call in a known format" if chat else "there is no chat template"
        raise RecipeError(
            f"environment.tool_format: auto: {why}; name one of {', '.join(FORMATS)}, or module:function that reads "
            "the calls of a turn"
        )
    return found


def _calls(ids: Sequence[str]) -> dict[str, Any]:
    calls = [{"type": "function", "id": one, "function": PROBE} for one in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _user() -> dict[str, Any]:
    return {"role": "user", "content": _ASKED}


def _answered(role: str) -> dict[str, Any]:
    return {"role": role, "content": _REPLIED, "name": PROBE["name"], "tool_call_id": _CALL_ID}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _refusal(role: str, what: str) -> RecipeError:
    moves = "another `data.chat_template` that keeps earlier turns"
    if role != "tool":
        moves = f"answer in the role `tool`, which more templates leave alone, or give {moves}"
    else:
        moves = f"give {moves}"
    return RecipeError(
        f"environment: the chat template cannot be appended to by the role `{role}`: {what}. What was sampled would "
        f"not be what is trained; {moves}, or set `environment.rows: turns`, which makes each turn a row after the "
        "conversation as it is then"
    )


def _no_end(what: str) -> RecipeError:
    return RecipeError(
        f"environment: the chat template ends no turn of the assistant with a special token of the tokenizer: {what}. "
        "dapo could not tell where a turn ends; give another `data.chat_template` that writes such a token after each "
        "message of the assistant"
    )


def _no_opening(what: str) -> RecipeError:
    return RecipeError(
        f"environment: the chat template cannot write what the environment says before the model speaks: {what}. Say "
        "nothing there (`start` returns None, or a generator yields '' first) and put it into the problem, or give "
        "another `data.chat_template`"
    )


def _special_texts(tokenizer: Any) -> list[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return sorted({*map(str, tokenizer.all_special_tokens), *(str(token) for token in added.values())})


def _encode(text: str, tokenizer: Any) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _shorten(text: str, limit: int, tokenizer: Any) -> str:
    ids = _encode(text, tokenizer)
    if len(ids) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    first = str(tokenizer.decode(ids[:head], skip_special_tokens=False))
    last = str(tokenizer.decode(ids[len(ids) - tail :], skip_special_tokens=False)) if tail else ""
    mark = f" [... {len(ids) - head - tail} tokens cut ...] "
    return f"{first}{mark if _writes(mark, tokenizer) else ' '}{last}"


def _writes(text: str, tokenizer: Any) -> bool:
    """Return whether a tokenizer has tokens for a text; white space aside."""
    ids = _encode(text, tokenizer)
    again = str(tokenizer.decode(ids, skip_special_tokens=False))
    return getattr(tokenizer, "unk_token_id", None) not in ids and again.split() == text.split()
