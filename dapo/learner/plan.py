"""Which rows go through the model together, and on which rank: planned once, by whoever holds all the rows.

Ranks that shard a model must make equal numbers of forward and of backward passes, in one order, or they wait for each
other for ever. So nothing about counts is decided by a rank: it gets its passes, an empty one where it has no rows left
(a filler row without loss goes through it). No torch here: the driver plans for learners elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from dapo.types.batch import HasTokens, LearnStep, RatioAgainst, Row, by_prompt


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch of one rank."""

    rows: tuple[int, ...]  # indices of the rows given to ``plan_passes``; empty: a filler keeps the ranks in step
    backward: bool = True  # False: these rows have no gradient, and only report


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One rank's part of an optimiser step."""

    rows: tuple[Row, ...]  # of this rank alone
    passes: tuple[Pass, ...]  # over these rows
    learning_rate: float
    places: tuple[int, ...]  # of these rows in the whole minibatch


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank's part of a training step, as it travels."""

    minibatches: tuple[Minibatch | None, ...]  # None: no token carries loss, and nothing moves
    kinds: tuple[tuple[bool, ...], ...]  # of the passes of each minibatch, for every rank: backward or not
    version: int
    ratio_against: RatioAgainst
    entropy_coefficient: float = 0.0
    refresh_reference: bool = False


def plan_step(
    step: LearnStep, max_tokens: int, *, ranks: int = 1, packed: bool = True, zero_advantage_is_free: bool = True
) -> list[RankStep]:
    """What each rank does in a training step. Rows in which no token carries loss go nowhere.

    Args:
        step: of the trainer.
        max_tokens: as for ``plan_passes``; so are ``ranks`` and ``packed``.
        zero_advantage_is_free: rows without any advantage have no gradient, and need only report. A minibatch in which
            every row is such takes its zero gradient.
    """
    shares: list[list[Minibatch | None]] = [[] for _ in range(ranks)]
    kinds: list[tuple[bool, ...]] = []
    for rows, rate in zip(step.minibatches, step.learning_rates, strict=True):
        kept = [number for number, row in enumerate(rows) if row.loss_mask.any()]
        live = [rows[n].advantage != 0.0 for n in kept]
        free = zero_advantage_is_free and any(live)
        planned = plan_passes(
            [rows[n] for n in kept],
            max_tokens,
            ranks=ranks,
            packed=packed,
            forward_only=[free and not alive for alive in live],
        )
        for rank, passes in enumerate(planned):
            shares[rank].append(_own_part(rows, kept, passes, rate) if kept else None)
        kinds.append(check_in_step(planned))
    return [
        RankStep(
            tuple(own),
            tuple(kinds),
            step.version,
            step.ratio_against,
            step.entropy_coefficient,
            step.refresh_reference,
        )
        for own in shares
    ]


def check_in_step(planned: Sequence[Sequence[Pass]]) -> tuple[bool, ...]:
    """The kinds of the passes that all ranks make, in order.

    Raises:
        ValueError: the ranks would make different passes, and wait for each other for ever.
    """
    kinds = {tuple(one.backward for one in passes) for passes in planned}
    if len(kinds) != 1:
        raise ValueError(f"ranks with different passes would never end: {[len(passes) for passes in planned]}")
    return kinds.pop()


def _own_part(rows: Sequence[Row], kept: Sequence[int], passes: Sequence[Pass], rate: float) -> Minibatch:
    """``passes`` index ``kept``, which indexes ``rows``; what comes out holds the rank's own rows, in their order."""
    own = sorted(number for one in passes for number in one.rows)
    place = {number: index for index, number in enumerate(own)}
    return Minibatch(
        rows=tuple(rows[kept[number]] for number in own),
        passes=tuple(Pass(tuple(place[number] for number in one.rows), one.backward) for one in passes),
        learning_rate=rate,
        places=tuple(kept[number] for number in own),
    )


