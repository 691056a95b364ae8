"""What large models need: a row of 22,528 tokens at 32B's widths, and layers of experts at those of Qwen3-30B-A3B."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from benchmarks.gpu.check_learner import gradient_of, learn, state_of
from benchmarks.gpu.made import finish, make_learner, make_rows, relative_error, requests, row_of, together
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.shapes import REHEARSED, Shape, make_loaded
from benchmarks.gpu.speed_learner import PER_PARAMETER, fitting, layer_sizes
from benchmarks.gpu.timing import peak_bytes, reset_peak, seconds
from dapo.models.memory import LayerSizes, activation_bytes, head_bytes
from dapo.models.policy import MAX_LOGITS_CUDA, MIN_CHUNK

# config.json of Qwen/Qwen2.5-32B as published on the hub.
WIDE = Shape("Qwen2.5-32B", 5120, 64, 40, 8, 27648, 152064, tied=False)
_RESERVE = 0.88  # of free memory


def long_row(room: Room) -> None:
    """One row of the paper's longest sequence, with as many of 32B's layers as fit: its peak as `dapo check` counts."""
    prompt, response = room.sized((2048, 20480), (24, 200))
    tokens = prompt + response
    free = torch.cuda.mem_get_info()[0] * _RESERVE if room.on_card else 1e12
    shape = fitting(room.sized(WIDE, REHEARSED), free, tokens, True)
    if shape is None:
        raise Skipped(f"not even one layer of {WIDE.name} fits into {free / 2**30:.0f} GiB")
    room.note("shape", shape.name)
    loaded = make_loaded(shape, room.device, "bfloat16", checkpointing=True)
    learner = make_learner(loaded, microbatch_tokens=tokens)
    rows = make_rows(shape.vocabulary, 1, 1, prompt, response, equal=True)
    reset_peak(room.device)
    before = learner.logprobs(rows).result()[0]
    took = seconds(lambda: learn(learner, rows, 1e-5), room.device)
    room.rate("a row's step", took, "s")
    after = learner.logprobs(rows).result()[0]
    room.expect("log-probabilities that are numbers, share", float((abs(before) < math.inf).mean()), at_least=1.0)
    moved = float(abs(after - before).mean())
    room.expect("the step moved log-probabilities, mean", moved, at_least=1e-6, at_most=5.0, unit="nats")
    chunk = min(tokens, max(MIN_CHUNK, MAX_LOGITS_CUDA // shape.vocabulary))
    estimate = PER_PARAMETER * shape.parameters + head_bytes(chunk, shape.vocabulary, 2)
    estimate += activation_bytes(layer_sizes(shape), shape.layers, tokens, 2, checkpointing=True)
    room.note("estimate", estimate, "B")
    if room.on_card:
        room.note("peak memory", peak_bytes(room.device), "B", main=True)
        room.expect("peak over estimate", peak_bytes(room.device) / estimate, at_least=0.4, at_most=1.15)
    learner.close()


def experts(room: Room) -> None:
    """Layers of experts: routes chosen as in the plain model, checkpointing, the engine, and what a step takes."""
    loaded, sizes = _mixture(room, checkpointing=False)
    room.note("experts are computed by", str(loaded.model.config._experts_implementation))
    rows = make_rows(sizes.vocabulary, 2, room.sized(8, 2), room.sized(64, 6), room.sized(512, 12), equal=True)
    learner = make_learner(loaded, betas=(0.9, 0.95))
    _decodes(room, loaded, learner, sizes)
    reset_peak(room.device)
    took = seconds(lambda: learn(learner, rows, 1e-4), room.device)
    tokens = sum(len(row.token_ids) for row in rows)
    room.rate("training, the first step", tokens / took, "tokens/s")
    if room.on_card:
        counted = activation_bytes(sizes.layer, sizes.layers, tokens, 2, checkpointing=False)
        own = PER_PARAMETER * sum(p.numel() for p in loaded.model.parameters()) + counted
        room.expect("peak over estimate", peak_bytes(room.device) / own, at_least=0.4, at_most=1.25)
    plain = gradient_of(state_of(learner, room.folder / "plain"))
    learner.close()
    again, _ = _mixture(room, checkpointing=True)
    second = make_learner(again, betas=(0.9, 0.95))
    learn(second, rows, 1e-4)
    recomputed = gradient_of(state_of(second, room.folder / "recomputed"))
    error = relative_error(together(recomputed, sorted(plain)), together(plain, sorted(plain)))
    room.expect("gradient with recomputed layers, relative difference", error, at_most=room.sized(0.05, 1e-6))
    second.close()


def _decodes(room: Room, loaded: Any, learner: Any, sizes: Any) -> None:
    """Near-ties of a router may send a token elsewhere in bfloat16, so the mean is bounded and not the largest gap."""
    from dapo.engines.embedded import EmbeddedEngine

    tokens = room.sized(64, 8)
    asked = requests([row.prompt_ids for row in make_rows(sizes.vocabulary, 2, 1, 20, 1)], room.sized(8, 2), tokens)
    engine = EmbeddedEngine(loaded, slots=room.sized(16, 4), longest=20 + tokens)
    engine.submit(asked)
    rows = [row_of(request, event) for request, event in zip(asked, finish(engine), strict=True)]
    engine.close()
    own = learner.logprobs(rows).result()
    gaps = torch.cat([torch.from_numpy(abs(a - r.sampler_logprobs)) for a, r in zip(own, rows, strict=True)])
    room.expect("engine against learner, mean", float(gaps.mean()), at_most=0.05, unit="nats")
    room.note("engine against learner, largest", float(gaps.max()), "nats")


class _Sizes:
    """Widths of Qwen3-30B-A3B, half of its experts and few of its layers; in a rehearsal tiny ones."""

    def __init__(self, room: Room) -> None:
        self.vocabulary, self.hidden, self.layers = room.sized((4096, 2048, 2), (256, 64, 2))
        self.heads, self.kv_heads, self.head_size = room.sized((32, 4, 128), (4, 2, 16))
        self.experts, self.chosen, self.width = room.sized((64, 8, 768), (8, 2, 32))

    @property
    def layer(self) -> LayerSizes:
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        return LayerSizes(self.hidden, self.width, self.heads, queries, keys, self.experts, self.chosen)


def _mixture(room: Room, *, checkpointing: bool) -> tuple[Any, _Sizes]:
    """A random Qwen3-MoE model through the program's own loading, probes included; the same weights each time."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from dapo.models.load import load_model
    from dapo.models.tiny import SIGNED_SUM_WORDS, make_word_tokenizer

    sizes, folder = _Sizes(room), room.folder / "experts"
    if not folder.exists():
        torch.manual_seed(0)
        config = Qwen3MoeConfig(
            vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads, head_dim=sizes.head_size,
            num_experts=sizes.experts, num_experts_per_tok=sizes.chosen, moe_intermediate_size=sizes.width,
            intermediate_size=sizes.hidden, max_position_embeddings=4096, norm_topk_prob=True, eos_token_id=1,
            tie_word_embeddings=False, initializer_range=0.02,
        )  # fmt: skip
        with torch.device(room.device):
            model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(folder)
        make_word_tokenizer(SIGNED_SUM_WORDS).save_pretrained(folder)
        del model
    how: Literal["full", "none"] = "full" if checkpointing else "none"
    loaded = load_model(str(folder), dtype="bfloat16", device=room.device, activation_checkpointing=how)
    room.expect_true("rows are packed", loaded.packed)
    return loaded, sizes
