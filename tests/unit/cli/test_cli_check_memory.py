"""The estimate of `dapo check` against what is really there: bytes that autograd saves, parameters, optimiser state."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from dapo.cli.check import engine_advice, precision_lines
from dapo.cli.check_machine import Prompts
from dapo.cli.check_memory import Memory, estimate_memory, layer_sizes, memory_lines
from dapo.cli.check_overlap import overlap_lines, recommended_staleness, steps_of_the_longest
from dapo.cli.check_rows import longest_row, row_lines
from dapo.cli.check_time import (
    CARDS,
    SPARE,
    Card,
    Work,
    needed_memory,
    shares,
    step_seconds,
    step_work,
    time_lines,
)
from dapo.config import recipe_from_dict
from dapo.engines.cache import SlotCache
from dapo.engines.pools import CacheShape, Prefilled
from dapo.models.facts import facts_of
from dapo.models.load import load_model
from dapo.models.memory import LayerSizes, activation_bytes, graph_bytes, head_bytes, layer_bytes
from dapo.models.packing import pack
from dapo.models.policy import Policy, hidden_states
from dapo.models.tiny import SIGNED_SUM_WORDS, make_tiny_model, make_word_tokenizer
from dapo.types.batch import TokenRow
from dapo.types.model import ModelFacts

GIVEN = {
    "model": {"path": "a/b"},
    "data": {"train": [{"task": "signed_sum"}]},
    "rollout": {"prompts_per_step": 4, "group_size": 2, "max_response_tokens": 30},
    "learner": {"microbatch_tokens": 100},
}


def recipe_with(**sections):
    return recipe_from_dict({key: GIVEN.get(key, {}) | sections.get(key, {}) for key in GIVEN | sections}).recipe


def facts_with(parameters, **more):
    known = {
        "name": "", "dtype": "float32", "vocabulary": 50, "positions": None, "exact_positions": None,
        "stop_token_ids": (1,), "pad_token_id": 0, "shapes": {"a": (parameters,)}, "layers": 2, "hidden": 8, "ffn": 16,
        "kv_heads": 2, "head_size": 4, "fingerprint": {"num_attention_heads": 2}, "config": {},
    }  # fmt: skip
    return ModelFacts(**(known | more))


def saved_bytes(loaded, work):
    """Bytes of the tensors that autograd keeps of ``work``, each storage once, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in loaded.model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = work()
    assert result is not None
    return sum(kept.values())


def batch_of(loaded):
    random = np.random.default_rng(0)
    rows = [TokenRow(group, np.arange(3, 13), random.integers(3, 70, 30)) for group in range(2) for _ in range(3)]
    return pack(rows, loaded.device)


