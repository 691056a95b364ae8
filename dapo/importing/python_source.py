"""Config objects in a Python file: ``GRPOConfig(loss_type="dapo", ...)``, read from its syntax tree, never executed."""

from __future__ import annotations

import ast
import re
import warnings
from copy import deepcopy
from typing import Any

from dapo.errors import RecipeError
from dapo.importing.arithmetic import NotConstant, arithmetic
from dapo.importing.contents import MOST_SETTINGS, SourceFile, leaves

_LORA = {"r": "lora_r", "task_type": ""}
_TRAINER = {"model": "model_name_or_path", "train_dataset": "train_dataset", "eval_dataset": "eval_dataset"}
_OTHER = re.compile(r"(SFT|DPO|KTO|PPO|RLOO|Reward|GKD|ORPO|CPO)Config")  # of methods that the importer names


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
    source.functions = _functions(tree, name)
    calls = [(node, _called(node)) for node in nodes if isinstance(node, ast.Call)]
    ours = any(called.endswith(("GRPOConfig", "GRPOTrainer", "RLHFArguments")) for _, called in calls)
    for node, called in calls:
        known = called.endswith(("GRPOConfig", "GRPOTrainer", "LoraConfig", "RLHFArguments"))
        if known or (not ours and _OTHER.fullmatch(called)):
            source.words.add(called)
            own = called == "GRPOTrainer" or source.functions.get(called, "").startswith("trl")
            if called.endswith("GRPOTrainer") and not own:
                source.cautions.append(
                    f"{called} is not TRL's own trainer: what its code changes is not in this recipe"
                )
            _take(node, called, names, source)
    if "GRPOTrainer" in source.words and not {"GRPOConfig", "RLHFArguments"} & source.words:
        raise RecipeError(
            f"{name}: the configuration of its GRPOTrainer is made elsewhere, as of a command line. Import the command"
        )
    _take_data(nodes, names, source)
    _take_prompt(nodes, names, source)
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


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _functions(tree: ast.Module, name: str) -> dict[str, str]:
    """Return the module of each function that the file defines or takes from another module."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = name.rpartition("/")[2].removesuffix(".py")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: node.module for alias in node.names}
    return found


def _take_data(nodes: list[ast.AST], names: dict[str, Any], source: SourceFile) -> None:
    """Take what ``load_dataset`` loads where the trainer is given what the file makes of it, if only one call fits."""
    loaded: list[tuple[str, str, str]] = []
    for node in nodes:
        if not isinstance(node, ast.Call) or _called(node) != "load_dataset":
            continue
        try:
            path, split = _value(node, names), next((k.value for k in node.keywords if k.arg == "split"), None)
            part = "train" if split is None else _value(split, names)
        except NotConstant:
            continue
        loaded.append((str(path), str(part), f"line {node.lineno}"))
    for key, ours, wanted in (("train_dataset", "dataset_train_split", True), ("eval_dataset", "eval_split", False)):
        fits = sorted({one for one in loaded if one[1].startswith("train") is wanted})
        if len(fits) == 1 and (key in source.unread or key in source.settings):
            path, part, place = fits[0]
            source.unresolved = [(what, why) for what, why in source.unresolved if not what.startswith(f"{key} =")]
            source.add(key, path, place)
            source.add(ours, part, place)


def _take_prompt(nodes: list[ast.AST], names: dict[str, Any], source: SourceFile) -> None:
    """Take the text of the only message of a system, where it is constant."""
    texts: set[Any] = set()
    for node in nodes:
        if isinstance(node, ast.Dict):
            pairs = {
                key.value: value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            }
            role, content = pairs.get("role"), pairs.get("content")
            if isinstance(role, ast.Constant) and role.value == "system" and content is not None:
                try:
                    texts.add(str(_value(content, names)))
                except NotConstant:
                    source.unresolved.append((f"the system prompt {_code(content)}", "known only when it runs"))
    if len(texts) == 1:
        source.add("system", texts.pop(), "")


def _take(call: ast.Call, called: str, names: dict[str, Any], source: SourceFile) -> None:
    for keyword in call.keywords:
        place = f"line {keyword.value.lineno}"
        if keyword.arg is None:
            source.gaps.append((f"**{_code(keyword.value)}", f"{place}: settings that are made when it runs"))
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
            value = _value(keyword.value, names)
            for name, part in leaves(value) if key == "lr_scheduler_kwargs" else ((key, value),):
                source.add(name, part, place)
        except NotConstant:
            if key == "reward_funcs":
                parts = [_Constants(names).visit(deepcopy(part)) for part in _items(keyword.value)]
                source.add(key, [_code(part) for part in parts], place)
            else:
                source.not_read(key, f"{key} = {_code(keyword.value)}, {place}", "known only when it runs")


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
        given = {one.arg: _value(one.value, names) for one in node.keywords if one.arg in ("data_files", "split")}
        files = given.get("data_files")
        if isinstance(files, dict):
            files = files.get(str(given.get("split", "train")))
        if isinstance(files, str):
            return files
        if "data_files" in given:
            raise NotConstant("several files")
        parts = [_value(part, names) for part in node.args]  # a name of the hub, and its subset
        if all(isinstance(part, str) for part in parts):
            return ":".join(parts)
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
        return dict(zip(keys, [_value(part, names) for part in node.values], strict=True))
    return arithmetic(node, names)
