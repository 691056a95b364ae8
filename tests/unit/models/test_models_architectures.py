"""Architectures that differ from the usual in one thing each: exact, or refused with the cause, never a traceback."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learner_here import LearnerHere
from quick import quick
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from dapo.algorithms.objective import Objective
from dapo.config import recipe_from_dict, schema
from dapo.config.deployment import deployment_of
from dapo.engines import decoders
from dapo.engines.embedded import EmbeddedEngine
from dapo.errors import EngineError, MachineError, ModelError, first_line
from dapo.models import load, probe
from dapo.models.facts import facts_of
from dapo.models.load import load_model
from dapo.models.loaded import decoder_of
from dapo.models.positions import exact_positions
from dapo.models.tiny import make_tiny_model, make_word_tokenizer
from dapo.run.engines import start_engine
from dapo.run.given import Context
from dapo.types.batch import SampleRequest, SamplingParams, TokenRow

LONG = {
    "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8,
    "original_max_position_embeddings": 64,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1000.0}


def save_random(folder, architecture, **config):
    """For configurations that ``make_tiny_model``'s settings do not fit."""
    torch.manual_seed(0)
    settings = {"vocab_size": 80, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"eos_token_id": 1, "bos_token_id": None, "pad_token_id": 0, "initializer_range": 0.2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **(settings | config)))
    model.save_pretrained(folder)
    make_word_tokenizer().save_pretrained(folder)
    return folder


def rows_of(*lengths):
    random = np.random.default_rng(0)
    out = []
    for group, length in enumerate(lengths):
        out.append(TokenRow(group, np.array([2, 3, 4]), random.integers(2, 80, length)))
    return out


DROPOUT = {
    "bloom": {"attention_dropout": 0.3, "hidden_dropout": 0.3},
    "falcon": {"attention_dropout": 0.3},
    "persimmon": {"hidden_dropout": 0.3, "intermediate_size": 96},
    "opt": {"dropout": 0.3, "attention_dropout": 0.3, "ffn_dim": 96, "word_embed_proj_dim": 64, "layerdrop": 0.3},
    "biogpt": {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3, "intermediate_size": 96},
    "xglm": {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96, "dropout": 0.3},
    "mixtral": {"router_jitter_noise": 0.3, "num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 96,
                "num_key_value_heads": 2},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.3, "resid_pdrop": 0.3, "embd_pdrop": 0.3},
}  # fmt: skip


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("architecture", quick(DROPOUT, ["mixtral", "gpt2"]))
def test_dropout_of_any_kind_is_off(architecture, checkpointing, tmp_path):
    """The same number twice, and the model's own in evaluation mode, in the mode in which it is trained."""
    save_random(tmp_path, architecture, **DROPOUT[architecture])
    loaded = load_model(tmp_path, device="cpu", activation_checkpointing=checkpointing)
    assert loaded.model.training is (checkpointing == "full")
    learner = LearnerHere(loaded, Objective(lambda inputs: (inputs.logprobs, {})), schema.LearnerSection(), 1.0)
    rows = rows_of(9, 14)
    first, again = learner.logprobs(rows).result(), learner.logprobs(rows).result()
    own = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for row, found, repeated in zip(rows, first, again, strict=True):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))
        with torch.no_grad():
            table = own(ids[None]).logits[0, 2:-1].log_softmax(-1)
        np.testing.assert_array_equal(found, repeated)
        np.testing.assert_allclose(found, table.gather(1, ids[3:, None])[:, 0].numpy(), atol=2e-4)


@pytest.mark.parametrize(("architecture", "config"), [
    ("falcon", {"hidden_dropout": 0.3}), ("persimmon", {"attention_dropout": 0.3, "intermediate_size": 96}),
])  # fmt: skip
def test_noise_that_stays_is_refused_as_that(architecture, config, tmp_path):
    """These read the number from their config in training mode."""
    save_random(tmp_path, architecture, **config)
    load_model(tmp_path, device="cpu")
    with pytest.raises(ModelError, match=r"training mode: .*activation_checkpointing=none"):
        load_model(tmp_path, device="cpu", activation_checkpointing="full")


