"""Which rows share a pass, and on which rank: by hand, and what must hold of every plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.learner.plan import Pass, plan_passes, split
from dapo.types.batch import TokenRow


def row(group: int, prompt: list[int], tokens: list[int]) -> TokenRow:
    return TokenRow(group, np.array(prompt), np.array(tokens, dtype=np.int64))


def test_split_keeps_groups_together_where_they_fit():
    # Input tokens: each group has a prompt of 3, and responses of 3 tokens cost 2.
    rows = [row(group, [1, 2, 3], [1, 2, 3]) for group in (0, 0, 1, 1, 2)]
    assert split(rows, 100) == [[0, 1, 2, 3, 4]]
    assert split(rows, 14) == [[0, 1, 2, 3], [4]]  # 7 + 7, then 5
    assert split(rows, 13) == [[0, 1], [2, 3, 4]]  # group 1 does not fit behind group 0; 7 + 5 do
    assert split(rows, 11) == [[0, 1], [2, 3], [4]]


def test_split_divides_a_group_that_is_too_large_and_repeats_its_prompt():
    rows = [row(0, [1, 2, 3], [1, 2, 3]) for _ in range(5)]
    assert split(rows, 7) == [[0, 1], [2, 3], [4]]
    assert split(rows, 1) == [[0], [1], [2], [3], [4]]  # each row over the limit is a micro-batch of its own


def test_padded_split_counts_padding_and_sorts_by_length():
    rows = [row(0, [1], list(range(n))) for n in (2, 9, 3, 8)]  # 2, 9, 3, 8 input tokens
    assert split(rows, 18, packed=False) == [[1, 3], [2, 0]]
    assert split(rows, 8, packed=False) == [[1], [3], [2, 0]]


def tokens_of(rows, passes):
    """Input tokens of a rank, each group's prompt once a pass."""
    total = 0
    for planned in passes:
        groups = {rows[n].group: len(rows[n].prompt_ids) for n in planned.rows}
        total += sum(groups.values()) + sum(max(len(rows[n].token_ids) - 1, 0) for n in planned.rows)
    return total


def test_one_rank_has_todays_micro_batches_backward_ones_first():
    rows = [row(group, [1, 2, 3], [1, 2, 3]) for group in (0, 0, 1, 1, 2)]
    idle = [False, False, True, False, False]
    assert plan_passes(rows, 100, forward_only=idle) == [[Pass((0, 1, 3, 4)), Pass((2,), backward=False)]]
    assert plan_passes(rows, 100) == [[Pass((0, 1, 2, 3, 4))]]


def test_by_hand_two_ranks_take_whole_groups_largest_first():
    """Groups of 11, 7 and 5 input tokens: 11 against 7 + 5."""
    rows = [row(0, [1] * 3, [1] * 9), row(1, [1] * 3, [1] * 5), row(2, [1] * 3, [1] * 3)]
    assert plan_passes(rows, 100, ranks=2) == [[Pass((0,))], [Pass((1, 2))]]
    # a limit of 7 tokens: the second rank needs two passes, so the first gets an empty one
    assert plan_passes(rows, 7, ranks=2) == [[Pass((0,)), Pass(())], [Pass((1,)), Pass((2,))]]


def test_a_group_larger_than_a_ranks_share_is_divided():
    rows = [row(0, [1, 2], [1, 2, 3]) for _ in range(4)]
    assert plan_passes(rows, 100, ranks=2) == [[Pass((0, 1))], [Pass((2, 3))]]


def test_more_ranks_than_rows():
    assert plan_passes([row(0, [1], [1, 2])], 100, ranks=3) == [[Pass((0,))], [Pass(())], [Pass(())]]
    assert plan_passes([], 100, ranks=2) == [[], []]


@given(
    lengths=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6), min_size=1, max_size=8),
    limit=st.integers(1, 60),
    ranks=st.integers(1, 5),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_row_once_equal_counts_and_a_balanced_load(lengths, limit, ranks, packed, seed):
    random = np.random.default_rng(seed)
    rows = [row(group, [group] * 3, [1] * n) for group, members in enumerate(lengths) for n in members]
    idle = list(random.random(len(rows)) < 0.3)
    plans = plan_passes(rows, limit, ranks=ranks, packed=packed, forward_only=idle)
    assert sorted(n for passes in plans for planned in passes for n in planned.rows) == list(range(len(rows)))
    assert len({tuple(planned.backward for planned in passes) for passes in plans}) == 1  # the same kinds, in one order
    for passes in plans:
        assert all(idle[n] != planned.backward for planned in passes for n in planned.rows)
        assert [planned.backward for planned in passes] == sorted([p.backward for p in passes], reverse=True)
    if not any(idle) and packed:
        loads = [tokens_of(rows, plan_passes(rows, 10**6, ranks=ranks)[rank]) for rank in range(ranks)]
        longest = max(3 + max(n - 1, 0) for members in lengths for n in members)
        assert max(loads) <= 2 * sum(loads) / ranks + longest


@pytest.mark.parametrize("ranks", [2, 3])
def test_equal_groups_are_dealt_out_evenly(ranks):
    rows = [row(group, [1, 2, 3], [1] * 7) for group in range(6 * ranks) for _ in range(4)]
    loads = [tokens_of(rows, passes) for passes in plan_passes(rows, 10**6, ranks=ranks)]
    assert len(set(loads)) == 1
