"""Token ids of responses to texts, in the driver or beside an engine in its process. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo.models.tokenizer import load_tokenizer
from dapo.types.batch import IdArray

Decode = Callable[[Sequence[IdArray]], list[str]]

_FEW = 32  # tokens of a response that are quicker as a list than as an array


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """Everything that decoding responses needs, for a process that loads the tokenizer itself."""

    name: str  # folder or hub name of the model
    trust_remote_code: bool = False
    response_prefix: str | None = None  # see ``make_decode``
    written: tuple[int, ...] = ()  # special tokens that are text all the same

    def make(self) -> Decode:
        """Load the tokenizer.

        Raises:
            ModelError: no tokenizer can be loaded.
        """
        tokenizer = load_tokenizer(self.name, self.trust_remote_code, notes=[])
        return make_decode(
            TagWritingTokenizer(tokenizer, self.written) if self.written else tokenizer, self.response_prefix
        )


def specials(tokenizer: Any) -> frozenset[int]:
    """Tokens that decoding leaves out: those with a role, and added ones that are called special."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset([*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)])


class TagWritingTokenizer:
    """Tokenizer that writes some of its special tokens out (Magistral's ``[THINK]``). Tags of thinking are then part of
    a response's text, as if they were no special tokens.

    Attributes:
        all_special_ids: those that it still leaves out.
    """

    def __init__(self, tokenizer: Any, written: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._left_out = specials(tokenizer) - frozenset(written)
        self.all_special_ids = sorted(self._left_out)

    def __call__(self, text: str, **how: Any) -> Any:
        return self._tokenizer(text, **how)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        ids = [one for one in token_ids if one not in self._left_out] if skip_special_tokens else list(token_ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def batch_decode(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(row, skip_special_tokens=skip_special_tokens) for row in rows]


def make_decode(tokenizer: Any, response_prefix: str | None = None) -> Decode:
    """Token ids of many responses to texts, special tokens left out.

    ``response_prefix`` is what each of them begins with, though it is no part of these texts. A response is decoded
    behind its tokens, because some tokenizers drop the space before the first word of a text.
    """
    prefix = response_prefix or ""
    before = np.asarray(tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else [], dtype=np.int64)
    shown = str(tokenizer.decode(before.tolist(), skip_special_tokens=True)) if prefix else ""

    def decode(ids: Sequence[IdArray]) -> list[str]:
        # The tokenizer looks at every number of a list, and at an array once, which takes as long as some tens of them.
        whole = [np.concatenate([before, row]) for row in ids] if prefix else ids
        lists = [row.tolist() for row in whole if len(row) <= _FEW]
        short = iter(tokenizer.batch_decode(lists, skip_special_tokens=True) if lists else ())
        texts = [
            next(short) if len(row) <= _FEW else str(tokenizer.decode(row, skip_special_tokens=True)) for row in whole
        ]
        return [text.removeprefix(shown) for text in texts] if prefix else texts

    return decode
