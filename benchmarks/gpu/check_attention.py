"""Packed rows against every sequence on its own: values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.made import load_small, operators, relative_error
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.timing import peak_bytes, reset_peak
from dapo.models.packed_attention import PackedContext, Segment

# (name, query heads, key-value heads, head size, window)
CASES = (("all heads", 4, 4, 64, None), ("grouped heads", 14, 2, 64, None), ("heads of 128", 12, 2, 128, None),
         ("a window", 4, 2, 64, 24))  # fmt: skip
_ROUNDED = {torch.bfloat16: 0.012, torch.float32: 2e-5}  # relative error of outputs; bfloat16 keeps 8 bits
_MODULE: Any = SimpleNamespace(is_causal=True, layer_idx=0)


def packed_attention(room: Room) -> None:
    """Outputs and the gradients of queries, keys and values, against float64; and that the kernel is really taken."""
    prompt, lengths = room.sized((96, (64, 1, 200, 33, 128)), (20, (16, 1, 40, 7)))
    for dtype in (torch.bfloat16, torch.float32):
        if not room.on_card and dtype is torch.bfloat16:
            continue  # on a CPU a bfloat16 model takes another path, which the float32 case covers
        for name, heads, kv_heads, size, window in CASES:
            errors = _errors(room, dtype, heads, kv_heads, size, window, prompt, lengths)
            for what, error in errors.items():
                bound = _ROUNDED[dtype] * (1.0 if what == "output" else 1.5)
                room.expect(f"{_text(dtype)}, {name}: {what}, relative error", error, at_most=bound)
    _the_model_takes_it(room)


def _errors(
    room: Room, dtype: torch.dtype, heads: int, kv_heads: int, size: int, window: int | None, prompt: int,
    lengths: Sequence[int],
) -> dict[str, float]:  # fmt: skip
    segments = _segments(prompt, lengths, groups=2)
    q, k, v, weight = _tensors(room, dtype, segments[-1].stop, heads, kv_heads, size)
    context = PackedContext(segments, q.device)
    out = context.attend(
        _MODULE, *(x[None].transpose(1, 2) for x in (q, k, v)), scaling=size**-0.5, sliding_window=window
    )
    (out[0] * weight).sum().backward()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = _by_hand(*exact, segments, size**-0.5, window)
    (wanted * weight.double()).sum().backward()
    found = {"output": relative_error(out[0], wanted)}
    for name, got, right in zip(("queries", "keys", "values"), (q, k, v), exact, strict=True):
        found[f"gradient of {name}"] = relative_error(got.grad, right.grad)
    return found


def _segments(prompt: int, lengths: Sequence[int], groups: int) -> list[Segment]:
    segments, at = [], 0
    for _ in range(groups):
        span = (at, at + prompt)
        segments.append(Segment(*span))
        at += prompt
        for length in lengths:
            segments.append(Segment(at, at + length, span))
            at += length
    return segments


def _tensors(room: Room, dtype: torch.dtype, tokens: int, heads: int, kv_heads: int, size: int) -> list[Tensor]:
    generator = torch.Generator(room.device).manual_seed(0)
    made = []
    for count in (heads, kv_heads, kv_heads):
        made.append(
            torch.randn(tokens, count, size, device=room.device, generator=generator).to(dtype).requires_grad_()
        )
    made.append(torch.randn(tokens, heads, size, device=room.device, generator=generator).to(dtype))
    return made


def _by_hand(
    q: Tensor, k: Tensor, v: Tensor, segments: Sequence[Segment], scaling: float, window: int | None
) -> Tensor:
    """One segment at a time, every score written out. [tokens, heads, d]"""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    parts = []
    for segment in segments:
        keys = [*(range(*segment.prompt) if segment.prompt else ()), *range(segment.start, segment.stop)]
        behind = len(keys) - len(segment)
        at = torch.arange(behind, len(keys), device=q.device)[:, None] - torch.arange(len(keys), device=q.device)
        seen = at >= 0 if window is None else (at >= 0) & (at < window)
        scores = torch.einsum("qhd,khd->hqk", q[segment.start : segment.stop], k[keys]) * scaling
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, v[keys]))
    return torch.cat(parts)


def _the_model_takes_it(room: Room) -> None:
    """Loaded with ``attention: auto``, as users do, the model runs packed rows, on a card through the kernel."""
    from benchmarks.gpu.made import make_rows
    from dapo.models.packing import pack
    from dapo.models.policy import Policy

    for architecture, options in (("qwen2", {}), ("mistral", {"sliding_window": 24})):
        loaded = load_small(room, "bfloat16", architecture, attention_mode="auto", **options)
        room.expect_true(f"{architecture} in bfloat16 takes packed rows", loaded.packed, "; ".join(loaded.notes))
        batch = pack(make_rows(200, 2, 3, 12, 40), loaded.device)
        with torch.no_grad(), operators() as seen:
            Policy(loaded)(batch, 1.0, "none")
        kernels = sorted(name for name in seen if "varlen" in name or "attention" in name)
        room.note(f"{architecture}: attention operators", ", ".join(kernels) or "none")
        if room.on_card:
            said = ", ".join(kernels) or "no attention operator was called"
            fast = any("varlen" in name or "flash" in name for name in kernels)
            room.expect_true(f"{architecture}: through the variable-length kernel", fast, said)


def prompt_gradient(room: Room) -> None:
    """Sixteen responses add to the gradient of one prompt's keys and values: rounded once, or sixteen times?

    0.44 % is what sixteen roundings of bfloat16 cost, 0.16 % what one does.
    """
    dtype = torch.bfloat16 if room.on_card else torch.float32
    prompt, lengths = room.sized((128, (160,) * 16), (12, (10,) * 16))
    segments = _segments(prompt, lengths, groups=1)
    runs = []
    for _ in range(2):
        q, k, v, weight = _tensors(room, dtype, segments[-1].stop, 14, 2, 64)
        context = PackedContext(segments, q.device)
        out = context.attend(_MODULE, *(x[None].transpose(1, 2) for x in (q, k, v)), scaling=0.125)
        (out[0] * weight).sum().backward()
        runs.append((q, k, v, weight))
    q, k, v, weight = runs[0]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    (_by_hand(*exact, segments, 0.125, None) * weight.double()).sum().backward()
    own = slice(0, prompt)
    bound = 0.01 if dtype is torch.bfloat16 else 2e-5
    for name, got, right in (("keys", k, exact[1]), ("values", v, exact[2])):
        error = relative_error(got.grad[own], right.grad[own])
        room.expect(f"gradient of the prompt's {name}, relative error", error, at_most=bound)
    again = max(
        float((a.grad.float() - b.grad.float()).abs().max()) for a, b in zip(runs[0][:3], runs[1][:3], strict=True)
    )
    room.note("largest difference of a second run", again)


def float32_memory(room: Room) -> None:
    """Grouped heads in float32: keeping all scores of 16,384 tokens would take ten gigabytes and more a layer."""
    if not room.on_card:
        raise Skipped("a CPU does not count its tensors' bytes")
    prompt, lengths = room.sized((512, (1024,) * 7), (8, (12,) * 3))
    segments = _segments(prompt, lengths, groups=2)
    q, k, v, weight = _tensors(room, torch.float32, segments[-1].stop, 14, 2, 64)
    context = PackedContext(segments, q.device)
    reset_peak(room.device)
    before = torch.cuda.memory_allocated()
    out = context.attend(_MODULE, *(x[None].transpose(1, 2) for x in (q, k, v)), scaling=0.125)
    (out[0] * weight).sum().backward()
    tokens = segments[-1].stop
    inputs = 4 * tokens * (14 + 2 * 2) * 64
    peak = peak_bytes(room.device) - before
    room.note("peak bytes", peak, "B")
    room.expect("peak over the size of queries, keys and values", peak / inputs, at_most=30.0, at_least=1.0)


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
