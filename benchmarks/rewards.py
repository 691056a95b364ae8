"""What it costs the driver to have responses scored, here and at other revisions.

    python benchmarks/rewards.py [--base REVISION ...] [--rounds 15]

A round scores 720 responses (a quickstart step) in ticks of four, as an engine ends them, in two ways: the scores of
each tick are waited for, or those of each group of 16 once it is whole, which is what the collector does. Each side is
a process of its own with the package of its revision; rounds alternate, so ratios hold on a busy machine.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
GROUPS, SIZE, TICK = 45, 16, 4
HERE_NAME = "here"

CASES: dict[str, dict[str, Any]] = {
    "exact": {"kind": "exact"},
    "pattern": {"kind": "exact", "pattern": r"=\s*(-?\d+)\s*$"},
    "function": {"kind": "function", "function": "rewards:last_word"},
    "math": {"kind": "math"},
}
"""``exact`` without a pattern is judged in the driver; a pattern, a function and math-verify in a worker process."""
WAYS = ("tick", "group")


def last_word(prompt: Any, completion: Any) -> float:
    """A quick function of a user's."""
    return float(completion.text.rsplit("=", 1)[-1] == prompt.answer)


def responses(case: str) -> list[tuple[Any, Any, Any]]:
    """Key, prompt and response of a step; with ``math``, answers of which many need the algebra system."""
    import numpy as np

    from dapo.types.batch import Completion, Prompt
    from dapo.types.enums import FinishReason

    found = []
    for group in range(GROUPS):
        gold = rf"\frac{{{group + 1}}}{{7}}" if case == "math" else str(group % 20)
        ids = np.arange(12)
        prompt = Prompt(f"{group:016}", "4 +7 -8 +3 =", ids, "4 +7 -8 +3 =", gold, "train", {"task": "signed_sum"})
        for sample in range(SIZE):
            said = rf"\boxed{{\frac{{{2 * group + sample}}}{{14}}}}" if case == "math" else f"+7 =11 -8 ={sample}"
            tokens = np.full(20, sample)
            done = Completion(tokens, np.zeros(20, np.float32), np.zeros(20, np.int32), FinishReason.STOP, said)
            found.append((("train", group, sample), prompt, done))
    return found


def score(scorer: Any, asked: list[tuple[Any, Any, Any]], way: str) -> tuple[float, float]:
    """CPU and wall-clock seconds of the driver until every response has its score."""
    cpu, wall = time.process_time(), time.perf_counter()
    arrived = 0
    for start in range(0, len(asked), TICK):
        for each in asked[start : start + TICK]:
            scorer.submit(*each)
        end = start + TICK
        if way == "group":
            arrived += len(scorer.poll(0))
        if way == "tick" or end % SIZE == 0:
            while arrived < end:
                arrived += len(scorer.poll(None))
    return time.process_time() - cpu, time.perf_counter() - wall


def serve() -> None:
    """One side: answers lines of "case way" with seconds."""
    from dapo.config.schema import Reward
    from dapo.rewards.compose import build_scorer

    sys.path.insert(0, str(HERE))
    scorers = {case: build_scorer([Reward(**settings)], workers=1) for case, settings in CASES.items()}
    asked = {case: responses(case) for case in CASES}
    for case, scorer in scorers.items():
        scorer.start()
        score(scorer, asked[case], "tick")  # imports and caches
    print("ready", flush=True)
    for line in sys.stdin:
        case, way = line.split()
        print(json.dumps(score(scorers[case], asked[case], way)), flush=True)


class Side:
    """The package at one revision."""

    def __init__(self, tree: Path) -> None:
        paths = os.pathsep.join((str(tree), str(HERE)))
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._read()

    def ask(self, case: str, way: str) -> tuple[float, float]:
        assert self.process.stdin is not None
        print(case, way, file=self.process.stdin, flush=True)
        cpu, wall = json.loads(self._read())
        return cpu, wall

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side ended; its error is above")
        return line

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(sides: dict[str, Side], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """By "side case way", the seconds of each round."""
    found: dict[str, list[tuple[float, float]]] = {}
    names = list(sides)
    for turn in range(rounds):
        for case in CASES:
            for way in WAYS:
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    found.setdefault(f"{name} {case} {way}", []).append(sides[name].ask(case, way))
        print(f"round {turn + 1} of {rounds}", flush=True)
    return found


def report(result: dict[str, Any]) -> str:
    """The committed page."""
    machine, seconds = result["machine"], result["seconds"]
    lines = [
        "# What scoring costs the driver",
        "",
        f"{machine['cpu']}, Python {machine['python']}, commit {machine['commit']}, {machine['date']}: "
        f"`{machine['command']}`",
        "",
        f"{GROUPS * SIZE} responses, {result['rounds']} rounds in turn; milliseconds are medians, the last two columns "
        "ratios to `here`,",
        "round by round: median [least, greatest].",
        "",
        "| reward | waits for each | revision | driver CPU, ms | wall, ms | CPU over here | wall over here |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in CASES:
        for way in WAYS:
            here = seconds[f"{HERE_NAME} {case} {way}"]
            for name in result["sides"]:
                own = seconds[f"{name} {case} {way}"]
                cells = [f"{1e3 * median(each[kind] for each in own):.0f}" for kind in (0, 1)]
                for kind in (0, 1):
                    ratios = [a[kind] / b[kind] for a, b in zip(own, here, strict=True)]
                    spread = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
                    cells.append("" if name == HERE_NAME else spread)
                lines.append(f"| {case} | {way} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", nargs="*", default=[], help="git revisions to compare this working tree with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    from golden import tree_of
    from machine import describe_machine, refuse_changes

    refuse_changes(arguments.out)

    with ExitStack() as stack:
        trees = {name: stack.enter_context(tree_of(name)) for name in arguments.base} | {HERE_NAME: HERE.parent}
        sides = {name: Side(tree) for name, tree in trees.items()}
        for side in sides.values():
            stack.callback(side.close)
        seconds = measure(sides, arguments.rounds)
    result = {"machine": describe_machine(), "rounds": arguments.rounds, "sides": list(sides), "seconds": seconds}
    arguments.out.mkdir(exist_ok=True)
    (arguments.out / "rewards.json").write_text(json.dumps(result) + "\n")
    (arguments.out / "rewards.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