def plan_passes(
    rows: Sequence[HasTokens],
    max_tokens: int,
    *,
    ranks: int = 1,
    packed: bool = True,
    forward_only: Sequence[bool] | None = None,
) -> list[list[Pass]]:
    """The passes of each rank: [rank][pass], as many for every rank, backward passes first.

    Args:
        rows: of one optimiser step.
        max_tokens: input tokens of a micro-batch; a row above it is one of its own.
        ranks: How many share the rows. Whole groups are dealt out by their tokens, largest first onto the least
            loaded rank; a group larger than a rank's share is divided, at the price of its prompt once more.
        packed: rows of a group share their prompt; otherwise rows are padded, and the padding counts.
        forward_only: rows that need no backward pass; default: none.
    """
    idle = forward_only or [False] * len(rows)
    planned: list[list[Pass]] = [[] for _ in range(ranks)]
    for backward in (True, False):
        of_rank = _dealt(rows, [n for n in range(len(rows)) if bool(idle[n]) != backward], ranks)
        passes = [
            [
                Pass(tuple(chosen[i] for i in batch), backward)
                for batch in split([rows[n] for n in chosen], max_tokens, packed=packed)
            ]
            for chosen in of_rank
        ]
        most = max(map(len, passes))
        for rank, own in enumerate(passes):
            planned[rank] += own + [Pass((), backward)] * (most - len(own))
    return planned


def split(rows: Sequence[HasTokens], max_tokens: int, *, packed: bool = True) -> list[list[int]]:
    """Indices of the rows of each micro-batch, at most ``max_tokens`` input tokens each.

    Packed, a group stays together where it fits, so its prompt is computed once; a larger group is divided. Padded,
    rows of similar length come together and the padding counts. A row over the limit is a micro-batch of its own.
    """
    return _split_packed(rows, max_tokens) if packed else _split_padded(rows, max_tokens)


def _dealt(rows: Sequence[HasTokens], chosen: Sequence[int], ranks: int) -> list[list[int]]:
    """The chosen rows of each rank, in the order in which they came."""
    if ranks == 1:
        return [list(chosen)]
    pieces: list[tuple[int, list[int]]] = []  # (tokens, row indices)
    groups = by_prompt([rows[n] for n in chosen])
    costs = [(_prompt(rows, chosen, g) + sum(_inputs(rows[chosen[i]]) for i in g), g) for g in groups]
    share = -(-sum(cost for cost, _ in costs) // ranks)
    for cost, members in costs:
        parts = min(len(members), max(1, -(-cost // max(share, 1))))
        for part in range(parts):
            own = [chosen[i] for i in members[part * len(members) // parts : (part + 1) * len(members) // parts]]
            pieces.append((len(rows[own[0]].prompt_ids) + sum(_inputs(rows[n]) for n in own), own))
    loads = [(0, rank) for rank in range(ranks)]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for cost, own in sorted(pieces, key=lambda piece: (-piece[0], piece[1][0])):
        load, rank = heapq.heappop(loads)
        dealt[rank] += own
        heapq.heappush(loads, (load + cost, rank))
    return [sorted(own) for own in dealt]


def _prompt(rows: Sequence[HasTokens], chosen: Sequence[int], members: Sequence[int]) -> int:
    return len(rows[chosen[members[0]]].prompt_ids)


def _split_packed(rows: Sequence[HasTokens], max_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    used = max_tokens + 1  # the first row opens a micro-batch
    for members in by_prompt(rows):
        prompt = len(rows[members[0]].prompt_ids)
        whole = prompt + sum(_inputs(rows[index]) for index in members)
        opened = used + whole > max_tokens  # a group that does not fit behind the others starts a new micro-batch
        for number, index in enumerate(members):
            cost = _inputs(rows[index]) + (prompt if number == 0 else 0)
            if (opened and number == 0) or used + cost > max_tokens:
                batches.append([])
                used, cost = 0, prompt + _inputs(rows[index])
            batches[-1].append(index)
            used += cost
    return batches


def _split_padded(rows: Sequence[HasTokens], max_tokens: int) -> list[list[int]]:
    lengths = [len(row.prompt_ids) + _inputs(row) for row in rows]
    batches: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda i: -lengths[i]):  # the first of a micro-batch is its longest
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def _inputs(row: HasTokens) -> int:
    return max(len(row.token_ids) - 1, 0)
