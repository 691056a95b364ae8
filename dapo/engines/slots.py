"""How many responses decode at once in the embedded engine: chosen, or refused, before anything is decoded."""

from __future__ import annotations

import torch

from dapo.engines.pools import CacheShape, fixed_bytes
from dapo.errors import EngineError
from dapo.models.loaded import LoadedModel

_TYPICAL_TOKENS = 128  # length assumed on a CPU, where pools take what their rows need
_UNKNOWN_LONGEST = 1024  # assumed elsewhere where nobody says
MOST_SLOTS = 512
"""Slots that are chosen if the recipe names no number.

On a GPU also where a step trains on fewer responses: one that draws until its batch is full asks for two to four times
what it trains on, and an evaluation for a whole set. The cache of unused slots takes memory while the engine
generates, of what is free beside the learner's own, and none while the learner works (the engine sleeps). `dapo check`
counts all of it; ``rollout.slots`` bounds it.
"""
_SAMPLING = 24  # bytes for each slot and word while a token is drawn: logits in two types and what is made of them
_KEPT = 2**30  # bytes for kept slots on a CPU at least; as many as the weights have, where that is more
_SPARE = 0.9  # share of the free memory that may be planned; the rest is the allocator's


def choose_slots(
    loaded: LoadedModel, shape: CacheShape, longest: int | None = None, reserve: int = 0, *, keeps: bool = False
) -> int:
    """Responses that decode at once.

    On a CPU as many as keep the cache near the size of a large CPU cache or of the weights: below, each step's fixed
    cost and the reading of the weights dominate; above, the rows' own cost does, and more slots would only hold memory.
    On CUDA as many as fit with all of them at ``longest`` tokens, at most 512.

    Args:
        loaded: the model.
        shape: of its cache.
        longest: tokens of the longest sequence; None: not known.
        reserve: bytes that the learner will hold beside the cache.
        keeps: as many more wait for a continuation.

    Raises:
        EngineError: not even one fits.
    """
    if loaded.device.type != "cuda":
        weights = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
        budget = max(64 * 2**20, weights)
        return int(min(MOST_SLOTS, max(128, budget // (shape.bytes_per_token * _TYPICAL_TOKENS))))
    longest = longest or _UNKNOWN_LONGEST
    fitting = _fitting(loaded, reserve, each := _of_one(loaded, shape, longest, keeps))
    if not fitting:
        raise EngineError(_too_small(longest, reserve, each))
    return min(MOST_SLOTS, fitting)


def check_slots(
    slots: int,
    loaded: LoadedModel,
    shape: CacheShape,
    longest: int | None,
    reserve: int = 0,
    *,
    keeps: bool = False,
) -> None:
    """Refuse on CUDA what would not fit if all responses grew to ``longest`` tokens; arguments as above.

    Raises:
        EngineError: with the number that fits.
    """
    if loaded.device.type != "cuda" or longest is None:
        return
    fitting = _fitting(loaded, reserve, each := _of_one(loaded, shape, longest, keeps))
    if fitting < slots:
        move = f"set rollout.slots to at most {fitting}" if fitting else _too_small(longest, reserve, each)
        raise EngineError(
            f"rollout.slots = {slots} responses of up to {longest} tokens need "
            f"{slots * each / 2**30:.1f} GiB for keys, values and sampling, more than "
            f"the device has free beside what the learner will hold ({reserve / 2**30:.1f} GiB): {move}"
        )


def kept_bytes(slots: int, loaded: LoadedModel, shape: CacheShape, longest: int | None) -> int:
    """Return the bytes for kept slots; on a GPU those of as many responses as decode at once."""
    if loaded.device.type != "cuda":
        return max(_KEPT, sum(int(p.numel()) * int(p.element_size()) for p in loaded.model.parameters()))
    return slots * (longest or _UNKNOWN_LONGEST) * shape.bytes_per_token


def _of_one(loaded: LoadedModel, shape: CacheShape, longest: int, keeps: bool) -> int:
    """Bytes of one slot."""
    vocabulary = loaded.model.get_input_embeddings().weight.shape[0]
    return slot_bytes(shape, int(vocabulary), longest, keeps=keeps)


def slot_bytes(shape: CacheShape, vocabulary: int, longest: int, *, keeps: bool = False) -> int:
    """Return the bytes of a response of up to ``longest`` tokens on a GPU: in the pools that it passes, and to draw a
    token. With ``keeps`` add those of a kept slot."""
    waiting = longest * shape.bytes_per_token if keeps else 0
    return fixed_bytes(shape, 1, longest) + _SAMPLING * vocabulary + waiting


def _fitting(loaded: LoadedModel, reserve: int, each: int) -> int:
    free = torch.cuda.mem_get_info(loaded.device)[0]
    unused = torch.cuda.memory_reserved(loaded.device) - torch.cuda.memory_allocated(loaded.device)
    budget = int(_SPARE * (free + unused)) - reserve
    return max(0, budget // each)


def _too_small(longest: int, reserve: int, each: int) -> str:
    return (
        f"the device has no memory for the keys and values of one response of {longest} tokens "
        f"({each / 2**30:.2f} GiB) beside what the learner will hold "
        f"({reserve / 2**30:.1f} GiB): lower rollout.max_response_tokens or "
        "data.max_prompt_tokens, take a smaller model, or rollout.engine: vllm"
    )
