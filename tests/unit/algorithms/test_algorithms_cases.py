"""Single cases of the functions: the ends of intervals, the smallest inputs, what is left alone."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from each import each

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.correction import OffPolicyMask, importance_correction, tokens_corrected
from dapo.algorithms.diagnostics import length_quantiles
from dapo.algorithms.keep import judge_group
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.ratio import log_ratio
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.shaping import scale_rewards, shape_rewards, soft_overlong_punishment
from dapo.algorithms.statistics import (
    Estimate,
    majority_correct,
    mean_interval,
    mean_of_estimates,
    paired_interval,
    pass_at_k,
)
from dapo.algorithms.variants.a3po import interpolated_logprobs
from dapo.algorithms.variants.cispo import cispo_loss
from dapo.metrics.tokens import k3
from dapo.types.enums import Verdict

FOUR = [True] * 4


class TestWeights:
    def test_masked_places_are_not_counted_and_rows_of_them_weigh_nothing(self):
        weights = loss_weights([[True, False, True], [False, True], [False]], [0, 0, 0], "token_mean")
        np.testing.assert_allclose(weights, [1 / 3, 1 / 3, 0], rtol=1e-6)
        assert weights.dtype == np.float32
        assert loss_weights([[True], [False]], [0, 0], "constant", constant_length=1).tolist() == [0.5, 0]

    def test_no_rows(self):
        assert loss_weights([], [], "token_mean").tolist() == []
        assert loss_weights([], [], "constant", constant_length=2).tolist() == []


class TestAdvantages:
    def test_one_voter_without_a_std(self):
        assert group_advantages([[3.0]], [[True]], scale="none")[0].tolist() == [0]
        assert group_advantages([[3.0]], [[True]], scale="batch_std")[0].tolist() == [0]
        assert group_advantages([[3.0]], [[False]], scale="batch_std")[0].tolist() == [0]
        assert group_advantages([], []) == []
        assert group_advantages([], [], scale="batch_std") == []

    def test_a_group_that_counts_as_uniform_adds_no_spread_to_the_batch(self):
        rewards, voters = [[1.0, -1.0], [3.0, 3.4]], [[True] * 2] * 2
        mixed, uniform = group_advantages(rewards, voters, scale="batch_std", eps=0.0, tolerance=0.5)
        np.testing.assert_allclose(mixed, np.array([1, -1]) / math.sqrt(2 / 3))
        assert uniform.tolist() == [0, 0]

    def test_too_few_numbers_for_a_std_give_no_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert group_advantages([[3.0]], [[True]], scale="batch_std")[0].tolist() == [0]
            assert group_advantages([[3.0]], [[False]], scale="batch_std", ddof=0)[0].tolist() == [0]

    def test_uniform_is_exactly_zero_even_with_eps_zero(self):
        with np.errstate(all="raise"):
            (advantages,) = group_advantages([[0.1, 0.1, 0.1]], [[True] * 3], eps=0.0)
        assert advantages.tolist() == [0, 0, 0]

    def test_tolerance_is_inclusive(self):
        assert group_advantages([[0.0, 0.5]], [[True] * 2], tolerance=0.5)[0].tolist() == [0, 0]
        assert group_advantages([[0.0, 0.5]], [[True] * 2], tolerance=0.49)[0].tolist() != [0, 0]
        assert group_advantages([[0.0, 1.1e-6]], [[True] * 2])[0].tolist() != [0, 0]

    def test_default_eps(self):
        (advantages,) = group_advantages([[0.0, 2e-6]], [[True] * 2])
        np.testing.assert_allclose(advantages, np.array([-1, 1]) / (math.sqrt(2) + 1), rtol=1e-9)

    def test_inputs_are_not_written(self):
        rewards, voters = np.array([1.0, 2.0]), np.array([True, True])
        group_advantages([rewards], [voters])
        assert rewards.tolist() == [1, 2]


class TestKeep:
    @pytest.mark.parametrize(
        ("values", "verdict"),
        [
            ([1, 1, 1, 1], Verdict.ALL_CORRECT),
            ([0, 0, 0, 0.99], Verdict.ALL_WRONG),
            ([0, 0, 0, 1], Verdict.KEPT),
            ([1, 1, 1, 0.99], Verdict.KEPT),
        ],
    )
    def test_accuracy(self, values, verdict):
        assert judge_group(values, FOUR, metric_is_accuracy=True) is verdict

    def test_another_metric(self):
        assert judge_group([0.1, 0.1 + 1e-7, 0.1, 0.1], FOUR, metric_is_accuracy=False) is Verdict.UNIFORM
        assert judge_group([0.0, 1e-6, 0, 0], FOUR, metric_is_accuracy=False) is Verdict.UNIFORM
        assert judge_group([0.0, 1.01e-6, 0, 0], FOUR, metric_is_accuracy=False) is Verdict.KEPT
        assert judge_group([1, 2, 1, 1], FOUR, metric_is_accuracy=False, tolerance=1) is Verdict.UNIFORM

    def test_non_voters(self):
        values = [1, np.nan, 0, 1]
        assert judge_group(values, [True, False, False, True], metric_is_accuracy=True) is Verdict.ALL_CORRECT
        assert judge_group(values, [True, False, False, False], metric_is_accuracy=True) is Verdict.TOO_FEW_SCORED
        assert judge_group(values, [False] * 4, metric_is_accuracy=False) is Verdict.TOO_FEW_SCORED

    @pytest.mark.parametrize(
        ("band", "verdict"),
        [
            ((0.25, 0.5), Verdict.KEPT),
            ((0.1, 0.25), Verdict.KEPT),
            ((0.26, 1), Verdict.OUT_OF_BAND),
            ((0, 0.24), Verdict.OUT_OF_BAND),
        ],
    )
    def test_band(self, band, verdict):
        assert judge_group([1, 0, 0, 0], FOUR, metric_is_accuracy=True, band=band) is verdict
        assert judge_group([0.5, 0.5, 0, 0], FOUR, metric_is_accuracy=False, band=band) is verdict
        assert judge_group([0, 0, 0, 0], FOUR, metric_is_accuracy=True, band=band) is Verdict.ALL_WRONG


class TestShaping:
    def test_scale_before_penalty(self):
        shaped, penalties = shape_rewards([1, 0, np.nan], [10, 15, 30], [False] * 3, max_length=20, cache_length=10)
        assert penalties.tolist() == [0, -0.5, -1]
        np.testing.assert_array_equal(shaped, [1, -1.5, np.nan])

    def test_parts_can_be_off(self):
        shaped, penalties = shape_rewards([0.5, 2], [10, 15], [False] * 2, source=None)
        assert shaped.tolist() == [0.5, 2]
        assert penalties.tolist() == [0, 0]
        shaped, _ = shape_rewards([0.5, 2], [10, 15], [False] * 2, source=(0, 2), target=(0, 1))
        assert shaped.tolist() == [0.25, 1]
        shaped, _ = shape_rewards([1], [15], [True], source=None, max_length=20, cache_length=10, factor=0.2)
        assert shaped.tolist() == [0.9]

    def test_result_is_a_new_array(self):
        rewards = np.array([1.0])
        shaped, _ = shape_rewards(rewards, [1], [False], source=None)
        shaped[0] = 5
        assert rewards[0] == 1


class TestOffPolicyMask:
    """Log policy -1, -2, -3 and log sampler -0.4, -1.2, -2.3: the mean of their differences is 0.7."""

    POLICY, SAMPLER = np.array([-1.0, -2.0, -3.0]), np.array([-0.4, -1.2, -2.3])

    def mask(self, threshold, advantage, loss_mask=(True, True, True)):
        return OffPolicyMask(threshold)(self.POLICY, self.SAMPLER, loss_mask, advantage)

    def test_a_negative_response_that_the_policy_left_is_masked_whole(self):
        assert self.mask(0.69, -0.1).tolist() == [0, 0, 0]
        assert self.mask(0.71, -0.1).tolist() == [1, 1, 1]

    @pytest.mark.parametrize("advantage", [0.0, 0.1])
    def test_others_are_never_masked(self, advantage):
        assert self.mask(0.01, advantage).tolist() == [1, 1, 1]

    def test_the_mean_is_over_loss_tokens_and_only_they_are_masked(self):
        assert self.mask(0.64, -1.0, (True, False, True)).tolist() == [0, 1, 0]  # (0.6 + 0.7) / 2
        assert self.mask(0.66, -1.0, (True, False, True)).tolist() == [1, 1, 1]
        assert self.mask(0.01, -1.0, (False, False, False)).tolist() == [1, 1, 1]

    def test_the_direction_counts(self):
        """A response that became more probable is not off policy, however far it moved."""
        assert OffPolicyMask(0.5)(self.SAMPLER + 9, self.POLICY, FOUR[:3], -1.0).tolist() == [1, 1, 1]


class TestCorrection:
    LOGS = np.log([0.4, 1.0, 1.5, 3.0])

    def correct(self, kind, mask=FOUR, sampler=None):
        sampler = np.zeros(4) if sampler is None else sampler
        return importance_correction(self.LOGS, sampler, kind=kind, cap=2.0, floor=0.5, loss_mask=mask)

    def test_kinds(self):
        np.testing.assert_allclose(self.correct("truncate"), [0.4, 1, 1.5, 2], rtol=1e-6)
        np.testing.assert_allclose(self.correct("mask_token"), [0, 1, 1.5, 0], rtol=1e-6)
        np.testing.assert_allclose(self.correct("mask_sequence"), [0.4, 1, 1.5, 2], rtol=1e-6)  # 1.8 ** 1/4 = 1.16
        np.testing.assert_allclose(self.correct("mask_sequence", sampler=np.full(4, -1.0)), 0)  # 1.16 e
        np.testing.assert_allclose(self.correct("untruncated"), [0.4, 1, 1.5, 3], rtol=1e-6)
        np.testing.assert_allclose(self.correct("truncate_sequence"), 1.8, rtol=1e-6)  # 0.4 x 1 x 1.5 x 3
        np.testing.assert_allclose(
            self.correct("truncate_sequence", mask=[False, True, True, True]), [1, 4.5, 4.5, 4.5]
        )
        np.testing.assert_allclose(self.correct("truncate_sequence", sampler=np.full(4, -1.0)), 5)  # 1.8 e^4
        assert self.correct("none") is None
        assert self.correct("report") is None
        assert self.correct("truncate").dtype == np.float32

    def test_the_band_of_a_sequence_does_not_cut_its_tokens(self):
        """Ratios 1.5 and 1 / 1.5: their geometric mean is 1, inside the published band 0.99 to 1.01."""
        logs = np.log([1.5, 1 / 1.5])

        def correct(**bounds):
            return importance_correction(
                logs, [0, 0], kind="mask_sequence", cap=1.01, floor=0.99, loss_mask=[True, True], **bounds
            )

        np.testing.assert_allclose(correct(), [1.5, 1 / 1.5], rtol=1e-6)
        np.testing.assert_allclose(correct(token_cap=None), [1.5, 1 / 1.5], rtol=1e-6)
        np.testing.assert_allclose(correct(token_cap=1.2), [1.2, 1 / 1.5], rtol=1e-6)
        assert tokens_corrected(correct(), logs, [0, 0], [True, True]).sum() == 0
        assert tokens_corrected(correct(token_cap=1.2), logs, [0, 0], [True, True]).sum() == 1

    def test_the_product_of_a_long_response_stays_finite(self):
        for sign, expected in ((1.0, math.exp(20)), (-1.0, math.exp(-20))):
            logs, mask = np.full(1000, sign), np.full(1000, True)
            corrected = importance_correction(
                logs, np.zeros(1000), kind="truncate_sequence", sequence_cap=1e12, loss_mask=mask
            )
            np.testing.assert_allclose(corrected, expected, rtol=1e-6)
            assert tokens_corrected(corrected, logs, np.zeros(1000), mask).sum() == 0

    def test_bounds_are_inclusive(self):
        for kind in ("mask_token", "mask_sequence"):
            corrected = importance_correction([0.0], [0.0], kind=kind, cap=1.5, floor=1.0, loss_mask=[True])
            assert corrected.tolist() == [1]
            corrected = importance_correction([0.0], [0.0], kind=kind, cap=1.0, floor=0.0, loss_mask=[True])
            assert corrected.tolist() == [1]

    def test_broken_numbers_outside_the_mask(self):
        corrected = importance_correction(
            [np.nan, 0.0], [0.0, 0.0], kind="truncate", cap=2, floor=0, loss_mask=[False, True]
        )
        assert corrected.tolist() == [1, 1]

    def test_tokens_corrected(self):
        for kind, count in [("truncate", 1), ("mask_token", 2), ("mask_sequence", 1)]:
            assert tokens_corrected(self.correct(kind), self.LOGS, np.zeros(4), FOUR).sum() == count
        assert tokens_corrected(self.correct("untruncated"), self.LOGS, np.zeros(4), FOUR).sum() == 0
        assert tokens_corrected(self.correct("truncate_sequence"), self.LOGS, np.zeros(4), FOUR).sum() == 0  # 1.8 < 5
        capped = self.correct("truncate_sequence", sampler=np.full(4, -1.0))
        assert tokens_corrected(capped, self.LOGS, np.full(4, -1.0), FOUR).sum() == 4
        mask = [True, True, True, False]
        assert tokens_corrected(self.correct("truncate", mask=mask), self.LOGS, np.zeros(4), mask).sum() == 0
        assert tokens_corrected(None, self.LOGS, np.zeros(4), FOUR).tolist() == [False] * 4


class TestPlainLists:
    """Masks may be lists of 0 and 1 and numbers may be integers: neither may index or round instead."""

    def test_weights_and_advantages(self):
        assert loss_weights([[0, 2, 5]], [0], "token_mean").tolist() == [0.5]
        assert group_advantages([[3, 9, 1]], [[1, 0, 1]], scale="none")[0].tolist() == [1, 0, -1]
        assert group_advantages([[3, None, 1]], [[1, 0, 1]], scale="none")[0].tolist() == [1, 0, -1]

    def test_keep(self):
        assert judge_group([1, 0, 1], [1, 0, 1], metric_is_accuracy=True) is Verdict.ALL_CORRECT
        assert judge_group([1, None, 0], [1, 0, 1], metric_is_accuracy=True) is Verdict.KEPT  # None is nan

    def test_shaping(self):
        shaped, penalties = shape_rewards([1, 0], [15, 5], [0, 0], source=None)
        assert shaped.dtype == penalties.dtype == np.float64
        shaped, _ = shape_rewards([1, 0], [15, 5], [0, 0], source=None, max_length=20, cache_length=10)
        assert shaped.tolist() == [0.5, 0]
        assert soft_overlong_punishment(np.array([15], np.uint8), max_length=20, cache_length=10).tolist() == [-0.5]
        assert np.isnan(scale_rewards([1, None], source_min=0, source_max=1, target_min=0, target_max=1)[1])
        assert scale_rewards(np.array([1], np.float32), source_min=0, source_max=3, target_min=0, target_max=1) == 1 / 3

    def test_correction(self):
        corrected = importance_correction([0, 1], [0, 0], kind="truncate", cap=2, floor=0, loss_mask=[1, 0])
        assert corrected.tolist() == [1, 1]
        corrected = importance_correction([0, 1], [0, 0], kind="truncate", cap=2, floor=0, loss_mask=[0, 1])
        assert corrected.tolist() == [1, 2]
        assert tokens_corrected(corrected.tolist(), [0, 1], [0, 0], [0, 1]).tolist() == [False, True]
        assert tokens_corrected([math.exp(0.3), 1], [0.3, 1], [0, 0], [1, 0]).tolist() == [False, False]

    def test_diagnostics_and_statistics(self):
        assert length_quantiles([1, 2, 5], [1, 0, 1], (0.5,))["correct"].tolist() == [3]
        assert length_quantiles([1, 2, 5], [1, 0, 1], (0.5,))["wrong"].tolist() == [2]
        assert mean_interval([np.array([0.1] * 7, np.float32)]).mean == pytest.approx(float(np.float32(0.1)), abs=1e-12)


class TestDiagnostics:
    def test_k3_by_hand_and_of_small_gaps(self):
        found = k3(log_ratio([-1.0, -2.0], [-1.5, -1.0]))
        assert found.tolist() == pytest.approx([math.exp(0.5) - 1.5, math.exp(-1)])
        assert k3(np.array([1e-6]))[0] == pytest.approx(0.5e-12, rel=1e-3)

    def test_length_quantiles(self):
        quantiles = length_quantiles([10, 20, 30, 40], [True, True, False, True], (0.0, 0.5, 1.0))
        assert quantiles["all"].tolist() == [10, 25, 40]
        assert quantiles["correct"].tolist() == [10, 20, 40]
        assert quantiles["wrong"].tolist() == [30, 30, 30]
        assert np.isnan(length_quantiles([1], [True], (0.5,))["wrong"]).tolist() == [True]
        np.testing.assert_allclose(length_quantiles(np.arange(11), [True] * 11)["all"], [1, 5, 9])


class TestStatistics:
    def test_interval(self):
        estimate = mean_interval([[0, 1], [1, 1], [0, 0], [1]])
        error = np.std([0.5, 1, 0, 1], ddof=1) / 2
        assert estimate.mean == 0.625
        assert estimate.standard_error == pytest.approx(error)
        assert (estimate.low, estimate.high) == pytest.approx((0.625 - 1.959964 * error, 0.625 + 1.959964 * error))
        narrow = mean_interval([[0, 1], [1, 1], [0, 0], [1]], confidence=0.5)
        assert narrow.high == pytest.approx(0.625 + 0.67449 * error, rel=1e-5)

    def test_bounded_interval_by_hand(self):
        """Agresti and Coull over problems: z^2 / 2 = 1.92073 problems at either bound are added."""
        z2 = 1.959963984540054**2
        estimate = mean_interval([[1, 0], [1], [0], [0, 0, 0]], bounds=(0, 1))  # means 0.5, 1, 0, 0
        n, total, squares = 4 + z2, 1.5 + z2 / 2, 1.25 + z2 / 2
        centre = total / n
        reach = math.sqrt(z2 * (squares / n - centre**2) / n)
        assert estimate.mean == 0.375
        assert (estimate.low, estimate.high) == pytest.approx((centre - reach, centre + reach))
        scaled = mean_interval([[20, 10], [20], [10], [10, 10, 10]], bounds=(10, 20))
        assert (scaled.low, scaled.high) == pytest.approx((10 + 10 * estimate.low, 10 + 10 * estimate.high))

    @pytest.mark.parametrize(("n", "end"), [(8, 0.37217), (1, 0.83251), (128, 0.03502)])
    def test_bounded_interval_does_not_collapse(self, n, end):
        """0 of n and n of n; by hand for n = 8: n' = 11.8415, m' = 0.16220, s' = 0.36864, reach 0.20996."""
        none = mean_interval([[0] * 4] * n, bounds=(0, 1))
        assert (none.mean, none.low) == (0, 0)
        assert none.high == pytest.approx(end, abs=1e-4)
        all_of = mean_interval([[1] * 4] * n, bounds=(0, 1))
        assert (all_of.mean, all_of.high) == (1, 1)
        assert all_of.low == pytest.approx(1 - end, abs=1e-4)

    @each("share", [0.003, 0.02, 0.1, 0.5, 0.9, 0.98])
    @each("n", [5, 8, 30, 128])
    def test_bounded_interval_covers_shares(self, n, share):
        """One sample a problem, every outcome weighed by its binomial probability: no sampling noise."""
        covered = sum(
            math.comb(n, c) * share**c * (1 - share) ** (n - c)
            for c in range(n + 1)
            if (e := mean_interval([[1]] * c + [[0]] * (n - c), bounds=(0, 1))).low <= share <= e.high
        )
        assert covered >= 0.9  # the plain interval: 0.01 at 5 problems and a share of 0.003

    def test_paired_interval_by_hand(self):
        first, second = [[1, 1], [1, 0], [0], [1]], [[1], [0, 0], [0], [0]]  # differences 0, 0.5, 0, 1
        estimate = paired_interval(first, second)
        centre = 1.5 / 6
        reach = 1.959963984540054 * math.sqrt(((1.25 + 1) / 6 - centre**2) / 6)
        assert estimate.mean == 0.375
        assert (estimate.low, estimate.high) == pytest.approx((centre - reach, centre + reach))
        back = paired_interval(second, first)
        assert (back.mean, back.low, back.high) == pytest.approx((-0.375, -estimate.high, -estimate.low))
        same = paired_interval([[1]] * 8, [[1]] * 8)  # nothing differs: 1.96 x sqrt(1 / 10) / sqrt(10)
        assert (same.mean, same.low, same.high) == pytest.approx((0, -0.195996, 0.195996), abs=1e-6)
        with pytest.raises(ValueError, match="2 and 1 problems given"):
            paired_interval([[1], [1]], [[1]])
        with pytest.raises(ValueError, match="at least one"):
            paired_interval([[1]], [[]])

    def test_what_problems_share_cancels_in_a_pair(self):
        rng = np.random.default_rng(1)
        easy = rng.integers(0, 2, 60)
        better = np.where((easy == 0) & (rng.random(60) < 0.2), 1, easy)
        pair = paired_interval([[x] for x in better], [[x] for x in easy])
        ends = [mean_interval([[x] for x in m], bounds=(0, 1)) for m in (better, easy)]
        assert pair.low > 0
        assert pair.high - pair.low < 0.7 * math.hypot(*(e.high - e.low for e in ends))

    def test_mean_of_estimates_by_hand(self):
        """Square-and-add, either side alone: (0.3, 0.4) below and (0.05, 0.12) above, over two sets."""
        mean = mean_of_estimates([Estimate(0.5, 0.2, 0.55, 0.03), Estimate(0.8, 0.4, 0.92, 0.04)])
        found = (mean.mean, mean.low, mean.high, mean.standard_error)
        assert found == pytest.approx((0.65, 0.65 - 0.25, 0.65 + 0.065, 0.025))
        one = Estimate(0.1, 0.0, 0.3, 0.2)
        assert mean_of_estimates([one]) == one
        with pytest.raises(ValueError, match="no estimate"):
            mean_of_estimates([])

    def test_one_problem_has_no_interval(self):
        estimate = mean_interval([[1, 0]])
        assert estimate.mean == 0.5
        assert math.isnan(estimate.low)
        assert math.isnan(estimate.high)
        assert math.isnan(estimate.standard_error)
        two = mean_interval([[1], [0]])
        assert two == Estimate(0.5, two.low, two.high, pytest.approx(0.5))

    @pytest.mark.parametrize(("confidence", "least", "most"), [(0.95, 0.90, 0.98)])
    def test_interval_covers_when_samples_of_a_problem_are_alike(self, confidence, least, most):
        """Problems with their own difficulty: an interval over single samples would cover far less often."""
        rng = np.random.default_rng(0)
        hits = 0
        for _ in range(400):
            difficulty = rng.beta(0.5, 0.5, size=60)  # mean 0.5
            estimate = mean_interval(list(rng.random((60, 8)) < difficulty[:, None]), confidence=confidence)
            hits += estimate.low <= 0.5 <= estimate.high
        assert least <= hits / 400 <= most

    def test_pass_at_k(self):
        assert pass_at_k(4, 2, 1) == pytest.approx(0.5)
        assert pass_at_k(4, 2, 2) == pytest.approx(1 - 1 / 6)
        assert pass_at_k(4, 2, 3) == 1
        assert pass_at_k(4, 0, 4) == 0
        assert math.copysign(1, pass_at_k(4, 0, 4)) == 1
        assert pass_at_k(10_000, 1, 1) == pytest.approx(1e-4)
        assert pass_at_k(1, 1, 1) == 1

    def test_majority(self):
        assert majority_correct(["7", "7", "8"], [True, True, False]) == 1
        assert majority_correct(["7", "8", "8"], [True, False, False]) == 0
        assert majority_correct(["7", "8"], [True, False]) == 0.5
        assert majority_correct([None, None, "7"], [False, False, True]) == 1
        assert majority_correct([None], [True]) == 0
        assert majority_correct([], []) == 0
        assert majority_correct(["7", "7"], [True, False]) == 0.5  # one answer, judged both ways


