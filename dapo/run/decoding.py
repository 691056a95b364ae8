"""How a recipe's responses become text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dapo.config.schema import Recipe
from dapo.data.encode import CutError, continuation
from dapo.engines.stops import StopStrings
from dapo.errors import RecipeError
from dapo.loop.sampling.texts import Texts, Thinking
from dapo.models.decode import Decode, DecodeSpec, TagWritingTokenizer, make_decode, specials
from dapo.types.batch import IdArray, IntArray

log = logging.getLogger(__name__)

_TAIL = 256  # tokens of a prompt whose end is read
_PROMPTS = 1024  # whose end is remembered: the responses of a group have one


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
            f"name it by its number: rollout.stop_token_ids, with {numbers} in addition to the model's own"
        )
    kept = _special_tags(recipe, tokenizer)
    if within := [text for text in stop if any(text in tag for tag in kept)]:
        raise RecipeError(
            f"rollout.stop: {', '.join(map(repr, within))} is a part of a tag of data.thinking, which is a special "
            "token here: no engine would stop at it, and the text would be cut there. Take it out"
        )
    reader = TagWritingTokenizer(tokenizer, [token for ids in kept.values() for token in ids]) if kept else tokenizer
    return Texts(
        _telling_unknown(make_decode(reader, data.response_prefix), len(tokenizer)),
        response_prefix=data.response_prefix or "",
        first_stop=StopStrings(tokenizer).first if stop else None,
        keep_stop=recipe.rollout.include_stop_str_in_output,
        thinking=_thinking(recipe, tokenizer, reader) if data.thinking.enabled else None,
        decode_all=lambda rows: [str(tokenizer.decode(row.tolist(), skip_special_tokens=False)) for row in rows],
    )


def _telling_unknown(decode: Decode, known: int) -> Decode:
    """Warn once when a response holds an id beyond the tokenizer's ``known`` tokens, which decoding drops.

    An embedding may have more rows than the tokenizer has tokens, and a model can sample each of them.
    """
    told = False

    def telling(ids: Sequence[IdArray]) -> list[str]:
        nonlocal told
        if not told and (most := max((int(row.max()) for row in ids if len(row)), default=0)) >= known:
            told = True
            log.warning(
                "the model sampled id %d, and its tokenizer has %d tokens: the embedding has rows that no text uses. "
                "Such ids read as nothing; many of them mean that the tokenizer belongs to another model",
                most,
                known,
            )
        return decode(ids)

    return telling


def decode_spec(recipe: Recipe, tokenizer: Any, name: str) -> DecodeSpec:
    """Return how another process makes the texts that ``make_texts`` decodes here; ``name``: the model's folder."""
    written = [token for ids in _special_tags(recipe, tokenizer).values() for token in ids]
    return DecodeSpec(name, recipe.model.trust_remote_code, recipe.data.response_prefix, tuple(written))


def _special_tags(recipe: Recipe, tokenizer: Any) -> dict[str, list[int]]:
    """Return tags of thinking that decoding would drop, with their special tokens."""
    thinking = recipe.data.thinking
    tags = (thinking.open, thinking.close) if thinking.enabled else ()
    return {tag: ids for tag in tags if (ids := left_out(tag, tokenizer))}


def left_out(text: str, tokenizer: Any) -> list[int]:
    """Return special tokens of ``text`` that decoding would drop. [] if the tokenizer keeps all (Qwen3's ``<think>`` is
    an added token and no special one), and if it cannot write the text at all."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if text in tokenizer.decode(ids, skip_special_tokens=True):
        return []
    special = specials(tokenizer)
    return [token for token in ids if token in special] if text in tokenizer.decode(ids) else []


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

    @lru_cache(maxsize=_PROMPTS)
    def ends_open(tail: bytes) -> bool:
        text = str(reader.decode(np.frombuffer(tail, np.int64).tolist(), skip_special_tokens=False))
        return text.removesuffix(prefix).rstrip().endswith(tags.open)

    def begun(prompt_ids: IntArray) -> bool:
        return ends_open(prompt_ids[-_TAIL:].astype(np.int64).tobytes())

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
