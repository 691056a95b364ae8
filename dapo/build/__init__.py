"""The composition root: the only place that reads a recipe and calls constructors."""

from __future__ import annotations

from dapo.build.evaluate import evaluate
from dapo.build.export import export
from dapo.build.train import resume, train

__all__ = ["evaluate", "export", "resume", "train"]
