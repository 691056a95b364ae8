"""Checksums of tensors: worked by hand, and what they must tell apart."""

from __future__ import annotations

import pytest
import torch
from each import each

from dapo.models import checksum as module
from dapo.models.checksum import checksum, once_each, same_bits, together


def test_by_hand():
    assert checksum(torch.tensor([], dtype=torch.float32)) == 0
    assert checksum(torch.tensor([0.0, 0.0])) == 0
    assert checksum(torch.tensor([3, 5, 7], dtype=torch.int64)) == 3 * 1 + 5 * 3 + 7 * 5
    one = 0x3F800000  # the bits of 1.0 in float32
    assert checksum(torch.tensor([[1.0, 0.0], [0.0, 1.0]])) == one * (1 + 7)
    assert checksum(torch.tensor([1.0, 1.0]), torch.bfloat16) == 0x3F80 * (1 + 3)
    big = 2**62
    assert checksum(torch.tensor([big, big], dtype=torch.int64)) == 0  # 4 x 2^62 wraps around


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_chunks_layouts_and_rounding_do_not_matter(dtype, monkeypatch):
    x = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    whole = checksum(x, dtype)
    assert whole == checksum(x.to(dtype)) == checksum(x.t().contiguous().t(), dtype)
    for chunk, row in ((10, 4), (10, 512), (64, 8), (2**22, 7), (2**22, 231)):  # with rests and without
        monkeypatch.setattr(module, "_CHUNK_CPU", chunk)
        monkeypatch.setattr(module, "_ROW", row)
        monkeypatch.setattr(module, "_MANY", 2 * row)
        assert checksum(x, dtype) == whole
    assert -(2**63) <= whole < 2**63


@each("count", [1, 511, 512, 513, 2**15, 2**15 + 517])
@each("first", [0, 5])
def test_it_is_the_sum_of_bits_times_odd_numbers(count, first):
    """As the docstring says, with numbers that do not wrap."""
    x = torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(count))
    wanted = sum(bits * (2 * (first + i) + 1) for i, bits in enumerate(x.tolist()))
    before = x.clone()
    assert checksum(x, first=first) == (wanted + 2**63) % 2**64 - 2**63
    assert torch.equal(x, before)  # whole numbers are read where they are
    cut = count // 3
    parts = [checksum(x[:cut], first=first), checksum(x[cut:], first=first + cut)]
    assert together(parts) == checksum(x, first=first)


def test_names_of_one_tensor_are_read_once():
    tensors = {"embed": torch.ones(3), "norm": torch.ones(3)}
    tensors["head"] = tensors["embed"]
    read = []

    def make(name):
        read.append(name)
        return name.upper()

    assert once_each(tensors, lambda name: id(tensors[name]), make) == {
        "embed": "EMBED", "norm": "NORM", "head": "EMBED",
    }  # fmt: skip
    assert read == ["embed", "norm"]


def test_any_change_shows_unless_rounding_takes_it_away():
    x = torch.randn(40, generator=torch.Generator().manual_seed(0))
    sums = {checksum(x), checksum(x.flip(0)), checksum(x.roll(1))}
    for index in range(len(x)):
        changed = x.clone()
        changed[index] = torch.nextafter(changed[index], torch.tensor(9.0))
        sums.add(checksum(changed))
    assert len(sums) == 43
    near = x.to(torch.bfloat16).float()
    assert checksum(near * (1 + 1e-4), torch.bfloat16) == checksum(near, torch.bfloat16)
    assert checksum(near * (1 + 1e-2), torch.bfloat16) != checksum(near, torch.bfloat16)


def test_same_bits():
    nan = torch.tensor([1.0, float("nan")])
    assert same_bits(nan, nan.clone())
    assert same_bits(nan[:1].t(), nan[:1])
    assert not same_bits(nan, torch.ones(2))
    assert not same_bits(nan, nan[:1])
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sign_of_a_zero_is_no_difference(dtype):
    """A packed matrix is read by multiplying it, which makes 0.0 of -0.0."""
    assert checksum(torch.tensor([-0.0, 1.0], dtype=dtype)) == checksum(torch.tensor([0.0, 1.0], dtype=dtype))
    assert checksum(torch.tensor([-1.0], dtype=dtype)) != checksum(torch.tensor([1.0], dtype=dtype))
