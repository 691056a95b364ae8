"""A tiny Llama as a GGUF file, written by the package gguf, and the weights that it must come back as."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

HEADS = 2
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
SPECIAL = ["<unk>", "<start>", "<turn>", "<end>"]
TOKENS = [*SPECIAL, *bytes_to_unicode().values(), "he", "ll"]
MERGES = ["h e", "l l"]
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
        return LlamaForCausalLM(config)


def write_gguf(file: Path, model: LlamaForCausalLM, *, eos: int = 3, more: dict[str, int] | None = None) -> Path:
    """Write ``model`` with a byte-level tokenizer. Matrices get 8 bits (Q8_0), norms and embedding float32.

    llama.cpp turns neighbouring numbers of a head where transformers turns halves, so rows of q and k are reordered.
    """
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("Tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for key, value in (more or {}).items():
        writer.add_uint32(key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # the embedding
        numbers = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            rows, columns = numbers.shape
            numbers = numbers.reshape(HEADS, 2, rows // HEADS // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        if "proj" in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(_name(name), gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_name(name), numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, *part, _ = name.split(".")
    return f"blk.{layer}.{_NAMES['.'.join(part)]}.weight"


def as_quantised(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Round each matrix as Q8_0 does: blocks of 32 numbers, each with a float16 scale of its largest / 127."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                blocks = parameter.view(-1, 32)
                scale = blocks.abs().amax(dim=1, keepdim=True) / 127
                parameter.copy_((torch.round(blocks / scale) * scale.half().float()).view_as(parameter))
    return model
