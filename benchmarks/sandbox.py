"""What a program costs in the sandbox, which share of that its walls take, and what a training step pays.

    python benchmarks/sandbox.py [--programs 100] [--rounds 5] [--workers 2]

Each way runs the same programs from as many threads as there are workers, each with a sandbox of its own. Ways
alternate round by round, so that a machine that slows down slows all of them. Processor time is that of this process
and of everything below it, from /proc: other work on the machine hardly changes it. Programs a second need an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
STEP = 256  # programs
PLAIN, OPEN, FULL = "a new Python each time", "fork server, no walls", "fork server, all walls"
APART, INSIDE = "`kind: code`, three asserts, `entry_point`", "`kind: code`, three asserts"


def processor_seconds() -> float:
    """Return the processor time of this process and all below it so far, those that ended and were awaited included."""
    times, parents = dict[int, float](), dict[int, int]()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found, new = 0.0, {os.getpid()}
    while new:
        found += sum(times[one] for one in new)
        new = {one for one, parent in parents.items() if parent in new}
    return found


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


def measure(programs: int, rounds: int, workers: int) -> dict[str, dict[str, list[float]]]:
    """Return programs a second and processor milliseconds a program, of each way by round."""
    rates, costs = dict[str, list[float]](), dict[str, list[float]]()
    made, count = ways(workers), programs // workers * workers
    with ThreadPoolExecutor(workers) as threads:
        for _ in range(rounds):
            for name, own in made.items():
                began, spent = time.perf_counter(), processor_seconds()
                for done in [threads.submit(lambda f: [f() for _ in range(programs // workers)], one) for one in own]:
                    done.result()
                rates.setdefault(name, []).append(count / (time.perf_counter() - began))
                costs.setdefault(name, []).append(1000 * (processor_seconds() - spent) / count)
    return {"rates": rates, "milliseconds": costs}


def report(result: dict[str, Any]) -> str:
    """Return the committed page."""
    machine, rates, costs = result["machine"], result["rates"], result["milliseconds"]
    share = [1 - none / full for full, none in zip(costs[FULL], costs[OPEN], strict=True)]
    lines = [
        "# What a program costs in the sandbox",
        "",
        f"{machine['cpu']}, Python {machine['python']}, commit {machine['commit']}, {machine['date']}:",
        f"`{machine['command']}`. {result['workers']} workers, {result['rounds']} rounds in turn: "
        "median [least, greatest].",
        f"The machine's load at the start was {result['load']:.1f}. Other work slows programs a second, and hardly",
        "changes processor time. The last column is a training step of "
        f"{STEP} responses (16 prompts x 16) with a program each.",
        "",
        "| way | processor milliseconds a program | programs a second | processor seconds a step |",
        "| --- | --- | --- | --- |",
    ]
    for name, own in costs.items():
        said = f"{median(rates[name]):.0f} [{min(rates[name]):.0f}, {max(rates[name]):.0f}]"
        of_step = STEP * median(own) / 1000
        lines.append(f"| {name} | {median(own):.1f} [{min(own):.1f}, {max(own):.1f}] | {said} | {of_step:.1f} |")
    lines += [
        "",
        f"The walls' share of a program's processor time, by round: {median(share):.0%} "
        f"[{min(share):.0%}, {max(share):.0%}].",
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
    measured = measure(arguments.programs, arguments.rounds, arguments.workers)
    result = {
        "machine": describe_machine(),
        "load": load,
        "workers": arguments.workers,
        "rounds": arguments.rounds,
        **measured,
    }
    (arguments.out / "sandbox.json").write_text(json.dumps(result) + "\n")
    (arguments.out / "sandbox.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
