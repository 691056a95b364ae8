"""A learner under test, and how its checks ask it: ``publish``, ``save``, ``learn``, ``logprobs`` stand here alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dapo.metrics.stats import values
from dapo.types.batch import FloatArray, Learned, LearnStep, Row, SavedFile


@dataclass
class Subject:
    """One learner under test."""

    make: Callable[[], Any]  # -> a new learner; every one has the same weights, and nothing is published yet
    other: Callable[[], Any]  # -> a learner of another model
    diverging: Callable[[], Any]  # -> one whose gradients are never finite; the second one in a row ends it
    close_to: float = 1e-5  # nats between two computations of one log-probability (float32; bfloat16 needs more)
    dtype: str = "float32"  # of the weights


def publish(learner: Any, version: int = 0) -> list[str]:
    """The names of what was published."""
    ticket = learner.publish(version)
    assert ticket.version == version
    return list(ticket.names)


def save(learner: Any, folder: Path) -> list[SavedFile]:
    """The files are what it says of them."""
    saved: list[SavedFile] = learner.save(folder).result(timeout=600)
    assert saved
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        file.name for file in saved
    }
    for file in saved:
        content = (folder / file.name).read_bytes()
        assert (len(content), zlib.crc32(content)) == (file.size, file.crc32), file.name
    return saved


def learn(
    learner: Any,
    minibatches: Sequence[Sequence[Row]],
    rate: float | Sequence[float] = 1e-2,
    *,
    version: int = 0,
    against: Any = "sampler",
) -> Learned:
    rates = [rate] * len(minibatches) if isinstance(rate, float) else list(rate)
    found: Learned = learner.learn(LearnStep(minibatches, rates, version, against)).result(timeout=600)
    return found


def assert_curve_goes_on(
    whole: Any,
    turns: Sequence[Callable[[], Any]],
    batches: Sequence[Sequence[Row]],
    folder: Path,
    tolerance: float,
    look: Callable[[int, Path, set[str]], None] = lambda number, saved, files: None,
) -> None:
    """Learners that each go on from what the one before has saved say together what ``whole`` says alone; each has as
    many batches as the others. ``look`` is shown each checkpoint, and the names of its files."""
    expected = [values(learn(whole, [rows]).stats) for rows in batches]
    found: list[Any] = []
    saved, each = None, len(batches) // len(turns)
    for number, make in enumerate(turns):
        learner = make()
        if saved is not None:
            learner.load(saved)
        found += [values(learn(learner, [rows]).stats) for rows in batches[each * number : each * (number + 1)]]
        saved = folder / str(number)
        look(number, saved, {file.name for file in save(learner, saved)})
    for got, wanted in zip(found, expected, strict=True):
        for key in ("train/loss", "train/grad_norm", "train/entropy", "train/loss_tokens"):
            assert abs(got[key] - wanted[key]) <= tolerance * abs(wanted[key]), key


def logprobs(learner: Any, rows: Sequence[Any]) -> list[FloatArray]:
    found: list[FloatArray] = learner.logprobs(rows).result(timeout=600)
    return found


def same(left: Sequence[FloatArray], right: Sequence[FloatArray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def traced(rows: Sequence[Row], which: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    return [replace(row, traced=which(row)) for row in rows]


def loss_tokens(rows: Sequence[Row]) -> int:
    return sum(int(row.loss_mask.sum()) for row in rows)
