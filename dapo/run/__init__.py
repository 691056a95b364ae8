"""The composition root: the only place that reads a recipe and calls constructors."""

from __future__ import annotations

from dapo.run.evaluate import Subject, evaluate
from dapo.run.export import export
from dapo.run.train import resume, train

__all__ = ["Subject", "evaluate", "export", "resume", "train"]
