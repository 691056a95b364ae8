"""LoRA: the chain rule, the first step against full fine-tuning, reference, checkpoints, exports, engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exchanges import by_folder
from learner_here import LearnerHere
from learner_rows import learn, make_rows
from quick import quick
from test_learner_worker import OBJECTIVE

from dapo.algorithms.objective import with_terms
from dapo.config import schema
from dapo.config.deployment import Deployment
from dapo.config.load import recipe_from_dict
from dapo.config.unusual import warnings_of
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.generate import GenerateEngine
from dapo.errors import CheckpointError, EngineError, RecipeError
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import WorkerHere
from dapo.models.adapter import (
    adapter_parameters,
    adapter_parts,
    is_adapter,
    merge_error,
    published,
    write_adapter_parts,
)
from dapo.models.attention import own_attention
from dapo.models.checksum import checksum
from dapo.models.facts import facts_of, read_facts
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.models.weight_files import read_weights
from dapo.run.export import write_adapter, write_model
from dapo.types.batch import Key, SampleRequest, SamplingParams, TokenRow
from dapo.weights.routes import receive

DOUBLE = torch.float64
SAMPLING = SamplingParams(max_tokens=12)
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, heads=2, ffn=48)


def make(path, *, dtype=torch.float32, reference=None, objective=OBJECTIVE, weights=None, learner=None, **lora):
    loaded = load_model(path, dtype=dtype, attention_mode="packed", lora=schema.Lora(**lora) if lora else None, seed=3)
    settings = schema.LearnerSection(**({"weight_decay": 0.0, "max_grad_norm": None} | (learner or {})))
    return LearnerHere(loaded, objective, settings, 1.0, None, reference, weights=weights)


def layer(learner, name=Q):
    return learner.loaded.model.get_submodule(name)


def randomise(learner, seed=0, scale=0.05):
    """As after some training: B is not zero any more."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in learner.loaded.model.named_parameters():
            if parameter.requires_grad and "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return learner


def gradients(learner, rows):
    """Of every trained parameter in one optimiser step at rate 0."""
    found = {}
    step = learner.step.optimizer.step

    def noted(rate):
        found.update({n: p.grad.clone() for n, p in learner.step.optimizer.parameters.items()})
        return step(rate)

    learner.step.optimizer.step = noted
    learn(learner, rows, rate=0.0)
    learner.step.optimizer.step = step
    return found


def merged_folder(learner, path):
    write_model(path, learner.loaded)
    return path


# ---------------------------------------------------------------- gradients and the first step


@pytest.mark.parametrize(("rank", "alpha", "rslora", "scale"), [(3, 6.0, False, 2.0), (4, 6.0, True, 3.0)])
def test_gradients_are_the_chain_rule_on_the_full_gradient(folder, tmp_path, rank, alpha, rslora, scale):
    """dB = s G A^T and dA = s B^T G, with G the gradient of the merged model's weight, in every layer."""
    rows = make_rows()
    learner = randomise(make(folder, dtype=DOUBLE, rank=rank, lora_alpha=alpha, use_rslora=rslora))
    whole = gradients(make(merged_folder(learner, tmp_path / "merged"), dtype=DOUBLE), rows)
    found = gradients(learner, rows)
    assert layer(learner).scaling["default"] == scale
    assert len(found) == 2 * 2 * 7  # A and B, two blocks, seven linear layers each
    for name, gradient in found.items():
        where, _, part = name.removesuffix(".default.weight").rpartition(".")
        g, own = whole[f"{where}.weight"], layer(learner, where)
        a, b = own.lora_A["default"].weight.detach(), own.lora_B["default"].weight.detach()
        expected = scale * (g @ a.T if part == "lora_B" else b.T @ g)
        largest = float(expected.abs().max())
        assert largest > 1e-6, name
        assert float((gradient - expected).abs().max()) <= 1e-6 * largest, name


