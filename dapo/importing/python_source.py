"""Config objects in a Python file: ``GRPOConfig(loss_type="dapo", ...)``, read from its syntax tree, never executed."""

from __future__ import annotations

import ast
import warnings
from copy import deepcopy
from typing import Any

from dapo.errors import RecipeError
from dapo.importing.given import MOST_SETTINGS, SourceFile
from dapo.importing.values import NotConstant, arithmetic

_LORA = {"r": "lora_r", "task_type": ""}
_TRAINER = {"model": "model_name_or_path", "train_dataset": "train_dataset", "eval_dataset": "eval_dataset"}


def read_python(text: str, name: str) -> SourceFile:
    """Return a source from the calls of ``*Config`` and ``*Trainer`` in a Python file.

    Raises:
        RecipeError: it is not Python, or nested without end.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RecipeError(f"{name} is not Python that can be read: {error}") from None
    source = SourceFile(name, "Python")
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            source.words.add((module or "").split(".")[0])
    names = _constants(nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called.endswith(("GRPOConfig", "GRPOTrainer", "LoraConfig", "RLHFArguments")):
                source.words.add(called)
                _take(node, called, names, source)
    if len(source.settings) > MOST_SETTINGS:
        raise RecipeError(f"{name} has more than {MOST_SETTINGS:,} settings")
    return source


def _constants(nodes: list[ast.AST]) -> dict[str, Any]:
    """Names that are set once, to a constant."""
    times: dict[str, int] = {}
    found: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            times[node.id] = times.get(node.id, 0) + 1
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    known: dict[str, Any] = {}
    for name, expression in found.items():
        if times[name] == 1:
            try:
                known[name] = _value(expression, known)
            except NotConstant:
                continue
    return known


def _take(call: ast.Call, called: str, names: dict[str, Any], source: SourceFile) -> None:
    for keyword in call.keywords:
        place = f"line {keyword.value.lineno}"
        if keyword.arg is None:
            source.unresolved.append((f"**{_code(keyword.value)}, {place}", "settings that are made when it runs"))
            continue
        key = keyword.arg
        if called.endswith("Trainer"):
            if key in ("args", "processing_class", "peft_config", "callbacks", "reward_processing_classes"):
                continue
            key = _TRAINER.get(key, key)
        elif called == "LoraConfig":
            key = _LORA.get(key, key)
        if not key:
            continue
        try:
            source.add(key, _value(keyword.value, names), place)
        except NotConstant:
            if key == "reward_funcs":
                parts = [_Constants(names).visit(deepcopy(part)) for part in _items(keyword.value)]
                source.add(key, [_code(part) for part in parts], place)
            else:
                source.unresolved.append((f"{key} = {_code(keyword.value)}, {place}", "known only when it runs"))


class _Constants(ast.NodeTransformer):
    """Numbers where an argument of a call is a name, or arithmetic, that is constant."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self._number(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self._number(keyword.value)
        return node

    def _number(self, node: ast.expr) -> ast.expr:
        try:
            found = _value(node, self.names)
        except NotConstant:
            return node
        return ast.Constant(found) if isinstance(found, int | float) and not isinstance(found, bool) else node


def _items(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.List | ast.Tuple) else [node]


def _code(node: ast.expr) -> str:
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):
        return "..."
    return text if len(text) <= 80 else f"{text[:77]}..."


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        if node.value is None or isinstance(node.value, bool | int | float | str):
            return node.value
        raise NotConstant("not a setting")
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(part, names) for part in node.elts]
    if isinstance(node, ast.Call) and _code(node.func).endswith("load_dataset") and 0 < len(node.args) < 3:
        parts = [_value(part, names) for part in node.args]  # a name of the hub, and its subset
        if all(isinstance(part, str) for part in parts):
            return ":".join(parts)
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
        return dict(zip(keys, [_value(part, names) for part in node.values], strict=True))
    return arithmetic(node, names)
