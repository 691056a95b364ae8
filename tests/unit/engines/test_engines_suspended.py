"""The embedded engine goes on in another process, after any step, as if nothing had happened: to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_requests import request

from dapo.checkpoint.tree import load_tree, save_tree
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.generate import GenerateEngine
from dapo.types.batch import Key


def requests(count, **sampling):
    """Groups of three behind prompts of some and of many tokens; every fourth response is long."""
    found = []
    for group in range(count // 3 + 1):
        for index in range(3):
            long = 90 if (group + index) % 4 == 0 else 10 + 7 * index
            made = request(group, index, **{"max_tokens": long, "stop_token_ids": (1,), **sampling})
            found.append(replace(made, key=Key("train", group, index), priority=group))
    return found[:count]


def seen(key, tick, whole, finish):
    versions = (whole.token_ids.tolist(), whole.logprobs.tobytes(), whole.versions.tolist())
    return key, tick, versions, finish


def ended(engine, asked, start=0):
    """Every response, in the order in which they end, with the step at which it did."""
    found = []
    while events := engine.poll():
        found += [
            seen(event.key, event.tick - start, event.behind(asked[event.key].prefix), event.finish) for event in events
        ]
    return found


def steps_of(engine, count):
    """Let the engine make ``count`` steps, by itself."""
    events = []
    for _ in range(count):
        events += engine.poll(0.0)
    return events


def cut_off(make, asked, at, folder):
    """Run ``at`` steps, write down how the engine stands, and go on with another one."""
    engine = make()
    engine.submit(list(asked.values()))
    before = [seen(event.key, event.tick, event.behind(None), event.finish) for event in steps_of(engine, at)]
    clock, state = engine.clock, engine.suspended()
    left = {}
    for event in engine.abort():
        assert event.finish is None
        whole = event.behind(None)
        left[event.key] = replace(asked[event.key], prefix=whole if len(whole) else None)
    save_tree(state, folder, "engine")  # what the engine does after it was asked changes nothing
    other = make()
    other.submit([request(99)])  # what a check of the weights leaves behind
    while other.poll():
        pass
    start = other.clock - clock
    other.submit([left[key] for key in asked if key in left])
    assert other.resume(load_tree(folder, "engine"))
    return before + ended(other, left, start)


@pytest.mark.parametrize(
    ("slots", "count", "options"),
    [
        (4, 15, {}),
        (48, 75, {}),  # a few free slots wait for company
        (7, 18, {"temperature": 0.7, "top_p": 0.9}),
    ],
)
def test_what_is_cut_off_after_any_step_goes_on_to_the_bit(model, tmp_path, slots, count, options):
    def make():
        return EmbeddedEngine(model("llama"), slots=slots)

    asked = {each.key: each for each in requests(count, **options)}
    engine = make()
    engine.submit(list(asked.values()))
    expected = ended(engine, asked)
    assert len(expected) == count
    for at in [0, *range(1, engine.clock, 3), engine.clock]:
        assert cut_off(make, asked, at, tmp_path) == expected, f"after {at} of {engine.clock} steps"


def test_bfloat16_keys_and_values_go_on_to_the_bit(fresh, tmp_path):
    loaded = fresh("llama", dtype=torch.bfloat16)
    asked = {each.key: each for each in requests(9)}
    engine = EmbeddedEngine(loaded, slots=4)
    engine.submit(list(asked.values()))
    expected = ended(engine, asked)
    assert cut_off(lambda: EmbeddedEngine(loaded, slots=4), asked, 17, tmp_path) == expected


def test_an_engine_that_is_another_one_takes_the_requests_and_not_the_state(model):
    engine = EmbeddedEngine(model("llama"), slots=4)
    asked = {each.key: each for each in requests(6)}
    engine.submit(list(asked.values()))
    steps_of(engine, 5)
    state = engine.suspended()
    left = [
        replace(asked[event.key], prefix=whole if len(whole := event.behind(None)) else None)
        for event in engine.abort()
    ]
    for other in (
        EmbeddedEngine(model("llama"), slots=5),
        EmbeddedEngine(model("llama", num_key_value_heads=4), slots=4),
    ):
        other.submit(left)
        assert not other.resume(state)
        assert {event.key for event in iter_events(other)} == {each.key for each in left}


@pytest.mark.parametrize(("before", "after"), [(2000, 400), (400, 2000)])
def test_an_engine_for_other_lengths_has_other_pools_and_takes_the_requests_alone(model, before, after):
    """Of 64, 256 and 2000 tokens in one, of 64 and 400 in the other."""
    engine = EmbeddedEngine(model("llama"), slots=2, longest=before)
    asked = replace(request(0, 0, max_tokens=330, stop_token_ids=()), key=Key("train", 0, 0))
    engine.submit([asked])
    steps_of(engine, 300)
    state = engine.suspended()
    (event,) = engine.abort()
    other = EmbeddedEngine(model("llama"), slots=2, longest=after)
    other.submit([replace(asked, prefix=event.behind(None))])
    assert not other.resume(state)
    (end,) = iter_events(other)
    assert len(end.behind(event.behind(None))) == 330


def iter_events(engine):
    while events := engine.poll():
        yield from events


def test_generate_needs_nothing_but_its_requests(model):
    engine = GenerateEngine(model("llama"), slots=4)
    assert engine.suspended() == {}
    assert engine.resume({})


def test_nothing_is_kept_of_a_cache_beside_turns(model):
    engine = EmbeddedEngine(model("llama"), slots=4, keeps=True)
    engine.submit([replace(each, keep=True) for each in requests(3)])
    while not len(engine.kept):
        engine.poll(0.0)
    assert engine.suspended() is None
