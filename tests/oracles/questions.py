"""What every peer is asked: random batches, as plain lists that JSON can hold. Needs numpy only."""

from __future__ import annotations

import numpy as np

ROWS, WIDTH, GROUP = 8, 6, 4


def make_batch(seed: int, *, empty_row: bool) -> dict:
    """One optimiser step: two groups of four padded responses, with all that any question needs."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, WIDTH + 1, ROWS)
    if empty_row:
        lengths[rng.integers(ROWS)] = 0
    logprobs = -rng.exponential(1.0, (ROWS, WIDTH))
    batch = {
        "loss_matrix": rng.normal(size=(ROWS, WIDTH)),
        "logprobs": logprobs,
        "old_logprobs": logprobs + rng.normal(scale=0.5, size=(ROWS, WIDTH)),
        "sampler_logprobs": logprobs + rng.normal(scale=0.6, size=(ROWS, WIDTH)),
        "advantages": rng.normal(size=ROWS),
        "rewards": rng.normal(size=ROWS).round(2),
    }
    rounded = {name: np.round(values, 6).tolist() for name, values in batch.items()}
    mask = (np.arange(WIDTH) < lengths[:, None]).astype(int)
    return rounded | {"mask": mask.tolist(), "groups": [row // GROUP for row in range(ROWS)]}


BATCHES = {
    "a": make_batch(1, empty_row=False),
    "b": make_batch(2, empty_row=False),
    "empty_row": make_batch(3, empty_row=True),
}

CLIPS = [
    {"kind": "clip", "low": 0.2, "high": 0.28, "dual": 10.0, "ratio": "token", "reduction": "token_mean"},
    {"kind": "clip", "low": 0.2, "high": 0.28, "dual": 1.5, "ratio": "token", "reduction": "token_mean"},
    {"kind": "clip", "low": 0.1, "high": 0.1, "dual": 3.0, "ratio": "token", "reduction": "sequence_mean"},
]
GSPO = {"kind": "clip", "low": 0.05, "high": 0.08, "dual": None, "ratio": "sequence", "reduction": "sequence_mean"}
MICRO_BATCHES = [[0, 1], [2, 3], [4, 5], [6, 7]]
UNEVEN = [[0, 1, 2], [3, 4, 5, 6, 7]]
OVERLONG = [{"max_length": 20480, "cache_length": 4096}, {"max_length": 100, "cache_length": 20}]
OVERLONG_LENGTHS = [0, 1, 50, 79, 80, 81, 90, 99, 100, 101, 150, 16383, 16384, 16385, 18432, 20479, 20480, 20481, 22528]
REWARD_GROUPS = [[1, 1, 1, 1], [1, -1, 1, 1], [0.1, 0.1, 0.1, 0.1], [0.5, 0.5000005, 0.5, 0.5], [0.5, 0.51, 0.5, 0.5]]
