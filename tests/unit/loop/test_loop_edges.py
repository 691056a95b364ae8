"""What an attacker found: empty responses, ends that are none, changed settings, lost responses, other drivers."""

import logging
import os
import signal

import pytest
from scripted import make_collector, ticket

from dapo.checkpoint.tree import load_tree, save_tree
from dapo.errors import EngineError, NothingScored, RewardError, SamplingStopped
from dapo.loop.interrupt import Interrupt
from dapo.loop.sampling.account import FATES
from dapo.types.batch import Key, Score
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.evidence import Cause, UnscoredEvidence


def ids(batch):
    return [group.id for group in batch.groups_P]


def reloaded(collector, folder, **world):
    again = make_collector(**world)
    save_tree(collector.state(), folder, "state")
    again.load(load_tree(folder, "state"))
    return again


MIXED = {"accuracy": lambda g, i: float(i), "cap": {"groups": None}}


def test_a_response_that_failed_without_a_token_survives_a_checkpoint(tmp_path):
    # response 0 of group 1 fails at once; its group is unfinished when step 1 ends
    world = MIXED | {
        "length": lambda g, i: 30 if g == 1 and i else 2,
        "fail": lambda g, i: (g, i) == (1, 0),
        "group": 3,
        "prompts": 1,
        "capacity": 9,
    }
    collector = make_collector(**world)
    event = collector.engine._event
    collector.engine._event = lambda r, t, finish: event(r, [] if finish is FinishReason.FAILED else t, finish)
    collector.collect(1)
    held = collector.open[1]
    assert len(held.completions_G[0]) == 0
    assert held.scores_G[0].reason == "engine: scripted"
    again = reloaded(collector, tmp_path, **world)
    assert again.open[1].completions_G[0].finish is FinishReason.FAILED
    assert again.open[1].missing() == [("train", 1, 1), ("train", 1, 2)]
    for step in (2, 3, 4):
        again.collect(step)
    assert again.engine.submitted.count(("train", 1, 0)) == 0  # it is not asked for again


def test_prompts_that_come_back_while_groups_are_under_way_are_taken():
    """All four prompts are retired when a late group falls below the threshold: the run goes on with it."""
    accuracy = lambda g, i: float(i) if g == 3 or g > 4 else 1.0  # noqa: E731
    collector = make_collector(
        length=lambda g, i: 60 if g == 3 else 2,
        accuracy=accuracy,
        distinct=4,
        prompts=2,
        selection={"retire": {"at": 1.0, "review": 0.0}},
        cap={"groups": None},
    )
    batch = collector.collect(1)
    assert len(batch.groups_P) == 2
    assert {g.prompt.text for g in batch.groups_P} == {"problem 3"}  # the only one that is not solved


def test_that_all_is_retired_is_remembered_over_a_resume_and_forgotten_with_other_settings(tmp_path):
    world = {
        "length": lambda g, i: 2,
        "accuracy": lambda g, i: 1.0 if g else float(i),
        "distinct": 3,
        "selection": {"retire": {"at": 0.5, "review": 0.0}},
        "cap": {"then": "train_partial"},
    }
    collector = make_collector(**world)
    assert len(collector.collect(1).groups_P) == 1
    assert collector.selector.ended == "retired"
    position = collector.selector.stream.position
    again = reloaded(collector, tmp_path, **world)
    again.collect(2)
    assert (again.selector.ended, again.selector.stream.position) == ("retired", position)
    assert reloaded(collector, tmp_path, **(world | {"selection": {}})).selector.ended is None
    assert (
        reloaded(collector, tmp_path, **(world | {"selection": {"retire": {"at": 0.5, "review": 0.5}}})).selector.ended
        is None
    )


def test_greso_alone_never_ends_the_data():
    collector = make_collector(
        length=lambda g, i: 1, accuracy=lambda g, i: 0.0, distinct=1, selection={"greso": {}}, mode="mask", prompts=2
    )
    for step in range(1, 60):
        assert collector.collect(step).metrics["groups/dispatched"] == 2
    assert collector.selector.ended is None


