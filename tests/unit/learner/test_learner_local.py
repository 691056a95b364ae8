"""One optimiser step: against torch written out, empty and broken batches, metrics by hand, exact save and load."""

from __future__ import annotations

import functools
import json
import math
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo.algorithms.correction import importance_correction
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.config import schema
from dapo.contracts.glossary import lookup
from dapo.contracts.types import TrainRow
from dapo.errors import CheckpointError, LearnerError
from dapo.learner.local import LocalLearner
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

LOSS = functools.partial(clipped_loss, low=0.2, high=0.28)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, heads=2, ffn=48)


def make_learner(
    folder, *, loss=LOSS, temperature=1.0, dtype=torch.float32, mode="packed", correction=None, **settings
):
    loaded = load_model(folder, dtype=dtype, attention_mode=mode)
    return LocalLearner(loaded, loss, schema.Learner(**settings), temperature, correction)


def make_rows(seed: int = 0, groups: int = 3, size: int = 3) -> list[TrainRow]:
    random = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        prompt = random.integers(3, 78, 4)
        for _ in range(size):
            n = int(random.integers(1, 9))
            rows.append(
                TrainRow(
                    group,
                    prompt,
                    random.integers(3, 78, n),
                    weights=random.uniform(0.1, 1, n).astype(np.float32),
                    advantages=np.full(n, random.normal(), dtype=np.float32),
                    old_logprobs=random.normal(-4.4, 0.3, n).astype(np.float32),
                )
            )
    return rows


def weights_of(learner):
    return {name: p.detach().clone() for name, p in learner.loaded.model.named_parameters()}


def moved(learner, before):
    return [name for name, p in learner.loaded.model.named_parameters() if not torch.equal(p, before[name])]


@pytest.mark.parametrize("mode", ["packed", "padded"])
def test_a_step_is_torchs_adamw_on_the_loss_written_out(folder, mode):
    """Row by row through the unmodified model: min(r A, clip(r) A), weights, correction, clipping at 0.3, decay."""
    rows = make_rows()
    rows[0].correction = np.full(len(rows[0].token_ids), 0.5, dtype=np.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2)
    learner = make_learner(
        folder,
        mode=mode,
        dtype=torch.float64,
        temperature=0.7,
        betas=(0.8, 0.9),
        eps=1e-6,
        weight_decay=0.2,
        max_grad_norm=0.3,
    )
    for step in range(2):
        total = torch.zeros((), dtype=torch.float64)
        for row in rows:
            ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))
            logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0] / 0.7, -1)
            for t, token in enumerate(row.token_ids):
                r = torch.exp(logprobs[len(row.prompt_ids) + t - 1, token] - float(row.old_logprobs[t]))
                a = float(row.advantages[t])
                w = float(row.weights[t]) * (1.0 if row.correction is None else 0.5)
                total = total - w * torch.minimum(r * a, r.clamp(0.8, 1.28) * a)
        total.backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        for p in model.parameters():
            p.grad *= min(1.0, 0.3 / norm)
        adamw.step()
        adamw.zero_grad()

        metrics = learner.update(rows, 1e-3)
        assert metrics["train/loss"] == pytest.approx(total.item(), abs=1e-6)
        assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-5)
        for (name, found), expected in zip(learner.loaded.model.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-6, msg=f"{name}, step {step}")


def test_the_learning_rate_of_the_call_counts(folder):
    learner = make_learner(folder)
    before = weights_of(learner)
    learner.update(make_rows(), 0.0)
    assert moved(learner, before) == []
    learner.update(make_rows(), 1e-3)
    assert len(moved(learner, before)) == len(before)


@pytest.mark.parametrize("tokens", [20, 10**6])
def test_logprobs_come_in_the_order_of_the_rows(folder, tokens):
    learner = make_learner(folder, microbatch_tokens=tokens)
    rows = make_rows()
    shuffled = [rows[i] for i in (5, 0, 8, 3, 1, 7, 2, 6, 4)]
    found = learner.logprobs(shuffled)
    alone = [learner.logprobs([row])[0] for row in shuffled]
    assert [f.dtype for f in found] == [np.float32] * 9
    for together, single in zip(found, alone, strict=True):
        np.testing.assert_allclose(together, single, atol=1e-5)


