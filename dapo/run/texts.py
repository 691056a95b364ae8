"""How a recipe's responses become text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dapo.config.schema import Recipe
from dapo.contracts.types import IntArray
from dapo.errors import RecipeError
from dapo.loop.texts import Texts, Thinking
from dapo.rollout.stops import StopStrings

_TAIL = 256  # tokens of a prompt whose end is read


def make_texts(recipe: Recipe, tokenizer: Any) -> Texts:
    """How responses become text.

    Raises:
        RecipeError: a stop string or a tag that is a special token, which is no text; a budget that leaves no answer.
    """
    data, stop = recipe.data, recipe.rollout.stop
    if special := [text for text in stop if text in tokenizer.all_special_tokens]:
        ids = ", ".join(str(tokenizer.convert_tokens_to_ids(text)) for text in special)
        raise RecipeError(
            f"rollout.stop: {', '.join(map(repr, special))} is a special token, which stands in no response's text; "
            f"name it by its number: rollout.stop_token_ids, with {ids} beside the model's own"
        )
    thinking = data.thinking
    tags = [tag for tag in (thinking.open, thinking.close) if thinking.enabled and tag in tokenizer.all_special_tokens]
    if tags:
        raise RecipeError(
            f"data.thinking: {', '.join(tags)} is a special token of this tokenizer, which stands in no "
            "response's text; thinking between such tokens is not understood here"
        )
    return Texts(
        make_decode(tokenizer, data.response_prefix),
        response_prefix=data.response_prefix or "",
        first_stop=StopStrings(tokenizer).first if stop else None,
        keep_stop=recipe.rollout.include_stop_str_in_output,
        thinking=_thinking(recipe, tokenizer) if thinking.enabled else None,
    )


def _thinking(recipe: Recipe, tokenizer: Any) -> Thinking:
    """Where thinking ends.

    Raises:
        RecipeError: after the budget and the text that ends the thinking no token is left for an answer.
    """
    tags, rollout = recipe.data.thinking, recipe.rollout
    prefix = recipe.data.response_prefix or ""

    def begun(prompt_ids: IntArray) -> bool:
        text = str(tokenizer.decode(prompt_ids[-_TAIL:].tolist(), skip_special_tokens=False))
        return text.removesuffix(prefix).rstrip().endswith(tags.open)

    forced: IntArray | None = None
    if rollout.thinking_budget is not None:
        end = f"\n{tags.close}\n\n" if rollout.thinking_end is None else rollout.thinking_end
        forced = np.asarray(tokenizer(end, add_special_tokens=False)["input_ids"], dtype=np.int64)
        if tags.close not in tokenizer.decode(forced.tolist(), skip_special_tokens=True):
            raise RecipeError(f"rollout.thinking_end: the tokenizer cannot write {tags.close!r}, found in {end!r}")
        limit = min(rollout.max_response_tokens, recipe.validation.max_response_tokens or rollout.max_response_tokens)
        if rollout.thinking_budget + len(forced) >= limit:
            raise RecipeError(
                f"rollout.thinking_budget: {rollout.thinking_budget} tokens and the {len(forced)} that end the "
                f"thinking leave none of {limit} for an answer; lower it, or raise max_response_tokens"
            )
    first = StopStrings(tokenizer).first
    return Thinking(tags.open, tags.close, begun, first, rollout.thinking_budget, forced)


def make_decode(tokenizer: Any, response_prefix: str | None = None) -> Callable[[Sequence[IntArray]], list[str]]:
    """Token ids of many responses to texts, special tokens left out.

    ``response_prefix`` is what each of them begins with, though it is no part of these texts. A response is decoded
    behind its tokens, because some tokenizers drop the space before the first word of a text.
    """
    prefix = response_prefix or ""
    before = tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else []
    shown = tokenizer.decode(before, skip_special_tokens=True) if prefix else ""

    def decode(ids: Sequence[IntArray]) -> list[str]:
        if not ids:
            return []
        texts = tokenizer.batch_decode([[*before, *row.tolist()] for row in ids], skip_special_tokens=True)
        return [text.removeprefix(shown) for text in texts] if prefix else texts

    return decode
