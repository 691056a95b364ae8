"""The reference in the learner: whose numbers it gives, the KL term's gradient, refreshes, checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_here import LearnerHere
from learner_rows import learn, make_rows, with_sampler
from test_learner_worker import OBJECTIVE, folder, moved, truncated_importance, weights_of  # noqa: F401
from transformers import AutoModelForCausalLM

from dapo.algorithms.objective import with_terms
from dapo.config import schema
from dapo.errors import CheckpointError, LearnerError
from dapo.learner.tensor_files import TensorFiles
from dapo.models.load import load_model

FIXED = schema.ReferenceSection()
PLAIN = OBJECTIVE


def make(
    path, *, objective=OBJECTIVE, reference=FIXED, dtype=torch.float32, correction=None, mode="packed", **settings
):
    loaded = load_model(path, dtype=dtype, attention_mode=mode)
    return LearnerHere(loaded, objective, schema.LearnerSection(**settings), 1.0, correction, reference)


def logprobs(learner, rows, of="policy"):
    return learner.logprobs(rows, of).result()


def equal(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_stays_while_the_policy_learns_and_asking_it_changes_no_bit(folder, dtype, offload):  # noqa: F811
    rows = make_rows()
    learner = make(folder, dtype=dtype, reference=schema.ReferenceSection(offload=offload))
    twin = make(folder, dtype=dtype, reference=None)
    start = logprobs(learner, rows)
    assert equal(logprobs(learner, rows, "reference"), start)
    for number in range(2):
        assert learn(learner, rows, version=number) == learn(twin, rows, version=number)
        assert equal(logprobs(learner, rows, "reference"), start)
    assert not equal(logprobs(learner, rows), start)
    for name, weight in weights_of(twin).items():
        assert torch.equal(weights_of(learner)[name], weight), name


def test_a_learner_without_a_reference_says_so(folder):  # noqa: F811
    with pytest.raises(LearnerError, match=r"made without one: set algorithm\.kl_coefficient"):
        logprobs(make(folder, reference=None), make_rows(), "reference")


def test_the_policy_comes_back_from_a_pass_that_fails(folder, monkeypatch):  # noqa: F811
    learner = make(folder)
    learn(learner, make_rows())
    before = weights_of(learner)

    def broken(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(learner.step, "logprobs", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        logprobs(learner, make_rows(), "reference")
    assert moved(learner, before) == []


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("mode", ["packed", "padded"])
def test_the_kl_terms_gradient_is_that_of_the_formula_written_out(folder, estimator, mode):  # noqa: F811
    """Rows without any advantage, so that nothing else has a gradient; through the unmodified model, in float64."""
    rows = [replace(row, advantage=0.0) for row in make_rows(groups=2)]
    shifts = [np.random.default_rng(n).normal(0, 0.5, len(row.token_ids)) for n, row in enumerate(rows)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokens = sum(len(row.token_ids) for row in rows)
    total = torch.zeros((), dtype=torch.float64)
    for number, (row, shift) in enumerate(zip(rows, shifts, strict=True)):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()
        found = model(input_ids=ids[None]).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        log_p = found.gather(-1, ids[len(row.prompt_ids) :, None]).squeeze(-1)
        rows[number] = replace(row, reference_logprobs=(log_p.detach().numpy() + shift).astype(np.float32))
        d = torch.from_numpy(rows[number].reference_logprobs).double() - log_p
        total = total + {"k1": -d, "k2": d * d / 2, "k3": d.exp() - 1 - d}[estimator].sum() * 0.3 / tokens
    total.backward()
    objective = with_terms(PLAIN, kl_coefficient=0.3, kl_estimator=estimator)
    learner = make(folder, objective=objective, dtype=torch.float64, mode=mode, microbatch_tokens=20)
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    gradients = learner.watch_gradients()
    metrics = learn(learner, rows)
    own = torch.cat([gradients[name].flatten() for name, _ in model.named_parameters()])
    largest = float(expected.abs().max())
    assert largest > 1e-3
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-6 * largest)
    assert metrics["train/loss"] == pytest.approx(total.item(), rel=1e-6)
    k3 = np.concatenate([np.exp(s) - 1 - s for s in shifts]).mean()
    assert metrics["train/kl"] == pytest.approx(k3, rel=1e-4)


def test_importance_correction_and_clip_leave_the_terms_alone(folder):  # noqa: F811
    """A correction of 0 takes the whole surrogate away: what is left is the gradient of the terms, and all of it."""
    rows = make_rows(groups=1)
    objective = with_terms(PLAIN, kl_coefficient=0.5, kl_estimator="k2", entropy=True)
    probe = make(folder)
    own = logprobs(probe, rows)
    rows = with_sampler(rows, own)
    rows = [replace(row, reference_logprobs=lp - np.float32(0.3)) for row, lp in zip(rows, own, strict=True)]

    def gradient(correction, rows, objective):
        learner = make(folder, objective=objective, correction=correction, max_grad_norm=None)
        return learn(learner, rows, ratio_against="learner", entropy_coefficient=0.1)["train/grad_norm"]

    def nothing(learner, sampler, mask):
        return np.zeros(len(mask), np.float32)

    idle = [replace(row, advantage=0.0) for row in rows]
    alone = gradient(None, idle, objective)
    assert alone > 1e-3
    assert gradient(nothing, rows, objective) == pytest.approx(alone, rel=1e-5)
    assert gradient(truncated_importance, idle, objective) == pytest.approx(alone, rel=1e-5)
    assert gradient(nothing, rows, PLAIN) == 0.0


def test_rows_without_advantage_keep_their_pass(folder):  # noqa: F811
    """A group that is all right or all wrong is still pulled to the reference."""
    rows = make_rows()
    own = logprobs(make(folder), rows)
    rows = [replace(r, reference_logprobs=lp - np.float32(1.0)) for r, lp in zip(rows, own, strict=True)]
    half = [replace(row, advantage=0.0) if n < 5 else row for n, row in enumerate(rows)]
    objective = with_terms(PLAIN, kl_coefficient=0.2, kl_estimator="k3")
    whole, parts = (make(folder, objective=objective, microbatch_tokens=n) for n in (1000, 1))
    assert learn(whole, half)["train/grad_norm"] == pytest.approx(learn(parts, half)["train/grad_norm"], rel=1e-4)
    none = [replace(row, advantage=0.0) for row in rows]
    assert learn(make(folder, objective=objective), none)["train/grad_norm"] > 1e-3
    assert learn(make(folder), none)["train/grad_norm"] == 0.0


def test_a_refreshed_reference_is_the_policy_after_that_step_and_survives_a_checkpoint(folder, tmp_path):  # noqa: F811
    rows, refreshing = make_rows(), schema.ReferenceSection(refresh_every=2)
    learner = make(folder, reference=refreshing)
    start = logprobs(learner, rows)
    learn(learner, rows)
    assert equal(logprobs(learner, rows, "reference"), start)
    learn(learner, rows, refresh_reference=True)
    after = logprobs(learner, rows)
    assert equal(logprobs(learner, rows, "reference"), after)
    learn(learner, rows)
    learner.save(tmp_path / "saved").result()
    again = make(folder, reference=refreshing)
    again.load(tmp_path / "saved")
    assert equal(logprobs(again, rows, "reference"), after)
    assert equal(logprobs(again, rows), logprobs(learner, rows))
    fixed = make(folder)
    fixed.save(tmp_path / "fixed").result()
    with TensorFiles([tmp_path / "fixed" / "rank-00000-of-00001.safetensors"]) as files:
        assert not any(name.startswith("reference/") for name in files.shapes)
    with pytest.raises(CheckpointError, match="holds no reference"):
        make(folder, reference=refreshing).load(tmp_path / "fixed")
