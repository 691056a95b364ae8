"""The collector against a scripted engine: what is trained, what is lost, what a cap does."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import make_collector, random_world, ticket

from dapo.checkpoint.tree import load_tree, save_tree
from dapo.errors import NothingScored, SamplingStopped
from dapo.observe.sentences import met_said, stop_said
from dapo.types.enums import Disposition, Verdict
from dapo.types.evidence import Cause


def ids(batch):
    return [group.id for group in batch.groups_P]


def test_rejected_groups_are_replaced_until_exactly_p_are_kept():
    # groups 0 and 2 are all wrong, 1 all correct; the next four are mixed
    accuracy = lambda g, i: {0: 0.0, 1: 1.0, 2: 0.0}.get(g, float(i))  # noqa: E731
    collector = make_collector(length=lambda g, i: 3, accuracy=accuracy, surplus="discard", unfinished="drain")
    batch = collector.collect(1)
    assert ids(batch) == [3, 4, 5, 6]
    by_verdict = {g.id: g.verdict for g in batch.finished}
    assert by_verdict[0] is by_verdict[2] is Verdict.ALL_WRONG
    assert by_verdict[1] is Verdict.ALL_CORRECT
    assert batch.metrics["groups/kept"] >= 4
    assert batch.metrics["groups/all_wrong"] == 2
    assert batch.metrics["sampling/refills"] == 1  # the first dispatch is none; groups 4 to 6 replace 0 to 2 at once
    assert all(g.disposition is Disposition.TRAINED for g in batch.groups_P)


def test_a_group_is_replaced_while_others_still_decode():
    # group 0 ends after 2 steps and is rejected; group 1 takes 50: its replacement must not wait for it
    lengths = {0: 2, 1: 50, 2: 3}
    collector = make_collector(
        length=lambda g, i: lengths.get(g, 5),
        accuracy=lambda g, i: 0.0 if g == 0 else float(i),
        prompts=2,
        capacity=4,
        unfinished="drain",
    )
    batch = collector.collect(1)
    assert ids(batch) == [1, 2]
    assert collector.engine.clock == 50


def test_unfinished_responses_are_carried_with_the_version_of_each_token():
    lengths = {0: 20, 1: 3, 2: 3, 3: 3}
    collector = make_collector(
        length=lambda g, i: lengths.get(g, 3),
        accuracy=lambda g, i: 0.0 if g == 1 else float(i),
        prompts=2,
        capacity=4,
        oversample=2.0,
    )
    first = collector.collect(1)
    assert 0 not in ids(first)
    held = len(collector.open[0].completions_G[0])
    assert 0 < held < 20
    for step in range(2, 7):
        collector.engine.load(ticket(step - 1))
        batch = collector.collect(step)
        if 0 in ids(batch):
            break
    assert ids(batch)[0] == 0  # the oldest trains first
    completion = batch.groups_P[0].completions_G[0]
    assert list(completion.token_ids) == list(range(20))  # continued behind its prefix: nothing doubled, nothing lost
    assert list(completion.versions[:held]) == [0] * held
    assert completion.versions[held] == 1
    assert list(completion.versions) == sorted(completion.versions)
    assert batch.metrics["groups/age_max"] == step - 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    prompts=st.integers(1, 5),
    group=st.integers(2, 4),
    capacity=st.integers(1, 20),
    kept=st.floats(0.15, 1.0),
    lag=st.integers(0, 7),
    unfinished=st.sampled_from(["carry", "drain", "discard"]),
    surplus=st.sampled_from(["carry", "discard"]),
    max_age=st.integers(0, 3),
)
def test_random_schedules_train_every_group_at_most_once_and_lose_none(
    seed, prompts, group, capacity, kept, lag, unfinished, surplus, max_age
):
    length, accuracy = random_world(seed, kept=kept)
    collector = make_collector(
        length=length,
        accuracy=accuracy,
        prompts=prompts,
        group=group,
        capacity=capacity,
        lag=lag,
        unfinished=unfinished,
        surplus=surplus,
        max_age=max_age,
        cap={"groups": None},
    )
    trained, finished, waiting = [], {}, 0
    for step in range(1, 6):
        collector.engine.load(ticket(step - 1))
        batch = collector.collect(step)
        assert len(batch.groups_P) == prompts
        trained += ids(batch)
        finished |= {g.id: g for g in batch.finished}
        # what is held is waited for and trains first; only a surplus above P has to queue behind itself
        assert batch.metrics["groups/age_max"] <= max_age + 1 + waiting // prompts
        waiting = max(waiting, batch.metrics["groups/waiting"])
        for g in batch.groups_P:
            assert g.verdict is Verdict.KEPT
            for i, c in enumerate(g.completions_G):
                assert list(c.token_ids) == [g.id * 1000 + i * 100 + t for t in range(length(g.id, i))]
    assert len(set(trained)) == len(trained)
    assert sorted(trained) == trained or unfinished == "carry"
    held = {g.id for g in collector.kept} | set(collector.open)
    dropped = {i for i, g in finished.items() if g.disposition is Disposition.DISCARDED}
    accounted = set(trained) | held | dropped
    lost = set(range(collector.next_group)) - accounted
    assert not lost or unfinished == "discard"
    if surplus == "carry":  # what was good was trained or is held
        assert all(finished[i].verdict is not Verdict.KEPT for i in dropped)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), lag=st.integers(0, 5), at=st.integers(1, 4))
def test_a_collector_restored_from_its_state_continues_identically(seed, lag, at, tmp_path_factory):
    length, accuracy = random_world(seed, kept=0.4)
    make = lambda: make_collector(length=length, accuracy=accuracy, lag=lag, capacity=6, cap={"groups": None})  # noqa: E731
    whole, folder = make(), tmp_path_factory.mktemp("state")
    expected = []
    for step in range(1, 7):
        whole.engine.load(ticket(step - 1))
        expected.append(whole.collect(step))
        if step == at:
            save_tree(whole.state(), folder, "state")
    again = make()
    again.load(load_tree(folder, "state"))
    for step in range(at + 1, 7):
        again.engine.load(ticket(step - 1))
        batch = again.collect(step)
        assert ids(batch) == ids(expected[step - 1])
        for a, b in zip(batch.groups_P, expected[step - 1].groups_P, strict=True):
            for x, y in zip(a.completions_G, b.completions_G, strict=True):
                np.testing.assert_array_equal(x.token_ids, y.token_ids)
                np.testing.assert_array_equal(x.versions, y.versions)
        clock = {k for k in batch.metrics if k.startswith("time/")}
        without = lambda m: {k: v for k, v in m.items() if k not in clock}  # noqa: B023, E731
        assert repr(without(batch.metrics)) == repr(without(expected[step - 1].metrics))


def test_stop_names_shares_cause_and_remedy_and_keeps_what_was_kept():
    collector = make_collector(
        length=lambda g, i: 3, accuracy=lambda g, i: float(i) if g == 5 else 0.0, cap={"groups": 3}, capacity=8
    )
    with pytest.raises(SamplingStopped) as stopped:
        collector.collect(1)
    evidence = stopped.value.evidence
    assert (evidence.met, evidence.limit, evidence.kept, evidence.cause) == ("cap.groups", 3.0, 1, Cause.TOO_HARD)
    assert (evidence.example.problem, evidence.example.accuracy) == ("problem 11", 0.0)
    text = stop_said(evidence, Path("my run"))
    assert "the cap of 3 x 4 dispatched groups was met with 1 of 4 groups kept" in text
    assert "`dapo train --resume 'my run' KEY=VALUE` goes on" in text
    assert "Judged in this step: 12 groups, 8.3% kept, 0.0% all correct, 91.7% all wrong; 72 tokens" in text
    assert "72 tokens were generated" in text
    assert "too hard" in text
    assert "cap.then=train_partial" in text
    state = collector.state()
    assert [g["id"] for g in state["kept"]] == [5]


def test_train_partial_and_fill_are_the_other_outcomes():
    world = {"length": lambda g, i: 3, "accuracy": lambda g, i: float(i) if g == 5 else 0.0, "cap": {"groups": 3}}
    partial = make_collector(**(world | {"cap": {"groups": 3, "then": "train_partial"}})).collect(1)
    assert ids(partial) == [5]
    assert partial.metrics["sampling/cap_reached"] == 1
    filled = make_collector(**(world | {"cap": {"groups": 3, "then": "fill"}})).collect(1)
    assert ids(filled) == [0, 1, 2, 5]
    assert [g.disposition for g in filled.groups_P] == [Disposition.FILLED] * 3 + [Disposition.TRAINED]
    assert filled.metrics["groups/filled"] == 3
    assert filled.metrics["groups/discarded"] == 8
    assert filled.metrics["cost/rejected_tokens"] == 8 * 2 * 3
    assert filled.metrics["cost/filled_tokens"] == 3 * 2 * 3
    assert filled.metrics["cost/trained_tokens"] == 2 * 3


def test_the_end_of_the_data_is_named_and_a_clean_end_is_no_error():
    collector = make_collector(length=lambda g, i: 3, accuracy=lambda g, i: float(i), end=6)
    assert ids(collector.collect(1)) == [0, 1, 2, 3]
    with pytest.raises(SamplingStopped) as stopped:
        collector.collect(2)
    assert (stopped.value.evidence.met, stopped.value.evidence.kept) == ("data", 2)
    even = make_collector(length=lambda g, i: 3, accuracy=lambda g, i: float(i), end=4)
    even.collect(1)
    batch = even.collect(2)
    assert batch.groups_P == []
    assert even.exhausted


@pytest.mark.parametrize("cap", [None, 20.0])
def test_a_verifier_that_fails_on_everything_is_recognised(cap):
    collector = make_collector(
        length=lambda g, i: 3, accuracy=lambda g, i: "exception: KeyError('answer')", cap={"groups": cap}
    )
    with pytest.raises(NothingScored) as stopped:
        collector.collect(1)
    said = stop_said(stopped.value.evidence, Path("RUN"))
    assert said.startswith("the verifier fails on everything: none of 32 responses could be scored.")
    assert "KeyError('answer')" in said
    assert "(RUN/rewards.txt has what it printed)" in said


def test_unscored_members_do_not_vote_and_groups_with_one_voter_are_too_few():
    collector = make_collector(
        length=lambda g, i: 3,
        accuracy=lambda g, i: "timeout" if g == 0 and i > 0 else ("timeout" if i == 2 else float(i)),
        group=3,
        prompts=2,
    )
    batch = collector.collect(1)
    verdicts = {g.id: g.verdict for g in batch.finished}
    assert verdicts[0] is Verdict.TOO_FEW_SCORED
    assert ids(batch) == [1, 2]
    assert batch.metrics["reward/unscored"] >= 4
    assert batch.metrics["reward/unscored/timeout"] == batch.metrics["reward/unscored"]


def test_unscored_responses_count_in_the_step_that_judges_their_group():
    """Group 1 has a failed score early in step 1, and its long response ends in step 2: both count there."""
    collector = make_collector(
        length=lambda g, i: 40 if (g, i) == (1, 2) else 3,
        accuracy=lambda g, i: "timeout" if (g, i) == (1, 0) else float(i == 1),
        group=3,
        prompts=1,
        capacity=9,
        oversample=2.0,
        lookahead=0.0,
    )
    first = collector.collect(1)
    assert ids(first) == [0]
    assert 1 in collector.open  # its failure is known, its group is not judged
    assert collector.open[1].scores_G[0].reason == "timeout"
    assert first.metrics["reward/unscored"] == 0
    assert "reward/unscored/timeout" not in first.metrics
    later = [first]
    while 1 in collector.open:
        later.append(collector.collect(len(later) + 1))
    assert len(later) > 1
    assert [batch.metrics["reward/unscored"] for batch in later] == [0] * (len(later) - 1) + [1]
    assert 1 in [g.id for g in later[-1].finished]  # and stands in the rollouts of that step
    assert later[-1].metrics["reward/unscored/timeout"] == 1
    assert later[-1].metrics["total/reward/unscored"] == 1


def test_a_failed_response_is_unscored_not_wrong():
    collector = make_collector(
        length=lambda g, i: 2, accuracy=lambda g, i: float(i == 1), group=3, prompts=2, fail=lambda g, i: i == 0
    )
    batch = collector.collect(1)
    assert batch.groups_P[0].scores_G[0].reason == "engine: scripted"
    assert batch.metrics["sampling/failed"] == 2


def test_off_trains_everything_and_mask_drops_without_refill():
    world = {"length": lambda g, i: 3, "accuracy": lambda g, i: 0.0 if g % 2 else float(i)}
    off = make_collector(**world, mode="off").collect(1)
    assert ids(off) == [0, 1, 2, 3]
    masked = make_collector(**world, mode="mask").collect(1)
    assert ids(masked) == [0, 2]
    assert masked.metrics["groups/dispatched"] == 4


def test_replace_fills_the_batch_with_copies_of_kept_groups():
    """SkyRL's mode: 2 of 6 groups are kept, more than 0.3 x 6, and stand in for the other four."""
    world = {
        "length": lambda g, i: 3 + g,
        "accuracy": lambda g, i: float(i) if g < 2 else 0.0,
        "prompts": 6,
        "mode": "replace",
    }
    batch = make_collector(**world).collect(1)
    assert ids(batch) == [0, 1, 6, 7, 8, 9]  # a copy is a group of its own
    copies = batch.groups_P[2:]
    assert all(g.disposition is Disposition.COPIED and g.verdict is Verdict.KEPT for g in copies)
    assert sorted(g.prompt.text for g in copies) == ["problem 0"] * 2 + ["problem 1"] * 2  # none twice before all once
    assert batch.metrics["groups/dispatched"] == 6
    assert batch.metrics["groups/copied"] == 4
    assert batch.metrics["cost/trained_tokens"] == 2 * (3 + 4)
    again = make_collector(**(world | {"accuracy": lambda g, i: float(i) if g % 3 == 0 else 0.0}))
    twice = ids(again.collect(1)) + ids(again.collect(2))
    assert len(set(twice)) == len(twice) == 12  # no id is given out twice
    # with a higher ratio prompts are added instead, until more than that share is kept
    accuracy = lambda g, i: float(i) if g in (1, 4, 7, 8) else 0.0  # noqa: E731
    more = make_collector(**(world | {"accuracy": accuracy}), replace={"min_ratio": 0.5}).collect(1)
    assert more.metrics["groups/dispatched"] > 6
    assert [g.id for g in more.groups_P if g.disposition is Disposition.TRAINED] == [1, 4, 7, 8]
    assert more.metrics["groups/copied"] == 2


