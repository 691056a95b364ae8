"""DAPO steps by engine and learner alone: they need no recipe, so no package but those that compute."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.made import finish, make_learner, requests, row_of
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED, Shape, make_loaded
from benchmarks.gpu.speed_learner import PER_PARAMETER, layer_sizes
from benchmarks.gpu.timing import peak_bytes, reset_peak, seconds
from dapo.algorithms.advantages import group_advantages
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.graphs import MOST
from dapo.engines.pools import CacheShape
from dapo.engines.slots import slot_bytes
from dapo.learner.driver import LearnerDriver
from dapo.models.memory import activation_bytes, graph_bytes, head_bytes
from dapo.types.batch import LearnStep, Response, Row, SampleRequest


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a step."""

    groups: int
    size: int  # of a group
    prompt: int
    limit: int  # tokens of the longest response
    mean: int  # of them, about
    budget: int  # tokens of a micro-batch

    @property
    def longest(self) -> int:
        return self.prompt + self.limit

    @property
    def slots(self) -> int:
        return self.groups * self.size


def plain_step(room: Room) -> None:
    """Three steps of a 0.5B-shaped model with a tail of lengths: sample, score, two optimiser steps, publish."""
    shape = PUBLISHED["0.5b"] if room.on_card else REHEARSED
    sizes = Sizes(*room.sized((32, 8, 96, 1024, 240, 16384), (4, 4, 6, 24, 8, 256)))
    loaded = make_loaded(shape, room.device, "bfloat16")
    learner = make_learner(loaded, microbatch_tokens=sizes.budget)
    reserve = 12 * shape.parameters  # masters and moments, which the first step makes
    engine = EmbeddedEngine(loaded, slots=sizes.slots, longest=sizes.longest, reserve=reserve)
    peaks, made = {"generate": 0, "learn": 0}, 0
    for step in range(room.sized(3, 2)):
        if room.left < 5.0:
            break
        kept = _sample(room, engine, learner, _asked(shape, sizes, step), sizes, step, peaks)
        _learn(room, learner, kept, step, peaks)
        made += 1
    engine.close()
    if not made:
        raise Skipped("no step was made in the time there was")
    _memory(room, shape, sizes, peaks)


def _replays(engine: EmbeddedEngine) -> int:
    return 0 if engine.graphs is None else engine.graphs.replayed


def _asked(shape: Shape, sizes: Sizes, step: int) -> list[SampleRequest]:
    random = np.random.default_rng(step)
    stop = tuple(range(3, 3 + max(1, shape.vocabulary // sizes.mean)))
    prompts = list(random.integers(3, shape.vocabulary, (sizes.groups, sizes.prompt)))
    return requests(prompts, sizes.size, sizes.limit, stop=stop)


def _sample(
    room: Room, engine: EmbeddedEngine, learner: LearnerDriver, asked: list[SampleRequest], sizes: Sizes, step: int,
    peaks: dict[str, int],
) -> list[Row]:  # fmt: skip
    """Publish, sample, hand the memory back; the rows that a gradient comes from."""
    events: list[Response] = []

    def generate() -> None:
        engine.load(learner.publish(step))
        engine.submit(asked)
        events.extend(finish(engine))
        engine.sleep()

    clock, replays, what = engine.clock, _replays(engine), f"step {step + 1}"
    reset_peak(room.device)
    took = seconds(generate, room.device)
    peaks["generate"] = max(peaks["generate"], peak_bytes(room.device))
    room.rate(f"{what}: generate", took, "s")
    made = sum(len(event.token_ids) for event in events)
    room.rate(f"{what}: generated tokens a second", made / took, "tokens/s", main=True)
    if engine.graphs is not None:
        share = (_replays(engine) - replays) / (engine.clock - clock)
        room.note(f"{what}: decode steps that were replays, share", share)
    return _scored([row_of(one, event) for one, event in zip(asked, events, strict=True)], sizes)


def _scored(rows: list[Row], sizes: Sizes) -> list[Row]:
    """A response is right that ends with an even token. Groups that are all right or all wrong are left out."""
    right = np.array([float(row.token_ids[-1] % 2 == 0) for row in rows]).reshape(-1, sizes.size)
    advantages = np.concatenate(group_advantages(list(right), [np.ones(sizes.size, np.bool_)] * sizes.groups))
    return [replace(row, advantage=float(a)) for row, a in zip(rows, advantages, strict=True) if a != 0.0]


def _learn(room: Room, learner: LearnerDriver, kept: list[Row], step: int, peaks: dict[str, int]) -> None:
    """Two optimiser steps, each over half of the groups."""
    groups, what = sorted({row.group for row in kept}), f"step {step + 1}"
    minibatches = []
    for chosen in (set(groups[::2]), set(groups[1::2])):
        half = [row for row in kept if row.group in chosen]
        total = sum(len(row.token_ids) for row in half)
        minibatches.append([replace(row, loss_weight=1 / total) for row in half])
    work, found = LearnStep(minibatches, [1e-6, 1e-6], step), list[Any]()
    reset_peak(room.device)
    took = seconds(lambda: found.append(learner.learn(work).result()), room.device)
    peaks["learn"] = max(peaks["learn"], peak_bytes(room.device))
    tokens = sum(len(row.token_ids) for row in kept)
    room.rate(f"{what}: learn", took, "s")
    room.rate(f"{what}: trained tokens a second", tokens / took, "tokens/s", main=True)
    norm = found[0].stats["train/grad_norm_max"].value
    room.expect_true(f"{what}: the gradient is a number other than 0", math.isfinite(norm) and norm > 0, str(norm))


def _memory(room: Room, shape: Shape, sizes: Sizes, peaks: dict[str, int]) -> None:
    """Peak bytes against the sums that `dapo check` makes of a recipe with so many slots."""
    layer, cache = (
        layer_sizes(shape),
        CacheShape(shape.layers, shape.kv_heads, shape.head_size, torch.bfloat16, torch.device("meta")),
    )
    fused = 2 * shape.layers * shape.hidden * (layer.queries + 2 * layer.keys + 2 * layer.ffn)
    rows = min(sizes.budget, max(256, 2**27 // shape.vocabulary))
    learning = PER_PARAMETER * shape.parameters + fused + head_bytes(rows, shape.vocabulary, 2)
    learning += activation_bytes(layer, shape.layers, sizes.budget, 2, checkpointing=False)
    generating = 14 * shape.parameters + fused + sizes.slots * slot_bytes(cache, shape.vocabulary, sizes.longest)
    generating += graph_bytes(layer, shape.layers, sizes.slots, sizes.longest, 2, MOST)
    for phase, estimate in (("generate", generating), ("learn", learning)):
        room.note(f"{phase}: estimate", estimate, "B")
        if room.on_card:
            room.note(f"{phase}: peak memory", peaks[phase], "B")
            room.expect(f"{phase}: peak over estimate", peaks[phase] / estimate, at_least=0.4, at_most=1.25)
