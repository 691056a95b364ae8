"""What the benchmarks take from the package is there: they run seldom, and a name that moved would be seen late."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.mark.parametrize("file", sorted(BENCHMARKS.rglob("*.py")), ids=lambda file: str(file.relative_to(BENCHMARKS)))
def test_every_name_that_a_benchmark_imports_is_there(file):
    missing = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dapo":
            module = importlib.import_module(node.module)
            for name in node.names:
                try:
                    found = hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")
                except ImportError:
                    found = False
                if not found:
                    missing.append(f"{node.module}.{name.name}, line {node.lineno}")
    assert missing == []
