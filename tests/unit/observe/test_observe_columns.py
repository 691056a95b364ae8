"""Which columns of the data divide the problems, and on which values held-out accuracy fell: worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluated import evaluation, of_counts

from dapo.observe.columns import accuracy_by_value, changes_by_value, columns_of, fallen_said
from dapo.observe.evaluations import held_out_of, read_evaluation, read_held_out, write_evaluation
from dapo.observe.held_out import AccuracyPoint
from dapo.types.batch import Prompt


def prompts(extras, source="s", answers=None):
    return [
        Prompt(f"{n}", "", np.array([1]), f"p{n}", str(n) if answers is None else answers[n], source, extra)
        for n, extra in enumerate(extras)
    ]


def names(extras, **more):
    return sorted({name for row in columns_of(prompts(extras, **more)) for name in row})


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([1, 2] * 4, True),
        ([True, False] * 4, True),
        (["algebra", "geometry"] * 4, True),
        ([1.0, 2.0, math.nan, None] * 4, True),  # whole numbers with missing ones, as a table of floats has them
        (["a", "b", "", " "] * 4, True),
        (list(range(12)) * 4, True),
        (list(range(13)) * 4, False),  # too many values
        ([1] * 8, False),  # one
        ([1, 2] * 3, False),  # three problems a value
        (list(range(8)), False),  # a number of the row
        ([0.25, 0.75] * 4, False),
        ([math.inf, 1.0] * 4, False),
        ([10**7, 1] * 4, False),
        (["x" * 41, "y"] * 4, False),
        ([[1], [2]] * 4, False),
        ([1, [2]] * 4, False),
    ],
)
def test_a_column_counts_if_a_few_short_values_divide_the_problems(values, counts):
    assert names([{"c": value} for value in values]) == ["c"] * counts


@pytest.mark.parametrize(
    ("values", "answers"),
    [([7, 8], ["7", "8"]), (["7.0", "8.0"], ["7", "8"]), ([7, 8], ["7.0", "8.0"]), ([True, False], ["True", "False"])],
)
def test_a_column_that_repeats_the_answer_in_another_form_does_not_count(values, answers):
    assert names([{"c": value} for value in values * 4], answers=answers * 4) == []
    assert names([{"c": value} for value in values * 4], answers=answers[::-1] * 4) == ["c"]


def test_values_are_those_of_the_data_and_missing_ones_are_left_out():
    rows = columns_of(prompts([{"level": 3.0, "hard": True, "topic": None}, {"level": 2, "hard": False}] * 4))
    assert rows[:2] == [{"level": "3", "hard": "true"}, {"level": "2", "hard": "false"}]


def test_columns_of_an_object_count_and_the_answer_does_not():
    """verl's rows: the gold answer stands once more in an object."""
    extras = [{"reward_model": {"ground_truth": "ab"[n % 2]}, "extra_info": {"level": n // 4}} for n in range(8)]
    assert names(extras, answers=["ab"[n % 2] for n in range(8)]) == ["extra_info.level"]


def test_columns_are_chosen_for_each_source():
    both = [*prompts([{"c": n % 2} for n in range(8)], "a"), *prompts([{"c": n} for n in range(20)], "b")]
    found = columns_of(both)
    assert found[:2] == [{"c": "0"}, {"c": "1"}]
    assert found[8:] == [{}] * 20


def point(step, responses):
    return AccuracyPoint(step, 0.5, None, lambda: held_out_of(responses))


KINDS = [{"kind": "plus"}] * 4 + [{"kind": "minus"}] * 4


def test_the_change_on_a_value_worked_by_hand():
    """Of "plus" d = -1 four times and the two added problems: n' = 6, d' = -2/3, s'^2 = 5/6 - 4/9 = 7/18."""
    before, after = ([[1]] * 4 + [[0]] * 4, [[0]] * 4 + [[0]] * 3 + [[1]])
    points = [point(0, evaluation(before, columns=KINDS)), point(9, evaluation(after, columns=KINDS))]
    minus, plus = changes_by_value(points)
    assert (minus.value, minus.problems, minus.before, minus.after) == (("held_out", "kind", "minus"), 4, 0, 0.25)
    assert (plus.value, plus.before, plus.after, plus.change.mean) == (("held_out", "kind", "plus"), 1, 0, -1)
    half = 2.241403 * math.sqrt(7 / 18 / 6)  # of 0.05 / 2
    assert plus.change.high == pytest.approx(-2 / 3 + half, abs=1e-6)
    assert plus.fell
    assert not minus.fell
    said = fallen_said([minus, plus], points)
    assert said == (
        "Held-out accuracy fell from step 0 to step 9 where kind = plus, from 100.0% to 0.0% "
        f"(4 problems of held_out; by {200 / 3 - 100 * half:.1f} to {-100 * plus.change.low:.1f} points)."
    )
    assert fallen_said([minus], points) == ""
    assert changes_by_value(points[:1]) == []


def test_numbers_are_in_order_and_the_accuracy_is_that_of_their_problems():
    levels = [{"level": level} for level in (2, 10, 1) for _ in range(4)]
    found = accuracy_by_value(held_out_of(evaluation([[1, 0]] * 4 + [[0]] * 4 + [[1]] * 4, columns=levels)))
    assert {value.value: accuracy for value, accuracy in found.items()} == {"1": 1, "2": 0.5, "10": 0}
    assert [value.value for value in found] == ["1", "2", "10"]


def test_where_nothing_changed_few_runs_say_that_something_fell():
    """12 values: without an allowance for their number every fourth run would name one."""
    dice = np.random.default_rng(5)
    columns = [{"level": n % 12} for n in range(240)]
    told = 0
    for _ in range(200):
        rates = dice.beta(0.7, 0.7, 240)
        two = [point(n, evaluation(of_counts(dice.binomial(4, rates), 4), columns=columns)) for n in range(2)]
        told += fallen_said(changes_by_value(two), two) != ""
    assert told / 200 < 0.06


def test_columns_come_back_from_the_file_and_older_files_have_none(tmp_path):
    path = tmp_path / "step_000000.parquet"
    made = evaluation([[1.0, 0.0]] * 8, columns=KINDS)
    write_evaluation(path, 0, made)
    assert read_held_out(path) == held_out_of(made)
    assert [one.columns for one in read_held_out(path).problems.values()] == KINDS
    table = read_evaluation(path)
    assert table["columns"].combine_chunks().dictionary.to_pylist() == ['{"kind": "plus"}', '{"kind": "minus"}']
    pq.write_table(table.drop_columns(["columns"]), path)
    old = read_held_out(path)
    assert old.known == 16
    assert changes_by_value([point(0, made), replace(point(9, made), read=lambda: old)]) == []
    odd = pa.array(['{"kind"', "[1]", "7", '{"kind": 3}'] * 4)
    pq.write_table(table.drop_columns(["columns"]).append_column("columns", odd), path)
    assert read_held_out(path).known == 16
