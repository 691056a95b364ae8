"""Hundreds of random schedules: exactly P groups, none trained twice, none lost, none too old, all tokens accounted."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick import quick
from scripted import make_collector, random_world, ticket

from dapo.checkpoint.tree import load_tree, save_tree
from dapo.loop.sampling.account import FATES
from dapo.types.enums import Disposition, Verdict
from dapo.types.seeds import derive_seed

STEPS = 6


@st.composite
def worlds(draw):
    """Lengths, latencies and scores of a random world, and a collector's settings for it."""
    seed = draw(st.integers(0, 2**32))
    length, accuracy = random_world(seed, kept=draw(st.floats(0.15, 1.0)), mean_length=draw(st.sampled_from([3, 12])))
    slow = draw(st.integers(0, 9))
    return {
        "length": length,
        "accuracy": accuracy,
        "delay": lambda g, i: derive_seed(seed, 7, g, i) % (slow + 1),
        "prompts": draw(st.integers(1, 5)),
        "group": draw(st.integers(2, 4)),
        "capacity": draw(st.integers(1, 40)),
        "lag": draw(st.integers(0, 7)),
        "unfinished": draw(st.sampled_from(["carry", "carry", "drain", "discard"])),
        "surplus": draw(st.sampled_from(["carry", "carry", "discard"])),
        "max_age": draw(st.integers(0, 3)),
        "on_max_age": draw(st.sampled_from(["wait", "wait", "drop"])),
        "oversample": draw(st.sampled_from([None, None, 1.0, 3.0])),
        "lookahead": draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])),
        "cap": {"groups": None},
        "distinct": draw(st.sampled_from([None, 9])),
        "selection": {
            "retire": draw(st.sampled_from([None, {"at": 0.75, "review": 0.3}])),
            "greso": draw(st.sampled_from([None, {}])),
        },
    }


def ids(batch):
    return [group.id for group in batch.groups_P]


def check_batch(batch, world, step):
    assert len(batch.groups_P) == world["prompts"]
    assert ids(batch) == sorted(ids(batch))
    for group in batch.groups_P:
        assert group.verdict is Verdict.KEPT
        assert 0 <= step - group.born <= world["max_age"]
        for i, completion in enumerate(group.completions_G):
            whole = [group.id * 1000 + i * 100 + t for t in range(world["length"](group.id, i))]
            assert list(completion.token_ids) == whole
            assert list(completion.versions) == sorted(completion.versions)
            assert completion.versions[-1] <= step - 1


def check_account(collector, batch, trained, finished):
    metrics = batch.metrics
    spent = sum(metrics[f"total/cost/{fate}_tokens"] for fate in FATES)
    assert spent + metrics["cost/held_tokens"] == collector.engine.generated == metrics["counters/generated_tokens"]
    ended = sum(metrics[f"total/groups/{d}"] for d in Disposition if d is not Disposition.CARRIED)
    held = {g.id for g in collector.kept} | set(collector.open)
    assert metrics["total/groups/dispatched"] == ended + len(held)
    assert metrics["total/groups/trained"] == len(trained)
    assert not set(trained) & held
    dropped = {i for i, g in finished.items() if g.disposition in (Disposition.DISCARDED, Disposition.EXPIRED)}
    lost = set(range(collector.next_group)) - set(trained) - held - dropped
    if collector.settings.unfinished != "discard" and collector.settings.on_max_age == "wait":
        assert not lost
        if collector.settings.surplus == "carry":  # what was good was trained or is held
            assert all(finished[i].verdict is not Verdict.KEPT for i in dropped)


@given(world=worlds())
def test_a_synchronous_run_over_any_schedule(world):
    collector = make_collector(**world)
    trained, finished = [], {}
    for step in range(1, STEPS + 1):
        collector.engine.load(ticket(step - 1))
        batch = collector.collect(step)
        check_batch(batch, world, step)
        trained += ids(batch)
        assert len(set(trained)) == len(trained)
        finished |= {g.id: g for g in batch.finished}
        assert not collector.engine.active  # nothing decodes while the learner works
        assert not collector.engine.queue
        check_account(collector, batch, trained, finished)