def test_replace_meets_its_cap_like_any_mode():
    world = {"length": lambda g, i: 3, "accuracy": lambda g, i: 0.0, "mode": "replace", "cap": {"groups": 2.0}}
    with pytest.raises(SamplingStopped) as stopped:
        make_collector(**world).collect(1)
    assert met_said(stopped.value.evidence) == "the cap of 2 x 4 dispatched groups was met with 0 of 4 groups kept"
    one = world | {"accuracy": lambda g, i: float(i) if g == 2 else 0.0}
    assert ids(make_collector(**(one | {"cap": {"groups": 2.0, "then": "train_partial"}})).collect(1)) == [
        2
    ]  # no copies of too few


def test_those_who_look_on_are_told_after_every_group():
    told = []
    accuracy = lambda g, i: {0: 0.0, 1: 1.0}.get(g, float(i))  # noqa: E731
    make_collector(
        length=lambda g, i: 3 + g, accuracy=accuracy, prompts=2, capacity=40, lookahead=0, watch=told.append
    ).collect(1)
    assert [(f.kept, f.wanted, f.judged) for f in told] == [(0, 2, 1), (0, 2, 2), (1, 2, 3), (2, 2, 4)]
    assert (told[-1].shares.all_wrong, told[-1].shares.all_correct, told[-1].shares.kept) == (0.25, 0.25, 0.5)


