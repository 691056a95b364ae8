"""Words that a run prints, and the metric behind each: the lines are made from these tables, ``dapo explain`` too.

The order is that of the line or of the live view.
"""

from __future__ import annotations

STEP = {
    "accuracy": "reward/accuracy",
    "kept": "sampling/acceptance_rate",
    "entropy": "train/entropy",
    "length": "response/length_mean",
    "tok/s": "time/tokens_per_second",
    "unscored": "reward/unscored",
}
SUPERVISED_STEP = {
    "loss": "train/loss",
    "epoch": "sft/epoch",
    "gradient norm": "train/grad_norm",
    "tok/s": "time/trained_tokens_per_second",
}
EVALUATION = {
    "held-out": "validation/accuracy",
    "unscored": "validation/unscored",
    "greedy": "validation/greedy_accuracy",
    "length": "validation/length_mean",
    "truncated": "validation/truncated_share",
}
VIEW = {
    "training accuracy": "reward/accuracy",
    "groups kept": "sampling/acceptance_rate",
    "entropy": "train/entropy",
    "gradient norm": "train/grad_norm",
    "response length": "response/length_mean",
    "truncated": "response/truncated_share",
    "clipped high": "train/clip_high",
    "tokens/s": "time/tokens_per_second",
}
SUPERVISED_VIEW = {
    "loss": "train/loss",
    "held-out loss": "validation/loss",
    "epoch": "sft/epoch",
    "entropy": "train/entropy",
    "gradient norm": "train/grad_norm",
    "tokens/s": "time/trained_tokens_per_second",
}


_TABLES = (STEP, SUPERVISED_STEP, EVALUATION, VIEW, SUPERVISED_VIEW)


def printed(word: str) -> list[str]:
    """Return the keys of the metrics that a word of a line or of the live view stands for; [] for another word."""
    return list(dict.fromkeys(table[word] for table in _TABLES if word in table))


def words() -> list[str]:
    """Return every word of these tables."""
    return [word for table in _TABLES for word in table]
