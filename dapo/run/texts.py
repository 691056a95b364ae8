"""How a recipe's responses become text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dapo.config.schema import Recipe
from dapo.data.encode import CutError, continuation
from dapo.errors import RecipeError
from dapo.loop.sampling.texts import Texts, Thinking
from dapo.rollout.stops import StopStrings
from dapo.types.batch import IntArray

_TAIL = 256  # tokens of a prompt whose end is read
_FEW = 32  # tokens of a response that are quicker as a list than as an array


def make_texts(recipe: Recipe, tokenizer: Any) -> Texts:
    """How responses become text.

    Raises:
        RecipeError: a stop string that is a special token, which is no text; a budget that leaves no answer.
    """
    data, stop = recipe.data, recipe.rollout.stop
    if special := [text for text in stop if left_out(text, tokenizer)]:
        numbers = ", ".join(str(token) for text in special for token in left_out(text, tokenizer))
        raise RecipeError(
            f"rollout.stop: {', '.join(map(repr, special))} is a special token, which no response's text holds; "
            f"name it by its number: rollout.stop_token_ids, with {numbers} beside the model's own"
        )
    tags = (data.thinking.open, data.thinking.close) if data.thinking.enabled else ()
    kept = {tag: ids for tag in tags if (ids := left_out(tag, tokenizer))}
    if within := [text for text in stop if any(text in tag for tag in kept)]:
        raise RecipeError(
            f"rollout.stop: {', '.join(map(repr, within))} is a part of a tag of data.thinking, which is a special "
            "token here: no engine would stop at it, and the text would be cut there. Take it out"
        )
    reader = TagWritingTokenizer(tokenizer, [token for ids in kept.values() for token in ids]) if kept else tokenizer
    return Texts(
        make_decode(reader, data.response_prefix),
        response_prefix=data.response_prefix or "",
        first_stop=StopStrings(tokenizer).first if stop else None,
        keep_stop=recipe.rollout.include_stop_str_in_output,
        thinking=_thinking(recipe, tokenizer, reader) if data.thinking.enabled else None,
        decode_all=lambda rows: [str(tokenizer.decode(row.tolist(), skip_special_tokens=False)) for row in rows],
    )


def left_out(text: str, tokenizer: Any) -> list[int]:
    """Return special tokens of ``text`` that decoding would drop. [] if the tokenizer keeps all (Qwen3's ``<think>`` is
    an added token and no special one), and if it cannot write the text at all."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if text in tokenizer.decode(ids, skip_special_tokens=True):
        return []
    special = specials(tokenizer)
    return [token for token in ids if token in special] if text in tokenizer.decode(ids) else []


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


def _thinking(recipe: Recipe, tokenizer: Any, reader: Any) -> Thinking:
    """Return how thinking begins and ends.

    Args:
        recipe: its tags, budget and limits.
        tokenizer: of the model.
        reader: decodes responses; it may write special tokens that ``tokenizer`` leaves out.

    Raises:
        RecipeError: after the budget and the text that ends the thinking no token is left for an answer.
    """
    tags = recipe.data.thinking
    prefix = recipe.data.response_prefix or ""

    def begun(prompt_ids: IntArray) -> bool:
        text = str(reader.decode(prompt_ids[-_TAIL:].tolist(), skip_special_tokens=False))
        return text.removesuffix(prefix).rstrip().endswith(tags.open)

    forced: IntArray | None = None
    if tags.budget is not None:
        end = f"\n{tags.close}\n\n" if tags.end is None else tags.end
        forced = np.asarray(_within(end, tokenizer), dtype=np.int64)
        if tags.close not in reader.decode(forced.tolist(), skip_special_tokens=True):
            raise RecipeError(f"data.thinking.end: the tokenizer cannot write {tags.close!r}, found in {end!r}")
        longest = recipe.rollout.max_response_tokens
        limit = min(longest, recipe.validation.max_response_tokens or longest)
        if tags.budget + len(forced) >= limit:
            raise RecipeError(
                f"data.thinking.budget: {tags.budget} tokens and the {len(forced)} that end the "
                f"thinking leave none of {limit} for an answer; lower it, or raise max_response_tokens"
            )
    first = StopStrings(reader).first
    return Thinking(tags.open, tags.close, begun, first, tags.budget, forced)


def _within(text: str, tokenizer: Any) -> list[int]:
    """Return the tokens of a text that follows others.

    Raises:
        RecipeError: there are none.
    """
    try:
        return continuation(text, tokenizer)
    except CutError as error:
        raise RecipeError(f"data.thinking.end: {error}; give another text") from None


def make_decode(tokenizer: Any, response_prefix: str | None = None) -> Callable[[Sequence[IntArray]], list[str]]:
    """Token ids of many responses to texts, special tokens left out.

    ``response_prefix`` is what each of them begins with, though it is no part of these texts. A response is decoded
    behind its tokens, because some tokenizers drop the space before the first word of a text.
    """
    prefix = response_prefix or ""
    before = np.asarray(tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else [], dtype=np.int64)
    shown = str(tokenizer.decode(before.tolist(), skip_special_tokens=True)) if prefix else ""

    def decode(ids: Sequence[IntArray]) -> list[str]:
        # The tokenizer looks at every number of a list, and at an array once, which takes as long as some tens of them.
        whole = [np.concatenate([before, row]) for row in ids] if prefix else ids
        lists = [row.tolist() for row in whole if len(row) <= _FEW]
        short = iter(tokenizer.batch_decode(lists, skip_special_tokens=True) if lists else ())
        texts = [
            next(short) if len(row) <= _FEW else str(tokenizer.decode(row, skip_special_tokens=True)) for row in whole
        ]
        return [text.removeprefix(shown) for text in texts] if prefix else texts

    return decode