def test_with_a_the_identity_the_first_step_of_b_is_full_fine_tunings(folder):
    """alpha = rank = width, no weight decay: dB = G, so AdamW moves B as it moves W."""
    rows, targets = make_rows(), ["q_proj", "o_proj", "gate_proj"]
    learner = make(folder, dtype=DOUBLE, rank=32, target_modules=targets)
    with torch.no_grad():
        for name, parameter in learner.loaded.model.named_parameters():
            if "lora_A" in name:
                parameter.copy_(torch.eye(32))
    full = make(folder, dtype=DOUBLE)
    before = {name: tensor.clone() for name, tensor in published(full.loaded.model).items()}
    learn(learner, rows, rate=1e-3)
    learn(full, rows, rate=1e-3)
    after = dict(full.loaded.model.named_parameters())
    for block in range(2):
        for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj"):
            name = f"model.layers.{block}.{part}"
            moved = after[f"{name}.weight"].detach() - before[f"{name}.weight"]
            own = layer(learner, name).lora_B["default"].weight.detach()
            torch.testing.assert_close(own, moved, rtol=1e-6, atol=1e-12)
            assert float(moved.abs().max()) > 9e-4


def test_it_begins_as_the_model_and_only_the_adapter_moves(folder):
    rows = make_rows()
    learner, plain = make(folder, rank=4), make(folder)
    for own, theirs in zip(learner.logprobs(rows).result(), plain.logprobs(rows).result(), strict=True):
        np.testing.assert_array_equal(own, theirs)
    frozen = {n: p.detach().clone() for n, p in learner.loaded.model.named_parameters() if not p.requires_grad}
    for _ in range(2):
        learn(learner, rows, rate=1e-2)
    for name, parameter in learner.loaded.model.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name]), name
            assert parameter.grad is None, name
    assert set(learner.step.optimizer.parameters) == {
        n for n, p in learner.loaded.model.named_parameters() if p.requires_grad
    }


def test_the_start_is_a_function_of_the_seed_and_of_nothing_else(folder):
    torch.manual_seed(5)
    first = make(folder, rank=4)
    state = torch.get_rng_state()
    torch.manual_seed(6)
    second = make(folder, rank=4)
    assert torch.equal(layer(first).lora_A["default"].weight, layer(second).lora_A["default"].weight)
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)  # the process's generator was left alone
    other = load_model(folder, attention_mode="packed", lora=schema.Lora(rank=4), seed=4)
    assert not torch.equal(other.model.get_submodule(Q).lora_A["default"].weight, layer(first).lora_A["default"].weight)


# ---------------------------------------------------------------- the reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("saved", [[], ["norm"]])
def test_the_reference_under_a_switched_off_adapter_is_the_frozen_copy_to_the_digit(folder, dtype, saved):
    rows = make_rows()
    learner = make(folder, dtype=dtype, reference=schema.ReferenceSection(), rank=4, modules_to_save=saved)
    frozen = make(folder, dtype=dtype, reference=schema.ReferenceSection())
    assert learner.step.reference.state() == {}  # nothing is kept
    for number in range(2):
        learn(learner, rows, rate=1e-2, version=number)
    expected = frozen.logprobs(rows, "reference").result()
    before = learner.logprobs(rows).result()
    for own, theirs in zip(learner.logprobs(rows, "reference").result(), expected, strict=True):
        np.testing.assert_array_equal(own, theirs)
    for own, theirs in zip(learner.logprobs(rows).result(), before, strict=True):
        np.testing.assert_array_equal(own, theirs)
    assert any(not np.array_equal(a, b) for a, b in zip(before, expected, strict=True))


def test_a_kl_term_on_an_adapter_is_that_of_the_frozen_copy(folder, tmp_path):
    objective = with_terms(OBJECTIVE, kl_coefficient=0.3, kl_estimator="k3")
    learner = randomise(make(folder, dtype=DOUBLE, reference=schema.ReferenceSection(), objective=objective, rank=3))
    references = learner.logprobs(make_rows(), "reference").result()
    rows = [replace(r, advantage=0.0, reference_logprobs=x) for r, x in zip(make_rows(), references, strict=True)]
    whole = gradients(make(merged_folder(learner, tmp_path / "m"), dtype=DOUBLE, objective=objective), rows)
    own = layer(learner)
    expected = whole[f"{Q}.weight"] @ own.lora_A["default"].weight.detach().T
    assert float(expected.abs().max()) > 1e-6
    torch.testing.assert_close(gradients(learner, rows)[f"{Q}.lora_B.default.weight"], expected, rtol=1e-6, atol=1e-12)


