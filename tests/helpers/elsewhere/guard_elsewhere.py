"""``dapo/processes/guard.py`` as on a system that has neither prctl nor /proc; run with the same arguments."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

GUARD = Path(__file__).resolve().parents[3] / "dapo/processes/guard.py"

if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("guard", GUARD)
    assert spec is not None
    assert spec.loader is not None
    guard = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guard)
    guard._prctl = lambda option, value: False
    guard._parents = guard._parents_by_ps
    guard.main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