def test_truncated_responses_are_told_with_the_cause():
    told = []
    collector = make_collector(
        length=lambda g, i: 50 if i else 3, accuracy=lambda g, i: 0.0, limit=20, cap={"groups": 2}, watch=told.append
    )
    with pytest.raises(SamplingStopped):
        collector.collect(1)
    assert told[-1].shares.truncated == 0.5
    assert told[-1].shares.generated_tokens == 8 * (20 + 3)


@pytest.mark.parametrize(("mode", "caps"), [("filter", (8.0, 900)), ("mask", (None, None))])
def test_those_who_look_on_know_the_caps_of_a_step_that_searches(mode, caps):
    told = []
    cap = {"groups": 2, "tokens": 900}
    right = lambda g, i: float(i % 2)  # noqa: E731
    make_collector(length=lambda g, i: 5, accuracy=right, mode=mode, cap=cap, watch=told.append).collect(1)
    assert {(f.cap_groups, f.cap_tokens) for f in told} == {caps}  # P = 4


def test_tokens_of_a_stopped_step_stay_in_the_account():
    collector = make_collector(length=lambda g, i: 5, accuracy=lambda g, i: 0.0, cap={"groups": 2})
    with pytest.raises(SamplingStopped):
        collector.collect(1)
    totals = collector.state()["account"]["totals"]
    assert totals["sampling/generated_tokens"] == totals["cost/rejected_tokens"] == 8 * 2 * 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accuracy": lambda g, i: 1.0}, "100.0% all correct"),
        ({"accuracy": lambda g, i: "timeout" if i else 0.5}, "100.0% with fewer than two responses that vote"),
        ({"accuracy": lambda g, i: float(i), "band": (0.8, 0.9)}, "100.0% out of the band"),
    ],
)
def test_the_message_of_a_stop_names_every_kind_of_rejected_group(changes, said):
    with pytest.raises(SamplingStopped) as stopped:
        make_collector(**({"length": lambda g, i: 3, "cap": {"groups": 3}} | changes)).collect(1)
    assert said in stop_said(stopped.value.evidence, Path("RUN"))


