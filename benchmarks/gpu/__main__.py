"""The command: ``python -m benchmarks.gpu`` in the repository's folder. ``make gpu`` calls it.

python -m benchmarks.gpu                     # everything, in under nine minutes; without a card a rehearsal
python -m benchmarks.gpu --list              # what there is, in order
python -m benchmarks.gpu --only preflight decode_0.5b
python -m benchmarks.gpu --device cpu        # the rehearsal on a machine with a GPU
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import installed
from benchmarks.gpu.core import core_dependencies
from benchmarks.gpu.plan import REHEARSAL_SECONDS, TOTAL_SECONDS, Part
from benchmarks.gpu.runner import ROOT, Runner, parts_of

_PLAN = "benchmarks.gpu.plan"
_ESSENTIAL = ("torch", "transformers", "safetensors", "numpy")  # without these nothing can be run


def missing_dependencies() -> list[str]:
    """Core dependencies that are not installed, by the name that pip knows."""
    return [name for name, module in core_dependencies().items() if not installed(module)]


def describe(card: str) -> dict[str, Any]:
    """What the results say of the machine."""
    found = {}
    for name in ("torch", "transformers", "vllm", "numpy", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    commit = ""
    with contextlib.suppress(OSError):
        said = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
        commit = said.stdout.strip()
    return {
        "card": card,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit or "unknown",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {number}" for name, number in found.items()),
        "core dependencies missing": ", ".join(missing_dependencies()) or "none",
        "processor": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores to use",
        "command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
    }


def _chosen(arguments: argparse.Namespace) -> list[Part]:
    parts = parts_of(arguments.plan)
    if not arguments.only:
        return parts
    known = {part.name for part in parts}
    if unknown := [name for name in arguments.only if name not in known]:
        raise SystemExit(f"no part is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [part for part in parts if part.name in arguments.only]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the parts and leave")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts alone")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument(
        "--seconds", type=float, help=f"of the whole ({TOTAL_SECONDS:g}; rehearsal {REHEARSAL_SECONDS:g})"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu", help="folder of results")
    parser.add_argument("--plan", default=_PLAN, help=argparse.SUPPRESS)  # tests bring parts of their own
    return parser.parse_args()


def main() -> int:
    """0: nothing failed; 1: something did; 2: nothing could be run."""
    arguments = _arguments()
    parts = _chosen(arguments)
    if arguments.list:
        for part in parts:
            print(f"{part.kind:10} {part.name:18} {part.seconds:4.0f} s  {part.shows}")
        return 0
    if missing := missing_dependencies():
        print(f"core dependencies that are not installed here: {', '.join(missing)}")
        if lacking := [name for name in missing if name in _ESSENTIAL]:
            print(f"without {', '.join(lacking)} nothing can be run; pip install {' '.join(missing)}")
            return 2
        print("what needs them is left out, by name, and the rest is run")
    limits = (arguments.seconds or TOTAL_SECONDS, arguments.seconds or REHEARSAL_SECONDS)
    say = partial(print, flush=True)  # line by line, into a file or a pipe, too
    say("torch and transformers are read; from a cold disk that takes a minute or two")
    results = Runner(parts, arguments.plan, arguments.device, limits, arguments.out, describe, say).run()
    print()
    print("\n".join(results.lines()))
    if short := results.short():  # once more: of a long output often the end alone is kept
        print("\n".join(["", "in short", *short]))
    print(f"\nresults: {results.folder}")
    if results.bad:
        print(f"not well: {', '.join(results.bad)}")
    return 1 if results.bad else 0


if __name__ == "__main__":
    sys.exit(main())
