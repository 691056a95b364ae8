"""Generation beside learning: a staleness that is a promise, nothing lost or doubled, and a resume to the bit."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import quick
from scripted import ScriptedScorer, make_collector, random_world
from scripted_learner import Later
from scripted_run import STEPS, make_run

from dapo.errors import EngineError, LearnerError, RewardError, SamplingStopped
from dapo.loop.idle import Idle, staleness
from dapo.loop.overlap import Overlap
from dapo.metrics.phases import Phases
from dapo.types.batch import Row

length, accuracy = random_world(5)
WORLD = {"length": length, "accuracy": accuracy, "learner": Later, "lookahead": 1.5, "max_age": 2}
make_overlapped = partial(make_run, **WORLD)


def trained(run):
    return [group for groups in run.trained for group in groups]


def ages(run):
    """Of every trained token, by step, recomputed from what the learner was given."""
    return [
        [step.version - v for rows in step.minibatches for row in rows for v in row.versions[row.loss_mask]]
        for step in run.learner.steps
    ]


def numbers(run):
    return {step: run.recorder.row(step) for step in run.recorder.rows}


# ---------------------------------------------------------------- the order of a step


def test_while_the_learner_works_the_engine_does(tmp_path):
    run = make_overlapped(tmp_path, turns=2)
    assert run()
    publish = ["learner publish", "publish", "learner checksums", "check", "learner logprobs"]
    # the crank is turned between the call of the learner and its computing, and the engine is never put to sleep
    assert run.log.calls(1) == ["collect", "shape", "collect", "learner learn", *publish, "record"]
    assert run.log.calls(3) == ["collect", "shape", "collect", "learner learn", *publish, "record"]
    last = run.log.calls(STEPS)
    assert last[:4] == ["collect", "shape", "learner learn", "learner publish"]  # there is no further step to work for
    assert max(map(max, ages(run))) >= 1  # and some of it was trained


def test_the_clock_decides_how_often_the_crank_is_turned():
    """Without a fixed number of turns the driver looks at the learner between two of them."""
    world = {"length": lambda g, i: 4, "accuracy": lambda g, i: float(i == 0)}
    collector = make_collector(**world, overlaps=True, lookahead=1.0, turn=0.0)
    collector.collect(1)
    before = collector.engine.clock
    learner = Later()
    learner.asks = 3
    assert isinstance(Overlap(collector, Phases()).result(_pending(learner), 2), str)
    assert collector.engine.clock == before + 3  # an engine step for each look


def _pending(learner, result="learnt"):
    class Handle:
        left = learner.asks

        def done(self):
            self.left -= 1
            return self.left < 0

        def result(self, timeout=None):
            return result

    return Handle()


# ---------------------------------------------------------------- the promise


@st.composite
def overlapped_worlds(draw):
    seed, limit = draw(st.integers(0, 2**32)), draw(st.sampled_from([1, 2, 4]))
    length, accuracy = random_world(seed, kept=draw(st.floats(0.2, 1.0)), mean_length=draw(st.sampled_from([3, 12])))
    mode = draw(st.sampled_from(["filter", "filter", "mask", "replace", "off"]))
    return {
        "length": length,
        "accuracy": accuracy,
        "prompts": draw(st.integers(2, 4)),
        "capacity": draw(st.integers(2, 30)),
        "lag": draw(st.integers(0, 5)),
        "mode": mode,
        "surplus": draw(st.sampled_from(["carry", "carry", "discard"])),
        "unfinished": draw(st.sampled_from(["carry", "carry", "drain", "discard"])),
        "lookahead": draw(st.sampled_from([0.0, 0.5, 1.5, 4.0])),
        "oversample": draw(st.sampled_from([None, None, 2.0])) if mode == "filter" else None,
        "cap": {"groups": None if mode == "filter" else 40.0},
        "max_age": limit,
        "turns": draw(st.integers(0, 12)),
        "minibatch": None,
    }


@pytest.mark.whole
@settings(max_examples=20, deadline=None)
@given(world=overlapped_worlds())
def test_no_trained_token_is_older_than_promised(world, tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("run"), steps=5, evaluate_every=2, save_every=0, learner=Later, **world)
    run()
    for number, step in enumerate(ages(run), start=1):
        row = run.recorder.rows[number]
        if not step:
            assert math.isnan(row["policy/staleness_max"])
            continue
        assert 0 <= min(step) <= max(step) <= world["max_age"]
        assert row["policy/staleness_max"] == max(step)
        assert row["policy/staleness_mean"] == pytest.approx(sum(step) / len(step), rel=1e-12)
        shares = {age: row[f"policy/staleness_share/{age}"] for age in set(step)}
        assert shares == pytest.approx({age: n / len(step) for age, n in Counter(step).items()})
    repeated = [group for group, n in Counter(trained(run)).items() if n > 1]
    assert repeated == []


def test_with_the_bound_lifted_tokens_do_grow_older(tmp_path):
    """The property above can fail: the same driver with a larger limit trains older tokens."""
    slow = lambda g, i: 40 if g % 5 == 0 else 3  # noqa: E731
    settings = {"length": slow, "accuracy": lambda g, i: float(i == 0), "lookahead": 4.0, "capacity": 6, "turns": 1}
    run = make_run(tmp_path, steps=8, learner=Later, max_age=4, **settings)
    run()
    assert max(map(max, ages(run))) > 1
    run = make_run(tmp_path / "one", steps=8, learner=Later, max_age=1, **settings)
    run()
    assert max(map(max, ages(run))) == 1


def test_the_lengths_that_train_are_those_that_were_accepted(tmp_path):
    """Waiting for what is held drops nothing: neither long nor short answers are favoured."""
    run = make_run(tmp_path, steps=12, evaluate_every=0, save_every=0, turns=6, **WORLD | {"lookahead": 1.5})
    run()
    groups = sorted(set(trained(run)))
    accepted = [g for g in range(groups[-1] + 1) if 0 < sum(accuracy(g, i) for i in range(2)) < 2]
    held = {group.id for group in run.method.collector.kept} | set(run.method.collector.open)
    assert groups == [g for g in accepted if g not in held]


def long_tailed(seed):
    """Groups whose lengths have a long tail and say nothing about whether the group is kept: half of them are."""
    lengths = np.ceil(np.random.default_rng(seed).lognormal(2.0, 1.5, (3000, 2))).astype(int).clip(1, 300)
    kept = np.random.default_rng(seed + 1).random(3000) < 0.5
    longest = lengths.max(axis=1)
    return (lambda g, i: int(lengths[g, i])), (lambda g, i: float(kept[g] and i == 0)), longest, kept


def p_of_the_greatest_gap(left, right, rounds=500):
    """Permutation test of Kolmogorov and Smirnov's statistic: the share of random splits with as great a gap."""
    both, n = np.concatenate([left, right]), len(left)
    order = np.argsort(both, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(both[order]) > 0, True))  # ties count together

    def gap(chosen):
        shares = np.cumsum(chosen[order])[ends] / n
        return np.abs(shares - (ends + 1 - np.cumsum(chosen[order])[ends]) / (len(both) - n)).max()

    first = np.arange(len(both)) < n
    random, found = np.random.default_rng(0), gap(first)
    return (1 + sum(gap(random.permutation(first)) >= found for _ in range(rounds))) / (1 + rounds)


