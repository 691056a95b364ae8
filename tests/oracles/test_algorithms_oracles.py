"""Our functions against the answers of verl, TRL and SkyRL (``fixtures/``; made by ``make_fixtures.py``)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.correction import importance_correction
from dapo.algorithms.keep import judge_group
from dapo.algorithms.kl import kl_estimate
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.objective import clip_objective, with_terms
from dapo.algorithms.ratio import log_ratio
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.shaping import soft_overlong_punishment
from dapo.algorithms.teacher import TeacherTerm
from dapo.algorithms.variants.cispo import cispo_loss
from dapo.algorithms.variants.covariance import clip_cov_loss, covariance_marks, kl_cov_loss
from dapo.algorithms.variants.gdpo import gdpo_advantages
from dapo.algorithms.variants.sapo import sapo_loss
from dapo.metrics.tokens import k3
from dapo.types.enums import Verdict

FOLDER = Path(os.environ.get("DAPO_ORACLE_ANSWERS", Path(__file__).parent / "fixtures"))
PEERS = ["verl-0.9.1", "verl-0.5.0", "trl-1.16.0", "skyrl-0.3.0"]
WEIGHT_SETTINGS = ("constant_length", "micro_batches", "micro_batch_weighted")
BACKGROUND = -77.0  # what stands where a token carries no loss; a mask that leaks would show it


def load_cases():
    for peer in PEERS:
        path = FOLDER / f"{peer}.json"
        if not path.exists():
            yield pytest.param(None, None, id=f"{peer}-absent")
            continue
        fixture = json.loads(path.read_text())
        for i, case in enumerate(fixture["cases"]):
            name = f"{peer}-{case['question']}-{case.get('batch', '')}-{i}"
            yield pytest.param(case, fixture["batches"].get(case.get("batch")), id=name)


def weights_matrix(batch, settings):
    """Our token weights laid out as the peers' padded matrix."""
    mask = np.array(batch["mask"], dtype=bool)
    settings_of_weights = {key: settings[key] for key in WEIGHT_SETTINGS if key in settings}
    return mask * loss_weights(list(mask), batch["groups"], settings["reduction"], **settings_of_weights)[:, None]


def answer_reduction(batch, settings):
    return (weights_matrix(batch, settings) * np.array(batch["loss_matrix"])).sum()


def answer_loss(batch, settings):
    mask = torch.tensor(batch["mask"], dtype=torch.bool)
    leaf = torch.tensor(batch["logprobs"]).requires_grad_()
    names = ("cap", "floor") if settings["kind"] == "cispo" else ("low", "high", "dual", "ratio")
    function = cispo_loss if settings["kind"] == "cispo" else clipped_loss
    loss_T, _ = function(laid_flat(batch, leaf, mask), **{name: settings[name] for name in names})
    loss = (loss_T * torch.tensor(weights_matrix(batch, settings)).flatten()).sum()
    loss.backward()
    return {"loss": loss.item(), "gradient": leaf.grad.numpy()}


def answer_advantages(batch, settings):
    rewards_PG = np.array(batch["rewards"]).reshape(2, 4)
    return np.concatenate(group_advantages(list(rewards_PG), [[True] * 4] * 2, **settings))


def laid_flat(batch, leaf, mask, **more):
    """The peers' padded matrices as the tokens of one call, with nonsense where no loss is carried."""
    rows, width = mask.shape
    return LossInputs(
        logprobs=leaf.where(mask, BACKGROUND).flatten(),
        old_logprobs=torch.tensor(batch["old_logprobs"]).where(mask, -2 * BACKGROUND).flatten(),
        advantages=torch.tensor(batch["advantages"]).repeat_interleave(width),
        loss_mask=mask.flatten(),
        rows=torch.arange(rows).repeat_interleave(width),
        num_rows=rows,
        **more,
    )


def answer_named_loss(batch, settings):
    """SAPO at the batch's log-probabilities; the other two where the policy is the old one plus ``shift``."""
    mask, old = torch.tensor(batch["mask"], dtype=torch.bool), torch.tensor(batch["old_logprobs"])
    kind = settings["kind"]
    leaf = (torch.tensor(batch["logprobs"]) if kind == "sapo" else old + settings["shift"]).requires_grad_()
    marked = None
    if kind != "sapo":
        bounds = {name: settings[name] for name in ("above", "below") if name in settings}
        marks = covariance_marks(
            batch["old_logprobs"], batch["advantages"], batch["mask"], kind=kind, share=settings["share"],
            draws_R=np.random.default_rng(0).random(mask.shape), **bounds,
        )  # fmt: skip
        marked = torch.tensor(np.stack(marks)).flatten()
        assert 0 < int(marked.sum()) < int(mask.sum())
    inputs = laid_flat(batch, leaf, mask, extra={} if marked is None else {"marked": marked})
    if kind == "sapo":
        loss_T, _ = sapo_loss(inputs, positive=settings["positive"], negative=settings["negative"])
    elif kind == "clip_cov":
        loss_T, _ = clip_cov_loss(inputs, low=settings["low"], high=settings["high"])
    else:
        loss_T, _ = kl_cov_loss(inputs, coefficient=settings["coefficient"])
    weights = weights_matrix(batch, {"reduction": "token_mean"} | settings)
    loss = (loss_T * torch.tensor(weights).flatten()).sum()
    loss.backward()
    return {"loss": loss.item(), "gradient": leaf.grad.numpy()}


