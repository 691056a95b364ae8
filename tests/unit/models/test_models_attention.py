"""Packed attention: kernels against attention written out, and the choice of buckets."""

from __future__ import annotations

import itertools

import pytest
import torch
from each import each

from dapo.models import packed_attention
from dapo.models.packed_attention import CALL_COST, PLAIN_KEYS, PackedContext, Segment, plan_buckets

# Two prompts with responses, one prompt without any, and a response that attends to nothing but its prompt and itself.
SEGMENTS = [
    Segment(0, 3),
    Segment(3, 8, (0, 3)),
    Segment(8, 9, (0, 3)),
    Segment(9, 13),
    Segment(13, 15),
    Segment(15, 22, (13, 15)),
]
TOKENS = 22


def written_out(q, k, v, scaling, window=None, softcap=None):
    """Attention with a mask made token by token from what a segment means."""
    visible = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    for segment in SEGMENTS:
        sequence = [*range(*(segment.prompt or (0, 0))), *range(segment.start, segment.stop)]
        for token in range(segment.start, segment.stop):
            seen = sequence[: sequence.index(token) + 1]
            visible[token, seen if window is None else seen[-window:]] = True
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = q @ k.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return (scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v).transpose(1, 2)


@each("options", [{}, {"sliding_window": 4}, {"softcap": 3.0}, {"sliding_window": 3, "softcap": 2.0}])
@each("kv_heads", [4, 2, 1])
def test_output_and_gradients_equal_attention_written_out(kv_heads, options):
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(1, heads, TOKENS, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    ]
    expected = written_out(*inputs, 0.5, options.get("sliding_window"), options.get("softcap"))
    factor = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    expected_gradients = torch.autograd.grad((expected * factor).sum(), inputs)
    context = PackedContext(SEGMENTS, torch.device("cpu"))
    found = context.attend(torch.nn.Identity(), *inputs, scaling=0.5, **options)
    found_gradients = torch.autograd.grad((found * factor).sum(), inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for gradient, right in zip(found_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, right, rtol=0, atol=1e-12)


def gradients(inputs, factor, dtype, segments, times=1.0):
    q, k, v = (x.to(dtype).requires_grad_() for x in inputs)
    found = PackedContext(segments, torch.device("cpu")).attend(torch.nn.Identity(), q * times, k, v, scaling=0.5)
    return [x.double() for x in torch.autograd.grad((found * factor.to(dtype)).sum(), (q, k, v))]


def error(found, right):
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize("times", [1.0, 12.0])  # scores of some tens: rounded to bfloat16 they would be off by 0.1
@pytest.mark.parametrize("prompt", [3, PLAIN_KEYS, PLAIN_KEYS + 1])
def test_gradients_in_bfloat16_are_as_near_as_the_kernels(prompt, times, monkeypatch):
    """Both sides of the limit, a prompt alone and responses of unequal lengths, which are padded."""
    ends = [prompt, prompt + 5, prompt + 6, prompt + 40]
    segments = [Segment(0, prompt), *(Segment(a, b, (0, prompt)) for a, b in itertools.pairwise(ends))]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, ends[-1], 16, generator=generator).bfloat16() for heads in (4, 2, 2)]
    factor = torch.randn(1, ends[-1], 4, 16, generator=generator).bfloat16()
    right = gradients(inputs, factor, torch.float64, segments, times)
    chosen = gradients(inputs, factor, torch.bfloat16, segments, times)
    monkeypatch.setattr(packed_attention, "PLAIN_KEYS", 0)
    kernel = gradients(inputs, factor, torch.bfloat16, segments, times)
    assert error(chosen, right) < 1.5 * error(kernel, right) < 0.05
    if prompt <= PLAIN_KEYS:
        assert error(chosen, kernel) > 0


def test_large_scores_stay_finite():
    q, k, v = (torch.full((1, 2, TOKENS, 8), 30.0, requires_grad=True) for _ in range(3))
    output = PackedContext(SEGMENTS, torch.device("cpu")).attend(torch.nn.Identity(), q, k, v, scaling=1.0)
    gradients = torch.autograd.grad(output.sum(), (q, k, v))
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_matmul_precision_is_as_before():
    q, k, v = (torch.ones(1, 2, TOKENS, 8, requires_grad=True) for _ in range(3))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        PackedContext(SEGMENTS, torch.device("cpu")).attend(torch.nn.Identity(), q, k, v, scaling=1.0).sum().backward()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_responses_of_a_prompt_must_be_neighbours():
    segments = [Segment(0, 3), Segment(3, 5, (0, 3)), Segment(5, 7), Segment(7, 9, (0, 3))]
    with pytest.raises(ValueError, match="not contiguous"):
        _ = PackedContext(segments, torch.device("cpu")).prompts


def cost(lengths, batches):
    return sum(CALL_COST + len(batch) * max(lengths[i] for i in batch) ** 2 for batch in batches)


@pytest.mark.parametrize(
    "lengths",
    [[5], [4, 4, 4], [1, 2, 300], [100, 3, 90, 3, 50, 200], [30, 60, 90, 120, 45, 20, 10]],
)
def test_buckets_cost_least_of_all_partitions_into_runs(lengths):
    batches = plan_buckets(lengths)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    cheapest = float("inf")
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(order)]
        cheapest = min(cheapest, cost(lengths, [order[a:b] for a, b in itertools.pairwise(edges)]))
    assert cost(lengths, batches) == cheapest


def test_segments_without_tokens_are_in_no_bucket():
    assert plan_buckets([0, 3, 0]) == [[1]]
    assert plan_buckets([0]) == []
