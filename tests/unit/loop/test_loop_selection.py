"""Prompt history, retirement and GRESO's skipping; numbers by hand."""

from pathlib import Path

import numpy as np
import pytest
from scripted import CountingStream, make_collector

from dapo.checkpoint.tree import load_tree, save_tree
from dapo.config.schema import Selection
from dapo.errors import SamplingStopped
from dapo.loop.sampling.prompts import PromptHistory, PromptRecord, PromptSelector
from dapo.observe.sentences import stop_said
from dapo.types.batch import content_id
from dapo.types.enums import Verdict


def prompt_id(n):
    return content_id(f"problem {n}")


def selector(records=None, distinct=10, seed=1, **settings):
    history = PromptHistory()
    history.records = {prompt_id(n): record for n, record in (records or {}).items()}
    return PromptSelector(CountingStream(distinct=distinct), history, Selection(**settings), seed)


def solved(streak=1):
    return PromptRecord(visits=1, responses=4, correct=4, last_responses=4, last_correct=4, streak=streak)


def hopeless(streak=1):
    return PromptRecord(visits=1, responses=4, correct=0, last_responses=4, last_correct=0, streak=streak)


def test_history_follows_a_prompt_over_its_visits():
    # group g is a visit to problem g % 3: problem 0 is solved at once, 1 is mixed, then solved, 2 never
    accuracy = lambda g, i: [1.0, float(i) if g < 3 else 1.0, 0.0][g % 3]  # noqa: E731
    collector = make_collector(
        length=lambda g, i: 1, accuracy=accuracy, distinct=3, mode="off", prompts=3, group=2, max_age=0
    )
    for step in (1, 2, 3):
        collector.collect(step)
    records = collector.history.records
    assert records[prompt_id(0)] == PromptRecord(3, 6, 6, 2, 2, list(Verdict).index(Verdict.ALL_CORRECT), 3, 3)
    assert records[prompt_id(1)] == PromptRecord(3, 6, 5, 2, 2, list(Verdict).index(Verdict.ALL_CORRECT), 2, 3)
    assert records[prompt_id(2)] == PromptRecord(3, 6, 0, 2, 0, list(Verdict).index(Verdict.ALL_WRONG), 3, 3)


def test_a_visit_without_voters_counts_and_changes_nothing_else():
    accuracy = lambda g, i: "timeout" if g == 1 else float(i)  # noqa: E731
    collector = make_collector(length=lambda g, i: 1, accuracy=accuracy, distinct=1, mode="off", prompts=1)
    collector.collect(1)
    before = collector.history.records[prompt_id(0)]
    assert (before.visits, before.responses, before.correct) == (1, 2, 1)
    collector.collect(2)
    assert collector.history.records[prompt_id(0)] == PromptRecord(2, 2, 1, 2, 1, 0, 0, 2)


def test_hopeless_prompts_are_known_by_what_they_did_before():
    wrong = list(Verdict).index(Verdict.ALL_WRONG)
    history = PromptHistory()
    history.records = {
        "fell back": PromptRecord(3, 12, 3, 4, 0, wrong),  # 3 of 8 before its last visit
        "never": PromptRecord(2, 8, 0, 4, 0, wrong),
        "new": PromptRecord(1, 4, 0, 4, 0, wrong),
        "solved": PromptRecord(2, 8, 6, 4, 4, list(Verdict).index(Verdict.ALL_CORRECT)),
    }
    assert history.hopeless_rates() == [0.375, 0.0]


def test_history_survives_a_checkpoint(tmp_path):
    first = selector({0: solved(3), 4: hopeless(2)}, greso={})
    first.greso.p_easy, first.greso.p_hard = 0.31, 0.72
    first.take(7)
    save_tree(first.state(), tmp_path, "state")
    again = selector(greso={})
    state = load_tree(tmp_path, "state")
    again.load(state)
    assert again.history.records == first.history.records
    assert again.draws == first.draws > 7
    assert [p.id for p in again.take(20)] == [p.id for p in first.take(20)]
    assert (state["history"]["greso"], state["history"]["size"]) == ({"p_easy": 0.31, "p_hard": 0.72}, 10)


def test_without_savers_the_stream_is_taken_as_it_is():
    plain = selector({n: solved(9) for n in range(10)})
    assert [p.id for p in plain.take(15)] == [prompt_id(n % 10) for n in range(15)]
    assert plain.skipped == 0


def test_solved_prompts_retire_and_are_reviewed_now_and_then():
    retired = {n: solved() for n in range(5)}
    none = selector(retired, retire={"at": 1.0, "review": 0.0})
    assert {p.id for p in none.take(40)} == {prompt_id(n) for n in range(5, 10)}
    assert none.retired() == 5
    assert none.skipped == 40  # eight times round
    some = selector(retired, retire={"at": 1.0, "review": 0.1})
    share = np.mean([p.id in {prompt_id(n) for n in range(5)} for p in some.take(4000)])
    assert share == pytest.approx(0.1 / 1.1, abs=0.015)


