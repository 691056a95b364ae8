"""Plan which rows go through the model together, and on which rank: the driver, which holds all rows, plans once.

Ranks that shard a model must make equal numbers of forward and of backward passes, in one order, or they wait for each
other for ever. So nothing about counts is decided by a rank: it gets its passes, an empty one where it has no rows left
(a filler row without loss goes through it). No torch here: the driver plans for learners elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dapo.errors import LearnerError
from dapo.learner.balance import OVERHEAD, Costs, balanced_passes, price_of
from dapo.metrics.stats import Stats, stat
from dapo.types.batch import LearnStep, RatioAgainst, Row, TokenRow, by_prompt, by_response


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
    epochs: int = 1


def plan_step(
    step: LearnStep,
    max_tokens: int,
    *,
    ranks: int = 1,
    packed: bool = True,
    zero_advantage_is_free: bool = True,
    attention: float = 0.0,
    whole_responses: bool = False,
) -> list[RankStep]:
    """Return the work of each rank in a training step. Rows in which no token carries loss are left out.

    Args:
        step: of the trainer.
        max_tokens: as for ``plan_passes``; so are ``ranks``, ``packed`` and ``attention``.
        zero_advantage_is_free: rows without any advantage have no gradient, and need only report. A minibatch in which
            every row is such takes its zero gradient.
        whole_responses: all parts of a response go into one pass.

    Raises:
        LearnerError: the parts of a response do not fit into one pass, and have to.
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
            attention=attention,
            together=by_response([rows[n] for n in kept]) if whole_responses else None,
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
            step.epochs,
        )
        for own in shares
    ]


def efficiency(plans: Sequence[RankStep], *, packed: bool = True, attention: float = 0.0) -> Stats:
    """Return ``train/lockstep_efficiency`` of a training step: the mean work of a rank over what all wait for.

    Empty for one rank, and for a step without passes. Forward passes are priced like passes with a backward pass: each
    counts by its rows.
    """
    if len(plans) == 1:
        return {}
    work = price = 0.0
    for parts in zip(*(plan.minibatches for plan in plans), strict=True):
        costs = [
            [pass_cost(one.rows, Costs(part.rows, attention), packed) for one in part.passes]
            for part in parts
            if part is not None
        ]
        work += sum(map(sum, costs)) / len(plans)
        price += price_of(costs)
    return stat("train/lockstep_efficiency", work, price) if price else {}


def check_in_step(planned: Sequence[Sequence[Pass]]) -> tuple[bool, ...]:
    """Return the kinds of the passes that all ranks make, in order.

    Raises:
        ValueError: the ranks would make different passes, and wait for each other for ever.
    """
    kinds = {tuple(one.backward for one in passes) for passes in planned}
    if len(kinds) != 1:
        raise ValueError(f"ranks with different passes would never end: {[len(passes) for passes in planned]}")
    return kinds.pop()


def _own_part(rows: Sequence[Row], kept: Sequence[int], passes: Sequence[Pass], rate: float) -> Minibatch:
    """Return the rank's own rows, in their order; ``passes`` index ``kept``, which indexes ``rows``."""
    own = sorted(number for one in passes for number in one.rows)
    place = {number: index for index, number in enumerate(own)}
    return Minibatch(
        rows=tuple(rows[kept[number]] for number in own),
        passes=tuple(Pass(tuple(place[number] for number in one.rows), one.backward) for one in passes),
        learning_rate=rate,
        places=tuple(kept[number] for number in own),
    )


def plan_passes(
    rows: Sequence[TokenRow],
    max_tokens: int,
    *,
    ranks: int = 1,
    packed: bool = True,
    forward_only: Sequence[bool] | None = None,
    attention: float = 0.0,
    together: Sequence[Sequence[int]] | None = None,
) -> list[list[Pass]]:
    """Return the passes of each rank: [rank][pass], as many for every rank, backward passes first.

    One rank keeps the order of the rows. Several ranks get the cheaper of two plans (``balance.price_of``): whole
    groups dealt by tokens, with each rank's passes sorted by cost, or what ``balanced_passes`` finds.

    Args:
        rows: of one optimizer step.
        max_tokens: input tokens of a micro-batch; a row above it has one to itself.
        ranks: the number of ranks that share the rows.
        packed: rows of a group share their prompt; otherwise rows are padded, and the padding counts.
        forward_only: True for rows that need no backward pass; default: none.
        attention: price of a pair of tokens in attention; see ``Costs``.
        together: rows that have to be in one pass, all rows once; None: every row may be in any pass.

    Raises:
        LearnerError: rows of ``together`` do not fit into one pass.
    """
    if together is not None and len(together) < len(rows):
        whole = [_joined(rows, members, max_tokens, packed) for members in together]
        only = None if forward_only is None else [forward_only[members[0]] for members in together]
        found = plan_passes(whole, max_tokens, ranks=ranks, packed=packed, forward_only=only, attention=attention)
        return [
            [Pass(tuple(n for one in each.rows for n in together[one]), each.backward) for each in passes]
            for passes in found
        ]
    idle = forward_only or [False] * len(rows)
    planned: list[list[Pass]] = [[] for _ in range(ranks)]
    for backward in (True, False):
        chosen = [n for n in range(len(rows)) if bool(idle[n]) != backward]
        for rank, batches in enumerate(_shares(rows, chosen, max_tokens, ranks, packed, attention)):
            planned[rank] += [Pass(tuple(batch), backward) for batch in batches]
    return planned


