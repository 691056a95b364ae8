"""Rows of a run that learned as the quickstart does, and ways to spoil them. Values follow from the step alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from dapo.config import load_recipe
from dapo.config.schema import Recipe
from dapo.observe.run_folder import RunFolder
from dapo.observe.status import RunStatus
from dapo.report.reader import RunContents
from dapo.types.evidence import Cause, Example, Shares, StopEvidence

ROOT = Path(__file__).parents[3]
EVERY = 10


@cache
def recipe(*overrides: str) -> Recipe:
    return load_recipe(ROOT / "dapo/recipes/quickstart.yaml", list(overrides)).recipe


def rows(steps: int = 60, **changes: Any) -> list[dict[str, Any]]:
    """Rows of steps 0 to ``steps``.

    ``changes``: a key with `/` written `__`; a number, None, or a function of the step that gives one of them.
    """
    made = [{"step": 0, **validation(0, steps)}]
    for step in range(1, steps + 1):
        made.append(_row(step, steps) | (validation(step, steps) if step % EVERY == 0 else {}))
    for name, value in changes.items():
        key = name.replace("__", "/").replace("_at_", "@")
        for row in made:
            changed = value(row["step"]) if callable(value) else value
            if key.startswith("validation/"):
                if "validation/accuracy" in row and row["validation/accuracy"] is not None:
                    row[key] = changed
            elif row["step"]:
                row[key] = changed
    return made


def run_of(
    made: list[dict[str, Any]],
    *overrides: str,
    state: str = "finished",
    said: str = "",
    evidence: Any = None,
    **more: Any,
) -> RunContents:
    """A run with these rows, whose recipe is the quickstart's with ``overrides``; ``evidence`` goes through JSON."""
    steps = recipe(*overrides).trainer.steps
    last = made[-1]["step"] if made else 0
    given = {"folder": RunFolder(Path("runs/it")), "name": "it", "rows": made, "recipe": recipe(*overrides)}
    data = None if evidence is None else json.loads(json.dumps(asdict(evidence)))
    status = RunStatus(state, said, last, steps, 1, "", 1e9, 1e9 + 60, evidence=data)
    return RunContents(**{**given, "status": status, **more})


UNFILLED = StopEvidence(
    "cap.groups",
    4.0,
    31,
    32,
    Shares(kept=0.2, all_correct=0.8, judged=154, prompts_per_step=32, group_size=8),
    Cause.SOLVED,
    Example("6 +7 -9 =", "4", "hostile \x1b[2J", 1.0),
)


def unfilled_run(folder: RunFolder | None = None, log_tail: Sequence[str] = (), **changes: Any) -> RunContents:
    """A run whose 55th batch could not be filled; ``changes``: of ``UNFILLED``. It goes through the file's JSON."""
    more = {"folder": folder} if folder else {}
    evidence = replace(UNFILLED, **changes)
    return run_of(rows(54), state="unfilled", said="in other words", evidence=evidence, log_tail=list(log_tail), **more)


def validation(step: int, steps: int) -> dict[str, float]:
    accuracy = 0.42 + 0.48 * min(1.0, 2 * step / max(steps, 1))
    return {
        "validation/accuracy": accuracy,
        "validation/accuracy_low": accuracy - 0.04,
        "validation/accuracy_high": accuracy + 0.04,
        "validation/greedy_accuracy": accuracy + 0.05,
        "validation/pass@1": accuracy,
        "validation/pass@4": min(1.0, accuracy + 0.08),
        "validation/problems": 128,
        "time/evaluate": 0.1,
    }


def _row(step: int, steps: int) -> dict[str, float | None]:
    done = step / steps
    accuracy = 0.35 + 0.5 * min(1.0, 2 * done)
    wiggle = 0.02 * (step % 3 - 1)
    return {
        "step": step,
        "reward/raw": accuracy + wiggle,
        "reward/accuracy": accuracy + wiggle,
        "reward/raw_kept": accuracy - 0.08,
        "reward/accuracy_kept": accuracy - 0.08,
        "reward/raw_min": 0.0,
        "reward/raw_max": 1.0,
        "reward/clamped": 0.0,
        "reward/unscored": 0,
        "sampling/acceptance_rate": 0.82 - 0.22 * done,
        "sampling/responses": 800,
        "sampling/failed": 0,
        "sampling/refills": 5 + 10 * done,
        "sampling/cap_reached": 0,
        "sampling/slot_use": 0.6 + 0.3 * done,
        "sampling/generated_tokens": 8000,
        "groups/kept": 36 - 4 * done,
        "groups/all_correct": 4 + 18 * done,
        "groups/all_wrong": 4 - 4 * done,
        "groups/uniform": 0,
        "groups/out_of_band": 0,
        "groups/too_few_scored": 0,
        "groups/all_correct_share": 0.05 + 0.35 * done,
        "groups/all_wrong_share": 0.1 - 0.1 * done,
        "groups/age_mean": 0.6,
        "groups/age_max": 2,
        "cost/discarded_tokens": 0,
        "cost/expired_tokens": 0,
        "train/entropy": 0.21 - 0.14 * done,
        "train/approx_kl": 0.001,
        "train/clip_low": 0.004,
        "train/clip_high": 0.001,
        "train/clip_dual": 0.0,
        "train/clip_high_probability": None,
        "train/grad_norm": 0.45 + 2 * wiggle,
        "train/grad_norm_max": 0.6 if step % 20 else 1.8,
        "train/ratio_max": 2.0 if step % 20 else 12.0,
        "train/gap_mean": 0.0,
        "train/gap_mean_current": 0.0,
        "train/correction_share": 0.0,
        "train/loss": 0.01,
        "train/optimizer_steps": 4,
        "train/skipped_steps": 0,
        "train/empty_steps": 0,
        "response/length_mean": 11.0 - done,
        "response/length_correct_mean": 9.0 + 0.5 * done,
        "response/length_wrong_mean": 12.0 + 0.5 * done,
        "response/truncated_share": 0.03 - 0.03 * done,
        "response/penalized": 0.04 - 0.04 * done,
        "response/penalty_mean": -0.03 + 0.03 * done,
        "counters/generated_tokens": 8000 * step,
        "counters/trained_tokens": 5000 * step,
        "memory/peak_rss_mib": 520 + 10 * done,
        "time/generate": 0.1,
        "time/score": 0.02,
        "time/learn": 0.12,
        "time/other": 0.02,
        "time/step": 0.26,
        "time/tokens_per_second": 70_000,
    }
