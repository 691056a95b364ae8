"""AdamW with moments in 8 bits: how far it is from float32, what is saved of it, and the bytes it takes."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from learner_contract import (
    an_incomplete_checkpoint_is_refused,
    save_and_load_restore_the_bit,
    what_is_saved_is_the_state_of_then,
    what_it_cannot_load_is_refused_without_change,
)
from learner_here import LearnerHere
from learner_rows import make_rows
from learner_subject import Subject, assert_curve_goes_on, learn, publish, save
from rank_stage import OBJECTIVES, open_stages

from dapo.config import schema
from dapo.errors import CheckpointError
from dapo.learner.eight_bits import block_size
from dapo.learner.optimizer import Optimizer
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.run.held import learner_holds

pytest.importorskip("torchao", reason="the optimizer in 8 bits needs torchao (extra eight_bits)")

SIZES = {"hidden": 64, "heads": 2, "layers": 1}
SETTINGS = {"microbatch_tokens": 48, "learning_rate": 1e-3, "max_skipped_steps": 1}


def optimizers(shapes):
    """The same parameters under both optimizers: in 8 bits, in float32."""
    found = []
    for kind in ("adamw_8bit", "adamw"):
        draw = torch.Generator().manual_seed(0)
        parameters = {str(s): torch.nn.Parameter(torch.randn(s, generator=draw) * 0.1) for s in shapes}
        found.append(Optimizer(parameters, schema.LearnerSection(optimizer=kind, weight_decay=0.1, max_grad_norm=None)))
    return found


def steps(optimizer, gradients, rate=1e-3):
    for each in gradients:
        for parameter, gradient in zip(optimizer.parameters.values(), each, strict=True):
            parameter.grad = gradient.clone()
        assert optimizer.step(rate)[1]


def gradients_of(shapes, number, scale=1.0):
    draw = torch.Generator().manual_seed(1)
    return [[torch.randn(s, generator=draw) * scale + 0.3 for s in shapes] for _ in range(number)]


def test_the_first_moment_is_the_nearest_share_of_its_blocks_largest():
    """By hand: after one step the moment is (1 - beta1) g. Its 64 upper shares are 0.9 / 64 of the largest apart."""
    shape = (64, 256)
    eight, _ = optimizers([shape])
    gradient = torch.linspace(-1, 1, 64 * 256).reshape(shape).flip(0)
    steps(eight, [[gradient]])
    state = eight.state()
    scale = state[f"exp_avg.scale/{shape}"]
    wanted = 0.1 * gradient
    torch.testing.assert_close(scale, wanted.abs().amax(1, keepdim=True), rtol=1e-6, atol=0)  # a block is a row here
    moment = eight.adamw.state[eight.masters[str(shape)]]["exp_avg"].dequantize()
    top = wanted.abs() >= 0.1 * scale
    assert float(((moment - wanted).abs() / scale).max()) <= 0.5 * 0.9 / 64 + 1e-6
    assert float(((moment - wanted).abs() / wanted.abs())[top].max()) < 0.08


def test_updates_are_near_those_of_float32():
    shapes = [(80, 64), (32, 384), (96,), (70, 65)]
    eight, wide = optimizers(shapes)
    start = [p.detach().clone() for p in wide.parameters.values()]
    for optimizer in (eight, wide):
        steps(optimizer, gradients_of(shapes, 30))
    pairs = zip(eight.parameters.values(), wide.parameters.values(), start, strict=True)
    for place, (got, wanted, begun) in enumerate(pairs):
        off, moved = (got - wanted).norm(), (wanted - begun).norm()
        # What is small, or has odd rows, is float32 and differs by rounding alone.
        assert off < (0.05 if place < 2 else 1e-5) * moved, shapes[place]
        assert off > 0 or place >= 2


def test_a_row_of_small_gradients_keeps_its_precision_beside_a_row_of_large_ones():
    """Blocks lie within rows. A block over both rows would round the small one's moments to 0, and it would stand
    still."""
    shape = (64, 64)
    eight, wide = optimizers([shape])
    gradient = gradients_of([shape], 1)[0][0].abs() * 1e-6
    gradient[::2] *= 1e9
    for optimizer in (eight, wide):
        steps(optimizer, [[gradient]] * 5)
    got, wanted = (o.masters[str(shape)].detach()[1::2] for o in (eight, wide))
    begun = optimizers([shape])[0].masters[str(shape)].detach()[1::2]
    assert (got - wanted).norm() < 0.05 * (wanted - begun).norm()


@pytest.mark.parametrize(
    ("shape", "block"),
    [((64, 64), 64), ((32, 384), 128), ((16, 512), 256), ((8, 32, 64), 256), ((63, 64), None), ((4096,), None)],
)
def test_a_block_divides_a_row(shape, block):
    assert block_size(shape) == block
    assert block is None or math.prod(shape[1:]) % block == 0


def test_the_bytes_that_check_counts_are_those_of_the_state(loaded):
    learner = LearnerHere(copied(loaded[96]), OBJECTIVES["clip"](), settings(), 1.0)
    learn(learner, [make_rows(0)])
    state = {name: t for name, t in learner.step.optimizer.state().items() if not name.startswith("step/")}
    facts = SimpleNamespace(
        parameters=sum(p.numel() for p in learner.loaded.model.parameters()),
        shapes={name: tuple(p.shape) for name, p in learner.loaded.model.named_parameters()},
    )
    recipe = schema.Recipe.model_validate(
        {
            "model": {"path": "m"},
            "learner": {"optimizer": "adamw_8bit"},
            "data": {"train": [{"task": "signed_sum"}]},
            "rewards": [{"name": "accuracy"}],
        }
    )
    assert learner_holds(recipe, facts).optimiser == sum(t.numel() * t.element_size() for t in state.values())
    assert learner_holds(recipe, facts).optimiser < 0.4 * 8 * facts.parameters


# ---------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("eight_bits")


@pytest.fixture(scope="module")
def loaded(folder):
    return {ffn: load_model(make_tiny_model(folder / str(ffn), ffn=ffn, **SIZES)) for ffn in (96, 128)}


def settings(kind="adamw_8bit"):
    return schema.LearnerSection(optimizer=kind, **SETTINGS)


def copied(loaded):
    return replace(loaded, model=copy.deepcopy(loaded.model))


@pytest.mark.parametrize(
    "check",
    [
        save_and_load_restore_the_bit,
        what_is_saved_is_the_state_of_then,
        an_incomplete_checkpoint_is_refused,
        what_it_cannot_load_is_refused_without_change,
    ],
    ids=lambda check: check.__name__,
)
def test_the_contract_of_checkpoints(loaded, check, tmp_path):
    def make(ffn=96):
        return LearnerHere(copied(loaded[ffn]), OBJECTIVES["clip"](), settings(), 1.0)

    check(Subject(make=make, other=lambda: make(128), diverging=make), tmp_path)


@pytest.mark.parametrize(("saved", "resumed"), [("adamw", "adamw_8bit"), ("adamw_8bit", "adamw")])
def test_moments_of_the_other_form_are_refused(loaded, saved, resumed, tmp_path):
    first, second = (LearnerHere(copied(loaded[96]), OBJECTIVES["clip"](), settings(k), 1.0) for k in (saved, resumed))
    learn(first, [make_rows(0)])
    save(first, tmp_path / "learner")
    with pytest.raises(CheckpointError, match=r"moments of another optimizer .*learner\.optimizer that the run began"):
        second.load(tmp_path / "learner")


@pytest.fixture(scope="module")
def stages(folder, loaded):
    with open_stages(folder) as stage:
        yield stage


def over(stage, folder, dtype):
    model = {"path": str(folder / "96"), "dtype": dtype, "attention": "packed", "device": "cpu"}
    return stage.learner(model, optimizer="adamw_8bit", **SETTINGS)


def local(folder, dtype):
    loaded = load_model(folder / "96", dtype=getattr(torch, dtype), device="cpu", attention_mode="packed")
    return LearnerHere(loaded, OBJECTIVES["clip"](), settings(), 1.0)


@pytest.mark.cluster
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_then_one_process_then_three_continue_the_curve(stages, folder, dtype, tmp_path):
    makers = (partial(over, stages(2)), local, partial(over, stages(3)))
    turns = [partial(make, folder, dtype) for make in makers]
    batches = [make_rows(seed) for seed in range(6)]
    assert_curve_goes_on(local(folder, dtype), turns, batches, tmp_path, 1e-2 if dtype == "float32" else 0.1)


@pytest.mark.cluster
def test_three_ranks_resume_to_the_bit(stages, folder, tmp_path):
    """64 rows over three ranks are 22, 22 and 20 of them."""
    whole, resumed = (over(stages(3), folder, "float32") for _ in range(2))
    learn(whole, [make_rows(0)])
    save(whole, tmp_path / "learner")
    resumed.load(tmp_path / "learner")
    dtypes = dict.fromkeys(publish(whole, 1), "float32")
    then = whole.checksums(dtypes)
    for seed in (1, 2):
        assert publish(resumed, seed) == publish(whole, seed)
        assert learn(whole, [make_rows(seed)]).stats == learn(resumed, [make_rows(seed)]).stats
    assert whole.checksums(dtypes) == resumed.checksums(dtypes)
    assert whole.checksums(dtypes) != then