def test_a_batch_without_loss_tokens_moves_nothing_and_is_reported(folder):
    learner = make_learner(folder)
    learner.update(make_rows(), 1e-3)  # moments that would move the weights
    before, moments = weights_of(learner), {k: v.clone() for k, v in learner.optimizer.state().items()}
    rows = make_rows()
    for row in rows:
        row.loss_mask = np.zeros(len(row.token_ids), dtype=np.bool_)
    metrics = learner.update(rows, 1e-3)
    assert (metrics["train/empty_steps"], metrics["train/loss_tokens"]) == (1, 0)
    assert learner.update([], 1e-3)["train/empty_steps"] == 1
    assert moved(learner, before) == []
    assert all(torch.equal(value, moments[key]) for key, value in learner.optimizer.state().items())


def test_what_stands_in_masked_tokens_is_never_read(folder):
    rows, poisoned = make_rows(), make_rows()
    for row in rows + poisoned:
        row.loss_mask = np.arange(len(row.token_ids)) % 2 == 0
    for row in poisoned:
        for values in (row.old_logprobs, row.advantages, row.weights):
            values[1::2] = np.nan
    learners = [make_learner(folder) for _ in range(2)]
    metrics = [learner.update(batch, 1e-3) for learner, batch in zip(learners, (rows, poisoned), strict=True)]
    assert metrics[0] == metrics[1]
    assert moved(learners[1], weights_of(learners[0])) == []


def explosive(inputs: LossInputs):
    return inputs.logprobs * math.inf, {}


def test_a_gradient_that_is_not_finite_skips_the_step_and_then_stops(folder):
    learner = make_learner(folder, max_skipped_steps=2)
    learner.update(make_rows(), 1e-3)
    before, moments = weights_of(learner), {k: v.clone() for k, v in learner.optimizer.state().items()}
    learner.loss = explosive
    for _ in range(2):
        metrics = learner.update(make_rows(), 1e-3)
        assert metrics["train/skipped_steps"] == 1
        assert math.isnan(metrics["train/grad_norm"])
    learner.loss = LOSS
    assert moved(learner, before) == []
    assert all(torch.equal(value, moments[key]) for key, value in learner.optimizer.state().items())
    assert learner.update(make_rows(), 0.0)["train/skipped_steps"] == 0  # a good step ends the row
    learner.loss = explosive
    learner.update(make_rows(), 1e-3)
    learner.update(make_rows(), 1e-3)
    with pytest.raises(LearnerError, match="max_skipped_steps = 2"):
        learner.update(make_rows(), 1e-3)


def test_the_count_of_skipped_steps_survives_a_checkpoint(folder, tmp_path):
    learner = make_learner(folder, loss=explosive, max_skipped_steps=1)
    learner.update(make_rows(), 1e-3)
    learner.save(tmp_path)
    resumed = make_learner(folder, loss=explosive, max_skipped_steps=1)
    resumed.load(tmp_path)
    with pytest.raises(LearnerError):
        resumed.update(make_rows(), 1e-3)


def set_advantage(row: TrainRow, value: float) -> None:
    row.advantages[:] = value


