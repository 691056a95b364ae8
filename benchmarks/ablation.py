"""What each part of DAPO does: the paper's ladder and the whole less one part, and parts where they act, over seeds.

    python benchmarks/ablation.py --work WORK --small              # eight seeds: an hour and a half on two cores
    python benchmarks/ablation.py --work WORK                      # all seeds
    python benchmarks/ablation.py --work WORK --small --minutes 10 # as far as that goes; the same line goes on
    python benchmarks/ablation.py --work WORK --table parts --tasks rare --rows DAPO GRPO --seeds 1 2
    python benchmarks/ablation.py --work WORK --table clip_higher token_level coin passes
    python benchmarks/ablation.py --work WORK --again              # all tables with other seeds, beside the first

Tables, tasks, rows and seeds are listed in ``ablation_rows.py`` and ``ablation_focused.py``. Every run of a task starts
from the same base model; runs of one seed have the same order of prompts. Each of ``--jobs`` processes makes one run
after the other on one thread, so equal time is counted in the run's own processor seconds, evaluation left out. Runs
are kept in WORK by their settings, and are not made again unless the code that computes them changed; ``--keep`` takes
those of other code as well, and the results name its commits. Results and figures go to ``benchmarks/results``, and
tables into ``--page``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from ablation_bases import base_model, code_of
from ablation_focused import FOCUSED
from ablation_focused_report import write_focused
from ablation_report import Curve, Curves, write_results
from ablation_rows import AGAIN, FULL, SMALL, SMALL_VARIANTS, TASKS, VARIANTS, Settings, Table, part_rows, recipe_of
from machine import describe_machine, refuse_changes

import dapo
from dapo.config import Recipe
from dapo.errors import DapoError
from dapo.observe.metrics import Row, read_metrics

HERE = Path(__file__).resolve().parent
COMPUTES = ("algorithms", "config/schema", "data", "learner", "loop", "models", "rewards", "rollout")
"""Packages whose change makes a finished run one of other code."""
NO_FOLDER = "builtin/signed-sum"  # stands for a base model where a run is only named
RUNS_A_WORKER = 40  # then fresh processes: what a run leaves in memory does not add up
TABLES = {
    "parts": Table(part_rows(), TASKS, FULL),
    "variants": Table(VARIANTS, TASKS, FULL, small=SMALL_VARIANTS, again=AGAIN[:SMALL_VARIANTS]),
    **FOCUSED,
}
EVERY_TASK = {name: task for table in TABLES.values() for name, task in table.tasks.items()}

POINTS = {
    "step": "step",
    "tokens": "counters/generated_tokens",
    "accuracy": "validation/accuracy",
    "pass": "validation/pass@8",
    "length": "validation/length_mean",
    "truncated": "validation/truncated_share",
}
"""What is kept of each evaluation."""
STEPS = {
    "entropy": "train/entropy",
    "clip_high": "train/clip_high",
    "clip_low": "train/clip_low",
    "training_accuracy": "reward/accuracy",
    "worked": "reward/worked",
    "kept": "groups/kept_share",
    "finished_length": "response/length_mean",
    "trained_length": "response/length_trained_mean",
    "age": "policy/staleness_mean",
}
"""What is kept of each training step."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run, as a worker is told of it."""

    task: str
    row: str
    settings: Settings
    seed: int
    model: str
    steps: int
    file: Path  # where its numbers are kept
    code: str
    commit: str
    keep: bool
    until: float  # time.time() from which nothing is begun
    parent: int = field(default_factory=os.getpid)  # who asks for it

    @property
    def name(self) -> str:
        return f"seed {self.seed}, {self.task}, {self.row}"


