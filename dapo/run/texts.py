"""How a recipe's responses become text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dapo.config.schema import Recipe
from dapo.contracts.types import IntArray
from dapo.errors import RecipeError
from dapo.loop.texts import Texts
from dapo.rollout.stops import StopStrings


def make_texts(recipe: Recipe, tokenizer: Any) -> Texts:
    """How responses become text.

    Raises:
        RecipeError: a stop string that is a special token, which is no text.
    """
    prefix, stop = recipe.data.response_prefix, recipe.rollout.stop
    if special := [text for text in stop if text in tokenizer.all_special_tokens]:
        ids = ", ".join(str(tokenizer.convert_tokens_to_ids(text)) for text in special)
        raise RecipeError(
            f"rollout.stop: {', '.join(map(repr, special))} is a special token, which stands in no response's text; "
            f"name it by its number: rollout.stop_token_ids, with {ids} beside the model's own"
        )
    return Texts(
        make_decode(tokenizer, prefix),
        response_prefix=prefix or "",
        first_stop=StopStrings(tokenizer).first if stop else None,
        keep_stop=recipe.rollout.include_stop_str_in_output,
    )


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
