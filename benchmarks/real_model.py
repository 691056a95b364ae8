"""DAPO's parts on a real model: SmolLM2-135M-Instruct at a rate at which its entropy falls to a third, paired by seeds.

    python benchmarks/real_model.py --wheel WHEEL --work WORK [--trl-python .venv-trl/bin/python] [--minutes 300]
    python benchmarks/real_model.py --wheel WHEEL --work TRIAL --trial 2 --out TRIAL    # two steps: does it work here?

`make bench-real-model` is the first line. Seeds, settings, arms and measures are in real_model.yaml. Runs are made one
after the other on one thread, seed by seed, and a study begins when the one before has its first seeds. At the end,
studies that show something are repeated with other seeds, where real_model.yaml says so. The same command goes on
where the last one stopped, once the results that it wrote are committed or undone. A second process with the same
command takes other runs, so it uses a second core. What is kept of a finished run lies in WORK/ARM-seedN.json; its
checkpoints are deleted. At the end of each call real_model.json has what is kept of all finished runs, and
real_model.md compares the seeds that all arms of a study have. Runs in OUT/real_model.json are not made again, so a
study goes on in another folder or on another machine from a commit. With empty WORK and OUT all are made anew.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from chat_model import CHECKOUT, make, processor_of_children, spent_of, state_of
from machine import HERE, RESULTS, commits_of, describe_machine, refuse_changes
from real_model_report import Run, compare, write

import dapo
from dapo.models.cached import cache_folder
from dapo.models.gguf_file import dequantised
from dapo.observe.evaluations import read_evaluation
from dapo.observe.machine import git_state
from dapo.observe.metrics import read_metrics

TABLE = HERE / "real_model.yaml"
NAME = "real_model"
TRIAL_SEEDS = 2
TRL = "TRL"
"""The arm that chat_model_trl.py makes."""
KEPT = {
    "entropy": "train/entropy",
    "clip_high": "train/clip_high",
    "clip_low": "train/clip_low",
    "accuracy": "reward/accuracy",
    "kept": "groups/kept_share",
    "truncated": "response/truncated_share",
    "tokens": "counters/generated_tokens",
}
"""What is kept of the metrics of each training step."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run to make: an arm with its settings, and a seed."""

    arm: str
    seed: int
    settings: Mapping[str, Any]
    work: Path

    @property
    def name(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in self.arm) + f"-seed{self.seed}"

    @property
    def folder(self) -> Path:
        return self.work / "runs" / self.name

    @property
    def file(self) -> Path:
        return self.work / f"{self.name}.json"

    def overrides(self) -> list[str]:
        return [f"{key}={json.dumps(value)}" for key, value in self.settings.items()]

    def finished(self) -> Run | None:
        """Return what was kept of the run; None if it is not finished.

        Raises:
            SystemExit: it was made with other settings.
        """
        if not self.file.exists():
            return None
        run: Run = json.loads(self.file.read_text())
        if run["settings"] != dict(self.settings):
            raise SystemExit(f"{self.file} was made with other settings: give another --work, or delete it")
        return run


def jobs_of(table: Mapping[str, Any], study: str, seeds: str, work: Path, trial: int | None) -> list[Job]:
    """Return the runs of a study with its ``first`` seeds, or with those ``again``: seed by seed, all arms of each."""
    of = table["studies"][study]
    chosen = table["seeds"][seeds][: of.get(seeds)][: TRIAL_SEEDS if trial else None]
    limits = {"trainer.steps": trial, "validation.limit": 4} if trial else {}
    settings = {arm: {**table["settings"], **table["arms"][arm], **limits} for arm in of["arms"]}
    return [Job(arm, seed, settings[arm], work) for seed in chosen for arm in of["arms"]]


