"""The parts of ``make gpu`` at small sizes on a CPU, so that they cannot rot; and planted bugs, which they must see."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.gpu import made
from benchmarks.gpu.check_engine import two_sided
from benchmarks.gpu.child import call
from benchmarks.gpu.plan import PLAN
from benchmarks.gpu.room import Room
from benchmarks.gpu.settings import learner_settings, plain_defaults
from benchmarks.gpu.shapes import REHEARSED as SHAPE
from benchmarks.gpu.shapes import make_loaded
from dapo.config.schema import LearnerSection
from dapo.engines import cache, embedded
from dapo.learner import optimizer
from dapo.models import packed_attention

# these take long on a CPU; a slow test runs them
LONG = {"large_vocabulary", "biased_keys", "matmul_precision", "runs"}
REHEARSED = [part for part in PLAN if not part.card]
RECIPES = {"packed_attention", "greedy"}  # these import what reads recipes
WITHOUT_RECIPES = [part.name for part in REHEARSED if part.name not in LONG | RECIPES]
BY_NAME = {part.name: part for part in PLAN}


def rehearse(name, folder):
    room = Room("cpu", folder)
    call(BY_NAME[name], room)
    assert room.rows
    return room


@pytest.mark.parametrize("name", sorted(RECIPES | {"cpu_offload", "dapo_step"}))
def test_a_part_rehearses(name, tmp_path):
    assert rehearse(name, tmp_path).failed == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONG))
def test_a_longer_part_rehearses(name, tmp_path):
    assert rehearse(name, tmp_path).failed == []


def test_every_part_that_is_not_rehearsed_says_why():
    assert all(part.card for part in PLAN if part not in REHEARSED)
    assert len(REHEARSED) >= 15


BARE = """
import json, os, sys
import torch, transformers
for missing, parts in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    for name in missing:
        sys.modules[name] = None  # as if it were not installed
    from benchmarks.gpu.child import run_parts
    from benchmarks.gpu.plan import PLAN
    def tell(row):
        if row["event"] == "end":
            print(row["part"], row["status"], row["said"], flush=True)
    run_parts([part for part in PLAN if part.name in parts], "cpu", float("inf"), tell, [], lambda device: True)
    os._exit(0)
