"""Tiny random models with a word-level tokenizer, saved as ordinary Hugging Face folders.

They need no network and take milliseconds, so tests and the quickstart's warm-up start from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dapo.models.quiet import quiet_transformers

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"

SIGNED_SUM_WORDS: tuple[str, ...] = (
    *(str(digit) for digit in range(1, 10)),
    *(f"+{digit}" for digit in range(1, 10)),
    *(f"-{digit}" for digit in range(1, 10)),
    *(f"={total}" for total in range(46)),
    "=",
    "?",
)
"""The words of the signed-sum task: terms, running totals, the question and "start over"."""


def make_word_tokenizer(words: Sequence[str] = SIGNED_SUM_WORDS) -> Any:
    """Make a tokenizer in which every white-space separated word is one token.

    ``<pad>`` is id 0, ``<eos>`` 1, ``<unk>`` 2; ``words`` follow in their order.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate((PAD, EOS, UNKNOWN, *words))}
    raw = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    raw.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def make_tiny_model(
    folder: str | Path,
    architecture: str = "llama",
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    ffn: int = 192,
    vocabulary: int = 80,
    tied: bool = True,
    seed: int = 0,
    words: Sequence[str] = SIGNED_SUM_WORDS,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Save a random model with its tokenizer to ``folder`` and return the folder.

    Args:
        folder: Where the Hugging Face folder is written; made if it does not exist.
        architecture: A transformers model type such as ``llama``, ``qwen2``, ``qwen3`` or ``gemma2``.
        hidden: Width of the residual stream; a head has ``hidden // heads`` dimensions.
        layers: Number of decoder layers.
        heads: Query heads.
        kv_heads: Key and value heads (grouped-query attention); None: as many as ``heads``.
        ffn: Width of the feed-forward layers.
        vocabulary: Rows of the embedding. May exceed the tokenizer's number of tokens.
        tied: The output head is the embedding.
        seed: Of the random weights. The process's global generator is left as it was.
        words: The tokenizer's words, see ``make_word_tokenizer``.
        dtype: Of the saved weights.
        config: Further fields of the architecture's configuration, for example ``sliding_window=8``.

    The initial scale 0.08 (not the usual 0.02) lets a model of this size learn within a minute.
    """
    tokenizer = make_word_tokenizer(words)
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or heads,
        "head_dim": hidden // heads,
        "intermediate_size": ffn,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
        "initializer_range": 0.08,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    _save_random(Path(folder), architecture, settings | config, tokenizer, seed, dtype)
    return Path(folder)


def _save_random(
    folder: Path, architecture: str, config: dict[str, Any], tokenizer: Any, seed: int, dtype: torch.dtype
) -> None:
    """Save a model of that configuration with random weights, and its tokenizer; both name the same special tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **config), dtype=dtype)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