@pytest.mark.whole
@pytest.mark.parametrize("seed", [2, 3])
def test_the_lengths_that_train_are_distributed_as_those_that_are_accepted(tmp_path, seed):
    """At S = 2, against groups that the run never saw. Dropping what is too old is caught: it favours short answers."""
    length, accuracy, longest, kept = long_tailed(seed)
    fresh = longest[1000:][kept[1000:]]
    world = {"length": length, "accuracy": accuracy, "prompts": 2, "capacity": 32, "learner": Later, "turns": 1}
    settings = {"max_age": 2, "lookahead": 4.0, "cap": {"groups": None}}
    options = {"steps": 100, "evaluate_every": 0, "save_every": 0, **world, **settings}
    ours = make_run(tmp_path / "ours", **options)
    assert ours()
    assert max(map(max, ages(ours))) == 2
    assert max(trained(ours)) < 1000
    assert p_of_the_greatest_gap(longest[trained(ours)], fresh) > 0.1
    drops = make_run(tmp_path / "drops", on_max_age="drop", **options)
    assert drops()
    assert max(map(max, ages(drops))) <= 2
    assert longest[trained(drops)].mean() < 0.75 * longest[trained(ours)].mean()
    assert p_of_the_greatest_gap(longest[trained(drops)], fresh) < 0.01


