"""Does this program's forward pass give the model's own log-probabilities? Asked of every model when it is loaded."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule

from dapo.errors import raise_for_machine
from dapo.models import attention
from dapo.models.agreement import (
    LOW_PRECISION,
    disagreement,
    float32_outputs,
    otherwise,
    own_logprobs,
    repeating,
    routes_in,
)
from dapo.models.loaded import LoadedModel
from dapo.models.packing import pack, pad
from dapo.models.policy import Policy
from dapo.models.precision import exact_matmuls
from dapo.models.routing import RoutedPass, Routes
from dapo.types.batch import TokenRow

# (prompt tokens, response tokens of the group): two groups, a one-token response, and lengths that differ.
PROBE_GROUPS = ((5, (7, 1, 12)), (3, (4, 9)))
SHORT = 17  # tokens of the longest of these

# Numbers of a config beyond which attention looks at something else: sliding windows, chunks, a choice of keys.
_THRESHOLDS = re.compile("window|index_topk|attention_chunk|chunk_size|block_size|local_attention")
_WORK = {"cpu": 2e11, "cuda": 2e13}  # parameters x tokens of the longest row: a few seconds
_MOST_TOKENS = {"cpu": 1100, "cuda": 4200}  # attention without a kernel of its own takes memory with the square
_BEYOND = 12  # tokens behind a threshold that the longest of the comparisons needs

# Largest accepted |difference| of log-probabilities in float32: (mean, maximum). Wrong attention is off by 0.1 to 5.
TOLERANCE = (1e-3, 1e-2)
GRADIENT = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Accepted |difference| of a gradient relative to its size; of other types 0.5, as rounding grows with the layers."""
_ASKED_OF = {"cuda"}  # by device: a CPU's backward pass of packed attention is ours, and tested
_LOOKS_AHEAD = {torch.float64: 1e-5, torch.float32: 1e-2}  # nats; of other types 0.5


def _thresholds(config: Any) -> list[int]:
    """Lengths at which the model's attention may change, from the names in its config; smallest first."""
    found = {
        value
        for name, value in config.get_text_config().to_dict().items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 0 and _THRESHOLDS.search(name)
    }
    return sorted(found)


def _affordable(loaded: LoadedModel) -> int:
    """Tokens of the longest row that a probe may have: a few seconds, and no more than rotate exactly."""
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    kind = "cpu" if loaded.device.type == "cpu" else "cuda"
    longest = min(_MOST_TOKENS[kind], int(_WORK[kind] / size))
    positions = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    return min(limit for limit in (longest, positions, loaded.exact_positions) if limit is not None)


def probe_length(loaded: LoadedModel) -> int:
    """Tokens of a sequence that goes beyond every affordable threshold of the model's attention; 0: none is needed."""
    most = _affordable(loaded)
    return max((t + 5 for t in _thresholds(loaded.model.config) if t + 5 > SHORT and t + _BEYOND <= most), default=0)


def unseen_threshold(loaded: LoadedModel) -> int | None:
    """Return the smallest length at which attention may change and that ``probe`` could not afford to look beyond."""
    positions = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None) or 2**62
    most = _affordable(loaded)
    return next((t for t in _thresholds(loaded.model.config) if most < t + _BEYOND and t < positions), None)