SHAPES = [
    {"architecture": "qwen2", "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 192},
    {"architecture": "qwen2", "hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 96},
    {"architecture": "llama", "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 256},
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape['architecture']}-{shape['hidden']}")
def test_a_layer_keeps_the_bytes_that_autograd_saves(tmp_path, shape, dtype):
    """Exactly: one layer more costs what the formula says, counted tensor by tensor."""
    counted = {}
    for layers in (1, 3):
        folder = make_tiny_model(tmp_path / str(layers), layers=layers, **shape)
        loaded = load_model(folder, dtype=dtype, device="cpu", attention_mode="packed")
        batch = batch_of(loaded)
        counted[layers] = saved_bytes(loaded, lambda m=loaded, b=batch: hidden_states(m, b))
    tokens, size = batch.input_ids.numel(), 4 if dtype == "float32" else 2
    assert counted[3] - counted[1] == 2 * tokens * layer_bytes(layer_sizes(facts_of(loaded)), size)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_of_a_model_are_those_counted(tmp_path, checkpointing):
    """What is kept when the backward pass begins; the layer in work comes on top."""
    folder = make_tiny_model(tmp_path, "qwen2", layers=6, kv_heads=2)
    loaded = load_model(
        folder, dtype="bfloat16", attention_mode="packed", activation_checkpointing="full" if checkpointing else "none"
    )
    batch, layer = batch_of(loaded), layer_sizes(facts_of(loaded))
    counted = saved_bytes(loaded, lambda: hidden_states(loaded, batch))
    tokens = batch.input_ids.numel()
    estimate = activation_bytes(layer, 6, tokens, 2, checkpointing=checkpointing)
    working = tokens * layer_bytes(layer, 2) * (2 if checkpointing else 1)
    assert 0.9 < (estimate - working) / counted < 1.1


def test_a_chunk_of_the_head_by_counting_live_tensors(tmp_path):
    """The profiler's peak of forward and backward of one chunk, logits and all that is made of them."""
    loaded = load_model(make_tiny_model(tmp_path, vocabulary=4000, hidden=16, heads=2), dtype="bfloat16")
    batch = batch_of(loaded)
    rows = len(batch.targets)
    with torch.profiler.profile(profile_memory=True) as profile:
        Policy(loaded)(batch, 1.0)[0].sum().backward()
    level = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    assert 0.75 < head_bytes(rows, 4000, 2) / peak < 1.25


def test_weights_gradients_and_moments_are_those_of_the_optimiser(tmp_path):
    from learner_here import LearnerHere

    from dapo.algorithms.objective import clip_objective
    from dapo.config.schema import LearnerSection

    for dtype in ("float32", "bfloat16"):
        loaded = load_model(make_tiny_model(tmp_path / dtype), dtype=dtype)
        learner = LearnerHere(loaded, clip_objective(low=0.2, high=0.2), LearnerSection(), 1.0)
        optimizer = learner.step.optimizer
        for master in optimizer.masters.values():
            master.grad = torch.ones_like(master)
        optimizer.step(1e-3)
        held = sum(tensor.nbytes for name, tensor in optimizer.state().items() if not name.startswith("step/"))
        weights = sum(parameter.nbytes for parameter in loaded.model.parameters())
        memory = estimate_memory(recipe_with(model={"dtype": dtype}), facts_of(loaded), 10)
        assert (memory.weights, memory.optimiser) == (weights, held)
        assert memory.gradients == weights + (0 if dtype == "float32" else 2 * weights)  # its own and a float32 sum


def test_an_engine_that_sleeps_and_the_learner_are_not_added_up():
    awake = Memory(weights=1, gradients=2, optimiser=4, activations=8, head=16, engine=32, cache=64, held=96)
    assert (awake.resident, awake.learning, awake.generating, awake.total) == (5, 127, 101, 127)
    asleep = replace(awake, held=0)
    assert (asleep.learning, asleep.generating, asleep.total) == (31, 101, 101)


@pytest.mark.parametrize(
    ("engine", "device", "more", "stays"),
    [
        ("vllm", "auto", {}, "nothing"),
        ("vllm", "auto", {"vllm": {"sleep": False}}, "all"),
        ("vllm", "cpu", {}, "all"),
        ("embedded", "auto", {}, "matrices"),
        ("embedded", "cpu", {}, "all"),
    ],
)
def test_what_an_engine_keeps_while_the_learner_works(engine, device, more, stays):
    facts = facts_with(10**8)
    recipe = recipe_with(model={"device": device}, rollout={"engine": engine, **more})
    memory = estimate_memory(recipe, facts, 10)
    assert memory.engine > 0
    assert memory.cache > 0
    assert memory.held == {"nothing": 0, "matrices": memory.engine, "all": memory.engine + memory.cache}[stays]
    lines = list(memory_lines(recipe, facts, 10))
    assert any("while learning (the engine sleeps)" in line for line in lines) is (stays != "all")
    assert any("make gpu" in line for line in lines) is (device != "cpu")


def test_a_small_model_is_estimated_for_a_cpu_unless_a_card_is_named():
    small = facts_with(1000)
    auto, cuda = (estimate_memory(recipe_with(model={"device": name}), small, 10) for name in ("auto", "cuda"))
    assert auto.held == auto.engine + auto.cache
    assert cuda.held == cuda.engine


def test_the_cache_on_a_card_is_what_its_pools_take():
    """Taken once, for every slot: a cache on the processor grows with its rows."""
    facts, on_card = facts_with(10**8), {"model": {"device": "cuda", "dtype": "bfloat16"}}
    memory = estimate_memory(recipe_with(**on_card, rollout={"slots": 3, "max_response_tokens": 290}), facts, 10)
    shape = CacheShape(2, 2, 4, torch.bfloat16, torch.device("cpu"))
    cache = SlotCache(shape, 3, longest=300, fixed=True)
    for seat, length in enumerate((10, 250)):  # one in each pool
        kv = torch.zeros(2, 2, 1, 2, length, 4, dtype=torch.bfloat16)
        cache.insert(np.array([seat]), np.array([length]), Prefilled(kv, torch.empty(0)), np.array([0]))
    assert len(cache.pools) == 2
    words = 24 * 50 * 3  # to draw a token of each slot
    assert memory.cache == cache.held + words
    whole = estimate_memory(recipe_with(**on_card, rollout={"max_response_tokens": 290}), facts, 10)
    assert whole.cache * 3 == memory.cache * 512
    lines = "\n".join(memory_lines(recipe_with(**on_card), facts, 10))
    assert "for 512 responses at once, drawing their tokens included; fewer where they do not fit" in lines
    small = estimate_memory(recipe_with(rollout={"slots": 3, "max_response_tokens": 290}), facts_with(1000), 10)
    assert small.cache == 3 * 300 * 2 * 16 * 4


def test_the_work_of_a_step_by_hand():
    """8 responses of 15 tokens, half of the groups kept: 240 generated, 120 trained."""
    recipe = recipe_with(rollout={"engine": "vllm"}, model={"device": "auto"})
    facts = facts_with(10_000, fingerprint={"num_attention_heads": 2, "tied": False})
    work = step_work(recipe, facts, prompt=10.0)
    assert (work.generated, work.trained) == (240.0, 120.0)
    matrices = 10_000 - 50 * 8
    keys = 8 * (10 + 7.5) * 2 * 16 * 4  # responses, mean tokens, layers, numbers, bytes
    assert work.decode_bytes == 240 / 8 * (matrices * 4 + keys)
    assert work.operations == 2 * matrices * (120 + 4 * 10) * 3
    twice = recipe_with(rollout={"engine": "vllm"}, learner={"minibatch_prompts": 2}, model={"dtype": "bfloat16"})
    assert step_work(twice, facts, 10.0).operations == work.operations / 3 * 4  # old log-probabilities, once more
    thrice = twice.model_copy(update={"learner": twice.learner.model_copy(update={"epochs_per_rollout": 3})})
    assert step_work(thrice, facts, 10.0).operations == work.operations / 3 * 10  # the old ones are computed once


def test_seconds_on_a_card_by_hand():
    card = Card("", 1.0, 1e10, 1e11)  # so slow that even a small model keeps it as busy as any
    for parameters in (100_000_000, 32_000_000_000):
        seconds = step_seconds(Work(1, 1, 3.5e9, 8.8e9), card, parameters)
        assert seconds == (pytest.approx(1.0), pytest.approx(0.2))


def test_shares_of_a_gpu_lie_between_those_measured():
    h200 = CARDS[-1]
    assert shares(100_000_000, h200) == (pytest.approx(0.11), pytest.approx(0.20))
    assert shares(1_540_000_000, h200) == (pytest.approx(0.21), pytest.approx(0.33))
    assert shares(round((1.54e9 * 7.6e9) ** 0.5), h200) == (pytest.approx(0.28), pytest.approx(0.385))
    assert shares(70_000_000_000, h200) == (pytest.approx(0.35), pytest.approx(0.44))


def test_a_small_model_takes_as_long_on_a_slower_gpu_until_that_one_is_busy():
    slower = Card("", 1.0, 4.8e12 / 2, 989e12 / 8)
    bandwidth, peak = shares(500_000_000, slower)
    assert (bandwidth, peak) == (pytest.approx(0.22), pytest.approx(0.44))


def test_hours_are_told_for_cards_that_hold_the_run_and_for_large_models_alone():
    recipe = recipe_with(rollout={"engine": "vllm"}, model={"dtype": "bfloat16"})
    large = facts_with(1_500_000_000)
    memory = estimate_memory(recipe, large, 10)
    fits = [card.name for card in CARDS if card.memory >= needed_memory(memory)]
    assert 0 < len(fits) < len(CARDS)
    text = "\n".join(time_lines(recipe, large, memory, 10.0))
    assert [card.name for card in CARDS if f"\n{card.name}: " in text] == fits
    assert "assumed: responses reach 50% of the limit, 50% of the groups are kept" in text
    assert list(time_lines(recipe, facts_with(10**6), memory, 10.0)) == []
    cpu = recipe_with(model={"device": "cpu"})
    assert list(time_lines(cpu, large, memory, 10.0)) == []
    huge = facts_with(70_000_000_000)
    text = "\n".join(time_lines(recipe, huge, estimate_memory(recipe, huge, 10), 10.0))
    assert "no GPU known here holds" in text


def test_a_short_run_on_a_gpu_takes_no_zero_seconds():
    recipe = recipe_with(model={"dtype": "bfloat16"}, trainer={"steps": 2})
    facts = facts_with(10**8)
    lines = "\n".join(time_lines(recipe, facts, estimate_memory(recipe, facts, 10), 10.0))
    assert "H200: 0." in lines
    assert not re.search(r"(?<![.\d])0(\.0)? (s|h|min)\b", lines)


def test_a_card_may_hold_less_cache_than_all_responses_at_once():
    memory = Memory(weights=1, gradients=2, optimiser=4, activations=8, head=16, engine=32, cache=10**15)
    assert needed_memory(memory) == (5 + 32 + 4 * 1024**3) * 1.1
    assert needed_memory(replace(memory, activations=10**12)) == (5 + 2 + 10**12 + 16) * 1.1


def test_vllms_share_of_a_card_has_to_leave_room_for_the_learner():
    """60 GB of the learner's on a card of 141: vLLM can have 57 % of it, whatever its cache could do without."""
    recipe = recipe_with(
        rollout={"engine": "vllm", "vllm": {"gpu_memory_utilization": 0.6}}, model={"dtype": "bfloat16"}
    )
    large = facts_with(1_500_000_000)
    memory = Memory(weights=55 * 10**9, gradients=0, optimiser=0, activations=0, head=0, engine=3 * 10**9, cache=0)
    memory = replace(memory, checking=5 * 10**9)
    assert needed_memory(memory) < 80e9
    (line,) = [one for one in time_lines(recipe, large, memory, 10.0) if one.startswith("no GPU known here")]
    assert line.endswith(
        "(60% of it) beside 55.9 GiB of the learner: on the H200 rollout.vllm.gpu_memory_utilization can be 0.57"
    )
    for given in ({"gpu_memory_utilization": 0.57}, {"gpu_memory_utilization": 0.6, "kv_cache_mib": 100}):
        fits = recipe_with(rollout={"engine": "vllm", "vllm": given}, model={"dtype": "bfloat16"})
        assert any(one.startswith("H200: ") for one in time_lines(fits, large, memory, 10.0))
    apart = list(time_lines(recipe, large, replace(memory, apart=True), 10.0))
    assert any(one.startswith("A100 80 GB: ") for one in apart)


def test_the_longest_row_fills_the_memory_of_those_that_share_it():
    facts = facts_with(7_000_000_000, layers=28, hidden=3584, ffn=18944, kv_heads=4, head_size=128, vocabulary=150_000)
    facts = replace(facts, fingerprint={"num_attention_heads": 28, "tied": False})
    found = {}
    for ranks in (1, 2, 4):
        recipe = recipe_with(
            rollout={"engine": "vllm"},
            learner={"ranks": 8, "context_parallel": ranks},
            model={"dtype": "bfloat16", "activation_checkpointing": "full"},
        )
        found[ranks] = longest_row(recipe, facts, 80e9)
        for tokens, fits in ((found[ranks], True), (found[ranks] + 1000, False)):
            memory = estimate_memory(recipe, facts, 10, tokens)
            assert (memory.learning * SPARE <= 80e9) == fits
    assert 50_000 < found[1] < 100_000
    assert found[2] == pytest.approx(2 * found[1], rel=0.02)
    assert found[4] == pytest.approx(4 * found[1], rel=0.02)
    (line,) = row_lines(recipe, facts)
    assert "over 4 ranks, in tokens: RTX 4090 " in line
    assert f"H100 80 GB {found[4]:,}" in line
    assert list(row_lines(recipe_with(), facts)) == []


@pytest.mark.parametrize(
    ("parameters", "said"),
    [(110_000, "the embedded engine was faster"), (120_000_000, "the embedded"), (500_000_000, "nothing as large")],
)
def test_what_is_known_of_the_engines_and_what_is_not(parameters, said):
    known, unknown = engine_advice(recipe_with(), facts_with(parameters))
    assert said in known
    assert unknown.startswith("not known: which is faster on a GPU")
    assert ("take rollout.engine=vllm first" in unknown) is (parameters > 120_000_000)
    assert len(list(engine_advice(recipe_with(model={"device": "cpu"}), facts_with(parameters)))) == 1


@pytest.mark.parametrize(
    ("model", "rates", "said"),
    [
        ({}, (50e9, 52e9, 8e9), "float32, the recipe's precision, is as fast as any here"),
        ({"dtype": "bfloat16"}, (50e9, 52e9, 8e9), "a step in float32 is about 6.5 times as fast as in bfloat16"),
        ({}, (50e9, 90e9, 150e9), "a step in bfloat16 is about 2.0 times as fast as in float32, the recipe's"),
        ({"matmul_precision": "medium"}, (50e9, 90e9, 80e9), "medium, the recipe's precision, is as fast as any here"),
        (
            {"matmul_precision": "high"},
            (50e9, 120e9, 80e9),
            "a step in medium is about 1.7 times as fast as in float32",
        ),
    ],
)
def test_the_precision_in_which_a_step_is_fastest_on_this_processor(monkeypatch, model, rates, said):
    """By hand: 30 million parameters, 8 responses of 15 tokens twice over (half of the groups are kept), prompts of 10.

    Generation computes 240 + 80 tokens and learning 160 with three times the work, at 0.9 and 0.75 of the products'
    speed; 30 layers' steps take 4.5 ms, an optimizer step 0.18 s.
    """
    found = dict(zip(("float32", "medium", "bfloat16"), rates, strict=True))
    monkeypatch.setattr("dapo.cli.check_machine._product_rate", lambda name, *sizes: found[name])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    recipe, prompts = recipe_with(model={"device": "cpu", **model}), Prompts(10, 10)
    listed, advice = precision_lines(recipe, facts_with(30_000_000), prompts)
    seconds = 2 * 30e6 * (240 + 80 + 3 * 160) / (0.9 * rates[0]) + 15 * 2 * 2 * 1.5e-4 + 0.18
    assert f"float32 {seconds:.2g} s, medium" in listed
    assert said in advice
    assert ("rounds the factors" in advice) is ("in bfloat16 is" in advice or "in medium is" in advice)


@pytest.mark.parametrize(("device", "parameters"), [("cuda", 30_000_000), ("cpu", 3_000_000)])
def test_products_are_measured_only_where_they_take_the_time(device, parameters):
    assert list(precision_lines(recipe_with(model={"device": device}), facts_with(parameters), Prompts(10, 10))) == []


def test_layers_are_those_of_the_configuration():
    assert layer_sizes(facts_with(10)) == LayerSizes(hidden=8, ffn=16, heads=2, queries=8, keys=8)


@pytest.mark.parametrize(
    ("rollout", "sampling", "spans", "fits"),
    [
        ({}, {}, 1.0, 2),  # 8 responses at once: 16 of 15 tokens are generated in 30 decode steps, as long as a limit
        ({}, {"mode": "off"}, 2.0, 3),  # nothing is rejected: a step has 15 decode steps
        ({"slots": 4}, {}, 0.5, 2),
        ({"slots": 100}, {"mode": "off"}, 2.0, 3),  # more slots than responses stay empty
        ({"engines": 2, "slots": [1, 3]}, {"mode": "off"}, 1.0, 2),
    ],
)
def test_staleness_is_recommended_by_the_steps_of_the_longest_response(rollout, sampling, spans, fits):
    recipe = recipe_with(
        rollout=GIVEN["rollout"] | rollout, algorithm={"dynamic_sampling": sampling, "overlong_filtering": False}
    )
    assert steps_of_the_longest(recipe) == pytest.approx(spans)
    assert recommended_staleness(recipe) == fits
    (said, _) = overlap_lines(recipe)
    assert f"each, {fits} lets both work at once" in said


def test_what_is_said_of_a_staleness_that_is_set():
    def said(limit):
        return next(overlap_lines(recipe_with(rollout=GIVEN["rollout"] | {"max_staleness": limit})))

    assert "1: 2 would be enough" in said(1)
    assert said(2).startswith("rollout.max_staleness = 2: a response")
    assert "4; 2 would be enough" in said(4)


def test_the_memory_of_recordings_by_hand():
    """Scores, their softmax and its copy [rows, heads, longest]; the residual stream thrice and gate times up; queries
    and keys in float32 and queries twice. Then 8 KiB of each of 23 launches a layer, and cuBLAS's workspace."""
    layer = LayerSizes(hidden=8, ffn=16, heads=2, queries=8, keys=4)
    step = 10 * (2 * 100 * (4 + 4 + 2) + 2 * (3 * 8 + 16) + 4 * (8 + 4) + 2 * 2 * 8)
    assert graph_bytes(layer, 3, 10, 100, 2, 64) == step + 64 * 3 * 23 * 8192 + 32 * 2**20
    wide = LayerSizes(hidden=8, ffn=1000, heads=2, queries=8, keys=4)  # where gate, up and product are more than scores
    step = 10 * (3 * 1000 * 2 + 2 * (3 * 8 + 1000) + 4 * (8 + 4) + 2 * 2 * 8)
    assert graph_bytes(wide, 3, 10, 100, 2, 64) == step + 64 * 3 * 23 * 8192 + 32 * 2**20


@pytest.mark.parametrize(
    ("sections", "architecture", "counted"),
    [
        ({}, "Qwen2ForCausalLM", True),
        ({"rollout": {"embedded": {"cuda_graphs": False}}}, "Qwen2ForCausalLM", False),
        ({}, "Gemma2ForCausalLM", False),  # decoded by transformers' own code, which is not recorded
        ({"model": {"path": "a/b", "device": "cpu"}}, "Qwen2ForCausalLM", False),
        ({"rollout": {"engine": "vllm"}}, "Qwen2ForCausalLM", False),
    ],
)
def test_recordings_count_where_steps_are_recorded(sections, architecture, counted):
    card = {"path": "a/b", "device": "cuda"}
    recipe = recipe_with(**{"model": card, **{k: GIVEN.get(k, {}) | v for k, v in sections.items()}})
    facts = facts_with(10**9, fingerprint={"architecture": architecture, "num_attention_heads": 2})
    memory = estimate_memory(recipe, facts, 20)
    assert (memory.graphs > 0) == counted
    assert memory.generating == memory.engine + memory.cache + memory.graphs + memory.resident + memory.checking
    told = "\n".join(memory_lines(recipe, facts, 20))
    assert ("by arithmetic that no GPU confirmed" in told) == counted
    if counted:  # 512 slots, 64 recordings; asleep while the learner works
        assert memory.graphs == graph_bytes(layer_sizes(facts), 2, 512, 50, 4, 64)
        assert memory.held == memory.engine
        rollout = recipe.rollout.model_copy(update={"max_staleness": 1})
        beside = recipe.model_copy(update={"rollout": rollout})
        both = estimate_memory(beside, facts, 20)
        assert both.held == both.engine + both.cache + both.graphs


def test_experts_that_a_token_is_not_routed_to_cost_no_learning():
    """Of 8 experts 2 compute a token. While 4 responses decode, an expert is read unless no token is routed to it."""
    shapes = {"layers.0.mlp.experts.0.up.weight": (100, 80), "layers.0.attention.weight": (10, 200)}
    config = {"num_experts": 8, "num_experts_per_tok": 2}
    facts = replace(facts_with(10_000), shapes=shapes, config=config)
    assert (facts.experts, facts.expert_parameters, facts.active) == ((8, 2), 8000, 4000)
    dense = facts_with(10_000)
    assert (dense.experts, dense.expert_parameters, dense.active) == ((0, 0), 0, 10_000)
    recipe = recipe_with(rollout={"engine": "vllm", "slots": 4}, model={"device": "auto"})
    sparse, dense = (step_work(recipe, one, 10.0) for one in (facts, replace(facts, config={})))
    assert sparse.operations / dense.operations == pytest.approx((10_000 - 6000) / 10_000)
    assert dense.decode_bytes - sparse.decode_bytes == pytest.approx(240 / 4 * 8000 * 0.75**4 * 4)


def test_a_cache_bounds_the_responses_that_decode_at_once():
    facts = facts_with(10_000)
    recipe = recipe_with(rollout={"engine": "vllm", "vllm": {"kv_cache_mib": 1}}, model={"dtype": "bfloat16"})
    card = Card("", 80e9, 1.0, 1.0)
    assert step_work(recipe, facts, 10.0, card) == step_work(recipe, facts, 10.0)  # 1 MiB holds all 8
    long = recipe_with(rollout={"engine": "vllm", "vllm": {"kv_cache_mib": 1}, "max_response_tokens": 16_000})
    assert step_work(long, facts, 10.0, card).decode_bytes > step_work(long, facts, 10.0).decode_bytes


def test_the_embedded_engines_slots_are_bounded_by_the_memory_beside_the_learner():
    """6 GB stay beside the cache of 512 slots, 20 GB: a GPU of 17.6 GB has room for half of it."""
    facts, card = facts_with(10_000), Card("", 17.6e9, 1.0, 1.0)
    recipe = recipe_with(rollout={"prompts_per_step": 400}, model={"device": "cuda"})
    held = Memory(weights=6 * 10**9, gradients=0, optimiser=0, activations=0, head=0, engine=0, cache=20 * 10**9)
    fixed = replace(held, fixed=True)
    few = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"slots": 256})})
    assert step_work(recipe, facts, 10.0, card, fixed) == step_work(few, facts, 10.0)
    assert step_work(recipe, facts, 10.0, card, replace(fixed, cache=30 * 10**9)).decode_bytes > (
        step_work(few, facts, 10.0).decode_bytes
    )


