"""A teacher's term: by hand, in expectation against the exact reverse KL, and as rows are planned."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_rows import make_algorithm, make_groups

from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import clip_objective, with_terms
from dapo.algorithms.teacher import TeacherTerm
from dapo.types.batch import Score, StepBatch
from dapo.types.enums import FinishReason, Verdict

DOUBLE = torch.float64


def inputs(logprobs, teacher, *, old=None, advantages=0.0, mask=None):
    count = len(logprobs)
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach().clone() if old is None else torch.tensor(old, dtype=DOUBLE),
        advantages=torch.full((count,), advantages, dtype=DOUBLE),
        loss_mask=torch.ones(count, dtype=torch.bool) if mask is None else torch.tensor(mask),
        rows=torch.zeros(count, dtype=torch.int64),
        num_rows=1,
        teacher_logprobs=torch.as_tensor(teacher, dtype=DOUBLE),
    )


def leaf(*values):
    return torch.tensor(values, dtype=DOUBLE, requires_grad=True)


def test_advantages_by_hand():
    """Twice as likely to the teacher, half, impossible, not judged, not trained; beside a reward's advantage of 0.5."""
    teacher = [-1 + math.log(2), -1 - math.log(2), -math.inf, math.nan, -9.0]
    given = inputs(leaf(*[-3.0] * 5), teacher, old=[-1.0] * 5, advantages=0.5, mask=[True] * 4 + [False])
    found = TeacherTerm(coefficient=2.0).advantages(given)
    assert found.tolist() == pytest.approx([0.5 + 2 * math.log(2), 0.5 - 2 * math.log(2), 0.5 - 40.0, 0.5, 0.5])
    assert not found.requires_grad
    assert TeacherTerm(term="loss").advantages(given).tolist() == [0.5] * 5


def test_the_loss_by_hand():
    logprobs = leaf(-1.0, -1.0, -1.0, -1.0)
    given = inputs(logprobs, [-1 - math.log(2), math.nan, -1.0, 5.0], mask=[True, True, True, False])
    found = TeacherTerm(coefficient=3.0, term="loss", estimator="k2").loss(given)
    assert found.tolist() == pytest.approx([1.5 * math.log(2) ** 2, 0.0, 0.0, 0.0])
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([3 * math.log(2), 0.0, 0.0, 0.0])
    assert TeacherTerm().loss(given) is None


@pytest.mark.parametrize("term", ["advantage", "loss"])
def test_the_mean_gradient_is_that_of_the_exact_reverse_kl(term):
    """Every token of a vocabulary of seven, weighted with its probability: float64, no sampling error."""
    random = np.random.default_rng(5)
    logits = torch.tensor(random.normal(size=7), requires_grad=True)
    teacher = torch.tensor(random.normal(size=7)).log_softmax(-1)
    own = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((own.exp() * (own - teacher)).sum(), logits, retain_graph=True)
    objective = with_terms(clip_objective(low=0.2, high=0.28), teacher=TeacherTerm(0.7, term))
    given = inputs(own, teacher)
    loss, _ = objective.loss(replace(given, advantages=objective.teacher.advantages(given)))
    terms = objective.terms(given)
    total = loss if terms is None else loss + terms
    (found,) = torch.autograd.grad((own.detach().exp() * total).sum(), logits)
    torch.testing.assert_close(found, 0.7 * exact, rtol=1e-12, atol=1e-14)


def batch_of(groups):
    return StepBatch(0, groups, groups)


def plan(algorithm, groups, logprobs):
    return algorithm.plan(batch_of(groups), logprobs, version=0, rate=lambda number: 1e-3)


def taught(**options):
    return replace(make_algorithm(), **options)


def test_each_source_is_judged_by_its_own_teacher():
    groups = make_groups(0, 3, 2)
    for group, source in zip(groups, ("math", "code", "chat"), strict=True):
        group.prompt = replace(group.prompt, source=source)
    algorithm = taught(teachers={"math": "teacher:m", "code": "teacher:c"})
    asked = algorithm.asks(batch_of(groups))
    assert {of: [row.group for row in rows] for of, rows in asked.items()} == {"teacher:m": [0, 0], "teacher:c": [1, 1]}
    answers = {
        of: [np.full(len(row.token_ids), value, np.float32) for row in asked[of]]
        for of, value in (("teacher:m", -1.0), ("teacher:c", -2.0))
    }
    rows = plan(algorithm, groups, answers).minibatches[0]
    assert [None if r.teacher_logprobs is None else float(r.teacher_logprobs[0]) for r in rows] == [
        -1,
        -1,
        -2,
        -2,
        None,
        None,
    ]


def test_a_teacher_alone_learns_from_every_response_that_the_engine_ended():
    """Groups of one, unscored ones too; rewards make no advantage, and a response that failed carries no loss."""
    groups = make_groups(0, 3, 1)
    groups[1].scores_G = [Score(reason="crash")]
    groups[2].completions_G = [replace(groups[2].completions_G[0], finish=FinishReason.FAILED)]
    algorithm = taught(
        taught_alone=True, teachers={"s": "teacher:t"}, judge=lambda values, voters: Verdict.TOO_FEW_SCORED
    )
    assert [algorithm.verdict(g) for g in groups] == [Verdict.KEPT, Verdict.KEPT, Verdict.TOO_FEW_SCORED]
    asked = algorithm.asks(batch_of(groups))["teacher:t"]
    assert [row.group for row in asked] == [0, 1]
    rows = plan(algorithm, groups, {"teacher:t": [np.zeros(len(r.token_ids), np.float32) for r in asked]}).minibatches[
        0
    ]
    assert [bool(row.loss_mask.all()) for row in rows] == [True, True, False]
    assert [row.advantage for row in rows] == [0.0, 0.0, 0.0]
    equal = taught(taught_alone=True, judge=lambda values, voters: Verdict.ALL_CORRECT)
    assert equal.verdict(groups[0]) is Verdict.KEPT  # since it trains, it is no loss of dynamic sampling
    beside = taught(teachers={"s": "teacher:t"})
    assert not any(row.loss_mask.any() for row in plan(beside, groups, {}).minibatches[0])
