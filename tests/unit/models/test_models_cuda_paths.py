"""What only a CUDA device computes, emulated: shared prompts, the kernel's options by version, the chunked head.

The kernel of torch is replaced by attention written out, with the two signatures that supported versions have.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from each import each
from torch._subclasses import FakeTensorMode
from torch.nn.attention import varlen

from dapo.models import policy
from dapo.models.copies import Copies
from dapo.models.load import load_model, notes_on_cuda
from dapo.models.packed_attention import PackedContext, Segment
from dapo.models.packing import pack
from dapo.models.policy import Policy
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import TokenRow

SEGMENTS = [Segment(0, 3), Segment(3, 8, (0, 3)), Segment(8, 9, (0, 3)), Segment(9, 13), Segment(13, 20, (9, 13))]
TOKENS = 20


def _attend(q, k, v, cu_seq_q, cu_seq_k, scale, window_size):
    """Sequence by sequence; queries end where keys end, and a query sees ``window_size[0]`` keys before its own."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    outputs = []
    for n in range(len(cu_seq_q) - 1):
        queries, keys, values = (x[c[n] : c[n + 1]] for x, c in ((q, cu_seq_q), (k, cu_seq_k), (v, cu_seq_k)))
        keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (keys, values))
        at = torch.arange(len(keys) - len(queries), len(keys))[:, None]
        columns = torch.arange(len(keys))
        visible = columns <= at
        if window_size[0] >= 0:
            visible &= columns >= at - window_size[0]
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * scale
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def without_grouping(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    """As in torch 2.11."""
    return _attend(query, key, value, cu_seq_q, cu_seq_k, scale, window_size)


def with_grouping(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """As in torch 2.13, which refuses fewer key heads unless told."""
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError("Expect query and key/value to have the same number of heads")
    return _attend(query, key, value, cu_seq_q, cu_seq_k, scale, window_size)


@pytest.mark.parametrize("kernel", [without_grouping, with_grouping])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 4, 1])
def test_the_variable_length_kernel_gives_what_segments_mean(monkeypatch, kernel, kv_heads, window):
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(TOKENS, heads, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    ]
    context = PackedContext(SEGMENTS, torch.device("cpu"))
    expected = context._by_segment(*inputs, 0.5, window, None)  # held against attention written out elsewhere
    factor = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    right = torch.autograd.grad((expected * factor).sum(), inputs)
    found = context._by_varlen_kernel(*inputs, 0.5, window)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for gradient, one in zip(torch.autograd.grad((found * factor).sum(), inputs), right, strict=True):
        torch.testing.assert_close(gradient, one, rtol=0, atol=1e-12)


def test_the_emulated_signatures_are_torchs():
    """Which of the two this torch has; the option decides whether grouped heads are asked for."""
    from inspect import signature

    present = list(signature(varlen.varlen_attn).parameters)
    assert present in (list(signature(without_grouping).parameters), list(signature(with_grouping).parameters))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_float32_rows_on_a_device_with_a_kernel_get_as_many_key_heads_as_query_heads(monkeypatch, softcap):
    asked = []

    def kernel(q, k, v, **options):
        asked.append((q.shape[1], k.shape[1], options.get("enable_gqa")))
        return torch.empty_like(q)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    q, k = (torch.empty(1, heads, TOKENS, 8, device="meta") for heads in (4, 2))
    out = PackedContext(SEGMENTS, torch.device("meta")).attend(
        torch.nn.Identity(), q, k, k, scaling=1.0, softcap=softcap
    )
    assert out.shape == (1, TOKENS, 4, 8)
    assert asked == ([] if softcap else [(4, 4, False)] * len(SEGMENTS))


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def test_copies_gradients_add_up_in_float32_and_in_order():
    """Sixteen responses of one prompt: rounded once, 0.17 %; added one by one in bfloat16, more than twice that."""
    random, prompt, group = torch.Generator().manual_seed(0), 24, 16
    index = np.concatenate([*[np.arange(prompt)] * group, np.arange(prompt, 3 * prompt), np.arange(prompt)])
    copies = Copies(index, torch.device("cpu"))
    x = torch.randn(4 * prompt, 2, 8, generator=random).bfloat16().requires_grad_()
    taken = copies.take(x)
    assert torch.equal(taken, x[torch.from_numpy(index)])
    gradient = torch.randn(taken.shape, generator=random).bfloat16()
    right = torch.zeros(x.shape, dtype=torch.float64).index_add_(0, copies.index, gradient.double())
    (found,) = torch.autograd.grad(taken, x, gradient)
    one_by_one = torch.zeros_like(x[:prompt])  # as CUDA's threads add
    for row, part in zip(index, gradient, strict=True):
        if row < prompt:
            one_by_one[row] += part
    assert torch.equal(found[3 * prompt :], torch.zeros_like(found[3 * prompt :]))  # rows that nobody took
    assert torch.equal(found, right.to(torch.bfloat16))  # one rounding, so the nearest there is
    assert relative(one_by_one, right[:prompt]) > 2 * relative(found[:prompt], right[:prompt])


def test_copies_of_float32_rows_on_a_cpu_are_torchs_own():
    index = np.array([2, 0, 2, 2, 1])
    copies = Copies(index, torch.device("cpu"))
    x = torch.randn(4, 3, requires_grad=True)
    assert copies.take(x).grad_fn.name() == "IndexSelectBackward0"
    gradient = torch.randn(5, 3, dtype=torch.float64)
    expected = torch.zeros(4, 3, dtype=torch.float64).index_add_(0, torch.from_numpy(index), gradient)
    torch.testing.assert_close(copies.add_up(gradient, 4), expected, rtol=0, atol=1e-15)


