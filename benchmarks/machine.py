"""What a committed result says of the machine, versions, commit and command that made it."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "numpy")
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
COUNTS = ("dapo", "benchmarks", "constraints", "examples", ":!benchmarks/results", ":!benchmarks/*.md")
"""What a result depends on, as git's paths: results and pages do not count."""


def _without_folders(argument: str) -> str:
    """Return an argument of a command with names in place of absolute paths, which say nothing elsewhere."""
    return re.sub(r"(^|=)/\S*/", r"\1", argument)


def refuse_changes(out: Path) -> None:
    """Refuse to write results into ``benchmarks/results`` from a checkout whose code is not committed.

    Call it before the first run. Results that go elsewhere are a trial, and say ``-dirty``.

    Raises:
        SystemExit: ``out`` is there, and the checkout has changes or is none.
    """
    if not out.resolve().is_relative_to(RESULTS):
        return
    if not _commit_at_first(HERE):
        raise SystemExit(
            f"{HERE.parent} is no git checkout, and a published result names its commit: give another --out"
        )
    if changed := _changed():
        raise SystemExit(
            f"{len(changed)} files are not committed ({', '.join(changed[:3])}), and a published result names the "
            "commit that made it: commit them, or give another --out to try the script out"
        )


def commits_of(runs: Iterable[Path]) -> str:
    """Return the commits that made finished runs, as their machine.jsonl have it: they may be older than this one.

    Raises:
        SystemExit: a run names no commit, because it was made outside of a checkout.
    """
    found = set()
    for run in runs:
        for line in (run / "machine.jsonl").read_text().splitlines():
            of = json.loads(line)
            if not of["commit"]:
                raise SystemExit(f"{run} names no commit: make it again with the checkout as the working directory")
            found.add(of["commit"][:8] + "-dirty" * bool(of["dirty"]))
    return ", ".join(sorted(found))


@cache
def _commit_at_first(checkout: Path) -> str:
    """Return the commit that was there when this process first asked; "" in no checkout."""
    return _git("rev-parse", "--short", "HEAD").strip()


def _changed() -> list[str]:
    """Return files that differ from the commit: a later commit, made while runs went on, counts too."""
    changed = {line[3:] for line in _git("status", "--porcelain", "--", *COUNTS).splitlines()}
    if commit := _commit_at_first(HERE):
        changed |= set(_git("diff", "--name-only", commit, "HEAD", "--", *COUNTS).splitlines())
    return sorted(changed)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=False).stdout


def describe_machine() -> dict[str, Any]:
    """Return processor, Python, packages, commit, command and date, as plain values.

    The commit is that of the first call in this process, here or in ``refuse_changes``.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": f"{models[0]} x {len(models)}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": _commit_at_first(HERE) + "-dirty" * bool(_changed()),
        "command": " ".join(["python", "benchmarks/" + Path(sys.argv[0]).name, *map(_without_folders, sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