def main() -> None:
    options = arguments()
    refuse_changes(options.out)
    commit = str(describe_machine()["commit"])
    jobs = list(plan(options, commit))
    print(f"{len(jobs)} runs, {sum(finished(job) is not None for job in jobs)} of them are finished", flush=True)
    failed = run_all(jobs, options.jobs, options.models)
    for table in options.table:
        found = {
            task: {
                row: {
                    job.seed: curve for job in jobs if (job.task, job.row) == (task, row) and (curve := finished(job))
                }
                for row in rows_of(table, options.rows)
            }
            for task in tasks_of(table, options.tasks)
        }
        about = described(table, found, options)
        if table in FOCUSED:
            write_focused(table, FOCUSED[table], found, about, options.out, options.page, options.again)
        else:
            write_results(table, found, about, options.out, options.page, options.again)
    if failed:
        raise SystemExit("stopped by an error, and left out with its seed:\n" + "\n".join(failed))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--tasks", nargs="+", choices=list(EVERY_TASK), help="only these, by name")
    parser.add_argument("--rows", nargs="+", help="only these, by name")
    parser.add_argument("--small", action="store_true", help=f"{SMALL} seeds at most, {SMALL_VARIANTS} of the variants")
    parser.add_argument("--seeds", nargs="+", type=int, help="in place of those in ablation_rows.py")
    parser.add_argument("--again", action="store_true", help="repeat the tables with their second seeds")
    parser.add_argument("--steps", type=int, default=0, help="in place of the tasks' own")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--keep", action="store_true", help="take finished runs of other code as well")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dapo_ablation")
    parser.add_argument("--models", type=Path, default=HERE.parent / "runs" / ".models", help="cache of base models")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, help="page whose table is written anew, such as docs/evidence.md")
    options = parser.parse_args()
    known = {row for table in TABLES.values() for row in table.rows}
    if wrong := set(options.rows or ()) - known:
        parser.error(f"no rows {', '.join(sorted(wrong))}; there are {', '.join(sorted(known))}")
    return options


def rows_of(table: str, chosen: Sequence[str] | None) -> dict[str, Settings]:
    of = TABLES[table]
    return {row: given for row, given in of.rows.items() if not chosen or row in chosen or row == of.reference}


def tasks_of(table: str, chosen: Sequence[str] | None) -> list[str]:
    return [task for task in TABLES[table].tasks if not chosen or task in chosen]


def seeds_of(table: str, options: argparse.Namespace) -> tuple[int, ...]:
    if options.seeds:
        return tuple(options.seeds)
    if options.again:
        return TABLES[table].again
    return TABLES[table].seeds[: TABLES[table].small] if options.small else TABLES[table].seeds


def described(table: str, found: Mapping[str, Curves], options: argparse.Namespace) -> dict[str, Any]:
    """The machine, the commits that made the runs, and the command that makes them again anywhere."""
    runs = [curve for rows in found.values() for seeds in rows.values() for curve in seeds.values()]
    asked = [f"--table {table}"] if table in FOCUSED or options.again else []
    asked += ["--again"] * options.again
    asked += [f"--seeds {' '.join(map(str, options.seeds))}"] if options.seeds else ["--small"] * options.small
    asked += [f"--steps {options.steps}"] * bool(options.steps)
    asked += [f"--rows {' '.join(map(shlex.quote, options.rows))}"] if options.rows else []
    return describe_machine() | {
        "commit": ", ".join(sorted({curve["commit"] for curve in runs})),
        "command": " ".join(["python benchmarks/ablation.py", *asked]),
        "cpu_hours": round(sum(curve["cpu_seconds"] for curve in runs) / 3600, 2),
    }


# ---------------------------------------------------------------------- runs


def plan(options: argparse.Namespace, commit: str) -> Iterator[Job]:
    """Seed by seed, so that an early end leaves whole sets of rows; a run that two tables share comes once.

    Base models may be still to be made: ``run_all`` names them.
    """
    code, until, seen = code_of(COMPUTES), time.time() + options.minutes * 60, set()
    recipes: dict[tuple[str, str], Recipe] = {}
    for table in options.table:
        for seed in seeds_of(table, options):
            for task in tasks_of(table, options.tasks):
                for row, settings in rows_of(table, options.rows).items():
                    if (task, row, seed) in seen:
                        continue
                    seen.add((task, row, seed))
                    steps = options.steps
                    if (task, row) not in recipes:
                        recipes[task, row] = recipe_of(EVERY_TASK[task], settings, seed, NO_FOLDER, "-", steps).recipe
                    file = options.work / file_name(task, row, seed, recipes[task, row])
                    yield Job(task, row, settings, seed, "", steps, file, code, commit, options.keep, until)


def file_name(task: str, row: str, seed: int, recipe: Recipe) -> str:
    """A run's, by all of its recipe but places; the seed is ``seed``, whatever the recipe's.

    Defaults are left out: a setting that the package gets later on leaves the name as it is. The base model stands
    there as what it is made of, not as a folder's name, in which the code that makes it has a part.
    """
    settings = recipe.model_dump(mode="json", exclude_defaults=True)
    settings["run"] = {"seed": seed}
    settings["model"] = {"path": str(EVERY_TASK[task].base)}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return f"{task}-{''.join(c if c.isalnum() else '_' for c in row)}-{seed}-{digest}.json"


