"""Do two ways to compute the same log-probabilities agree, as far as their type lets them?

float32 and float64 have fixed tolerances. So have low-precision models at first; where one is exceeded, the model's own
rounding is measured: against the same weights computed in float32, the candidate may be off twice as far as the model's
own low-precision forward pass is. (Keys with large offsets, as Qwen2's biases make them, round by 0.03 to 0.09 nats in
bfloat16; a wrong mask is off by 0.1 to 5.)

In a mixture of experts, rounding decides which of two nearly tied experts a token goes to, and a token that goes
elsewhere is off by 1 to 2 nats. There the candidate repeats the model's own choices, so the same tolerances hold, and
the share of choices that it would have made otherwise is bounded (``MOST_OTHERWISE``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dapo.models.attention import own_attention
from dapo.models.context import stretch_of
from dapo.models.head import LOW
from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch
from dapo.models.precision import exact_matmuls
from dapo.models.routing import RoutedPass, Routes, cut_out, lay_out
from dapo.system import available_memory
from dapo.types.batch import FloatArray, TokenRow

FLOAT64 = (1e-6, 1e-5)
LOW_PRECISION = (0.05, 0.5)
"""Accepted |difference| in nats: (mean, maximum). bfloat16 keeps 8 bits."""

MOST_OTHERWISE = 0.25
"""Accepted share of choices of experts that a low-precision candidate would make otherwise. Near-ties are some 0.02 to
0.07 of them; a wrong mask changes most."""

_AS_FAR = 2.0  # times the model's own rounding
_MOST = 0.2  # nats in the mean: a model that rounds more than this says nothing about the candidate


def disagreement(
    loaded: LoadedModel,
    found: Tensor,
    expected: Tensor,
    float32: tuple[float, float],
    precise: Callable[[], Tensor | None],
) -> tuple[float, float] | None:
    """None where ``found`` is as good as ``expected``; else their |difference| in nats, (mean, maximum).

    Args:
        loaded: the model.
        found: log-probabilities of the candidate, any shape.
        expected: the model's own, as loaded.
        float32: accepted in a float32 model.
        precise: the same from :func:`float32_outputs`; asked only where it is needed.
    """
    accepted = {torch.float64: FLOAT64, torch.float32: float32}.get(loaded.dtype, LOW_PRECISION)
    off = _distance(found, expected)
    if off[0] <= accepted[0] and off[1] <= accepted[1]:
        return None
    if loaded.dtype in LOW and off[0] <= _AS_FAR * _MOST and (exact := precise()) is not None:
        ours, own = _distance(found, exact), _distance(expected, exact)
        if own[0] <= _MOST and all(mine <= _AS_FAR * its for mine, its in zip(ours, own, strict=True)):
            return None
    return off


@contextmanager
def repeating(loaded: LoadedModel, wanted: Tensor | None = None) -> Iterator[RoutedPass | None]:
    """Follow a low-precision model's routers, which choose ``wanted`` [tokens, routers, k]; None: it has none."""
    if loaded.routing is None or loaded.dtype not in LOW:
        yield None
        return
    with loaded.routing.following(wanted) as made:
        yield made


def routes_in(loaded: LoadedModel, batch: PackedBatch, rows: Sequence[Routes | None]) -> Tensor | None:
    """Return the choices of a batch's tokens that lie on this rank, from those of its rows; None: there are none."""
    if loaded.routing is None or all(routes is None for routes in rows):
        return None
    tokens = batch.input_ids.numel()
    whole = lay_out(batch, rows, loaded.routing.none(tokens))
    return torch.from_numpy(cut_out(whole, stretch_of(tokens, loaded.unit))).to(batch.input_ids.device)


def otherwise(passes: Sequence[RoutedPass | None]) -> str | None:
    """Return that too many choices would have been made otherwise, in words; None: they would not."""
    changed = [made.changed().flatten() for made in passes if made is not None and made.otherwise]
    share = float(torch.cat(changed).float().mean()) if changed else 0.0
    if share <= MOST_OTHERWISE:
        return None
    return f"sends tokens to other experts in {share:.0%} of the choices (at most {MOST_OTHERWISE:.0%})"


def _distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    off = (a.double() - b.double()).abs().nan_to_num(torch.inf)
    return float(off.mean()), float(off.max())


@torch.no_grad()
def float32_outputs(loaded: LoadedModel, to: torch.dtype = torch.float32, **inputs: Any) -> Any:
    """Return the model's outputs with its weights widened to float32 for this one call; None where that cannot be done.

    It takes 4 bytes a parameter for as long as the call lasts (8 with ``to`` = float64), and is left out where that is
    more than half of what is free.
    """
    wanted, free = to.itemsize * sum(parameter.numel() for parameter in loaded.model.parameters()), _free(loaded.device)
    if free is not None and 2 * wanted > free:
        return None
    tensors = {**dict(loaded.model.named_parameters()), **dict(loaded.model.named_buffers())}
    try:
        narrow = (*LOW, torch.float32) if to is torch.float64 else LOW
        wide = {name: tensor.to(to) if tensor.dtype in narrow else tensor for name, tensor in tensors.items()}
        return torch.func.functional_call(loaded.model, wide, kwargs=inputs)
    except (RuntimeError, TypeError, ValueError, AttributeError, MemoryError):  # a model's own code, or no memory
        return None


def own_logprobs(loaded: LoadedModel, row: TokenRow, model: Callable[..., Any], temperature: float = 1.0) -> Any:
    """Return the log-probabilities [response tokens] from the logits of ``model``; None where it gives none."""
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).to(loaded.device)
    outputs = model(input_ids=ids.unsqueeze(0), use_cache=False)
    if outputs is None:
        return None
    logits = outputs.logits[0, len(row.prompt_ids) - 1 : -1]
    logprobs = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(-1)
    return logprobs.gather(-1, ids[len(row.prompt_ids) :, None]).squeeze(-1)


@torch.no_grad()
def own_rounding(loaded: LoadedModel, rows: Sequence[TokenRow], temperature: float) -> FloatArray | None:
    """Return how far rounding moves each response token's log-probability in the model's own forward pass.

    The model runs as transformers has it, one row at a time without padding, with its weights as they are and widened:
    low precision to float32, float32 to float64. Nothing of this package takes part.

    Returns:
        |difference| in nats of all rows' tokens, one after the other; None for a model of float64, or where there is
        no memory for the widened weights.
    """
    if loaded.dtype is torch.float64:
        return None
    wide = torch.float32 if loaded.dtype in LOW else torch.float64
    found: list[Tensor] = []
    with exact_matmuls(), own_attention(loaded.model):
        for row in rows:
            exact = own_logprobs(loaded, row, partial(float32_outputs, loaded, wide), temperature)
            if exact is None:
                return None
            found.append((own_logprobs(loaded, row, loaded.model, temperature).double() - exact.double()).abs())
    return torch.cat(found).float().cpu().numpy()


def _free(device: torch.device) -> int | None:
    """Return the free bytes of a device's memory; None: not known."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