@given(world=worlds(), pumps=st.lists(st.integers(0, 12), min_size=STEPS, max_size=STEPS))
def test_an_asynchronous_driver_turns_the_same_crank(world, pumps):
    """Generation of the next step goes on while the learner works: the same collector, other hands."""
    collector = make_collector(**world)
    trained = []
    collector.begin(1)
    for step in range(1, STEPS + 1):
        while not collector.ready():
            assert collector.pump()
        batch = collector.take()
        check_batch(batch, world, step)
        trained += ids(batch)
        collector.begin(step + 1)
        for _ in range(pumps[step - 1]):
            collector.pump()
        collector.engine.load(ticket(step), in_flight="keep")
    assert len(set(trained)) == len(trained)
    collector.pause()
    total = collector.account.totals
    spent = sum(total[f"cost/{fate}_tokens"] + collector.account.count[f"cost/{fate}_tokens"] for fate in FATES)
    held = sum(g.lengths().sum() for g in collector.kept) + sum(g.tokens() for g in collector.open.values())
    assert spent + held == collector.engine.generated


@given(world=worlds(), pumps=st.lists(st.integers(0, 12), min_size=STEPS, max_size=STEPS))
def test_no_trained_token_is_older_than_the_age_limit_in_versions(world, pumps):
    """The next step begins before this one is published, so the engine lags one version behind for a while.

    The age that a recipe promises is that of the oldest token's weights against the version being trained.
    """
    collector = make_collector(**world)
    limit = collector.settings.max_age
    collector.begin(1)
    oldest = []
    for step in range(1, STEPS + 1):
        while not collector.ready():
            assert collector.pump()
        batch = collector.take()
        versions = [c.versions.min() for g in batch.groups_P for c in g.completions_G if len(c)]
        oldest += [step - 1 - version for version in versions]
        assert batch.metrics["groups/age_max"] >= max(step - 1 - version for version in versions)
        collector.begin(step + 1)
        for _ in range(pumps[step - 1]):
            collector.pump(0.0)
        collector.engine.load(ticket(step), in_flight="keep")
    if collector.settings.on_max_age == "wait":
        assert max(oldest) <= limit


class Killed(BaseException):
    pass


@given(world=worlds(), kills=st.lists(st.integers(1, 60), min_size=1, max_size=4), every=st.integers(1, 3))
def test_killed_anywhere_and_resumed_it_trains_the_same(world, kills, every, tmp_path_factory):
    whole = make_collector(**world)
    expected = {}
    for step in range(1, STEPS + 1):
        whole.engine.load(ticket(step - 1))
        expected[step] = whole.collect(step)

    folder, saved_at, at, step = tmp_path_factory.mktemp("state"), 0, list(kills), 1
    collector = make_collector(**world)
    seen = {}
    while step <= STEPS:
        polls = 0

        def poll(timeout=None, ask=collector.engine.poll, limit=at[0] if at else None):
            nonlocal polls
            polls += 1
            if limit is not None and polls >= limit:
                raise Killed
            return ask(timeout)

        collector.engine.poll = poll
        try:
            for step in range(step, STEPS + 1):  # noqa: B020
                collector.engine.load(ticket(step - 1))
                seen[step] = collector.collect(step)
                if step % every == 0:
                    save_tree(collector.state(), folder, "state")
                    saved_at = step
            break
        except Killed:
            at.pop(0)
            collector, step = make_collector(**world), saved_at + 1
            if saved_at:
                collector.load(load_tree(folder, "state"))
    for step, batch in expected.items():
        assert ids(seen[step]) == ids(batch)
        assert [g.prompt.id for g in seen[step].groups_P] == [g.prompt.id for g in batch.groups_P]
        for a, b in zip(seen[step].groups_P, batch.groups_P, strict=True):
            for x, y in zip(a.completions_G, b.completions_G, strict=True):
                np.testing.assert_array_equal(x.token_ids, y.token_ids)
                np.testing.assert_array_equal(x.versions, y.versions)
        assert repr(seen[step].metrics) == repr(batch.metrics)


