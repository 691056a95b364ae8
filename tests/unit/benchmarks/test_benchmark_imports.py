"""What the benchmarks import is there: they run seldom, and a name that moved would be seen late."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
OWN = {"dapo", "benchmarks", *(file.stem for file in BENCHMARKS.glob("*.py"))}
ELSEWHERE = {"trl", "datasets", "vllm", "peft"}
"""Packages of environments of their own."""


@pytest.fixture(autouse=True)
def scripts_import_each_other(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def missing(source: str) -> list[str]:
    """Return the imported modules that are not there, and the names that a module of ours does not have."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OWN:
            found += [f"{node.module}.{name.name}" for name in node.names if not is_there(node.module, name.name)]
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            tops = {str(module).partition(".")[0] for module in modules} - ELSEWHERE
            found += [top for top in sorted(tops) if importlib.util.find_spec(top) is None]
    return found


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ImportError:
        return False


def test_every_name_that_a_benchmark_imports_is_there():
    found = {str(file.relative_to(BENCHMARKS)): missing(file.read_text()) for file in BENCHMARKS.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}


def test_a_name_and_a_module_that_moved_are_seen():
    source = "from machine import describe_machine, gone\nfrom dapo.gone import x\nimport json, moved\n"
    assert missing(source) == ["machine.gone", "dapo.gone.x", "moved"]
