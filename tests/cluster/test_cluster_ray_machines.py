"""A Ray cluster of two machines, one of which is lost or cut off: two raylets of this one."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np
import pytest
from desk import Desk
from number_engine import GATE, NumberEngine, sums, ticket, token
from pool_runs import OVER, train
from ray_machines import CPUS, join
from ray_processes import NEEDS_RAY, ancestors, wait_for_end
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo.engines.host import EngineHost
from dapo.engines.member import PoolLimits
from dapo.engines.pool import EnginePool
from dapo.learner.driver import LearnerDriver
from dapo.processes.placement import plan_places
from dapo.processes.ray_head import OwnCluster
from dapo.processes.transport import HostSpec
from dapo.types.batch import Key, SampleRequest, SamplingParams

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]


@pytest.fixture(scope="module")
def head():
    """It gives up a silent machine after half a minute; by Ray's defaults after more than one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("timeout_ms", "2000"), ("period_ms", "1000"), ("failure_threshold", "10")):
            patch.setenv(f"RAY_health_check_{name}", value)
        own = OwnCluster()
    yield own
    own.close()


@pytest.fixture
def machine(head):
    """The second machine. The cluster is joined by its address, as a user's own would be."""
    made = join(head.address)
    yield made
    made.close()


def on(machine, process):
    return machine.guarded.pid in ancestors(process)


def away_of(pool, machine):
    """The one engine of a pool that is on that machine."""
    (away,) = [member for member in pool._processes.members if on(machine, member.facts.process)]
    return away


@pytest.fixture
def cluster(head, machine):
    """Left also by a test that fails: its engines would keep all the room there is."""
    from dapo.processes.ray import RayCluster

    made = RayCluster(head.address)
    yield made
    made.close()


def test_ranks_and_engines_of_several_devices_see_those_of_their_bundle(head, tmp_path):
    """Four devices that Ray is told of: each is one rank's, and one of two that an engine sees."""
    from dapo.processes.ray import RayCluster

    ranks, engines = [f"rank-{n}" for n in range(3)], ["engine-0", "engine-1"]
    plan = plan_places(ranks, engines, cpus=1.0, rank_gpus=1, engine_gpus=2, colocate=True)
    assert plan.gpus == 4
    with closing(join(head.address, cpus=4, gpus=4)), closing(RayCluster(head.address)) as cluster:
        cluster.place(plan, 600.0)
        transport = cluster.transport(tmp_path / "output")
        hosts = {name: transport.start(HostSpec(name, Desk)) for name in [*engines, *ranks, "elsewhere"]}
        asked = {name: transport.call(host, "variable", "CUDA_VISIBLE_DEVICES") for name, host in hosts.items()}
        seen = {name: transport.get(call) for name, call in asked.items()}
        transport.close()
    assert seen.pop("elsewhere") == ""
    assert seen["engine-0"] == f"{seen['rank-0']},{seen['rank-1']}"
    assert seen["engine-1"].split(",")[0] == seen["rank-2"]
    assert sorted(f"{seen['engine-0']},{seen['engine-1']}".split(",")) == ["0", "1", "2", "3"]


@pytest.fixture
def pool(cluster, tmp_path):
    """An engine on each machine, which takes all of it; both have version 1."""
    assert not cluster.one_machine
    names = ["engine-0", "engine-1"]
    cluster.place(plan_places([], names, cpus=float(CPUS), colocate=False), 600.0)
    transport = cluster.transport(tmp_path / "output")
    hosts = [HostSpec(name, EngineHost, (NumberEngine, 3)) for name in names]
    made = EnginePool(transport, hosts, GATE, lockstep=False, limits=PoolLimits(restarts=1))
    made.load(ticket(1))
    yield made
    made.close()


def ask(pool, first=0):
    """Groups of three, of many lengths."""
    asked = [
        SampleRequest(Key("train", g, i), np.array([5, 6]), SamplingParams(max_tokens=1 + (7 * g + i) % 29), 9 * g + i)
        for g in range(first, first + 8)
        for i in range(3)
    ]
    pool.submit(asked)
    return asked


def assert_whole(pool, asked):
    """Each response comes once, with its own tokens."""
    events = []
    while came := pool.poll():
        events += came
    found = {event.key: event.token_ids.tolist() for event in events}
    assert len(events) == len(asked)
    assert found == {r.key: [token(r.seed, t) for t in range(r.sampling.max_tokens)] for r in asked}


def lose(machine, process):
    """Its raylet, and what is watched of it."""
    watched = os.pidfd_open(process)
    os.kill(machine.raylet, signal.SIGKILL)
    wait_for_end(watched)  # a quick engine would be done before it is ended


def test_a_machine_that_is_lost_is_an_engine_lost(pool, machine, caplog):
    away = away_of(pool, machine)
    process = away.facts.process
    asked = ask(pool)
    assert away.work.owned
    lose(machine, process)
    assert_whole(pool, asked)
    assert pool.metrics()["cluster/engine_losses"] == 1
    (line,) = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert line.startswith(f"{away.name} is lost ({away.name} (process {process} on ")
    assert "\n" not in line
    assert pool.checksums() == sums(1)
    assert away.index not in pool.members()  # there is no room for another one, and the others go on


