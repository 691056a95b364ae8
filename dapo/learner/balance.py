"""Deal rows to ranks so that the ranks' passes cost about the same.

Under FSDP every layer of every pass is a meeting of all ranks, so pass k takes as long as its most expensive rank. The
price of a plan is therefore the sum over k of the largest cost of a pass k. No torch here: the driver plans.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from dapo.types.batch import TokenRow
from dapo.types.model import ModelFacts

EXTRA_PASSES = 2
"""Passes a rank that are tried beyond the fewest possible."""
OVERHEAD = 1 / 32
"""Price of a pass whatever is in it, as a share of its token limit: the weights are gathered in each pass."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Prices of passes over packed rows, in units of one token's matrix products.

    Args:
        rows: all rows that passes may index.
        attention: price of one pair of tokens in attention; ``attention_share`` computes it for a model.
    """

    rows: Sequence[TokenRow]
    attention: float = 0.0

    def prompt(self, row: int) -> float:
        """Return the price of a row's prompt, which the rows of one group in a pass share."""
        length = len(self.rows[row].prompt_ids)
        return length + self.attention * length * (length + 1) / 2

    def response(self, row: int) -> float:
        """Return the price of a row without its prompt."""
        inputs, prompt = self.inputs(row), len(self.rows[row].prompt_ids)
        return inputs + self.attention * inputs * (prompt + (inputs + 1) / 2)

    def inputs(self, row: int) -> int:
        """Return the number of response tokens that are input: the last one predicts nothing."""
        return max(len(self.rows[row].token_ids) - 1, 0)

    def of(self, groups: Sequence[Sequence[int]]) -> float:
        """Return the price of a pass with these rows, given by group."""
        return sum(self.prompt(group[0]) + sum(map(self.response, group)) for group in groups if group)


def attention_share(layers: int, width: int, parameters: int) -> float:
    """Return the price of one pair of tokens in attention, in units of one token's matrix products.

    A token costs 2 x ``parameters`` operations of matrix products. A pair costs 4 x ``width`` in each layer: a product
    for the score and one for the value.

    Args:
        layers: of the model.
        width: heads x head size.
        parameters: those that compute a token; of experts the chosen ones.
    """
    return 2 * layers * width / parameters


def attention_of(facts: ModelFacts) -> float:
    """Return ``attention_share`` of a model."""
    return attention_share(facts.layers, facts.queries, facts.active)


def price_of(plan: Sequence[Sequence[float]]) -> float:
    """Return the price of a plan: [rank][pass] costs, as many passes for every rank."""
    return float(sum(max(costs) for costs in zip(*plan, strict=True)))


@dataclass(slots=True)
class _Bin:
    """A pass that is being filled."""

    tokens: int = 0
    cost: float = 0.0
    groups: dict[int, list[int]] = field(default_factory=dict)  # rows by the group's number


def balanced_passes(
    groups: Sequence[Sequence[int]], costs: Costs, max_tokens: int, ranks: int, most: int
) -> list[list[list[int]]] | None:
    """Return the cheapest plan found, [rank][pass][row], or None if none has at most ``most`` passes a rank.

    Groups are cut into 1, 2, 4... pieces, at last into single responses. Pieces go to the cheapest pass with space,
    most expensive first. The passes, sorted by cost, are dealt to the ranks in rounds: passes of a round cost alike.

    Args:
        groups: rows by group.
        costs: prices.
        max_tokens: input tokens of a pass; a single row above it has a pass to itself.
        ranks: the number of ranks.
        most: passes a rank.
    """
    best: tuple[float, list[list[_Bin]]] | None = None
    largest = max(map(len, groups))
    parts = 1
    while True:
        pieces = _pieces(groups, costs, max_tokens, parts)
        tokens = sum(_tokens(piece, costs) for _, piece in pieces)
        fewest = max(1, -(-tokens // (max_tokens * ranks)))
        for passes in range(fewest, min(most, fewest + EXTRA_PASSES) + 1):
            bins = _fill(pieces, costs, max_tokens, ranks * passes)
            if bins is None:
                continue
            bins.sort(key=lambda one: -one.cost)
            rounds = [bins[n : n + ranks] for n in range(0, len(bins), ranks) if bins[n].groups]
            price = sum(one[0].cost + OVERHEAD * max_tokens for one in rounds)
            if best is None or price < best[0]:
                best = price, rounds
        if parts >= largest:
            break
        parts *= 2
    return None if best is None else _dealt(best[1], ranks)


def _pieces(
    groups: Sequence[Sequence[int]], costs: Costs, max_tokens: int, parts: int
) -> list[tuple[int, Sequence[int]]]:
    """Return (group's number, rows) in ``parts`` parts a group, more where a part would not fit into a pass."""
    found: list[tuple[int, Sequence[int]]] = []
    for number, group in enumerate(groups):
        count = min(parts, len(group))
        while True:
            cut = [group[n * len(group) // count : (n + 1) * len(group) // count] for n in range(count)]
            if count == len(group) or all(_tokens(piece, costs) <= max_tokens for piece in cut):
                break
            count += 1
        found += [(number, piece) for piece in cut]
    return sorted(found, key=lambda one: (-costs.of([one[1]]), one[1][0]))


def _tokens(piece: Sequence[int], costs: Costs) -> int:
    return len(costs.rows[piece[0]].prompt_ids) + sum(map(costs.inputs, piece))


def _fill(pieces: Sequence[tuple[int, Sequence[int]]], costs: Costs, max_tokens: int, count: int) -> list[_Bin] | None:
    """Return ``count`` passes with all pieces, or None if they do not fit."""
    bins = [_Bin() for _ in range(count)]
    heap = [(0.0, number) for number in range(count)]
    for group, piece in pieces:
        passed = []
        while heap:
            _, number = heapq.heappop(heap)
            one = bins[number]
            shared = len(costs.rows[piece[0]].prompt_ids) if group in one.groups else 0
            tokens = _tokens(piece, costs) - shared
            if one.tokens + tokens <= max_tokens or not one.tokens:
                break
            passed.append(number)
        else:
            return None
        one.tokens += tokens
        one.cost += costs.of([piece]) - (costs.prompt(piece[0]) if shared else 0.0)
        one.groups.setdefault(group, []).extend(piece)
        for back in (*passed, number):
            heapq.heappush(heap, (bins[back].cost, back))
    return bins


def _dealt(rounds: Sequence[Sequence[_Bin]], ranks: int) -> list[list[list[int]]]:
    """Return [rank][pass][row]: in each round the rank with the least work so far takes the most expensive pass."""
    plan: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for passes in rounds:
        order = sorted(range(ranks), key=lambda rank: (loads[rank], rank))
        for rank, one in zip(order, passes, strict=True):
            plan[rank].append(sorted(row for rows in one.groups.values() for row in rows))
            loads[rank] += one.cost
    return plan
