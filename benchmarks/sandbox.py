"""How many programs a second the sandbox runs, and which share of the time its walls take.

    python benchmarks/sandbox.py [--programs 100] [--rounds 5] [--workers 2]

Each way runs the same programs from as many threads as there are workers, each with a sandbox of its own. Ways
alternate round by round, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dapo.rewards.code import CodeJudge, CodeSettings
from dapo.sandbox.bubblewrap import BubblewrapSandbox
from dapo.sandbox.kinds import SandboxSettings
from dapo.sandbox.local import WALLS, LocalSandbox
from dapo.sandbox.runs import Sandbox, SandboxError
from dapo.types.batch import Prompt

HERE = Path(__file__).resolve().parent
PROGRAM = "def add(a, b):\n    return a + b\nprint(add(1, 2))\n"
TESTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0"]
PLAIN, OPEN, FULL = "a new Python each time", "fork server, no walls", "fork server, all walls"
APART, INSIDE = "`kind: code`, three asserts, `entry_point`", "`kind: code`, three asserts"


def plain() -> None:
    """Run the program by a new interpreter, as the fastest way without a server."""
    subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM], capture_output=True, check=True)


def of_sandbox(sandbox: Sandbox) -> Callable[[], None]:
    """Return what runs the program once."""
    sandbox.start()

    def once() -> None:
        ran = sandbox.run(PROGRAM, timeout=60.0)
        assert ran.output == "3\n", ran

    return once


def of_judge(entry_point: str | None) -> Callable[[], None]:
    """Return what scores the program once."""
    judge = CodeJudge("accuracy", CodeSettings(entry_point=entry_point, timeout=60.0, sandbox=SandboxSettings()))
    prompt = Prompt("", "", np.zeros(1, np.int64), "", "", "set", {"tests": TESTS, "name": "add"})

    def once() -> None:
        assert judge.examine(prompt, PROGRAM).share == 1.0

    return once


def ways(workers: int) -> dict[str, list[Callable[[], None]]]:
    """Return each way, once for each worker."""
    found: dict[str, list[Callable[[], None]]] = {PLAIN: [plain] * workers}
    found[OPEN] = [of_sandbox(LocalSandbox("none", walls=())) for _ in range(workers)]
    found[FULL] = [of_sandbox(LocalSandbox("full", walls=WALLS)) for _ in range(workers)]
    found[INSIDE] = [of_judge(None) for _ in range(workers)]
    found[APART] = [of_judge("name") for _ in range(workers)]
    try:
        found["bubblewrap"] = [of_sandbox(BubblewrapSandbox()) for _ in range(workers)]
    except SandboxError as error:
        print(f"without bubblewrap: {error}")
    return found


def measure(programs: int, rounds: int, workers: int) -> dict[str, list[float]]:
    """Return the programs a second of each way, by round."""
    found: dict[str, list[float]] = {}
    made = ways(workers)
    with ThreadPoolExecutor(workers) as threads:
        for _ in range(rounds):
            for name, own in made.items():
                began = time.perf_counter()
                for done in [threads.submit(lambda f: [f() for _ in range(programs // workers)], one) for one in own]:
                    done.result()
                found.setdefault(name, []).append(programs // workers * workers / (time.perf_counter() - began))
    return found


def report(result: dict[str, Any]) -> str:
    """Return the committed page."""
    machine, rates = result["machine"], result["rates"]
    share = [1 - full / none for full, none in zip(rates[FULL], rates[OPEN], strict=True)]
    lines = [
        "# Programs a second in the sandbox",
        "",
        f"{machine['cpu']}, Python {machine['python']}, commit {machine['commit']}, {machine['date']}:",
        f"`{machine['command']}`. {result['workers']} workers, {result['rounds']} rounds in turn: "
        "median [least, greatest].",
        f"The machine had other work; its load at the start was {result['load']:.1f}.",
        "",
        "| way | programs a second |",
        "| --- | --- |",
    ]
    lines += [f"| {name} | {median(own):.0f} [{min(own):.0f}, {max(own):.0f}] |" for name, own in rates.items()]
    lines += [
        "",
        f"The walls' share of a program's time, by round: {median(share):.0%} [{min(share):.0%}, {max(share):.0%}].",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    from machine import describe_machine, refuse_changes

    refuse_changes(arguments.out)

    load = float(Path("/proc/loadavg").read_text().split()[0])
    rates = measure(arguments.programs, arguments.rounds, arguments.workers)
    result = {
        "machine": describe_machine(),
        "load": load,
        "workers": arguments.workers,
        "rounds": arguments.rounds,
        "rates": rates,
    }
    (arguments.out / "sandbox.json").write_text(json.dumps(result) + "\n")
    (arguments.out / "sandbox.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
