"""Encode texts that follow each other, such as a prompt and its answer, without tokens that encoding them apart adds.

Many tokenizers put a blank before every text (Llama 2, Mistral 0.x, TinyLlama): an answer that is encoded alone begins
with a token that no model writes there. So the tokens of an answer are those by which the whole text is longer than the
prompt. The prompt's tokens are always those of the prompt alone, since a model that is asked sees these.

Character offsets of a tokenizer cannot say where to cut: byte-level ones leave a token's blank out of its offsets, so a
token that holds the prompt's last blank and the answer's first word seems to begin with the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

BATCH = 1024  # texts of one call of the tokenizer
_ANCHORS = ("\n", "a", ".", "1")
"""Short texts behind which a piece is encoded, to see it without what a tokenizer puts before a text."""


class CutError(ValueError):
    """No tokens of a piece follow the tokens before it."""

    def __init__(self, before: str, piece: str) -> None:
        super().__init__(
            f"the tokenizer makes one token of the end of {before[-20:]!r} and the beginning of {piece[:20]!r}, and "
            "cannot write the second text after the first"
        )


def encode(texts: Sequence[str], tokenizer: Any, *, special: bool = False) -> list[list[int]]:
    """Return the token ids of each text; ``special``: with the tokens that the tokenizer adds around a text."""
    return [
        list(row)
        for start in range(0, len(texts), BATCH)
        for row in tokenizer(list(texts[start : start + BATCH]), add_special_tokens=special)["input_ids"]
    ]


def encode_pieces(rows: Sequence[Sequence[str]], tokenizer: Any) -> Iterator[list[list[int]]]:
    """Yield the token ids of each piece of each row, special tokens of the tokenizer's own not added.

    The pieces of a row follow each other. The tokens of the first are those of its text alone. Each later piece has the
    tokens that the text up to its end adds to those before it. If a token of that text spans the border, the border
    stays: the piece gets the tokens that follow those before it and are decoded to the same text.

    Raises:
        CutError: there are no such tokens.
    """
    size = max(1, BATCH // max(map(len, rows), default=1))
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        texts = [text for row in chunk for text in accumulate(row)]
        encoded = iter(encode(texts, tokenizer))
        for row in chunk:
            yield _pieces(row, [next(encoded) for _ in row], tokenizer)


def continuation(piece: str, tokenizer: Any) -> list[int]:
    """Return the tokens of a text that follows other text, whatever that is.

    Raises:
        CutError: as ``encode_pieces``.
    """
    error = None
    for anchor in _ANCHORS:
        try:
            return next(encode_pieces([(anchor, piece)], tokenizer))[1]
        except CutError as found:
            error = found
    assert error is not None
    raise error


def _pieces(row: Sequence[str], heads: Sequence[list[int]], tokenizer: Any) -> list[list[int]]:
    """``heads``: tokens of the text up to the end of each piece."""
    ids, found, before = heads[0], [heads[0]], row[0]
    for number, piece in enumerate(row[1:], start=1):
        last, head = heads[number - 1], heads[number]
        swallowed = _begins(head, last) and _swallows(before, piece, head, len(last), tokenizer)
        if _begins(head, ids) and not swallowed:
            own = head[len(ids) :]
        else:
            own = _behind(ids, before, piece, last, None if swallowed else head, tokenizer)
        found.append(own)
        ids = [*ids, *own]
        before += piece
    return found


def _begins(whole: Sequence[int], part: Sequence[int]) -> bool:
    return list(whole[: len(part)]) == list(part)


def _swallows(before: str, piece: str, head: Sequence[int], count: int, tokenizer: Any) -> bool:
    """Return whether the unknown token that ends the text before covers some of the piece as well.

    It has one number whatever it covers. A tokenizer without offsets gets the cautious answer.
    """
    if not piece or count == 0 or head[count - 1] != getattr(tokenizer, "unk_token_id", None):
        return False
    if not getattr(tokenizer, "is_fast", False):
        return True
    offsets = tokenizer(before + piece, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return bool(offsets[count - 1][1] > len(before))


def _behind(
    ids: list[int], before: str, piece: str, last: list[int], head: list[int] | None, tokenizer: Any
) -> list[int]:
    """Return tokens of ``piece`` that follow ``ids``: the first candidate that is decoded to the right text.

    Args:
        ids: of the text before.
        before: that text.
        piece: what follows it.
        last: tokens of the text before, encoded at once.
        head: tokens of both, encoded at once; None: they do not hold the whole piece.
        tokenizer: of the model.

    Raises:
        CutError: no candidate is.
    """
    if head is not None:
        shown = _decoded(head, tokenizer)
        for own in _candidates(piece, last, head, tokenizer):
            if own and _decoded([*ids, *own], tokenizer) == shown:
                return own
    if _joins_by_blanks(tokenizer):
        return encode([piece], tokenizer)[0]
    raise CutError(before, piece)


def _candidates(piece: str, last: list[int], head: list[int], tokenizer: Any) -> Iterator[list[int]]:
    if _begins(head, last):  # an earlier border was kept, and this one is clean
        yield head[len(last) :]
    alone, *behind = encode([piece, *(anchor + piece for anchor in _ANCHORS)], tokenizer)
    yield alone
    for anchor, whole in zip(encode(_ANCHORS, tokenizer), behind, strict=True):
        if _begins(whole, anchor):
            yield whole[len(anchor) :]


def _decoded(ids: Sequence[int], tokenizer: Any) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _joins_by_blanks(tokenizer: Any) -> bool:
    """Return whether tokens are words, with a blank between any two: such a tokenizer cannot write two texts together,
    and adds nothing to one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and backend.decoder is None
