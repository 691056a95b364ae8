"""A Ray cluster that is lost: its head is killed or stands still, or Ray's part of the driver's machine ends."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from pool_runs import OVER, computed, train
from ray_processes import NEEDS_RAY, command_of, descendants, wait_for_end
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo.engines.engine_processes import EngineProcesses
from dapo.engines.pool import EnginePool
from dapo.learner.driver import LearnerDriver
from dapo.loop.stopping import Stopping
from dapo.observe.metrics import read_metrics
from dapo.processes import watch
from dapo.processes.ray_head import OwnCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]

RAY = ("launch.backend=ray", "cluster.cpus_per_host=0.25")  # room on a machine of one core too
RANKS = "learner.ranks=2"
HEAD, RAYLET = "gcs_server", "raylet"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("lost"))


@pytest.fixture(scope="module", params=["learner-in-the-driver", "ranks"])
def learner(request):
    return () if request.param == "learner-in-the-driver" else (RANKS,)


@pytest.fixture(scope="module")
def untouched(recipe, learner):
    """What a run computes to which nothing happens, without Ray."""
    return computed(train(recipe, f"untouched-{len(learner)}", *learner, "trainer.steps=4"))


@pytest.fixture
def own():
    """A cluster that runs join by its address."""
    made = OwnCluster()
    yield made
    made.close()


class Shot:
    """Kills or freezes a process of Ray's, once."""

    def __init__(self, monkeypatch):
        self._before, self.told = set(descendants(os.getpid())), threading.Event()
        self.watched = []
        lose = Stopping.lose

        def losing(stopping, cluster):
            lose(stopping, cluster)
            self.told.set()

        monkeypatch.setattr(Stopping, "lose", losing)

    def fire(self, name, *more, by=signal.SIGKILL):
        """``more``: processes that get the same signal. All that the run started is watched from here on."""
        found = descendants(os.getpid())
        for one in found:
            with suppress(ProcessLookupError):  # it was about to end
                if one not in self._before:
                    self.watched.append(os.pidfd_open(one))
        (process,) = [one for one in found if Path(command_of(one).partition(" ")[0]).name == name]
        for one in (process, *more):
            os.kill(one, by)

    def wait_for_the_end_of_all(self):
        for descriptor in self.watched:
            wait_for_end(descriptor)


def in_the_third_step(monkeypatch, fire):
    """Call it while both engines work for training, in the middle of a turn."""
    depart, shots = EnginePool._depart, []

    def shooting(pool):
        depart(pool)
        if pool.version == 2 and not shots and any(key.lane == "train" for key in pool._owner):
            shots.append(True)
            fire()

    monkeypatch.setattr(EnginePool, "_depart", shooting)


def log_of(run):
    return (run / "log.txt").read_text()