def test_the_age_of_a_group_is_that_of_the_weights_at_its_dispatch(tmp_path):
    """Some are sent for a step whose weights the engine has not got yet: these are a version older than that step."""
    run, sent = make_overlapped(tmp_path, turns=3), {}
    collector = run.method.collector
    submit = collector._submit

    def noting(group):
        sent.setdefault(group.id, (collector.step, collector.engine.version))
        submit(group)

    collector._submit = noting
    assert run()
    rows = numbers(run)
    for step, groups in enumerate(run.trained, start=1):
        ages = [step - 1 - sent[group][1] for group in groups]
        assert (rows[step]["groups/age_mean"], rows[step]["groups/age_max"]) == (np.mean(ages), max(ages))
    assert any(step - 1 - version == 1 for step, version in sent.values())


# ---------------------------------------------------------------- kills and resumes


@pytest.mark.parametrize("turns", [0, 3, 9])
@pytest.mark.parametrize("stop", quick([1, 2, 3, 5], [2]))
def test_a_resumed_run_is_the_uninterrupted_one(turns, stop, tmp_path):
    options = {"turns": turns, "steps": 6, "save_every": 1, "lag": 3, "capacity": 5}
    whole = make_overlapped(tmp_path / "whole", **options)
    assert whole()

    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    run = make_overlapped(tmp_path / "killed", hooks={("learner learn", stop + 1): kill}, **options)
    with pytest.raises(Killed):
        run()
    assert run.saved[-1] == stop
    again = make_overlapped(tmp_path / "killed", resume=True, **options)
    assert again()
    assert again.learner.scores.tolist() == whole.learner.scores.tolist()
    assert run.trained[:stop] + again.trained == whole.trained
    assert run.trained[0] != whole.trained[1]
    rows = numbers(whole)
    for step in range(stop + 1, 7):
        assert numbers(again)[step] == rows[step]


def test_a_state_in_the_middle_of_a_step_holds_its_work(tmp_path):
    run = make_overlapped(tmp_path, turns=9, steps=3, save_every=1)
    run()
    state = make_overlapped(tmp_path, turns=9, steps=4, resume=True).method.collector
    assert not state.begun  # the last step was the end: nothing was begun behind it
    folder = run.trainer.checkpoints.path(2)
    resumed = make_overlapped(tmp_path, turns=9, steps=4)
    resumed.trainer.load(folder)
    collector = resumed.method.collector
    assert (collector.begun, collector.step) == (True, 3)
    assert collector.account.count["groups/dispatched"] > 0
    judged = {id(group) for group in collector.account.groups}
    assert judged & {id(group) for group in collector.kept}  # one object each, wherever it is held


# ---------------------------------------------------------------- checkpoints and evaluations leave training alone


@pytest.mark.parametrize("turns", [1, 4])
def test_a_checkpoint_or_an_evaluation_changes_nothing_that_is_trained(turns, tmp_path):
    """Neither ``checkpoint.every`` nor ``validation.every`` changes a row or a weight."""
    options = {"turns": turns, "steps": 7, "lag": 6, "capacity": 5}
    plain = make_overlapped(tmp_path / "plain", save_every=0, evaluate_every=0, **options)
    saved = make_overlapped(tmp_path / "saved", save_every=1, evaluate_every=0, **options)
    looked = make_overlapped(tmp_path / "looked", save_every=0, evaluate_every=1, **options)
    for run in (plain, saved, looked):
        assert run()
    assert max(map(max, ages(plain))) >= 1  # it did work beside the learner
    for other in (saved, looked):
        assert other.trained == plain.trained
        assert other.learner.scores.tolist() == plain.learner.scores.tolist()
        assert ages(other) == ages(plain)
    assert numbers(saved) == numbers(plain)
    for step, row in numbers(plain).items():
        assert {k: v for k, v in numbers(looked)[step].items() if not k.startswith("validation/")} == row


@pytest.mark.parametrize("left", [1, 3, 5])
def test_a_run_that_was_left_off_its_interval_is_the_run_that_was_not(left, tmp_path):
    options = {"turns": 3, "steps": 6, "save_every": 4, "lag": 6, "capacity": 5}
    whole = make_overlapped(tmp_path / "whole", **options)
    assert whole()
    run = make_overlapped(tmp_path / "left", **options)
    steps = run.trainer.each_step()
    while next(steps).step < left:
        pass
    steps.close()
    assert run.saved[-1] == left
    again = make_overlapped(tmp_path / "left", resume=True, **options)
    assert again()
    assert run.trained[:left] + again.trained == whole.trained
    assert again.learner.scores.tolist() == whole.learner.scores.tolist()
    for step in range(left + 1, 7):
        assert numbers(again)[step] == numbers(whole)[step]


