"""Engines in processes that are killed and frozen in the middle of a turn: gated by what they do, not by the clock."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from number_engine import GATE, MortalEngine, NumberEngine, sums, ticket, token

from dapo.engines.host import EngineHost
from dapo.engines.member import PoolLimits
from dapo.engines.pool import EnginePool
from dapo.processes.local import ProcessTransport
from dapo.processes.transport import HostSpec
from dapo.types.batch import Key, SampleRequest, SamplingParams

pytestmark = pytest.mark.cluster


@pytest.fixture
def transport(tmp_path):
    made = ProcessTransport(tmp_path)
    yield made
    made.close()


def requests(groups=8, size=3):
    return [
        SampleRequest(Key("train", g, i), np.array([5, 6]), SamplingParams(max_tokens=1 + (7 * g + i) % 29), 9 * g + i)
        for g in range(groups)
        for i in range(size)
    ]


def drain(pool):
    events = []
    while came := pool.poll():
        events += came
    return events


def check_whole(asked, events):
    assert len(events) == len(asked)
    found = {event.key: event.token_ids.tolist() for event in events}
    assert found == {r.key: [token(r.seed, t) for t in range(r.sampling.max_tokens)] for r in asked}


def seen(pool, asked):
    """What comes out, and when."""
    pool.submit(asked)
    return [(e.key, e.tick, e.token_ids.tolist()) for e in drain(pool)]


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV"])
def test_a_process_that_dies_in_a_turn(transport, tmp_path, how, lockstep):
    order = tmp_path / "order"
    mortal = HostSpec("engine-1", EngineHost, (MortalEngine, 3, str(order), int(getattr(signal, how))))
    plain = HostSpec("engine-0", EngineHost, (NumberEngine, 3))
    pool = EnginePool(transport, [plain, mortal], GATE, turn_steps=8, lockstep=lockstep)
    pool.load(ticket(1))
    assert pool.checksums() == sums(1)
    asked = requests()
    whole = seen(pool, asked)
    order.write_text(str(pool._processes.members[1].counts.clock + 5))  # in the middle of its next turn
    again = seen(pool, asked)
    assert not order.exists()
    if lockstep:
        start = whole[0][1] - again[0][1]
        assert [(key, tick + start, tokens) for key, tick, tokens in again] == whole
    assert sorted(x[::2] for x in again) == sorted(x[::2] for x in whole)
    assert pool.metrics()["cluster/engine_losses"] == 1
    while len(pool.members()) < 2:
        pool._hear()
    pool.submit([requests(1)[0], *requests(9)[-3:]])
    drain(pool)
    assert pool.checksums() == sums(1)
    if how == "SIGSEGV":
        assert "Fatal Python error" in (tmp_path / "engine-1.txt").read_text()


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_a_process_that_freezes_in_a_turn(transport, tmp_path, lockstep):
    """Only the frozen one has work when the watch is moved on, so that nobody else can be late."""
    order, watch = tmp_path / "order", [0.0]
    mortal = HostSpec("engine-1", EngineHost, (MortalEngine, 3, str(order), int(signal.SIGSTOP)))
    plain = HostSpec("engine-0", EngineHost, (NumberEngine, 3))
    pool = EnginePool(
        transport, [plain, mortal], GATE, lockstep=lockstep, limits=PoolLimits(engine=60.0), now=lambda: watch[0]
    )
    pool.load(ticket(1))
    process = pool._processes.members[1].facts.process
    order.write_text("3")
    asked = [SampleRequest(r.key, r.prompt_ids, r.sampling, r.seed, engine=1) for r in requests()]
    pool.submit(asked)
    pool._depart()
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "Tt":
        os.sched_yield()
    assert pool.poll(0.0) == []
    watch[0] += 61.0
    check_whole(asked, drain(pool))
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert pool.metrics()["cluster/engine_losses"] == 1
