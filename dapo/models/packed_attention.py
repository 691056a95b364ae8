"""Attention over packed rows in which the responses of a group share one prompt.

A packed row is a list of *segments*: each prompt once, followed by its responses. A token sees the earlier tokens of
its own segment, and a response's token sees its whole prompt as well. Nothing is padded in memory that lasts.

On the CPU the two parts are computed apart and merged by their log-sum-exp, as ring attention does between devices:

* *own*: causal attention inside every segment. Segments of similar length are run as one right-padded batch; right
  padding lies behind every real query, so plain causal attention needs no mask.
* *prompt*: all responses of a group against their prompt. Both are contiguous slices of the packed row and every query
  sees every key, so this is one unmasked call per group without any copy.

The flash kernel's backward pass needs only the merged output and log-sum-exp, so each part's gradients come out exact.
In bfloat16 the kernel's backward pass is slow on few keys, and plain products take its place there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dapo.models.copies import Copies
from dapo.models.precision import exact_matmuls
from dapo.types.batch import IntArray

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

# Cost of one kernel call in units of attention scores (queries x keys). Measured at 4 heads of 16: 0.1 ms, 45 ns.
CALL_COST = 2000

# Backward in bfloat16: plain products up to so many keys, and scores in all, which they keep in memory (some 14 bytes
# each). With 9 heads of 64 on an EPYC with AVX512-BF16 they take 6 % of the kernel's time at 12 keys, 29 % at 62, 53 to
# 87 % at 128; at 192 both take as long, and at 1,024 the kernel half as long.
PLAIN_KEYS, PLAIN_SCORES = 128, 2**23


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive packed tokens that attend causally among themselves, and to ``prompt`` if they are a response's."""

    start: int
    stop: int
    prompt: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Bucket:
    """One right-padded batch: ``count`` segments of at most ``length`` tokens, from padded token ``offset`` on."""

    offset: int
    count: int
    length: int

    def view(self, padded: Tensor) -> Tensor:
        """Reshape [padded tokens, heads, ...] to [count, heads, length, ...]."""
        stop = self.offset + self.count * self.length
        return padded[self.offset : stop].view(self.count, self.length, *padded.shape[1:]).transpose(1, 2)


