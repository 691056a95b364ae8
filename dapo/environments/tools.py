"""Typed functions as tools: their JSON schema, the check of arguments, and the call.

>>> def add(a: int, b: int = 0) -> int:
...     "Add two numbers."
...     return a + b
>>> Tool.of(add).schema["function"]["parameters"]["required"]
['a']
"""

from __future__ import annotations

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from dapo.types.environment import Call

_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
_ACCEPTED = "str, int, float, bool, list, dict, Literal, Optional"


class ToolError(ValueError):
    """A function that cannot be a tool, or a call that does not fit its schema."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    hints: Mapping[str, Any]  # type of each parameter
    required: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any], *, bound: bool = True) -> Tool:
        """Read a function's signature; without ``bound`` that of a method, whose first parameter is the object.

        Raises:
            ToolError: a parameter without a type, or with one that JSON does not have.
        """
        name = getattr(function, "__name__", "")
        if not re.fullmatch(r"[A-Za-z_]\w{0,63}", name):
            raise ToolError(f"a tool needs a name of letters, digits and _, found {name!r}; use a named function")
        try:
            hints = typing.get_type_hints(function)
        except Exception as error:
            raise ToolError(f"tool {name}: its types cannot be read: {error}") from None
        described, required = dict[str, Any](), list[str]()
        parameters_of = list(inspect.signature(function).parameters.items())
        for key, parameter in parameters_of if bound else parameters_of[1:]:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ToolError(f"tool {name}: parameter {key!r} has no name in a call; write it as a named parameter")
            if key not in hints:
                raise ToolError(f"tool {name}: parameter {key!r} has no type; annotate it with one of {_ACCEPTED}")
            described[key] = _schema_of(hints[key], f"tool {name}: parameter {key!r}")
            if parameter.default is parameter.empty:
                required.append(key)
        parameters = {"type": "object", "properties": described, "required": required}
        described_by = inspect.cleandoc(function.__doc__ or "").strip()
        schema = {
            "type": "function",
            "function": {"name": name, "description": described_by, "parameters": parameters},
        }
        return cls(name, function, schema, {key: hints[key] for key in described}, frozenset(required))

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them.

        Raises:
            ToolError: one line that names the parameter.
        """
        known = list(self.hints)
        for key in arguments:
            if key not in known:
                listed = ", ".join(known) or "no parameters"
                raise ToolError(f"{self.name} has no parameter {str(key)[:60]!r}; it has {listed}")
        for key in known:
            if key in self.required and key not in arguments:
                raise ToolError(f"{self.name} needs the parameter {key!r}")
        return {key: _fitted(value, self.hints[key], self.name, key) for key, value in arguments.items()}


def _schema_of(hint: Any, where: str) -> dict[str, Any]:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal and arguments and all(isinstance(each, str | int) for each in arguments):
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        inner = [each for each in arguments if each is not type(None)]
        if len(inner) == 1:
            return {"anyOf": [_schema_of(inner[0], where), {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0], where)}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], where)}
    raise ToolError(f"{where} has the type {hint}; expected one of {_ACCEPTED}")


def _fitted(value: Any, hint: Any, tool: str, key: str) -> Any:
    """Return an argument in its parameter's type; an integer may be a float's value."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if any(value == each and type(value) is type(each) for each in arguments):
            return value
        raise ToolError(f"{tool}: {key!r} must be one of {', '.join(map(repr, arguments))}, found {_shown(value)}")
    if origin in (Union, types.UnionType):
        inner = next(each for each in arguments if each is not type(None))
        return None if value is None else _fitted(value, inner, tool, key)
    plain = origin or hint
    if plain is float and type(value) is int:
        return float(value)
    if type(value) is not plain:
        raise ToolError(f"{tool}: {key!r} must be {_article(_PLAIN[plain])}, found {_shown(value)}")
    if plain is list and arguments:
        return [_fitted(each, arguments[0], tool, key) for each in value]
    if plain is dict and arguments:
        return {name: _fitted(each, arguments[1], tool, key) for name, each in value.items()}
    return value


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _shown(value: Any) -> str:
    return repr(value)[:60]


def find_tool(tools: Mapping[str, Tool], call: Call) -> Tool:
    """Return the tool that a call names.

    Raises:
        ToolError: there is none.
    """
    if call.name not in tools:
        raise ToolError(f"there is no tool {call.name[:60]!r}; there are {', '.join(tools)}")
    return tools[call.name]


def result_text(value: Any) -> str:
    """Return what a tool returned as the model reads it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def error_text(error: BaseException) -> str:
    """Return one line about an error, without paths of this machine."""
    said = str(error).strip().splitlines()
    line = re.sub(r"(?:[A-Za-z]:)?[/\\][\w.\-/\\]*[/\\]", "", said[0] if said else "")[:300]
    if isinstance(error, ToolError):
        return f"error: {line}"
    return f"error: {type(error).__name__}{f': {line}' if line else ''}"
