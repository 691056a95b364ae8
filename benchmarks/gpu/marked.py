"""The tests of tests/ that are marked gpu, but for those that wrap these very parts."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.runner import ROOT


def marked_tests(room: Room) -> None:
    """``pytest -m gpu`` in a process of its own."""
    if not room.on_card:
        raise Skipped("they need a card")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "--ignore=tests/gpu",
        "-p",
        "no:cacheprovider",
        "-rfE",
        "tests",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(10.0, room.left), check=False)
    lines = done.stdout.strip().splitlines()
    room.note("pytest says", lines[-1] if lines else done.stderr.strip()[-300:])
    failed = "; ".join(line for line in lines if line.startswith(("FAILED", "ERROR")))
    room.expect_true("all passed", done.returncode in (0, 5), failed[:600])  # 5: none is marked
