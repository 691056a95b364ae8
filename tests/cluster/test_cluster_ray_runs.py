"""Whole runs on a Ray cluster: the numbers of a run without one, what they tell, and nothing left of them."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from pool_runs import begin, computed, read_until, train
from ray_processes import NEEDS_RAY, command_of, descendants, wait_for_end
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo.cluster.inline import InlineTransport
from dapo.report.bundle import bundle_of
from dapo.report.reader import read_run
from dapo.rollout.pool import EnginePool
from dapo.run import pools

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]

RAY = "launch.backend=ray"
SHARED = "cluster.cpus_per_host=0.25"  # room on a machine of one core too


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("ray"))


def test_the_numbers_are_those_of_the_driver_also_with_an_engine_killed(recipe, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "transport_of", lambda run, places: InlineTransport())
        whole = train(recipe, "inline")
    rounds, shots, depart = [], [], EnginePool._depart

    def shooting(pool):
        """Between two turns, by the number of the round: in lockstep that depends on no clock."""
        begins = not pool._crew.flying and not pool._round and any(member.owned for member in pool._crew.at_work())
        if begins and len(rounds) == 25:
            shots.append(pool._crew.members[1].facts.process)
            os.kill(shots[0], signal.SIGKILL)
        depart(pool)
        rounds.extend([True] * begins)

    monkeypatch.setattr(EnginePool, "_depart", shooting)
    rows = train(recipe, "killed", RAY, SHARED)
    assert len(shots) == 1
    assert computed(rows) == computed(whole)
    log = (recipe.parent / "killed" / "log.txt").read_text()
    assert len(re.findall(rf"engine-1 is lost \(engine-1 \(process {shots[0]}\) was ended by SIGKILL", log)) == 1


def test_a_recipe_of_ranks_is_moved_by_the_backends_keys_alone(recipe):
    over = ("learner.ranks=2", "trainer.steps=3")
    assert computed(train(recipe, "ranks-ray", *over, RAY, SHARED)) == computed(train(recipe, "ranks-local", *over))
    run = recipe.parent / "ranks-ray"
    hosts = {"rank-0", "rank-1", "engine-0", "engine-1"}
    machine = os.uname().nodename
    assert json.loads((run / "machine.jsonl").read_text())["hosts"] == dict.fromkeys(hosts, machine)
    (view,) = bundle_of([read_run(run)], live=True)["runs"]
    assert set(dict(view["machines"][0]["facts"])["hosts"].removeprefix(f"{machine}: ").split(", ")) == hosts
    log = (run / "log.txt").read_text()
    assert {name for name in hosts if re.search(rf"{name} is process \d+ on {machine}", log)} == hosts
    assert {file.stem for file in (run / "hosts").iterdir()} == hosts


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
    watched = [os.pidfd_open(process) for process in found]
    if by == "SIGKILL":
        run.kill()
    else:
        os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C
        assert "stopped and saved" in "".join(read_until(run, "stopped and saved"))
    run.stdout.read()
    assert run.wait() == (130 if by == "SIGINT" else -signal.SIGKILL)
    for descriptor in watched:
        wait_for_end(descriptor)
    if by == "SIGINT":
        rows = (recipe.parent / "sigint" / "metrics.jsonl").read_text().splitlines()
        assert_none_lost_or_doubled(recipe.parent / "sigint", len(rows) - 1)
