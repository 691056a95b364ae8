"""The tests of tests/ that are marked gpu, but for those that wrap these very parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.runner import ROOT


def marked_tests(room: Room) -> None:
    """``pytest -m gpu`` in a process of its own."""
    if not room.on_card:
        raise Skipped("they need a card")
    files = marked_files()
    if not files:
        raise Skipped("none is marked")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rfE", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(10.0, room.left), check=False)
    lines = done.stdout.strip().splitlines()
    room.note("pytest says", lines[-1] if lines else done.stderr.strip()[-300:])
    failed = "; ".join(line for line in lines if line.startswith(("FAILED", "ERROR")))
    room.expect_true("all passed", done.returncode == 0, failed[:600])


def marked_files() -> list[Path]:
    """Files with such tests. The others are not read: some need packages that nothing here needs."""
    tests = ROOT / "tests"
    found = (path for path in tests.rglob("test_*.py") if tests / "gpu" not in path.parents)
    return sorted(path.relative_to(ROOT) for path in found if "@pytest.mark.gpu" in path.read_text(encoding="utf-8"))
