"""Supervised steps against transformers and torch written out, and how a loop of them goes."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from learner_here import LearnerHere
from scripted_learner import ScriptedLearner
from scripted_run import Log, Recording, make_run, train
from small_recipe import small_recipe
from transformers import AutoModelForCausalLM

from dapo.algorithms.losses import imitation_loss
from dapo.algorithms.objective import Objective
from dapo.checkpoint.store import CheckpointStore
from dapo.config import schema
from dapo.data.demonstrations import Demonstration
from dapo.errors import CheckpointError
from dapo.loop.schedule import Schedule
from dapo.loop.supervised import Supervised, rows_of, steps_of
from dapo.loop.trainer import Trainer
from dapo.metrics.phases import Phases
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import LearnStep, Prompt

RATE = 1e-2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, heads=2, ffn=48)


def examples(count=7, seed=0):
    """Of random tokens; some share their prompt, and some have tokens without loss in the middle."""
    rng = np.random.default_rng(seed)
    made = []
    for n in range(count):
        prompt = np.arange(3, 6 + n // 2)
        ids = rng.integers(3, 70, 4 + n)
        mask = np.ones(len(ids), np.bool_)
        if n % 3 == 1:
            mask[1:3] = False
        made.append(Demonstration(Prompt(str(n), "", prompt, "", "", "x"), ids, mask))
    return made


def written_out(model, batch):
    """The mean cross-entropy over tokens with loss, by transformers' own forward on padded rows."""
    width = max(map(len, batch))
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    attention, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for n, one in enumerate(batch):
        start, end = len(one.prompt.token_ids), len(one)
        ids[n, :end] = torch.tensor(np.concatenate([one.prompt.token_ids, one.token_ids]))
        attention[n, :end] = 1
        labels[n, start:end] = torch.where(
            torch.tensor(one.loss_mask), ids[n, start:end], torch.tensor(-100, dtype=torch.long)
        )
    return model(input_ids=ids, attention_mask=attention, labels=labels).loss


