"""One optimiser step: against torch written out, empty and broken batches, metrics by hand, exact save and load."""

from __future__ import annotations

import json
import math
import resource
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_here import LearnerHere
from learner_rows import learn, learn_step, make_groups, make_rows, masked, rows_of, with_sampler
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo.algorithms.correction import importance_correction
from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import Objective, clip_objective
from dapo.config import schema
from dapo.errors import CheckpointError, EngineError, LearnerError
from dapo.metrics.glossary import lookup
from dapo.metrics.stats import Max, Mean, Min, Sum, merge, values
from dapo.metrics.tokens import TOKEN_METRICS
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.models.weight_files import model_tensors, read_shapes
from dapo.run.export import write_model
from dapo.types.batch import LearnStep
from dapo.weights.routes import receive
from dapo.weights.shared import offered

OBJECTIVE = clip_objective(low=0.2, high=0.28)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, heads=2, ffn=48)


def make_learner(
    folder, *, objective=OBJECTIVE, temperature=1.0, dtype=torch.float32, mode="packed", correction=None, **settings
):
    loaded = load_model(folder, dtype=dtype, attention_mode=mode)
    return LearnerHere(loaded, objective, schema.LearnerSection(**settings), temperature, correction)


def truncated_importance(learner_logprobs, sampler_logprobs, mask):
    return importance_correction(
        learner_logprobs, sampler_logprobs, kind="truncate", cap=2.0, floor=0.5, loss_mask=mask
    )


def weights_of(learner):
    return {name: p.detach().clone() for name, p in learner.loaded.model.named_parameters()}


def moved(learner, before):
    return [name for name, p in learner.loaded.model.named_parameters() if not torch.equal(p, before[name])]