def test_a_machine_that_comes_back_gets_its_engine_again(pool, head, machine):
    """Later than an engine is waited for; with the weights of then."""
    away = away_of(pool, machine)
    asked, long = ask(pool), away.limits
    away.limits = replace(long, start=5.0)
    lose(machine, away.facts.process)
    assert_whole(pool, asked)
    pool.load(ticket(2))
    away.limits, overdue, group = long, away.opening.until, 8
    while away.opening.until == overdue:  # it has waited in vain
        assert_whole(pool, ask(pool, group))
        group += 8
        time.sleep(0.1)
    with closing(join(head.address)) as back:
        while len(pool.members()) < 2:
            assert_whole(pool, ask(pool, group))
            group += 8
            time.sleep(0.1)
        assert on(back, away.facts.process)
        assert pool.checksums_each() == dict.fromkeys((0, 1), sums(2))
        asked = ask(pool, group)
        assert away.work.owned
        assert_whole(pool, asked)
        assert pool.metrics()["cluster/engine_losses"] == 1
        pool.close()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("machines"))


def shoot_at(machine, how, monkeypatch, patience=None):
    """While the engine there makes responses for the third step, in the middle of a turn. Gives who it was, when it
    has happened. ``patience``: seconds that it is waited for from then on."""
    shots, depart = [], EnginePool._depart

    def shooting(pool):
        depart(pool)
        if pool.version < 2 or shots:
            return
        away = away_of(pool, machine)
        if away.flight is not None and any(key.lane == "train" for key in away.work.owned):
            shots.append((away.index, away.facts.process, os.pidfd_open(away.facts.process)))
            if patience is not None:
                away.limits = replace(away.limits, start=patience)
            for process in machine.processes if how == "cut off" else [machine.raylet]:
                with suppress(ProcessLookupError):  # Ray ends workers that nobody needs at any moment
                    os.kill(process, signal.SIGSTOP if how == "cut off" else signal.SIGKILL)

    monkeypatch.setattr(EnginePool, "_depart", shooting)
    return shots


@pytest.mark.parametrize(("how", "lockstep"), [("lost", False), ("cut off", False), ("lost", True)])
def test_a_run_goes_on_without_a_machine(recipe, head, machine, monkeypatch, how, lockstep):
    """Its raylet is killed, or everything on it stands still. There is no room elsewhere, so nothing starts again; in
    lockstep, where an engine is waited for, that is found out."""
    shots = shoot_at(machine, how, monkeypatch, patience=5.0 if lockstep else None)
    run = recipe.parent / f"{how.replace(' ', '-')}-{lockstep}"
    joined = ("launch.backend=ray", f"cluster.address={head.address}", "cluster.nodes=2")
    over = (f"cluster.cpus_per_host={CPUS}", "cluster.start_timeout=3600", "cluster.max_engine_restarts=1")
    rows = train(recipe, run.name, *joined, *over, f"rollout.lockstep={lockstep}")
    ((index, process, watched),) = shots
    assert_none_lost_or_doubled(run, 6)
    assert [row["cluster/engines"] for row in rows[1:3]] == [2.0, 2.0]
    assert rows[-1]["cluster/engines"] == 1.0
    assert sum(row["cluster/engine_losses"] for row in rows[1:]) == 1.0 + lockstep
    first, *others = [
        line for line in (run / "log.txt").read_text().splitlines() if f"engine-{index} is lost (" in line
    ]
    assert f"engine-{index} is lost (engine-{index} (process {process} on " in first
    assert ") went with its Ray actor: " in first
    again = "are made again" if lockstep else "are made again by the other engines"
    assert f"{again}, and it is started again (restart 1 of at most 1)" in first
    assert len(others) == lockstep
    if lockstep:
        assert "no machine had a place for it within 5 s (cluster.start_timeout)" in others[0]
        assert "are made again by the other engines, and it is started when there is one" in others[0]
        assert "The others do not wait for it" in others[0]
    if how == "cut off":  # when it comes to itself again, it is not wanted any more, and knows it
        for one in machine.processes:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)
    wait_for_end(watched)
    while machine.guarded.exit_code(60) is None:
        pass


def test_ranks_that_lost_a_machine_stop_saved_and_go_on_with_fewer(recipe, head, machine, monkeypatch):
    """In the second step behind a checkpoint. Two ranks have no room on what is left; one has, when it is resumed."""
    learn, shots = LearnerDriver.learn, []

    def shooting(group, step):
        handle = learn(group, step)
        if step.version == 3 and not shots:
            shots.append([os.pidfd_open(one.process) for one in group.workers.facts if on(machine, one.process)])
            os.kill(machine.raylet, signal.SIGKILL)
        return handle

    run = recipe.parent / "ranks"
    over = ("learner.ranks=2", *OVER, f"cluster.cpus_per_host={CPUS}", "trainer.steps=4", f"run.name={run.name}")
    with monkeypatch.context() as patch:
        patch.setattr(LearnerDriver, "learn", shooting)
        done = dapo("train", recipe, "launch.backend=ray", f"cluster.address={head.address}", *over, expect=1)
    ((watched,),) = shots
    wait_for_end(watched)
    room = (
        rf"too small for this recipe: it wants 2 bundles of {CPUS} CPUs?, .* there are {CPUS} CPUs? and 0 GPUs on 1 mac"
    )
    assert re.search(room, done.stderr)
    assert "Restart 1 of at most 3, from the last checkpoint" in (run / "log.txt").read_text()
    dapo("train", "--resume", run, "learner.ranks=1", "rollout.engines=1")
    assert "resuming after step 2" in (run / "log.txt").read_text()
    assert_none_lost_or_doubled(run, 4)
