"""What the learner keeps of traced rows: right numbers, and no bit of training changed by keeping them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_rows import learn_step, make_groups, masked, rows_of, with_sampler
from test_learner_worker import folder, make_learner, weights_of  # noqa: F401  (a fixture)
from transformers import AutoModelForCausalLM

from dapo.algorithms.objective import Objective, clip_objective


def traced_rows(chosen, seed=0, **options):
    """Nine rows of three groups, the chosen ones traced."""
    rows = rows_of(make_groups(seed, **options))
    return [replace(row, traced=number in chosen) for number, row in enumerate(rows)]


def test_by_hand_one_row_of_two_tokens(folder):  # noqa: F811
    """Ratios 1.5 (clipped high with A > 0) and 1: the trace has them, and the entropy of the softmax."""
    learner = make_learner(folder, temperature=0.7)
    row = replace(traced_rows([0], length=lambda random: 2)[0], advantage=1.0)
    (current,) = learner.logprobs([row]).result()
    (row,) = with_sampler([row], [current - np.array([math.log(1.5), 0], dtype=np.float32)])
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()[None]
    with torch.no_grad():
        logits = (
            AutoModelForCausalLM.from_pretrained(folder)(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1] / 0.7
        )
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    _, (trace,) = learn_step(learner, [[row]])
    assert (trace.group, trace.sample) == (row.group, row.sample)
    np.testing.assert_allclose(trace.logprobs, current, atol=1e-5)  # of the weights before the step
    np.testing.assert_array_equal(trace.old_logprobs, row.sampler_logprobs)
    np.testing.assert_allclose(trace.ratio, [1.5, 1.0], atol=1e-4)
    np.testing.assert_allclose(trace.entropy, entropy, atol=1e-4)
    assert trace.clip.tolist() == [2, 0]
    for values in (trace.logprobs, trace.old_logprobs, trace.ratio, trace.entropy):
        assert values.dtype == np.float32


@pytest.mark.parametrize(
    ("ratio", "advantage", "flag"), [(0.5, -1.0, 1), (1.5, 1.0, 2), (12.0, -1.0, 3), (0.5, 1.0, 0), (1.5, -1.0, 0)]
)
def test_the_bound_that_cut_a_token_has_its_number(folder, ratio, advantage, flag):  # noqa: F811
    learner = make_learner(folder, objective=clip_objective(low=0.2, high=0.28, dual=10.0))
    rows = traced_rows([4])
    row = replace(rows[4], advantage=advantage)
    rows[4:5] = with_sampler([row], [learner.logprobs([row]).result()[0] - np.float32(math.log(ratio))])
    _, (trace,) = learn_step(learner, [rows], 0.0)
    assert trace.clip.tolist() == [flag] * len(row.token_ids)


@pytest.mark.parametrize("mode", ["packed", "padded"])
@pytest.mark.parametrize("tokens", [20, 10**6])
def test_each_row_gets_its_own_tokens_however_they_are_split(folder, mode, tokens):  # noqa: F811
    chosen = (0, 3, 4, 8)
    learner = make_learner(folder, mode=mode, microbatch_tokens=tokens)
    rows = traced_rows(chosen)
    rows[3] = replace(rows[3], advantage=0.0)  # run forward only, apart from the others
    expected = {(rows[n].group, rows[n].sample): (rows[n], learner.logprobs([rows[n]]).result()[0]) for n in chosen}
    traces = {(trace.group, trace.sample): trace for trace in learn_step(learner, [rows])[1]}
    assert traces.keys() == expected.keys()
    for key, (row, logprobs) in expected.items():
        np.testing.assert_allclose(traces[key].logprobs, logprobs, atol=1e-5)
        np.testing.assert_array_equal(traces[key].old_logprobs, row.sampler_logprobs)


def test_traces_of_several_minibatches_come_together_and_rows_without_loss_have_none(folder):  # noqa: F811
    learner = make_learner(folder)
    rows = traced_rows([0, 1, 5, 8])
    rows[1] = masked(rows[1])  # truncated, say
    _, traces = learn_step(learner, [rows[:6], rows[6:]])
    assert [(t.group, t.sample) for t in traces] == [(0, 0), (1, 2), (2, 2)]


def test_against_the_learners_own_numbers_the_ratio_is_one(folder):  # noqa: F811
    learner = make_learner(folder)
    _, (trace,) = learn_step(learner, [traced_rows([2])], ratio_against="learner")
    np.testing.assert_array_equal(trace.logprobs, trace.old_logprobs)
    assert (trace.ratio == 1.0).all()


def test_a_loss_that_names_no_clip_flags_has_none_to_tell(folder):  # noqa: F811
    learner = make_learner(folder, objective=Objective(lambda inputs: (-inputs.logprobs * inputs.advantages, {})))
    _, (trace,) = learn_step(learner, [traced_rows([2])])
    assert trace.clip is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [20, 10**6])
def test_tracing_changes_no_bit_of_weights_moments_and_metrics(folder, dtype, tokens):  # noqa: F811
    plain, tracing = (make_learner(folder, dtype=dtype, microbatch_tokens=tokens) for _ in range(2))
    for seed in range(3):
        metrics, none = learn_step(plain, [traced_rows([], seed)])
        again, traces = learn_step(tracing, [traced_rows(range(9), seed)])
        assert again == metrics
        assert (len(none), len(traces)) == (0, 9)
    assert all(torch.equal(a, weights_of(tracing)[name]) for name, a in weights_of(plain).items())
    moments = tracing.step.optimizer.state()
    assert all(torch.equal(value, moments[key]) for key, value in plain.step.optimizer.state().items())


def test_traces_are_copies_that_the_record_does_not_outlive(folder):  # noqa: F811
    """A whole step's tokens must not stay in memory because of a few rows."""
    learner = make_learner(folder)
    rows = traced_rows([0])
    _, (trace,) = learn_step(learner, [rows])
    kept = trace.logprobs if trace.logprobs.base is None else trace.logprobs.base
    assert kept.size == len(rows[0].token_ids)