@pytest.mark.parametrize("mode", ["packed", "padded"])
@pytest.mark.parametrize("against", ["sampler", "learner", "interpolated"])
def test_a_training_step_is_torchs_adamw_on_the_loss_written_out(folder, mode, against):
    """Row by row through the unmodified model: min(r A, clip(r) A), weights, correction, clipping at 0.3, decay.

    Interpolated (A-3PO): of a token of age d p_prox = p_sampler^(1/d) x p_learner^(1 - 1/d), no gradient through it,
    the learner's side from the weights that each minibatch finds.
    """
    minibatches = [make_rows(n, groups=1, versions=(2, 3, 4, 5)) for n in range(2)]
    learners_part = {5: 0.0, 4: 0.0, 3: 1 / 2, 2: 2 / 3}  # by the version that made a token, of weights of version 5
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2)
    learner = make_learner(
        folder,
        mode=mode,
        dtype=torch.float64,
        temperature=0.7,
        correction=truncated_importance,
        betas=(0.8, 0.9),
        eps=1e-6,
        weight_decay=0.2,
        max_grad_norm=0.3,
    )

    def logprobs_of(row):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()
        logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0] / 0.7, -1)
        return torch.stack([logprobs[len(row.prompt_ids) + t - 1, token] for t, token in enumerate(row.token_ids)])

    for step in range(2):
        samplers = [[torch.from_numpy(row.sampler_logprobs).double() for row in rows] for rows in minibatches]
        olds = samplers if against != "learner" else [[logprobs_of(r).detach() for r in rows] for rows in minibatches]
        losses, norms = [], []
        for rows, old_R, sampler_R in zip(minibatches, olds, samplers, strict=True):
            total = torch.zeros((), dtype=torch.float64)
            tokens = sum(len(row.token_ids) for row in rows)
            for row, old, sampler in zip(rows, old_R, sampler_R, strict=True):
                if against == "interpolated":
                    part = torch.tensor([learners_part[int(version)] for version in row.versions])
                    old = (1 - part) * sampler + part * logprobs_of(row).detach()
                r, a = torch.exp(logprobs_of(row) - old), row.advantage
                w = 1.0 if against == "sampler" else torch.exp(old - sampler).clamp(max=2.0)
                total = total - (w * torch.minimum(r * a, r.clamp(0.8, 1.28) * a)).sum() / tokens
            total.backward()
            norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
            for p in model.parameters():
                p.grad *= min(1.0, 0.3 / norm)
            adamw.step()
            adamw.zero_grad()
            losses.append(total.item())
            norms.append(norm)

        metrics, _ = learn_step(learner, minibatches, 1e-3, version=5, ratio_against=against)
        assert metrics["train/loss"] == pytest.approx(np.mean(losses), abs=1e-6)
        assert metrics["train/grad_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
        assert metrics["train/grad_norm_max"] == pytest.approx(max(norms), rel=1e-5)
        assert metrics["train/loss_tokens"] == np.mean([sum(len(r.token_ids) for r in rows) for rows in minibatches])
        for (name, found), expected in zip(learner.loaded.model.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-6, msg=f"{name}, step {step}")


def test_the_learning_rate_of_the_call_counts(folder):
    learner = make_learner(folder)
    before = weights_of(learner)
    learn(learner, make_rows(), 0.0)
    assert moved(learner, before) == []
    learn(learner, make_rows(), 1e-3)
    assert len(moved(learner, before)) == len(before)


@pytest.mark.parametrize("tokens", [20, 10**6])
def test_logprobs_come_in_the_order_of_the_rows(folder, tokens):
    learner = make_learner(folder, microbatch_tokens=tokens)
    rows = make_rows()
    shuffled = [rows[i] for i in (5, 0, 8, 3, 1, 7, 2, 6, 4)]
    found = learner.logprobs(shuffled).result()
    alone = [learner.logprobs([row]).result()[0] for row in shuffled]
    assert [f.dtype for f in found] == [np.float32] * 9
    for together, single in zip(found, alone, strict=True):
        np.testing.assert_allclose(together, single, atol=1e-5)


def test_a_batch_without_loss_tokens_moves_nothing_and_is_reported(folder):
    learner = make_learner(folder)
    learn(learner, make_rows(), 1e-3)  # moments that would move the weights
    before, moments = weights_of(learner), {k: v.clone() for k, v in learner.step.optimizer.state().items()}
    metrics = learn(learner, [masked(row) for row in make_rows()])
    assert (metrics["train/empty_steps"], metrics["train/loss_tokens"]) == (1, 0)
    assert learn(learner, [])["train/empty_steps"] == 1
    assert moved(learner, before) == []
    assert all(torch.equal(value, moments[key]) for key, value in learner.step.optimizer.state().items())


def test_what_stands_in_masked_tokens_is_never_read(folder):
    rows = [replace(row, loss_mask=np.arange(len(row.token_ids)) % 2 == 0) for row in make_rows()]
    poison = [np.where(row.loss_mask, row.sampler_logprobs, np.nan) for row in rows]
    learners = [make_learner(folder) for _ in range(2)]
    batches = rows, with_sampler(rows, poison)
    metrics = [learn(learner, batch) for learner, batch in zip(learners, batches, strict=True)]
    assert metrics[0] == metrics[1]
    assert moved(learners[1], weights_of(learners[0])) == []


def explode(inputs: LossInputs):
    return inputs.logprobs * math.inf, {}


EXPLOSIVE = Objective(explode)


def test_a_gradient_that_is_not_finite_skips_the_step_and_then_stops(folder):
    learner = make_learner(folder, max_skipped_steps=2)
    learn(learner, make_rows(), 1e-3)
    before, moments = weights_of(learner), {k: v.clone() for k, v in learner.step.optimizer.state().items()}
    learner.step.objective = EXPLOSIVE
    for _ in range(2):
        metrics = learn(learner, make_rows(), 1e-3)
        assert metrics["train/skipped_steps"] == 1
        assert math.isnan(metrics["train/grad_norm"])
    learner.step.objective = OBJECTIVE
    assert moved(learner, before) == []
    assert all(torch.equal(value, moments[key]) for key, value in learner.step.optimizer.state().items())
    assert learn(learner, make_rows(), 0.0)["train/skipped_steps"] == 0  # a good step ends the row
    learner.step.objective = EXPLOSIVE
    learn(learner, make_rows(), 1e-3)
    learn(learner, make_rows(), 1e-3)
    with pytest.raises(LearnerError, match="max_skipped_steps = 2"):
        learn(learner, make_rows(), 1e-3)


def test_the_count_of_skipped_steps_survives_a_checkpoint(folder, tmp_path):
    learner = make_learner(folder, objective=EXPLOSIVE, max_skipped_steps=1)
    learn(learner, make_rows(), 1e-3)
    learner.save(tmp_path)
    resumed = make_learner(folder, objective=EXPLOSIVE, max_skipped_steps=1)
    resumed.load(tmp_path)
    with pytest.raises(LearnerError):
        learn(resumed, make_rows())


def test_metrics_by_hand(folder):
    """Two rows of one token each; the ratios are 1.5 (clipped high) and 0.5 (clipped low)."""
    learner = make_learner(folder)
    groups = make_groups(groups=1, size=2, length=lambda random: 1)
    groups[0].scores_G[:] = [replace(groups[0].scores_G[0], reward=value) for value in (2.0, -1.0)]
    rows = rows_of(groups)
    current = [float(x[0]) for x in learner.logprobs(rows).result()]
    rows = with_sampler(rows, [[x - math.log(ratio)] for x, ratio in zip(current, (1.5, 0.5), strict=True)])
    metrics = learn(learner, rows)
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


def shifted(learner, rows, shifts):
    """The rows, had the sampler been below the learner by so many nats."""
    found = learner.logprobs(rows).result()
    return with_sampler(rows, [own - np.float32(shift) for own, shift in zip(found, shifts, strict=True)])


def test_the_gap_compares_with_the_learner_whatever_the_ratio_runs_against(folder):
    """Tokens of the present version and older ones apart; a response may hold both."""
    learner = make_learner(folder)
    groups = make_groups(groups=1, size=2, length=lambda random: 4)
    for completion, versions in zip(groups[0].completions_G, ([2, 3, 3, 3], [1, 1, 3, 3]), strict=True):
        completion.versions[:] = versions
    rows = shifted(learner, rows_of(groups), (0.1, 0.4))
    metrics = learn(learner, rows, version=3)
    assert metrics["train/gap_mean_current"] == pytest.approx((3 * 0.1 + 2 * 0.4) / 5, abs=1e-4)
    assert metrics["train/gap_mean_older"] == pytest.approx((1 * 0.1 + 2 * 0.4) / 3, abs=1e-4)
    assert metrics["train/gap_mean"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["train/gap_max_current"] == pytest.approx(0.4, abs=1e-4)
    # After an optimiser step the ratio's own movement would pass for a gap; after a publish it is one again.
    assert not [key for key in learn(learner, rows, version=3) if "gap" in key]
    learner.publish(1)
    assert "train/gap_mean" in learn(learner, rows, version=3)
    # Against the learner's own numbers from before the step the gap is theirs, whatever the weights did since.
    rows = shifted(learner, rows, (0.25, 0.25))
    for minibatches in ([rows], [rows, rows]):
        rows = shifted(learner, rows, (0.25, 0.25))
        metrics, _ = learn_step(learner, [rows] * len(minibatches), version=3, ratio_against="learner")
        assert metrics["train/gap_mean"] == pytest.approx(0.25, abs=1e-4)
        assert metrics["train/gap_kl"] == pytest.approx(math.exp(0.25) - 1 - 0.25, abs=1e-4)


def test_means_over_some_tokens_are_means_over_those_tokens(folder):
    """Two optimiser steps of 100 tokens: 10 current ones with gap 0, then 90 with gap 0.1. The mean is 0.09."""
    learner = make_learner(folder)

    def rows(current, shift):
        groups = make_groups(groups=1, size=2, length=lambda random: 50)
        for completion, own in zip(groups[0].completions_G, current, strict=True):
            completion.versions[:] = np.arange(50) < own
        return shifted(learner, rows_of(groups), (shift, shift))

    metrics, _ = learn_step(
        learner, [rows((5, 5), 0.0), rows((45, 45), 0.1)], rate=0.0, version=1, ratio_against="learner"
    )
    assert metrics["train/gap_mean_current"] == pytest.approx(0.09, abs=1e-4)
    assert metrics["train/gap_mean_older"] == pytest.approx(0.01, abs=1e-4)


def test_against_the_learner_the_first_ratio_is_one_and_the_correction_is_made_here(folder):
    learner = make_learner(folder, correction=truncated_importance)
    rows = make_rows()
    logprobs = learner.logprobs(rows).result()
    rows = with_sampler(rows, [own + np.linspace(-1, 0.5, len(own), dtype=np.float32) for own in logprobs])
    metrics = learn(learner, rows, ratio_against="learner")
    assert metrics["train/ratio_max"] == metrics["train/ratio_min"] == 1.0
    factors = [np.exp(own - row.sampler_logprobs.astype(np.float64)) for own, row in zip(logprobs, rows, strict=True)]
    factors = np.concatenate(factors)
    assert metrics["train/correction_mean"] == pytest.approx(np.minimum(factors, 2.0).mean(), abs=1e-4)
    assert metrics["train/correction_share"] == pytest.approx((factors > 2.0).mean(), abs=1e-9)
    assert 0 < metrics["train/correction_share"] < 1


def test_tokens_of_age_0_and_1_are_the_samplers(folder):
    rows = make_rows(versions=(4, 5))
    found = []
    for against in ("sampler", "interpolated"):
        learner = make_learner(folder)
        stats = learner.learn(LearnStep([rows, rows], [1e-2, 1e-2], 5, against)).result().stats
        found.append((weights_of(learner), values(stats)))
    (plain, numbers), (interpolated, others) = found
    assert numbers == pytest.approx(others, nan_ok=True, rel=0, abs=0)
    assert all(torch.equal(plain[name], interpolated[name]) for name in plain)


def test_statistics_of_every_key_merge_as_the_glossary_says(folder):
    """Whatever a learner reports is defined, and two steps put together are what the one call says."""
    learner = make_learner(folder, correction=truncated_importance)
    parts = [make_rows(0), make_rows(1)]
    whole = learner.learn(LearnStep(parts, [0.0, 0.0], 0, "learner")).result().stats
    halves = [learner.learn(LearnStep([rows], [0.0], 0, "learner")).result().stats for rows in parts]
    together = merge(halves)
    kinds = {"mean": Mean, "sum": Sum, "max": Max, "min": Min}
    assert {entry.metric.key for entry in TOKEN_METRICS} - whole.keys() == {
        *("train/kl", "teacher/kl", "teacher/agree"),  # no row has log-probabilities of a reference or a teacher
        *(f"train/gap_{kind}_older" for kind in ("mean", "kl", "max")),  # every token is of version 0
    }
    for key, found in whole.items():
        assert type(found) is kinds[lookup(key).reduction], key
        assert values(together)[key] == pytest.approx(found.value, rel=1e-12, nan_ok=True), key


def test_rows_without_advantage_take_no_backward_pass_where_that_is_allowed(folder, monkeypatch):
    rows = make_rows()
    rows[:3] = [replace(row, advantage=0.0) for row in rows[:3]]
    passes = []
    plain = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda loss: passes.append(loss.requires_grad) or plain(loss))
    careful = replace(OBJECTIVE, zero_advantage_is_free=False)
    learn(make_learner(folder, objective=careful, microbatch_tokens=1), rows)
    assert len(passes) == 9
    learner = make_learner(folder, microbatch_tokens=1)
    learn(learner, rows)
    assert passes[9:] == [True] * 6
    before = weights_of(learner)
    assert learn(learner, [replace(row, advantage=0.0) for row in rows])["train/grad_norm"] == 0.0
    assert len(moved(learner, before)) == len(before)  # moments and decay move on, as after any zero gradient


def test_an_entropy_term_has_its_gradient_in_rows_without_advantage_too(folder):
    """Finite differences of the mean entropy, written out through the unmodified model."""

    def bold(inputs: LossInputs):
        return -inputs.logprobs * inputs.advantages - inputs.entropy, {}

    rows = [replace(row, advantage=0.0) for row in make_rows(groups=1)]
    tokens = sum(len(row.token_ids) for row in rows)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()
        logits = model(input_ids=ids[None]).logits[0, len(row.prompt_ids) - 1 : -1]
        total = total - torch.distributions.Categorical(logits=logits).entropy().sum() / tokens
    total.backward()
    expected = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    objective = Objective(bold, needs=frozenset({"entropy"}))
    metrics = learn(make_learner(folder, objective=objective, dtype=torch.float64), rows)
    assert metrics["train/grad_norm"] == pytest.approx(expected, rel=1e-5)
    assert expected > 1e-3
    assert metrics["train/loss"] == pytest.approx(total.item(), rel=1e-6)
    without = learn(make_learner(folder, objective=Objective(bold), dtype=torch.float64), rows)
    assert without["train/grad_norm"] == 0.0  # not asked for, not there


def test_a_loss_that_needs_a_reference_is_refused_without_one(folder):
    objective = replace(OBJECTIVE, needs=frozenset({"reference"}))
    with pytest.raises(LearnerError, match="9 of 9 rows have none"):
        learn(make_learner(folder, objective=objective), make_rows())
    rows = [replace(row, reference_logprobs=row.sampler_logprobs) for row in make_rows()]
    assert learn(make_learner(folder, objective=objective), rows)["train/skipped_steps"] == 0


def test_flags_of_ones_own_loss_are_reported_under_custom(folder):
    def loss(inputs: LossInputs):
        return -inputs.logprobs * inputs.advantages, {"positive": inputs.advantages > 0}

    rows = make_rows()
    metrics = learn(make_learner(folder, objective=Objective(loss)), rows)
    tokens = [(len(r.token_ids), r.advantage > 0) for r in rows]
    assert metrics["custom/positive"] == pytest.approx(sum(n for n, p in tokens if p) / sum(n for n, _ in tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_steps_equal_two_steps_a_checkpoint_and_two_steps_to_the_bit(folder, tmp_path, dtype):
    batches = [make_rows(seed) for seed in range(4)]
    whole = make_learner(folder, dtype=dtype)
    metrics = [learn(whole, batch) for batch in batches[:2]]
    whole.publish(0)  # as a resumed run does before its first step
    metrics += [learn(whole, batch) for batch in batches[2:]]
    half = make_learner(folder, dtype=dtype)
    for batch in batches[:2]:
        learn(half, batch)
    half.save(tmp_path / "learner")
    resumed = make_learner(folder, dtype=dtype)
    tensors = {name: tensor.data_ptr() for name, tensor in receive(resumed.publish(0), torch.device("cpu"))}
    resumed.load(tmp_path / "learner")
    assert [learn(resumed, batch) for batch in batches[2:]] == metrics[2:]
    assert moved(resumed, weights_of(whole)) == []
    state = resumed.step.optimizer.state()
    assert state.keys() == whole.step.optimizer.state().keys()
    assert all(torch.equal(state[key], value) for key, value in whole.step.optimizer.state().items())
    assert {name: tensor.data_ptr() for name, tensor in receive(resumed.publish(0), torch.device("cpu"))} == tensors


@pytest.mark.whole
def test_bfloat16_weights_move_by_less_than_their_resolution(folder):
    """100 updates of 1e-5 on weights near 0.1 (spacing 5e-4) are lost without float32 masters."""
    learner = make_learner(folder, dtype=torch.bfloat16, weight_decay=0.0)
    before = weights_of(learner)
    for _ in range(100):
        learn(learner, make_rows(), 1e-5)
    name = "model.embed_tokens.weight"
    master = learner.step.optimizer.masters[name]
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_files_are_described_as_they_lie_on_the_disk(folder, tmp_path, dtype):
    learner = make_learner(folder, dtype=dtype)
    for steps in range(2):  # before the first step the optimiser has no tensors
        into = tmp_path / str(steps)
        files = learner.save(into).result()
        assert {file.name for file in files} == {path.name for path in into.iterdir()}
        for file in files:
            content = (into / file.name).read_bytes()
            assert (file.size, file.crc32) == (len(content), zlib.crc32(content))
        learn(learner, make_rows(), 1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_saved_tensors_are_told_apart_by_object_and_not_by_address(tmp_path, monkeypatch, tied):
    """A sharded parameter's address is 0."""
    made = make_tiny_model(tmp_path, hidden=32, heads=2, ffn=48)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    if not tied:
        tensors = load_file(made / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, made / "model.safetensors", {"format": "pt"})
    loaded = load_model(made)
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: 0)
    names = [name for name, _ in loaded.model.named_parameters()]
    assert ("lm_head.weight" in names) is not tied
    assert list(model_tensors(loaded.model)) == names


@pytest.mark.parametrize("name", ["rank-00000-of-00001.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_an_incomplete_checkpoint_is_refused(folder, tmp_path, name, damage):
    learner = make_learner(folder)
    learn(learner, make_rows(), 1e-3)
    learner.save(tmp_path)
    file = tmp_path / name
    content = file.read_bytes()
    file.unlink() if damage == "missing" else file.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="not a complete learner checkpoint"):
        learner.load(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_loads_in_transformers_and_says_the_same(tmp_path, tied):
    learner = make_learner(make_tiny_model(tmp_path / "model", tied=tied))
    learn(learner, make_rows(), 1e-2)
    write_model(tmp_path / "export", learner.loaded)
    shutil.rmtree(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert tokenizer("4 +7 =")["input_ids"] == [6, 18, 76]
    assert model.generation_config.eos_token_id == 1
    assert "dapo" not in json.dumps(json.loads((tmp_path / "export" / "config.json").read_text()))
    row = make_rows()[0]
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()[None]
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1], -1)
    expected = logprobs.gather(-1, ids[0, len(row.prompt_ids) :, None]).squeeze(-1)
    np.testing.assert_allclose(learner.logprobs([row]).result()[0], expected.detach().numpy(), atol=1e-5)


def test_published_weights_are_the_learners_own_and_name_a_tied_head_once(folder):
    learner = make_learner(folder)
    ticket = learner.publish(3)
    assert (ticket.version, ticket.route) == (3, "shared")
    assert offered(ticket) is learner.loaded.model
    tensors = dict(receive(ticket, torch.device("cpu")))
    assert set(tensors) == set(ticket.names)
    assert "lm_head.weight" not in tensors
    for name, parameter in learner.loaded.model.named_parameters():
        assert tensors[name].data_ptr() == parameter.data_ptr()


def test_a_full_disk_names_the_folder_and_leaves_nothing_there(folder, tmp_path):
    """What an engine was sent to before stays, and so does the next publish."""
    learner = LearnerHere(load_model(folder), OBJECTIVE, schema.LearnerSection(), 1.0, weights=tmp_path / "weights")
    before = learner.publish(0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(EngineError, match=r"weights could not be written to .*weights.*free space"):
            learner.publish(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "weights").iterdir()) == [Path(before.address)]
    assert set(read_shapes(Path(learner.publish(2).address))) == set(before.names)
    learner.close()
    assert not (tmp_path / "weights").exists()
