"""Stop strings: text that ends a response, found in its tokens.

A response ends with the first token behind which the text of the response holds a stop string; special tokens are no
text. That is a function of its tokens alone, so every engine ends it at the same one, whether it looks at each token as
it comes or is read when it is whole, and whichever tokens the string is spread over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.types.batch import BoolArray, IdArray, IntArray, SampleRequest

_UNKNOWN = -1  # in a table of what tokens may do
_SLACK = 8  # tokens before the longest match: a character cut at the window's beginning, a space that is dropped there


class StopStrings:
    """Finds where stop strings are complete.

    Args:
        tokenizer: of the model, with the ``decode`` and ``all_special_ids`` of transformers' tokenizers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._completing: dict[tuple[str, ...], dict[int, bool]] = {}  # by token: might it complete one of them?
        self._tables: dict[tuple[str, ...], NDArray[np.int8]] = {}  # the same, by place: 0, 1 or unknown

    def ends_with(self, token_ids: Sequence[int] | IdArray, stops: tuple[str, ...]) -> bool:
        """Whether a response ends with the last of its tokens, if it did not end before.

        Args:
            token_ids: [response tokens] all of them; no more than the last ones are looked at.
            stops: the stop strings.
        """
        return self.may_end(int(token_ids[-1]), stops) and self._complete(token_ids, stops)

    def first(self, token_ids: Sequence[int] | IdArray, stops: tuple[str, ...]) -> int | None:
        """Return the number of tokens with which a response ends; None if it holds no stop string."""
        ids = np.asarray(token_ids, dtype=np.int64)
        for place in np.flatnonzero(self._may_end_each(ids, stops)).tolist():
            if self._complete(ids[: place + 1], stops):
                return int(place) + 1
        return None

    def _may_end_each(self, ids: IntArray, stops: tuple[str, ...]) -> BoolArray:
        """Return ``may_end`` of each token. A table answers: a response has thousands of tokens."""
        table = self._tables.get(stops, np.empty(0, np.int8))
        if (missing := int(ids.max(initial=-1)) + 1 - len(table)) > 0:
            table = self._tables[stops] = np.concatenate([table, np.full(missing, _UNKNOWN, np.int8)])
        for token in np.unique(ids[table[ids] == _UNKNOWN]).tolist():
            table[token] = self.may_end(token, stops)
        found: BoolArray = table[ids] == 1
        return found

    def end(self, request: SampleRequest, made: Sequence[int] | IdArray, new: int) -> int | None:
        """Return the number of tokens of ``made`` with which a response ends; None if it goes on.

        Args:
            request: with its stop strings, and the prefix before ``made``.
            made: tokens since the request was submitted.
            new: how many of them, at the end, were not looked at before.
        """
        stops, prefix = request.sampling.stop, request.prefix
        if not stops:
            return None
        for count in range(len(made) - new + 1, len(made) + 1):
            if self.may_end(int(made[count - 1]), stops):
                whole = made[:count]
                if prefix is not None:  # of an episode the present turn alone
                    whole = np.concatenate([prefix.token_ids[prefix.turn_start :], made[:count]])
                if self._complete(whole, stops):
                    return count
        return None

    def may_end(self, token: int, stops: tuple[str, ...]) -> bool:
        """Whether ``token`` could complete a stop string: almost none can, and only those are looked at closely."""
        known = self._completing.setdefault(stops, {})
        if (found := known.get(token)) is None:
            found = known[token] = token not in self._special and self._might(token, stops)
        return found

    def _might(self, token: int, stops: tuple[str, ...]) -> bool:
        lasts = [stop[-1] for stop in stops]
        if any(not last.isascii() or last.isspace() for last in lasts):
            return True  # part of a character, or a space that the decoder writes between two tokens
        text = self._decode([token])
        return any(last in text for last in lasts)

    def _complete(self, token_ids: Sequence[int] | IdArray, stops: tuple[str, ...]) -> bool:
        """Whether the text of the last tokens holds a stop string. Each token is a byte of it at least."""
        wanted, tail = max(len(stop.encode()) for stop in stops) + _SLACK, list[int]()
        for token in reversed(np.asarray(token_ids, dtype=np.int64).tolist()[-8 * wanted :]):
            if token not in self._special:
                tail.append(token)
                if len(tail) == wanted:
                    break
        text = self._decode(tail[::-1])
        return any(stop in text for stop in stops)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))