def test_data_that_ends_with_everything_rejected_is_an_outcome_with_its_evidence():
    collector = make_collector(length=lambda g, i: 3, accuracy=lambda g, i: 0.0, end=10)
    with pytest.raises(SamplingStopped, match="met='data'") as stopped:
        collector.collect(1)
    evidence = stopped.value.evidence
    assert (evidence.met, evidence.limit, evidence.kept, evidence.wanted) == ("data", None, 0, 4)
    assert (evidence.shares.all_wrong, evidence.cause) == (1.0, Cause.TOO_HARD)  # not only that the data ended
    assert len(collector.abandoned) == 10


@pytest.mark.parametrize(
    "settings", [{"mode": "off"}, {"mode": "mask"}, {"cap": {"groups": 1, "then": "train_partial"}}]
)
def test_a_dead_verifier_is_recognised_over_several_small_steps(settings):
    collector = make_collector(length=lambda g, i: 2, accuracy=lambda g, i: "timeout", **settings)
    for step in (1, 2, 3):  # eight responses a step
        collector.collect(step)
    with pytest.raises(NothingScored) as stopped:
        collector.collect(4)
    assert stopped.value.evidence == UnscoredEvidence(32, {"timeout": 32}, engine=False)


def test_a_dead_engine_is_not_blamed_on_the_verifier():
    collector = make_collector(length=lambda g, i: 2, accuracy=lambda g, i: 1.0, fail=lambda g, i: True)
    with pytest.raises(NothingScored) as stopped:
        collector.collect(1)
    assert stopped.value.evidence.engine


def test_replace_keeps_no_growing_backlog():
    world = {"length": lambda g, i: 3, "mode": "replace", "replace": {"min_ratio": 0.9}, "cap": {"groups": 40.0}}
    collector = make_collector(**world, accuracy=lambda g, i: 0.0 if g < 40 else float(i))
    ages, waiting = [], []
    for step in range(1, 12):
        metrics = collector.collect(step).metrics
        ages.append(metrics["groups/age_max"])
        waiting.append(metrics["groups/waiting"])
    assert max(ages) <= 4
    assert waiting[-1] == 0


@pytest.mark.parametrize("mode", ["off", "mask", "replace"])
def test_another_mode_after_a_resume_trains_what_is_held_first(mode, tmp_path):
    world = MIXED | {"length": lambda g, i: 3, "lookahead": 3.0, "capacity": 60}
    collector = make_collector(**world)
    collector.collect(1)
    assert len(collector.kept) + len(collector.open) >= 8
    again = reloaded(collector, tmp_path, **(world | {"mode": mode}))
    ages = [again.collect(step).metrics["groups/age_max"] for step in range(2, 9)]
    assert ages[-1] == 0
    assert not again.kept


def test_a_resume_that_lowers_the_age_limit_is_told_and_loses_nothing(tmp_path, caplog):
    world = MIXED | {"length": lambda g, i: 3, "lookahead": 3.0, "capacity": 60}
    collector = make_collector(**world)
    collector.collect(1)
    held = len(collector.kept) + len(collector.open)
    again = reloaded(collector, tmp_path, **(world | {"max_age": 1}))
    with caplog.at_level(logging.WARNING):
        batches = [again.collect(step) for step in range(2, 9)]
    assert f"{held} groups are held from before" in caplog.text
    assert "on_max_age=drop" in caplog.text
    trained = [i for batch in batches for i in ids(batch)]
    assert trained == sorted(set(trained))
    assert batches[-1].metrics["groups/age_max"] <= 1  # the limit holds again
    caplog.clear()
    reloaded(collector, tmp_path, **world).collect(2)
    assert not caplog.records


