"""A run folder as training leaves it, made up: prompts, a checkpoint with a history, metrics. No model, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import save_state
from dapo.config import recipe_from_dict
from dapo.observe.prompts import write_prompts
from dapo.types.batch import Prompt, content_id
from dapo.types.enums import Verdict

VERDICTS = list(Verdict)
COLUMNS = ("visits", "responses", "correct", "last_responses", "last_correct", "streak", "last_step", "verdict")


def make_prompts(count: int, sources: tuple[str, ...] = ("sums",)) -> list[Prompt]:
    return [
        Prompt(content_id(f"problem {n}"), f"? {n}", np.array([1]), f"problem {n}", str(n), sources[n % len(sources)])
        for n in range(count)
    ]


def make_history(rows: Mapping[str, tuple[int, ...]], size: int, **extra: Any) -> dict[str, Any]:
    """``rows``: prompt id -> the values of COLUMNS."""
    table = np.array(list(rows.values()), np.int64).reshape(-1, len(COLUMNS))
    columns = {name: table[:, n] for n, name in enumerate(COLUMNS)}
    return {
        "ids": list(rows),
        "verdicts": VERDICTS,
        **columns,
        "greso": {"p_easy": 0.5, "p_hard": 0.5},
        "size": size,
        **extra,
    }


def row(
    visits: int, verdict: Verdict, correct: int, voters: int = 4, step: int = 1, before: int = 0
) -> tuple[int, ...]:
    """A prompt of ``visits`` visits with ``voters`` each; ``correct`` of the last one, ``before`` of those before."""
    streak = int(verdict in (Verdict.ALL_CORRECT, Verdict.ALL_WRONG, Verdict.UNIFORM))
    return (
        visits,
        visits * voters,
        before + correct,
        voters,
        correct,
        streak,
        step,
        VERDICTS.index(verdict),
    )


def step_row(step: int, kept: int = 4, all_wrong: int = 4, all_correct: int = 2, **extra: float) -> dict[str, float]:
    judged = kept + all_wrong + all_correct
    return {
        "step": step,
        "groups/dispatched": judged,
        "groups/finished": judged,
        "groups/kept": kept,
        "groups/all_wrong": all_wrong,
        "groups/all_correct": all_correct,
        "sampling/acceptance_rate": kept / judged,
        "sampling/responses": 4 * judged,
        "sampling/generated_tokens": 100 * judged,
        "response/truncated_share": 0.1,
        "counters/generated_tokens": 100 * judged * step,
        "time/generate": 3.0,
        "time/score": 1.0,
        "cost/held_tokens": 50,
        "cost/rejected_seconds": 2.0,
        "total/cost/trained_tokens": 100 * kept * step - 50,
        "total/cost/rejected_tokens": 100 * (all_wrong + all_correct) * step,
        "total/cost/discarded_tokens": 0,
        "total/cost/expired_tokens": 0,
        "total/cost/filled_tokens": 0,
        **extra,
    }


def make_run(
    path: Path,
    *,
    prompts: list[Prompt] | None = None,
    history: dict[str, Any] | None = None,
    rows: list[dict[str, float]] | None = None,
    settings: dict[str, Any] | None = None,
    step: int = 3,
    state: dict[str, Any] | None = None,
) -> Path:
    """Write a run folder; what is None is left out of it. ``state``: more of the collector's state."""
    path.mkdir(parents=True, exist_ok=True)
    given = {
        "model": {"path": "a/b"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rollout": {"prompts_per_step": 4, "group_size": 4},
        "learner": {"minibatch_prompts": 2},
    }
    for section, values in (settings or {}).items():
        given[section] = {**given.get(section, {}), **values}  # type: ignore[dict-item]
    (path / "recipe.resolved.yaml").write_text(recipe_from_dict(given).resolved, encoding="utf-8")
    if prompts is not None:
        write_prompts(path / "prompts.parquet", prompts)
    if rows is not None:
        (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    if history is not None or state is not None:
        collector = {"stream": {"epoch": 0}, **({"history": history} if history is not None else {}), **(state or {})}
        store = CheckpointStore(path / "checkpoints")
        store.save(step, lambda folder: save_state({"collector": collector}, folder) or ())
    return path
