"""The pool: the engine contract, who gets what, and every way in which an engine can be lost."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from engine_contract import CHECKS, Subject, drain
from faults import FaultyTransport, Watch
from inline_transport import InlineTransport
from number_engine import GATE, VOCABULARY, NumberEngine, Numbers, sums, ticket, token

from dapo.engines.host import EngineHost
from dapo.engines.member import PoolLimits
from dapo.engines.pool import EnginePool
from dapo.errors import ClusterError, EngineError
from dapo.processes.transport import HostSpec
from dapo.types.batch import Key, Response, SampleRequest, SamplingParams
from dapo.types.enums import FinishReason


def specs(*slots, stale=()):
    return [HostSpec(f"engine-{n}", EngineHost, (NumberEngine, size, *stale)) for n, size in enumerate(slots)]


def make_pool(*slots, transport=None, version=0, **options):
    pool = EnginePool(transport or InlineTransport(), specs(*slots), GATE, **{"turn_steps": 4, **options})
    if version is not None:
        pool.load(ticket(version))
    return pool


def request(group, sample=0, tokens=6, **options):
    prompt = np.array([5, 6, 7])
    return SampleRequest(
        Key("train", group, sample), prompt, SamplingParams(max_tokens=tokens), 100 * group + sample, **options
    )


def work(groups=6, size=3):
    """Responses of many lengths."""
    return [request(g, i, 1 + (7 * g + 3 * i) % 23) for g in range(groups) for i in range(size)]


def check_whole(requests, events):
    """Every response once, with the tokens that only it has, behind the prefix that it was submitted with."""
    found = {event.key: event for event in events}
    assert len(found) == len(events)
    assert set(found) == {r.key for r in requests}
    for r in requests:
        begin = 0 if r.prefix is None else len(r.prefix)
        expected = [token(r.seed, t) for t in range(begin, r.sampling.max_tokens)]
        assert found[r.key].token_ids.tolist() == expected
        assert found[r.key].finish is FinishReason.LENGTH


# ---------------------------------------------------------------------- the contract


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_contract(lockstep, check):
    """In lockstep an engine has one slot; free ones differ in size."""

    def make(slots):
        sizes = (1,) * slots if lockstep else (1, slots - 1)[:slots]
        return make_pool(*sizes, turn_steps=1, lockstep=lockstep)

    subject = Subject(make, ticket)
    subject.text = Numbers.decode
    subject.bad = {
        "empty prompt": subject.request(5, prompt_ids=()),
        f"token {VOCABULARY}": subject.request(5, prompt_ids=(3, VOCABULARY)),
        "lower rollout.max_response_tokens": subject.request(5, max_tokens=5000),
    }
    check(subject)


# ---------------------------------------------------------------------- who gets what


def where(pool):
    """Group -> engine, and that no group is in two places."""
    found = {}
    for key, (index, _) in pool._owner.items():
        assert found.setdefault(key.group, index) == index
    return found


def test_a_group_goes_to_the_engine_with_the_most_room():
    pool = make_pool(2, 8, 4)
    pool.submit([request(0, i) for i in range(4)])  # all empty: the first
    assert where(pool) == {0: 0}
    pool.submit([request(1, i) for i in range(4)])
    assert where(pool)[1] == 1  # ties by number
    pool.submit([request(2, i) for i in range(4)])
    assert where(pool)[2] == 2
    # crowding: 4/2, 4/8, 4/4
    pool.submit([request(3, i) for i in range(4)])
    assert where(pool)[3] == 1
    pool.submit([request(4, i) for i in range(2)] + [request(5)])  # 2, 1, 1: ties by number, then 4/4
    assert where(pool)[4] == 1
    assert where(pool)[5] == 2
    assert pool.capacity == 14
    check_whole([request(g, i) for g in range(4) for i in range(4)] + [request(4), request(4, 1), request(5)], [
        *drain(pool).values()
    ])  # fmt: skip


def test_a_request_may_name_its_engine():
    pool = make_pool(2, 2, 2)
    pool.submit([request(g, engine=g % 3) for g in (2, 5, 8, 0)])
    assert where(pool) == {2: 2, 5: 2, 8: 2, 0: 0}


def test_a_turn_is_so_many_steps():
    pool = make_pool(4, 4, turn_steps=5, lockstep=True)
    pool.submit([request(0, tokens=12), request(1, tokens=3)])
    (event,) = pool.poll()
    assert (event.key.group, event.tick, pool.clock) == (1, 3, 5)  # what ended in the middle of it has its own tick
    (event,) = pool.poll()
    assert (event.key.group, event.tick, pool.clock) == (0, 12, 12)
    assert pool.metrics()["cluster/turns"] == 4  # one; then two that brought nothing or the end; engine 1 was idle


def test_a_time_limit_means_nothing_yet():
    """An engine that does not answer holds up nobody who asks for so long only; then it is lost."""
    transport = FaultyTransport(lambda name, method: "freeze" if (name, method) == ("engine-1", "turn") else None)
    pool = make_pool(4, 4, transport=transport, limits=PoolLimits(engine=300.0), now=transport.watch)
    requests = [request(0, tokens=30), request(1, tokens=3)]
    pool.submit(requests)
    seen = []
    for _ in range(3):
        seen += pool.poll(10.0)
    assert [event.key.group for event in seen] == [0]
    assert not transport.killed
    transport.fault = lambda name, method: None
    while len(seen) < 2:
        seen += pool.poll(10.0)
    assert transport.killed == ["engine-1"]
    assert 300.0 <= transport.watch.seconds <= 320.0
    check_whole(requests, seen)


# ---------------------------------------------------------------------- losing engines


class Once:
    """A fault at the n-th call of a method by a host."""

    def __init__(self, name, method, what, count=1):
        self.left = {(name, method): count}
        self.what = what

    def __call__(self, name, method):
        if (name, method) not in self.left:
            return None
        self.left[name, method] -= 1
        return self.what if self.left[name, method] == 0 else None


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
@pytest.mark.parametrize("what", ["before", "after", "freeze"])
def test_what_a_lost_engine_had_is_made_again(what, lockstep):
    watch = Watch()
    transport = FaultyTransport(Once("engine-1", "turn", what, 2), watch)
    pool = make_pool(3, 3, transport=transport, lockstep=lockstep, now=watch)
    prefix = Response(np.array([token(900, 0)]), np.zeros(1, np.float32), np.zeros(1, np.int32))
    requests = [*work(), request(9, 0, 9, prefix=prefix)]
    pool.submit(requests)
    check_whole(requests, [*drain(pool).values()])
    assert transport.killed == ["engine-1"]
    assert pool.members() == [0, 1]  # it is back
    metrics = pool.metrics()
    assert metrics["cluster/engine_losses"] == 1
    assert metrics["cluster/resubmitted"] > 0
    assert metrics["cluster/engines"] == 2
    assert pool.metrics()["cluster/engine_losses"] == 0  # since it was asked


def trace(pool, requests, steps=40, goes_on=lambda event: None):
    """Everything that can be seen of a pool in lockstep: what ends when, while new work comes and old is taken back."""
    seen, left, further = [], list(requests), []
    for _ in range(steps):
        pool.submit([left.pop(0) for _ in range(min(len(left), 3))] + further)
        events = pool.poll()
        further = [request for event in events if (request := goes_on(event)) is not None]
        seen.append([(e.key, e.tick, e.token_ids.tolist(), e.logprobs.tolist(), e.engine, e.finish) for e in events])
        if len(seen) % 5 == 0 and seen[-1] and left:
            seen.append([(e.key, e.token_ids.tolist()) for e in pool.abort([left[0].key, *list(pool._owner)[:2]])])
        seen.append(pool.clock)
    return seen


def going_on(requests, turns=3):
    """Requests that keep their slots, and what makes the further ones, at the engine that keeps each."""
    by_key = {request.key: replace(request, keep=True) for request in requests}
    made = {}

    def further(event):
        before = made.get(event.key, [])
        made[event.key] = [*before, event]
        if len(made[event.key]) == turns or event.finish is None:
            return None
        request = by_key[event.key]
        tokens = np.concatenate([*(each.token_ids for each in made[event.key])])
        prefix = Response(tokens, np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int32))
        sampling = replace(request.sampling, max_tokens=len(tokens) + 2 + event.key.sample)
        keep = len(made[event.key]) + 1 < turns
        return replace(request, prefix=prefix, sampling=sampling, engine=event.engine, keep=keep)

    return list(by_key.values()), further


def engines_of(transport):
    return [host.thing._engine for host in transport.hosts if not host.lost]


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_a_continuation_finds_its_slot_where_it_is(lockstep):
    transport = InlineTransport()
    pool = make_pool(2, 3, transport=transport, lockstep=lockstep)
    asked, further = going_on(work())
    pool.submit(asked)
    ended = 0
    while events := pool.poll():
        ended += len(events)
        assert {event.engine for event in events} <= {0, 1}
        pool.submit([request for event in events if (request := further(event)) is not None])
    assert ended == 3 * len(asked)
    assert sum(engine.found for engine in engines_of(transport)) == 2 * len(asked)
    assert not any(engine.kept for engine in engines_of(transport))


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
@pytest.mark.parametrize("how", ["abort one by one", "abort", "load", "sleep"])
def test_engines_hear_which_slots_to_let_go(how, lockstep):
    transport = InlineTransport()
    pool = make_pool(3, 3, transport=transport, lockstep=lockstep)
    asked = [replace(request, keep=True) for request in work()]
    pool.submit(asked)
    drain(pool)
    engines = engines_of(transport)
    assert sum(len(engine.kept) for engine in engines) == len(asked)
    if how == "load":
        pool.load(ticket(1))
    elif how == "sleep":
        pool.sleep()
    else:
        assert pool.abort(None if how == "abort" else (request.key for request in asked)) == []
        pool.submit([request(g, 7, 3) for g in range(40, 46)])  # told with the next turn
        drain(pool)
    assert not any(engine.kept for engine in engines)
    assert not any(one.work.kept or one.work.dropped or one.work.journal for one in pool._processes.members)


def test_what_an_engine_kept_when_it_was_lost_goes_on_elsewhere():
    transport = FaultyTransport(Once("engine-1", "turn", "before", 3), Watch())
    limits = PoolLimits(restarts=0)
    pool = make_pool(3, 3, transport=transport, limits=limits, now=transport.watch)
    asked, further = going_on(work())
    pool.submit(asked)
    whole = {request.key: [] for request in asked}
    while events := pool.poll():
        for event in events:
            whole[event.key] += event.token_ids.tolist()
        pool.submit([request for event in events if (request := further(event)) is not None])
    assert transport.killed == ["engine-1"]
    assert pool.members() == [0]
    for request in asked:
        assert whole[request.key] == [token(request.seed, t) for t in range(len(whole[request.key]))]


@pytest.mark.parametrize("what", ["before", "after"])
def test_in_lockstep_kept_slots_are_those_of_an_engine_that_was_not_lost(what):
    """To the last digit, which tells here whether a slot was found; engines have nothing unfinished now and then."""

    def seen(transport):
        pool = make_pool(2, 3, transport=transport, lockstep=True)
        asked, further = going_on([request(g, 0, 2 + g % 3) for g in range(4)], turns=4)
        return trace(pool, asked, steps=20, goes_on=further)

    whole = seen(InlineTransport())
    for count in range(1, 5):
        transport = FaultyTransport(Once("engine-1", "turn", what, count))
        assert seen(transport) == whole
        assert len(transport.faults) == 1


class Terse(NumberEngine):
    """Ends its responses after three tokens, once it has other weights than the first."""

    def _step(self):
        events = super()._step()
        for key in [key for key, (_, tokens, _) in self.active.items() if self.version and len(tokens) >= 3]:
            events.append(self._end(key, FinishReason.STOP))
        return events


@pytest.mark.parametrize("method", ["load", "checksums", "turn"])
def test_an_engine_lost_with_responses_of_two_weights_begins_them_again(method):
    """New weights end them earlier than the old ones did: led through its old turns, an engine would end them unheard,
    and be asked for ever for what it does not have."""
    asked = []

    def fault(name, called):
        asked.append(called)
        assert len(asked) < 100, "turns without work, and no end of them"
        return "after" if asked.count(method) == 2 and called == method else None

    spec = HostSpec("engine-0", EngineHost, (Terse, 4))
    transport = FaultyTransport(fault)
    pool = EnginePool(transport, [spec], GATE, turn_steps=4, lockstep=True)
    pool.load(ticket(0))
    pool.checksums_each()
    pool.submit([request(0, tokens=4), request(1, tokens=20), request(2, tokens=20)])
    assert [event.key.group for event in pool.poll()] == [0]
    pool.load(ticket(1), "keep")
    pool.checksums_each()
    found = drain(pool)
    assert transport.faults == [("engine-0", method, "after")]
    assert {key.group: len(event.token_ids) for key, event in found.items()} == {1: 3, 2: 3}


@pytest.mark.parametrize("what", ["before", "after"])
@pytest.mark.parametrize("method", ["turn", "abort"])
def test_in_lockstep_nothing_tells_that_an_engine_was_lost(method, what):
    whole = trace(make_pool(2, 3, lockstep=True), work(12, 4))
    for count in range(1, 9):
        transport = FaultyTransport(Once("engine-1", method, what, count))
        pool = make_pool(2, 3, transport=transport, lockstep=True)
        seen = trace(pool, work(12, 4))
        assert seen == whole
        assert len(transport.killed) == len(transport.faults)
        assert len(transport.faults) == (1 if method == "turn" or count < 3 else len(transport.faults))
        assert pool.metrics()["cluster/engine_losses"] == len(transport.faults)


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
@pytest.mark.parametrize("method", ["abort", "load", "sleep", "checksums", "describe"])
def test_an_engine_lost_in_another_call_comes_back(method, lockstep):
    """Also one that is lost again while it starts."""
    transport = FaultyTransport(lambda name, called: None)
    pool = make_pool(3, 3, transport=transport, lockstep=lockstep)
    requests = work()
    pool.submit(requests)
    ended = pool.poll()
    first = Once("engine-1", "turn" if method == "describe" else method, "before")
    second = Once("engine-1", "describe", "before", 2)
    transport.fault = lambda name, called: (
        first(name, called) or (second(name, called) if first.left and method == "describe" else None)
    )
    if method == "describe":
        ended += drain(pool).values()
    else:
        taken = pool.abort()
        assert {e.key for e in ended} | {e.key for e in taken} == {r.key for r in requests}
        pool.load(ticket(1))
        pool.sleep()
        assert pool.checksums() == sums(1)
        again = [request(g, 0, 5) for g in range(8)]
        pool.submit(again)
        events = drain(pool)
        check_whole(again, [*events.values()])
        assert {v for e in events.values() for v in e.versions.tolist()} == {1}
    assert pool.members() == [0, 1]
    assert pool.metrics()["cluster/engine_losses"] == len(transport.faults) >= 1


class Full(FaultyTransport):
    """Hosts that are started when one was lost find no place."""

    def __init__(self, first):
        super().__init__(
            lambda name, called: first(name, called) or ("freeze" if self.faults and called == "describe" else None)
        )

    def has_place(self, host):
        return id(host) not in self.frozen

    def make_room(self):
        self.fault = lambda name, called: None
        self.frozen.clear()


@pytest.mark.parametrize("method", ["turn", "abort", "checksums", "load"])
def test_in_lockstep_an_engine_without_room_is_not_waited_for(method, caplog):
    """Lost in a call; no machine has a place for the new one. When there is one, it comes back."""
    first = Once("engine-1", method, "before", 2 if method == "load" else 1)

    transport = Full(first)
    pool = make_pool(2, 2, transport=transport, lockstep=True, limits=PoolLimits(start=60.0), now=transport.watch)
    requests = work()
    pool.submit(requests)
    if method == "turn":
        ended = [*drain(pool).values()]
    else:
        ended = [*pool.poll(), *pool.abort()]
        pool.load(ticket(1))
        assert pool.checksums() == sums(1)
        left = {event.key for event in ended if event.finish is None}
        ended = [event for event in ended if event.finish is not None]
        pool.submit([request for request in requests if request.key in left])
        ended += drain(pool).values()
    check_whole(requests, ended)
    assert pool.members() == [0]
    assert transport.watch.seconds == 60.0  # once, and not for each call that it was asked
    lost = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert len(lost) == 2
    assert "made again, and it is started again (restart 1 of at most 10)" in lost[0]
    assert "no machine had a place for it within 60 s (cluster.start_timeout)" in lost[1]
    assert "are made again by the other engines, and it is started when there is one. The others do not" in lost[1]

    transport.make_room()
    pool.submit(again := [request(g, 0, 30) for g in range(20, 26)])
    check_whole(again, [*drain(pool).values()])
    assert pool.members() == [0, 1]
    assert pool.checksums_each() == dict.fromkeys((0, 1), sums(pool.version))


def test_an_engine_waits_for_a_place_as_long_as_others_work(caplog):
    """Hours, if need be: that costs no restart, and it has the weights of then when it comes."""
    transport = Full(Once("engine-1", "turn", "before"))
    limits = PoolLimits(start=60.0, restarts=1)
    pool = make_pool(2, 2, transport=transport, limits=limits, now=transport.watch)
    for version in range(1, 6):
        pool.submit(requests := work())
        ended = []
        while events := pool.poll():
            ended += events
            transport.watch.seconds += 3600.0
        check_whole(requests, ended)
        assert pool.members() == [0]
        pool.load(ticket(version))
    transport.make_room()
    pool.submit(again := [request(g, 0, 30) for g in range(20, 26)])
    check_whole(again, [*drain(pool).values()])
    assert pool.members() == [0, 1]
    assert pool.checksums_each() == dict.fromkeys((0, 1), sums(5))
    assert pool.metrics()["cluster/engine_losses"] == 1
    assert len([record for record in caplog.records if "is lost" in record.getMessage()]) == 1


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("engines", [1, 2])
def test_where_nobody_works_a_place_is_waited_for_with_an_end(engines, lockstep):
    transport = Full(lambda name, called: "before" if called == "turn" else None)
    limits = PoolLimits(start=60.0, restarts=3)
    pool = make_pool(*[2] * engines, transport=transport, lockstep=lockstep, limits=limits, now=transport.watch)
    pool.submit(work())
    with pytest.raises(EngineError, match=r"no engine .*no machine had a place .* at most 3 restarts .* 3 were made"):
        drain(pool)
    assert transport.watch.seconds == {1: 180.0, 2: 120.0}[engines]  # both wait at the same time


def test_an_engine_in_lockstep_waits_for_a_place_when_its_restarts_are_used_up():
    transport = Full(Once("engine-1", "turn", "before"))
    limits = PoolLimits(start=60.0, restarts=1)
    pool = make_pool(2, 2, transport=transport, lockstep=True, limits=limits, now=transport.watch)
    pool.submit(work())
    check_whole(work(), [*drain(pool).values()])
    assert pool.members() == [0]
    transport.make_room()
    pool.submit(again := [request(g, 0, 30) for g in range(20, 26)])
    check_whole(again, [*drain(pool).values()])
    assert pool.members() == [0, 1]


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("refused", [ClusterError("the head is gone"), OSError("no further process")])
def test_where_nothing_can_be_started_the_others_go_on(refused, lockstep, caplog):
    transport = FaultyTransport(Once("engine-1", "turn", "before"))
    pool = make_pool(3, 3, transport=transport, lockstep=lockstep)

    def start(spec):
        raise refused

    transport.start = start
    pool.submit(work())
    check_whole(work(), [*drain(pool).values()])
    assert pool.members() == [0]
    assert [record.getMessage() for record in caplog.records if "cannot be started again" in record.getMessage()] == [
        f"engine-1 cannot be started again ({refused}): the others go on"
    ]


def test_a_new_engine_must_have_the_weights_of_the_others():
    transport = FaultyTransport(Once("engine-1", "turn", "before"))
    pool = make_pool(3, 3, transport=transport, version=2, limits=PoolLimits(restarts=2))
    assert pool.checksums() == sums(2)
    stale = HostSpec("engine-1", EngineHost, (NumberEngine, 3, ("head.weight",)))
    pool._processes.members[1].spec = stale  # what comes back forgets a tensor
    pool.submit(work())
    check_whole(work(), [*drain(pool).values()])
    assert pool.members() == [0]
    assert pool.metrics()["cluster/engine_losses"] == 3  # lost, and refused twice
    assert pool.metrics()["cluster/engines"] == 1


def test_a_stale_tensor_on_one_engine_is_named():
    plain, stale = specs(2), [HostSpec("engine-1", EngineHost, (NumberEngine, 2, ("head.weight",)))]
    pool = EnginePool(InlineTransport(), plain + stale, GATE)
    pool.load(ticket(3))
    assert pool.checksums_each() == {0: sums(3), 1: {**sums(3), "head.weight": sums(0)["head.weight"]}}
    with pytest.raises(EngineError, match=r"engine-0 and engine-1.*1 tensors.*head.weight"):
        pool.checksums()


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_restarts_are_bounded_and_nothing_is_lost_when_nobody_is_left(lockstep, caplog):
    transport = FaultyTransport(lambda name, method: "before" if method == "turn" else None)
    pool = make_pool(3, 3, transport=transport, lockstep=lockstep, limits=PoolLimits(restarts=5))
    requests = work()
    pool.submit(requests)
    with pytest.raises(EngineError, match=r"no engine.*cluster.max_engine_restarts"):
        drain(pool)
    assert len(transport.faults) == 5 + 2
    for call in (lambda: pool.submit([request(99)]), lambda: pool.poll(1.0)):
        with pytest.raises(EngineError, match="no engine"):
            call()
    assert pool.capacity >= 1  # else nobody would ask it for anything, and hear of it
    events = pool.abort()
    assert [event.key for event in events] == sorted(r.key for r in requests)
    assert {(event.finish, len(event.token_ids)) for event in events} == {(None, 0)}
    assert pool.abort() == []
    with pytest.raises(EngineError, match="no engine"):
        pool.load(ticket(5))
    lost = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert len(lost) == 7  # a line each
    assert "restart 5 of at most 5" in lost[4]
    assert "not started again" in lost[6]


def test_work_waits_while_every_engine_starts():
    transport = FaultyTransport(lambda name, method: "before" if method == "turn" else None)
    pool = make_pool(2, 2, transport=transport, now=transport.watch)
    requests = work()
    pool.submit(requests)
    pool._depart()
    transport.fault = lambda name, method: "freeze" if method == "describe" else None  # starts, for a long while
    pool._hear()
    assert pool.members() == []
    assert pool.poll(5.0) == []
    pool.submit([request(50)])
    (one,) = pool.abort([requests[0].key])
    assert (one.finish, len(one.token_ids)) == (None, 0)
    transport.fault = lambda name, method: None
    transport.frozen.clear()
    check_whole([*requests[1:], request(50)], [*drain(pool).values()])


def test_weights_published_while_an_engine_starts_are_the_ones_it_gets():
    transport = FaultyTransport(Once("engine-1", "turn", "before"))
    pool = make_pool(2, 2, transport=transport)
    pool.submit(work())
    pool._depart()
    transport.fault = lambda name, method: "freeze" if method == "describe" else None
    pool._hear()
    pool.abort()
    transport.fault = lambda name, method: None
    pool.load(ticket(1))
    assert pool.members() == [0]
    pool.load(ticket(2))
    assert pool.checksums() == sums(2)
    transport.frozen.clear()
    pool.submit(work())
    events = drain(pool)
    assert pool.members() == [0, 1]
    assert {v for e in events.values() for v in e.versions.tolist()} == {2}
    pool.submit([request(0, engine=1)])
    assert drain(pool)[Key("train", 0, 0)].versions.tolist() == [2] * 6


def test_weights_that_no_engine_takes_are_refused_and_one_that_cannot_is_lost():
    class Picky(NumberEngine):
        def load(self, ticket, in_flight="abort"):
            if ticket.version in self.refuses:
                raise EngineError("they do not fit")
            super().load(ticket, in_flight)

    Picky.refuses = set()
    pool = EnginePool(InlineTransport(), [HostSpec(f"engine-{n}", EngineHost, (Picky, 2)) for n in range(2)], GATE)
    Picky.refuses = {1}
    with pytest.raises(EngineError, match="do not fit"):
        pool.load(ticket(1))
    assert pool.metrics()["cluster/engine_losses"] == 0
    Picky.refuses = set()
    pool._processes.members[1].host.thing._engine.refuses = {2}
    pool.load(ticket(2))
    assert pool.metrics()["cluster/engine_losses"] == 1
    pool.submit(work())
    drain(pool)
    assert pool.checksums() == sums(2)
    assert pool.members() == [0, 1]


def test_an_engine_that_cannot_be_made_is_told_at_once():
    def breaks(slots):
        raise EngineError("this model cannot be decoded here")

    with pytest.raises(EngineError, match="cannot be decoded"):
        EnginePool(InlineTransport(), [*specs(2), HostSpec("engine-1", EngineHost, (breaks, 2))], GATE)
    transport = FaultyTransport(lambda name, method: "freeze" if name == "engine-1" else None)
    with pytest.raises(EngineError, match=r"engine-1 did not start within 7 s \(cluster.start_timeout\)"):
        EnginePool(transport, specs(2, 2), GATE, limits=PoolLimits(start=7.0), now=transport.watch)
    with pytest.raises(EngineError, match="did not start"):
        EnginePool(FaultyTransport(lambda name, method: "before"), specs(2), GATE)


def test_an_engine_that_is_lost_while_it_starts_is_started_once_more(caplog):
    transport = FaultyTransport(Once("engine-1", "describe", "before"))
    pool = EnginePool(transport, specs(2, 2), GATE)
    assert transport.killed == ["engine-1"]
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "engine-1 is lost while it starts (engine-1 was killed); it is started once more"
    ]
    pool.load(ticket(1))
    pool.submit(work())
    check_whole(work(), [*drain(pool).values()])
    assert pool.members() == [0, 1]
    with pytest.raises(EngineError, match="did not start, twice: engine-0 was killed"):
        EnginePool(FaultyTransport(lambda name, method: "before"), specs(2), GATE)
    with pytest.raises(EngineError, match="did not start: engine-0 was killed"):
        EnginePool(
            FaultyTransport(Once("engine-0", "describe", "before")), specs(2), GATE, limits=PoolLimits(restarts=0)
        )


# ---------------------------------------------------------------------- 200 random kills


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_random_kills_lose_nothing_and_count_nothing_twice(lockstep):
    """Kills and freezes in any call, under random submits, polls with and without limits, aborts and publishes."""
    kills = 0
    for seed in range(400):
        dice = random.Random(seed)
        transport = FaultyTransport(lambda *_: None)
        limits = PoolLimits(restarts=10**6)
        pool = EnginePool(
            transport, specs(*(dice.randint(1, 4) for _ in range(dice.randint(1, 4)))), GATE,
            turn_steps=dice.choice([1, 3, 8]), lockstep=lockstep, limits=limits, now=transport.watch,
        )  # fmt: skip
        transport.fault = lambda *_, dice=dice: _fault(dice)
        _random_work(pool, dice)
        transport.fault = lambda *_: None
        while pool._processes._starting:  # what was lost while it started is found out, too
            pool._hear()
        assert len(pool.members()) == len(pool._processes.members)
        losses = pool.metrics()["cluster/engine_losses"]
        assert losses == len(transport.faults)
        kills += len(transport.faults)
        if kills >= 200 and seed >= 20:
            break
    assert kills >= 200


def _fault(dice):
    return dice.choice(["before", "after", "freeze"]) if dice.random() < 0.04 else None


def _random_work(pool, dice):
    pool.load(ticket(0))
    version, number, unfinished, partials, done = 0, 0, {}, {}, {}
    for _ in range(60):
        act = dice.random()
        if act < 0.35:
            new = [request(number, i, dice.randint(1, 25)) for i in range(dice.randint(1, 4))]
            number += 1
            unfinished |= {r.key: r for r in new}
            pool.submit(new)
        elif act < 0.8:
            for event in pool.poll(dice.choice([None, 0.0, 5.0])):
                _took(event, unfinished, partials, done)
        elif act < 0.9:
            named = None if dice.random() < 0.5 else dice.sample(sorted(unfinished), len(unfinished) // 2)
            for event in pool.abort(named):
                _took(event, unfinished, partials, done, again=pool)
        else:
            version += 1
            pool.load(ticket(version), "keep")
    while unfinished:
        for event in pool.poll():
            _took(event, unfinished, partials, done)
    assert pool.poll() == [] == pool.abort()
    for key, (tokens, limit) in done.items():
        assert tokens == [token(100 * key.group + key.sample, t) for t in range(limit)]


def _took(event, unfinished, partials, done, again=None):
    asked = unfinished.pop(event.key)
    assert event.key not in done
    tokens = partials.pop(event.key, []) + event.token_ids.tolist()
    assert event.versions.tolist() == sorted(event.versions.tolist())
    if event.finish is not None:
        done[event.key] = (tokens, asked.sampling.max_tokens)
        return
    partials[event.key] = tokens  # submitted again behind what there is
    ids = np.array(tokens, dtype=np.int64)
    prefix = Response(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))
    unfinished[event.key] = request(event.key.group, event.key.sample, asked.sampling.max_tokens, prefix=prefix)
    again.submit([unfinished[event.key]])


def test_the_pool_tells_of_each_engine_and_its_turns():
    watch = Watch()
    pool = make_pool(3, 3, transport=FaultyTransport(Once("engine-1", "turn", "before", 2), watch), now=watch)
    pool.submit(work())
    drain(pool)
    first, second = pool.processes()
    assert (first.name, first.role, first.alive, first.restarts) == ("engine-0", "engine", True, 0)
    assert (second.name, second.restarts) == ("engine-1", 1)
    assert first.machine
    assert first.process == os.getpid()
    assert first.memory_mib is None or first.memory_mib > 1
    assert first.turns
    assert all(seconds >= 0 for _, seconds in first.turns)
    assert (first.last_turn, first.turn_seconds) == (pytest.approx(sum(first.turns[-1])), first.turns[-1][1])
    assert (len(first.starts), len(second.starts)) == (1, 2)
    assert all(start > 1.7e9 and seconds >= 0 for start, seconds in second.starts)
    assert (pool.processes()[0].turns, pool.processes()[1].starts) == ((), ())  # each is told once
