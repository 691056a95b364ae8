"""What is said of a model without its weights is what is said of it with them."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dapo.errors import ModelError
from dapo.models.facts import facts_of, read_facts
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model, make_word_tokenizer

LONG = {"rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8,
        "original_max_position_embeddings": 64}  # fmt: skip
CASES = {
    "llama, tied": ("llama", {}),
    "llama, untied, grouped": ("llama", {"tied": False, "kv_heads": 2, "vocabulary": 96}),
    "llama, positions that switch": ("llama", {"rope_parameters": LONG, "max_position_embeddings": 256}),
    "qwen2, biases": ("qwen2", {}),
    "qwen3, head size of its own": ("qwen3", {"head_dim": 32}),
    "gemma2, windows and caps": ("gemma2", {"sliding_window": 8}),
    "mixtral, experts": ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 1}),
}
OTHERS = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "opt": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 96,
        "word_embed_proj_dim": 64,
    },
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
}


def assert_both_agree(folder, dtype="float32"):
    loaded = load_model(folder, dtype=dtype, device="cpu", attention_mode="padded")
    found = read_facts(str(folder), dtype)
    assert found == facts_of(loaded)
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.parameters == sum(parameter.numel() for parameter in loaded.model.parameters())
    return found


@pytest.mark.parametrize("case", CASES)
def test_facts_of_the_folder_are_those_of_the_loaded_model(case, tmp_path):
    architecture, config = CASES[case]
    facts = assert_both_agree(make_tiny_model(tmp_path, architecture, **config))
    assert ("lm_head.weight" in facts.shapes) == (config.get("tied") is False)
    assert facts.exact_positions == (64 if "rope_parameters" in config else None)


@pytest.mark.parametrize("architecture", OTHERS)
def test_facts_of_other_families(architecture, tmp_path):
    settings = {"vocab_size": 80, "eos_token_id": 1, "bos_token_id": None, "pad_token_id": 0}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **settings, **OTHERS[architecture]))
    model.save_pretrained(tmp_path)
    make_word_tokenizer().save_pretrained(tmp_path)
    facts = assert_both_agree(tmp_path)
    assert (facts.layers, facts.hidden, facts.vocabulary) == (2, 64, 80)


def test_facts_by_hand(tmp_path):
    made = make_tiny_model(tmp_path, hidden=32, heads=4, kv_heads=2, ffn=48, layers=3, vocabulary=90, tied=False)
    for name, changed in (("generation_config.json", {"eos_token_id": [1, 7]}), ("config.json", {"pad_token_id": 5})):
        file = made / name
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    facts = assert_both_agree(made, "bfloat16")
    assert (facts.name, facts.dtype, facts.vocabulary, facts.positions) == (str(made), "bfloat16", 90, 2048)
    assert facts.stop_token_ids == (1, 7)
    assert facts.pad_token_id == 0  # the tokenizer's goes before the configuration's
    assert (facts.layers, facts.hidden, facts.ffn, facts.kv_heads, facts.head_size) == (3, 32, 48, 2, 8)
    assert facts.key_values == 2 * 2 * 8
    assert facts.shapes["lm_head.weight"] == (90, 32)
    assert facts.shapes["model.layers.0.self_attn.k_proj.weight"] == (16, 32)
    attention, ffn = 2 * 32 * 32 + 2 * 16 * 32, 3 * 32 * 48
    assert facts.parameters == 2 * 90 * 32 + 3 * (attention + ffn + 2 * 32) + 32
    assert facts.fingerprint["parameters"] == facts.parameters
    assert not facts.fingerprint["tied"]


def test_no_weight_is_read_and_the_next_module_has_memory_again(tmp_path):
    made = make_tiny_model(tmp_path)
    whole = read_facts(str(made), "float32")
    (made / "model.safetensors").write_bytes(b"")
    assert read_facts(str(made), "float32") == whole
    assert not torch.nn.Linear(2, 2).weight.is_meta


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
    made = make_tiny_model(tmp_path / "model")
    with pytest.raises(ModelError, match=r"float33.*use float32 or bfloat16"):
        read_facts(str(made), "float33")
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"vocab_size": 8}))
    with pytest.raises(ModelError, match="embedding 8 rows"):
        read_facts(str(made), "float32")
    (made / "config.json").write_text(json.dumps(config | {"model_type": "no_such_model"}))
    with pytest.raises(ModelError, match=r"cannot be loaded: .*no_such_model"):
        read_facts(str(made), "float32")
    assert not torch.nn.Linear(2, 2).weight.is_meta
