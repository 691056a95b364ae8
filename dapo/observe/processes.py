"""RUN/processes.json: the processes of a run as they were at its last step, for a run that has several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from dapo.observe.jsonl import write_atomically
from dapo.types.protocols import ProcessState

FILE = "processes.json"
_SPANS = ("turns", "starts")
"""Fields that become lines of spans.jsonl."""


def write_processes(folder: Path, step: int, processes: Sequence[ProcessState]) -> None:
    """Replace the file. A disk that refuses it ends no training: the file is for readers alone."""
    rows = [{key: value for key, value in asdict(one).items() if key not in _SPANS} for one in processes]
    with suppress(OSError):
        write_atomically(folder / FILE, json.dumps({"step": step, "processes": rows}) + "\n", sync=False)