def finished(job: Job) -> Curve | None:
    """The run's numbers if they are there, of this code (or, with ``--keep``, of any)."""
    if not job.file.exists():
        return None
    curve: Curve = json.loads(job.file.read_text())
    return curve if job.keep or curve["code"] == job.code else None


def run_all(jobs: Sequence[Job], workers: int, models: Path) -> list[str]:
    """Make what is missing, base models in ``models`` first; returns what became of runs that an error ended."""
    missing = [job for job in jobs if finished(job) is None and job.until > time.time()]
    if not missing:
        return []
    bases = {
        task: str(base_model(EVERY_TASK[task].base, models)) for task in dict.fromkeys(job.task for job in missing)
    }
    missing = [replace(job, model=bases[job.task]) for job in missing]
    missing[0].file.parent.mkdir(parents=True, exist_ok=True)
    failed, context, together = [], multiprocessing.get_context("spawn"), RUNS_A_WORKER * workers
    for first in range(0, len(missing), together):  # `max_tasks_per_child` of Python 3.11 hangs at the first one's end
        pool = ProcessPoolExecutor(workers, mp_context=context)
        try:
            for future in as_completed([pool.submit(one_run, job) for job in missing[first : first + together]]):
                said, ok = future.result()
                if said:
                    print(said, flush=True)
                if not ok:
                    failed.append(said)
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


def one_run(job: Job) -> tuple[str, bool]:
    """Make a run in this process and keep its numbers: what is told of it, and whether it came to its end."""
    if time.time() > job.until or os.getppid() != job.parent:  # a killed program begins nothing more
        return "", True
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(dir=job.file.parent) as folder:
            curve = train(job, folder)
    except Exception as error:  # told at the end; the other runs go on
        return f"{job.name}: {type(error).__name__}: {error}", False
    unfinished = job.file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(curve))
    unfinished.rename(job.file)
    return f"{job.name}: {curve['points']['accuracy'][-1]:.3f}, {curve['cpu_seconds']:.1f} processor seconds", True


def train(job: Job, folder: str, clock: Callable[[], float] = time.process_time) -> Curve:
    """One run through the package's Python, and what is kept of it."""
    began = clock()
    loaded = recipe_of(EVERY_TASK[job.task], job.settings, job.seed, job.model, folder, job.steps)
    with dapo.Trainer(loaded) as trainer:
        marks = [clock()]
        for _ in trainer:
            marks.append(clock())
        if trainer.step < loaded.recipe.trainer.steps:
            raise DapoError("it was interrupted; the same line makes it again")
        rows = read_metrics(trainer.run.path / "metrics.jsonl")
    apart = loaded.recipe.rollout.max_staleness > 0  # most of its work is done by other processes
    curve = curve_of(rows, None if apart else np.diff(marks).tolist())
    return curve | {
        "task": job.task,
        "row": job.row,
        "seed": job.seed,
        "code": job.code,
        "commit": job.commit,
        "cpu_seconds": clock() - began,
    }


def curve_of(rows: Sequence[Row], seconds: Sequence[float] | None) -> Curve:
    """What is kept of a run's metrics.

    Args:
        rows: of step 0 (the evaluation of the start) and of each training step.
        seconds: processor seconds of each training step, evaluation included, that of step 0 with the first. Of these
            evaluation is taken off by its share of the wall clock's seconds. None: they are not known.
    """
    evaluated = [row for row in rows if row.get("validation/accuracy") is not None]
    points: dict[str, list[float] | None] = {
        name: [row.get(key, 0.0) for row in evaluated] for name, key in POINTS.items()
    }
    spent = None if seconds is None else learning_seconds(rows, seconds)
    points["cpu"] = None if spent is None else [spent[row["step"]] for row in evaluated]
    steps = {name: [row.get(key) for row in rows if row["step"]] for name, key in STEPS.items()}
    return {"points": points, "steps": steps}


def learning_seconds(rows: Sequence[Row], seconds: Sequence[float]) -> dict[int, float]:
    """Step -> processor seconds from the start to its end without evaluation; see ``curve_of``."""
    spent, taken = {0: 0.0}, iter(seconds)
    whole = part = 0.0
    for row in rows:
        whole += row["time/step"]
        part += row["time/step"] - row.get("time/evaluate", 0.0)
        if step := row["step"]:
            spent[step] = spent[step - 1] + next(taken) * part / whole
            whole = part = 0.0
    return spent


if __name__ == "__main__":
    main()
