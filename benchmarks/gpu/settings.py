"""The recipe's section ``learner`` where the recipe's schema cannot be imported: its fields, read from its source."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dapo
from benchmarks.gpu.child import installed
from benchmarks.gpu.core import SCHEMA


def learner_settings(**changed: Any) -> Any:
    """The schema's section where what it needs is installed, else one that is read alike."""
    if all(map(installed, SCHEMA)):
        from dapo.config.schema import LearnerSection

        return LearnerSection(**changed)
    return SimpleNamespace(**(plain_defaults() | changed))


def plain_defaults() -> dict[str, Any]:
    """Default of every field of ``dapo.config.schema.LearnerSection``; a test holds it against the schema."""
    source = Path(dapo.__file__).parent / "config" / "schema" / "learner.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (section,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "LearnerSection")
    return {
        field.target.id: ast.literal_eval(field.value)
        for field in section.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value is not None
    }
