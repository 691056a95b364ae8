"""Teachers in the learner: whose numbers they give, the gradient of their term, offload, adapters, several ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import rank_stage
import torch
from learner_here import LearnerHere
from learner_rows import learn, make_rows
from transformers import AutoModelForCausalLM

from dapo.algorithms.objective import clip_objective, with_terms
from dapo.algorithms.teacher import TeacherTerm
from dapo.config import schema
from dapo.errors import LearnerError
from dapo.learner.sharding import Shape
from dapo.learner.teacher import Teacher
from dapo.models.load import load_model

OF = "teacher:t"
MODELS = rank_stage.MODELS | {
    "teacher": {"hidden": 32, "heads": 2, "ffn": 48, "seed": 9},  # another size than the student
    "small": {"hidden": 16, "heads": 2, "ffn": 24, "vocabulary": 79, "seed": 3},
}


def make(
    folder, *, term="advantage", dtype=torch.float64, mode="packed", teacher="teacher", offload=False, lora=None, **more
):
    student = load_model(folder / "tied", dtype=dtype, attention_mode=mode, lora=lora)
    settings = schema.LearnerSection(microbatch_tokens=20)
    other = load_model(folder / teacher, dtype=dtype, attention_mode=mode)
    objective = with_terms(clip_objective(low=0.2, high=0.28), teacher=TeacherTerm(0.7, term))
    teachers = {OF: Teacher(other, settings, 1.0, offload=offload)}
    return LearnerHere(student, objective, settings, 1.0, teachers=teachers, **more)


def expected_logprobs(folder, rows, dtype=torch.float64):
    """Return the model, and the log-probabilities of each row's tokens by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    found = []
    for row in rows:
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()
        logits = model(input_ids=ids[None]).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        found.append(logits.gather(-1, ids[len(row.prompt_ids) :, None]).squeeze(-1))
    return model, found


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("mode", ["packed", "padded"])
def test_a_teacher_gives_its_models_numbers_and_changes_no_bit(folder, mode, offload):
    rows = make_rows()
    learner = make(folder, mode=mode, offload=offload)
    before = learner.logprobs(rows).result()
    _, expected = expected_logprobs(folder / "teacher", rows)
    for number in range(2):
        for own, theirs in zip(learner.logprobs(rows, OF).result(), expected, strict=True):
            np.testing.assert_allclose(own, theirs.detach(), atol=1e-6)
        if not number:
            assert all(map(np.array_equal, learner.logprobs(rows).result(), before))
            learn(learner, [replace(row, teacher_logprobs=row.sampler_logprobs) for row in rows])
    assert not any(map(np.array_equal, learner.logprobs(rows).result(), before))
    assert not any("teacher" in name for name in learner.worker.describe().names)


@pytest.mark.parametrize("term", ["advantage", "loss"])
@pytest.mark.parametrize("mode", ["packed", "padded"])
def test_the_gradient_is_that_of_the_formula_written_out(folder, term, mode):
    """In float64; one row has no teacher, and one token of another carries no loss."""
    rows = make_rows(groups=2)
    mask = rows[1].loss_mask.copy()
    mask[0] = False
    rows[1] = replace(rows[1], loss_mask=mask)
    _, theirs = expected_logprobs(folder / "teacher", rows)
    model, own = expected_logprobs(folder / "tied", rows)
    total = torch.zeros((), dtype=torch.float64)
    gaps = []
    for number, (row, log_p, log_q) in enumerate(zip(rows, own, theirs, strict=True)):
        rows[number] = row = replace(row, sampler_logprobs=log_p.detach().numpy().astype(np.float32))
        carries, gap = torch.from_numpy(row.loss_mask), (log_q - log_p).detach()
        advantage = torch.full_like(gap, row.advantage)
        if number != 2:
            rows[number] = row = replace(row, teacher_logprobs=log_q.detach().numpy().astype(np.float32))
            gaps.append(gap[carries])
            if term == "advantage":
                advantage = advantage + 0.7 * gap
            else:
                total = total + row.loss_weight * (0.7 * (log_q.detach() - log_p) ** 2 / 2)[carries].sum()
        total = total - row.loss_weight * ((log_p - log_p.detach()).exp() * advantage)[carries].sum()
    total.backward()
    learner = make(folder, term=term, mode=mode)
    gradients = learner.watch_gradients()
    metrics = learn(learner, rows)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            gradients[name], parameter.grad, rtol=0, atol=2e-6 * float(parameter.grad.abs().max())
        )
    gap = torch.cat(gaps)
    assert metrics["train/loss"] == pytest.approx(total.item(), rel=1e-5)
    assert metrics["teacher/kl"] == pytest.approx(-gap.mean().item(), rel=1e-5)
    assert metrics["teacher/agree"] == pytest.approx(gap.exp().clamp(max=1).mean().item(), rel=1e-5)


def test_an_adapter_learns_from_a_teacher_and_the_base_stays(folder):
    learner = make(folder, dtype=torch.float32, lora=schema.Lora(rank=2))
    rows = make_rows()
    judged = learner.logprobs(rows, OF).result()
    rows = [replace(row, advantage=0.0, teacher_logprobs=own) for row, own in zip(rows, judged, strict=True)]
    before = {n: p.clone() for n, p in learner.loaded.model.named_parameters()}
    learn(learner, rows, rate=1e-2)
    changed = {n for n, p in learner.loaded.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert all(map(np.array_equal, learner.logprobs(rows, OF).result(), judged))


def test_a_token_that_the_teacher_has_no_embedding_for_is_named(folder):
    learner = make(folder, teacher="small")
    row = make_rows(groups=1, size=1)[0]
    row = replace(row, token_ids=np.array([79] * len(row.token_ids), np.int32))
    with pytest.raises(LearnerError, match=r"wrote token 79, .* has 79 embeddings: take a teacher with more"):
        learner.logprobs([row], OF).result()
    with pytest.raises(LearnerError, match="log-probabilities of teacher:other were asked for"):
        learner.logprobs([row], "teacher:other").result()


@pytest.mark.cluster
@pytest.mark.parametrize(("ranks", "context"), [(2, 1), (2, 2)])
def test_ranks_compute_what_one_process_does(stages, folder, ranks, context):
    """Logarithms of a sharded teacher, then a step on them: float32 sums over ranks in another order."""
    rows = make_rows(groups=4)
    one = make(folder, dtype=torch.float32)
    shape = Shape(ranks, context_parallel=context)
    teachers = {"teachers": {OF: schema.Model(path=str(folder / "teacher"))}}
    settings = {"microbatch_tokens": 20}
    over = stages(ranks).learner(
        {"path": str(folder / "tied")}, objective="taught", shape=shape, teachers=teachers, **settings
    )
    alone, apart = (learner.logprobs(rows, OF).result() for learner in (one, over))
    for left, right in zip(alone, apart, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)
    rows = [replace(row, teacher_logprobs=own) for row, own in zip(rows, alone, strict=True)]
    left, right = learn(one, rows), learn(over, rows)
    for key in ("train/loss", "train/grad_norm", "teacher/kl", "teacher/agree"):
        assert left[key] == pytest.approx(right[key], rel=1e-4), key
    for left, right in zip(one.logprobs(rows).result(), over.logprobs(rows).result(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
