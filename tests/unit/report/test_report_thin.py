import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.report.thin import curves_of, matrix_of, plain, stretches, thin

NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)


def rows_of(values, **others):
    return [{"step": n, "a": value, **{k: v[n] for k, v in others.items()}} for n, value in enumerate(values)]


def test_few_steps_are_shown_as_they_are():
    curves = curves_of([{"step": 3, "a": 0.1, "b": 2}, {"step": 7, "a": None}], points=3)
    assert curves["steps"] == [3, 7]
    assert curves["values"] == {"a": [0.1, None], "b": [2, None]}
    assert (curves["low"], curves["high"]) == ({}, {})
    assert curves["thinned"] == {"kept": 2, "of": 2, "how": "Every step is shown."}


def test_no_rows_make_no_curves():
    assert curves_of([])["steps"] == []


def test_stretches_by_hand():
    # 8 rows in 4 points: the ends alone, the six between them in two stretches of three
    curves = curves_of(rows_of([1.0, 2.0, 3.0, 7.0, 5.0, None, 6.0, 9.0]), points=4)
    assert curves["steps"] == [0, 2, 5, 7]
    assert curves["values"]["a"] == [1, 4, 5.5, 9]
    assert curves["low"]["a"] == [1, 2, 5, 9]
    assert curves["high"]["a"] == [1, 7, 6, 9]
    assert (curves["thinned"]["kept"], curves["thinned"]["of"]) == (4, 8)
    assert "mean of up to 3 steps" in curves["thinned"]["how"]


def test_evaluations_are_points_of_their_own_at_their_own_step():
    held = [0.5 if n in (3, 4, 17) else None for n in range(20)]
    curves = curves_of(rows_of([0.0] * 20, **{"validation/accuracy": held}), points=5)
    known = {
        s: v for s, v in zip(curves["steps"], curves["values"]["validation/accuracy"], strict=True) if v is not None
    }
    assert known == {3: 0.5, 4: 0.5, 17: 0.5}
    assert "validation/accuracy" not in curves["low"]  # nothing was averaged, so there is no band
    assert "so is every evaluation" in curves["thinned"]["how"]


def test_too_many_evaluations_are_averaged_like_the_rest():
    held = [float(n % 2) for n in range(100)]
    curves = curves_of(rows_of([0.0] * 100, **{"validation/accuracy": held}), points=12)
    assert len(curves["steps"]) == 12
    assert "evaluation" not in curves["thinned"]["how"]
    assert (min(curves["low"]["validation/accuracy"]), max(curves["high"]["validation/accuracy"])) == (0, 1)


def test_a_flag_of_one_step_is_seen_in_the_greatest_value():
    flags = [0] * 5000
    flags[3141] = 1
    curves = curves_of(rows_of(flags))
    assert len(curves["steps"]) <= 600
    assert max(curves["high"]["a"]) == 1
    at = curves["high"]["a"].index(1)
    assert 0 < curves["values"]["a"][at] < 1
    assert abs(curves["steps"][at] - 3141) <= 9


@given(st.lists(NUMBERS, min_size=1, max_size=200), st.integers(3, 40), st.data())
def test_no_extreme_is_lost_and_the_ends_stay(values, points, data):
    alone = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    starts, marks = stretches(len(values), points, alone)
    ends = np.append(starts[1:], len(values))
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert ((starts <= marks) & (marks < ends)).all()
    assert marks[0] == 0
    assert marks[-1] == len(values) - 1
    assert len(starts) <= points + alone.sum()
    _, matrix = matrix_of([{"step": n, "a": v} for n, v in enumerate(values)], ["a"])
    mean, low, high = thin(matrix, starts)
    known = [v for v in values if v is not None]
    if known:
        assert (np.nanmin(low), np.nanmax(high)) == (min(known), max(known))
        told = ~np.isnan(mean)
        assert (low[told] <= mean[told]).all()
        assert (mean[told] <= high[told]).all()
    for n, (a, b) in enumerate(zip(starts, ends, strict=True)):
        here = [v for v in values[a:b] if v is not None]
        if here:
            exact = math.fsum(v / len(here) for v in here)
            assert mean[n, 0] == pytest.approx(exact, rel=1e-9, abs=1e-12 * max(map(abs, here)))
        else:
            assert np.isnan(mean[n, 0])


def test_numbers_keep_seven_figures_and_whole_ones_stay_whole():
    assert plain(np.array([1 / 3, 123456789.0, np.nan, np.inf, -0.0, 1e300])) == [
        0.3333333,
        123456789,
        None,
        None,
        0,
        1e300,
    ]
