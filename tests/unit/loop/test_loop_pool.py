"""The loop over a pool: engines die while batches are collected, and the sync check asks every one of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from faults import FaultyTransport
from inline_transport import InlineTransport
from number_engine import GATE, NumberEngine, sums, ticket
from quick import quick
from scripted import make_collector

from dapo.engines.host import EngineHost
from dapo.engines.member import PoolLimits
from dapo.engines.pool import EnginePool
from dapo.errors import EngineError
from dapo.loop.overlap import Overlap
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.sync_check import SyncCheck
from dapo.metrics.phases import Phases
from dapo.processes.transport import HostSpec
from dapo.types.batch import Prompt, SamplingParams
from dapo.types.protocols import Done

STEPS, PROMPTS, GROUP = 5, 4, 4


def specs(*sizes, kind=NumberEngine):
    return [HostSpec(f"engine-{n}", EngineHost, (kind, size)) for n, size in enumerate(sizes)]


def make_pool(transport, lockstep, kind=EnginePool):
    limits = PoolLimits(restarts=10**6)
    return kind(
        transport, specs(3, 5, 4), GATE, turn_steps=4, lockstep=lockstep, limits=limits,
        now=getattr(transport, "watch", lambda: 0.0),
    )  # fmt: skip


def collect(engine, steps=STEPS):
    """Batches as (group, [its tokens]); half of the groups are rejected."""
    collector = make_collector(
        length=None, accuracy=lambda g, i: float((g + i) % 2 if g % 2 else 1), prompts=PROMPTS, group=GROUP,
        limit=24, engine=engine,
    )  # fmt: skip
    collector.sampling = replace(collector.sampling, stop_token_ids=(5, 11, 17))
    batches = []
    for step in range(1, steps + 1):
        engine.load(ticket(step - 1))
        batch = collector.collect(step)
        batches.append([(g.id, [c.token_ids.tolist() for c in g.completions_G]) for g in batch.groups_P])
    return batches


@pytest.fixture(scope="module")
def alone():
    """What each response is, from one engine that nothing happens to."""
    return {group: tokens for batch in collect(NumberEngine(12), 2 * STEPS) for group, tokens in batch}


@pytest.mark.parametrize("lockstep", quick([True, False], [True]), ids=["lockstep", "free"])
def test_200_random_kills_leave_every_group_whole(lockstep, alone):
    """Kills and freezes in whatever an engine is asked; nothing is trained twice, no group is lost."""
    whole = collect(make_pool(InlineTransport(), lockstep))
    kills = 0
    for seed in range(100):
        dice = random.Random(seed)
        transport = FaultyTransport(lambda *_: None)
        pool = make_pool(transport, lockstep)
        transport.fault = lambda *_, dice=dice: (
            dice.choice(["before", "after", "freeze"]) if dice.random() < 0.06 else None
        )
        batches = collect(pool)
        trained = [group for batch in batches for group, _ in batch]
        assert len(trained) == len(set(trained)) == STEPS * PROMPTS
        for batch in batches:
            for group, tokens in batch:
                assert group not in alone or tokens == alone[group]
                assert len(tokens) == GROUP
        if lockstep:
            assert batches == whole  # nothing tells that an engine was lost
        kills += len(transport.faults)
        if kills >= 200:
            break
    assert kills >= 200


def test_a_driver_that_forgets_an_owner_is_caught():
    class Forgets(EnginePool):
        def _lost(self, member, error, flight):
            for key in member.work.owned:
                del self._owner[key]
            member.work.take_all()
            super()._lost(member, error, flight)

    left = [7]

    def fault(name, method):
        left[0] -= method == "turn"
        return "before" if method == "turn" and left[0] == 0 else None

    collect(make_pool(FaultyTransport(fault), lockstep=False))
    left[0] = 7
    with pytest.raises(EngineError, match=r"never came back|submitted twice"):
        collect(make_pool(FaultyTransport(fault), lockstep=False, kind=Forgets))


# ---------------------------------------------------------------------- generation beside learning


def overlapped(engine):
    """As ``collect``, with three turns of the next step beside learning: batches with the version of every token."""
    collector = make_collector(
        length=None, accuracy=lambda g, i: float((g + i) % 2 if g % 2 else 1), prompts=PROMPTS, group=GROUP,
        limit=24, engine=engine, overlaps=True, max_age=2, lookahead=1.5, lag=3,
    )  # fmt: skip
    collector.sampling = replace(collector.sampling, stop_token_ids=(5, 11, 17))
    overlap, batches = Overlap(collector, Phases(), turns=3), []
    engine.load(ticket(0))
    for step in range(1, STEPS + 1):
        engine.checksums_each()
        overlap.check()
        groups = collector.collect(step).groups_P
        made = [(g.id, [(c.token_ids.tolist(), c.versions.tolist()) for c in g.completions_G]) for g in groups]
        batches.append((made, engine.clock))
        overlap.result(Done(None), step + 1)
        engine.load(ticket(step), "keep")
    return batches


def pool_of(transport, *sizes):
    limits = PoolLimits(restarts=10)
    return EnginePool(transport, specs(*sizes), GATE, turn_steps=4, lockstep=True, limits=limits, now=lambda: 0.0)


@pytest.mark.parametrize(
    "sizes", [pytest.param((6,), marks=pytest.mark.whole), (3, 5)], ids=["one engine", "two engines"]
)
@pytest.mark.parametrize("method", quick(["turn", "abort", "load", "checksums"], ["abort", "load", "checksums"]))
def test_with_a_number_of_turns_nothing_tells_that_an_engine_was_lost(method, sizes):
    """Whenever it is lost: responses that crossed a change of weights are made again with the right weights."""
    whole = overlapped(pool_of(InlineTransport(), *sizes))
    versions = {v for made, _ in whole for _, group in made for _, per_token in group for v in per_token}
    assert len(versions) > 2
    assert any(len(set(per_token)) > 1 for made, _ in whole for _, group in made for _, per_token in group)
    fired, count = 0, 0
    for what in ("before", "after"):
        while True:
            count += 1
            seen = []

            def fault(name, asked, what=what, count=count, seen=seen):
                seen.append(asked) if (name, asked) == ("engine-0", method) else None
                return what if asked == method and name == "engine-0" and len(seen) == count else None

            transport = FaultyTransport(fault)
            assert overlapped(pool_of(transport, *sizes)) == whole, (what, count)
            fired += len(transport.faults)
            if not transport.faults:
                break
        count = 0
    assert fired >= 8


# ---------------------------------------------------------------------- the sync check


class Learner:
    """Its weights are their version, and every log-probability is -1."""

    def __init__(self, version):
        self.version, self.asked = version, []

    def checksums(self, dtypes):
        return {name: one.value for name, one in sums(self.version).items() if name in dtypes}

    def logprobs(self, rows):
        self.asked.append(len(rows))
        return Done([-np.ones(len(row.token_ids), np.float32) for row in rows])

    def rounding(self, rows):
        return None


def check_of(pool, learner):
    prompts = [Prompt(str(n), "p", np.array([n + 3]), "p", "", "s") for n in range(3)]
    return SyncCheck(Rollouts(pool, None, lambda ids: [""] * len(ids)), learner, prompts, SamplingParams(10), seed=1)


def test_the_sync_check_asks_every_engine():
    learner = Learner(2)
    pool = EnginePool(InlineTransport(), specs(2, 2, 1), GATE)
    pool.load(ticket(2))
    found = check_of(pool, learner)(2)
    assert found["train/sync_tensors"] == 3 * 2
    assert found["train/sync_gap"] == 0
    assert learner.asked == [3]  # engines with the same weights say the same, and it is computed once
    assert all(member.counts.clock >= 10 for member in pool._processes.members)


def test_the_sync_check_names_the_engine_with_a_stale_tensor():
    mixed = [*specs(2, 2), HostSpec("engine-2", EngineHost, (NumberEngine, 2, ("head.weight",)))]
    pool = EnginePool(InlineTransport(), mixed, GATE)
    check = check_of(pool, Learner(0))
    pool.load(ticket(0))
    check(0)  # what it keeps is right, as yet
    pool.load(ticket(1))
    with pytest.raises(EngineError, match=r"after step 1 failed: 1 of 2 tensors of engine 2 of .*head.weight"):
        check_of(pool, Learner(1))(1)


def test_the_sync_check_names_the_engine_whose_numbers_are_off():
    class Unreadable(NumberEngine):
        def checksums(self):
            return None

    class Off(Unreadable):
        def _end(self, key, finish):
            event = super()._end(key, finish)
            return replace(event, logprobs=event.logprobs - 1)

    pool = EnginePool(InlineTransport(), specs(2, 2, kind=Unreadable), GATE)
    pool.load(ticket(0))
    assert check_of(pool, Learner(0))(0)["train/sync_tensors"] == 0
    pool = EnginePool(InlineTransport(), [*specs(2, kind=Unreadable), *specs(2, kind=Off)], GATE)
    pool.load(ticket(0))
    with pytest.raises(EngineError, match=r"sampled by engine 1 of EnginePool"):
        check_of(pool, Learner(0))(0)


def test_an_engine_lost_in_the_sync_check_is_made_good():
    transport = FaultyTransport(lambda name, method: None)
    pool = EnginePool(transport, specs(2, 2), GATE, now=transport.watch)
    pool.load(ticket(3))
    for method in ("checksums", "turn"):
        left = [1]

        def fault(name, called, left=left, method=method):
            left[0] -= called == method
            return "before" if called == method and left[0] == 0 else None

        transport.fault = fault
        assert check_of(pool, Learner(3))(3)["train/sync_gap"] == 0
    assert pool.metrics()["cluster/engine_losses"] == 2