# ---------------------------------------------------------------- what goes wrong meanwhile


def test_an_engine_lost_beside_learning_costs_no_learnt_step(tmp_path):
    run = make_overlapped(tmp_path, turns=3, lost={("poll", "generate", 2)}, hooks={})
    with pytest.raises(EngineError, match="lost"):
        run()
    done = run.trainer.counters.training_steps
    assert done == run.saved[-1] == max(run.recorder.rows)
    again = make_overlapped(tmp_path, turns=3, resume=True)
    assert again()
    everything = run.trained[:done] + again.trained
    assert len(everything) == STEPS
    flat = [group for groups in everything for group in groups]
    assert len(set(flat)) == len(flat)


def scorer_that_fails(run, at):
    """The scores of group ``at`` are asked for, and the scorer is gone. Returns whether that was beside learning."""
    collector, phases = run.method.collector, run.trainer.phases
    submit, beside = collector.rollouts.scorer.submit, []

    def fails(key, prompt, completion):
        if key.lane == "train" and key.group >= at:
            beside.append(collector.step > phases.step)
            raise RewardError("the verifier is gone")
        submit(key, prompt, completion)

    collector.rollouts.scorer.submit = fails
    return beside


@pytest.mark.parametrize(("at", "beside"), [(12, True), (17, False), (28, False), (32, True)])
def test_a_verifier_lost_at_any_time_costs_no_learnt_step(at, beside, tmp_path):
    """The learnt steps are saved. Between two of them, a resume is the run without the failure, to the bit; beside
    learning, the weights that the first turns had are gone."""
    options = {"turns": 3, "save_every": 0, "steps": 5, "lag": 2}
    whole = make_overlapped(tmp_path / "whole", **options)
    assert whole()
    run = make_overlapped(tmp_path / "failed", **options)
    failed = scorer_that_fails(run, at)
    with pytest.raises(RewardError, match="the verifier is gone"):
        run()
    assert failed[0] is beside
    done = run.trainer.counters.training_steps
    assert run.saved == [done]
    assert sorted(run.recorder.rows) == list(range(done + 1))
    assert run.trained == whole.trained[:done]
    again = make_overlapped(tmp_path / "failed", resume=True, **options)
    assert again()
    everything = run.trained + again.trained
    groups = [group for step in everything for group in step]
    assert (len(everything), len(set(groups))) == (5, len(groups))
    assert all(0 <= age <= 2 for step in ages(again) for age in step)
    if not beside:
        assert again.learner.scores.tolist() == whole.learner.scores.tolist()
        assert numbers(again) == {step: row for step, row in numbers(whole).items() if step > done}


def test_a_batch_that_cannot_fill_stops_the_run_after_the_step_before(tmp_path):
    """Found out while step 1 was learnt from: step 1 is recorded and saved, then the run says why."""
    first = lambda g, i: float(i == 0) if g < 4 else 0.0  # noqa: E731
    options = {
        "length": length,
        "accuracy": first,
        "learner": Later,
        "max_age": 2,
        "cap": {"groups": 2.0},
        "lookahead": 0.0,
    }
    run = make_run(tmp_path, turns=200, **options)
    with pytest.raises(SamplingStopped):
        run()
    assert (sorted(run.recorder.rows), run.saved) == ([0, 1], [1])
    assert [step for step, judged in run.recorder.stops if judged] == [2]


def test_a_learner_that_fails_fails_the_run(tmp_path):
    class Fails(Later):
        def learn(self, step):
            handle = super().learn(step)

            def result(timeout=None):
                raise LearnerError("not finite")

            handle.result = result
            return handle

    run = make_run(tmp_path, **WORLD | {"learner": Fails}, turns=2)
    with pytest.raises(LearnerError, match="not finite"):
        run()


