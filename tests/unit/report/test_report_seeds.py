"""Intervals over seeds, against tables, an independent library, and values worked out by hand."""

import math
import statistics

import mpmath
import pytest

from dapo.report.seeds import difference_of_means, mean_over_seeds, student


@pytest.mark.parametrize(
    ("freedom", "at_95", "at_99"), [(1, 12.706, 63.657), (2, 4.303, 9.925), (4, 2.776, 4.604), (10, 2.228, 3.169)]
)
def test_quantiles_are_those_of_printed_tables(freedom, at_95, at_99):
    assert student(freedom, 0.95) == pytest.approx(at_95, abs=5e-4)
    assert student(freedom, 0.99) == pytest.approx(at_99, abs=5e-4)


@pytest.mark.parametrize("freedom", [1, 1.3, 2.9, 7.5, 40, 1e5])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_quantiles_have_their_probability_by_the_incomplete_beta_function(freedom, confidence):
    t = student(freedom, confidence)
    outside = mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True)
    assert float(1 - outside) == pytest.approx(confidence, abs=1e-8)


def test_a_mean_by_hand():
    found = mean_over_seeds([0.03, 0.04, 0.05, 0.06, 0.07], confidence=0.99)
    # deviation 0.015811, error 0.0070711, t of 4 degrees of freedom 4.6041
    assert found.mean == pytest.approx(0.05)
    assert (found.low, found.high) == pytest.approx((0.05 - 0.032556, 0.05 + 0.032556), abs=1e-6)
    assert math.isnan(mean_over_seeds([0.5]).low)


def test_welchs_interval_by_its_textbook_formulas():
    before, after = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0]
    a, b = (statistics.variance(values) / len(values) for values in (before, after))
    freedom = (a + b) ** 2 / (a**2 / 5 + b**2 / 7)
    assert freedom == pytest.approx(7.05, abs=0.05)
    reach = student(freedom, 0.95) * math.sqrt(a + b)
    found = difference_of_means(before, after)
    assert found.mean == pytest.approx(statistics.fmean(after) - statistics.fmean(before))
    assert (found.low, found.high) == pytest.approx((found.mean - reach, found.mean + reach))


def test_runs_without_spread_and_runs_that_diverged_have_intervals():
    same = difference_of_means([0.5, 0.5], [0.6, 0.6])
    assert (same.low, same.high) == pytest.approx((0.1, 0.1))
    assert math.isfinite(difference_of_means([1e100, 0.0], [-1e100, 0.0]).high)