@contextmanager
def held(file: Path, wait: bool) -> Iterator[bool]:
    """Yield whether this process may make a run: no other process of the same command is making it, or ``wait``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def make_all(jobs: Sequence[Job], options: argparse.Namespace, until: float) -> None:
    """Make the runs that are not finished, and wait for those that other processes make. None is begun after ``until``.

    Studies are repeated for what all first runs show, so no process may go on while another makes one of them.
    """
    for job, wait in [*((job, False) for job in jobs), *((job, True) for job in jobs)]:
        if job.finished() or time.monotonic() > until:
            continue
        with held(job.folder.with_suffix(".lock"), wait) as free:
            if not free or job.finished():
                continue
            if not options.trial and git_state(CHECKOUT)[1]:
                raise SystemExit(
                    f"tracked files of {CHECKOUT} differ from its commit, which the next run would name: commit or "
                    "undo the changes; a call before this one wrote benchmarks/results"
                )
            print(f"{job.name}: begins at {time.strftime('%H:%M', time.gmtime())} UTC", flush=True)
            kept = (make_trl if job.arm == TRL else make_ours)(job, options)
            unfinished = job.file.with_suffix(".part")
            unfinished.write_text(json.dumps(kept) + "\n")
            unfinished.rename(job.file)
            last = kept["evaluations"][-1]
            print(f"{job.name}: {100 * last['accuracy']:.1f} % at step {last['step']}", flush=True)


def make_ours(job: Job, options: argparse.Namespace) -> Run:
    """Make a run with dapo, and return what is kept of it."""
    make(job.folder, [f"model.path={options.wheel.resolve()}", f"run.seed={job.seed}", *job.overrides()], threads=1)
    rows, spent = read_metrics(job.folder / "metrics.jsonl"), spent_of(job.folder)
    share = spent["processor"] / spent["wall"] if spent["wall"] else float("nan")  # no call lived to count them
    learning, tokens, evaluations = 0.0, 0.0, []
    for row in rows:
        learning += row["time/step"] - row.get("time/evaluate", 0.0)
        tokens = row.get(KEPT["tokens"], tokens)
        if "validation/accuracy" in row:
            evaluations.append(
                {
                    "step": row["step"],
                    "tokens": tokens,
                    "seconds": share * learning,
                    "accuracy": row["validation/accuracy"],
                    "greedy": row["validation/greedy_accuracy"],
                    "pass@8": row["validation/pass@8"],
                    "right": right_of(job.folder / f"evaluations/step_{row['step']:06d}.parquet"),
                }
            )
    shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)
    return {
        **described(job, commits_of([job.folder])),
        "state": state_of(job.folder),
        "kinds": kinds_of(job.folder / "recipe.resolved.yaml"),
        "evaluations": evaluations,
        "steps": {name: [row.get(key) for row in rows if row["step"]] for name, key in KEPT.items()},
        "minutes": share * sum(row["time/step"] for row in rows) / 60,
    }


def described(job: Job, commit: str) -> Run:
    return {"arm": job.arm, "seed": job.seed, "settings": dict(job.settings), "commit": commit}


def right_of(file: Path) -> list[int]:
    """Return how many sampled responses to each held-out problem were right, by the problem's number."""
    right: dict[int, int] = {}
    for row in read_evaluation(file, ["problem", "sample", "accuracy"]).to_pylist():
        if row["sample"] >= 0:
            right[row["problem"]] = right.get(row["problem"], 0) + (row["accuracy"] == 1.0)
    return [right[problem] for problem in sorted(right)]


def kinds_of(recipe: Path) -> list[str]:
    """Return the kind of each held-out problem: sums or differences."""
    (held_out,) = yaml.safe_load(recipe.read_text())["data"]["validation"]
    lines = Path(held_out["path"]).read_text().splitlines()
    return ["differences" if " - " in json.loads(line)["problem"] else "sums" for line in lines]