def test_the_part_before_the_head_is_found_or_its_lack_named(tmp_path):
    save_random(tmp_path, "llama4_text", intermediate_size=96, intermediate_size_mlp=96, num_local_experts=2,
                num_key_value_heads=2, head_dim=16)  # fmt: skip
    loaded = load_model(tmp_path, device="cpu")
    assert type(loaded.decoder).__name__ == "Llama4TextModel"
    head = torch.nn.Linear(2, 2)

    class Headless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = head

        def get_output_embeddings(self):
            return self.head

    with pytest.raises(ModelError, match=r"Headless has no part .*hidden states"):
        decoder_of(Headless())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("can't start new thread"), "starts no further thread"),
        (MemoryError(), "no memory left"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "device has no memory left"),
        (OSError(24, "Too many open files"), "too many files are open"),
    ],
)
def test_a_machine_that_refuses_is_told_as_that(error, words, tmp_path, monkeypatch):
    make_tiny_model(tmp_path)

    def fails(*_, **__):
        raise error

    places = ("AutoModelForCausalLM.from_pretrained", "AutoTokenizer.from_pretrained")
    for place in (*(f"transformers.{name}" for name in places), "dapo.models.probe.Policy.forward"):
        with monkeypatch.context() as patch:
            patch.setattr(place, fails)
            with pytest.raises(MachineError, match=f"not because of what was given: .*{words}"):
                load_model(tmp_path, device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Module, "to", fails)
        with pytest.raises(MachineError, match=words):
            load._to_device("m", torch.nn.Linear(2, 2), torch.device("cpu"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config.update(num_hidden_layers=1), r"9 tensors .*no place.*layers\.1\..*trained without"),
        (lambda config: config.update(num_hidden_layers=3), r"lacks 9 weights .*layers\.2\."),
        (lambda config: config.update(intermediate_size=64), r"another shape .*mlp"),
        (lambda config: config.update(attention_bias=True), r"lacks 8 weights .*bias"),
    ],
)
def test_a_folder_holds_the_tensors_of_its_config_and_no_others(change, words, tmp_path):
    make_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=words):
        load_model(tmp_path, device="cpu")


def test_a_stray_tensor_is_refused_and_an_old_constant_is_not(tmp_path):
    make_tiny_model(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, file, {"format": "pt"})
    load_model(tmp_path, device="cpu")
    save_file(tensors | {"value_head.weight": torch.ones(8)}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 tensors .*value_head\.weight"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize(("architecture", "rope", "config"), [
    ("llama", LONG, {"max_position_embeddings": 256}),
    ("phi3", LONG, {"max_position_embeddings": 256, "original_max_position_embeddings": 64}),
    ("llama", DYNAMIC, {"max_position_embeddings": 64}),
    ("qwen2", DYNAMIC, {"max_position_embeddings": 64}),
])  # fmt: skip
def test_positions_are_exact_up_to_the_switching_point_and_refused_beyond(architecture, rope, config, tmp_path):
    make_tiny_model(tmp_path, architecture, rope_parameters=rope, **config)
    loaded = load_model(tmp_path, device="cpu")
    assert loaded.exact_positions == 64
    learner = LearnerHere(loaded, Objective(lambda inputs: (inputs.logprobs, {})), schema.LearnerSection(), 1.0)
    alone = learner.logprobs(rows_of(12)).result()[0]
    np.testing.assert_allclose(learner.logprobs(rows_of(12, 62)).result()[0], alone, atol=1e-5)  # 3 + 62 - 1 inputs
    with pytest.raises(ModelError, match=r"beyond 64 tokens .*may grow to 65 "):
        learner.logprobs(rows_of(12, 63))
    recipe = recipe_from_dict({"model": {"path": str(tmp_path)}, "data": {"train": [{"task": "signed_sum"}]}}).recipe
    context = Context(recipe, loaded.tokenizer, [], None, facts_of(loaded), loaded, longest=64)
    start_engine(recipe, deployment_of(recipe), context, training=False)
    with pytest.raises(ModelError, match=r"longrope or dynamic.*to 65 tokens.*max_response_tokens"):
        start_engine(recipe, deployment_of(recipe), replace(context, longest=65), training=False)
    engine = EmbeddedEngine(loaded)
    with pytest.raises(EngineError, match="64 positions"):
        engine.submit([SampleRequest((0, 0), np.array([2, 3]), SamplingParams(63), 1)])


