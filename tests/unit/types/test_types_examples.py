"""Each noun has an example in its docstring, and the examples run."""

import doctest
import importlib
import inspect
import re

import pytest
from each import each

MODULES = ["batch", "enums", "evaluation", "events", "evidence", "extra", "model", "protocols", "seeds"]


def classes_of(name):
    module = importlib.import_module(f"dapo.types.{name}")
    return [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(f"dapo.types.{name}")
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted or name in ("enums", "extra", "model", "seeds")


@each("name", ["batch", "evaluation", "events", "evidence", "model", "protocols"])
def test_each_noun_has_an_example(name):
    plain = {"Columns", "Cause", "Done", "Mapped"}  # a mapping, a view, codes, wrappers
    lacking = [c.__name__ for c in classes_of(name) if not re.search(r">>>|Example|::\n", inspect.getdoc(c) or "")]
    assert [name for name in lacking if name not in plain] == []


def test_an_example_in_words_names_an_implementation_that_exists():
    protocols = classes_of("protocols")
    named = [name for c in protocols for name in re.findall(r"Example: ``(dapo\.[\w.]+)``", inspect.getdoc(c) or "")]
    assert len(named) > 5
    for name in named:
        module, _, part = name.rpartition(".")
        assert hasattr(importlib.import_module(module), part), name
