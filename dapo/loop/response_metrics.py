"""Rewards, accuracy and lengths of the responses finished in a step: ``reward/`` and ``response/``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dapo.algorithms.diagnostics import length_quantiles
from dapo.types.batch import Completion, Group, Metrics
from dapo.types.enums import Verdict


def response_metrics(groups: Sequence[Group]) -> Metrics:
    """Rewards, accuracy and lengths over all finished groups, and apart over the kept ones."""
    out: Metrics = {}
    scores = [s for g in groups for s in g.scores_G]
    scored = [s for s in scores if s.scored]
    kept = [s for g in groups if g.verdict is Verdict.KEPT for s in g.scores_G if s.scored]
    for suffix, chosen in (("", scored), ("_kept", kept)):
        out[f"reward/raw{suffix}"] = _mean([s.reward for s in chosen])
        for name in sorted({name for s in chosen for name in s.values} | {"accuracy"}):
            out[f"reward/{name}{suffix}"] = _mean([s.values[name] for s in chosen if name in s.values])
    lengths = np.concatenate([g.lengths() for g in groups]) if groups else np.zeros(0)
    accuracy = np.concatenate([g.accuracies() for g in groups]) if groups else np.zeros(0)
    scorable = ~np.isnan(accuracy)
    quantiles = length_quantiles(lengths[scorable], accuracy[scorable] >= 1.0, (0.1, 0.5, 0.9, 1.0))
    quantiles["all"] = length_quantiles(lengths, np.zeros(len(lengths)), (0.1, 0.5, 0.9, 1.0))["all"]
    by_name = {"all": lengths, "correct": lengths[accuracy >= 1.0], "wrong": lengths[accuracy < 1.0]}
    for name, values in quantiles.items():
        prefix = "response/length" if name == "all" else f"response/length_{name}"
        out[f"{prefix}_mean"] = _mean(by_name[name])
        out |= {f"{prefix}_{q}": float(v) for q, v in zip(("p10", "p50", "p90", "max"), values, strict=True)}
    out["response/truncated_share"] = _mean([t for g in groups for t in g.truncated()])
    return out | _thinking([c for g in groups for c in g.completions_G if c.thinking is not None])


def _thinking(completions: Sequence[Completion]) -> Metrics:
    """Of responses whose thinking was looked at."""
    if not completions:
        return {}
    forced = [c.generated is not None and not c.generated.all() for c in completions]
    return {
        "response/thinking_tokens_mean": _mean([float(c.thinking or 0) for c in completions]),
        "response/thinking_unclosed_share": _mean([not c.closed for c in completions]),
        "response/thinking_forced_share": _mean(forced),
    }


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan
