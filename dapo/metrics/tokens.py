"""Metrics of the tokens that carry loss: each is one entry here, its line in the glossary and its formula together.

A formula reads ``LossTokens`` and returns the numbers that its reduction merges (float64 [any number of them]: the mean
is over these, wherever they come from), or None where it does not apply. The glossary, the learner and
docs/metrics.md all read this module. numpy is imported by the formulas that need it: a recipe's names are checked
against the glossary, and a refused recipe needs no numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from dapo.metrics.metric import NATS, SHARE, Better, Metric, Reduction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Float64: TypeAlias = "NDArray[np.float64]"
Bools: TypeAlias = "NDArray[np.bool_]"

CLIP_FLAGS = ("clip_low", "clip_high", "clip_dual")
"""Flags that the built-in losses name; a loss of one's own may name others, which are reported as ``custom/<name>``."""


@dataclass(frozen=True, slots=True)
class LossTokens:
    """Tokens with loss of some rows, after their forward pass. Every array is [tokens]; log-probabilities in nats."""

    logprobs: Float64  # the policy's, before the optimiser step
    log_ratios: Float64  # against what the ratio runs against, bounded as in the losses
    entropy: Float64
    correction: Float64  # importance correction w; 1 is none
    corrected: Bools  # a bound of the correction acted on the token
    current: Bools  # made by the version of the weights that is being trained
    gaps: (
        Float64 | None
    )  # learner - sampler; None where the weights moved since, and it could not be told from learning
    flags: Mapping[str, Bools] = field(default_factory=dict)
    reference_gaps: Float64 | None = None  # log reference - log policy, bounded as in the losses; None: no reference
    teacher_gaps: Float64 | None = None  # log teacher - log policy of the tokens that a teacher judged, as above


Formula = Callable[[LossTokens], "Float64 | Bools | None"]


@dataclass(frozen=True, slots=True)
class TokenMetric:
    """A line of the glossary and how it is computed."""

    metric: Metric
    formula: Formula


def _flag(name: str) -> Formula:
    return lambda tokens: tokens.flags.get(name)


def k3(log_ratios: Float64) -> Float64:
    """r - 1 - log r: its mean estimates KL(q || p) for r = p/q and tokens from q; unbiased and never negative."""
    import numpy as np

    return np.expm1(log_ratios) - log_ratios


def _exp(values: Float64) -> Float64:
    import numpy as np

    return np.exp(values)


def _clipped_high(tokens: LossTokens) -> Float64 | None:
    return _exp(tokens.logprobs[tokens.flags["clip_high"]]) if "clip_high" in tokens.flags else None


def _gap(of: Callable[[Float64], Float64], chosen: Callable[[LossTokens], Bools] | None) -> Formula:
    def formula(tokens: LossTokens) -> Float64 | None:
        if tokens.gaps is None:
            return None
        gaps = tokens.gaps if chosen is None else tokens.gaps[chosen(tokens)]
        return of(gaps) if gaps.size else None

    return formula


def _entry(
    name: str, unit: str, meaning: str, formula: Formula, better: Better = None, reduction: Reduction = "mean"
) -> TokenMetric:
    return TokenMetric(Metric(f"train/{name}", unit, meaning, better, reduction=reduction), formula)


def _policy() -> Iterator[TokenMetric]:
    """Yield metrics of the policy itself, and against the old one and the reference."""
    yield _entry(
        "entropy",
        NATS,
        "Mean entropy of the policy at the sampling temperature, before `top_p` and `top_k` cut it, over the tokens "
        "with loss; near 0 it explores no more.",
        lambda tokens: tokens.entropy,
    )
    yield _entry(
        "approx_kl",
        NATS,
        "Mean of r - 1 - log r over tokens with loss: policy against the old one.",
        lambda tokens: k3(tokens.log_ratios),
    )
    yield _entry(
        "kl",
        NATS,
        "K3 estimate of KL(policy, reference) over tokens with loss, where there is a reference.",
        lambda tokens: None if tokens.reference_gaps is None else k3(tokens.reference_gaps),
    )
    yield _entry(
        "ratio_mean",
        "1",
        "Mean probability ratio r over tokens with loss.",
        lambda tokens: _exp(tokens.log_ratios),
    )
    yield _entry(
        "ratio_max",
        "1",
        "Largest probability ratio r of a token with loss.",
        lambda tokens: _exp(tokens.log_ratios),
        reduction="max",
    )
    yield _entry(
        "ratio_min",
        "1",
        "Smallest probability ratio r of a token with loss.",
        lambda tokens: _exp(tokens.log_ratios),
        reduction="min",
    )


