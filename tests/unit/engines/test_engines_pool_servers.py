"""Several vLLM servers as one engine: their clients live in threads of the driver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from server_parts import wait_for
from stand_in_server import StandIn
from tickets import in_folder

from dapo.config import schema
from dapo.engines.factory import EngineSpec, ServerAccess, engine_host
from dapo.engines.member import PoolLimits
from dapo.engines.pool import EnginePool
from dapo.engines.requests import Gate
from dapo.processes.threads import ThreadTransport
from dapo.processes.transport import HostSpec
from dapo.types.batch import Key, SampleRequest, SamplingParams
from dapo.types.enums import FinishReason

pytest.importorskip("aiohttp")


@pytest.fixture
def servers():
    made = [StandIn(), StandIn()]
    yield made
    for server in made:
        server.kill()


@pytest.fixture
def make_pool(servers, tmp_path):
    pools = []

    def make(*slots, patience=120.0, **limits):
        facts = SimpleNamespace(vocabulary=40, config={})
        rollout = schema.Rollout(engine="vllm_server", server={"patience": patience})
        specs = [
            HostSpec(
                f"server {server.address}",
                engine_host,
                (
                    EngineSpec(
                        rollout,
                        schema.Model(path="m"),
                        facts,
                        60,
                        slots=n,
                        server=ServerAccess(server.address, "runs/mine"),
                    ),
                ),
            )
            for server, n in zip(servers, slots, strict=True)
        ]
        pools.append(EnginePool(ThreadTransport(), specs, Gate(40, 64), limits=PoolLimits(**limits)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def published(version, tmp_path):
    return in_folder(version, {"value": torch.tensor(float(version))}, tmp_path / "weights")


def requests(groups, size=2):
    return [
        SampleRequest(Key("train", g, i), np.array([5, 6]), SamplingParams(max_tokens=4), 10 * g + i)
        for g in range(groups)
        for i in range(size)
    ]


def drain(pool, count):
    events = []
    while len(events) < count:
        events += pool.poll()
    assert pool.poll() == []
    return {event.key: event for event in events}


def test_servers_of_different_size_share_the_work(make_pool, servers, tmp_path):
    pool = make_pool(2, 6)
    assert pool.capacity == 8
    pool.load(published(1, tmp_path))
    asked = requests(8)
    pool.submit(asked)
    share = [sum(index == n for index, _ in pool._owner.values()) for n in range(2)]
    assert share == [4, 12]
    events = drain(pool, 16)
    assert set(events) == {r.key for r in asked}
    assert {(e.finish, len(e.token_ids)) for e in events.values()} == {(FinishReason.LENGTH, 4)}
    (first,) = (tmp_path / "weights").iterdir()
    pool.load(published(2, tmp_path))
    assert not first.exists()  # when all of them have the next set
    pool.submit([requests(9)[-1]])
    (event,) = drain(pool, 1).values()
    assert set(event.versions.tolist()) == {2}


def test_the_work_of_a_server_that_stays_away_goes_to_the_others(make_pool, servers, tmp_path):
    pool = make_pool(4, 4, patience=0.3, restarts=1)
    pool.load(published(1, tmp_path))
    for server in servers:
        server.hold = True  # nothing ends meanwhile
    asked = requests(4)
    pool.submit(asked)
    assert pool.poll(0.0) == []
    servers[1].kill()
    servers[0].hold = False
    events = drain(pool, 8)
    assert set(events) == {r.key for r in asked}
    assert {len(e.token_ids) for e in events.values()} == {4}
    wait_for(lambda: pool._hear() or pool._processes.members[1].gone if pool._processes._starting else True)
    assert pool.members() == [0]
    assert pool.metrics()["cluster/engine_losses"] == 2  # and once more, as it could not be reached again
