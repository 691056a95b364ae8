"""Procedural sources: problems that are made instead of read."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from dapo.data.formats import RawProblem
from dapo.data.signed_sum import make_problem
from dapo.errors import DataError
from dapo.links import install

SIGNED_SUM = "signed_sum"
REASONING_GYM = "reasoning_gym/"
DEFAULT_SIZE = 10_000


def make_problems(task: str, options: dict[str, Any], seed: int, size: int | None) -> Iterator[RawProblem]:
    """Problems of a task by name: ``signed_sum`` or ``reasoning_gym/NAME``.

    Args:
        task: the name.
        options: arguments of the task (for reasoning-gym: fields of the generator's configuration).
        seed: names the set; the same seed gives the same problems.
        size: how many; None: ``DEFAULT_SIZE``.

    Each problem's ``extra`` holds what the task's own scorer needs (reward kind ``task``).

    Raises:
        DataError: an unknown task (the nearest names are given), an option it does not have, a missing extra.
    """
    size = size or DEFAULT_SIZE
    if task == SIGNED_SUM:
        yield from _signed_sum(options, seed, size)
    else:
        yield from _reasoning_gym(task.removeprefix(REASONING_GYM), options, seed, size)


def _signed_sum(options: dict[str, Any], seed: int, size: int) -> Iterator[RawProblem]:
    for index in range(size):
        try:
            made = make_problem(seed, index, **options)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"task {SIGNED_SUM}: {error}; its options are min_terms, max_terms and minus_probability"
            ) from error
        yield RawProblem(made.prompt, made.answer, {"task": SIGNED_SUM}, f"{SIGNED_SUM}[seed {seed}, {index}]")


def _reasoning_gym(name: str, options: dict[str, Any], seed: int, size: int) -> Iterator[RawProblem]:
    # reasoning-gym makes item i from Random(seed + i), so its neighbouring seeds hold the same problems, shifted by
    # one. Hashing ours first keeps a training set of seed 0 and an evaluation set of seed 1 apart.
    spread = int.from_bytes(hashlib.sha256(f"reasoning_gym/{seed}".encode()).digest()[:4], "big") >> 1
    data = _create(name, options, spread, size)
    for index in range(size):
        where = f"{REASONING_GYM}{name}[seed {seed}, {index}]"
        try:
            entry = data[index]
        except Exception as error:  # a generator's own failure, e.g. options that leave nothing to draw from
            raise DataError(f"{where}: the generator failed: {type(error).__name__}: {error}") from error
        answer = entry["answer"]
        extra = {"task": f"{REASONING_GYM}{name}", "options": options, "entry": entry}
        # Some tasks have many right answers and give none; their scorer works from the entry.
        yield RawProblem(str(entry["question"]), "" if answer is None else str(answer), extra, where)


def _create(name: str, options: dict[str, Any], seed: int, size: int) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise DataError(f"task {REASONING_GYM}{name} needs the package reasoning-gym: {install('tasks')}") from error
    if name not in DATASETS:
        raise DataError(f"reasoning-gym has no task {name!r}{_near(name, list(DATASETS))}")
    known = {item.name for item in dataclasses.fields(DATASETS[name][1])} - {"seed", "size"}
    for key in options:
        if key in ("seed", "size"):
            raise DataError(f"task {REASONING_GYM}{name}: set `{key}` on the data source, not in `options`")
        if key not in known:
            raise DataError(f"task {REASONING_GYM}{name} has no option {key!r}{_near(key, sorted(known))}")
    try:
        if name == "composite":
            options = {**options, "datasets": [DatasetSpec(**spec) for spec in options.get("datasets", [])]}
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **options)
    except Exception as error:  # validation in the generators is by assert, TypeError or ValueError
        raise DataError(f"task {REASONING_GYM}{name} refuses {options}: {type(error).__name__}: {error}") from error


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; the nearest names are {', '.join(near)}"
    return f"; there are {len(known)}: {', '.join(sorted(known)[:12])}{'...' if len(known) > 12 else ''}"
