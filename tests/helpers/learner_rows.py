"""Make rows as production does: groups with advantages, through ``Algorithm.rows``. Every learner test takes these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from dapo.algorithms.algorithm import Algorithm
from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import Objective
from dapo.algorithms.reduction import loss_weights
from dapo.types.batch import Group, LearnStep, Prompt, Response, Row, Score, TokenTrace
from dapo.types.enums import FinishReason, Verdict


def make_algorithm(reduction: str = "token_mean", **options) -> Algorithm:
    """Rewards as they are, every scored response votes, the named reduction."""
    return Algorithm(
        judge=lambda values, voters: Verdict.KEPT,
        shape=lambda rewards, lengths, truncated: (rewards, np.zeros(len(rewards))),
        advantages=lambda rewards, voters: list(rewards),
        loss_weights=partial(loss_weights, reduction=reduction, **options),
        truncated_vote=True,
        overlong_filtering=True,
    )


def make_groups(
    seed: int = 0,
    groups: int = 3,
    size: int = 3,
    *,
    length: Callable[[np.random.Generator], int] = lambda random: int(random.integers(1, 9)),
    versions: Sequence[int] = (0,),
    prompt: int = 4,
) -> list[Group]:
    """Groups of random tokens whose advantages are random numbers; each token of a random version."""
    random = np.random.default_rng(seed)
    made = []
    for gid in range(groups):
        asked = Prompt(f"p{gid}", "", random.integers(3, 78, prompt), "", "", "s")
        completions, scores = [], []
        for _ in range(size):
            n = length(random)
            completions.append(
                Response(
                    random.integers(3, 78, n),
                    random.normal(-4.4, 0.3, n).astype(np.float32),
                    np.sort(random.choice(versions, n)).astype(np.int32),
                    FinishReason.STOP,
                )
            )
            scores.append(Score({"accuracy": 1.0}, float(random.normal())))
        made.append(Group(gid, asked, completions, scores))
    return made


def rows_of(groups: Sequence[Group], algorithm: Algorithm | None = None, traced: Collection[int] = ()) -> list[Row]:
    """Shaped, with advantages, as rows of one optimiser step."""
    algorithm = algorithm or make_algorithm()
    for group in groups:
        algorithm.shape_group(group)
    algorithm.assign_advantages(groups)
    return algorithm.rows(groups, traced)


def make_rows(seed: int = 0, groups: int = 3, size: int = 3, reduction: str = "token_mean", **options) -> list[Row]:
    return rows_of(make_groups(seed, groups, size, **options), make_algorithm(reduction))


def with_sampler(rows: Sequence[Row], logprobs: Sequence[np.ndarray]) -> list[Row]:
    """The rows, had the sampler found these log-probabilities."""
    return [replace(row, sampler_logprobs=np.asarray(own, np.float32)) for row, own in zip(rows, logprobs, strict=True)]


def masked(row: Row) -> Row:
    """The row of a response that carries no loss (truncated, say)."""
    return replace(row, loss_mask=np.zeros(len(row.token_ids), dtype=np.bool_))


def learn(learner, rows: Sequence[Row], rate: float = 1e-3, **options) -> dict[str, float]:
    """One optimiser step; its metrics."""
    return learn_step(learner, [rows], rate, **options)[0]


def learn_step(
    learner, minibatches: Sequence[Sequence[Row]], rate: float = 1e-3, **options
) -> tuple[dict[str, float], list[TokenTrace]]:
    """One training step; its metrics and traces."""
    from dapo.metrics.stats import values

    step = LearnStep(minibatches, [rate] * len(minibatches), **{"version": 0, **options})
    learned = learner.learn(step).result()
    return values(learned.stats), learned.traces


def with_extra(rows: Sequence[Row], seed: int = 0) -> list[Row]:
    """Give each row a float for each response token, and two small integers for each token of prompt and response."""
    random = np.random.default_rng(seed)
    return [
        replace(
            row,
            extra={
                "scale": random.random(len(row.token_ids), dtype=np.float32),
                "wide": random.integers(1, 9, (len(row.prompt_ids) + len(row.token_ids), 2), dtype=np.int16),
            },
        )
        for row in rows
    ]


def _scaled(inputs: LossInputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    wide = inputs.extra["wide"]
    assert wide.dtype == torch.int16
    assert wide.shape == (len(inputs.logprobs), 2)
    scale = inputs.extra["scale"] * wide[:, 0] / wide[:, 1]
    flags = {"odd": wide[:, 0] % 2 == 1}
    return -(inputs.logprobs - inputs.old_logprobs).exp() * inputs.advantages * scale, flags


SCALED = Objective(_scaled, reads={"scale": "response", "wide": "sequence"}, zero_advantage_is_free=True)
"""A loss in which every token counts by its extra arrays."""