@pytest.mark.parametrize("rope_type", ["default", "linear", "llama3", "yarn"])
def test_fixed_frequencies_have_no_switching_point(rope_type, tmp_path):
    more = {"factor": 2.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": rope_type, "rope_theta": 1000.0} | ({} if rope_type == "default" else more)
    make_tiny_model(tmp_path, rope_parameters=rope)
    assert load_model(tmp_path, device="cpu").exact_positions is None


def test_a_rotation_of_its_own_is_asked_and_not_believed():
    """No name of the library's: the frequencies change from 41 tokens on."""

    class SomeRotaryEmbedding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("inv_freq", torch.ones(4))

        def forward(self, x, position_ids):
            scale = 2.0 if position_ids.max() >= 40 else 1.0
            turned = position_ids[..., None] * self.inv_freq / scale
            return turned.cos(), turned.sin()

    model = SomeRotaryEmbedding()
    config = SimpleNamespace(max_position_embeddings=128)
    config.get_text_config = lambda: config
    model.config = config
    assert exact_positions(model) == 40


@pytest.mark.parametrize("window", [20, 40])
def test_the_probes_look_beyond_a_window(window, tmp_path, monkeypatch):
    """A window of 20 or 40 is longer than the short probes: with it left out, only the long rows tell."""
    make_tiny_model(tmp_path, "mistral", sliding_window=window)
    loaded = load_model(tmp_path, device="cpu")
    assert loaded.packed
    assert probe.probe_length(loaded) == window + 5
    decoder = decoders.choose_decoder(loaded)
    assert decoders.difference(loaded, decoder) is None
    attend = decoders.GenericDecoder.prefill.__globals__["SlotContext"].attend

    def blind(self, module, query, key, value, *, scaling, **options):
        return attend(self, module, query, key, value, scaling=scaling, **options | {"sliding_window": None})

    with monkeypatch.context() as patch:
        patch.setattr(decoders.GenericDecoder.prefill.__globals__["SlotContext"], "attend", blind)
        assert "differ" in decoders.difference(loaded, decoder)
    from dapo.models.packed_attention import PackedContext

    packed = PackedContext.attend

    def forgets(self, module, query, key, value, *, scaling, **options):
        return packed(self, module, query, key, value, scaling=scaling, **options | {"sliding_window": None})

    with monkeypatch.context() as patch:
        patch.setattr(PackedContext, "attend", forgets)
        assert not load_model(tmp_path, device="cpu").packed


def test_attention_that_changes_with_what_comes_later_is_refused(tmp_path):
    make_tiny_model(tmp_path, "doge", keep_window_size=24)
    with pytest.raises(ModelError, match=r"not causal|differ from its own"):
        load_model(tmp_path, device="cpu")


def test_a_threshold_out_of_reach_is_told(tmp_path, monkeypatch):
    make_tiny_model(tmp_path, "mistral", sliding_window=100)
    monkeypatch.setitem(probe._MOST_TOKENS, "cpu", 90)
    loaded = load_model(tmp_path, device="cpu")
    assert any("beyond 100 tokens" in note for note in loaded.notes)
    assert first_line(ValueError("a\nb")) == "a"
