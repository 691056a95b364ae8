"""Whole runs on a Ray cluster: the numbers of a run without one, what they tell, and nothing left of them."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from inline_transport import InlineTransport
from pool_runs import assert_lost_once, begin, computed, read_until, shoot_at_the_second_publish, train
from ray_processes import NEEDS_RAY, command_of, descendants, wait_for_end, watched
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo.engines.pool import EnginePool
from dapo.learner.driver import LearnerDriver
from dapo.processes.ray_head import OwnCluster
from dapo.report.bundle import bundle_of
from dapo.report.reader import read_run
from dapo.run import engines, publishing

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]

RAY = "launch.backend=ray"
SHARED = "cluster.cpus_per_host=0.25"  # room on a machine of one core too


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("ray"))


@pytest.fixture(scope="module")
def joined():
    """Keys of a cluster that runs join one after the other: it takes Ray longer to start than a run to end."""
    own = OwnCluster()
    yield RAY, SHARED, f"cluster.address={own.address}"
    own.close()


def test_the_numbers_are_those_of_the_driver_also_with_an_engine_killed(recipe, joined, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "transport_of", lambda run, places: InlineTransport())
        whole = train(recipe, "inline")
    rounds, shots, depart = [], [], EnginePool._depart

    def shooting(pool):
        """Between two turns, by the number of the round: in lockstep that depends on no clock."""
        processes = pool._processes
        begins = not processes.flying and not pool._round and any(member.work.owned for member in processes.at_work())
        if begins and len(rounds) == 25:
            shots.append(pool._processes.members[1].facts.process)
            os.kill(shots[0], signal.SIGKILL)
        depart(pool)
        rounds.extend([True] * begins)

    monkeypatch.setattr(EnginePool, "_depart", shooting)
    rows = train(recipe, "killed", *joined)
    assert len(shots) == 1
    assert computed(rows) == computed(whole)
    assert_lost_once(recipe.parent / "killed", shots[0])


RANKS = ("learner.ranks=2", "trainer.steps=4")


@pytest.fixture(scope="module")
def local(recipe):
    """What a run over two ranks computes without Ray."""
    return computed(train(recipe, "ranks-local", *RANKS))


def test_a_recipe_of_ranks_is_moved_by_the_backends_keys_alone(recipe, local, joined):
    assert computed(train(recipe, "ranks-ray", *RANKS, *joined)) == local
    run = recipe.parent / "ranks-ray"
    hosts = {"rank-0", "rank-1", "engine-0", "engine-1"}
    machine = os.uname().nodename
    assert json.loads((run / "machine.jsonl").read_text())["hosts"] == dict.fromkeys(hosts, machine)
    (view,) = bundle_of([read_run(run)], live=True)["runs"]
    assert set(dict(view["machines"][0]["facts"])["hosts"].removeprefix(f"{machine}: ").split(", ")) == hosts
    log = (run / "log.txt").read_text()
    assert {name for name in hosts if re.search(rf"{name} is process \d+ on {machine}", log)} == hosts
    assert {file.stem for file in (run / "hosts").iterdir()} == hosts


def test_a_rank_that_is_killed_is_started_again_from_the_checkpoint(recipe, local, joined, monkeypatch):
    """In the second step behind it. Steps are done again, and the run is one that nothing happened to."""
    learn, shots = LearnerDriver.learn, []

    def shooting(group, step):
        handle = learn(group, step)
        if step.version == 3 and not shots:
            shots.append(group.workers.facts[1].process)
            os.kill(shots[0], signal.SIGKILL)
        return handle

    monkeypatch.setattr(LearnerDriver, "learn", shooting)
    rows = train(recipe, "restart", *RANKS, *joined)
    assert len(shots) == 1
    assert [row["step"] for row in rows] == list(range(5))
    assert computed(rows) == local
    log = (recipe.parent / "restart" / "log.txt").read_text()
    assert len(re.findall(rf"rank-1 \(process {shots[0]}\) was ended by SIGKILL.*Restart 1 of at most 3", log)) == 1
    assert "resuming after step 2" in log
    assert_none_lost_or_doubled(recipe.parent / "restart", 4)


def test_weights_by_the_object_store_are_the_same_run_also_with_an_engine_killed(recipe, local, joined, monkeypatch):
    """From ranks to engines, one of which is gone when the second publish comes; nothing is left in memory."""
    folders, new_shared_folder = [], publishing.new_shared_folder
    monkeypatch.setattr(publishing, "new_shared_folder", lambda: folders.append(new_shared_folder()) or folders[-1])
    loads, shots = shoot_at_the_second_publish(monkeypatch)
    rows = train(recipe, "store", *RANKS, *joined, "rollout.weight_transfer=object_store")
    assert computed(rows) == local
    assert loads == ["object_store"] * 5
    assert_lost_once(recipe.parent / "store", shots[0])
    assert [folder.exists() for folder in folders] == [False]
    assert not (recipe.parent / "store" / "weights").exists()


def test_too_little_room_ends_the_command_before_the_run_begins(recipe):
    done = dapo("train", recipe, "run.name=large", RAY, "rollout.engines=2", "cluster.cpus_per_host=900", expect=1)
    said = r"too small for this recipe: it wants 2 bundles of 900 CPUs, .* there are \d+ CPUs? .*cluster.cpus_per_host"
    assert re.search(said, done.stderr)
    assert not (recipe.parent / "large").exists()


@pytest.mark.parametrize("by", ["SIGKILL", "SIGINT"])
def test_nothing_of_the_cluster_outlives_its_program(recipe, by):
    run, engines, _ = begin(recipe, by.lower(), RAY, SHARED, "checkpoint.every=0")
    found = descendants(run.pid)
    said = [command_of(process) for process in found]
    assert {"raylet", "gcs_server"} <= {word.partition(" ")[0].rpartition("/")[2] for word in said}
    assert set(engines) <= set(found)
    ends = watched(found)
    if by == "SIGKILL":
        run.kill()
    else:
        os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C
        assert "stopped and saved" in "".join(read_until(run, "stopped and saved"))
    run.stdout.read()
    assert run.wait() == (130 if by == "SIGINT" else -signal.SIGKILL)
    for descriptor in ends:
        wait_for_end(descriptor)
    if by == "SIGINT":
        rows = (recipe.parent / "sigint" / "metrics.jsonl").read_text().splitlines()
        assert_none_lost_or_doubled(recipe.parent / "sigint", len(rows) - 1)
