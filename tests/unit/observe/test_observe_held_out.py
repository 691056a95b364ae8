"""Two evaluations of the same problems are compared in pairs: values worked by hand, and counted by simulation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluated import evaluation, of_counts

from dapo.algorithms.statistics import mean_interval
from dapo.observe.evaluations import held_out_of, read_held_out, write_evaluation
from dapo.observe.held_out import AccuracyPoint, chance_between, difference, differences, moved, pass_difference


def counted(right, **more):
    return held_out_of(evaluation(right, **more))


def point(step, right):
    """An evaluation with the interval that metrics.jsonl has."""
    found = mean_interval(right, bounds=(0.0, 1.0))
    return AccuracyPoint(step, found.mean, (found.low, found.high), lambda: counted(right))


def test_the_interval_of_a_change_worked_by_hand():
    # d = 1, 0, 0, 0 and the two added problems: n' = 6, d' = 1/6, s'^2 = (1 + 1) / 6 - 1/36 = 11/36
    before, after = counted([[0], [0], [1], [1]]), counted([[1], [0], [1], [1]])
    change = difference(before, after)
    assert change.mean == 0.25
    assert change.low == pytest.approx(1 / 6 - 1.959964 * math.sqrt(11 / 36 / 6), abs=1e-6)
    assert change.high == pytest.approx(1 / 6 + 1.959964 * math.sqrt(11 / 36 / 6), abs=1e-6)


def test_what_chance_explains_is_the_change_that_would_just_leave_zero_outside():
    for won, lost in itertools.product(range(11), range(11)):
        before, after = [[0.0]] * won + [[1.0]] * lost + [[1.0]] * 10, [[1.0]] * won + [[0.0]] * lost + [[1.0]] * 10
        change = difference(counted(before), counted(after))
        told = abs(change.mean) > chance_between(point(0, before), point(9, after))
        assert told == (not change.low <= 0 <= change.high), (won, lost)


def test_in_pairs_the_variance_is_that_of_both_less_twice_their_covariance():
    dice = np.random.default_rng(3)
    rates = dice.beta(0.5, 0.5, 400)
    first, second = dice.binomial(4, rates), dice.binomial(4, np.clip(rates + 0.03, 0, 1))
    a, b = first / 4, second / 4
    expected = 1.959964 * math.sqrt((a.var(ddof=1) + b.var(ddof=1) - 2 * np.cov(a, b)[0, 1]) / 400)
    one, other = point(0, of_counts(first, 4)), point(9, of_counts(second, 4))
    assert chance_between(one, other) == pytest.approx(expected, rel=0.05)
    apart = chance_between(replace(one, read=lambda: None), replace(other, read=lambda: None))
    assert apart == pytest.approx(math.hypot(one.half, other.half))
    assert apart > 1.2 * expected  # what the independent formula gave


def test_where_nothing_changed_one_in_twenty_changes_is_more_than_chance():
    dice = np.random.default_rng(11)
    wrong = alone = 0
    for _ in range(400):
        rates = dice.beta(0.7, 0.7, 120)
        one, other = (point(0, of_counts(dice.binomial(4, rates), 4)) for _ in range(2))
        change = abs(one.accuracy - other.accuracy)
        wrong += change > chance_between(one, other)
        alone += change > math.hypot(one.half, other.half)
    assert 0.025 < wrong / 400 < 0.08
    assert alone / 400 < 0.015  # independent intervals hid real changes: they were too wide


def test_problems_are_the_same_by_their_content_and_not_by_their_place():
    right = of_counts([4, 0, 2, 1, 3, 4, 0, 0, 1, 2], 4)
    shuffled = [3, 1, 0, 2, 9, 8, 7, 6, 5, 4]
    assert difference(counted(right), counted(right, order=shuffled)) == difference(counted(right), counted(right))


def test_equal_problems_are_told_apart_by_their_place_even_if_one_is_not_scored():
    twice = evaluation([[0.0], [1.0]])
    same = twice["held_out"][0].prompt
    alike = {"held_out": [replace(group, prompt=same) for group in twice["held_out"]]}
    lost = {"held_out": [replace(group, prompt=same) for group in evaluation([[None], [1.0]])["held_out"]]}
    ((estimate, problems),) = differences(held_out_of(lost), held_out_of(alike)).values()
    assert (estimate.mean, problems) == (0.0, 1)  # the second with the second
    ((_, problems),) = differences(held_out_of(alike), held_out_of(alike)).values()
    assert problems == 2


def test_other_problems_are_compared_as_independent_evaluations():
    right = of_counts([2] * 50, 4)
    one = point(0, right)
    other = AccuracyPoint(9, 0.5, one.interval, lambda: counted(right, first=20))  # 30 of 50 are the same
    assert difference(one.read(), other.read()) is None
    assert chance_between(one, other) == pytest.approx(math.hypot(one.half, other.half))


def test_a_set_counts_once_however_large_it_is():
    small, large = [[0.0]] * 10, [[0.0]] * 90
    before = held_out_of(evaluation(small, name="a") | evaluation(large, name="b"))
    after = held_out_of(evaluation([[1.0]] * 10, name="a") | evaluation(large, name="b"))
    assert difference(before, after).mean == pytest.approx(0.5)


def test_the_change_of_pass_at_k_is_of_the_problems_pass_at_k():
    # pass@2 of c right among 3: 0, 2/3, 1, 1
    before, after = counted(of_counts([0, 1, 2, 3], 3)), counted(of_counts([1, 1, 1, 3], 3))
    assert pass_difference(before, after, 2).mean == pytest.approx((2 / 3 + 0 - 1 / 3 + 0) / 4)
    assert pass_difference(before, after, 4) is None


def test_problems_won_and_given_up_with_the_probability_that_chance_gives_them():
    early = [counted(of_counts([4, 1, 0, 2, 0], 4)), counted(of_counts([4, 0, 0, 2, 0], 4))]
    late = [counted(of_counts([0, 0, 3, 1, 0], 4)), counted(of_counts([0, 0, 4, 0, 0], 4))]
    lost, won = moved(early, late)
    assert [(one.early.number, one.early.right, one.late.right) for one in lost] == [(0, 8, 0), (1, 1, 0)]
    assert [(one.early.number, one.early.right, one.late.right) for one in won] == [(2, 0, 7)]
    assert lost[0].by_chance == pytest.approx(1 / math.comb(16, 8))  # all 8 right ones in the first 8 of 16
    assert lost[1].by_chance == 0.5
    assert won[0].by_chance == pytest.approx(math.comb(8, 7) / math.comb(16, 7))


def test_what_no_evaluation_wrote_is_no_evaluation(tmp_path):
    path = tmp_path / "run" / "step_000010.parquet"
    path.parent.mkdir()
    assert read_held_out(path) is None
    path.write_bytes(b"PAR1")
    assert read_held_out(path) is None
    pq.write_table(pa.table({"step": [1]}), path)
    assert read_held_out(path) is None
    write_evaluation(tmp_path / "elsewhere.parquet", 10, evaluation([[1.0, math.inf, None]]))
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere.parquet")
    assert read_held_out(path, within=path.parent) is None
    found = read_held_out(path)
    assert (found.responses, found.known, found.right) == (3, 1, 1)  # an infinite accuracy is none
