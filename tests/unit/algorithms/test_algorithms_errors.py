"""What is refused, and that the message names what was given and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from each import each

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.correction import importance_correction
from dapo.algorithms.keep import judge_group
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.shaping import scale_rewards, shape_rewards, soft_overlong_punishment
from dapo.algorithms.statistics import majority_correct, mean_interval, pass_at_k

TWO = [[True], [True, False]]
EVERY = [[True, True]]


def weights(reduction, **settings):
    return lambda: loss_weights(TWO, [0, 1], reduction, **settings)


def scale(low, high, target_min=0, target_max=1):
    return lambda: scale_rewards([1], source_min=low, source_max=high, target_min=target_min, target_max=target_max)


def overlong(max_length, cache_length):
    return lambda: soft_overlong_punishment([1], max_length=max_length, cache_length=cache_length)


def correct(kind="truncate", cap=2, floor=0, learner=(0,), sampler=(0,), mask=(True,), **caps):
    return lambda: importance_correction(learner, sampler, kind=kind, cap=cap, floor=floor, loss_mask=mask, **caps)


@each(
    ("message", "call"),
    [
        ("unknown reduction 'mean'; expected one of token_mean, prompt_mean, sequence_mean", weights("mean")),
        (r"groups has shape \(1,\) for 2 rows", lambda: loss_weights(TWO, [0], "token_mean")),
        ("needs constant_length > 0 tokens, got None", weights("constant")),
        ("got 0", weights("constant", constant_length=0)),
        ("^reduction 'micro_batch_mean' is defined by its split; give micro_batches$", weights("micro_batch_mean")),
        (r"got rows \[0, 0\]", weights("micro_batch_mean", micro_batches=[[0], [0]])),
        (r"2 rows exactly once, got rows \[1\]", weights("micro_batch_mean", micro_batches=[[1]])),
        ("unknown baseline 'median'", lambda: group_advantages([[0, 1]], EVERY, baseline="median")),
        ("unknown scale 'std'", lambda: group_advantages([[0, 1]], EVERY, scale="std")),
        ("group 1 has 1 voter", lambda: group_advantages([[0, 1], [0, 1]], [[True, True], [True, False]])),
        (
            "group 0 has 0 voter.* Leave such groups out .*, or use scale 'none' or 'batch_std' with baseline 'mean'$",
            lambda: group_advantages([[0, 1]], [[False, False]]),
        ),
        ("group 0 has 1 voter", lambda: group_advantages([[1]], [[True]], baseline="leave_one_out", scale="none")),
        ("group 0: rewards of voters must be finite", lambda: group_advantages([[0, np.nan]], EVERY)),
        ("group 0: rewards of voters must be finite", lambda: group_advantages([[0, np.inf]], EVERY)),
        (r"rewards \(2,\) and voters \(1,\)", lambda: group_advantages([[0, 1]], [[True]])),
        (r"rewards \(1, 2\) and voters \(1, 2\) must be equal and 1-d", lambda: group_advantages([[[0, 1]]], [EVERY])),
        ("2 groups of rewards but 1 groups of voters", lambda: group_advantages([[0, 1], [0, 1]], EVERY)),
        (r"values \(2,\) and voters \(1,\)", lambda: judge_group([0, 1], [True], metric_is_accuracy=True)),
        ("metric of every voter must be finite", lambda: judge_group([0, np.nan], EVERY[0], metric_is_accuracy=True)),
        ("source_min 1 must be below source_max 1", scale(1, 1)),
        ("source_min 2 must be below source_max 1", scale(2, 1)),
        ("are both 1", scale(0, 1, target_min=1)),
        ("cache_length 0 must lie in", overlong(10, 0)),
        ("cache_length 11 must lie in .* max_length is 10", overlong(10, 11)),
        ("max_length 10 needs a cache_length", lambda: shape_rewards([1], [1], [False], max_length=10)),
        (
            "unknown correction 'tis'; expected one of none, report, untruncated, truncate, truncate_sequence, "
            "mask_token, mask_sequence$",
            correct("tis"),
        ),
        ("0 <= floor < cap, got 2 and 2", correct("mask_token", floor=2)),
        ("got -1 and 2", correct("mask_sequence", floor=-1)),
        ("caps must be above 0, got token_cap 0 and sequence_cap 5.0", correct(token_cap=0)),
        ("got token_cap 2.0 and sequence_cap -1", correct(sequence_cap=-1)),
        (r"learner \(1,\), sampler \(2,\)", correct(sampler=(0, 0))),
        (r"learner \(2,\), sampler \(1,\)", correct(learner=(0, 0))),
        (r"and mask \(2,\) must have one entry per token each$", correct(mask=(True, True))),
        ("0 problems given", lambda: mean_interval([])),
        ("2 problems given", lambda: mean_interval([[1], []])),
        ("3 correct of 2 samples", lambda: pass_at_k(2, 3, 1)),
        ("-1 correct of 2 samples", lambda: pass_at_k(2, -1, 1)),
        ("pass@3 from 2 samples", lambda: pass_at_k(2, 1, 3)),
        ("pass@0 from 2 samples", lambda: pass_at_k(2, 1, 0)),
        ("2 answers but 1 verdicts", lambda: majority_correct(["a", "b"], [True])),
    ],
)
def test_refused(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_loss_settings_refused():
    one = torch.zeros(1)
    inputs = LossInputs(one, one, one, one.bool(), one.long(), 1)
    with pytest.raises(ValueError, match="needs c > 1, got 1"):
        clipped_loss(inputs, low=0.2, high=0.2, dual=1)
    with pytest.raises(Exception, match=r"ratio"):  # the shape checker of the tests comes before our own
        clipped_loss(inputs, low=0.2, high=0.2, ratio="gspo")
    unchecked = getattr(clipped_loss, "__wrapped__", clipped_loss)
    with pytest.raises(ValueError, match="unknown ratio 'gspo'"):
        unchecked(inputs, low=0.2, high=0.2, ratio="gspo")


def test_shapes_are_checked_while_tests_run():
    one, two = torch.zeros(1), torch.zeros(2)
    with pytest.raises(Exception, match="Type-check error"):
        LossInputs(one, two, one, one.bool(), one.long(), 1)