def test_a_pause_after_take_counts_for_the_next_step_and_is_saved(tmp_path):
    """An asynchronous driver saves between ``take`` and ``begin``: what the pause brings in is not lost."""
    world = MIXED | {"length": lambda g, i: 5 + 7 * (g % 4), "capacity": 32, "lookahead": 1.0, "max_age": 2}
    collector, generated = make_collector(**world), 0
    for step in range(1, 7):
        collector.engine.version = step - 1
        collector.begin(step)
        while not collector.ready():
            collector.pump()
        collector.take()
        collector.pause()
        generated += collector.engine.generated
        collector = reloaded(collector, tmp_path, **world)
    count, totals = collector.account.count, collector.account.totals
    spent = sum(totals[f"cost/{fate}_tokens"] + count[f"cost/{fate}_tokens"] for fate in FATES)
    held = sum(g.lengths().sum() for g in collector.kept) + sum(g.tokens() for g in collector.open.values())
    assert totals["sampling/generated_tokens"] + count["sampling/generated_tokens"] == generated == spent + held


def test_an_asynchronous_driver_meets_a_cap_as_a_synchronous_one_does():
    collector = make_collector(length=lambda g, i: 3, accuracy=lambda g, i: 0.0, cap={"groups": 2})
    collector.begin(1)
    while collector.pump():
        assert not collector.ready()
    with pytest.raises(SamplingStopped) as stopped:
        collector.meet_cap()
    assert (stopped.value.evidence.met, stopped.value.evidence.kept, stopped.value.evidence.wanted) == (
        "cap.groups",
        0,
        4,
    )
    partial = make_collector(
        length=lambda g, i: 3, accuracy=lambda g, i: 0.0, cap={"groups": 2, "then": "train_partial"}
    )
    partial.begin(1)
    while partial.pump():
        pass
    partial.meet_cap()
    assert partial.take().metrics["sampling/cap_reached"] == 1


def test_a_lost_response_and_a_lost_score_are_errors_and_no_endless_loop():
    lossy = make_collector(**MIXED, length=lambda g, i: 3 + g, unfinished="drain")
    poll = lossy.engine.poll
    lossy.engine.poll = lambda timeout=None: [e for e in poll(timeout) if e.key != ("train", 1, 0)]
    with pytest.raises(EngineError, match="1 responses never came back, among them 0 of group 1"):
        lossy.collect(1)
    silent = make_collector(**MIXED, length=lambda g, i: 3)
    score = silent.rollouts.scorer.poll
    silent.rollouts.scorer.poll = lambda timeout=None: [(k, s) for k, s in score(timeout) if k != ("train", 1, 0)]
    with pytest.raises(RewardError, match="score of response 0 of group 1 never came back"):
        silent.collect(1)


def test_an_engine_that_gives_ended_responses_back_on_abort_loses_nothing():
    collector = make_collector(**MIXED, length=lambda g, i: 4 + g % 3, prompts=2, capacity=12, lookahead=1.0)
    abort, hidden = collector.engine.abort, []
    poll = collector.engine.poll

    def withholding(timeout=None):
        """Every poll keeps its last event back, as an engine may that hands out events one by one."""
        events = [*hidden, *poll(timeout)]
        hidden.clear()
        if len(events) > 1:
            hidden.append(events.pop())
        return events

    def abort_with_ended(keys=None):
        events = [*hidden, *abort(keys)]
        hidden.clear()
        return events

    collector.engine.poll, collector.engine.abort = withholding, abort_with_ended
    trained = []
    for step in range(1, 9):
        collector.engine.load(ticket(step - 1))
        batch = collector.collect(step)
        trained += ids(batch)
        for group in batch.groups_P:
            for i, completion in enumerate(group.completions_G):
                assert list(completion.token_ids) == [group.id * 1000 + i * 100 + t for t in range(4 + group.id % 3)]
    assert len(set(trained)) == len(trained) == 16


@pytest.mark.parametrize("reason", ["", "\nfoo", "   "])
def test_an_unscored_response_without_a_reason_is_counted_all_the_same(reason):
    collector = make_collector(length=lambda g, i: 2, accuracy=lambda g, i: float(i), group=3)
    poll = collector.rollouts.scorer.poll
    collector.rollouts.scorer.poll = lambda timeout=None: [
        (key, Score(reason=reason) if key[1] == 2 else score) for key, score in poll(timeout)
    ]
    metrics = collector.collect(1).metrics
    kinds = {key: value for key, value in metrics.items() if key.startswith("reward/unscored/")}
    assert sum(kinds.values()) == metrics["reward/unscored"] > 0
    assert all(key.removeprefix("reward/unscored/") for key in kinds)