def test_a_cap_on_tokens_stops_dispatching_and_is_named():
    collector = make_collector(
        length=lambda g, i: 10, accuracy=lambda g, i: 0.0, cap={"groups": None, "tokens": 200}, capacity=8
    )
    with pytest.raises(SamplingStopped) as stopped:
        collector.collect(1)
    assert met_said(stopped.value.evidence) == "the cap of 200 generated tokens was met with 0 of 4 groups kept"
    assert (
        200 <= collector.account.totals["sampling/generated_tokens"] <= 200 + 8 * 10
    )  # what was under way is finished


def test_what_is_held_is_bounded_so_that_nothing_grows_too_old():
    """Everything is kept and nine groups are asked for at once: with max_age 1 only two steps' worth may be held."""
    world = {"length": lambda g, i: 3, "accuracy": lambda g, i: float(i), "prompts": 3, "capacity": 40}
    held = make_collector(**world, oversample=3.0, max_age=1).collect(1)
    assert held.metrics["groups/dispatched"] == 6
    assert held.metrics["groups/waiting"] == 3
    one = make_collector(**world, oversample=3.0, max_age=0).collect(1)
    assert one.metrics["groups/dispatched"] == 3


def test_on_max_age_drop_takes_what_it_likes_and_drops_what_grows_old():
    # groups are kept at once, but for group 2, which takes 40 steps: both kinds of held groups expire
    collector = make_collector(
        length=lambda g, i: 40 if g == 2 else 3,
        accuracy=lambda g, i: float(i),
        prompts=1,
        capacity=10,
        oversample=5.0,
        lookahead=0.0,
        max_age=1,
        on_max_age="drop",
    )
    assert collector.collect(1).metrics["groups/expired"] == 0
    assert ([g.id for g in collector.kept], list(collector.open)) == ([1, 3, 4], [2])
    second = collector.collect(2)
    assert ids(second) == [1]
    third = collector.collect(3)
    assert third.metrics["groups/expired"] == 3
    assert third.metrics["cost/expired_tokens"] == 2 * 2 * 3 + 2 * 3  # groups 3 and 4; 2 begun responses
    assert ids(third) == [5]