def answer_terms(batch, settings):
    """TRL's loss with its KL and entropy terms; the sampler's numbers stand for a reference's."""
    mask = torch.tensor(batch["mask"], dtype=torch.bool)
    leaf = torch.tensor(batch["logprobs"]).requires_grad_()
    entropies = torch.tensor(batch["loss_matrix"]).square().requires_grad_()
    inputs = laid_flat(
        batch,
        leaf,
        mask,
        entropy=entropies.flatten(),
        reference_logprobs=torch.tensor(batch["sampler_logprobs"]).flatten(),
    )
    objective = with_terms(
        clip_objective(low=settings["low"], high=settings["high"]),
        kl_coefficient=settings["kl_coefficient"],
        kl_estimator=settings["kl_estimator"],
        entropy="entropy_coefficient" in settings,
    )
    loss_T = objective.loss(inputs)[0] + objective.terms(inputs, settings.get("entropy_coefficient", 0.0))
    loss = (loss_T * torch.tensor(weights_matrix(batch, settings)).flatten()).sum()
    loss.backward()
    found = {"loss": loss.item(), "gradient": leaf.grad.numpy()}
    return found if entropies.grad is None else found | {"entropy_gradient": entropies.grad.numpy()}


def answer_teacher(batch, settings):
    """On fresh tokens; rewards say nothing."""
    mask, leaf = torch.tensor(batch["mask"], dtype=torch.bool), torch.tensor(batch["logprobs"]).requires_grad_()
    flat = laid_flat(batch, leaf, mask)
    inputs = replace(
        flat,
        advantages=torch.zeros_like(flat.advantages),
        old_logprobs=flat.logprobs.detach(),
        teacher_logprobs=torch.tensor(batch["sampler_logprobs"]).flatten(),
    )
    objective = with_terms(
        clip_objective(low=0.2, high=0.2, dual=3.0),
        teacher=TeacherTerm(1.0, settings["term"], settings["estimator"]),
    )
    loss_T, _ = objective.loss(replace(inputs, advantages=objective.teacher.advantages(inputs)))
    terms = objective.terms(inputs)
    loss_T = loss_T if terms is None else loss_T + terms
    loss = (loss_T * torch.tensor(weights_matrix(batch, settings)).flatten()).sum()
    loss.backward()
    return {"loss": loss.item(), "gradient": leaf.grad.numpy()}


def answer_kl(batch, settings):
    mask = torch.tensor(batch["mask"], dtype=torch.float32)
    leaf = torch.tensor(batch["logprobs"]).requires_grad_()
    found = kl_estimate(leaf.flatten(), torch.tensor(batch["sampler_logprobs"]).flatten(), settings["estimator"])
    value = found.view(mask.shape) * mask
    value.sum().backward()
    return {"value": value.detach().numpy(), "gradient": leaf.grad.numpy()}


def answer_decoupled(_batch, settings):
    parts = [{name: np.array(v)[part] for name, v in settings["rewards"].items()} for part in (slice(4), slice(4, 8))]
    return np.concatenate(gdpo_advantages([], [[True] * 4] * 2, parts, weights=settings["weights"]))


def answer_overlong(_batch, settings):
    bounds = {key: settings[key] for key in ("max_length", "cache_length")}
    return soft_overlong_punishment(settings["lengths"], **bounds)


def answer_keep(_batch, settings):
    return [
        judge_group(values, [True] * 4, metric_is_accuracy=False, tolerance=settings["tolerance"]) is Verdict.KEPT
        for values in settings["values_PG"]
    ]


def answer_correction(batch, settings):
    mask = np.array(batch["mask"], dtype=bool)
    rows = zip(batch["logprobs"], batch["sampler_logprobs"], mask, strict=True)
    corrections = [importance_correction(new, old, loss_mask=row_mask, **settings) for new, old, row_mask in rows]
    return np.stack(corrections) * mask  # the peers have 0 where a token carries no loss


def answer_k3(batch, _settings):
    mask = np.array(batch["mask"], dtype=bool)
    return k3(log_ratio(batch["logprobs"], batch["sampler_logprobs"])[mask]).mean()


ANSWERS = {name.removeprefix("answer_"): function for name, function in globals().items() if name.startswith("answer_")}


CASES = list(load_cases())


@pytest.mark.parametrize(("case", "batch"), CASES)
def test_equals_peer(case, batch):
    if case is None:
        assert "DAPO_ORACLE_ANSWERS" in os.environ, f"a committed fixture is missing in {FOLDER}"
        pytest.skip("this peer could not be asked here")
    ours, theirs = ANSWERS[case["question"]](batch, case["settings"]), case["answer"]
    if not isinstance(theirs, dict):
        ours, theirs = {"value": ours}, {"value": theirs}
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, atol=2e-6, err_msg=f"{case['peer']}: {name}")


def test_answers_ask_every_question_and_clip_in_every_clipped_loss():
    """An answer in which nothing is clipped, or a question that nobody was asked, would prove little."""
    cases = [param.values for param in CASES if param.values[0] is not None]
    if "DAPO_ORACLE_ANSWERS" not in os.environ:
        assert {case["question"] for case, _ in cases} == set(ANSWERS)
        assert len(cases) > 90
    for case, batch in cases:
        if case["question"] == "loss" and case["settings"]["kind"] == "clip":
            gradient = np.array(case["answer"]["gradient"])[np.array(batch["mask"], dtype=bool)]
            assert np.count_nonzero(gradient == 0) > 0, case["peer"]
            assert np.count_nonzero(gradient) > 0, case["peer"]