def test_carried_groups_decode_before_new_ones():
    collector = make_collector(**MIXED, length=lambda g, i: 6, capacity=4, lookahead=1.0)
    collector.collect(1)
    assert all(request.priority == request.key.group for request in collector.engine.requests)


def test_groups_without_voters_never_fill_a_batch():
    accuracy = lambda g, i: "timeout" if g % 2 else 0.0  # noqa: E731
    batch = make_collector(length=lambda g, i: 3, accuracy=accuracy, cap={"groups": 3, "then": "fill"}).collect(1)
    assert ids(batch) == [0, 2, 4, 6]
    assert all(g.verdict is Verdict.ALL_WRONG for g in batch.groups_P)


def test_copies_of_further_rounds_come_in_another_order():
    orders = []
    for step in range(1, 5):
        collector = make_collector(
            length=lambda g, i: 3,
            accuracy=lambda g, i: float(i) if g < 5 else 0.0,
            prompts=15,
            mode="replace",
            capacity=40,
        )
        copies = [g for g in collector.collect(step).groups_P if g.disposition is Disposition.COPIED]
        orders += [[g.prompt.text for g in copies[:5]], [g.prompt.text for g in copies[5:]]]
    assert all(sorted(order) == [f"problem {n}" for n in range(5)] for order in orders)
    assert len({tuple(order) for order in orders}) >= 7


def test_what_a_lost_engine_had_made_is_kept_and_continued(tmp_path):
    """The engine dies in the middle of a step: judged groups, whole responses and partial ones survive."""
    world = MIXED | {"length": lambda g, i: 3 + 4 * i + g % 3, "prompts": 4, "capacity": 8, "group": 3}
    collector = make_collector(**world)
    collector.collect(1)
    poll, polls = collector.engine.poll, []

    def dying(timeout=None):
        polls.append(1)
        if len(polls) == 4:
            raise EngineError("the engine is gone")
        return poll(timeout)

    collector.engine.poll = dying
    with pytest.raises(EngineError, match="the engine is gone"):
        collector.collect(2)
    assert not collector.engine.active
    assert not collector.engine.queue
    made = collector.engine.stats()["generated_tokens"]
    held = sum(group.tokens() for group in collector.open.values())
    assert held > 0
    again = reloaded(collector, tmp_path, **world)
    kept = {group.id for group in collector.kept}
    batch = again.collect(2)
    assert set(ids(batch)) == {4, 5, 6, 7}
    assert again.engine.submitted.count(("train", min(kept, default=0), 0)) == 0  # judged before: not asked for again
    for group in batch.groups_P:
        for i, completion in enumerate(group.completions_G):
            assert completion.token_ids.tolist() == [group.id * 1000 + i * 100 + t for t in range(len(completion))]
    total = made + again.engine.stats()["generated_tokens"]
    trained_before = sum(3 + 4 * i + g % 3 for g in range(4) for i in range(3))
    now = sum(len(c) for g in batch.groups_P for c in g.completions_G)
    waiting = sum(len(c) for g in again.kept for c in g.completions_G) + sum(g.tokens() for g in again.open.values())
    assert total == trained_before + now + waiting  # nothing was made twice