def rounds(accuracy):
    """The published script's settings; the sizes of the dispatches of one step of 8 groups, and its batch."""
    collector = make_collector(
        length=lambda g, i: 2 + 7 * g % 31,
        accuracy=accuracy,
        prompts=8,
        capacity=999,
        oversample=3.0,
        surplus="discard",
        unfinished="drain",
        cap={"groups": 30.0},
    )
    sizes, take = [], collector.selector.take
    collector.selector.take = lambda n: sizes.append(n) or take(n)
    return sizes, collector.collect(1)


def test_a_fixed_oversampling_factor_does_not_replace_single_rejections():
    """Every other group is rejected, 12 of 24 are kept: one round is enough, whatever was rejected early."""
    sizes, batch = rounds(lambda g, i: float(i) if g % 2 else 0.0)
    assert sizes == [24]
    assert batch.metrics["groups/dispatched"] == 24
    assert ids(batch) == [1, 3, 5, 7, 9, 11, 13, 15]


def test_a_round_that_falls_short_is_followed_by_one_of_three_times_what_is_missing():
    """Every fourth is kept, 6 of 24: two are missing, and of the next six only group 27 is kept, then one of three."""
    sizes, batch = rounds(lambda g, i: float(i) if g % 4 == 3 else 0.0)
    assert sizes == [24, 6, 3]
    assert ids(batch) == [3, 7, 11, 15, 19, 23, 27, 31]