MIXTURES = [
    ("Qwen3Moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 999}),
    ("Qwen3Moe", {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 48, "intermediate_size": 999}),
    ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}),
    ("Qwen2Moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 999,
                  "shared_expert_intermediate_size": 96}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "sizes"), MIXTURES, ids=["Qwen3", "Qwen3-wider", "Mixtral", "Qwen2-shared"])
def test_a_layer_of_experts_keeps_the_bytes_that_autograd_saves(tmp_path, kind, sizes):
    """One layer more costs what the formula says, but for the norms of queries and keys and a shared expert's gate."""
    import transformers

    counted = {}
    for layers in (1, 3):
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=80, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
            eos_token_id=1, max_position_embeddings=512, **sizes, **({"head_dim": 16} if "Qwen3" in kind else {}),
        )  # fmt: skip
        folder = tmp_path / str(layers)
        getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
        make_word_tokenizer(SIGNED_SUM_WORDS).save_pretrained(folder)
        loaded = load_model(folder, dtype="bfloat16", device="cpu", attention_mode="packed")
        batch = batch_of(loaded)
        counted[layers] = saved_bytes(loaded, lambda m=loaded, b=batch: hidden_states(m, b))
    facts = facts_of(loaded)
    queries, keys = 64, 32
    per_token = (counted[3] - counted[1]) / 2 / batch.input_ids.numel()
    if kind == "Qwen3Moe":
        per_token -= 6 * (queries + keys) + 4 * (4 + 2)  # two more norms
    if kind == "Qwen2Moe":
        per_token -= 2 * 64 + 2
    assert per_token == pytest.approx(layer_bytes(layer_sizes(facts), 2), rel=0.01)
    assert facts.active == facts.parameters - facts.expert_parameters * 3 // 4