def test_groups_of_a_step_that_was_given_up_do_not_count_for_the_step_that_is_collected_again(tmp_path):
    """They are in the totals and in the table of where it stopped; the next line counts its own groups."""
    world = MIXED | {"accuracy": lambda g, i: float(i and g % 3 != 1), "length": lambda g, i: 3 + g % 3, "group": 2}
    world |= {"prompts": 4, "capacity": 8}
    collector = make_collector(**world)
    poll = collector.engine.poll

    def dying(timeout=None):
        if {group.verdict for group in collector.account.groups} >= {Verdict.KEPT, Verdict.ALL_WRONG}:
            raise EngineError("the engine is gone")
        return poll(timeout)

    collector.engine.poll = dying
    with pytest.raises(EngineError, match="gone"):
        collector.collect(1)
    before = {group.id for group in collector.abandoned}
    held = {group.id for group in collector.kept}
    totals = dict(collector.account.totals)
    again = reloaded(collector, tmp_path, **world)
    batch = again.collect(1)
    own = {group.id for group in batch.finished}
    assert before - held
    assert not own & (before - held)
    finished = batch.metrics["groups/finished"]
    assert batch.metrics["groups/kept_share"] == batch.metrics["groups/kept"] / finished
    assert sum(batch.metrics[f"groups/{verdict}_share"] for verdict in Verdict) == 1.0
    assert batch.metrics["total/groups/finished"] == totals["groups/finished"] + finished


def test_prompts_taken_when_the_engine_dies_at_a_submit_are_kept(tmp_path):
    world = MIXED | {"length": lambda g, i: 3, "prompts": 4, "capacity": 40}
    collector = make_collector(**world)
    submit, times = collector.engine.submit, []

    def dying(requests):
        times.append(1)
        if len(times) == 2:
            raise EngineError("the engine is gone")
        submit(requests)

    collector.engine.submit = dying
    with pytest.raises(EngineError, match="gone"):
        collector.collect(1)
    taken = collector.selector.stream.position
    assert taken == collector.next_group == len(collector.open) == collector.account.totals["groups/dispatched"] > 3
    again = reloaded(collector, tmp_path, **world)
    assert ids(again.collect(1)) == [0, 1, 2, 3]


def test_a_group_that_ends_in_a_later_step_than_it_was_judged_in_is_on_record():
    """Judged in step 1, expired in step 3: without a line there, its last word would be `carried`."""
    collector = make_collector(
        **MIXED | {"length": lambda g, i: 2, "prompts": 2, "capacity": 40, "max_age": 0, "on_max_age": "drop"}
    )
    collector.settings = collector.settings.model_copy(update={"lookahead": 0.0, "oversample": 3.0})
    first = collector.collect(1)
    carried = [g.id for g in first.finished if g.disposition is Disposition.CARRIED]
    assert carried
    second = collector.collect(2)
    ended = {g.id: g.disposition for g in second.finished}
    assert all(ended[number] is Disposition.EXPIRED for number in carried)


def test_a_verifier_that_dies_with_the_engine_does_not_hide_it():
    collector = make_collector(**MIXED | {"length": lambda g, i: 1 + 20 * i, "capacity": 8})

    def dying(timeout=None):
        raise EngineError("the engine is gone")

    def abort(keys=None):
        collector.scores._arrived.clear()
        collector.rollouts.scorer.poll = lambda timeout=None: []
        collector.scores._ended.append((0, Key("train", 0, 0)))
        return []

    collector.engine.poll, collector.engine.abort = dying, abort
    with pytest.raises(EngineError, match="gone"):
        collector.collect(1)


def test_a_batch_in_which_nothing_is_judged_yet_is_told_too(monkeypatch):
    """Long responses or a slow verifier: a watcher heard nothing until the first group was judged."""
    clock = [0.0]

    def monotonic():
        clock[0] += 6.0
        return clock[0]

    monkeypatch.setattr("dapo.loop.sampling.collector.time.monotonic", monotonic)
    seen = []
    collector = make_collector(length=lambda g, i: 40 + 10 * i, **(MIXED | {"watch": seen.append}))
    collector.collect(1)
    before = [progress for progress in seen if not progress.judged]
    assert before
    assert seen[-1].kept == 4


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_what_asks_a_run_to_stop_is_called_by_its_name(number, name):
    said = []
    with Interrupt(said.append, lambda: said.append("again")) as interrupt:
        os.kill(os.getpid(), number)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert said == [name, "again"]
