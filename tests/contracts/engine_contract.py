"""What every engine promises (``dapo.types.protocols.Engine``), as one list of checks over a factory.

A test file of an engine makes a ``Subject`` and runs ``CHECKS``:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, subject):
        check(subject)

What an engine cannot do is said by the subject's flags, so that a check is left out by name and not by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from dapo.errors import EngineError
from dapo.types.batch import MODEL, Response, SampleRequest, SamplingParams, TensorSum, Turn
from dapo.types.enums import FinishReason

COUNTERS = {"decode_steps", "generated_tokens", "prefill_tokens", "slot_steps", "busy_slot_steps"}


@dataclass
class Subject:
    """One engine under test."""

    make: Callable[..., Any]  # make(slots=...) -> a new engine to which version 0 was published
    weights: Callable[[int], Any]  # number -> a ticket of that version; other numbers, other weights
    prompt: Sequence[int] = (5, 6, 7)
    bad: dict[str, SampleRequest] = field(default_factory=dict)  # requests to refuse, by a word of the message
    repeats: bool = True  # a token is a function of (seed, t): also behind a prefix, and whatever decodes beside it
    stops: bool = True  # knows stop tokens
    text: Callable[[list[int]], str] | None = None  # tokens as its tokenizer reads them; None: it has none
    keeps: bool = True  # publishes with in_flight="keep"
    stepwise: bool = True  # a poll returns in the middle of longer responses
    counts: bool = True  # counters are in tokens and decode steps
    standing: Callable[[], AbstractContextManager[Any]] = nullcontext  # what works by itself ends no response meanwhile
    keeps_slots: Callable[[Any], int] | None = None  # counts an engine's kept slots; None: it keeps none
    plain: Callable[[int, Sequence[int], Sequence[int]], Any] | None = None
    """plain(version, prompt, response) -> log-probabilities of a plain forward pass; None: there is no model."""

    def request(self, group: int, index: int = 0, **options: Any) -> SampleRequest:
        prefix, priority = options.pop("prefix", None), options.pop("priority", 0)
        keep = options.pop("keep", False)
        prompt = np.array(options.pop("prompt_ids", self.prompt), dtype=np.int64)
        sampling = SamplingParams(**({"max_tokens": 6, "stop_token_ids": ()} | options))
        return SampleRequest((group, index), prompt, sampling, 1000 * group + index, prefix, priority, keep=keep)


def drain(engine: Any) -> dict[Any, Any]:
    """Everything to the end; no key comes twice, every poll is in the order of (tick, key)."""
    found: dict[Any, Any] = {}
    while events := engine.poll():
        assert [(e.tick, e.key) for e in events] == sorted((e.tick, e.key) for e in events)
        for event in events:
            assert event.key not in found
            assert event.tick <= engine.clock
            found[event.key] = event
    assert engine.poll() == []
    return found


def tokens_of(events: dict[Any, Any]) -> dict[Any, list[int]]:
    return {key: event.token_ids.tolist() for key, event in events.items()}


def partial_of(event: Any, cut: int | None = None) -> Response:
    return Response(event.token_ids[:cut], event.logprobs[:cut], event.versions[:cut])


def every_request_comes_back_once(s: Subject) -> None:
    engine = s.make(slots=3)
    engine.submit([])
    assert engine.poll() == [] == engine.abort()
    limits = {(g, i): 1 + (3 * g + i) % 5 for g in range(4) for i in range(2)}
    engine.submit([s.request(*key, max_tokens=n) for key, n in limits.items()])
    events = drain(engine)
    assert {key: len(event.token_ids) for key, event in events.items()} == limits
    for event in events.values():
        assert event.finish is FinishReason.LENGTH
        assert event.reason is None
        assert event.token_ids.dtype in (np.int64, np.int32)  # the latter from another process
        assert (event.logprobs.dtype, event.versions.dtype) == (np.float32, np.int32)
        assert len(event.logprobs) == len(event.versions) == len(event.token_ids)
        assert (event.logprobs <= 0).all()


def the_clock_grows_while_responses_end(s: Subject) -> None:
    engine, before = s.make(slots=1), -1
    engine.submit([s.request(g, max_tokens=2 + g) for g in range(3)])
    ticks = []
    while events := engine.poll():
        assert engine.clock > before
        before = engine.clock
        ticks += [event.tick for event in events]
    assert len(ticks) == 3
    assert ticks == sorted(ticks)


def a_key_that_has_not_come_back_is_refused(s: Subject) -> None:
    engine = s.make(slots=2)
    engine.submit([s.request(g) for g in range(4)])
    for group in range(4):
        with pytest.raises(EngineError, match=rf"\({group}, 0\).*twice"):
            engine.submit([s.request(group)])
    assert set(drain(engine)) == {(g, 0) for g in range(4)}
    engine.submit([s.request(0)])  # came back: free again
    engine.abort()
    engine.submit([s.request(0)])
    assert set(drain(engine)) == {(0, 0)}


def a_key_whose_prefix_is_whole_is_refused_twice_too(s: Subject) -> None:
    engine = s.make(slots=2)
    engine.submit([s.request(0)])
    whole = s.request(0, prefix=partial_of(drain(engine)[0, 0]))
    engine.submit([whole])
    for again in (whole, s.request(0)):
        with pytest.raises(EngineError, match="twice"):
            engine.submit([again])
    with pytest.raises(EngineError, match="twice"):
        engine.submit([replace(whole, key=(7, 7)), replace(whole, key=(7, 7))])
    events = drain(engine)
    assert set(events) == {(0, 0)}
    assert (len(events[0, 0].token_ids), events[0, 0].finish) == (0, FinishReason.LENGTH)


def a_list_is_taken_whole_or_not_at_all(s: Subject) -> None:
    engine = s.make(slots=2)
    good = [s.request(0), s.request(1)]
    with pytest.raises(EngineError, match="twice"):
        engine.submit([*good, s.request(0)])
    assert engine.poll() == [] == engine.abort()
    for word, bad in s.bad.items():
        with pytest.raises(EngineError, match=word):
            engine.submit([*good, bad])
        assert engine.poll() == [] == engine.abort()
    engine.load(s.weights(1))  # nothing is unfinished
    engine.submit(good)
    assert len(drain(engine)) == 2


def abort_gives_back_everything_once(s: Subject) -> None:
    engine = s.make(slots=2)
    engine.submit([s.request(g, i, max_tokens=20) for g in range(3) for i in (1, 0)])
    events = engine.abort()
    assert [event.key for event in events] == [(g, i) for g in range(3) for i in (0, 1)]  # by key
    assert all(e.finish is None or len(e.token_ids) == 20 for e in events)
    assert engine.abort() == [] == engine.poll()


def abort_takes_the_named_ones_only(s: Subject) -> None:
    engine = s.make(slots=2)
    engine.submit([s.request(g, max_tokens=20) for g in range(5)])
    assert engine.abort([]) == []
    assert engine.abort(iter([(9, 9)])) == []  # any iterable; unknown keys are none of its business
    events = engine.abort(key for key in [(4, 0), (1, 0), (9, 9)])
    assert [event.key for event in events] == [(1, 0), (4, 0)]
    rest = drain(engine)
    assert set(rest) == {(0, 0), (2, 0), (3, 0)}
    assert {len(event.token_ids) for event in rest.values()} == {20}


def abort_gives_back_what_ended_and_was_not_polled(s: Subject) -> None:
    engine = s.make(slots=2)
    engine.submit([s.request(g) for g in range(2)])
    events = drain(engine)
    whole = [s.request(g, prefix=partial_of(events[g, 0])) for g in range(2)]
    engine.submit([*whole, s.request(2, max_tokens=20)])
    (one,) = engine.abort([(1, 0)])
    assert (one.key, one.finish, len(one.token_ids)) == ((1, 0), FinishReason.LENGTH, 0)
    rest = engine.abort()
    assert [event.key for event in rest] == [(0, 0), (2, 0)]
    assert rest[0].finish is FinishReason.LENGTH
    assert engine.poll() == []


def what_was_aborted_continues_behind_its_prefix(s: Subject) -> None:
    engine = s.make(slots=2)
    requests = [s.request(g, max_tokens=3 + 9 * (g > 0)) for g in range(3)]
    engine.submit(requests)
    whole = tokens_of(drain(engine))
    engine.submit(requests)
    ended = {event.key: event for event in engine.poll()}
    taken = {event.key: event for event in engine.abort()}
    assert set(ended) | set(taken) == set(whole)
    if s.stepwise:
        assert any(0 < len(event.token_ids) < 12 for event in taken.values())
    engine.submit([replace(r, prefix=partial_of(taken[r.key])) for r in requests if r.key in taken])
    rest = drain(engine)
    assert set(rest) == set(taken)
    for key in taken:
        tokens = taken[key].token_ids.tolist() + rest[key].token_ids.tolist()
        assert len(tokens) == len(whole[key])
        if s.repeats:
            assert tokens == whole[key]


def neither_slots_nor_order_change_a_response(s: Subject) -> None:
    if not s.repeats:
        return
    found = []
    for slots, order in ((1, 1), (3, -1), (8, 1)):
        engine = s.make(slots=slots)
        engine.submit([s.request(g, i, max_tokens=2 + 3 * g) for g in range(3) for i in range(2)][::order])
        found.append(tokens_of(drain(engine)))
    assert found[0] == found[1] == found[2]


def a_stop_token_ends_a_response(s: Subject) -> None:
    if not s.stops:
        return
    engine = s.make(slots=2)
    engine.submit([s.request(0, max_tokens=8)])
    free = tokens_of(drain(engine))[0, 0]
    stop = next(token for token in free[1:] if token != free[0])
    end = free.index(stop) + 1
    engine.submit([s.request(0, max_tokens=8, stop_token_ids=(stop,)), s.request(1, max_tokens=8)])
    events = drain(engine)
    assert events[0, 0].token_ids.tolist() == free[:end]  # the stop token is part of it
    assert (events[0, 0].finish, events[1, 0].finish) == (FinishReason.STOP, FinishReason.LENGTH)
    done = s.request(0, max_tokens=8, stop_token_ids=(stop,), prefix=partial_of(events[0, 0]))
    engine.submit([done])
    assert [(e.finish, len(e.token_ids)) for e in engine.poll()] == [(FinishReason.STOP, 0)]


def a_stop_string_ends_a_response(s: Subject) -> None:
    """With the token that completes it, though it begins in the one before; what follows in that token is sampled."""
    if s.text is None:
        return
    engine = s.make(slots=2)
    engine.submit([s.request(0, max_tokens=12)])
    free = tokens_of(drain(engine))[0, 0]
    texts = [s.text(free[:count]) for count in range(13)]
    end, stop = next(
        (end, string)
        for end in range(3, 12)
        if (string := texts[end][len(texts[end - 1]) - 1 : len(texts[end - 1]) + 2]) not in texts[end - 1]
    )
    engine.submit([s.request(0, max_tokens=12, stop=("no such", stop)), s.request(1, max_tokens=12, stop=("no such",))])
    events = drain(engine)
    assert events[0, 0].token_ids.tolist() == free[:end]
    assert len(events[0, 0].logprobs) == len(events[0, 0].versions) == end
    assert (events[0, 0].finish, events[1, 0].finish) == (FinishReason.STOP, FinishReason.LENGTH)
    engine.submit([s.request(0, max_tokens=end, stop=(stop,))])
    assert drain(engine)[0, 0].finish is FinishReason.STOP  # at the limit
    engine.submit([s.request(0, max_tokens=12, stop=(stop,), prefix=partial_of(events[0, 0]))])
    assert [(e.finish, len(e.token_ids)) for e in engine.poll()] == [(FinishReason.STOP, 0)]
    if s.repeats:
        engine.submit([s.request(0, max_tokens=12, stop=(stop,), prefix=partial_of(events[0, 0], end - 1))])
        (rest,) = drain(engine).values()
        assert (rest.token_ids.tolist(), rest.finish) == (free[end - 1 : end], FinishReason.STOP)


def a_stop_is_looked_for_in_the_present_turn_alone(s: Subject) -> None:
    """Of an episode: neither a reply that ends with a stop token or string, nor an earlier turn, ends the next one."""
    if not s.stops:
        return
    engine = s.make(slots=2)
    engine.submit([s.request(0, max_tokens=3)])
    first = drain(engine)[0, 0]
    stop, reply = int(first.token_ids[-1]), first.token_ids[1:]
    prefix = Response(
        np.concatenate([first.token_ids, reply]),
        np.concatenate([first.logprobs, np.zeros(2, np.float32)]),
        np.concatenate([first.versions, first.versions[-1:].repeat(2)]),
        np.array([True] * 3 + [False] * 2),
        turns=(Turn(0, 3, MODEL, ""), Turn(3, 5, "user", "")),
    )
    engine.submit([s.request(0, max_tokens=10, prefix=prefix)])
    free = tokens_of(drain(engine))[0, 0]
    assert len(free) == 5
    engine.submit([s.request(0, max_tokens=10, prefix=prefix, stop_token_ids=(stop,))])
    event = drain(engine)[0, 0]
    assert len(event.token_ids) >= 1
    if s.repeats:
        assert event.token_ids.tolist() == (free[: free.index(stop) + 1] if stop in free else free)
    if s.text is None:
        return
    before, after = s.text(prefix.token_ids.tolist()), s.text(free)
    pairs = [before[place : place + 2] for place in range(len(before) - 1)]
    # a token of the turn could complete it, so an engine has to look where it begins
    likely = [pair for pair in pairs if pair not in after and any(pair[-1] in s.text([one]) for one in free[:-1])]
    string = (likely or pairs)[0]
    engine.submit([s.request(0, max_tokens=10, prefix=prefix, stop=(string,))])
    event = drain(engine)[0, 0]
    assert len(event.token_ids) >= 1
    if s.repeats:
        ends = [count for count in range(1, 6) if string in s.text(free[:count])]
        assert event.token_ids.tolist() == free[: ends[0] if ends else 5]


def smaller_priority_goes_first(s: Subject) -> None:
    engine = s.make(slots=1)
    engine.submit([s.request(g, priority=p) for g, p in enumerate((1, 1, 0))])
    order = []
    while events := engine.poll():
        order += [event.key[0] for event in events]
    assert order == [2, 0, 1]


def publish_waits_for_nobody(s: Subject) -> None:
    """With ``abort`` it refuses while responses are unfinished, and changes nothing."""
    engine = s.make(slots=1)
    with s.standing():
        engine.submit([s.request(g, max_tokens=5) for g in range(2)])
        with pytest.raises(EngineError, match="abort"):
            engine.load(s.weights(1))
    events = drain(engine)
    assert {version for event in events.values() for version in event.versions.tolist()} == {0}
    engine.submit([s.request(0, prefix=Response(*(x[:0] for x in vars_of(events[0, 0]))))])
    engine.abort()
    engine.submit([s.request(0, max_tokens=5, prefix=partial_of(events[0, 0]))])
    engine.load(s.weights(1))  # ended, though not polled: not unfinished
    assert set(drain(engine)) == {(0, 0)}


def vars_of(event: Any) -> tuple[Any, Any, Any]:
    return event.token_ids, event.logprobs, event.versions


def tokens_carry_the_version_that_made_them(s: Subject) -> None:
    engine = s.make(slots=2)
    for version in (3, 7):
        engine.load(s.weights(version))
        engine.sleep()
        engine.load(s.weights(version))  # what comes after sleep
        engine.submit([s.request(g) for g in range(3)])
        for event in drain(engine).values():
            assert set(event.versions.tolist()) == {version}


def kept_responses_change_version_in_the_middle(s: Subject) -> None:
    if not s.keeps:
        return
    engine = s.make(slots=2)
    engine.submit([s.request(g, max_tokens=3 + 12 * g) for g in range(3)])
    events = {event.key: event for event in engine.poll()}
    engine.load(s.weights(1), in_flight="keep")
    rest = drain(engine)
    assert set(rest) | set(events) == {(0, 0), (1, 0), (2, 0)}
    for event in rest.values():
        versions = event.versions.tolist()
        assert versions == sorted(versions)
        assert set(versions) <= {0, 1}
    if s.stepwise:
        assert set(rest[1, 0].versions.tolist()) == {0, 1}
        assert set(rest[2, 0].versions.tolist()) == {1}


def tokens_have_the_logprobs_of_the_version_that_they_carry(s: Subject) -> None:
    """Weights change twice while responses run: behind prefixes too, and a group of which one member still waits."""
    if not s.keeps or s.plain is None:
        return
    engine = s.make(slots=5)
    prefix = Response(np.array([9, 11, 9]), np.zeros(3, np.float32), np.zeros(3, np.int32))
    requests = [s.request(0, max_tokens=4), s.request(0, 1, max_tokens=9), s.request(0, 2, max_tokens=90)]
    requests += [s.request(1, max_tokens=90, prefix=prefix), s.request(2, max_tokens=90, prompt_ids=(7,) * 9)]
    requests += [s.request(0, 3, max_tokens=90)]
    engine.submit(requests)
    events = {}
    for version in (9, 25):
        events |= {event.key: event for event in engine.poll()}
        engine.load(s.weights(version), in_flight="keep")
    events |= drain(engine)
    assert set(events) == {request.key for request in requests}
    if s.stepwise:
        assert [set(events[key].versions.tolist()) for key in ((0, 1), (0, 2), (0, 3))] == [{0, 9}, {0, 9, 25}, {9, 25}]
    for request in requests:
        event, made = events[request.key], 0 if request.prefix is None else len(request.prefix)
        response = [*([] if request.prefix is None else request.prefix.token_ids), *event.token_ids]
        for version in set(event.versions.tolist()):
            own = event.versions == version
            expected = s.plain(version, request.prompt_ids, response)[made:]
            np.testing.assert_allclose(event.logprobs[own], expected[own], atol=1e-4)


def events_belong_to_the_receiver(s: Subject) -> None:
    engine = s.make(slots=2)
    engine.submit([s.request(g, max_tokens=2 + g) for g in range(3)])
    first = engine.poll()
    kept = [tuple(x.copy() for x in vars_of(event)) for event in first]
    drain(engine)
    engine.load(s.weights(1))
    engine.submit([s.request(g, max_tokens=8) for g in range(3)])
    drain(engine)
    for event, copies in zip(first, kept, strict=True):
        for now, then in zip(vars_of(event), copies, strict=True):
            np.testing.assert_array_equal(now, then)


def counters_count(s: Subject) -> None:
    engine = s.make(slots=2)
    before = engine.stats()
    assert set(before) == COUNTERS
    engine.submit([s.request(g, max_tokens=2 + g) for g in range(4)])
    events = drain(engine)
    after = engine.stats()
    assert all(after[name] >= before[name] for name in COUNTERS)
    assert after["busy_slot_steps"] <= after["slot_steps"]
    if s.counts:
        made = sum(len(event.token_ids) for event in events.values())
        assert after["generated_tokens"] - before["generated_tokens"] == made
        steps = after["decode_steps"] - before["decode_steps"]
        assert engine.capacity * steps >= made - len(events)  # a prefill may make the first token of each


def checksums_are_numbers_or_none(s: Subject) -> None:
    engine = s.make(slots=2)
    found = engine.checksums()
    if found is not None:
        assert found
        assert all(isinstance(one, TensorSum) and isinstance(one.value, int) for one in found.values())
        engine.load(s.weights(1))
        assert engine.checksums() != found
    assert isinstance(engine.shares_weights, bool)
    assert engine.capacity >= 1


def close_drops_what_is_unfinished_and_may_come_twice(s: Subject) -> None:
    engine = s.make(slots=1)
    engine.submit([s.request(g, max_tokens=20) for g in range(3)])
    engine.close()
    engine.close()


def a_time_limit_loses_nothing(subject: Subject) -> None:
    """What a poll with a limit does not bring comes later; an empty answer means nothing yet."""
    engine = subject.make(slots=4)
    engine.submit([subject.request(group) for group in range(3)])
    early = {event.key for event in engine.poll(0.0)}
    late = set(drain(engine))
    assert not early & late
    assert early | late == {(group, 0) for group in range(3)}
    engine.close()


def answered(before: Response | None, event: Any, reply: Sequence[int]) -> Response:
    """What the environment continues: a turn of the model, and its reply."""
    none = Response(*(x[:0] for x in vars_of(event)))
    before, count = none if before is None else before, len(reply)
    ids = np.concatenate([before.token_ids, event.token_ids, reply])
    start, stop = len(before) + len(event.token_ids), len(ids)
    own = np.ones(len(before), np.bool_) if before.generated is None else before.generated
    return Response(
        ids,
        np.concatenate([before.logprobs, event.logprobs, np.zeros(count, np.float32)]),
        np.concatenate([before.versions, event.versions, event.versions[-1:].repeat(count)]),
        generated=np.concatenate([own, np.ones(len(event.token_ids), np.bool_), np.zeros(count, np.bool_)]),
        turns=(*before.turns, Turn(len(before), start, MODEL, ""), Turn(start, stop, "user", "")),
    )


def episodes(
    s: Subject, engine: Any, *, keep: bool, between: Callable[[int], None] = lambda turn: None
) -> dict[Any, Any]:
    """Play three turns of episodes of many lengths; returns their prefixes with the last turn in it."""
    keys, prefixes = [(g, i) for g in range(2) for i in range(3)], dict[Any, Any]()
    for turn in range(3):
        requests = [
            s.request(*key, max_tokens=3 + key[1] + (len(prefixes[key]) if turn else 0), prefix=prefixes.get(key),
                      keep=keep and turn < 2, prompt_ids=tuple(range(5, 8 + 4 * key[0])))
            for key in keys
        ]  # fmt: skip
        engine.submit(requests)
        events = drain(engine)
        for key in keys:
            reply = [7 + key[0] + turn, 9, 11, 8][: 1 + (turn + key[1]) % 4] if turn < 2 else []
            prefixes[key] = answered(prefixes.get(key), events[key], np.array(reply, dtype=np.int64))
        between(turn)
    return prefixes


def a_kept_slot_changes_no_response(s: Subject) -> None:
    """A turn behind a kept slot has the tokens and log-probabilities of one without, and only the reply is computed."""
    if not s.repeats:
        return
    plain = s.make(slots=4)
    expected = episodes(s, plain, keep=False)
    engine = s.make(slots=4)
    found = episodes(s, engine, keep=True)
    for key, whole in expected.items():
        assert found[key].token_ids.tolist() == whole.token_ids.tolist()
        np.testing.assert_allclose(found[key].logprobs, whole.logprobs, atol=1e-5)
        if s.plain is not None:
            own, prompt = found[key].generated, range(5, 8 + 4 * key[0])
            again = s.plain(0, prompt, found[key].token_ids)
            np.testing.assert_allclose(found[key].logprobs[own], again[own], atol=1e-5)
    if s.keeps_slots is not None:
        assert s.keeps_slots(engine) == 0
        replies = sum(int((~whole.generated).sum()) for whole in found.values())
        assert engine.stats()["prefill_tokens"] == 3 + 7 + replies
        assert plain.stats()["prefill_tokens"] > 2 * (3 + 7 + replies)


def kept_slots_are_let_go(s: Subject) -> None:
    """By ``abort``, new weights, ``sleep`` and ``close``; what goes on then has the keys of the new weights."""
    engine, kept = s.make(slots=4), s.keeps_slots or (lambda engine: 0)
    many = 6 if s.keeps_slots is not None else 0

    def count(turn: int) -> None:
        assert kept(engine) == (many if turn < 2 else 0)

    episodes(s, engine, keep=True, between=count)
    for end in (
        lambda: engine.abort([(g, i) for g in range(2) for i in range(3)]),
        engine.abort,
        lambda: engine.load(s.weights(1)),
        engine.sleep,
        engine.close,
    ):
        engine.submit([s.request(g, i, keep=True) for g in range(2) for i in range(3)])
        drain(engine)
        assert kept(engine) == many
        end()
        assert kept(engine) == 0
    if not s.repeats:
        return
    engine = s.make(slots=4)

    def new_weights(turn: int) -> None:
        engine.load(s.weights(2 + turn), in_flight="keep" if s.keeps else "abort")

    found = episodes(s, engine, keep=True, between=new_weights)
    for key, whole in found.items():
        for version in set(whole.versions.tolist()) if s.plain is not None else ():
            own = whole.generated & (whole.versions == version)
            again = s.plain(version, range(5, 8 + 4 * key[0]), whole.token_ids)
            np.testing.assert_allclose(whole.logprobs[own], again[own], atol=1e-5)


CHECKS: list[Callable[[Subject], None]] = [
    every_request_comes_back_once,
    a_time_limit_loses_nothing,
    the_clock_grows_while_responses_end,
    a_key_that_has_not_come_back_is_refused,
    a_key_whose_prefix_is_whole_is_refused_twice_too,
    a_list_is_taken_whole_or_not_at_all,
    abort_gives_back_everything_once,
    abort_takes_the_named_ones_only,
    abort_gives_back_what_ended_and_was_not_polled,
    what_was_aborted_continues_behind_its_prefix,
    neither_slots_nor_order_change_a_response,
    a_stop_token_ends_a_response,
    a_stop_string_ends_a_response,
    a_stop_is_looked_for_in_the_present_turn_alone,
    smaller_priority_goes_first,
    publish_waits_for_nobody,
    tokens_carry_the_version_that_made_them,
    kept_responses_change_version_in_the_middle,
    tokens_have_the_logprobs_of_the_version_that_they_carry,
    events_belong_to_the_receiver,
    counters_count,
    checksums_are_numbers_or_none,
    close_drops_what_is_unfinished_and_may_come_twice,
    a_kept_slot_changes_no_response,
    kept_slots_are_let_go,
]