def evidence_of(run):
    status = json.loads((run / "status.json").read_text())
    return status["state"], status["step"], status["evidence"]["kind"], status["evidence"]["part"]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_run_whose_head_is_lost_stops_saved_and_goes_on_as_if_nothing_had_happened(
    recipe, learner, untouched, how, monkeypatch, request
):
    """On a cluster that the program started, and on one that it joined: the third step is done, with what lives. It
    goes on without Ray, or on a cluster that is started for it."""
    joined = [f"cluster.address={request.getfixturevalue('own').address}"] if learner else []
    shot, run = Shot(monkeypatch), recipe.parent / f"head-{how}-{len(learner)}"

    def fire():
        shot.fire(HEAD, by=signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        shot.told.wait()

    with monkeypatch.context() as patch:
        patch.setattr(watch, "_ANEW", 1.0)
        patch.setattr(watch, "_GREETING", 20.0)
        in_the_third_step(patch, fire)
        over = (*OVER, *RAY, *learner, *joined, f"run.name={run.name}", "trainer.steps=4", "checkpoint.every=0")
        dapo("train", recipe, *over, expect=75)
    shot.wait_for_the_end_of_all()
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [0, 1, 2, 3]
    assert evidence_of(run) == ("interrupted", 3, "cluster_lost", "head")
    said = "is gone" if how == "killed" else "does not answer"
    assert len(re.findall(rf"gcs_server\) {said}: finishing this step .*, then saving", log_of(run))) == 1
    assert "is lost (" not in log_of(run)
    over = "cluster.address=null" if learner else "launch.backend=local"
    stuck = how == "frozen" and learner  # on a cluster that this program did not start, it waits for an answer
    if stuck:
        assert "give the command in a new program" in dapo("train", "--resume", run, over, expect=1).stderr
    dapo("train", "--resume", run, over, own_process=stuck)
    assert computed(read_metrics(run / "metrics.jsonl")) == untouched
    assert_none_lost_or_doubled(run, 4)


def test_a_head_that_is_lost_with_a_rank_ends_the_run_with_the_way_to_go_on(recipe, monkeypatch):
    """No learner is started again, since nothing can be: at once, though nobody has heard of the head by then."""
    learn, shot, shots = LearnerDriver.learn, Shot(monkeypatch), []

    def shooting(group, step):
        handle = learn(group, step)
        if step.version == 3 and not shots:
            shots.append(True)
            shot.fire(HEAD, group.workers.facts[1].process)
        return handle

    run = recipe.parent / "with-a-rank"
    with monkeypatch.context() as patch:
        patch.setattr(LearnerDriver, "learn", shooting)
        over = (*OVER, *RAY, RANKS, f"run.name={run.name}", "trainer.steps=4")
        said = dapo("train", recipe, *over, expect=1).stderr
    shot.wait_for_the_end_of_all()
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "(its gcs_server) is gone, and a step could not be finished without it: rank 1 of 2 failed first" in error
    assert f"The last checkpoint is that of step 2, in {run / 'checkpoints'}: " in error
    assert f"--resume {run}` goes on from there, on a cluster that lives (cluster.address=HOST:PORT" in error
    assert "Restart 1" not in log_of(run)
    assert evidence_of(run) == ("failed", 3, "cluster_lost", "head")
    dapo("train", "--resume", run, "launch.backend=local")
    assert_none_lost_or_doubled(run, 4)


def test_a_raylet_of_this_machine_that_is_lost_takes_its_engines_and_the_run_is_saved(recipe, monkeypatch):
    """Nobody starts them again: the machine has no part in the cluster any more."""
    shot, run = Shot(monkeypatch), recipe.parent / "raylet"
    with monkeypatch.context() as patch:
        in_the_third_step(patch, lambda: shot.fire(RAYLET))
        over = (*OVER, *RAY, f"run.name={run.name}", "trainer.steps=4", "checkpoint.every=0")
        said = dapo("train", recipe, *over, expect=1).stderr
    shot.wait_for_the_end_of_all()
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "this machine's raylet, its part of the Ray cluster at" in error
    assert f"The last checkpoint is that of step 2, in {run / 'checkpoints'}: " in error
    assert evidence_of(run) == ("failed", 2, "cluster_lost", "machine")
    dapo("train", "--resume", run)  # on a new cluster
    assert_none_lost_or_doubled(run, 4)


def test_a_head_that_is_lost_while_engines_start_is_named_in_the_error(recipe, monkeypatch):
    shot, start, run = Shot(monkeypatch), EngineProcesses.open, recipe.parent / "at-the-start"

    def losing(processes):
        shot.fire(HEAD)
        start(processes)

    with monkeypatch.context() as patch:
        patch.setattr(EngineProcesses, "open", losing)
        said = dapo("train", recipe, *OVER, *RAY, f"run.name={run.name}", expect=1).stderr
    shot.wait_for_the_end_of_all()
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "(its gcs_server) is gone, and nothing can be started there: an engine did not start: engine-0 " in error
    assert "Give the command again on a cluster that lives (cluster.address=HOST:PORT, or null for" in error
