"""Shares of judged groups by verdict, from the files of a run or foretold; ``why`` finds the words for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dapo.config.schema import Recipe
from dapo.observe.held_out import HeldOut
from dapo.observe.metrics import Row
from dapo.types.enums import Verdict
from dapo.types.evidence import Shares, mixed

_REASON = "reward/unscored/"


def settings_of(recipe: Recipe | None) -> dict[str, Any]:
    """Return the settings that a cause depends on, by their names in ``Shares``."""
    if recipe is None:
        return {}
    algorithm, rollout = recipe.algorithm, recipe.rollout
    votes = algorithm.truncated_vote
    return {
        "correct_at": algorithm.dynamic_sampling.correct_at,
        "truncated_vote": not algorithm.overlong_filtering if votes is None else votes,
        "prompts_per_step": rollout.prompts_per_step,
        "group_size": rollout.group_size,
    }


def shares_of(rows: Sequence[Row], recipe: Recipe | None, **known: Any) -> Shares:
    """Return the shares of the groups that were judged in some steps.

    Args:
        rows: of the steps.
        recipe: of the run; None: its settings are not known.
        known: further fields of the result.
    """
    counts = {str(verdict): _total(rows, f"groups/{verdict}") for verdict in Verdict}
    judged = max(sum(counts.values()), _total(rows, "groups/finished"))
    reasons = sorted({key for row in rows for key in row if key.startswith(_REASON)})
    by_reason = {key.removeprefix(_REASON): int(_total(rows, key)) for key in reasons}
    of_verdict: dict[str, Any] = {name: count / max(1.0, judged) for name, count in counts.items()}
    return Shares(
        **of_verdict,
        judged=int(judged),
        truncated=_mean(rows, "response/truncated_share"),
        accuracy=_mean(rows, "reward/accuracy"),
        unscored={reason: count for reason, count in by_reason.items() if count},
        dispatched=int(_total(rows, "groups/dispatched")),
        generated_tokens=int(_total(rows, "sampling/generated_tokens")),
        **{**settings_of(recipe), **known},
    )


def expected_shares(held_out: HeldOut, recipe: Recipe) -> Shares:
    """Return what groups of training would be if its problems are as hard as the held-out ones.

    Every problem is taken to be solved at the mean rate. The chance of a mixed group is concave in the rate, so no
    other rates with that mean give more of them (Jensen), and ``kept`` is the most that can be expected.
    """
    settings, size = settings_of(recipe), recipe.rollout.group_size
    rate = held_out.right / max(1, held_out.known) if settings["correct_at"] >= 1.0 else held_out.accuracy
    return Shares(
        kept=mixed(rate, size),
        all_correct=rate**size,
        all_wrong=(1.0 - rate) ** size,
        judged=len(held_out.problems),
        truncated=held_out.truncated / max(1, held_out.responses),
        accuracy=held_out.accuracy,
        answered=held_out.read / max(1, held_out.responses) if names_answers(recipe) else None,
        **settings,
    )


def names_answers(recipe: Recipe) -> bool:
    """Return whether the verifier of the accuracy names the answers that it reads."""
    return all(reward.kind in _NAMING for reward in recipe.rewards if reward.name == "accuracy")


_NAMING = ("math", "exact", "last_number")


def _total(rows: Sequence[Row], key: str) -> float:
    return sum(float(row.get(key) or 0.0) for row in rows)


def _mean(rows: Sequence[Row], key: str) -> float:
    """Return the mean over responses, of steps that measured it; 0 where none did."""
    measured = [row for row in rows if row.get(key) is not None]
    weights = [float(row.get("sampling/responses") or 1.0) for row in measured]
    whole = sum(float(row[key]) * weight for row, weight in zip(measured, weights, strict=True))
    return whole / max(1.0, sum(weights))