def test_a_refreshed_reference_of_an_adapter_is_a_copy_of_the_adapter(folder):
    rows = make_rows()
    learner = make(folder, reference=schema.ReferenceSection(refresh_every=1), rank=4)
    assert all("lora_" in name for name in learner.step.reference.state())
    learn(learner, rows, rate=1e-2, refresh_reference=True)
    after = learner.logprobs(rows).result()
    learn(learner, rows, rate=1e-2)
    for own, theirs in zip(learner.logprobs(rows, "reference").result(), after, strict=True):
        np.testing.assert_array_equal(own, theirs)


# ---------------------------------------------------------------- what is published, saved and exported


def test_what_is_published_is_the_merged_model_under_its_names(folder, tmp_path):
    """By either route; W + s B A in float64, rounded once."""
    learner = randomise(make(folder, rank=4, lora_alpha=8.0, modules_to_save=["norm"], weights=tmp_path / "w"))
    learn(learner, make_rows(), rate=1e-2)
    plain = make(folder)
    through = dict(receive(learner.publish(1), torch.device("cpu")))
    ticket = LearnerDriver(WorkerHere(learner.worker)).publish(1)
    shared = dict(receive(ticket, torch.device("cpu")))
    assert list(ticket.names) == list(plain.publish(1).names)
    sums = learner.checksums(dict.fromkeys([*ticket.names, "lm_head.weight"], "float32"))
    assert sums == {name: checksum(tensor) for name, tensor in shared.items()} | {
        "lm_head.weight": sums["model.embed_tokens.weight"]
    }
    for name, tensor in shared.items():
        assert torch.equal(tensor, through[name]), name
    own = layer(learner)
    exact = own.base_layer.weight.double() + 2.0 * (
        own.lora_B["default"].weight.double() @ own.lora_A["default"].weight.double()
    )
    torch.testing.assert_close(shared[f"{Q}.weight"].double(), exact, rtol=1e-6, atol=1e-8)
    assert torch.equal(shared["model.norm.weight"], learner.loaded.model.model.norm.modules_to_save["default"].weight)


def test_a_checkpoint_holds_the_adapter_alone_and_continues_to_the_bit(folder, tmp_path):
    rows = make_rows()
    learner = make(folder, rank=4, modules_to_save=["norm"])
    learn(learner, rows, rate=1e-2)
    files = {file.name: file.size for file in learner.save(tmp_path / "saved").result()}
    assert set(files) == {"rank-00000-of-00001.safetensors", "adapter_config.json", "state.json"}
    again = make(folder, rank=4, modules_to_save=["norm"])
    again.load(tmp_path / "saved")
    learner.publish(1)
    assert learn(learner, rows, rate=1e-2, version=1) == learn(again, rows, rate=1e-2, version=1)
    for (name, own), theirs in zip(
        learner.loaded.model.named_parameters(), again.loaded.model.parameters(), strict=True
    ):
        assert torch.equal(own, theirs), name


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rank": 5}, "'r': 5"),
        ({"rank": 4, "target_modules": ["q_proj"]}, "differ in"),
        ({"rank": 4, "lora_alpha": 9.0}, "'lora_alpha': 9.0"),
        ({"rank": 4, "use_rslora": True}, "'use_rslora': True"),
        ({}, "differ in"),
    ],
)
def test_a_checkpoint_of_another_adapter_is_refused(folder, tmp_path, other, message):
    make(folder, rank=4).save(tmp_path / "saved").result()
    learner = make(folder, **other)
    before = {name: tensor.clone() for name, tensor in published(learner.loaded.model).items()}
    with pytest.raises(CheckpointError, match=message):
        learner.load(tmp_path / "saved")
    assert all(torch.equal(tensor, before[name]) for name, tensor in published(learner.loaded.model).items())


def test_a_checkpoint_of_an_adapter_of_other_weights_is_refused(folder, tmp_path):
    learner = make(folder, rank=4)
    learner.save(tmp_path / "saved").result()
    other = make(make_tiny_model(tmp_path / "other", hidden=32, heads=2, ffn=48, seed=9), rank=4)
    with pytest.raises(CheckpointError, match=r"an adapter of other weights than .*q_proj"):
        other.load(tmp_path / "saved")