@pytest.mark.parametrize("mode", ["packed", "padded"])
@pytest.mark.parametrize("microbatch_tokens", [10_000, 24])
def test_loss_gradient_and_step_are_those_of_transformers_and_torch(folder, mode, microbatch_tokens):
    settings = schema.LearnerSection(
        learning_rate=RATE, microbatch_tokens=microbatch_tokens, eps=1e-4, max_grad_norm=0.5
    )
    loaded = load_model(folder, dtype=torch.float32, attention_mode=mode)
    learner = LearnerHere(loaded, Objective(imitation_loss), settings, 1.0)
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.AdamW(other.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-4, weight_decay=0.1)
    for seed in range(3):
        batch = examples(seed=seed)
        said = learner.learn(LearnStep([rows_of(batch)], [RATE], version=seed)).result().stats
        optimizer.zero_grad()
        loss = written_out(other, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        optimizer.step()
        count = sum(int(one.loss_mask.sum()) for one in batch)
        assert said["train/loss"].value == pytest.approx(loss.item(), rel=1e-5)
        assert said["train/loss_tokens"].value == count
        assert said["train/grad_norm"].value == pytest.approx(float(norm), rel=1e-4)
        assert float(norm) > 0.5  # clipping is part of what is compared
    theirs = dict(other.named_parameters())
    for name, own in loaded.model.named_parameters():
        torch.testing.assert_close(own.detach(), theirs[name].detach(), rtol=1e-4, atol=1e-5)


def test_one_token_by_hand():
    """d(-log p)/dlog p = -1, whatever advantage and old policy; with weights 1 / N the mean."""
    from dapo.algorithms.losses import LossInputs

    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    ones = torch.ones(2)
    inputs = LossInputs(logprobs, -ones, -3 * ones, ones.bool(), torch.zeros(2, dtype=torch.long), 1)
    loss, flags = imitation_loss(inputs)
    assert loss.tolist() == [0.5, 2.0]
    assert flags == {}
    (loss * 0.5).sum().backward()
    assert logprobs.grad.tolist() == [-0.5, -0.5]


def test_each_loss_token_weighs_the_same_and_equal_prompts_are_one_group():
    batch = examples()
    rows = rows_of(batch)
    count = sum(int(one.loss_mask.sum()) for one in batch)
    assert {row.loss_weight for row in rows} == {1 / count}
    assert [(row.group, row.sample) for row in rows] == [(0, 0), (0, 1), (2, 0), (2, 1), (4, 0), (4, 1), (6, 0)]


@pytest.mark.parametrize(
    ("arguments", "steps"), [((10, 4, 1, None), 3), ((10, 4, 2, None), 5), ((10, 4, 2, 3), 3), ((3, 8, 1, 9), 1)]
)
def test_steps_are_counted_across_epochs(arguments, steps):
    assert steps_of(*arguments) == steps


def test_a_planted_bug_would_be_seen(folder):
    """A response without its first token's loss is another loss."""
    batch = examples()
    wrong = deepcopy(batch)
    for one in wrong:
        one.loss_mask[0] = False
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert abs(float(written_out(model, batch)) - float(written_out(model, wrong))) > 1e-3


def made(folder, learner=None):
    """A supervised run of four steps over a scripted learner, in the loop that training by reward has."""
    recipe = small_recipe(
        trainer={"steps": 4}, checkpoint={"every": 0}, sft={"batch_size": 2, "epochs": 2, "every": 1, "train": []}
    )
    phases, recorder, learner = Phases(), Recording(Log()), learner or ScriptedLearner()
    method = Supervised(
        examples=examples(), held_out={"held": examples(3, seed=1)}, learner=learner, recipe=recipe,
        recorder=recorder, phases=phases,
    )  # fmt: skip
    return Trainer(
        method, checkpoints=CheckpointStore(folder), recorder=recorder, recipe=recipe, schedule=Schedule(peak=0.1),
        phases=phases, fingerprint={"model": "scripted"},
    )  # fmt: skip


class LostOnce(ScriptedLearner):
    """Fails when it is asked to measure the third time, which is after the second step."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def logprobs(self, rows, of="policy"):
        if self.error == "evaluate" and self.calls.count("logprobs") == 2:
            raise ValueError("evaluate")
        return super().logprobs(rows, of)


@pytest.mark.parametrize(("where", "done"), [("evaluate", 2), ("prepare", 1)])
def test_a_failure_costs_no_step_and_a_resume_is_the_run_without_it(tmp_path, monkeypatch, where, done):
    whole = made(tmp_path / "whole")
    assert train(whole)
    failed = made(tmp_path / "failed", LostOnce(where))
    if where == "prepare":
        asked = []
        make = rows_of

        def fails(batch):
            asked.append(batch)
            if len(asked) == 2:
                raise ValueError(where)
            return make(batch)

        monkeypatch.setattr("dapo.loop.supervised.rows_of", fails)
    with pytest.raises(ValueError, match=where):
        train(failed)
    assert (failed.checkpoints.steps(), max(failed.recorder.rows)) == ([done], done)
    monkeypatch.undo()
    again = made(tmp_path / "failed")
    again.load(again.checkpoints.path())
    assert train(again)
    assert again.method.learner.scores.tolist() == whole.method.learner.scores.tolist()
    lines = failed.recorder.rows | again.recorder.rows
    assert [lines[step]["validation/loss"] for step in (1, 2, 3, 4)] == [
        whole.recorder.rows[step]["validation/loss"] for step in (1, 2, 3, 4)
    ]


def test_a_checkpoint_of_the_other_method_is_refused(tmp_path):
    by_reward, supervised = make_run(tmp_path / "rewards", steps=1), made(tmp_path / "examples")
    assert by_reward()
    assert train(supervised)
    with pytest.raises(CheckpointError, match="of `dapo train`, and this run is supervised"):
        made(tmp_path / "rewards").load(by_reward.trainer.checkpoints.path())
    with pytest.raises(CheckpointError, match="of `dapo sft`, and this run trains by reward"):
        make_run(tmp_path / "examples").trainer.load(supervised.checkpoints.path())
