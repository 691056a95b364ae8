"""Mutants: what can be planted in a module, and that a deleted test is noticed by the mutant that it alone killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "benchmarks/mutants.py"
MODULE = '''"""A docstring stays."""

from __future__ import annotations

LIMIT = 10


def clamp(value: int, low: int = 0) -> int:
    """And so does this one."""
    assert low <= LIMIT
    if not value > low:
        return low
    try:
        value += len([])
    except TypeError:
        raise ValueError("a sentence stays")
    return min(value, LIMIT)


def nobody() -> int:
    return 1
'''
TESTS = """
from sums import clamp


def test_above():
    assert clamp(11) == 10
    assert clamp(7) == 7


def test_below():
    assert clamp(-1) == 0


def test_limit():
    import sums

    assert sums.LIMIT == 10
"""


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOL.parent))
    import mutants

    return mutants


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.py").write_text(MODULE)
    (tmp_path / "test_sums.py").write_text(TESTS)
    return tmp_path


def test_each_kind_is_planted_once_and_only_where_it_changes_behaviour(mutants, project):
    found = mutants.draw(["sums.py"], 1000, seed=0)
    assert {(one.kind, one.before, one.after) for one in found} == {
        ("constant", "LIMIT = 10", "LIMIT = 11"),
        ("constant", "def clamp(value: int, low: int=0) -> int:", "def clamp(value: int, low: int=1) -> int:"),
        ("drop a not", "if not value > low:", "if value > low:"),
        ("comparison", "if not value > low:", "if not value >= low:"),
        ("return nothing", "return low", "return None"),
        ("drop a statement", "value += len([])", "pass"),
        ("arithmetic", "value += len([])", "value -= len([])"),
        ("drop a statement", "raise ValueError('a sentence stays')", "pass"),
        ("return nothing", "return min(value, LIMIT)", "return None"),
        ("return nothing", "return 1", "return None"),
        ("constant", "return 1", "return 2"),
    }
    assert mutants.draw(["sums.py"], 5, seed=1) == mutants.draw(["sums.py"], 5, seed=1)
    assert mutants.draw(["sums.py"], 5, seed=1) != mutants.draw(["sums.py"], 5, seed=2)


@pytest.mark.whole
def test_a_deleted_test_is_missed_if_it_alone_killed_a_mutant(project):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, cwd=project)

    first = run("sums.py", "--tests", "test_sums.py", "--record", "before.json")
    assert first.returncode == 0, first.stderr
    found = json.loads((project / "before.json").read_text())["mutants"]
    states = {(one["place"], one["after"]): one["state"] for one in found}
    assert states["sums.py:5:0", "LIMIT = 11"] == states["sums.py:12:8", "return None"] == "killed"
    assert states["sums.py:14:8", "value -= len([])"] == "survived"
    assert states["sums.py:16:8", "pass"] == states["sums.py:21:4", "return 2"] == "unreached"
    again = run("--before", "before.json")
    assert (again.returncode, again.stderr) == (0, "")
    (project / "test_sums.py").write_text(TESTS.replace("def test_below", "def left_out"))
    less = run("--before", "before.json")
    assert less.returncode == 1
    assert "LIVES  sums.py:12:8 return nothing: `return low` -> `return None`" in less.stdout
    assert "was killed by test_sums.py::test_below" in less.stdout
    (project / "sums.py").write_text(MODULE + "\n")
    assert "sums.py changed since" in run("--before", "before.json").stderr
