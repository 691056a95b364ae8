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

KL_COEFFICIENT, ENTROPY_COEFFICIENT = 0.3, 0.02
SAPO = {"kind": "sapo", "positive": 1.0, "negative": 1.05, "reduction": "sequence_mean"}
# asked where the policy is the old one up to a constant: the covariance is then the same for both, and every candidate
# is taken, so that chance has no part in the answer
CLIP_COV = {"kind": "clip_cov", "low": 0.2, "high": 0.2, "share": 1.0, "above": 0.1, "below": 1.5, "shift": 0.0}
KL_COV = {"kind": "kl_cov", "share": 0.2, "coefficient": 0.7, "shift": 0.1}
GDPO = {
    "rewards": {"accuracy": [1, 0, 1, 1, 0, 0, 1, 0], "brief": [0.2, 0.9, 0.4, 0.1, 0.7, 0.7, 0.7, 0.7]},
    "weights": {"accuracy": 1.0, "brief": 0.5},
}