"""
SPARED = ["pydantic", "ruamel", "ruamel.yaml", "math_verify", "pyarrow", "cloudpickle", "matplotlib", "pytest"]
ALONE = ["learner_float32", "cpu_offload", "dapo_step"]


@pytest.mark.whole
def test_parts_run_with_torch_transformers_numpy_and_safetensors_alone():
    """In a process of its own, where nothing else was imported yet. A card's machine may have no more than these."""
    asked = [(SPARED, WITHOUT_RECIPES), (["ruamel", "ruamel.yaml"], ALONE)]
    command = [sys.executable, "-c", BARE, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    ends = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert Counter(name for name, *_ in ends) == Counter([*WITHOUT_RECIPES, *ALONE]), done.stderr[-2000:]
    left_out = [end for end in ends if end[1:] != ["passed", ""]]
    assert sorted(name for name, *_ in left_out) == ["cpu_offload"] * 2 + ["dapo_step"] * 2, left_out
    assert all(status == "skipped" and said.startswith("not installed here: ") for _, status, said in left_out)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_of_a_shape_recomputes_where_it_is_asked_to(checkpointing):
    """In training mode with checkpointing transformers' ``generate`` goes without its cache: no baseline at all."""
    assert make_loaded(SHAPE, "cpu", "bfloat16", checkpointing=checkpointing).model.training is checkpointing


# ---------------------------------------------------------------------- planted bugs


def test_a_window_that_is_one_too_wide_is_seen(tmp_path, monkeypatch):
    attend = packed_attention.PackedContext.attend

    def wider(self, *args, **options):
        window = options.pop("sliding_window", None)
        return attend(self, *args, sliding_window=None if window is None else window + 1, **options)

    monkeypatch.setattr(packed_attention.PackedContext, "attend", wider)
    failed = rehearse("packed_attention", tmp_path).failed
    assert failed
    assert all("window" in text for text in failed)


def test_a_step_that_forgets_the_decay_is_seen(tmp_path, monkeypatch):
    step = optimizer.Optimizer.step

    def without_decay(self, rate):
        self.adamw.param_groups[0]["weight_decay"] = 0.0
        return step(self, rate)

    monkeypatch.setattr(optimizer.Optimizer, "step", without_decay)
    failed = rehearse("learner_float32", tmp_path).failed
    assert [text.partition(",")[0] for text in failed] == ["AdamW's step"]


def test_a_gradient_twice_as_large_is_seen(tmp_path, monkeypatch):
    gradient = made.Reference.gradient
    monkeypatch.setattr(made.Reference, "gradient", lambda *a: {n: 2 * g for n, g in gradient(*a).items()})
    failed = rehearse("learner_float32", tmp_path).failed
    assert [text.partition(",")[0] for text in failed] == ["gradient", "gradient"]


def test_a_sampler_that_is_too_cold_is_seen(tmp_path, monkeypatch):
    drawn = embedded.draw_mixed
    monkeypatch.setattr(embedded, "draw_mixed", lambda logits, *rest: drawn(logits * 1.1, *rest))
    assert len(rehearse("samples", tmp_path).failed) == 1
    failed = rehearse("engine_logprobs", tmp_path).failed
    assert sum("float32" in text for text in failed) == 2  # mean and largest; bfloat16 is coarser


def test_scores_that_are_rounded_on_the_way_are_seen(tmp_path, monkeypatch):
    """A GPU takes this path; a processor of low precision asks torch's kernel instead."""
    exact = cache.float32_product
    monkeypatch.setattr(cache, "float32_product", lambda a, b: exact(a, b).to(a.dtype).float())
    monkeypatch.setattr(cache.PoolSegment, "_by_kernel", cache.PoolSegment._by_products)
    failed = rehearse("biased_keys", tmp_path).failed
    assert [text.partition(",")[0] for text in failed] == ["offset 75: attention of a decode step"]


# ---------------------------------------------------------------------- bounds at the sizes of a card


class LargeRoom(Room):
    """A CPU, and what a card is asked."""

    def sized(self, on_card, rehearsed):
        return on_card


@pytest.mark.slow
@pytest.mark.parametrize("name", ["learner_bfloat16", "learner_float32", "engine_logprobs", "biased_keys", "fp32_head"])
def test_the_bounds_hold_at_the_sizes_of_a_card(name, tmp_path):
    """Rounding grows with the model: a bound that holds for a rehearsal's may fail for a card's, where all is right."""
    room = LargeRoom("cpu", tmp_path)
    call(BY_NAME[name], room)
    assert room.failed == []


# ---------------------------------------------------------------------- the arithmetic of the checks


def test_the_two_sided_p_of_chi_square():
    """By hand: 60 and 40 of 100 at even odds give 4.0, whose upper tail with one degree of freedom is 0.0455."""
    drawn = np.array([0] * 60 + [1] * 40)
    assert two_sided(drawn, np.array([0.5, 0.5])) == pytest.approx(2 * math.erfc(math.sqrt(2.0)), rel=1e-9)
    exact = np.repeat(np.arange(4), 25)
    assert two_sided(exact, np.full(4, 0.25)) == 0.0  # nearer than chance comes
    rare = np.concatenate([exact, [4]])  # a token that is expected once joins another cell
    assert 0 < two_sided(rare, np.array([0.245, 0.25, 0.25, 0.245, 0.01])) < 0.05


def test_the_error_of_tensors_one_by_one_is_that_of_all_as_one():
    generator = torch.Generator().manual_seed(0)
    wanted = {name: torch.randn(7, size, generator=generator) for name, size in (("a", 3), ("b", 50))}
    found = {name: value.to(torch.bfloat16) for name, value in wanted.items()}
    expected = made.relative_error(made.together(found, "ab"), made.together(wanted, "ab"))
    assert made.whole_error(found, wanted) == pytest.approx(expected, rel=1e-12)
    assert made.whole_error({"x": torch.tensor([3.0, 4.0])}, {"x": torch.tensor([3.0, 5.0])}) == pytest.approx(34**-0.5)
    assert made.whole_error(wanted, wanted) == 0.0


def test_p_is_even_under_the_truth():
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(30))
    found = [two_sided(random.choice(30, 2000, p=probabilities), probabilities) for _ in range(200)]
    assert 0.4 < np.mean(found) < 0.6
    assert 0.03 < np.mean(np.array(found) < 0.1) < 0.2


def test_the_settings_without_pydantic_are_the_schemas(monkeypatch):
    defaults = {name: field.default for name, field in LearnerSection.model_fields.items()}
    assert plain_defaults() == defaults
    monkeypatch.setitem(sys.modules, "pydantic", None)
    plain = learner_settings(max_grad_norm=None)
    assert type(plain) is SimpleNamespace
    assert plain.max_grad_norm is None
    assert plain.betas == (0.9, 0.999)


def test_the_reference_is_the_models_own(tmp_path):
    room = Room("cpu", tmp_path)
    loaded = made.load_small(room, "float32")
    (row, *_) = made.make_rows(200, 1, 1, 5, 9)
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))[None]
    from dapo.models.attention import own_attention

    with torch.no_grad(), own_attention(loaded.model):
        logits = loaded.model(input_ids=ids, use_cache=False).logits[0]
    wanted = [float(logits[4 + n].log_softmax(-1)[token]) for n, token in enumerate(row.token_ids)]
    np.testing.assert_allclose(made.Reference(loaded).logprobs(row).detach().numpy(), wanted, atol=2e-6)