class TestLosses:
    def test_log_ratio_is_clamped_on_both_sides_and_float64(self):
        ratios = log_ratio(np.array([25, -25, 1], np.float32), np.array([0, 0, 1e-9], np.float32))
        assert ratios.tolist() == [20, -20, 1 - float(np.float32(1e-9))]

    @pytest.mark.parametrize(
        ("log_of_ratio", "weight"), [(30.0, math.exp(20)), (-30.0, math.exp(-20)), (2.0, math.exp(2))]
    )
    def test_cispo_clamps_the_log_ratio(self, log_of_ratio, weight):
        one = torch.ones(1, dtype=torch.float64)
        logprobs = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        loss, _ = cispo_loss(LossInputs(logprobs, -log_of_ratio * one, one, one.bool(), one.long() - 1, 1), cap=1e12)
        assert torch.autograd.grad(loss.sum(), logprobs)[0].item() == pytest.approx(-weight, rel=1e-9)

    def test_a_ratio_at_its_bound_is_not_clipped(self):
        one = torch.ones(1)
        for advantage in (one, -one):
            inputs = LossInputs(one, one, advantage, one.bool(), one.long() - 1, 1)  # the ratio is exactly 1
            for _, flags in (cispo_loss(inputs, cap=1.0, floor=1.0), clipped_loss(inputs, low=0.0, high=0.0)):
                assert not any(flag.any() for flag in flags.values())

    def test_broken_numbers_in_masked_tokens_reach_nothing(self):
        nan, inf = float("nan"), float("inf")
        logprobs = torch.tensor([-1.0, nan, -inf], requires_grad=True)
        mask = torch.tensor([True, False, False])
        inputs = LossInputs(
            logprobs, torch.tensor([-1.0, 0.0, nan]), torch.tensor([1.0, nan, 1.0]), mask, torch.tensor([0, 0, 1]), 2
        )
        for ratio in ("token", "sequence"):
            loss, flags = clipped_loss(inputs, low=0.2, high=0.2, dual=2.0, ratio=ratio)
            assert loss.tolist() == [-1, 0, 0]
            assert torch.autograd.grad(loss.sum(), logprobs)[0].tolist() == [-1, 0, 0]
            assert not any(flag.any() for flag in flags.values())

    def test_no_tokens(self):
        empty = torch.zeros(0, requires_grad=True)
        loss, _ = clipped_loss(
            LossInputs(empty, empty, empty, empty.bool(), empty.long(), 0), low=0.2, high=0.2, ratio="sequence"
        )
        loss.sum().backward()
        assert empty.grad.shape == (0,)

    def test_production_needs_no_jaxtyping_and_numpy_parts_no_torch(self):
        code = (
            "import sys; sys.modules['jaxtyping'] = sys.modules['beartype'] = None\n"
            "from dapo.algorithms import advantages, correction, diagnostics, keep, reduction, shaping, statistics\n"
            "assert 'torch' not in sys.modules\n"
            "import dapo.algorithms.losses\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


def test_interpolated_logprobs_by_hand():
    """a = (d - 1) / d: of a gap of 1.2 nats nothing at ages 0 and 1, then 1/2, 2/3 and 3/4 of it."""
    sampler = np.full(5, -2.0, np.float32)
    found = interpolated_logprobs(np.full(5, -0.8, np.float32), sampler, np.arange(5))
    assert found.dtype == np.float32
    assert found == pytest.approx([-2.0, -2.0, -1.4, -1.2, -1.1], abs=1e-6)


def test_interpolated_logprobs_take_the_samplers_numbers_as_they_are():
    """Also where the learner's are broken: at ages 0 and 1 nothing of them is read."""
    sampler = np.array([-0.1, -3.3], np.float32)
    found = interpolated_logprobs(np.array([-np.inf, np.nan], np.float32), sampler, np.array([0, 1]))
    assert found.tolist() == sampler.tolist()
