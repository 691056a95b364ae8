"""Texts as values, and arithmetic of whole numbers and fractions: read, never evaluated by Python."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from dapo.config.yaml_files import parse_value
from dapo.errors import RecipeError

_LARGEST = 2**63
_LONGEST = 10_000  # characters of a list or mapping on a command line
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class NotConstant(Exception):
    """The value is known only when it runs."""


def from_text(text: str) -> Any:
    """Return a value of a command line: YAML if it is, else the text. Python's True, False and None count too."""
    plain = {"True": True, "False": False, "None": None, "null": None, "": ""}
    if text in plain:
        return plain[text]
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        number = float(text)
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else number
    try:
        return parse_value(text, "a value") if text[:1] in "[{'\"tf" and len(text) <= _LONGEST else text
    except RecipeError:
        return text


def calculate(text: str, names: Mapping[str, Any], *, whole: bool) -> int | float:
    """``3 * batch`` of constants.

    Raises:
        NotConstant: it holds anything but numbers, known names and + - * / % ( ).
    """
    if len(text) > 200:
        raise NotConstant("too long for arithmetic")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise NotConstant("no arithmetic of constants") from None
    return arithmetic(tree, names, whole=whole)


def arithmetic(node: ast.expr, names: Mapping[str, Any], *, whole: bool = False) -> int | float:
    """Return the number of a tree of constants, names and + - * / // %; ``whole``: / divides as in a shell."""
    value: Any
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        value = names.get(node.id)
        value = from_text(value) if isinstance(value, str) else value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -arithmetic(node.operand, names, whole=whole)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = (arithmetic(side, names, whole=whole) for side in (node.left, node.right))
        operation = operator.floordiv if whole and isinstance(node.op, ast.Div) else _OPERATIONS[type(node.op)]
        try:
            value = operation(left, right)
        except (ZeroDivisionError, OverflowError):
            raise NotConstant("no arithmetic of constants") from None
    else:
        raise NotConstant("not a constant")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise NotConstant("not a number")
    return value


def is_off(value: Any) -> bool:
    """Return whether a value says no: null, false, 0, an empty list, or a word for one of them."""
    return str(value).strip().lower() in ("", "none", "null", "false", "no", "off", "0", "0.0", "-1", "[]", "{}")


def shown(value: Any) -> str:
    """Return a value on one line, as it would be written."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