def test_a_slow_verifier_stops_neither_engine_nor_learner():
    """Scores that are late are not waited for while anything decodes; what has its scores is judged."""
    world = {"length": lambda g, i: 3, "accuracy": lambda g, i: float(i == 0)}
    scorer = ScriptedScorer(world["accuracy"])
    scorer.slow = {0}  # the verdict on the first group does not come
    collector = make_collector(**world, overlaps=True, lookahead=1.0, turn=0.0, capacity=8)
    collector.rollouts.scorer = scorer
    collector.begin(1)
    for _ in range(60):
        collector.pump(0.0)
    assert {group.id for group in collector.kept} == set(range(1, 8))  # P and the next one's, but for the late one
    assert list(collector.open) == [0]
    collector.hold()  # a save does not wait either
    state = collector.state()
    assert [tree["id"] for tree in state["open"]] == [0]
    scorer.slow = set()
    collector.pump(0.0)
    assert 0 in {group.id for group in collector.kept}
    assert Counter(scorer.keys) == Counter(dict.fromkeys(scorer.keys, 1))  # and it was asked once


def test_evaluation_beside_training_takes_nothing_of_it(tmp_path):
    """What ends while the run is evaluated waits in its lane, and trains whole and once."""
    run = make_overlapped(tmp_path, turns=4, evaluate_every=1)
    assert run()
    assert run.recorder.evaluations == list(range(STEPS + 1))
    rows = [row for step in run.learner.steps for rows in step.minibatches for row in rows]
    for row in rows:
        assert row.token_ids.tolist() == [
            row.group * 1000 + row.sample * 100 + t for t in range(length(row.group, row.sample))
        ]
    assert len({(row.group, row.sample) for row in rows}) == len(rows) == STEPS * 4 * 2


# ---------------------------------------------------------------- who waits for whom


def test_idle_seconds_are_what_is_left_of_a_step():
    now, busy = [0.0], [0.0]
    idle = Idle(lambda: busy[0], lambda: now[0])
    idle.take(0.0)
    with idle.learner():
        now[0] += 3.0
    busy[0] += 7.5
    assert idle.take(10.0) == {"time/learner_idle": 7.0, "time/engine_idle": 2.5}
    assert idle.take(4.0) == {"time/learner_idle": 4.0, "time/engine_idle": 4.0}


def test_stretches_of_work_become_spans_beside_the_phases():
    """The learner's from beginning to end; the engines' end where they are heard of, and are as long as the work."""
    now, busy, spans = [0.0], [0.0], []
    phases = Phases(spans.append, lambda: now[0], lambda: 1000.0)
    phases.step = 7
    idle = Idle(lambda: busy[0], phases.clock, phases.beside)
    with idle.learner():
        now[0], busy[0] = 2.0, 1.5
        idle.look_at_engines()
        now[0] = 3.0
        idle.look_at_engines()  # nothing was heard of: no span
    assert [(s.step, s.name, s.start, s.seconds, s.busy) for s in spans] == [
        (7, "engines busy", 1000.5, 1.5, 1.5),
        (7, "learner busy", 1000.0, 3.0, 3.0),
    ]
    assert phases.take() == {"time/other": 3.0, "time/step": 3.0}  # no phase's seconds
    assert idle.take(3.0) == {"time/learner_idle": 0.0, "time/engine_idle": 1.5}


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_run_tells_of_them_only_where_they_work_at_the_same_time(tmp_path, overlaps):
    spans = []
    run = make_overlapped(tmp_path, turns=2) if overlaps else make_run(tmp_path)
    run.trainer.phases._sink = lambda span: spans.append(span.name)
    assert run()
    assert ({"engines busy", "learner busy"} <= set(spans)) == overlaps
    assert (spans.count("learner busy") == STEPS) == overlaps


def test_staleness_by_hand():
    def row(versions, mask):
        n = len(versions)
        return Row(0, np.zeros(2, np.int32), np.zeros(n, np.int32), 0, np.array(mask), np.zeros(n, np.float32),
                   np.array(versions, np.int32), 1.0, 1.0, False)  # fmt: skip

    found = staleness([[row([3, 4, 5], [True, True, False])], [row([5], [True])]], version=5)
    assert found == {
        "policy/staleness_mean": pytest.approx(1.0),
        "policy/staleness_max": 2,
        "policy/staleness_share/0": pytest.approx(1 / 3),
        "policy/staleness_share/1": pytest.approx(1 / 3),
        "policy/staleness_share/2": pytest.approx(1 / 3),
    }
    assert math.isnan(staleness([], 1)["policy/staleness_mean"])
