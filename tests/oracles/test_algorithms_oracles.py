"""Our functions against the answers of verl, TRL and SkyRL (``fixtures/``; made by ``make_fixtures.py``)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.correction import importance_correction
from dapo.algorithms.keep import judge_group
from dapo.algorithms.losses import LossInputs, cispo_loss, clipped_loss
from dapo.algorithms.ratio import log_ratio
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.shaping import soft_overlong_punishment
from dapo.contracts.enums import Verdict
from dapo.contracts.token_metrics import k3

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
    return np.stack(loss_weights(list(mask), batch["groups"], settings["reduction"], **settings_of_weights))


def answer_reduction(batch, settings):
    return (weights_matrix(batch, settings) * np.array(batch["loss_matrix"])).sum()


def answer_loss(batch, settings):
    mask = torch.tensor(batch["mask"], dtype=torch.bool)
    leaf = torch.tensor(batch["logprobs"]).requires_grad_()
    rows, width = mask.shape
    inputs = LossInputs(
        logprobs=leaf.where(mask, BACKGROUND).flatten(),
        old_logprobs=torch.tensor(batch["old_logprobs"]).where(mask, -2 * BACKGROUND).flatten(),
        advantages=torch.tensor(batch["advantages"]).repeat_interleave(width),
        loss_mask=mask.flatten(),
        rows=torch.arange(rows).repeat_interleave(width),
        num_rows=rows,
    )
    names = ("cap", "floor") if settings["kind"] == "cispo" else ("low", "high", "dual", "ratio")
    function = cispo_loss if settings["kind"] == "cispo" else clipped_loss
    loss_T, _ = function(inputs, **{name: settings[name] for name in names})
    loss = (loss_T * torch.tensor(weights_matrix(batch, settings)).flatten()).sum()
    loss.backward()
    return {"loss": loss.item(), "gradient": leaf.grad.numpy()}


def answer_advantages(batch, settings):
    rewards_PG = np.array(batch["rewards"]).reshape(2, 4)
    return np.concatenate(group_advantages(list(rewards_PG), [[True] * 4] * 2, **settings))


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
