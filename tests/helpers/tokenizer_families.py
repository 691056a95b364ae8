"""Small tokenizers of the families that models use, trained on a few sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "What is the capital of France? Paris is the capital of France.\n\n",
    "Answer: 42\n\nQuestion: one two three four\n",
    "user assistant system Hello there, hi. So the answer is four.\n\nThe sum is 12.",
    "<think>\nFirst the sum.\n</think>\n\nIt is four. Be brief.",
] * 20
SPECIAL = ("<unk>", "<s>", "</s>")
SPLITS_LINES = r"\s*[\r\n]+|\s+(?!\S)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"  # as Qwen and Llama 3 split text
FAMILIES = ("bytes", "bytes_gpt2", "blank_always", "blank_first", "unigram", "wordpiece")


@cache
def family(name: str, special: Sequence[str] = ()) -> Any:
    """Make the tokenizer of a family, as transformers has it.

    Args:
        name: ``bytes`` (Qwen, Llama 3: one token for several newlines), ``bytes_gpt2``, ``blank_always`` (Llama 2,
            TinyLlama, Mistral 0.x: a blank before every text), ``blank_first``, ``unigram`` and ``wordpiece``.
        special: further special tokens.
    """
    raw, trainer = _made(name, [*SPECIAL, *special])
    lines = [line for text in TEXTS for line in text.split("\n")]
    raw.train_from_iterator(lines if name.startswith("blank") else TEXTS, trainer)  # Llama 2 merges no newlines
    saved = json.loads(raw.to_str())  # bytes are words of the vocabulary, and no special tokens as the trainer has them
    saved["added_tokens"] = [token for token in saved["added_tokens"] if not token["content"].startswith("<0x")]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(saved)),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=list(special),
        clean_up_tokenization_spaces=False,
    )


def _made(name: str, special: list[str]) -> tuple[Tokenizer, Any]:
    if name.startswith("bytes"):
        raw = Tokenizer(models.BPE())
        levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "bytes_gpt2")
        pattern = pre_tokenizers.Split(_regex(SPLITS_LINES), "isolated")
        raw.pre_tokenizer = levels if name == "bytes_gpt2" else pre_tokenizers.Sequence([pattern, levels])
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return raw, trainers.BpeTrainer(
            vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    if name.startswith("blank"):
        raw = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        scheme: Any = name.removeprefix("blank_")
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        raw.decoder = decoders.Sequence(parts)
        every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
        return raw, trainers.BpeTrainer(vocab_size=420, special_tokens=[*special, *every_byte], show_progress=False)
    if name == "unigram":
        raw = Tokenizer(models.Unigram())
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        raw.decoder = decoders.Metaspace(prepend_scheme="always")
        return raw, trainers.UnigramTrainer(
            vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    raw = Tokenizer(models.WordPiece(unk_token="<unk>"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=False)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece(cleanup=False)
    return raw, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)


def _regex(pattern: str) -> Any:
    from tokenizers import Regex

    return Regex(pattern)
