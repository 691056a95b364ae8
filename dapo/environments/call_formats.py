"""Formats in which models write calls of tools, and which of them a chat template shows."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from dapo.types.environment import Call

Reader = Callable[[str], list[tuple[str, Mapping[str, Any]]]]
"""A turn's text, special tokens included -> (name, arguments) of each call. Raises ValueError for a broken call."""

_PROBE, _ARGUMENT = "probe_call", "probe_argument"
PROBE = {"name": _PROBE, "arguments": {_ARGUMENT: 1}}
"""The call that ``detect`` lets a chat template write."""


def hermes(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Read ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""
    if text.count("<tool_call>") != text.count("</tool_call>"):
        raise ValueError("a <tool_call> without its </tool_call>")
    bodies = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", text, re.DOTALL)
    return [_named(_json(body), "arguments") for body in bodies]


def llama3(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Read a turn that is ``{"name": ..., "parameters": {...}}``, or several of them after one another."""
    rest = text.replace("<|python_tag|>", "").replace("<|eom_id|>", "").replace("<|eot_id|>", "").strip()
    if not rest.startswith("{") or '"name"' not in rest:
        return []
    found, decoder = [], json.JSONDecoder(parse_constant=_no_number)
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError as error:
            raise ValueError(f"the call is no JSON: {error}") from None
        found.append(_named(value, "parameters"))
        rest = rest[end:].lstrip(" \n\t;,")
    return found


def mistral(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Read ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name[ARGS]{...}``."""
    _, tag, rest = text.partition("[TOOL_CALLS]")
    if not tag:
        return []
    rest = rest.removesuffix("</s>").strip()
    if "[ARGS]" in rest:
        pairs = [part.partition("[ARGS]") for part in rest.split("[TOOL_CALLS]")]
        return [_named({"name": re.sub(r"\[.*", "", name).strip(), "arguments": _json(body)}, "arguments")
                for name, _, body in pairs]  # fmt: skip
    value = _json(rest)
    return [_named(each, "arguments") for each in (value if isinstance(value, list) else [value])]


def python(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Read a turn that is ``[add(a=1, b=2)]``: Python calls with named literals."""
    body = re.sub(r"<\|?[\w|]+\|?>", "", text).strip()
    if not (body.startswith("[") and body.endswith("]")):
        return []
    try:
        tree = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("the list of calls is no Python") from None
    assert isinstance(tree, ast.List | ast.ListComp | ast.expr)
    calls = tree.elts if isinstance(tree, ast.List) else []
    found = list[tuple[str, Mapping[str, Any]]]()
    for call in calls:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            raise ValueError("expected calls with named arguments, such as [add(a=1, b=2)]")
        try:
            found.append((call.func.id, {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}))
        except ValueError:
            raise ValueError(f"the arguments of {call.func.id} are no literals") from None
    return found


FORMATS: dict[str, Reader] = {"hermes": hermes, "llama3": llama3, "mistral": mistral, "python": python}


def read_calls(reader: Reader | None, text: str, turn: int) -> tuple[tuple[Call, ...], str | None]:
    """Return the calls of a turn, and why one could not be read. Ids have nine letters, as some templates ask for.

    Args:
        reader: of the tool format; None: the model calls no tools.
        text: of the turn, special tokens included.
        turn: its number.
    """
    if reader is None:
        return (), None
    try:
        found = reader(text)
        calls = [Call(f"t{turn:04d}c{n:03d}", str(name), dict(values)) for n, (name, values) in enumerate(found)]
    except (ValueError, TypeError, RecursionError) as error:
        return (), " ".join(str(error).split())[:200] or type(error).__name__
    return tuple(calls), None


def detect(rendered: str) -> str | None:
    """Name the format in which a chat template wrote ``PROBE``; None: none that is known."""
    if _PROBE not in rendered:
        return None
    if re.search(r"<tool_call>\s*\{", rendered):
        return "hermes"
    if "[TOOL_CALLS]" in rendered:
        return "mistral"
    if re.search(rf"\[{_PROBE}\({_ARGUMENT}=1\)\]", rendered):
        return "python"
    if re.search(rf'\{{"name": "{_PROBE}",\s*"parameters":', rendered):
        return "llama3"
    return None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the call is no JSON: {error}") from None


def _named(value: Any, key: str) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f'a call is {{"name": ..., "{key}": {{...}}}}')
    arguments = value.get(key, value.get("arguments", value.get("parameters", {})))
    if not isinstance(arguments, dict):
        raise ValueError(f'the "{key}" of {value["name"][:60]} are no JSON object')
    return value["name"], arguments
