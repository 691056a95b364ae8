"""Evaluations made up of counts: which responses to which problem were right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dapo.types.batch import Group, Key, Prompt, Response, Score, content_id
from dapo.types.enums import FinishReason


def evaluation(
    right: Sequence[Sequence[float | None]],
    *,
    name: str = "held_out",
    first: int = 0,
    cut: int = 0,
    read: bool = True,
    order: Sequence[int] | None = None,
    columns: Sequence[Mapping[str, Any]] = (),
) -> dict[str, list[Group]]:
    """Return the groups of an evaluation on one set, by its name.

    Args:
        right: by problem, the accuracy of each sampled response; None: it could not be scored.
        name: of the set.
        first: number in the content of the first problem: other numbers are other problems.
        cut: responses that reached the limit, from the beginning.
        read: the verifier names the answers that it reads.
        order: in which the problems stand in the data.
        columns: further columns of the data, by problem.
    """
    groups: list[Group] = []
    made = 0
    for place, problem in enumerate(order or range(len(right))):
        text = f"problem {first + problem}"
        extra = columns[problem] if columns else {}
        prompt = Prompt(content_id(text), text, np.array([1]), text, str(first + problem), name, extra)
        group = Group(place, prompt, [], [])
        groups.append(group)
        for sample, accuracy in enumerate(right[problem]):
            values = {} if accuracy is None else {"accuracy": accuracy}
            score = Score(values, accuracy, answer="7" if read else None, reason="crash" if accuracy is None else None)
            finish = FinishReason.LENGTH if made < cut else FinishReason.STOP
            tokens = np.zeros(3, np.int64), np.zeros(3, np.float32), np.zeros(3, np.int32)
            group.completions_G.append(Response(*tokens, finish, "text", key=Key("evaluate", place, sample)))
            group.scores_G.append(score)
            made += 1
    return {name: groups}


def of_counts(right: Mapping[int, int] | Sequence[int], samples: int) -> list[list[float]]:
    """Return for each problem so many right responses among its samples."""
    counts = right.values() if isinstance(right, Mapping) else right
    return [[1.0] * int(count) + [0.0] * (samples - int(count)) for count in counts]
