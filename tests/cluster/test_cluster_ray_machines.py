"""A Ray cluster of two machines, one of which is lost: two raylets of this one."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest
from number_engine import GATE, NumberEngine, sums, ticket, token
from ray_processes import NEEDS_RAY, ancestors, command_of, wait_for_end

from dapo.cluster.placement import plan_places
from dapo.cluster.ray_head import OwnCluster
from dapo.contracts.remote import HostSpec
from dapo.contracts.types import Key, SampleRequest, SamplingParams
from dapo.rewards.guarded import start_guarded
from dapo.rollout.host import EngineHost
from dapo.rollout.pool import EnginePool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]

_NODE = "from ray.scripts.scripts import main; main()"


@pytest.fixture
def two_machines(tmp_path):
    """A cluster with a second raylet of one processor; its process. Joined by its address, as a user's own would be."""
    own = OwnCluster()
    from dapo.cluster.ray import RayCluster

    arguments = ["start", f"--address={own.address}", "--num-cpus=1", "--block", "--disable-usage-stats"]
    with (tmp_path / "node.txt").open("wb") as sink:
        guard, connection, lifeline = start_guarded(
            lambda _: [sys.executable, "-c", _NODE, *arguments], sink, {"RAY_worker_niceness": "0"}
        )
    made = RayCluster(own)
    while len(made.nodes()) < 2:  # joins by itself, or its command ends
        assert guard.poll() is None, (tmp_path / "node.txt").read_text()
    yield made, guard.pid
    made.close()
    os.close(lifeline)
    guard.wait()
    connection.close()


def test_a_machine_that_is_lost_is_an_engine_lost(two_machines, tmp_path, caplog):
    cluster, guard = two_machines
    assert not cluster.one_machine
    cpus = int(sum(node.cpus for node in cluster.nodes()))
    names = [f"engine-{n}" for n in range(cpus)]
    cluster.place(plan_places([], names, cpus=1.0, colocate=False), 600.0)
    transport = cluster.transport(tmp_path / "output")
    pool = EnginePool(
        transport, [HostSpec(name, EngineHost, (NumberEngine, 3)) for name in names], GATE, lockstep=False
    )
    pool.load(ticket(1))
    away = [member for member in pool._crew.members if guard in ancestors(member.facts.process)]
    assert len(away) == 1
    watched = os.pidfd_open(away[0].facts.process)
    raylet = next(p for p in ancestors(away[0].facts.process) if "raylet" in command_of(p).partition(" ")[0])
    asked = [
        SampleRequest(Key("train", g, i), np.array([5, 6]), SamplingParams(max_tokens=1 + (7 * g + i) % 29), 9 * g + i)
        for g in range(8)
        for i in range(3)
    ]
    pool.submit(asked)
    assert away[0].owned
    os.kill(raylet, signal.SIGKILL)
    events = []
    while came := pool.poll():
        events += came
    found = {event.key: event.token_ids.tolist() for event in events}
    assert len(events) == len(asked)
    assert found == {r.key: [token(r.seed, t) for t in range(r.sampling.max_tokens)] for r in asked}
    assert pool.metrics()["cluster/engine_losses"] == 1
    (line,) = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert line.startswith(f"{away[0].name} is lost ({away[0].name} (process {away[0].facts.process} on ")
    assert "\n" not in line
    wait_for_end(watched)
    assert pool.checksums() == sums(1)
    assert away[0].index not in pool.members()  # there is no room for another one, and the others go on
