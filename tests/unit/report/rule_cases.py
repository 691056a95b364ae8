"""Rows at which each rule speaks, and rows at which it is just silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def late(value: Any, otherwise: Any, since: int = 40) -> Callable[[int], Any]:
    return lambda step: value if step > since else otherwise


def at(steps: set[int], value: float, otherwise: float) -> Callable[[int], float]:
    return lambda step: value if step in steps else otherwise


def falling(to: float) -> dict[str, Any]:
    """Held-out accuracy 0.42, then 0.9 at step 30, then ``to``; its interval is 0.04 to either side."""

    def accuracy(step: int) -> float:
        return 0.42 if step < 10 else 0.9 if step <= 30 else to

    return {
        "validation__accuracy": accuracy,
        "validation__accuracy_low": lambda step: accuracy(step) - 0.04,
        "validation__accuracy_high": lambda step: accuracy(step) + 0.04,
    }


def many(to: float, evaluations: int) -> dict[str, Any]:
    """Held-out accuracy 0.9, then ``to`` at the last of so many evaluations (0, 10, ...); 0.04 to either side."""

    def accuracy(step: int) -> float | None:
        if step >= 10 * evaluations:
            return None
        return 0.42 if step == 0 else to if step == 10 * evaluations - 10 else 0.9

    def beside(by: float) -> Callable[[int], float | None]:
        return lambda step: None if accuracy(step) is None else accuracy(step) + by  # type: ignore[operator]

    return {
        "validation__accuracy": accuracy,
        "validation__accuracy_low": beside(-0.04),
        "validation__accuracy_high": beside(0.04),
    }


def waiting(engines: float, learner: float) -> dict[str, Any]:
    """Seconds in which each had nothing to do, of steps of a second."""
    return {"time__step": 1.0, "time__engine_idle": engines, "time__learner_idle": learner}


def flat(gain: float) -> dict[str, Any]:
    return {
        "validation__accuracy": lambda step: 0.42 + gain * (step > 0),
        "validation__accuracy_low": lambda step: 0.38 + gain * (step > 0),
        "validation__accuracy_high": lambda step: 0.46 + gain * (step > 0),
    }


def pass_at_4(last: float) -> dict[str, Any]:
    return {"validation__pass_at_4": lambda step: 0.95 if step < 60 else last}


# rule, changes of the rows that make it speak, how severe it is then, changes at which it is just silent, overrides
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any], tuple[str, ...]]] = [
    ("entropy_collapse", {"train__entropy": late(0.029, 0.2)}, "bad", {"train__entropy": late(0.031, 0.2)}, ()),
    (
        "entropy_collapse",
        {"train__entropy": late(0.02, 0.2), "reward__accuracy": late(0.96, 0.5)},
        "note",
        {"train__entropy": late(0.031, 0.2), "reward__accuracy": late(0.96, 0.5)},
        (),
    ),
    ("entropy_explosion", {"train__entropy": late(0.81, 0.2)}, "warn", {"train__entropy": late(0.79, 0.2)}, ()),
    (
        "entropy_explosion",
        {"train__entropy": late(0.41, 0.2), "reward__accuracy": late(0.44, 0.5)},
        "bad",
        {"train__entropy": late(0.41, 0.2), "reward__accuracy": late(0.46, 0.5)},
        (),
    ),
    (
        "clip_share",
        {"train__clip_high": at({7, 8, 9}, 0.051, 0)},
        "warn",
        {"train__clip_high": at({7, 8}, 0.07, 0)},
        (),
    ),
    ("clip_share", {"train__clip_low": late(0.16, 0.0)}, "bad", {"train__clip_low": late(0.049, 0.0)}, ()),
    ("clip_share", {"train__clip_dual": 0.021}, "warn", {"train__clip_dual": 0.019}, ()),
    ("sampler_gap", {"train__gap_mean_current": 0.101}, "warn", {"train__gap_mean_current": 0.099}, ()),
    ("sampler_gap", {"train__gap_mean_current": 0.31}, "bad", {"train__gap_mean": 0.31}, ()),
    (
        "sampler_gap",
        {"train__gap_mean_current": late(0.031, 0.01)},
        "warn",
        {"train__gap_mean_current": late(0.029, 0.01)},
        (),
    ),
    ("sampler_gap", {"train__correction_share": 0.11}, "warn", {"train__correction_share": 0.09}, ()),
    ("sync_gap", {"train__sync_gap": at({5}, 0.041, 0.001)}, "warn", {"train__sync_gap": 0.039}, ()),
    ("sync_gap", {"train__sync_gap": at({5}, 0.051, 0.001)}, "bad", {"train__sync_gap": 0.039}, ()),
    (
        "sync_gap",
        {"train__sync_gap": at({5}, 0.00009, 0.00003), "train__sync_accepted": 0.0001},
        "warn",
        {"train__sync_gap": 0.00004, "train__sync_accepted": 0.0001},
        (),
    ),
    (
        "sync_gap",
        {"train__sync_gap": 0.03, "train__sync_accepted": at({5}, 0.02, 0.5)},
        "bad",
        {"train__sync_gap": 0.03, "train__sync_accepted": 0.5},
        (),
    ),
    (
        "gradient_spikes",
        {"train__grad_norm": 0.5, "train__grad_norm_max": at({9}, 5.1, 0.6)},
        "note",
        {"train__grad_norm": 0.5, "train__grad_norm_max": at({9}, 4.9, 0.6)},
        (),
    ),
    (
        "gradient_spikes",
        {"train__grad_norm": 0.5, "train__grad_norm_max": at({9, 19, 29}, 5.1, 0.6)},
        "warn",
        {"train__grad_norm": 0.5, "train__grad_norm_max": 4.9},
        (),
    ),
    ("skipped_steps", {"train__skipped_steps": at({9}, 1, 0)}, "warn", {"train__skipped_steps": 0}, ()),
    ("skipped_steps", {"train__skipped_steps": at({9}, 3, 0)}, "bad", {"train__skipped_steps": 0}, ()),
    ("skipped_steps", {"train__empty_steps": at({9}, 1, 0)}, "warn", {"train__empty_steps": 0}, ()),
    ("skipped_steps", {"train__loss": at({9}, None, 0.1)}, "bad", {"train__clip_high_probability": None}, ()),
    ("policy_jumps", {"train__approx_kl": at({3, 4, 5}, 0.031, 0)}, "warn", {"train__approx_kl": at({3}, 0.08, 0)}, ()),
    ("policy_jumps", {"train__approx_kl": 0.11}, "bad", {"train__approx_kl": 0.029}, ()),
    (
        "policy_jumps",
        {"train__ratio_max": at({3, 9, 27}, 101, 2)},
        "note",
        {"train__ratio_max": at({3, 9}, 101, 2)},
        (),
    ),
    (
        "batch_hard_to_fill",
        {"sampling__acceptance_rate": late(0.29, 0.8)},
        "warn",
        {"sampling__acceptance_rate": late(0.31, 0.8)},
        (),
    ),
    (
        "batch_hard_to_fill",
        {"sampling__acceptance_rate": late(0.09, 0.8)},
        "bad",
        {"sampling__acceptance_rate": at({5, 6, 7}, 0.05, 0.8)},
        (),
    ),
    ("batch_hard_to_fill", {"sampling__cap_reached": at({9}, 1, 0)}, "warn", {"sampling__cap_reached": 0}, ()),
    (
        "few_groups_teach",
        {"sampling__acceptance_rate": late(0.29, 0.8)},
        "warn",
        {"sampling__acceptance_rate": late(0.31, 0.8)},
        ("algorithm.dynamic_sampling.mode=off",),
    ),
    ("data_too_easy", {"groups__all_correct_share": 0.51}, "note", {"groups__all_correct_share": 0.49}, ()),
    (
        "data_too_easy",
        {"groups__all_correct_share": 0.61, "sampling__acceptance_rate": 0.35},
        "warn",
        {"groups__all_correct_share": 0.61, "sampling__acceptance_rate": 0.29},
        (),
    ),
    ("data_too_hard", {"groups__all_wrong_share": 0.51}, "note", {"groups__all_wrong_share": 0.49}, ()),
    ("many_refills", {"sampling__refills": 65}, "note", {"sampling__refills": 63}, ()),
    ("old_groups", {"groups__age_mean": 3.1}, "warn", {"groups__age_mean": 2.9}, ()),
    ("old_groups", {"cost__expired_tokens": 401}, "warn", {"cost__expired_tokens": 399}, ()),
    (
        "kept_misleads",
        {"reward__accuracy": 0.95, "reward__accuracy_kept": 0.64},
        "note",
        {"reward__accuracy": 0.95, "reward__accuracy_kept": 0.66},
        (),
    ),
    ("verifier_failures", {"reward__unscored": 1}, "note", {"reward__unscored": at({1, 2, 3}, 10, 0)}, ()),
    ("verifier_failures", {"reward__unscored": 9}, "warn", {"reward__unscored": 0}, ()),
    ("verifier_failures", {"reward__unscored": 81}, "bad", {"reward__unscored": 0}, ()),
    (
        "held_out_unscored",
        {"validation__unscored": 1, "validation__responses": 1000},
        "note",
        {"validation__unscored": 0, "validation__responses": 1000},
        (),
    ),
    (
        "held_out_unscored",
        {"validation__unscored": lambda step: 10 * (step == 0), "validation__responses": 100},
        "warn",
        {"validation__unscored": 0, "validation__responses": 100},
        (),
    ),
    (
        "held_out_unscored",
        {"validation__unscored": 10, "validation__responses": 100},
        "bad",
        {"validation__unscored": 0, "validation__responses": 100},
        (),
    ),
    ("engine_failures", {"sampling__failed": at({9}, 1, 0)}, "warn", {"sampling__failed": 0}, ()),
    (
        "not_repeatable",
        {"environment__not_repeatable": at({9}, 2, 0)},
        "warn",
        {"environment__not_repeatable": 0},
        (),
    ),
    (
        "length_drift",
        {"response__length_mean": late(15.1, 10), "reward__accuracy": 0.5},
        "warn",
        {"response__length_mean": late(14.9, 10), "reward__accuracy": 0.5},
        (),
    ),
    (
        "length_drift",
        {"response__length_mean": late(5.9, 10), "reward__accuracy": 0.5},
        "warn",
        {"response__length_mean": late(6.1, 10), "reward__accuracy": 0.5},
        (),
    ),
    ("length_drift", {"response__length_mean": late(15.1, 10)}, "note", {"response__length_mean": late(14.9, 10)}, ()),
    (
        "length_drift",
        {"response__length_wrong_mean": late(15.1, 10), "response__length_correct_mean": 9.0},
        "warn",
        {"response__length_wrong_mean": late(14.9, 10), "response__length_correct_mean": 9.0},
        (),
    ),
    ("truncated", {"response__truncated_share": 0.21}, "warn", {"response__truncated_share": 0.19}, ()),
    ("truncated", {"response__truncated_share": 0.51}, "bad", {"response__truncated_share": 0.19}, ()),
    (
        "truncated",
        {"response__truncated_share": late(0.051, 0.025)},
        "warn",
        {"response__truncated_share": late(0.049, 0.02)},
        (),
    ),
    ("penalties", {"response__penalized": 0.51}, "warn", {"response__penalized": 0.49}, ()),
    ("penalties", {"response__penalty_mean": -0.51}, "warn", {"response__penalty_mean": -0.49}, ()),
    ("validation_fell", falling(0.84), "warn", falling(0.85), ()),
    ("validation_fell", falling(0.44), "bad", falling(0.85), ()),
    ("held_out_size", {"validation__problems": 29}, "note", {"validation__problems": 30}, ()),
    ("no_learning", flat(0.05), "warn", flat(0.06), ()),
    (
        "reward_without_accuracy",
        {"reward__raw": late(1.21, 1.0), "reward__accuracy": late(0.44, 0.5)},
        "bad",
        {"reward__raw": late(1.21, 1.0), "reward__accuracy": late(0.46, 0.5)},
        (),
    ),
    (
        "reward_without_accuracy",
        {"reward__raw": late(1.11, 1.0), "reward__accuracy": late(0.4, 0.5)},
        "bad",
        {"reward__raw": late(1.09, 1.0), "reward__accuracy": late(0.4, 0.5)},
        (),
    ),
    (
        "rewards_clamped",
        {"reward__clamped": at({7, 8, 9}, 0.02, 0.0), "reward__raw_max": 1.5},
        "warn",
        {"reward__clamped": at({7, 8}, 0.01, 0.0), "reward__raw_max": 1.5},
        (),
    ),
    ("rewards_clamped", {"reward__clamped": late(0.11, 0.0)}, "bad", {"reward__clamped": late(0.009, 0.0)}, ()),
    ("diversity", pass_at_4(0.88), "warn", pass_at_4(0.90), ()),
    (
        "idle_slots",
        {"sampling__slot_use": 0.39, "time__generate": 0.2},
        "note",
        {"sampling__slot_use": 0.41, "time__generate": 0.2},
        (),
    ),
    ("time_beside", {"time__save": 2.0}, "warn", {"time__save": 0.2}, ()),
    ("time_beside", {"time__score": 1.0, "time__learn": 1.9}, "warn", {"time__score": 0.8, "time__learn": 1.9}, ()),
    ("who_waits", waiting(0.41, 0.1), "note", waiting(0.39, 0.1), ("rollout.max_staleness=2",)),
    ("who_waits", waiting(0.1, 0.41), "note", waiting(0.1, 0.39), ("rollout.max_staleness=2",)),
    ("who_waits", waiting(0.41, 0.41), "warn", waiting(0.39, 0.39), ("rollout.max_staleness=2",)),
    ("processes_lost", {"cluster__engine_losses": at({7}, 1, 0)}, "note", {"cluster__engine_losses": 0}, ()),
    (
        "processes_lost",
        {"cluster__engine_losses": at({7, 8, 9}, 2, 0), "cluster__resubmitted": 3},
        "warn",
        {"cluster__engine_losses": None},
        (),
    ),
    ("thrown_away", {"cost__discarded_tokens": 2001}, "note", {"cost__discarded_tokens": 1999}, ()),
    (
        "memory_growth",
        {"memory__peak_rss_mib": lambda step: 1000 + 10 * step},
        "warn",
        {"memory__peak_rss_mib": lambda step: 1000 + 5 * step},
        (),
    ),
]