def test_metrics_by_hand(folder):
    """Two rows of one token each; the ratios are 1.5 (clipped high) and 0.5 (clipped low)."""
    learner = make_learner(folder)
    rows = [r for r in make_rows() if len(r.token_ids) >= 1][:2]
    for row in rows:
        for name in ("token_ids", "weights", "advantages", "old_logprobs"):
            setattr(row, name, getattr(row, name)[:1])
    current = [float(x[0]) for x in learner.logprobs(rows)]
    for row, ratio, advantage in zip(rows, (1.5, 0.5), (2.0, -1.0), strict=True):
        row.old_logprobs[0] = learner.logprobs([row])[0][0] - math.log(ratio)
        row.weights[0] = 0.5
        set_advantage(row, advantage)
    metrics = learner.update(rows, 1e-3)
    assert metrics["train/loss"] == pytest.approx(0.5 * -2.0 * 1.28 + 0.5 * 0.8, abs=1e-5)
    assert metrics["train/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["train/ratio_max"] == pytest.approx(1.5, abs=1e-5)
    assert metrics["train/ratio_min"] == pytest.approx(0.5, abs=1e-5)
    expected_kl = ((1.5 - 1 - math.log(1.5)) + (0.5 - 1 - math.log(0.5))) / 2
    assert metrics["train/approx_kl"] == pytest.approx(expected_kl, abs=1e-5)
    assert (metrics["train/clip_high"], metrics["train/clip_low"], metrics["train/clip_dual"]) == (0.5, 0.5, 0.0)
    assert metrics["train/clip_high_probability"] == pytest.approx(math.exp(current[0]), rel=1e-4)
    assert metrics["train/loss_tokens"] == 2
    assert metrics["train/gap_mean"] == pytest.approx((math.log(1.5) + math.log(2)) / 2, abs=1e-5)
    assert metrics["train/gap_max"] == pytest.approx(math.log(2), abs=1e-5)
    assert metrics["train/grad_norm"] == pytest.approx(0.0, abs=1e-7)  # both tokens are clipped
    assert [key for key in metrics if lookup(key) is None] == []


def test_the_gap_is_split_by_the_age_of_the_tokens(folder):
    learner = make_learner(folder)
    rows = make_rows(groups=1, size=2)
    for row, shift, current in zip(rows, (0.1, 0.4), (True, False), strict=True):
        row.old_logprobs = learner.logprobs([row])[0] - np.float32(shift)
        row.current = np.full(len(row.token_ids), current)
    metrics = learner.update(rows, 1e-3)
    assert metrics["train/gap_mean_current"] == pytest.approx(0.1, abs=1e-4)
    assert metrics["train/gap_mean_older"] == pytest.approx(0.4, abs=1e-4)
    # After a step the ratio's own movement would pass for a gap; after a publish it is one again.
    assert not [key for key in learner.update(rows, 1e-3) if "gap" in key]
    learner.publish()
    assert "train/gap_mean" in learner.update(rows, 1e-3)
    # With old log-probabilities from the learner the gap is theirs, whatever the weights did since.
    for row in rows:
        row.sampler_logprobs = row.old_logprobs - np.float32(0.25)
    metrics = learner.update(rows, 1e-3)
    assert metrics["train/gap_mean"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["train/gap_kl"] == pytest.approx(math.exp(0.25) - 1 - 0.25, abs=1e-5)


def test_without_old_logprobs_the_ratio_is_one_and_the_correction_is_made_here(folder):
    def correction(learner_logprobs, sampler_logprobs, mask):
        return importance_correction(
            learner_logprobs, sampler_logprobs, kind="truncate", cap=2.0, floor=0.5, loss_mask=mask
        )

    learner = make_learner(folder, correction=correction)
    given = make_learner(folder)
    rows, explicit = make_rows(), make_rows()
    for row, other, logprobs in zip(rows, explicit, learner.logprobs(rows), strict=True):
        sampler = logprobs + np.linspace(-1, 0.5, len(logprobs), dtype=np.float32)
        row.old_logprobs, row.sampler_logprobs = None, sampler
        other.old_logprobs, other.sampler_logprobs = logprobs, sampler
        other.correction = correction(logprobs, sampler, np.ones(len(logprobs), dtype=np.bool_))
    found, expected = learner.update(rows, 1e-3), given.update(explicit, 1e-3)
    assert found["train/ratio_max"] == found["train/ratio_min"] == 1.0
    assert 0 < found["train/correction_share"] < 1
    for key in ("train/loss", "train/correction_mean", "train/correction_share", "train/grad_norm", "train/gap_mean"):
        assert found[key] == pytest.approx(expected[key], abs=1e-4), key


def test_rows_without_advantage_take_no_backward_pass_where_that_is_allowed(folder, monkeypatch):
    rows = make_rows()
    for row in rows[:3]:
        set_advantage(row, 0.0)
    passes = []
    plain = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda loss: passes.append(loss.requires_grad) or plain(loss))
    learner = make_learner(folder, microbatch_tokens=1)
    learner.update(rows, 1e-3)
    assert len(passes) == 9
    learner.zero_advantage_is_free = True
    learner.update(rows, 1e-3)
    assert passes[9:] == [True] * 6
    for row in rows:
        set_advantage(row, 0.0)
    before = weights_of(learner)
    assert learner.update(rows, 1e-3)["train/grad_norm"] == 0.0
    assert len(moved(learner, before)) == len(before)  # moments and decay move on, as after any zero gradient


def test_flags_of_ones_own_loss_are_reported_under_custom(folder):
    def loss(inputs: LossInputs):
        return -inputs.logprobs * inputs.advantages, {"positive": inputs.advantages > 0}

    rows = make_rows()
    metrics = make_learner(folder, loss=loss).update(rows, 1e-3)
    tokens = [(len(r.token_ids), r.advantages[0] > 0) for r in rows]
    assert metrics["custom/positive"] == pytest.approx(sum(n for n, p in tokens if p) / sum(n for n, _ in tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_steps_equal_two_steps_a_checkpoint_and_two_steps_to_the_bit(folder, tmp_path, dtype):
    batches = [make_rows(seed) for seed in range(4)]
    whole = make_learner(folder, dtype=dtype)
    metrics = [whole.update(batch, 1e-3) for batch in batches]
    half = make_learner(folder, dtype=dtype)
    for batch in batches[:2]:
        half.update(batch, 1e-3)
    half.save(tmp_path / "learner")
    resumed = make_learner(folder, dtype=dtype)
    tensors = {name: tensor.data_ptr() for name, tensor in resumed.publish().named_tensors()}
    resumed.load(tmp_path / "learner")
    resumed._weights_moved = True  # as in the run that went on, where no publish lies between the steps
    assert [resumed.update(batch, 1e-3) for batch in batches[2:]] == metrics[2:]
    assert moved(resumed, weights_of(whole)) == []
    state = resumed.optimizer.state()
    assert state.keys() == whole.optimizer.state().keys()
    assert all(torch.equal(state[key], value) for key, value in whole.optimizer.state().items())
    assert {name: tensor.data_ptr() for name, tensor in resumed.publish().named_tensors()} == tensors


def test_bfloat16_weights_move_by_less_than_their_resolution(folder):
    """100 updates of 1e-5 on weights near 0.1 (spacing 5e-4) are lost without float32 masters."""
    learner = make_learner(folder, dtype=torch.bfloat16, weight_decay=0.0)
    before = weights_of(learner)
    for _ in range(100):
        learner.update(make_rows(), 1e-5)
    name = "model.embed_tokens.weight"
    master = learner.optimizer.masters[name]
    assert master.dtype == torch.float32
    assert torch.equal(learner.loaded.model.get_parameter(name), master.bfloat16())
    change = (master - before[name].float()).abs().max()
    assert 5e-4 < change < 2e-3


def test_a_checkpoint_of_another_model_is_refused_with_the_difference(folder, tmp_path):
    make_learner(make_tiny_model(tmp_path / "other", hidden=32, heads=2, ffn=64)).save(tmp_path / "learner")
    learner = make_learner(folder)
    before = weights_of(learner)
    with pytest.raises(CheckpointError, match="intermediate_size 64 there, 48 here"):
        learner.load(tmp_path / "learner")
    assert moved(learner, before) == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_an_incomplete_checkpoint_is_refused(folder, tmp_path, name, damage):
    learner = make_learner(folder)
    learner.update(make_rows(), 1e-3)
    learner.save(tmp_path)
    file = tmp_path / name
    content = file.read_bytes()
    file.unlink() if damage == "missing" else file.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="not a complete learner checkpoint"):
        learner.load(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_loads_in_transformers_and_says_the_same(tmp_path, tied):
    learner = make_learner(make_tiny_model(tmp_path / "model", tied=tied))
    learner.update(make_rows(), 1e-2)
    learner.export(tmp_path / "export")
    shutil.rmtree(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert tokenizer("4 +7 =")["input_ids"] == [6, 18, 76]
    assert model.generation_config.eos_token_id == 1
    assert "dapo" not in json.dumps(json.loads((tmp_path / "export" / "config.json").read_text()))
    row = make_rows()[0]
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))[None]
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1], -1)
    expected = logprobs.gather(-1, ids[0, len(row.prompt_ids) :, None]).squeeze(-1)
    np.testing.assert_allclose(learner.logprobs([row])[0], expected.detach().numpy(), atol=1e-5)


def test_published_weights_are_the_learners_own_and_name_a_tied_head_once(folder):
    learner = make_learner(folder)
    source = learner.publish()
    assert source.shares_memory
    tensors = dict(source.named_tensors())
    assert "lm_head.weight" not in tensors
    for name, parameter in learner.loaded.model.named_parameters():
        assert tensors[name].data_ptr() == parameter.data_ptr()