def _joined(rows: Sequence[TokenRow], members: Sequence[int], max_tokens: int, packed: bool) -> TokenRow:
    """Return one row in place of several: its tokens are as many as all of them are in a pass.

    Raises:
        LearnerError: they are too many for one pass.
    """
    own = [rows[n] for n in members]
    if len(own) == 1:
        return own[0]
    first, lengths = len(own[0].prompt_ids), [len(row.prompt_ids) + _inputs(row) for row in own]
    tokens = sum(lengths) if packed else len(own) * max(lengths)
    if tokens > max_tokens:
        raise LearnerError(
            f"the {len(own)} parts of a response have {tokens:,} tokens, and the loss or the correction needs them in "
            f"one pass of learner.microbatch_tokens = {max_tokens:,}: raise it, lower environment.max_turns or "
            "rollout.max_response_tokens, or take a loss and a correction by token (algorithm.loss.ratio: token)"
        )
    return TokenRow(own[0].group, own[0].prompt_ids, np.zeros(tokens - first + 1, np.int32))


def _shares(
    rows: Sequence[TokenRow], chosen: Sequence[int], max_tokens: int, ranks: int, packed: bool, attention: float
) -> list[list[list[int]]]:
    """Return the chosen rows as [rank][pass][row], as many passes for every rank; [] is an empty pass."""
    plan = [
        [[own[n] for n in batch] for batch in split([rows[n] for n in own], max_tokens, packed=packed)]
        for own in deal_groups(rows, chosen, ranks)
    ]
    if ranks == 1 or not chosen:
        return plan
    costs = Costs(rows, attention)
    plan = [sorted(batches, key=lambda batch: -pass_cost(batch, costs, packed)) for batches in plan]
    most = max(map(len, plan))
    plan = [batches + [[]] * (most - len(batches)) for batches in plan]
    if packed:
        groups = [[chosen[n] for n in group] for group in by_prompt([rows[n] for n in chosen])]
        found = balanced_passes(groups, costs, max_tokens, ranks, most)
        if found is not None and _price(found, costs, max_tokens) < _price(plan, costs, max_tokens):
            return found
    return plan


def _price(plan: Sequence[Sequence[Sequence[int]]], costs: Costs, max_tokens: int) -> float:
    each = [[pass_cost(batch, costs, True) for batch in batches] for batches in plan]
    return price_of(each) + len(plan[0]) * OVERHEAD * max_tokens


def pass_cost(rows: Sequence[int], costs: Costs, packed: bool) -> float:
    """Return the price of a pass: packed rows share their prompts, padded rows cost as much as the longest of them."""
    if packed:
        groups = by_prompt([costs.rows[n] for n in rows])
        return costs.of([[rows[n] for n in group] for group in groups])
    return len(rows) * max((costs.prompt(n) + costs.response(n) for n in rows), default=0.0)


def split(rows: Sequence[TokenRow], max_tokens: int, *, packed: bool = True) -> list[list[int]]:
    """Return the indices of the rows of each micro-batch, at most ``max_tokens`` input tokens each.

    Packed, a group stays together where it fits, so its prompt is computed once; a larger group is divided. Padded,
    rows of similar length come together and the padding counts. A row over the limit is a micro-batch of its own.
    """
    return _split_packed(rows, max_tokens) if packed else _split_padded(rows, max_tokens)


def deal_groups(rows: Sequence[TokenRow], chosen: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the chosen rows of each rank: whole groups by tokens, the largest first to the least loaded rank.

    A group that is larger than a rank's share is divided, at the price of its prompt once more.
    """
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


def _prompt(rows: Sequence[TokenRow], chosen: Sequence[int], members: Sequence[int]) -> int:
    return len(rows[chosen[members[0]]].prompt_ids)


def _split_packed(rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
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


def _split_padded(rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
    lengths = [len(row.prompt_ids) + _inputs(row) for row in rows]
    batches: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda i: -lengths[i]):  # the first of a micro-batch is its longest
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def _inputs(row: TokenRow) -> int:
    return max(len(row.token_ids) - 1, 0)