def _rows(group: int, length: int) -> list[TokenRow]:
    random = np.random.default_rng(0)
    prompt = random.integers(3, 78, 5)
    return [TokenRow(0, prompt, random.integers(3, 78, length)) for _ in range(group)]


def _head_gradient(loaded, rows) -> torch.Tensor:
    weight = loaded.model.get_output_embeddings().weight
    logprobs, _ = Policy(loaded)(pack(rows, loaded.device), 1.0, "none")
    (gradient,) = torch.autograd.grad(logprobs.sum(), weight)
    return gradient


@pytest.mark.parametrize("fp32_head", [False, True])
def test_chunks_of_the_head_add_up_in_float32(tmp_path, monkeypatch, fp32_head):
    """Of 64 chunks: the gradient of the head's weight is as near to float64 as that of one whole chunk."""
    folder, rows = make_tiny_model(tmp_path, tied=False), _rows(16, 16)
    loaded = load_model(folder, dtype=torch.bfloat16, attention_mode="packed", fp32_head=fp32_head)
    hidden = policy.hidden_states(loaded, pack(rows, loaded.device)).detach()
    monkeypatch.setattr(policy, "hidden_states", lambda *_: hidden)
    whole = _head_gradient(loaded, rows)
    exact_rows = pack(rows, loaded.device)
    right_weight = loaded.model.lm_head.weight.double().detach().requires_grad_()
    logits = hidden.flatten(0, 1).index_select(0, exact_rows.sources.index).double() @ right_weight.T
    if not fp32_head:  # what is rounded on the way is no matter of adding up
        logits = logits + (logits.bfloat16().double() - logits).detach()
    chosen = logits.log_softmax(-1).gather(-1, exact_rows.targets[:, None])
    (right,) = torch.autograd.grad(chosen.sum(), right_weight)
    monkeypatch.setattr(policy, "MAX_LOGITS", 4)
    monkeypatch.setattr(policy, "MIN_CHUNK", 4)
    chunked = _head_gradient(loaded, rows)
    assert 0 < relative(whole, right) < 3e-3
    assert relative(chunked, right) < 1.3 * relative(whole, right)


@pytest.mark.parametrize(("device", "chunks"), [("cpu", [300, 300, 300, 100]), ("cuda", [1000])])
def test_a_chunk_of_the_head_is_as_large_as_the_device_bears(tmp_path, monkeypatch, device, chunks):
    """Device and shapes alone, no memory and no card: what decides is where the hidden states lie."""
    loaded, seen = load_model(make_tiny_model(tmp_path, tied=False), dtype=torch.bfloat16), []
    words = loaded.model.get_output_embeddings().weight.shape[0]
    monkeypatch.setattr(policy, "MAX_LOGITS", 300 * words)
    monkeypatch.setattr(policy, "MAX_LOGITS_CUDA", 2400 * words)

    def logprobs(_, hidden, targets, *__):
        assert hidden.device.type == device
        seen.append(len(hidden))
        return targets.float(), targets.float()

    monkeypatch.setattr(policy, "_head_logprobs", logprobs)
    with FakeTensorMode(allow_non_fake_inputs=True):
        hidden = torch.empty(1000, loaded.model.config.hidden_size, device=device)
        found, _ = Policy(loaded).output(hidden, torch.zeros(1000, dtype=torch.long, device=device), 1.0, "value")
    assert seen == chunks
    assert (tuple(found.shape), found.device.type) == ((1000,), device)


def test_a_head_with_a_bias_keeps_it(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path, tied=False), dtype=torch.bfloat16, fp32_head=True)
    old = loaded.model.lm_head
    head = torch.nn.Linear(old.in_features, old.out_features, dtype=torch.bfloat16)
    loaded.model.set_output_embeddings(head)
    hidden = torch.randn(2, 3, old.in_features).bfloat16().requires_grad_()
    logits = loaded.head(hidden)
    expected = hidden.float() @ head.weight.float().T + head.bias.float()
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    factor = torch.randn_like(logits)
    found = torch.autograd.grad((logits * factor).sum(), [hidden, head.weight, head.bias])
    right = torch.autograd.grad((expected * factor).sum(), [hidden, head.weight, head.bias])
    for one, other in zip(found, right, strict=True):
        assert relative(one, other.double()) < 3e-3


@each(
    ("dtype", "packed", "config", "said"),
    [
        (torch.bfloat16, True, {}, None),
        (torch.bfloat16, True, {"sliding_window": 8, "v_head_dim": 64, "qk_head_dim": 64}, None),
        (torch.bfloat16, True, {"attn_logit_softcapping": 50.0}, "no soft cap of scores"),
        (torch.bfloat16, False, {"attn_logit_softcapping": 50.0}, None),  # padded: the model's own attention
        (torch.bfloat16, True, {"v_head_dim": 128, "qk_head_dim": 192}, "no values of another size than keys"),
        (torch.float32, True, {"attn_logit_softcapping": 50.0}, "float32 model has no variable-length"),
    ],
)
def test_what_the_kernel_does_not_compute_is_told(dtype, packed, config, said):
    own = SimpleNamespace(get_text_config=lambda: SimpleNamespace(**config))
    loaded = SimpleNamespace(device=torch.device("cuda"), dtype=dtype, packed=packed, model=SimpleNamespace(config=own))
    notes = notes_on_cuda(loaded)
    assert [said in note for note in notes] == ([] if said is None else [True])
    loaded.device = torch.device("cpu")
    assert notes_on_cuda(loaded) == []
