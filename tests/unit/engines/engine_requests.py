"""Requests for the engines of tiny random models."""

from __future__ import annotations

from typing import Any

import numpy as np

from dapo.types.batch import Response, SampleRequest, SamplingParams

VOCABULARY = 40


def prompt(group: int, length: int | None = None) -> np.ndarray:
    random = np.random.default_rng(group)
    return random.integers(2, VOCABULARY, length or int(random.integers(1, 12)))


def request(
    group: int, index: int = 0, *, seed: int | None = None, prefix: Response | None = None, prompt_ids: Any = None,
    **sampling: Any,
) -> SampleRequest:  # fmt: skip
    params = SamplingParams(**({"max_tokens": 12, "stop_token_ids": (1,)} | sampling))
    tokens = prompt(group) if prompt_ids is None else np.asarray(prompt_ids)
    return SampleRequest((group, index), tokens, params, 1000 * group + index if seed is None else seed, prefix)
