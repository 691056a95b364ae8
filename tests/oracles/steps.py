"""What whole training steps are asked on: a tiny model, rollouts with rewards, examples to imitate.

Every environment makes the same model from seeded numbers (no weights are committed); the rollouts are made once, by
the peer that is asked, and travel with its answers. Needs torch, transformers, tokenizers and numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

STEPS, PROMPTS, GROUP, LIMIT = 3, 4, 4, 8  # training steps, groups of each, responses of a group, tokens of a response
PAD, EOS, UNKNOWN = 0, 1, 2
VOCABULARY = 40
LENGTHS = (3, 5, 6, LIMIT)  # of a group's responses in the even world: the last one is truncated
NOISE, FAR = 0.4, 1.6  # between sampler and model, nats; one token in eight is far off, so that every bound is met
PROBES = 3
WORLDS = ("even", "uneven", "turns")
SHORT = 3  # tokens of a turn that is answered, at most; a longer one ends the episode


def write_model(folder: Path) -> Path:
    """A Llama of 5,000 parameters with its tokenizer of words, as an ordinary Hugging Face folder."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(3, VOCABULARY))]
    raw = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=24, max_position_embeddings=64, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = EOS, PAD
    with torch.no_grad():
        for n, (name, parameter) in enumerate(sorted(model.named_parameters())):
            drawn = np.random.default_rng([7, n]).normal(size=tuple(parameter.shape))
            drawn = 1 + 0.2 * drawn if "norm" in name else 0.3 * drawn
            parameter.copy_(torch.tensor(drawn, dtype=torch.float32))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def text(token_ids: list[int]) -> str:
    """As the tokenizer splits it into these tokens again; special ones have no word."""
    return " ".join(f"w{n}" for n in token_ids if n > UNKNOWN)


def make_rollouts(folder: Path, world: str) -> list[list[dict]]:
    """[training steps][groups]: a prompt and its responses, with rewards and what the sampler says of each token.

    Even: every group has as many tokens as any other. Turns: three responses of a group have two turns of the model
    and between them the group's ``reply`` of two tokens; ``generated`` says which tokens are the model's. The last
    group of a step has rewards without variance.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    rng = np.random.default_rng(11 + WORLDS.index(world))
    rewards = [[1, 0, 0, 1], [1, 1, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]]
    rollouts = []
    for step in range(STEPS):
        groups = []
        for number in range(PROMPTS):
            prompt = rng.integers(3, VOCABULARY, 2 + (number + step) % 3).tolist()
            if world == "turns":
                more = _episodes(rng)
            else:
                lengths = rng.permutation(LENGTHS) if world == "even" else rng.integers(1, LIMIT + 1, GROUP)
                more = {"responses": [_turn(rng, int(length), LIMIT) for length in lengths]}
            responses = more["responses"]
            gaps = [rng.normal(0, NOISE, len(r)) + FAR * (rng.random(len(r)) < 0.125) for r in responses]
            sampler = [_logprobs(model, prompt, r) - gap for r, gap in zip(responses, gaps, strict=True)]
            groups.append(
                {
                    "prompt": prompt,
                    **more,
                    "sampler_logprobs": [np.minimum(row, 0).round(5).tolist() for row in sampler],
                    "rewards": [float(r) for r in rng.permutation(rewards[number])],
                }
            )
        rollouts.append(groups)
    return rollouts


def _turn(rng: np.random.Generator, length: int, limit: int) -> list[int]:
    """Return tokens that end with the end token, unless they are as many as the limit."""
    tokens: list[int] = rng.integers(3, VOCABULARY, length).tolist()
    return tokens if length == limit else [*tokens[:-1], EOS]


def _episodes(rng: np.random.Generator) -> dict:
    """Return a group's responses of two turns, and a last one of a single turn, which is too long to be answered."""
    reply = rng.integers(3, VOCABULARY, 2).tolist()
    responses, generated = [], []
    for number in range(GROUP - 1):
        first = _turn(rng, int(rng.integers(2, SHORT + 1)), LIMIT)
        left = LIMIT - len(first) - len(reply)
        second = _turn(rng, left if number == 0 else int(rng.integers(1, left)), left)  # the first is cut off
        responses.append(first + reply + second)
        generated.append([1] * len(first) + [0] * len(reply) + [1] * len(second))
    alone = _turn(rng, int(rng.integers(SHORT + 2, LIMIT)), LIMIT)
    return {"responses": [*responses, alone], "generated": [*generated, [1] * len(alone)], "reply": reply}


def mask_of(group: dict) -> list[list[int]]:
    """Return which tokens of each response are the model's."""
    found: list[list[int]] = group.get("generated") or [[1] * len(response) for response in group["responses"]]
    return found


@torch.no_grad()
def _logprobs(model: torch.nn.Module, prompt: list[int], response: list[int]) -> np.ndarray:
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[range(len(response)), response].numpy()


def make_examples() -> list[dict[str, str]]:
    """Prompts with responses to imitate, of several lengths; without the end token, which a trainer adds."""
    rng = np.random.default_rng(13)
    return [
        {
            "prompt": text(rng.integers(3, VOCABULARY, 2 + n % 4).tolist()),
            "response": text(rng.integers(3, VOCABULARY, 1 + (5 * n) % 9).tolist()),
        }
        for n in range(24)
    ]


def weights_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """A copy of every parameter, in float64."""
    return {name: p.detach().numpy().astype(np.float64).copy() for name, p in model.named_parameters()}


def sketch(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """What became of each tensor, in few numbers: the norm of its change, and the change along seeded directions.

    Along a normal direction the difference d of two changes shows as a normal number of standard deviation |d|, so
    that equal numbers along all of them leave no room for unequal changes.
    """
    found = {}
    for n, name in enumerate(sorted(before)):
        change = after[name] - before[name]
        directions = np.random.default_rng([17, n]).normal(size=(PROBES, change.size))
        found[name] = [float(f"{x:.7g}") for x in (np.linalg.norm(change), *(directions @ change.ravel()))]
    return found


def distance(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]], only: str = "") -> float:
    """Estimate of |our change - their change| / |their change| over all tensors, or those with ``only`` in the name."""
    names = [name for name in theirs if only in name]
    apart = sum(np.mean(np.square(np.subtract(ours[name][1:], theirs[name][1:]))) for name in names)
    whole = sum(theirs[name][0] ** 2 for name in names)
    return float(np.sqrt(apart / whole)) if whole else float("inf") if apart else 0.0