def test_a_fixed_oversampling_factor_is_dispatched_at_once():
    collector = make_collector(
        length=lambda g, i: 3, accuracy=lambda g, i: float(i), prompts=2, oversample=3.0, surplus="discard"
    )
    batch = collector.collect(1)
    assert batch.metrics["groups/dispatched"] == 6
    assert batch.metrics["sampling/refills"] == 0
    assert batch.metrics["groups/discarded"] + batch.metrics["groups/unfinished"] + 2 == 6


def test_decoding_goes_on_while_a_verifier_works():
    """A score is waited for when its verdict is due, ``lag`` steps after the response ended, and not before."""

    def late(collector):
        """A verifier that has an answer when it is waited for; the clock at which it was."""
        asked, poll = [], collector.rollouts.scorer.poll
        collector.rollouts.scorer.poll = lambda timeout=None: (
            [] if timeout == 0 else asked.append(collector.engine.clock) or poll(timeout)
        )
        return asked

    collector = make_collector(
        length=lambda g, i: 5 if g == 0 else 40, accuracy=lambda g, i: float(i), prompts=2, capacity=4, lag=10
    )
    asked = late(collector)
    collector.begin(1)
    while not collector.kept:
        collector.pump()
    assert asked[0] == 40  # group 0 ended at 5, its verdict was due at 15; the next event is at 40
    judged_late = make_collector(
        length=lambda g, i: 5 + 3 * g, accuracy=lambda g, i: float(i), prompts=4, capacity=8, lag=4, lookahead=0
    )
    asked = late(judged_late)
    judged_late.collect(1)
    assert asked == [11, 14]  # ended at 5 and 8, 11, 14; due at 9, 12 and, with nothing left to decode, at once


def test_the_scores_of_a_group_that_is_not_whole_are_not_waited_for():
    """Response 0 of each group ends at 5 and the other at 40: no verdict depends on a score before that."""
    collector = make_collector(
        length=lambda g, i: 5 if i == 0 else 40, accuracy=lambda g, i: float(i), prompts=2, capacity=4, lookahead=0
    )
    waits, poll = [], collector.rollouts.scorer.poll
    collector.rollouts.scorer.poll = lambda timeout=None: (
        [] if timeout == 0 else waits.append(collector.engine.clock) or poll(timeout)
    )
    batch = collector.collect(1)
    assert ids(batch) == [0, 1]
    assert waits == [40]
    assert collector.scores.waiting == 0


def test_scores_of_responses_that_ended_are_in_what_is_paused():
    """A pause waits for the score of everything that ended, whole group or not, so none is asked for twice."""
    collector = make_collector(
        length=lambda g, i: 5 if i == 0 else 40, accuracy=lambda g, i: float(i), prompts=2, capacity=4, lookahead=0
    )
    collector.begin(1)
    collector.pump()
    assert collector.engine.clock == 5
    collector.pause()
    assert collector.scores.waiting == 0
    assert [group.unscored for group in collector.open.values()] == [1, 1]
    while not collector.ready():
        collector.pump()
    collector.pause()
    keys = collector.rollouts.scorer.keys
    assert len(keys) == len(set(keys)) == 4
