"""Whole runs over a pool of engines, as one compares them."""

from __future__ import annotations

import os
import re
import signal
import subprocess

from small_run import command, dapo, environment

from dapo.engines.pool import EnginePool
from dapo.observe.metrics import read_metrics, without_clock

OVER = ("rollout.engines=2", "rollout.slots=8", "rollout.turn_steps=4")
_OF_THE_ENGINES = re.compile(r"cluster/|decode_steps|prefill_|slot_use")
"""What a lost engine does change: its own work, which it did again."""


def train(recipe, name, *over) -> list[dict[str, float]]:
    """The rows of a run's metrics."""
    dapo("train", recipe, *OVER, f"run.name={name}", "logging.console=quiet", *over)
    return read_metrics(recipe.parent / name / "metrics.jsonl")


def computed(rows) -> list[dict[str, float]]:
    """What does not depend on the clock, nor on the engines' own counters."""
    return [
        {key: value for key, value in without_clock(row).items() if not _OF_THE_ENGINES.search(key)} for row in rows
    ]


def shoot_at_the_second_publish(monkeypatch) -> tuple[list[str], list[int]]:
    """Kill engine 1 when the pool is to take weights for the second time. The routes of all publishes, and the process
    that it was, as they come."""
    load, routes, shots = EnginePool.load, [], []

    def shooting(pool, ticket, in_flight="abort"):
        routes.append(ticket.route)
        if len(routes) == 2:
            shots.append(pool._processes.members[1].facts.process)
            os.kill(shots[0], signal.SIGKILL)
        load(pool, ticket, in_flight)

    monkeypatch.setattr(EnginePool, "load", shooting)
    return routes, shots


def assert_lost_once(run, process) -> None:
    """Engine 1, by SIGKILL."""
    said = rf"engine-1 is lost \(engine-1 \(process {process}\) was ended by SIGKILL"
    assert len(re.findall(said, (run / "log.txt").read_text())) == 1


def begin(recipe, name, *over):
    """``dapo train`` as a person starts it, up to its first step; and its engines' processes."""
    run = subprocess.Popen(
        command("train", recipe, *OVER, f"run.name={name}", "trainer.steps=100000", "logging.console=plain", *over),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said = read_until(run, r"step +1/")
    log = (recipe.parent / name / "log.txt").read_text()
    processes = [int(number) for number in re.findall(r"engine-\d: process (\d+) on", log)]
    assert len(processes) == 2, said
    return run, processes, said


def read_until(run, word):
    said = []
    for line in run.stdout:
        said.append(line)
        if re.search(word, line):
            return said
    raise AssertionError("".join(said)[-3000:])
