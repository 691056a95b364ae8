"""Whole runs whose embedded engines live in processes of their own."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
from inline_transport import InlineTransport
from pool_runs import begin, computed, read_until, train
from small_run import assert_none_lost_or_doubled, write_recipe

from dapo.engines.pool import EnginePool
from dapo.processes.left_over import delete_left
from dapo.run import engines, publishing

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def whole(recipe):
    """A run whose engines live in the driver's process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "transport_of", lambda run, places: InlineTransport())
        return train(recipe, "inline")


def test_processes_compute_what_the_driver_would(recipe, whole):
    assert computed(train(recipe, "processes")) == computed(whole)
    assert not list(Path("/dev/shm").glob(f"dapo-weights-{os.getpid()}-*"))


@pytest.mark.parametrize("when", ["between two turns", "in a turn"])
def test_a_kill_changes_nothing_in_lockstep(recipe, whole, when, monkeypatch):
    shots, rounds, depart = [], [], EnginePool._depart

    def shooting(pool):
        """Shoot by the number of the round: in lockstep that depends on no clock, as the number of calls would."""
        processes = pool._processes
        begins = not processes.flying and not pool._round and any(member.work.owned for member in processes.at_work())
        due = begins and len(rounds) in (5, 25)
        if due and when == "between two turns":
            shoot(pool)
        depart(pool)
        if due and when == "in a turn":
            shoot(pool)
        rounds.extend([True] * begins)

    def shoot(pool):
        shots.append(pool._processes.members[len(shots)].facts.process)
        os.kill(shots[-1], signal.SIGKILL)

    monkeypatch.setattr(EnginePool, "_depart", shooting)
    rows = train(recipe, when.replace(" ", "-"))
    assert len(shots) == 2
    assert sum(row.get("cluster/engine_losses", 0) for row in rows) >= 1  # the rest in an evaluation
    assert computed(rows) == computed(whole)


def test_free_engines_train_too(recipe):
    train(recipe, "free", "rollout.lockstep=false")
    assert_none_lost_or_doubled(recipe.parent / "free", 6)


# ---------------------------------------------------------------------- the command


def gone(processes):
    """Wait for their end: the test's own time limit is the only one."""
    for descriptor in processes:
        select.select([descriptor], [], [])
        os.close(descriptor)
    return True


def test_a_killed_engine_is_one_line_and_the_run_goes_on(recipe):
    run, processes, _ = begin(recipe, "command")
    os.kill(processes[1], signal.SIGKILL)
    said = read_until(run, "engine-1 is lost")
    assert f"process {processes[1]}) was ended by SIGKILL" in said[-1]
    assert "restart 1 of at most 10" in said[-1]
    said += read_until(run, r"step +\d")
    said += read_until(run, r"step +\d")
    assert sum("is lost" in line for line in said) == 1
    watched = [os.pidfd_open(processes[0])]
    os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C: it reaches the driver alone
    assert run.wait() == 130
    assert gone(watched)
    assert "stopped and saved" in run.stdout.read()
    last = len((recipe.parent / "command" / "metrics.jsonl").read_text().splitlines())
    assert last >= 3
    assert_none_lost_or_doubled(recipe.parent / "command", last - 1)


@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
def test_no_engine_outlives_its_driver(recipe, by):
    run, processes, _ = begin(recipe, by.lower(), "checkpoint.every=0")
    watched = [os.pidfd_open(process) for process in processes]
    run.send_signal(getattr(signal, by))
    run.stdout.read()
    run.wait()
    assert gone(watched)
    left = list(Path("/dev/shm").glob(f"dapo-weights-{run.pid}-*"))
    if by == "SIGTERM":
        assert not left
    delete_left(Path("/dev/shm"), publishing._PREFIX)  # what the next run does first
    assert not list(Path("/dev/shm").glob(f"dapo-weights-{run.pid}-*"))
