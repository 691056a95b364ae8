"""Read requests for chat completions, and write answers to them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_MESSAGES = 1024
DEEPEST = 64
"""Levels of lists and objects in a request."""
ROLES = ("system", "developer", "user", "assistant", "tool")
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "stop": (None, []),
    "tool_choice": (None, "auto"),
    "response_format": (None, {"type": "text"}),
    "functions": (None,),
    "function_call": (None,),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "guided_json": (None,),
    "extra_body": (None,),
}
"""Parameters that would change what is sampled, and the values with which they do not."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
"""Parameters that the recipe alone sets. A request may name them with the recipe's values."""
IGNORED = (*SAMPLING, "stop", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "logit_bias")
"""Parameters without which an answer has the form that its client expects."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the run samples, and what becomes of a request that asks for something else.

    Attributes:
        values: the recipe's value of a parameter, by its name in a request.
        ignore: other values are ignored, and each parameter is said once; otherwise they are refused.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    ignore: bool = False
    _said: set[str] = field(default_factory=set)

    def check(self, given: Mapping[str, Any]) -> None:
        """Look at the parameters of a request.

        Raises:
            BadRequest: one would change what is sampled, and is not ignored.
        """
        for name in dict.fromkeys([*SAMPLING, *NEUTRAL]):
            value = given.get(name)
            if value is None or (name in NEUTRAL and value in NEUTRAL[name]) or self._is_the_recipes(name, value):
                continue
            shown = f"`{name}: {json.dumps(value)[:80]}`"
            if self.ignore and name in IGNORED:
                if name not in self._said:
                    self._said.add(name)
                    print(f"dapo: {shown} of an agent's request is ignored: the recipe decides", file=sys.stderr)
            elif name in self.values:
                own = json.dumps(self.values[name])[:80]
                raise BadRequest(
                    f"{shown} is not what the run samples with, for all turns alike: {own}. Leave it out, ask for that "
                    "value, or set `environment.other_sampling: ignore`"
                )
            else:
                raise BadRequest(f"{shown} is not supported; leave it out")

    def _is_the_recipes(self, name: str, value: Any) -> bool:
        if name not in self.values:
            return False
        own = self.values[name]
        if name == "stop":
            value = [value] if isinstance(value, str) else value
        return bool(value == own) and isinstance(value, bool) == isinstance(own, bool)


class BadRequest(Exception):
    """A request that cannot be answered.

    Attributes:
        code: a word for programs.
        status: of the HTTP answer. No client tries again after one of these.
    """

    def __init__(self, message: str, code: str = "invalid_request", status: int = 400) -> None:
        super().__init__(message)
        self.code, self.status = code, status


@dataclass(frozen=True, slots=True)
class Requested:
    """A request that was read."""

    messages: tuple[dict[str, Any], ...]  # role, content as text, perhaps tool_calls, name, tool_call_id
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int | None = None
    stream: bool = False

    def conversation(self) -> dict[str, Any]:
        """Return it as the episode's process reads it."""
        return {"messages": list(self.messages), "tools": list(self.tools), "max_tokens": self.max_tokens}


@dataclass(frozen=True, slots=True)
class Completed:
    """A turn of the model, for a client."""

    number: int  # of the turn in its episode
    message: Mapping[str, Any]
    cut: bool = False  # the turn met its limit of tokens

    @property
    def _finish(self) -> str:
        return "tool_calls" if self.message.get("tool_calls") else "length" if self.cut else "stop"

    def as_response(self, created: int) -> dict[str, Any]:
        """Return the body of an answer; ``created``: seconds since the epoch."""
        return {
            "id": f"turn-{self.number}",
            "object": "chat.completion",
            "created": created,
            "model": "policy",
            "choices": [{"index": 0, "message": dict(self.message), "finish_reason": self._finish, "logprobs": None}],
        }

    def as_events(self, made: Mapping[str, Any]) -> Iterator[str]:
        """Yield the events of a stream: the whole turn comes in one piece."""
        base = {name: made[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        delta = dict(self.message)
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
        for own, finish in ((delta, None), ({}, self._finish)):
            yield json.dumps(base | {"choices": [{"index": 0, "delta": own, "finish_reason": finish}]})
        yield "[DONE]"


def shown_error(message: str, code: str) -> dict[str, Any]:
    """Return the body of an answer that is an error."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def read_request(body: bytes, sampling: Sampling) -> Requested:
    """Return what a request asks for, of a run that samples so.

    Raises:
        BadRequest: it is none, or asks for something that a training run does not do.
    """
    given = _loaded(body, "the body")
    if not isinstance(given, dict) or not isinstance(given.get("messages"), list) or not given["messages"]:
        raise BadRequest("the body is an object with a list `messages` that is not empty")
    sampling.check(given)
    if len(given["messages"]) > MOST_MESSAGES:
        raise BadRequest(f"more than {MOST_MESSAGES} messages")
    tools = given.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRequest("`tools` is a list of schemas")
    return Requested(
        tuple(_message(number, message) for number, message in enumerate(given["messages"])),
        tuple(tools),
        _limit(given),
        given.get("stream") is True,
    )


def _loaded(text: str | bytes, what: str) -> Any:
    """Return what JSON holds, as the driver's process will read it: lone surrogates become question marks.

    Raises:
        BadRequest: it is none, has numbers that JSON cannot hold, or is nested too deeply.
    """
    try:
        return _plain(json.loads(text), what, DEEPEST)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{what}: no JSON ({error})") from None


def _plain(value: Any, what: str, levels: int) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{what}: {value} is no number of JSON")
    if isinstance(value, dict | list) and levels == 0:
        raise BadRequest(f"{what}: more than {DEEPEST} levels of lists and objects")
    if isinstance(value, dict):
        return {_plain(name, what, 0): _plain(each, what, levels - 1) for name, each in value.items()}
    return [_plain(each, what, levels - 1) for each in value] if isinstance(value, list) else value


def _limit(given: Mapping[str, Any]) -> int | None:
    found = [given[name] for name in ("max_completion_tokens", "max_tokens") if given.get(name) is not None]
    for value in found:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadRequest("`max_completion_tokens` is a whole number from 1 on")
    return min(found) if found else None


def _message(number: int, given: Any) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(given, dict) or given.get("role") not in ROLES:
        raise BadRequest(f"{where}: a message has a role, one of {', '.join(ROLES)}")
    role = "system" if given["role"] == "developer" else given["role"]
    message: dict[str, Any] = {"role": role, "content": _text(where, given.get("content"))}
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str):
            message[name] = given[name]
    if calls := given.get("tool_calls"):
        if not isinstance(calls, list):
            raise BadRequest(f"{where}: `tool_calls` is a list")
        message["tool_calls"] = [_call(where, call) for call in calls]
    return message


def _text(where: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise BadRequest(f"{where}: the content is a text, or a list of parts of the type `text`")


def _call(where: str, given: Any) -> dict[str, Any]:
    """Return a call with its arguments as an object, as chat templates want them."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{where}: a tool call has a function with a name and arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _loaded(arguments.strip() or "{}", f"{where}: `arguments` of {function['name'][:64]}")
    own = {"name": function["name"], "arguments": arguments if arguments is not None else {}}
    return {"type": "function", "id": str(given.get("id", ""))[:64], "function": own}