def _clipped() -> Iterator[TokenMetric]:
    """Yield metrics of what the loss cut."""
    yield _entry(
        "clip_low",
        SHARE,
        "Share of tokens with loss whose gradient the lower bound cut (A < 0, r < 1 - eps_low).",
        _flag("clip_low"),
    )
    yield _entry(
        "clip_high",
        SHARE,
        "Share of tokens with loss whose gradient the upper bound cut (A > 0, r > 1 + eps_high).",
        _flag("clip_high"),
    )
    yield _entry(
        "clip_dual", SHARE, "Share of tokens with loss that the dual clip bounded (A < 0, r > c).", _flag("clip_dual")
    )
    yield _entry(
        "clip_high_probability", SHARE, "Mean probability under the policy of the tokens clipped high.", _clipped_high
    )


def _gaps() -> Iterator[TokenMetric]:
    """Yield metrics of sampler and learner, and of the correction between them."""
    yield _entry(
        "correction_mean",
        "1",
        "Mean importance correction w over tokens with loss; 1 is none. With `top_p` or `top_k` it is below 1 by the "
        "probability mass that sampling left out.",
        lambda tokens: tokens.correction,
    )
    yield _entry(
        "correction_share",
        SHARE,
        "Share of tokens with loss whose correction was capped or masked.",
        lambda tokens: tokens.corrected,
        "lower",
    )
    for suffix, of, chosen in (
        ("", "over tokens with loss", None),
        ("_current", "over tokens with loss made by the current weights", lambda tokens: tokens.current),
        ("_older", "over tokens with loss made by older weights", lambda tokens: ~tokens.current),
    ):
        cut = "" if suffix else " With `top_p` or `top_k` it contains the probability mass that sampling left out."
        mean = f"Mean |learner - sampler| log-probability {of}.{cut}"
        yield _entry(f"gap_mean{suffix}", NATS, mean, _gap(abs, chosen), "lower")
        divergence = f"K3 estimate of KL(sampler, learner) {of}.{cut}"
        yield _entry(f"gap_kl{suffix}", NATS, divergence, _gap(k3, chosen), "lower")
        yield _entry(
            f"gap_max{suffix}",
            NATS,
            f"Largest |learner - sampler| log-probability {of}.{cut}",
            _gap(abs, chosen),
            "lower",
            "max",
        )


def _teacher() -> Iterator[TokenMetric]:
    """Yield metrics of the tokens that a teacher judged."""

    def over(of: Callable[[Float64], Float64]) -> Formula:
        return lambda tokens: None if tokens.teacher_gaps is None else of(tokens.teacher_gaps)

    yield TokenMetric(
        Metric(
            "teacher/kl",
            NATS,
            "Mean log p_student - log p_teacher over the tokens with loss that a teacher judged: it estimates "
            "KL(student, teacher) of a token.",
            "lower",
        ),
        over(lambda gaps: -gaps),
    )
    yield TokenMetric(
        Metric(
            "teacher/agree",
            SHARE,
            "Mean of min(1, p_teacher / p_student) over these tokens: it estimates the probability that both models "
            "share, 1 less their total variation distance. 1: they are equal.",
            "higher",
        ),
        over(lambda gaps: _exp(gaps.clip(max=0.0))),
    )


TOKEN_METRICS: tuple[TokenMetric, ...] = (*_policy(), *_clipped(), *_gaps(), *_teacher())
