"""Rows by turn and one row give the same loss, gradient and metrics, where the prompts repeat what the row holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from episode_rows import by_turns, random_episodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner_rows import make_algorithm, make_groups, rows_of
from test_learner_invariance import OBJECTIVES, SCALED, gradient_of, workers  # noqa: F401

from dapo.algorithms.correction import OffPolicyMask, importance_correction
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.objective import Objective
from dapo.errors import LearnerError
from dapo.learner.plan import plan_step
from dapo.types.batch import LearnStep, by_response

OPTIONS = {
    "token_mean": {},
    "prompt_mean": {},
    "sequence_mean": {},
    "sequence_sum": {},
    "constant": {"constant_length": 7},
    "micro_batch_mean": {"micro_batches": [[0, 1, 2], [3, 4, 5]]},
}


class TruncatedSequence:
    """A correction by the whole response; ``by_token`` is not said, so parts stay together."""

    def __call__(self, learner, sampler, mask):
        return importance_correction(learner, sampler, kind="truncate_sequence", sequence_cap=1.5, loss_mask=mask)


class TruncatedTokens:
    by_token = True

    def __call__(self, learner, sampler, mask):
        return importance_correction(learner, sampler, kind="truncate", cap=1.2, loss_mask=mask)


@st.composite
def pairs(draw: st.DrawFn):
    """The same episodes in one row each, and in one row a turn."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = make_groups(int(random.integers(2**32)), 2, 3, length=lambda r: int(r.integers(1, 12)), versions=(0, 1))
    episodes = random_episodes(groups, random)
    name = draw(st.sampled_from(sorted(OPTIONS)))
    both = [rows_of(own, make_algorithm(name, **OPTIONS[name])) for own in (episodes, list(map(by_turns, episodes)))]
    return both[0], both[1]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=pairs(),
    objective=st.sampled_from([each for each in OBJECTIVES if each is not SCALED]),
    tokens=st.sampled_from([1, 20, 10**6]),
    padded=st.booleans(),
    against=st.sampled_from(["sampler", "learner"]),
    correction=st.sampled_from([TruncatedTokens(), TruncatedSequence(), OffPolicyMask(0.02), None]),
)
def test_turns_and_one_row_give_the_same_gradient(workers, rows, objective, tokens, padded, against, correction):  # noqa: F811
    for worker in workers:
        worker.step.correction = correction
    whole, metrics = gradient_of(workers[0], rows[0], objective, 10**6, against)
    if workers[0].step.whole_responses:
        tokens = 10**6
    cut, cut_metrics = gradient_of(workers[padded], rows[1], objective, tokens, against)
    torch.testing.assert_close(cut, whole, rtol=1e-6, atol=1e-6)
    for key in metrics.keys() - {"train/micro_batches", "train/packed_tokens"}:
        np.testing.assert_allclose(cut_metrics[key], metrics[key], rtol=1e-5, atol=1e-6, err_msg=key)


@settings(max_examples=40)
@given(rows=pairs(), ranks=st.integers(1, 3), tokens=st.integers(60, 200), packed=st.booleans())
def test_parts_that_belong_together_are_in_one_pass(rows, ranks, tokens, packed):
    step = LearnStep([rows[1]], [1.0], 0)
    try:
        plans = plan_step(step, tokens, ranks=ranks, packed=packed, whole_responses=True)
    except LearnerError:
        return  # the test below reads it
    seen = []
    for plan in plans:
        (part,) = plan.minibatches
        if part is None:
            continue
        for one in part.passes:
            for members in by_response([part.rows[n] for n in one.rows]):
                first = part.rows[one.rows[members[0]]]
                seen.append((first.group, first.sample, len(members)))
            used = sum(len(part.rows[n].prompt_ids) + len(part.rows[n].token_ids) - 1 for n in one.rows)
            assert packed is False or len(one.rows) == 1 or used <= tokens + shared_prompts(part.rows, one.rows)
    parts = by_response(rows[1])
    assert sorted(seen) == sorted((rows[1][p[0]].group, rows[1][p[0]].sample, len(p)) for p in parts)


def shared_prompts(rows, chosen):
    """Tokens of prompts that a pass computes once for several rows."""
    prompts = [(rows[n].group, rows[n].prompt_ids.tobytes()) for n in chosen]
    return sum(len(rows[n].prompt_ids) for n, key in zip(chosen, prompts, strict=True) if prompts.count(key) > 1)


def test_a_response_that_is_too_long_for_a_pass_is_refused_with_the_next_move():
    groups = random_episodes(make_groups(1, 1, 2, length=lambda r: 12), np.random.default_rng(0))
    rows = rows_of(list(map(by_turns, groups)))
    with pytest.raises(LearnerError, match=r"the \d parts of a response have \d+ tokens.*= 5: raise it, lower"):
        plan_step(LearnStep([rows], [1.0], 0), 5, whole_responses=True)
    plan_step(LearnStep([rows], [1.0], 0), 5)  # a loss by token does not mind


def test_the_sequence_ratio_is_that_of_the_whole_episode():
    """Log-ratios 0.2 and 0.4 in one part, 0.6 in the other: their mean is 0.4 in both."""
    ratios = torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        ratios,
        torch.zeros(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.int64),
        1,
    )
    loss, _ = clipped_loss(inputs, low=0.9, high=9.0, ratio="sequence")
    torch.testing.assert_close(loss, torch.full((3,), -np.exp(0.4), dtype=torch.float64))
    apart, _ = clipped_loss(
        replace(inputs, rows=torch.tensor([0, 0, 1]), num_rows=2), low=0.9, high=9.0, ratio="sequence"
    )
    torch.testing.assert_close(apart[2], torch.tensor(-np.exp(0.6)))


def test_a_loss_of_the_user_gets_whole_responses_unless_it_says_otherwise():
    assert not Objective(lambda inputs: (inputs.logprobs, {})).by_token
    assert [each.by_token for each in OBJECTIVES[:3]] == [True, False, True]
