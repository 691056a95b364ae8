"""Six short real runs to look at: one that learns, and five that go wrong, each in a way of its own.

    python benchmarks/example_runs.py FOLDER               # all six, about three minutes
    python benchmarks/example_runs.py FOLDER good crashed  # only these

All are the quickstart with a few settings changed. `dapo report FOLDER/*` and `dapo view FOLDER` show them; a report is
good when a stranger says within a minute what happened in each. A run that exists already is moved aside.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
KILL_AT = 33
STAGES = [1.0] * 10 + [0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2]
_calls = 0


@dataclass(frozen=True)
class Example:
    """One run: what it shows, its settings on top of the quickstart's, and the exit code it must have."""

    shows: str
    settings: tuple[str, ...]
    ends_with: int = 0
    kill_at: int | None = None  # send SIGKILL once this step has its line


EXAMPLES = {
    "good": Example("learns: nothing to mend", ("trainer.steps=60",)),
    "collapsed": Example(
        "a second reward pays for totals that end in 0: the reward rises, the accuracy falls, the entropy collapses",
        (
            "trainer.steps=80",
            "learner.learning_rate=2e-3",
            "algorithm.dynamic_sampling.mode=off",
            "algorithm.reward_scaling.source_max=5",
            "rewards.1.name=round_total",
            "rewards.1.kind=regex",
            r"rewards.1.pattern=0\s*$",
            "rewards.1.weight=4",
        ),
    ),
    "unfilled": Example(
        "problems of 3 and 4 terms are soon solved, and a low cap on the search for others is met",
        ("trainer.steps=80", "data.train.0.options.max_terms=4", "algorithm.dynamic_sampling.cap.groups=4"),
        ends_with=1,
    ),
    "too_hard": Example(
        "problems of 9 terms, nearly all minus: too few groups of the first batch hold a right answer",
        (
            "trainer.steps=60",
            "data.train.0.options.min_terms=9",
            "data.train.0.options.max_terms=9",
            "data.train.0.options.minus_probability=0.9",
            "algorithm.dynamic_sampling.cap.groups=6",
        ),
        ends_with=1,
    ),
    "crashed": Example(
        "a function of the user's has a table of 25 steps, and the run has 60",
        ("trainer.steps=60", "algorithm.advantage.kind=example_runs:fading_advantage"),
        ends_with=2,
    ),
    "killed": Example("the process is gone in the middle of a step", ("trainer.steps=60",), -9, KILL_AT),
}


def fading_advantage(rewards_PG: list[Any], voters_PG: list[Any]) -> list[Any]:
    """The centred reward times a factor that is looked up by the number of the call. Step 26 has none: IndexError."""
    global _calls
    _calls += 1
    factor = STAGES[_calls - 1]
    return [
        np.where(voters, factor * (rewards - rewards[voters].mean()), 0.0)
        for rewards, voters in zip(rewards_PG, voters_PG, strict=True)
    ]


def main() -> int:
    """Make the runs; returns 1 where one did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the run folders go")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXAMPLES)}; default: all")
    options = parser.parse_args()
    for name in options.names:
        if name not in EXAMPLES:
            parser.error(f"{name!r} is no example; they are {', '.join(EXAMPLES)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    models, cached = options.folder / ".models", HERE.parent / "runs" / ".models"
    if cached.is_dir() and not models.exists():
        shutil.copytree(cached, models)  # else the first run warms the base model up
    wrong = 0
    for name in options.names or EXAMPLES:
        example, begun = EXAMPLES[name], time.monotonic()
        code = run(options.folder, name, example)
        ended = "as it should" if code == example.ends_with else f"with {code}, expected {example.ends_with}"
        wrong += code != example.ends_with
        print(f"{name:<10} {time.monotonic() - begun:4.0f} s, ended {ended}: {example.shows}", flush=True)
    return int(wrong > 0)


def run(folder: Path, name: str, example: Example) -> int:
    """Train one example to its end and return the exit code; what it prints goes to FOLDER/NAME.out."""
    command = [sys.executable, "-m", "dapo", "train", str(HERE.parent / "dapo/recipes" / "quickstart.yaml")]
    command += [f"run.dir={folder}", f"run.name={name}", "run.if_exists=backup", "logging.console=plain"]
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    began = time.time()
    with (folder / f"{name}.out").open("w") as out:
        process = subprocess.Popen([*command, *example.settings], stdout=out, stderr=out, env=environment)
        metrics = folder / name / "metrics.jsonl"
        while example.kill_at is not None and process.poll() is None:
            if _lines(metrics, began) > example.kill_at:  # step 0 has a line too
                process.kill()
            time.sleep(0.05)
        return process.wait()


def _lines(path: Path, since: float) -> int:
    """Lines of a file; 0 for that of an earlier run, which is moved aside a moment after the start."""
    try:
        return path.read_bytes().count(b"\n") if path.stat().st_mtime >= since else 0
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