def make_trl(job: Job, options: argparse.Namespace) -> Run:
    """Make a run with TRL, from the beginning, and return what is kept of it."""
    model = dequantised(str(options.wheel), cache_folder(), print)
    command = [str(options.trl_python.absolute()), str(HERE / "chat_model_trl.py"), "--model", str(model)]
    command += ["--seed", str(job.seed), "--threads", "1", "--out", str(job.folder), "--set", *job.overrides()]
    paths = {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = processor_of_children()
    subprocess.run(command, env=os.environ | paths, cwd=CHECKOUT, check=True)
    found = json.loads((job.folder / "chat_model_trl.json").read_text())
    logged = found["training"]
    tokens = [0.0, *accumulate(found["responses"] * length for length in logged.pop("length"))]
    evaluations = [
        {
            "step": int(step),
            "tokens": tokens[int(step)],
            "seconds": one["processor"],
            "accuracy": one["sampled"],
            "greedy": one["greedy"],
        }
        for step, one in found["steps"].items()
    ]
    return {
        **described(job, found["machine"]["commit"]),
        "state": "finished",
        "evaluations": evaluations,
        "steps": {**logged, "tokens": tokens[1:]},
        "minutes": (processor_of_children() - before) / 60,
    }


# ---------------------------------------------------------------------- all of it


def shown_first(table: Mapping[str, Any], options: argparse.Namespace) -> list[str]:
    """Return the studies to repeat: all runs with the first seeds are finished, and a claim is shown."""
    found = []
    for study in table["studies"]:
        runs = [job.finished() for job in jobs_of(table, study, "first", options.work, options.trial)]
        if all(runs) and compare(table["studies"][study], [run for run in runs if run])["shown"]:
            found.append(study)
    return found


def unpack(published: Path, work: Path) -> None:
    """Put the runs of real_model.json into the work folder, where they are not there."""
    if not published.exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    for run in json.loads(published.read_text())["runs"]:
        file = Job(run["arm"], run["seed"], run["settings"], work).file
        if not file.exists():
            file.write_text(json.dumps(run) + "\n")


def results_of(
    table: Mapping[str, Any], again: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, Any], list[Run]]:
    """Return all studies by list of seeds with how many of the planned runs are there, and these runs."""
    planned: dict[str, Run | None] = {}
    studies: dict[str, Any] = {}
    for study, of in table["studies"].items():
        studies[study] = {}
        for seeds in ("first", "again"):
            jobs = jobs_of(table, study, seeds, options.work, options.trial)
            runs = [run for job in jobs if (run := job.finished())]
            if not jobs or (seeds == "again" and study not in again):
                continue
            planned |= {job.name: job.finished() for job in jobs}
            studies[study][seeds] = compare(of, runs)
    finished = [run for run in planned.values() if run]
    return {"runs": len(finished), "planned": len(planned), "studies": studies}, finished


def arguments(table: Mapping[str, Any]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: a trial would write into the published results.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel of SmolLM2-135M-Instruct")
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--studies", nargs="+", choices=list(table["studies"]), default=list(table["studies"]))
    parser.add_argument("--trl-python", type=Path, default=CHECKOUT / ".venv-trl/bin/python")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--trial", type=int, metavar="STEPS", help="runs of so few steps, two seeds: no results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.trial and options.out.resolve().is_relative_to(RESULTS):
        parser.error(f"a trial is no result: give an --out other than {RESULTS}")
    needed = [options.wheel, *([options.trl_python] if TRL in options.studies else [])]
    if missing := [str(path) for path in needed if not path.exists()]:
        parser.error(f"{', '.join(missing)} is not there; `make bench-real-model` makes it")
    options.work = options.work.resolve()
    return options


def main() -> None:
    """Make the runs that are missing, and write what all of them show."""
    table = yaml.safe_load(TABLE.read_text())
    options = arguments(table)
    refuse_changes(options.out)
    if not Path(dapo.__file__).is_relative_to(CHECKOUT):
        raise SystemExit(f"dapo comes from {dapo.__file__}: export PYTHONPATH={CHECKOUT}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    unpack(options.out / f"{NAME}.json", options.work)
    until = time.monotonic() + 60 * options.minutes
    for study in options.studies:
        make_all(jobs_of(table, study, "first", options.work, options.trial), options, until)
    again = shown_first(table, options)
    for study in options.studies:
        if study in again:
            make_all(jobs_of(table, study, "again", options.work, options.trial), options, until)
    found, runs = results_of(table, again, options)
    write(
        {"trial": options.trial, "machine": describe_machine(), "arms": table["arms"], **found}, runs, options.out, NAME
    )


if __name__ == "__main__":
    main()