def test_the_pass_that_checks_published_weights_counts_beside_an_engine_that_is_awake():
    """Four prompts of 1,000 tokens, 16 of each of two engines' answers: two ranks take two groups each."""
    facts = facts_with(4 * 10**9)
    sections = {"model": {"dtype": "bfloat16", "device": "cuda"}, "learner": {"ranks": 2, "microbatch_tokens": 10_000}}
    both = recipe_with(rollout={"engine": "vllm", "engines": 2}, **sections)
    memory = estimate_memory(both, facts, 1000)
    layer, tokens = layer_sizes(facts), 2 * (1000 + 2 * 16)
    gathered = 2 * (2 * (4 * 10**9 - 2 * 50 * 8) // 2)
    own = tokens * (layer_bytes(layer, 2) + 8 * 8) + head_bytes(2 * 2 * 16, 50, 2)
    assert memory.checking == pytest.approx(own + gathered, rel=1e-6)
    assert memory.generating == memory.engine + memory.cache + memory.resident + memory.checking
    assert any("checks published weights, while the engine is awake" in line for line in memory_lines(both, facts, 10))
    beside = recipe_with(rollout={"engine": "vllm", "engines": 2, "max_staleness": 2}, **sections)
    apart = estimate_memory(beside, facts, 1000)
    assert apart.generating == apart.engine + apart.cache
    shared = estimate_memory(recipe_with(model={"device": "cuda"}), facts, 1000)
    assert shared.checking == 0  # the engine computes with the learner's own tensors: no pass compares them
