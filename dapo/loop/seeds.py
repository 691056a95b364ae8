"""Random numbers are functions of names: a seed is derived from integers, never drawn from a global generator."""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_START = 0x9E3779B97F4A7C15

# Domains keep uses apart: the same (group, sample) numbers give unrelated seeds in training and evaluation.
TRAINING, EVALUATION, SYNC_CHECK, SELECTION, COPIES, ADAPTER = 1, 2, 3, 4, 5, 6


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers that avalanches."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def derive_seed(*parts: int) -> int:
    """A 63-bit seed from integers, e.g. ``derive_seed(run_seed, TRAINING, group, sample)``."""
    return _absorb(_START, parts) >> 1


def derive_seeds(*parts: int, count: int) -> list[int]:
    """``[derive_seed(*parts, i) for i in range(count)]``, mixing ``parts`` only once."""
    state = _absorb(_START, parts)
    return [_absorb(state, (index,)) >> 1 for index in range(count)]


def _absorb(state: int, parts: Iterable[int]) -> int:
    for part in parts:
        state = _mix((state + _START + part) & _MASK)
    return state
