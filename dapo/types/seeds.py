"""Random numbers are functions of names, never drawn from a global generator. Three questions, answered here alone:

- what is the seed of this response, prompt or coin? ``derive_seed``, from integers that name it;
- which number is behind token t of a response? ``uniforms``, from its seed and t, in our own engines;
- where does an engine start that draws with a generator of its own? ``generator_seed``, from the seed and what is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dapo.types.batch import SampleRequest

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15

# Domains keep uses apart: the same (group, sample) numbers give unrelated seeds in training and evaluation.
TRAINING, EVALUATION, SYNC_CHECK, SELECTION, COPIES, ADAPTER, MARKS, ENVIRONMENT, EPOCHS, TURNS = range(1, 11)

Words = TypeVar("Words", int, NDArray[np.uint64])


def _mix(words: Words) -> Words:
    """Apply the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").

    A bijection of 64-bit words in which every input bit reaches every output bit.
    """
    x: Any = words
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)  # type: ignore[no-any-return]


def derive_seed(*parts: int) -> int:
    """Return a 63-bit seed from integers, e.g. ``derive_seed(run_seed, TRAINING, group, sample)``."""
    return _absorb(_GAMMA, parts) >> 1


def derive_seeds(*parts: int, count: int) -> list[int]:
    """``[derive_seed(*parts, i) for i in range(count)]``, mixing ``parts`` only once."""
    state = _absorb(_GAMMA, parts)
    return [_absorb(state, (index,)) >> 1 for index in range(count)]


def _absorb(state: int, parts: Iterable[int]) -> int:
    for part in parts:
        state = _mix((state + _GAMMA + part) & _MASK)
    return state


def stream_keys(seeds: Sequence[int]) -> NDArray[np.uint64]:
    """Return the starting state of each request's stream [requests]; mixing keeps neighbouring seeds' streams apart."""
    return _mix(np.array([seed & _MASK for seed in seeds], dtype=np.uint64) + np.uint64(_GAMMA))


def uniforms(keys: NDArray[np.uint64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the uniform number in (0, 1) of response token ``index`` of each stream: 53 bits of a counter-based hash.

    Args:
        keys: [rows] from :func:`stream_keys`.
        index: [rows] index t of the token in its whole response, prefix included.
    """
    words = _mix(keys + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA))
    # The half keeps the number off 0 and 1, so that u * total lies strictly inside the distribution.
    return np.asarray(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def generator_seed(request: SampleRequest) -> int:
    """Return a seed (63 bits) for the tokens that are still to be made, from the request's seed and the prefix's
    length.

    A generator that starts from the request's own seed again behind a prefix would draw the numbers that made the
    prefix: the continuation would depend on it in a way that no model asked for.
    """
    made = 0 if request.prefix is None else len(request.prefix)
    digest = hashlib.blake2b(f"{request.seed}/{made}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
