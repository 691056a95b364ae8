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
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from dapo.types.environment import Call

_MOST_WRONG = 3  # parts of an argument, or members of a union, that a message names


class ToolError(ValueError):
    """A function that cannot be a tool, or a call that does not fit its schema."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    types: Mapping[str, TypeAdapter[Any]]  # of each parameter
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
            hints = typing.get_type_hints(function, include_extras=True)  # bounds and descriptions of Annotated
        except Exception as error:
            raise ToolError(f"tool {name}: its types cannot be read: {error}") from None
        kinds, described, required = dict[str, TypeAdapter[Any]](), dict[str, Any](), list[str]()
        parameters_of = list(inspect.signature(function).parameters.items())
        for key, parameter in parameters_of if bound else parameters_of[1:]:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ToolError(f"tool {name}: parameter {key!r} has no name in a call; write it as a named parameter")
            if key not in hints:
                raise ToolError(f"tool {name}: parameter {key!r} has no type; annotate it, such as `{key}: int`")
            try:
                kinds[key] = TypeAdapter(hints[key])
                described[key] = kinds[key].json_schema()
            except PydanticUserError as error:
                raise ToolError(f"tool {name}: parameter {key!r} has a type that JSON lacks: {error.message}") from None
            if parameter.default is parameter.empty:
                required.append(key)
        parameters = {"type": "object", "properties": described, "required": required}
        if named := {name: one for schema in described.values() for name, one in schema.pop("$defs", {}).items()}:
            parameters["$defs"] = named  # of types within types: references begin here
        described_by = inspect.cleandoc(function.__doc__ or "").strip()
        schema = {
            "type": "function",
            "function": {"name": name, "description": described_by, "parameters": parameters},
        }
        return cls(name, function, schema, kinds, frozenset(required))

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them.

        Raises:
            ToolError: one line that names the parameter.
        """
        if unknown := [key for key in arguments if key not in self.types]:
            listed = ", ".join(self.types) or "no parameters"
            raise ToolError(f"{self.name} has no parameter {str(unknown[0])[:60]!r}; it has {listed}")
        if missing := [key for key in self.types if key in self.required and key not in arguments]:
            raise ToolError(f"{self.name} needs the parameter {missing[0]!r}")
        fitted = {}
        for key, value in arguments.items():
            try:
                fitted[key] = self.types[key].validate_json(json.dumps(value), strict=True)
            except ValidationError as error:
                said = [_wrong(key, wrong) for wrong in error.errors(include_url=False)[:_MOST_WRONG]]
                raise ToolError(f"{self.name}: {'; '.join(said)}") from None
        return fitted


def _wrong(key: str, wrong: Mapping[str, Any]) -> str:
    """Return what is wrong with a part of an argument, by its place, such as ``'point.x'``."""
    place = ".".join(map(str, (key, *wrong["loc"])))
    return f"{place!r}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}, found {repr(wrong['input'])[:60]}"


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
