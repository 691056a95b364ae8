"""Tiny random mixtures of experts, one of each kind of router, and rows for them."""

from __future__ import annotations

import numpy as np
import torch

from dapo.models.quiet import quiet_transformers
from dapo.models.tiny import make_word_tokenizer
from dapo.types.batch import TokenRow

_GROUPED = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
_LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
           "linear_value_head_dim": 16, "shared_expert_intermediate_size": 48}  # fmt: skip
_NAMED = {"moe_intermediate_size": 32, "intermediate_size": 96}
ARCHITECTURES = {
    "qwen3_moe": {"head_dim": 16, "num_experts": 8, "norm_topk_prob": True, **_NAMED},
    "qwen2_moe": {"num_experts": 8, "shared_expert_intermediate_size": 48, **_NAMED},
    "mixtral": {"num_local_experts": 8, "intermediate_size": 32},
    "olmoe": {"num_experts": 8, "intermediate_size": 32},
    "glm4_moe": {"head_dim": 16, **_GROUPED, **_NAMED},
    "deepseek_v3": {"num_key_value_heads": 4, **_GROUPED, **_LATENT, **_NAMED},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 8, "intermediate_size": 32, "sliding_window": 16},
    "qwen3_next": {"num_hidden_layers": 4, "head_dim": 16, "num_experts": 8, **_LINEAR, **_NAMED},
}


def save_experts(folder, architecture="qwen3_moe", *, seed=0, shard="5GB", **config):
    """Write a random model whose scores differ enough for rounding to decide few choices, and some."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {"vocab_size": 80, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "initializer_range": 0.2}
    settings |= {"eos_token_id": 1, "bos_token_id": None, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        chosen = AutoConfig.for_model(architecture, **(settings | ARCHITECTURES[architecture] | config))
        AutoModelForCausalLM.from_config(chosen).save_pretrained(folder, max_shard_size=shard)
    make_word_tokenizer().save_pretrained(folder)
    return folder


def token_rows(groups=2, lengths=(7, 1, 4), prompt=5, seed=0):
    random = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        asked = random.integers(3, 78, prompt)
        rows += [TokenRow(group, asked, random.integers(3, 78, length)) for length in lengths]
    return rows
