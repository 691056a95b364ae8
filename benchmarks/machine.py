"""What a committed result says of the machine, versions, commit and command that made it."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "numpy")


def describe_machine() -> dict[str, Any]:
    """Processor, Python, packages, commit, command and date, as plain values."""
    here = Path(__file__).resolve().parent
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    return {
        "cpu": f"{models[0]} x {len(models)}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": commit.stdout.strip(),
        "command": " ".join(["python", "benchmarks/" + Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
