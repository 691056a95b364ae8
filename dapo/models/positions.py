"""Up to which position is a rotary embedding a function of the position alone?

``longrope`` (Phi-3-128k, Phi-4-mini, MiniCPM) and ``dynamic`` choose their frequencies by the largest position in the
call, so after a switching point a response's log-probabilities depend on the rest of the batch: no trainer can
then tell a policy's change from a neighbour's length. The modules themselves are asked, not their names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from dapo.errors import ModelError

_FIRST = 8  # positions whose rotation is compared
_FARTHEST = 2**24  # positions looked at; no model reaches it


@torch.no_grad()
def exact_positions(model: Any) -> int | None:
    """Longest sequence, in tokens, for which no rotation depends on the other positions of the call; None: any."""
    farthest = min(_FARTHEST, 2 * (getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**17))
    limits = [
        _switching_point(module, layer_type, farthest)
        for module in model.modules()
        if "RotaryEmbedding" in type(module).__name__
        for layer_type in _layer_types(module)
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def check_positions(name: str, limit: int | None, longest: int) -> None:
    """Before training: no sequence may reach a position at which its neighbours change it.

    Args:
        name: Of the model, for the message.
        limit: From :func:`exact_positions`.
        longest: Tokens of the longest prompt with the longest response.

    Raises:
        ModelError: ``longest`` is above ``limit``.
    """
    if limit is not None and longest > limit:
        raise ModelError(
            f"{name} chooses its rotary frequencies by the longest sequence of a batch (rope type longrope or "
            f"dynamic): beyond {limit} tokens a response's log-probabilities would depend on the rest of the batch. "
            f"Prompt and response may grow to {longest} tokens here; lower rollout.max_response_tokens (and "
            f"validation.max_response_tokens) or data.max_prompt_tokens until they stay within {limit}, or set a rope "
            "type in config.json whose frequencies are fixed (llama3, yarn, linear)"
        )


def _layer_types(module: Any) -> list[str | None]:
    """Gemma 3 has one module for several kinds of layers; others have one kind without a name."""
    kinds = getattr(module, "rope_type", None)
    return list(kinds) if isinstance(kinds, dict) else [None]


def _switching_point(module: Any, layer_type: str | None, farthest: int) -> int | None:
    """Tokens up to which the first positions are rotated as they are alone; None: always, or it cannot be asked."""
    try:
        alone = _rotation(module, layer_type, _FIRST)
        if _same(alone, _rotation(module, layer_type, farthest)):
            return None
        below, above = _FIRST, farthest  # the first behaves as alone, the second does not
        while above - below > 1:
            middle = (below + above) // 2
            if _same(alone, _rotation(module, layer_type, middle)):
                below = middle
            else:
                above = middle
        return below
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError, KeyError):
        return None  # another interface; the probe at load compares log-probabilities all the same
    finally:
        _forget(module, layer_type)


def _rotation(module: Any, layer_type: str | None, tokens: int) -> list[Tensor]:
    """Return the rotation of the first positions in a call whose last position is ``tokens - 1``."""
    device = next(module.buffers()).device
    at = torch.cat([torch.arange(_FIRST), torch.tensor([tokens - 1])])[None].to(device)
    x = torch.empty(1, 1, device=device)
    out = module(x, at) if layer_type is None else module(x, at, layer_type)
    parts = out if isinstance(out, tuple) else (out,)
    return [part[..., :_FIRST, :].clone() for part in parts]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _forget(module: Any, layer_type: str | None) -> None:
    """Leave a module that keeps the longest call in mind as a short call would."""
    with suppress(Exception):  # it could not be asked in the first place
        _rotation(module, layer_type, _FIRST)
