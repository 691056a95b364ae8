"""Whole runs of ``dapo train``: in one process, with engines in processes of their own, with overlap, resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.room import Room
from benchmarks.gpu.runner import ROOT
from dapo.models.builtin import ensure_builtin_model

_MODEL, _SMALL = "builtin/signed-sum", "builtin/signed-sum-test"
_LINES = 12  # of a run that failed, its last words


@dataclass(frozen=True, slots=True)
class Run:
    """One command: its settings on top of the quickstart's."""

    name: str
    steps: int
    settings: tuple[str, ...] = ()


def runs(room: Room) -> None:
    """The quickstart in four ways, all at the same time: its tiny model leaves a card idle. Their times say little."""
    asked = [
        Run("alone", 40),
        Run("bfloat16", 10, ("model.dtype=bfloat16",)),
        Run("two_engines", 10, ("rollout.engines=2", "rollout.weight_transfer=ipc")),
        Run("overlap", 10, ("rollout.max_staleness=1",)),
    ]
    if not room.on_card:  # tests of their own run these settings on a processor, where each takes half a minute
        small = (f"model.path={_SMALL}", "data.train.0.options.max_terms=4", "data.validation.0.options.max_terms=4")
        asked = [Run("alone", 1, small)]
    ensure_builtin_model(room.sized(_MODEL, _SMALL), _cache(room) / "models")  # once: the runs would each make it
    processes = {run.name: _start(room, run) for run in asked}
    for run in asked:
        code = _wait(room, processes[run.name])
        _judge(room, run, code)
    _resume(room, asked[-1])


def _cache(room: Room) -> Path:
    return Path(os.environ.get("DAPO_CACHE") or room.folder / "cache")


def _start(room: Room, run: Run) -> subprocess.Popen[bytes]:
    settings = [
        "quickstart",
        f"model.device={room.device}", f"run.dir={room.folder}", f"run.name={run.name}",
        f"trainer.steps={run.steps}", f"validation.every={room.sized(10, 0)}", "checkpoint.every=5",
        *run.settings,
    ]  # fmt: skip
    return _dapo_train(room, run.name, settings)


def _dapo_train(room: Room, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "DAPO_CACHE": str(_cache(room))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (room.folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dapo", "train", *arguments, "logging.console=plain"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=room.folder,
        )  # fmt: skip


def _wait(room: Room, process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(max(1.0, room.left - 5))
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(4)
        except subprocess.TimeoutExpired:
            process.kill()
        return 124


def _judge(room: Room, run: Run, code: int) -> None:
    """Its exit code, its steps, and what its metrics say."""
    rows = _metrics(room.folder / run.name)
    said = "" if code == 0 else f"exit code {code}: {_end(room.folder / f'{run.name}.log')}"
    room.expect_true(f"{run.name}: ends well", code == 0, said)
    room.expect(f"{run.name}: steps", len(rows), at_least=run.steps, at_most=run.steps)
    gaps = [row["train/gap_mean"] for row in rows if "train/gap_mean" in row]
    if gaps:
        bound = 0.05 if "model.dtype=bfloat16" in run.settings else 1e-4
        room.expect(
            f"{run.name}: learner against sampler, mean, largest of the steps", max(gaps), at_most=bound, unit="nats"
        )
    seconds = [row["time/step"] for row in rows[2:] if "time/step" in row]
    if seconds:
        room.rate(f"{run.name}: a step beside the others", sum(seconds) / len(seconds), "s")
    accuracy = [row["validation/accuracy"] for row in rows if "validation/accuracy" in row]
    for number, value in enumerate(accuracy):
        room.note(f"{run.name}: accuracy of held-out problems, evaluation {number}", value)
    if room.on_card and run.name == "alone":
        room.expect("alone: it learned", accuracy[-1] if accuracy else 0.0, at_least=0.75)


def _resume(room: Room, run: Run) -> None:
    """Go on from the last checkpoint for a step more."""
    began = time.monotonic()
    steps = f"trainer.steps={run.steps + 1}"
    code = _wait(room, _dapo_train(room, run.name, ["--resume", str(room.folder / run.name), steps]))
    rows = _metrics(room.folder / run.name)
    said = "" if code == 0 else f"exit code {code}: {_end(room.folder / f'{run.name}.log')}"
    room.expect_true(f"{run.name}, resumed: ends well", code == 0, said)
    room.expect(f"{run.name}, resumed: steps", len(rows), at_least=run.steps + 1, at_most=run.steps + 1)
    room.rate(f"{run.name}, resumed: start, one step and end", time.monotonic() - began, "s")


def _metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    return [row for line in path.read_text(encoding="utf-8").splitlines() if "train/loss" in (row := json.loads(line))]


def _end(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-_LINES:])
