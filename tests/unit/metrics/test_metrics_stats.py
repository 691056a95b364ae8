"""Statistics merge to what one look at all numbers gives, however they were cut."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.metrics.glossary import reduction_of
from dapo.metrics.stats import Max, Mean, merge, over, stat, values

KEYS = ("train/entropy", "train/ratio_max", "train/ratio_min", "train/packed_tokens")


def test_by_hand_unequal_parts():
    """10 numbers of 0 and 90 of 0.1 have a mean of 0.09, not 0.05."""
    parts = [over("train/gap_mean_current", np.zeros(10)), over("train/gap_mean_current", np.full(90, 0.1))]
    assert values(merge(parts))["train/gap_mean_current"] == pytest.approx(0.09, rel=1e-12)


def test_a_mean_counted_elsewhere():
    """The loss of a step is the sum over its passes; the mean is over steps."""
    parts = [stat("train/loss", 1.5, 0), stat("train/loss", 0.5, 0), stat("train/loss", 0, 1)]
    assert values(merge([*parts, stat("train/loss", 4.0, 1)]))["train/loss"] == 3.0


def test_nothing_is_nan_and_a_maximum_of_nothing_is_not_there():
    assert math.isnan(values(over("train/entropy", np.zeros(0)))["train/entropy"])
    assert over("train/ratio_max", np.zeros(0)) == {}
    assert merge([]) == {}


def test_one_key_two_kinds_is_refused():
    with pytest.raises(TypeError, match="train/loss is a Mean in one part and a Max in another"):
        merge([{"train/loss": Mean(1, 1)}, {"train/loss": Max(1)}])


def test_a_key_that_nobody_defined_is_told_and_merged_as_a_mean(caplog):
    reduction_of.cache_clear()
    assert values(merge([stat("train/brand_new", 1.0), stat("train/brand_new", 2.0)]))["train/brand_new"] == 1.5
    assert [r.message for r in caplog.records if "no glossary line for 'train/brand_new'" in r.message]


@given(numbers=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_any_cut_gives_the_same(numbers, cuts):
    array = np.array(numbers)
    edges = [0, *sorted(min(c, len(array)) for c in cuts), len(array)]
    for key in KEYS:
        parts = [over(key, array[a:b]) for a, b in itertools.pairwise(edges)]
        whole = values(over(key, array))[key]
        assert values(merge(parts))[key] == pytest.approx(whole, rel=1e-12, abs=1e-9)