def plan_buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Partition segments into batches of similar length, so that calls + padding cost least.

    A batch of n segments costs ``CALL_COST + n * (longest in it) ** 2``. With the segments sorted by length the best
    partition is one of consecutive runs, found by dynamic programming over the distinct lengths.

    Returns:
        For each batch the indices into ``lengths``, shortest first. Segments without tokens are in none.
    """
    order = sorted((index for index, length in enumerate(lengths) if length > 0), key=lambda index: lengths[index])
    if not order:
        return []
    values, counts = np.unique([lengths[index] for index in order], return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])  # below[j]: segments shorter than values[j]
    best = np.zeros(len(values) + 1)
    cut = np.zeros(len(values) + 1, dtype=np.int64)
    for stop in range(1, len(values) + 1):
        costs = best[:stop] + CALL_COST + (below[stop] - below[:stop]) * float(values[stop - 1]) ** 2
        cut[stop] = int(costs.argmin())
        best[stop] = costs[cut[stop]]
    batches: list[list[int]] = []
    stop = len(values)
    while stop > 0:
        batches.append(order[below[cut[stop]] : below[stop]])
        stop = int(cut[stop])
    return batches[::-1]


class PackedContext:
    """The attention of one packed row; passed to the model as ``attention_context``.

    Every index is computed once per row and used by all layers.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.segments = [segment for segment in segments if len(segment) > 0]
        self.device = device

    @cached_property
    def prompts(self) -> list[tuple[slice, slice]]:
        """(prompt tokens, tokens of all its responses) for each prompt that has any; both contiguous."""
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for segment in self.segments:
            if segment.prompt is not None:
                start, stop = spans.get(segment.prompt, (segment.start, segment.start))
                if stop != segment.start:
                    raise ValueError(
                        f"responses of the prompt at {segment.prompt} are not contiguous at {segment.start}"
                    )
                spans[segment.prompt] = (start, segment.stop)
        return [(slice(*prompt), slice(*span)) for prompt, span in spans.items()]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest causal sequence, its prompt included."""
        return max(
            len(segment) + (segment.prompt[1] - segment.prompt[0] if segment.prompt else 0) for segment in self.segments
        )

    @cached_property
    def _layout(self) -> tuple[list[Bucket], Tensor, int]:
        """Buckets, the place of every packed token in their padded batches, and the number of padded tokens."""
        buckets: list[Bucket] = []
        place: IntArray = np.empty(sum(len(segment) for segment in self.segments), dtype=np.int64)
        offset = 0
        for batch in plan_buckets([len(segment) for segment in self.segments]):
            length = len(self.segments[batch[-1]])
            buckets.append(Bucket(offset, len(batch), length))
            for index in batch:
                segment = self.segments[index]
                place[segment.start : segment.stop] = np.arange(offset, offset + len(segment))
                offset += length
        return buckets, torch.from_numpy(place).to(self.device), offset

    @cached_property
    def _seen(self) -> tuple[Copies, list[int]]:
        """The keys of every segment, one after the other (its prompt, then its own), and how many each has."""
        keys, lengths = [], []
        for segment in self.segments:
            if segment.prompt is not None:
                keys.append(np.arange(*segment.prompt))
            keys.append(np.arange(segment.start, segment.stop))
            lengths.append(len(segment) + (segment.prompt[1] - segment.prompt[0] if segment.prompt else 0))
        return Copies(np.concatenate(keys), self.device), lengths

    @cached_property
    def _varlen(self) -> tuple[Tensor, Tensor, int, int]:
        """For variable-length kernels: cumulative query and key lengths, longest query and key length."""
        queries, lengths = [len(segment) for segment in self.segments], self._seen[1]
        cumulative = [
            torch.from_numpy(np.cumsum([0, *counts], dtype=np.int32)).to(self.device) for counts in (queries, lengths)
        ]
        return cumulative[0], cumulative[1], max(queries), max(lengths)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, **options: Any
    ) -> Tensor:
        """query [1, heads, T, d], key and value [1, kv heads, T, d] -> output [1, T, heads, d].

        Raises:
            NotImplementedError: The model asks for a kind of attention that packed rows do not know.
        """
        if options.get("s_aux") is not None or not getattr(module, "is_causal", True):
            raise NotImplementedError("attention sinks and bidirectional layers")
        window, softcap = options.get("sliding_window"), options.get("softcap")
        if window is not None and window >= self.longest:
            window = None
        # squeeze, not [0]: the gradient of an index is a zeroed copy of the whole
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        if softcap is not None or q.shape[-1] != v.shape[-1]:
            output = self._by_segment(q, k, v, scaling, window, softcap)
        elif q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
            output = self._by_varlen_kernel(q, k, v, scaling, window)
        elif q.device.type == "cpu" and window is None:
            output = _SharedPromptAttention.apply(q, k, v, self, scaling)  # type: ignore[no-untyped-call]
        else:
            output = self._by_segment(q, k, v, scaling, window, None)
        return output.unsqueeze(0)

    def _by_varlen_kernel(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        """CUDA: torch's variable-length kernel; queries of a segment end where its keys end."""
        from torch.nn.attention.varlen import varlen_attn

        queries, keys, longest_query, longest_key = self._varlen
        copies = self._seen[0]
        # torch 2.11 has no such option: its kernel takes fewer key heads than query heads as they come.
        grouped: dict[str, Any] = (
            {"enable_gqa": q.shape[1] != k.shape[1]} if "enable_gqa" in _parameters(varlen_attn) else {}
        )
        output = varlen_attn(
            q.contiguous(),
            copies.take(k),
            copies.take(v),
            queries,
            keys,
            longest_query,
            longest_key,
            scale=scaling,
            window_size=(-1 if window is None else window - 1, 0),
            **grouped,
        )
        return output if isinstance(output, Tensor) else output[0]

    def _by_segment(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """One segment at a time, with everything a model may ask for: windows, soft caps, unequal head sizes."""
        outputs = []
        for segment, keys, values in zip(self.segments, self._looked_at(k), self._looked_at(v), strict=True):
            own = slice(segment.start, segment.stop)
            behind = len(keys) - len(segment)
            distance = torch.arange(behind, len(keys), device=q.device)[:, None] - torch.arange(
                len(keys), device=q.device
            )
            visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            outputs.append(_dense(q[own], keys, values, visible, scaling, softcap))
        return torch.cat(outputs)

    def _looked_at(self, x: Tensor) -> Sequence[Tensor]:
        """Return the keys or values ``x`` [T, ...] that each segment attends to: its prompt, then its own."""
        if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
            own = [x[segment.start : segment.stop] for segment in self.segments]
            return [
                part if segment.prompt is None else torch.cat([x[slice(*segment.prompt)], part])
                for segment, part in zip(self.segments, own, strict=True)
            ]
        copies, lengths = self._seen
        return torch.split(copies.take(x), lengths)


@cache
def _parameters(function: Any) -> frozenset[str]:
    """Names of a function's parameters."""
    return frozenset(signature(function).parameters)


def _dense(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scaling: float, softcap: float | None) -> Tensor:
    """q [queries, heads, d], k and v [keys, kv heads, d], visible [queries, keys] -> [queries, heads, d of v]."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    if softcap is not None or q.device.type != "cpu":
        # CUDA's kernel that keeps no scores wants as many key heads as query heads; asked to group them itself, torch
        # takes plain products there, which keep all scores of a float32 model for the backward pass.
        k, v = _widen(k, q.shape[1]), _widen(v, q.shape[1])
    if softcap is None:
        mixed = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
    else:
        scores = torch.tanh(q @ k.transpose(2, 3) * scaling / softcap) * softcap
        scores = scores.masked_fill(~visible, float("-inf"))
        mixed = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(v.dtype) @ v
    return mixed[0].transpose(0, 1)


class _SharedPromptAttention(torch.autograd.Function):
    """The two-part attention of the module's text: q [T, heads, d], k and v [T, kv heads, d] -> [T, heads, d]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, context: PackedContext, scaling: float) -> Tensor:
        with exact_matmuls():  # `medium` makes tiny products up to ten times slower in here
            wide_k, wide_v = _widen(k, q.shape[1]), _widen(v, q.shape[1])
            output, lse = _own_forward(q, wide_k, wide_v, context, scaling)
            if context.prompts:
                output, lse = _merge_prompts(q, wide_k, wide_v, output, lse, context, scaling)
        ctx.save_for_backward(q, k, v, output, lse)
        ctx.context, ctx.scaling = context, scaling
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, output, lse = ctx.saved_tensors
        context, scaling = ctx.context, ctx.scaling
        kv_heads = k.shape[1]
        k, v = _widen(k, q.shape[1]), _widen(v, q.shape[1])
        with exact_matmuls():  # `medium` makes tiny products up to ten times slower in here
            grad_q, grad_k, grad_v = _own_backward(grad, q, k, v, output, lse, context, scaling)
            for prompt, responses in context.prompts:
                parts = _backward(
                    _rows(grad[responses]),
                    _rows(q[responses]),
                    _rows(k[prompt]),
                    _rows(v[prompt]),
                    _rows(output[responses]),
                    lse[responses].transpose(0, 1).unsqueeze(0),
                    causal=False,
                    scaling=scaling,
                )
                for total, part, span in zip((grad_q, grad_k, grad_v), parts, (responses, prompt, prompt), strict=True):
                    total[span] += part[0].transpose(0, 1)
        return grad_q, _narrow(grad_k, kv_heads), _narrow(grad_v, kv_heads), None, None


def _rows(x: Tensor) -> Tensor:
    """[T, heads, d] -> [1, heads, T, d], the kernel's layout; a view."""
    return x.transpose(0, 1).unsqueeze(0)


def _widen(x: Tensor, heads: int) -> Tensor:
    """Grouped-query attention: repeat each key or value head for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _narrow(x: Tensor, kv_heads: int) -> Tensor:
    """Return the gradient of ``_widen``."""
    return x if x.shape[1] == kv_heads else x.view(len(x), kv_heads, -1, x.shape[-1]).sum(2)


def _pad(x: Tensor, place: Tensor, size: int) -> Tensor:
    """Packed [T, ...] -> padded [size, ...]; padding is zero, so it adds nothing to any gradient."""
    return x.new_zeros((size, *x.shape[1:])).index_copy_(0, place, x)


def _own_forward(q: Tensor, k: Tensor, v: Tensor, context: PackedContext, scaling: float) -> tuple[Tensor, Tensor]:
    """Causal attention inside segments: output [T, heads, d] and log-sum-exp [T, heads]."""
    buckets, place, size = context._layout
    padded = [_pad(x, place, size) for x in (q, k, v)]
    outputs, lses = [], []
    for bucket in buckets:
        output, lse = _flash(*(bucket.view(x) for x in padded), 0.0, True, scale=scaling)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
        lses.append(lse.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, place), torch.cat(lses).index_select(0, place)


def _merge_prompts(
    q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, context: PackedContext, scaling: float
) -> tuple[Tensor, Tensor]:
    """Add what responses see of their prompts: softmax over both parts = mean of the parts weighted by exp(lse)."""
    prompt_output, prompt_lse = torch.zeros_like(output), torch.full_like(lse, float("-inf"))
    for prompt, responses in context.prompts:
        part, part_lse = _flash(_rows(q[responses]), _rows(k[prompt]), _rows(v[prompt]), 0.0, False, scale=scaling)
        prompt_output[responses] = part[0].transpose(0, 1)
        prompt_lse[responses] = part_lse[0].transpose(0, 1)
    share = torch.sigmoid(prompt_lse - lse).unsqueeze(-1).to(output.dtype)
    return torch.lerp(output, prompt_output, share), torch.logaddexp(lse, prompt_lse)


def _own_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, context: PackedContext, scaling: float
) -> list[Tensor]:
    """Gradients of the own part for q, k and v, each [T, heads, d]; ``output`` and ``lse`` are the merged ones."""
    buckets, place, size = context._layout
    padded = [_pad(x, place, size) for x in (grad, q, k, v, output, lse)]
    parts: list[list[Tensor]] = [[], [], []]
    for bucket in buckets:
        gradients = _backward(*(bucket.view(x) for x in padded), causal=True, scaling=scaling)
        for found, gradient in zip(parts, gradients, strict=True):
            found.append(gradient.transpose(1, 2).flatten(0, 1))
    return [torch.cat(found).index_select(0, place) for found in parts]


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, *, causal: bool, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k and v of one kernel call, all [batch, heads, T, d]; lse [batch, heads, T]."""
    keys, scores = k.shape[2], q.shape[:3].numel() * k.shape[2]
    if q.dtype == torch.bfloat16 and keys <= PLAIN_KEYS and scores <= PLAIN_SCORES:
        return _plain_backward(grad, q, k, v, output, lse, causal=causal, scaling=scaling)
    found: tuple[Tensor, Tensor, Tensor] = _flash_backward(grad, q, k, v, output, lse, 0.0, causal, scale=scaling)
    return found


def _plain_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, *, causal: bool, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``_backward``, with all scores in memory (FlashAttention, arXiv 2205.14135, appendix B.2).

    Scores are computed in float32: rounded to bfloat16 before their exponential, large ones would be off by percents.
    """
    share = torch.matmul(q.float(), k.float().transpose(2, 3)).mul_(scaling).sub_(lse.unsqueeze(-1)).exp_()
    if causal:
        share.tril_()
    grad_v = torch.matmul(share.to(q.dtype).transpose(2, 3), grad)
    mean = (grad.float() * output.float()).sum(-1, keepdim=True)
    of_scores = torch.matmul(grad, v.transpose(2, 3)).float().sub_(mean).mul_(share).mul_(scaling).to(q.dtype)
    return torch.matmul(of_scores, k), torch.matmul(of_scores.transpose(2, 3), q), grad_v