def probe(loaded: LoadedModel) -> str | None:
    """Compare log-probabilities of random tokens with the model's own logits; None, or what is wrong in words.

    Rows are as long as the model's attention has thresholds, if that is affordable. Uses packed or padded rows as
    ``loaded.packed`` says. The reference is one unpadded row at a time through the whole
    model with its own attention. The model is left with its own attention.
    """
    model = loaded.model
    long = probe_length(loaded)
    rows = _probe_rows(model.get_input_embeddings().weight.shape[0], long)
    with torch.no_grad(), exact_matmuls(), attention.own_attention(model):
        reference = [_reference(loaded, row) for row in rows]
        causal = _LOOKS_AHEAD.get(loaded.dtype, LOW_PRECISION[1])
        if long and (ahead := _looks_ahead(loaded, rows[-1], reference[-1])) > causal:
            return (
                f"is not causal beyond some length: its own log-probabilities of the first tokens of {long} differ by "
                f"up to {ahead:.2g} from those without the tokens after them"
            )
        own = model.config._attn_implementation
        try:
            if loaded.packed:
                model.set_attn_implementation(attention.NAME)
            pairs = [_pair(loaded, rows, reference, part) for part in _parts(len(rows), long)]
        except (NotImplementedError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            if not loaded.packed:
                raise
            raise_for_machine(error, f"a forward pass of {loaded.name}")
            return f"does not run on packed rows ({type(error).__name__}: {error})"
        finally:
            model.set_attn_implementation(own)
        order = [number for pair in pairs for number in pair.order]
        off = disagreement(
            loaded,
            torch.cat([pair.found for pair in pairs]),
            torch.cat([reference[number].logprobs for number in order]),
            TOLERANCE,
            lambda: _precise_logprobs(loaded, [rows[n] for n in order], [reference[n] for n in order]),
        )
    if (elsewhere := otherwise([pair.made for pair in pairs])) is not None:
        return elsewhere
    if off is None:
        return _wrong_gradient(loaded, rows, long) if loaded.packed and loaded.device.type in _ASKED_OF else None
    rows_kind = "packed" if loaded.packed else "padded"
    return (
        f"gives log-probabilities on {rows_kind} rows that differ from its own by {off[0]:.2g} (at most {off[1]:.2g})"
    )


def _wrong_gradient(loaded: LoadedModel, rows: list[TokenRow], long: int) -> str | None:
    """Return the fault of the gradient through packed rows; None if it has none, or cannot be computed."""
    try:
        off = gradient_difference(loaded, rows, long)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise_for_machine(error, f"a backward pass of {loaded.name}")
        return f"has no gradient on packed rows ({type(error).__name__}: {error})"
    most = GRADIENT.get(loaded.dtype, 0.5)
    if off is None or off <= most:
        return None
    return f"gives a gradient on packed rows that differs from its own by {off:.2g} of its size (at most {most:g})"


def gradient_difference(loaded: LoadedModel, rows: list[TokenRow], long: int = 0) -> float | None:
    """|packed - own| / |own| of the gradient of the sum of all log-probabilities, inf if it is not finite.

    Looked at are the first four matrices of the first layer, behind which every other layer lies; None where these are
    not trained, or lie in slices on several ranks.
    """
    model, layers = loaded.model, getattr(loaded.decoder, "layers", None)
    if not layers or isinstance(layers[0], FSDPModule):
        return None
    matrices = [matrix for matrix in layers[0].parameters() if matrix.requires_grad and matrix.dim() == 2][:4]
    if not matrices:
        return None
    found = [torch.zeros_like(matrix, dtype=torch.float64) for matrix in matrices]
    wanted = [torch.zeros_like(total) for total in found]

    def add(totals: list[torch.Tensor], logprobs: torch.Tensor) -> None:
        for total, gradient in zip(totals, torch.autograd.grad(logprobs.sum(), matrices), strict=True):
            total += gradient

    own = model.config._attn_implementation
    routes = []
    with torch.enable_grad(), exact_matmuls():
        with attention.own_attention(model):
            for row in rows:
                with repeating(loaded) as made:  # the backward pass too: layers that are computed again ask the routers
                    add(wanted, own_logprobs(loaded, row, loaded.model))
                routes.append(_routes(made))
        try:
            model.set_attn_implementation(attention.NAME)
            for part in _parts(len(rows), long):
                batch = pack(rows[part], loaded.device)
                with repeating(loaded, routes_in(loaded, batch, [routes[part][n] for n in batch.order])):
                    add(found, Policy(loaded)(batch, 1.0, "none")[0])
        finally:
            model.set_attn_implementation(own)
    off = sum(float((a - b).norm()) ** 2 for a, b in zip(found, wanted, strict=True)) ** 0.5
    size = sum(float(b.norm()) ** 2 for b in wanted) ** 0.5
    return off / size if size and math.isfinite(off / size) else math.inf


def _probe_rows(vocabulary: int, long: int) -> list[TokenRow]:
    """Return the rows of ``PROBE_GROUPS``; if ``long`` is not 0, add a group whose last row has so many tokens."""
    random = np.random.default_rng(0)
    groups = (*PROBE_GROUPS, (3, (2, long - 3))) if long else PROBE_GROUPS
    rows = []
    for group, (prompt_tokens, responses) in enumerate(groups):
        prompt = random.integers(0, vocabulary, prompt_tokens)
        for tokens in responses:
            rows.append(TokenRow(group, prompt, random.integers(0, vocabulary, tokens)))
    return rows


def _parts(rows: int, long: int) -> list[slice]:
    """Which rows make a batch: the long group its own, so that not everything is padded to its length."""
    return [slice(0, rows - 2), slice(rows - 2, rows)] if long else [slice(0, rows)]


@dataclass(frozen=True, slots=True)
class _Reference:
    """A row by the model's own attention."""

    logprobs: torch.Tensor  # [response tokens]
    routes: Routes | None  # of its tokens, where another computation should repeat them

    def first(self, tokens: int, device: torch.device) -> torch.Tensor | None:
        """Return the routes of the first tokens."""
        return None if self.routes is None else torch.from_numpy(self.routes[:tokens]).to(device)


def _reference(loaded: LoadedModel, row: TokenRow) -> _Reference:
    with repeating(loaded) as made:
        logprobs = own_logprobs(loaded, row, loaded.model)
    return _Reference(logprobs, _routes(made))


def _routes(made: RoutedPass | None) -> Routes | None:
    return None if made is None else made.routes().cpu().numpy()


@dataclass(frozen=True, slots=True)
class _Pair:
    """Rows as training computes them."""

    found: torch.Tensor  # log-probabilities [tokens], in the order of the batch
    order: list[int]  # of the rows
    made: RoutedPass | None  # what routers chose, where they repeat the reference


def _pair(loaded: LoadedModel, rows: list[TokenRow], reference: list[_Reference], part: slice) -> _Pair:
    chosen = rows[part]
    batch = pack(chosen, loaded.device) if loaded.packed else pad(chosen, loaded.device, loaded.pad_token_id)
    order = [part.start + index for index in batch.order]
    with repeating(loaded, routes_in(loaded, batch, [reference[number].routes for number in order])) as made:
        found, _ = Policy(loaded)(batch, 1.0, "none")
    return _Pair(found, order, made)


def _looks_ahead(loaded: LoadedModel, row: TokenRow, whole: _Reference) -> float:
    """Return the largest change, nats, of the log-probabilities of ``row``'s first tokens when later tokens are cut
    off."""
    first = replace(row, token_ids=row.token_ids[: SHORT - len(row.prompt_ids)])
    with repeating(loaded, whole.first(SHORT, loaded.device)):
        found = own_logprobs(loaded, first, loaded.model)
    return float((found - whole.logprobs[: len(first.token_ids)]).abs().nan_to_num(torch.inf).max())


def _precise_logprobs(loaded: LoadedModel, rows: list[TokenRow], reference: list[_Reference]) -> torch.Tensor | None:
    """``own_logprobs`` of all rows with float32 weights; None where that cannot be computed."""
    found = []
    for row, own in zip(rows, reference, strict=True):
        with repeating(loaded, own.first(len(row.prompt_ids) + len(row.token_ids), loaded.device)):
            logprobs = own_logprobs(loaded, row, partial(float32_outputs, loaded))
        if logprobs is None:
            return None
        found.append(logprobs)
    return torch.cat(found)
