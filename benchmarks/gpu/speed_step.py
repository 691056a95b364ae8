"""Whole DAPO steps as `dapo train` makes them: seconds by phase, peak memory against the estimate of `dapo check`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED, Shape
from dapo.checkpoint.store import CheckpointStore
from dapo.metrics.phases import COMPUTING
from dapo.models.tiny import make_tiny_model
from dapo.types.protocols import Recorder

_PHASES = ("generate", "score", "learn", "publish", "step")


def dapo_step(room: Room) -> None:
    """Three steps of a 0.5B-shaped model whose responses end by chance: a tail of lengths up to the limit."""
    shape = PUBLISHED["0.5b"] if room.on_card else REHEARSED
    recipe = _recipe(room, shape, steps=room.sized(3, 2))
    rows, memory = run_steps(room, recipe)
    if not rows:
        raise Skipped("no step was made in the time there was")
    room.note("estimate of dapo check", memory, "B")
    if room.on_card:
        peak = max(row["memory/peak_cuda_mib"] for row in rows) * 2**20
        room.note("peak memory", peak, "B")
        for phase in COMPUTING:
            found = [row[name] for row in rows if (name := f"memory/peak_cuda_mib/{phase}") in row]
            if found:
                room.note(f"peak memory in {phase}", max(found) * 2**20, "B")
        room.expect("peak over estimate", peak / memory, at_least=0.5, at_most=1.25)


def _recipe(room: Room, shape: Shape, steps: int) -> Any:
    """Words are numbers; half of them end a response rightly, and a few hundred end it at all."""
    from dapo.config.load import recipe_from_dict

    words = [f"t{number}" for number in range(3, shape.vocabulary)]
    make_tiny_model(
        room.folder / "model", "qwen2", hidden=shape.hidden, layers=shape.layers, heads=shape.heads,
        kv_heads=shape.kv_heads, ffn=shape.ffn, vocabulary=shape.vocabulary, tied=shape.tied, words=words,
        initializer_range=0.02, dtype=torch.bfloat16,
    )  # fmt: skip
    random = np.random.default_rng(0)
    problems = [" ".join(random.choice(words, room.sized(96, 6))) for _ in range(64)]
    data = room.folder / "problems.jsonl"
    data.write_text("".join(json.dumps({"problem": p, "answer": "0"}) + "\n" for p in problems), encoding="utf-8")
    prompts, group, limit, mean = room.sized((32, 8, 1024, 240), (4, 4, 24, 8))
    stop = list(range(3, 3 + max(1, shape.vocabulary // mean)))
    return recipe_from_dict(
        {
            "preset": "dapo",
            "run": {"dir": str(room.folder), "name": "step", "seed": 1},
            "model": {"path": str(room.folder / "model"), "dtype": "bfloat16", "device": room.device},
            "data": {"train": [{"path": str(data)}], "prompt": "raw", "max_prompt_tokens": 256},
            "rewards": [{"name": "accuracy", "kind": "regex", "pattern": r"[02468]\s*$"}],
            "rollout": {
                "prompts_per_step": prompts, "group_size": group, "max_response_tokens": limit, "stop_token_ids": stop,
            },
            "learner": {"minibatch_prompts": prompts // 2, "microbatch_tokens": room.sized(16384, 256)},
            "validation": {"every": 0},
            "trainer": {"steps": steps},
            "checkpoint": {"every": 0},
            "logging": {"console": "quiet"},
        }
    ).recipe  # fmt: skip


def run_steps(room: Room, recipe: Any) -> tuple[list[dict[str, float]], int]:
    """The metrics of each step, and the bytes that `dapo check` estimates for such a run.

    Raises:
        Skipped: the card has less memory than that.
    """
    from dapo.cli.check_memory import estimate_memory
    from dapo.observe.console import Console
    from dapo.run.reinforcement import reward_session

    recorder = _Recorder(room)
    with Console("quiet") as console:
        session = reward_session(recipe, console)
        try:
            longest = max(len(prompt.token_ids) for prompt in session.parts.data.train)
            memory = estimate_memory(recipe, session.facts, longest).total
            if room.on_card and memory > (whole := torch.cuda.mem_get_info()[1]):
                raise Skipped(f"dapo check expects {memory / 2**30:.0f} GiB, the card has {whole / 2**30:.0f}")
            trainer = session.trainer(recorder, _Nowhere(room.folder / "checkpoints"))
            for _ in trainer.each_step():
                pass
        finally:
            session.close()
    return recorder.rows, memory


class _Recorder(Recorder):
    """Keeps the metrics of each step, tells of it at once, and lets the rest go by."""

    def __init__(self, room: Room) -> None:
        self.rows: list[dict[str, float]] = []
        self._room = room

    def step(self, step: int, metrics: dict[str, float], finished: Sequence[Any], traces: Sequence[Any]) -> None:
        self.rows.append(dict(metrics))
        self._tell(len(self.rows), metrics)

    def _tell(self, number: int, row: dict[str, float]) -> None:
        for phase in _PHASES:
            if f"time/{phase}" in row:
                self._room.rate(f"step {number}: {phase}", row[f"time/{phase}"], "s")
        for name in ("sampling/generated_tokens", "sampling/trained_tokens"):
            if name in row:
                self._room.note(f"step {number}: {name}", row[name])
        if "time/tokens_per_second" in row:
            self._room.rate(f"step {number}: time/tokens_per_second", row["time/tokens_per_second"])
        finite = all(np.isfinite(row[key]) for key in ("train/loss", "train/grad_norm"))
        self._room.expect_true(f"step {number}: loss and gradient are numbers", finite)

    def traced(self, finished: Sequence[Any]) -> tuple[int, ...]:
        return ()

    def state(self) -> dict[str, Any]:
        return {}


@dataclass
class _Nothing:
    """A checkpoint that is not written."""

    step: int

    def done(self) -> bool:
        return True

    def finish(self) -> Path:
        return Path()


class _Nowhere(CheckpointStore):
    """Keeps no checkpoint: gigabytes, which nobody would load."""

    def begin(self, step: int, write: Any, best: Any = None) -> Any:
        """Not wanted here."""
        return _Nothing(step)