def test_exports_load_in_transformers_and_in_peft(folder, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    rows = make_rows()
    learner = randomise(make(folder, rank=4, lora_alpha=8.0, modules_to_save=["norm"]))
    learn(learner, rows, rate=1e-2)
    write_model(tmp_path / "merged", learner.loaded)
    write_adapter(tmp_path / "adapter", learner.loaded)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(input_ids=ids).logits
        base = AutoModelForCausalLM.from_pretrained(folder)
        before = base(input_ids=ids).logits
        on_top = PeftModel.from_pretrained(base, tmp_path / "adapter")(input_ids=ids).logits
    torch.testing.assert_close(merged, on_top, rtol=1e-4, atol=1e-5)
    assert float((before - on_top).abs().max()) > 1e-2
    own = make(tmp_path / "merged")
    for ours, theirs in zip(learner.logprobs(rows).result(), own.logprobs(rows).result(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_facts_are_those_of_the_model_without_its_adapter(folder):
    learner = make(folder, rank=4, modules_to_save=["norm"])
    facts = read_facts(str(folder), "float32")
    assert facts_of(learner.loaded) == facts
    trained = sum(p.numel() for p in learner.loaded.model.parameters() if p.requires_grad)
    lora = schema.Lora(rank=4, modules_to_save=["model.norm"])
    assert adapter_parameters(facts.shapes, schema.Lora(rank=4)) + 5 * 32 == trained  # "norm" ends five names
    assert adapter_parameters(facts.shapes, lora) >= adapter_parameters(facts.shapes, schema.Lora(rank=4))


def test_the_merge_error_by_hand(folder):
    """W = 1 in bfloat16 has steps of 2^-7: D = 2^-9 is lost whole, D = 2^-7 arrives whole."""
    learner = make(folder, dtype=torch.bfloat16, rank=1, target_modules=["q_proj"])
    for name, module in learner.loaded.model.named_modules():
        if name.endswith("q_proj"):
            with torch.no_grad():
                module.base_layer.weight.fill_(1.0)
                module.lora_A["default"].weight.fill_(1.0)
                module.lora_B["default"].weight.fill_(2.0**-9)
    assert merge_error(learner.loaded.model) == 1.0
    with torch.no_grad():
        for name, module in learner.loaded.model.named_modules():
            if name.endswith("q_proj"):
                module.lora_B["default"].weight.fill_(2.0**-7)
    assert merge_error(learner.loaded.model) == 0.0


# ---------------------------------------------------------------- engines


@pytest.mark.parametrize("architecture", quick(["llama", "qwen2", "qwen3", "gemma"], ["qwen2"]))
@pytest.mark.parametrize("kind", ["embedded", "generate"])
def test_engines_that_share_the_tensors_sample_from_the_adapted_model(tmp_path, architecture, kind):
    """Fused matrices are made again from merged weights; other engines run the layers with their adapters."""
    path = make_tiny_model(tmp_path / "m", architecture, hidden=32, heads=2, ffn=48)
    learner = make(path, rank=4, learner={"microbatch_tokens": 512})
    engine = (EmbeddedEngine if kind == "embedded" else GenerateEngine)(learner.loaded, slots=4)
    for version in range(2):
        engine.load(learner.publish(version))
        engine.checksums()  # raises where a derived tensor is stale
        requests = [
            SampleRequest(Key("train", n, 0), np.arange(3, 9 + n), SAMPLING, 100 * version + n) for n in range(4)
        ]
        engine.submit(requests)
        ended = []
        while len(ended) < 4:
            ended += engine.poll()
        rows = [TokenRow(e.key.group, requests[e.key.group].prompt_ids, e.token_ids) for e in ended]
        for found, event in zip(learner.logprobs(rows).result(), ended, strict=True):
            np.testing.assert_allclose(found, event.logprobs, atol=2e-5)
        randomise(learner, seed=version + 1, scale=0.2)
    engine.load(learner.publish(2))
    if kind == "embedded" and engine.decoder.name == "fused":
        with torch.no_grad():
            layer(learner).lora_B["default"].weight.mul_(1.5)
        with pytest.raises(EngineError, match="qkv"):
            engine.checksums()


# ---------------------------------------------------------------------- sent as an adapter


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_that_is_sent_by_itself_is_what_the_learner_computes_with(folder, tmp_path, dtype):
    """W x + B' (A x) with nothing but what is published: the layer's own output, and the scale is in B'."""
    learner = randomise(make(folder, dtype=dtype, rank=4, lora_alpha=8.0, use_rslora=True))
    learner.loaded.sends_adapter = True
    sending = LearnerDriver(WorkerHere(learner.worker), by_folder(tmp_path / "weights"))
    ticket = sending.publish(3)
    found = dict(read_weights(Path(ticket.address)))
    assert set(found) == set(ticket.names)
    assert is_adapter(ticket.names)
    assert not is_adapter(learner.publish(3).names[:0])
    a, b = (found[f"base_model.model.{Q}.lora_{part}.weight"] for part in "AB")
    assert (a.dtype, a.shape, b.shape) == (dtype, (4, 32), (32, 4))
    own, x = layer(learner), torch.randn(5, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = own.get_base_layer()(x) + (x @ a.T) @ b.T
    torch.testing.assert_close(own(x), wanted, rtol=1e-5 if dtype == torch.float32 else 0.03, atol=1e-2)
    sums = sending.checksums({name: str(dtype).removeprefix("torch.") for name in found})
    assert sums == {name: checksum(tensor) for name, tensor in found.items()}


def test_frozen_weights_beside_an_adapter_have_the_checksums_of_the_models_files(folder):
    plain, learner = make(folder), randomise(make(folder, rank=4))
    names = dict.fromkeys(plain.publish(0).names, "float32")
    assert learner.checksums(names) != plain.checksums(names)
    learner.loaded.sends_adapter = True
    assert learner.checksums(names) == plain.checksums(names)


def test_what_is_sent_is_a_folder_that_peft_reads(folder, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    learner = randomise(make(folder, rank=4, lora_alpha=8.0))
    write_adapter_parts(tmp_path, adapter_parts(learner.loaded.model))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path)
    ids = torch.arange(4, 20)[None]
    with torch.no_grad(), own_attention(learner.loaded.model):
        torch.testing.assert_close(model(ids).logits, learner.loaded.model(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "engine", "lora", "sent"),
    [
        ("bfloat16", "vllm", {"rank": 4}, True),
        ("float32", "vllm", {"rank": 4}, False),
        ("bfloat16", "embedded", {"rank": 4}, False),
        ("bfloat16", "vllm", {"rank": 4, "modules_to_save": ["norm"]}, False),
        ("bfloat16", "vllm", {"rank": 4, "merge": True}, False),
        ("float32", "vllm", {"rank": 4, "merge": False}, True),
        ("bfloat16", "vllm", {}, False),
    ],
)
def test_who_gets_an_adapter_by_itself(dtype, engine, lora, sent):
    recipe = recipe_of(dtype, engine, lora)
    assert Deployment(recipe).sends_adapter == sent
    if lora:
        doubts = " ".join(warnings_of(recipe, frozenset()))
        assert ("merged into weights of 8 bits" in doubts) == (dtype == "bfloat16" and not sent)


@pytest.mark.parametrize(
    ("engine", "lora"),
    [("embedded", {"rank": 4, "merge": False}), ("vllm", {"rank": 4, "merge": False, "modules_to_save": ["norm"]})],
)
def test_an_engine_that_needs_merged_weights_refuses_an_adapter(engine, lora):
    with pytest.raises(RecipeError, match=r"(?s)model\.lora\.merge.*needs merged weights; take it out"):
        recipe_from_dict(given("bfloat16", engine, lora))


def given(dtype, engine, lora):
    return {
        "model": {"path": "builtin/signed-sum", "dtype": dtype, "lora": lora},
        "data": {"train": [{"task": "signed_sum", "size": 8}]},
        "rollout": {"engine": engine},
    }


def recipe_of(dtype, engine, lora):
    return recipe_from_dict(given(dtype, engine, lora)).recipe
