"""Text that the tokenizer does not know: the model sees the same unknown token whatever stood there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dapo.data.load import PreparedData
from dapo.types.batch import Prompt

_SHOWN = 5  # unknown words of the example


def unknown_token(tokenizer: Any) -> int | None:
    """Return the id that stands for unknown text; None for tokenizers that know every text.

    Byte-level tokenizers often name their end-of-text token as the unknown one, and never need it.
    """
    unknown = getattr(tokenizer, "unk_token_id", None)
    special = [getattr(tokenizer, f"{name}_token_id", None) for name in ("eos", "bos", "pad")]
    return None if unknown is None or unknown in special else int(unknown)


def unknown_words(text: str, tokenizer: Any) -> list[str]:
    """Return the first words of ``text`` that the tokenizer does not know."""
    unknown = unknown_token(tokenizer)
    words = dict.fromkeys(text.split())
    found = [word for word in words if unknown in tokenizer(word, add_special_tokens=False)["input_ids"]]
    return found[:_SHOWN]


def unknown_in_prompts(data: PreparedData, tokenizer: Any) -> list[str]:
    """Return a warning for each source whose prompts hold unknown tokens: the share, an example and the next move."""
    unknown = unknown_token(tokenizer)
    if unknown is None:
        return []
    by_source: dict[str, list[Prompt]] = {}
    for prompt in (p for prompts in [data.train, *data.validation.values()] for p in prompts):
        by_source.setdefault(prompt.source, []).append(prompt)
    warnings = []
    for source, prompts in by_source.items():
        counts = [int(np.count_nonzero(prompt.token_ids == unknown)) for prompt in prompts]
        if not any(counts):
            continue
        first = next(prompt for prompt, count in zip(prompts, counts, strict=True) if count)
        share = sum(counts) / sum(len(prompt.token_ids) for prompt in prompts)
        warnings.append(
            f"{source}: {_percent(share)} of the prompts' tokens are unknown to the tokenizer "
            f"({tokenizer.unk_token}), in {sum(map(bool, counts)):,} of {len(prompts):,} prompts; the model cannot "
            f"tell them apart. {_example(first.text, tokenizer)}. Give a model whose tokenizer knows this text, or "
            "change data.instruction, data.prompt_template or the problems"
        )
    return warnings


def unknown_in_answers(source: str, form: str, texts: Sequence[str], tokenizer: Any) -> str | None:
    """Return a warning if right responses hold unknown tokens, which the model cannot write; None if they do not.

    Args:
        source: whose gold answers they are.
        form: how a right response is written, for the message.
        texts: the gold answers in that form.
        tokenizer: of the model.
    """
    unknown = unknown_token(tokenizer)
    if unknown is None or not texts:
        return None
    rows = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    with_unknown = [text for text, row in zip(texts, rows, strict=True) if unknown in row]
    if not with_unknown:
        return None
    return (
        f"{source}: {len(with_unknown):,} of {len(texts):,} gold answers, written as {form}, hold tokens that are "
        f"unknown to the tokenizer ({tokenizer.unk_token}): the model cannot write them. "
        f"{_example(with_unknown[0], tokenizer)}. Give a model whose tokenizer knows this text, or a reward that reads "
        "another form"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "less than 0.1 %"


def _example(text: str, tokenizer: Any) -> str:
    words = unknown_words(text, tokenizer)
    return f"For example {', '.join(map(repr, words))}" if words else f"For example in {text[:80]!r}"
