"""Arms that differ in few settings, run with the same seeds and compared seed by seed. Each study is a script."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ablation_report import cell, effect, table_lines
from machine import RESULTS, describe_machine, refuse_changes

from dapo.observe.metrics import Row, read_metrics
from dapo.observe.status import read_status

os.environ.setdefault("OMP_NUM_THREADS", "1")

READING = (
    "Mean over seeds [95 % interval]; in the differences a seed is compared with itself. **Bold**: the paired 99 % "
    "interval excludes zero, which is what *shown* means."
)
Settings = Mapping[str, Any]
_ENDED = ("finished", "unfilled")  # states of a run that is not made again


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run, from the rows of its metrics."""

    heading: str
    of: Callable[[Sequence[Row]], float]
    factor: float = 1.0
    digits: int = 1


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared. The first arm is what the others are held against."""

    file: str  # of the results, without its ending
    title: str
    said: str
    seeds: tuple[int, ...]
    arms: Mapping[str, Mapping[str, Settings]]  # task -> arm -> settings by their dotted keys
    measures: Mapping[str, Sequence[Measure]]  # of each task
    run: Callable[[Path, str, str, int, Settings], None]  # folder of the seed, task, the run's name, seed, settings


def mean_of(key: str, first: int, last: int) -> Callable[[Sequence[Row]], float]:
    """Return the mean of a metric over training steps ``first`` to ``last``."""

    def of(rows: Sequence[Row]) -> float:
        found = [row[key] for row in rows if first <= row["step"] <= last and row.get(key) is not None]
        return float(np.mean(found)) if found else float("nan")

    return of


def at(key: str, step: int) -> Callable[[Sequence[Row]], float]:
    """Return a metric of the row of ``step``."""
    return lambda rows: float(next(row for row in rows if row["step"] == step)[key])


def folder_of(work: Path, task: str, arm: str, seed: int) -> Path:
    return work / f"seed{seed}" / "".join(c if c.isalnum() else "_" for c in f"{task}-{arm}")


def finished(folder: Path) -> bool:
    status = read_status(folder / "status.json")
    return status is not None and status.state in _ENDED and (folder / "commit").exists()


def make(study: Study, work: Path, seeds: Sequence[int], tasks: Sequence[str]) -> None:
    """Make the runs that are not finished, seed by seed, so that an early end leaves whole sets of arms."""
    commit = describe_machine()["commit"]
    for seed in seeds:
        for task in tasks:
            for arm, settings in study.arms[task].items():
                folder = folder_of(work, task, arm, seed)
                if finished(folder):
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                folder.parent.mkdir(parents=True, exist_ok=True)
                study.run(folder.parent, task, folder.name, seed, settings)
                status = read_status(folder / "status.json")
                if status is None or status.state not in _ENDED:
                    raise SystemExit(f"seed {seed}, {task}, {arm} was interrupted; give the command again")
                (folder / "commit").write_text(commit)
                print(f"seed {seed}, {task}, {arm}: done", flush=True)


def report(study: Study, work: Path, seeds: Sequence[int], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return each task's measures and differences, over the seeds that have all of its arms."""
    commits, tasks = set(), {}
    for task, arms in study.arms.items():
        whole = [seed for seed in seeds if all(finished(folder_of(work, task, arm, seed)) for arm in arms)]
        if not whole:
            continue
        measured = {
            arm: [
                np.array([one.of(read_metrics(folder_of(work, task, arm, seed) / "metrics.jsonl")) for seed in whole])
                for one in study.measures[task]
            ]
            for arm in arms
        }
        made = {seed: {(folder_of(work, task, arm, seed) / "commit").read_text() for arm in arms} for seed in whole}
        commits |= set().union(*made.values())
        first, *others = measured
        tasks[task] = {
            "seeds": whole,
            "unfinished": [seed for seed in seeds if seed not in whole],
            "mixed": [seed for seed, of in made.items() if len(of) > 1],
            "arms": {arm: [effect(values) for values in of] for arm, of in measured.items()},
            "differences": {
                f"{arm} less {first}": [
                    effect(one - other) for one, other in zip(measured[arm], measured[first], strict=True)
                ]
                for arm in others
            },
        }
    return {"machine": {**machine, "commit": ", ".join(sorted(commits))}, "tasks": tasks}


def page(study: Study, found: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    machine = found["machine"]
    lines = [
        f"# {study.title}",
        "",
        f"`{machine['command']}`: {machine['cpu']}, one thread a run, Python {machine['python']}, torch "
        f"{machine['packages']['torch']}; commit {machine['commit']}, {machine['date']}.",
        "",
        f"{study.said} {READING}",
    ]
    for task, of in found["tasks"].items():
        measures = study.measures[task]
        head = ["", *(one.heading for one in measures)]
        said = f"Seeds {', '.join(map(str, of['seeds']))}."
        said += f" Not finished: {', '.join(map(str, of['unfinished']))}." if of["unfinished"] else ""
        mixed = ", ".join(map(str, of["mixed"]))
        said += f" Arms of seed {mixed} were made by different commits." if mixed else ""
        lines += ["", f"## {task}", "", said, ""]
        for rows, sign in ((of["arms"], False), (of["differences"], True)):
            cells = [
                [
                    name,
                    *(cell(v, one.factor, one.digits, sign) for v, one in zip(values, measures, strict=True)),
                ]
                for name, values in rows.items()
            ]
            lines += [*table_lines([head, *cells]), ""]
    return "\n".join(lines).rstrip() + "\n"


def main(study: Study, doc: str) -> None:
    """Read the command line, make the runs, and write what there is."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="for the runs; finished ones are not made again")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(study.seeds))
    parser.add_argument("--tasks", nargs="+", choices=list(study.arms), default=list(study.arms))
    parser.add_argument("--no-runs", action="store_true", help="write what is finished")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    refuse_changes(options.out)
    work = options.work.resolve()
    if not options.no_runs:
        make(study, work, options.seeds, options.tasks)
    machine = describe_machine()
    asked = ["python", machine["command"].split()[1], "--work WORK"]
    for name, chosen, whole in (("seeds", options.seeds, study.seeds), ("tasks", options.tasks, study.arms)):
        asked += [shlex.join([f"--{name}", *map(str, chosen)])] if list(chosen) != list(whole) else []
    machine["command"] = " ".join(asked)
    found = report(study, work, options.seeds, machine)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{study.file}.json").write_text(json.dumps(found, indent=1) + "\n")
    text = page(study, found)
    (options.out / f"{study.file}.md").write_text(text)
    print(text)
