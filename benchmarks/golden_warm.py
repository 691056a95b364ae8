"""Run `dapo` commands in children of one process that has imported torch and transformers already.

The imports are most of the time of a tiny run. ``python -P golden_warm.py MODULE...`` imports the modules it finds.
Then it reads one command a line from its standard input, as JSON: ``[words, output file]``. It forks a child, prints
the child's process id, waits for its end, and prints the exit code. The child runs the package on PYTHONPATH as
``python -m dapo WORDS`` would.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys


def run_in_child(words: list[str], output: str) -> None:
    """Turn this forked process into `dapo WORDS` in a session of its own, and end it."""
    os.setsid()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.argv = ["dapo", *words]
    runpy.run_module("dapo", run_name="__main__", alter_sys=True)
    raise SystemExit(0)


def main() -> None:
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    while line := sys.stdin.buffer.raw.readline():  # type: ignore[attr-defined]  # unbuffered: a child inherits no rest
        words, output = json.loads(line)
        child = os.fork()
        if child == 0:
            run_in_child(words, output)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
