"""Whole runs of ``dapo train``: engines, precisions, an adapter, an environment, and a resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.child import installed
from benchmarks.gpu.room import Room
from benchmarks.gpu.runner import ROOT
from dapo.models.builtin import ensure_builtin_model

_MODEL, _SMALL = "builtin/signed-sum", "builtin/signed-sum-test"
_LAST_LINES = 12  # of the output of a run that failed
_GAME = "from examples.game import play; play('game', steps=6)"


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its settings on top of the quickstart's, and what is asked of it."""

    name: str
    steps: int
    settings: tuple[str, ...] = ()
    gap: float = 1e-4  # nats, mean over tokens of the current weights, of the worst step
    accuracy: float = 0.0  # least accepted of held-out problems at the end
    needs: str = ""  # a package
    code: str = ""  # Python that makes the run instead of the quickstart


ON_CARD = (
    Run("float32", 20, ("model.dtype=float32", "validation.every=10"), accuracy=0.72),
    Run("bfloat16", 6, ("model.dtype=bfloat16",), gap=0.05),
    Run("two_engines", 6, ("model.dtype=float32", "rollout.engines=2")),
    Run("overlap_ipc", 6, ("model.dtype=float32", "rollout.max_staleness=2", "rollout.weight_transfer=ipc")),
    Run("lora", 6, ("model.dtype=float32", "model.lora.rank=8"), needs="peft"),
    Run("adamw_8bit", 6, ("model.dtype=float32", "learner.optimizer=adamw_8bit"), needs="torchao"),
    Run("generate", 3, ("model.dtype=float32", "rollout.engine=generate")),
    Run("game", 6, gap=0.05, code=_GAME),
)
REHEARSED = (
    Run(
        "small",
        1,
        (f"model.path={_SMALL}", "data.train.0.options.max_terms=4", "data.validation.0.options.max_terms=4"),
    ),
)


def runs(room: Room) -> None:
    """All at the same time: their tiny model leaves a card idle. Their times say little."""
    asked = []
    for run in room.sized(ON_CARD, REHEARSED):  # the other settings run on a processor in tests of their own
        if run.needs and not installed(run.needs):
            room.note(f"{run.name}: left out, not installed here", run.needs)
        else:
            asked.append(run)
    ensure_builtin_model(room.sized(_MODEL, _SMALL), _cache(room) / "models")  # once: the runs would each make it
    processes = [(run, _start(room, run)) for run in asked]
    for run, process in processes:
        _judge(room, run, _wait(room, process))
    _resume(room, asked[:2][-1])


def _cache(room: Room) -> Path:
    return Path(os.environ.get("DAPO_CACHE") or room.folder / "cache")


def _start(room: Room, run: Run) -> subprocess.Popen[bytes]:
    if run.code:
        return _python(room, run.name, ["-c", run.code])
    settings = [
        f"model.device={room.device}", f"run.dir={room.folder / 'runs'}", f"run.name={run.name}",
        f"trainer.steps={run.steps}", "validation.every=0", "checkpoint.every=5", "logging.console=plain",
        *run.settings,
    ]  # fmt: skip
    return _python(room, run.name, ["-m", "dapo", "train", "quickstart", *settings])


def _python(room: Room, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "DAPO_CACHE": str(_cache(room)), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (room.folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=room.folder,
        )  # fmt: skip


def _wait(room: Room, process: subprocess.Popen[bytes]) -> int:
    """Return the exit code; 124 of a run that the part's time did not suffice for."""
    try:
        return process.wait(max(0.1, room.left - 6))
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
    return 124


def _judge(room: Room, run: Run, code: int) -> None:
    """Its exit code, its steps, and what its metrics say."""
    rows = _metrics(room, run)
    room.expect_true(f"{run.name}: ends well", code == 0, "" if code == 0 else _said(room, run, code))
    room.expect(f"{run.name}: steps", len(rows), at_least=run.steps, at_most=run.steps)
    gaps = [row["train/gap_mean_current"] for row in rows if "train/gap_mean_current" in row]
    what = f"{run.name}: learner against sampler, mean, of the worst step"
    room.expect(what, max(gaps, default=float("nan")), at_most=run.gap, unit="nats")
    seconds = [row["time/step"] for row in rows[2:] if "time/step" in row]
    if seconds:
        room.rate(f"{run.name}: a step beside the other runs", sum(seconds) / len(seconds), "s")
    accuracy = [row["validation/accuracy"] for row in rows if "validation/accuracy" in row]
    for value in accuracy:
        room.note(f"{run.name}: accuracy of held-out problems, every ten steps", value)
    if run.accuracy:
        last = accuracy[-1] if accuracy else 0.0
        room.expect(f"{run.name}: it learned: the last of them", last, at_least=run.accuracy)


def _resume(room: Room, run: Run) -> None:
    """Go on from the last checkpoint for a step more."""
    began = time.monotonic()
    arguments = ["--resume", str(room.folder / "runs" / run.name), f"trainer.steps={run.steps + 1}"]
    code = _wait(room, _python(room, run.name, ["-m", "dapo", "train", *arguments, "logging.console=plain"]))
    room.expect_true(f"{run.name}, resumed: ends well", code == 0, "" if code == 0 else _said(room, run, code))
    steps = len(_metrics(room, run))
    room.expect(f"{run.name}, resumed: steps", steps, at_least=run.steps + 1, at_most=run.steps + 1)
    room.rate(f"{run.name}, resumed: start, one step and end", time.monotonic() - began, "s")


def _metrics(room: Room, run: Run) -> list[dict[str, float]]:
    path = room.folder / "runs" / run.name / "metrics.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "train/loss" in row]


def _said(room: Room, run: Run, code: int) -> str:
    lines = (room.folder / f"{run.name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit code {code}: {' | '.join(lines[-_LAST_LINES:])}"
