"""Every metric of tokens on four tokens, by hand. A metric that is added has a line here, or a test fails."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from dapo.metrics.stats import merge, over, values
from dapo.metrics.tokens import TOKEN_METRICS, LossTokens


def bools(text: str) -> np.ndarray:
    return np.array([character == "x" for character in text])


FOUR = LossTokens(
    logprobs=np.log([0.5, 0.25, 0.8, 0.1]),
    log_ratios=np.log([1.0, 2.0, 0.5, 4.0]),
    entropy=np.array([1.0, 2.0, 3.0, 4.0]),
    correction=np.array([1.0, 1.0, 0.5, 2.0]),
    corrected=bools("..xx"),
    current=bools("xx.."),
    gaps=np.array([0.1, -0.3, 0.6, 0.2]),
    flags={"clip_low": bools("..x."), "clip_high": bools(".x.x"), "clip_dual": bools("....")},
    reference_gaps=np.log([1.0, 1.0, 2.0, 0.5]),
    teacher_gaps=np.log([0.5, 2.0, 1.0]),  # one token of the four has no teacher
)
NONE = LossTokens(
    **{name: np.zeros(0) for name in ("logprobs", "log_ratios", "entropy", "correction")},
    corrected=bools(""),
    current=bools(""),
    gaps=None,
)


def k3(ratio: float) -> float:
    return ratio - 1.0 - log(ratio)


BY_HAND = {
    "entropy": 2.5,
    "approx_kl": (k3(2.0) + k3(0.5) + k3(4.0)) / 4,
    "kl": (k3(2.0) + k3(0.5)) / 4,
    "ratio_mean": 7.5 / 4,
    "ratio_max": 4.0,
    "ratio_min": 0.5,
    "clip_low": 0.25,
    "clip_high": 0.5,
    "clip_dual": 0.0,
    "clip_high_probability": (0.25 + 0.1) / 2,
    "correction_mean": 4.5 / 4,
    "correction_share": 0.5,
    "gap_mean": 0.3,
    "gap_mean_current": 0.2,
    "gap_mean_older": 0.4,
    "gap_kl": sum(k3(exp(gap)) for gap in (0.1, -0.3, 0.6, 0.2)) / 4,
    "gap_kl_current": (k3(exp(0.1)) + k3(exp(-0.3))) / 2,
    "gap_kl_older": (k3(exp(0.6)) + k3(exp(0.2))) / 2,
    "gap_max": 0.6,
    "gap_max_current": 0.3,
    "gap_max_older": 0.6,
    "teacher/kl": 0.0,
    "teacher/agree": 2.5 / 3,
}


def test_every_metric_has_its_value_by_hand():
    assert {entry.metric.key.removeprefix("train/") for entry in TOKEN_METRICS} == BY_HAND.keys()


@pytest.mark.parametrize("entry", TOKEN_METRICS, ids=lambda entry: entry.metric.key)
def test_by_hand(entry):
    expected = BY_HAND[entry.metric.key.removeprefix("train/")]
    found = values(over(entry.metric.key, entry.formula(FOUR)))[entry.metric.key]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("entry", TOKEN_METRICS, ids=lambda entry: entry.metric.key)
def test_no_token_is_no_number_and_no_error(entry):
    """As of a rank whose passes carried no loss: merged with another's, it changes nothing."""
    alone = over(entry.metric.key, entry.formula(FOUR))
    nothing = entry.formula(NONE)
    assert nothing is None or values(merge([alone, over(entry.metric.key, nothing)])) == values(alone)
