"""Functions of the user: ``package.module:function``, found in the working directory too, or given as objects.

A function, an objective or a class of a script or a notebook cell has no name by which another process could import it.
``give`` makes one up, ``python:NAME``, which the recipe holds and which means that object in this process alone.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

OBJECTS = "python"
"""What stands for a module in the name of an object that was given."""
_given: dict[str, Any] = {}


def search_working_directory() -> None:
    """Let modules of the working directory be imported, after everything installed: none hides a package.

    The path is absolute, since a program may change its working directory while a run goes on.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def give(found: Any, name: str) -> str:
    """Register an object as the hook ``python:NAME``. It replaces another object of the same name."""
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in name).lstrip("0123456789") or "object"
    hook = f"{OBJECTS}:{plain}"
    _given[hook] = found
    return hook


def give_as(hook: str, found: Any) -> None:
    """Give an object again under the name that a recipe has for it."""
    _given[hook] = found


def is_object(hook: str) -> bool:
    """Whether it stands for an object, which only the program that gave it has."""
    return hook.startswith(f"{OBJECTS}:")


def given(hook: str) -> Any:
    """Return the object of ``python:NAME``; None if none was given."""
    return _given.get(hook)


def load(hook: str) -> Any:
    """Return the object that ``package.module:name`` or ``python:NAME`` names.

    Raises:
        ImportError: no such module, or the object was not given in this process.
        AttributeError: the module has no such name.
    """
    module, _, name = hook.partition(":")
    if is_object(hook):
        if hook not in _given:
            raise ImportError(
                f"{name!r} is an object of the Python program that started the run, and was not given here: start or "
                "resume it from there (dapo.train, dapo.resume), or name a function of a module instead"
            )
        return _given[hook]
    search_working_directory()
    return getattr(importlib.import_module(module), name)


def line_that_trains(module: str) -> int | None:
    """Return the line of a module's file that calls ``trainer.train()`` when it is imported; None: no line does.

    A script for another trainer, whose functions a recipe names, would train whenever a worker imports it.
    """
    if module in sys.modules or "." in module:
        return None
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return None
    later = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    nodes: list[ast.AST] = [ast.parse(Path(found.origin).read_bytes())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, later) or (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)):
            continue
        call = node.func if isinstance(node, ast.Call) else None
        if isinstance(call, ast.Attribute) and call.attr == "train" and "trainer" in ast.unparse(call.value).lower():
            return call.lineno
        nodes += ast.iter_child_nodes(node)
    return None


def user_line(error: BaseException) -> str:
    """Return ``, FILE line N`` of the innermost line outside of installed packages that raised; "" without one."""
    installed = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(__file__).parent))
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((*installed, "<frozen"))
    ]
    return f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