def trained_over_a_run(world, steps=120, **changes):
    collector, trained = make_collector(**(world | changes)), []
    for step in range(1, steps + 1):
        trained += ids(collector.collect(step))
    return trained, collector


def accepted_groups(world, groups):
    """All accepted groups among the first ``groups``, as the world has them: nobody collected these."""
    return [g for g in range(groups) if len({world["accuracy"](g, i) for i in range(world["group"])}) > 1]


def lengths_of(world, groups):
    return np.array([world["length"](g, i) for g in groups for i in range(world["group"])])


def distance(a, b):
    """Two-sample Kolmogorov-Smirnov statistic in units of its 5 % bound, for groups as the independent units."""
    grid = np.unique(np.concatenate([a, b]))
    below = [np.searchsorted(np.sort(x), grid, side="right") / len(x) for x in (a, b)]
    n, m = len(a) / 4, len(b) / 4
    return np.abs(below[0] - below[1]).max() / (1.36 * np.sqrt((n + m) / (n * m)))


def slow_world(seed):
    """Lengths of groups differ tenfold, and the long ones also wait longer."""

    @cache
    def unit(*parts):
        return derive_seed(seed, *parts) / 2**63

    def long(g):
        return unit(1, g) < 0.3

    return {
        "length": lambda g, i: int((40 if long(g) else 4) * (0.5 + unit(2, g, i))),
        "delay": lambda g, i: int(20 * unit(3, g, i)) if long(g) else 0,
        "accuracy": lambda g, i: float(i % 2) if unit(4, g) < 0.5 else 0.0,
        "prompts": 8,
        "group": 4,
        "capacity": 160,
        "cap": {"groups": None},
    }


@pytest.mark.parametrize("seed", quick([1, 2, 3], [1]))
@pytest.mark.parametrize("lookahead", quick([0.0, 0.5, 2.0], [0.5]))
def test_trained_lengths_are_those_of_all_accepted_groups(seed, lookahead):
    world = slow_world(seed)
    trained, collector = trained_over_a_run(world, lookahead=lookahead)
    accepted = accepted_groups(world, collector.next_group)
    assert distance(lengths_of(world, trained), lengths_of(world, accepted)) < 1
    held = [*(g.id for g in collector.kept), *collector.open]  # the final drain would train the accepted ones of these
    assert sorted({*trained, *(g for g in held if g in set(accepted))}) == accepted


@pytest.mark.whole
@pytest.mark.parametrize("seed", quick([1, 2, 3], [1]))
def test_first_come_first_kept_trains_shorter_answers_and_the_same_test_sees_it(seed):
    world = slow_world(seed)
    trained, collector = trained_over_a_run(world, surplus="discard", unfinished="discard", oversample=4.0)
    accepted = lengths_of(world, accepted_groups(world, collector.next_group))
    assert distance(lengths_of(world, trained), accepted) > 2
    assert lengths_of(world, trained).mean() < 0.8 * accepted.mean()


@pytest.mark.parametrize("kept", quick([0.9, 0.5, 0.2], [0.5]))
def test_over_a_run_no_more_is_generated_than_the_keep_rule_asks_for(kept):
    """The floor: tokens of all finished groups over those of the kept ones. Above it is what is held at the end."""
    length, accuracy = random_world(5, kept=kept)
    collector = make_collector(
        length=length, accuracy=accuracy, prompts=8, group=4, capacity=64, lookahead=0.5, cap={"groups": None}
    )
    finished = {}
    for step in range(1, 101):
        batch = collector.collect(step)
        finished |= {g.id: g for g in batch.finished}
    tokens = {i: int(g.lengths().sum()) for i, g in finished.items()}
    floor = sum(tokens.values()) / sum(tokens[i] for i, g in finished.items() if g.verdict is Verdict.KEPT)
    metrics = batch.metrics
    spent = metrics["counters/generated_tokens"] / metrics["total/cost/trained_tokens"]
    assert floor <= spent <= 1.03 * floor
    assert metrics["total/cost/discarded_tokens"] == metrics["total/cost/expired_tokens"] == 0
