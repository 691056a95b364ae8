"""Checksums of tensors: worked by hand, and what they must tell apart."""

from __future__ import annotations

import pytest
import torch

from dapo.models import checksum as module
from dapo.models.checksum import checksum, same_bits


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
    monkeypatch.setattr(module, "_CHUNK", 10)
    assert checksum(x, dtype) == whole
    assert -(2**63) <= whole < 2**63


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