def test_a_threshold_below_one_and_the_last_visit_decides():
    almost = PromptRecord(visits=3, responses=12, correct=3, last_responses=4, last_correct=3)
    assert selector({0: almost}, retire={"at": 0.75}).retired() == 1
    assert selector({0: almost}, retire={"at": 0.76}).retired() == 0
    fallen_back = PromptRecord(visits=3, responses=12, correct=8, last_responses=4, last_correct=0)
    assert selector({0: fallen_back}, retire={"at": 0.5}).retired() == 0


def test_greso_skips_with_one_minus_p_to_the_streak():
    s = selector(greso={})
    s.greso.p_easy, s.greso.p_hard = 0.4, 0.8
    assert s.explore(solved(1)) == pytest.approx(0.4)
    assert s.explore(solved(3)) == pytest.approx(0.064)
    assert s.explore(hopeless(2)) == pytest.approx(0.64)
    assert s.explore(solved(30)) == 0.01  # never below one in a hundred
    assert s.explore(PromptRecord(visits=4, last_responses=4, last_correct=2)) == 1.0
    one = selector({0: hopeless(1)}, greso={}, distinct=2)
    drawn = [p.id for p in one.take(6000)]
    one_in_two = drawn.count(prompt_id(0)) / drawn.count(prompt_id(1))
    assert one_in_two == pytest.approx(0.5, abs=0.03)
    assert one.skipped == pytest.approx(2000, abs=120)


def test_greso_moves_each_probability_towards_its_own_target():
    s = selector(greso={"target": 0.3})  # 0.1 easy, 0.2 hard
    s.end_step({Verdict.KEPT: 7, Verdict.ALL_CORRECT: 2, Verdict.ALL_WRONG: 1})
    assert (s.greso.p_easy, s.greso.p_hard) == (pytest.approx(0.49), pytest.approx(0.51))
    s.end_step({Verdict.KEPT: 7, Verdict.ALL_CORRECT: 0, Verdict.ALL_WRONG: 3})
    assert (s.greso.p_easy, s.greso.p_hard) == (pytest.approx(0.5), pytest.approx(0.5))
    s.end_step({})  # nothing was judged
    assert (s.greso.p_easy, s.greso.p_hard) == (pytest.approx(0.5), pytest.approx(0.5))
    for _ in range(100):
        s.end_step({Verdict.ALL_CORRECT: 1})
    assert (s.greso.p_easy, s.greso.p_hard) == (0.05, 0.95)
    off = selector()
    off.end_step({Verdict.ALL_CORRECT: 1})
    assert (off.greso.p_easy, off.greso.p_hard) == (0.5, 0.5)


def test_data_that_is_all_retired_is_an_end_with_a_name():
    world = {"length": lambda g, i: 2, "distinct": 3, "selection": {"retire": {"at": 0.5, "review": 0.0}}}
    collector = make_collector(**world, accuracy=lambda g, i: 1.0 if g else float(i))
    with pytest.raises(SamplingStopped) as stopped:
        collector.collect(1)
    assert (stopped.value.evidence.met, stopped.value.evidence.kept) == ("retired", 1)
    text = stop_said(stopped.value.evidence, Path("RUN"))
    assert "every prompt is retired with 1 of 4 groups kept" in text
    assert "selection.retire=null" in text
    nothing_held = make_collector(**world, accuracy=lambda g, i: 1.0)
    assert nothing_held.collect(1).groups_P == []
    assert nothing_held.exhausted
    assert nothing_held.selector.ended == "retired"


def test_retirement_saves_generation_and_is_counted():
    world = {
        "length": lambda g, i: 3,
        "accuracy": lambda g, i: float(i),
        "distinct": 4,
        "prompts": 2,
        "cap": {"groups": None},
    }
    collector = make_collector(**world, selection={"retire": {"at": 0.5, "review": 0.25}})
    metrics = [collector.collect(step).metrics for step in range(1, 30)]
    assert metrics[-1]["sampling/retired_prompts"] == 4  # every visit gives one half, the threshold
    skipped = sum(m["sampling/skipped_prompts"] for m in metrics)
    assert skipped == metrics[-1]["total/sampling/skipped_prompts"] > 50


def test_a_mixed_visit_ends_the_streak():
    accuracy = lambda g, i: [0.0, 0.0, float(i), 1.0][g]  # noqa: E731
    collector = make_collector(length=lambda g, i: 1, accuracy=accuracy, distinct=1, mode="off", prompts=1)
    streaks = []
    for step in (1, 2, 3, 4):
        collector.collect(step)
        streaks.append(collector.history.records[prompt_id(0)].streak)
    assert streaks == [1, 2, 0, 1]
