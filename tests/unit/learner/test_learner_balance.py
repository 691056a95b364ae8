"""Passes that cost the same on every rank: prices by hand, and what must hold of every plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.learner.balance import Costs, attention_share, balanced_passes, price_of
from dapo.learner.plan import deal_groups, efficiency, pass_cost, plan_passes, plan_step, split
from dapo.metrics.stats import values
from dapo.types.batch import LearnStep, Row, TokenRow


def row(group: int, prompt: int, response: int) -> TokenRow:
    return TokenRow(group, np.full(prompt, group), np.zeros(response, np.int64))


def test_a_price_by_hand():
    rows = [row(0, 3, 5), row(0, 3, 2)]
    plain, paired = Costs(rows), Costs(rows, 0.5)
    # A prompt of 3, then 4 and 1 tokens that predict something.
    assert plain.of([[0, 1]]) == 3 + 4 + 1
    # Pairs: the prompt's tokens see 1, 2, 3; the first response's see 4, 5, 6, 7; the second's sees 4.
    assert paired.of([[0, 1]]) == 8 + 0.5 * (6 + 22 + 4)
    assert paired.of([[0], [1]]) == 3 + 8 + 0.5 * (6 + 22 + 6 + 4)  # the prompt twice
    assert plain.of([[]]) == 0


def test_attention_is_priced_by_the_models_shape():
    # 2 operations a parameter and token; 4 a pair, layer and width.
    assert attention_share(layers=2, width=8, parameters=64) == pytest.approx(4 * 2 * 8 / (2 * 64))


def test_a_plan_costs_its_most_expensive_rank_in_every_pass():
    assert price_of([[5.0, 1.0], [2.0, 4.0]]) == 5 + 4


def test_by_hand_long_responses_meet_long_ones():
    """Two long groups and two short ones, two passes a rank: long beside long, short beside short."""
    rows = [row(0, 1, 3), row(1, 1, 9), row(2, 1, 9), row(3, 1, 3)]
    plan = plan_passes(rows, 9, ranks=2)
    assert [[one.rows for one in passes] for passes in plan] == [[(1,), (0,)], [(2,), (3,)]]


def test_by_hand_a_group_is_divided_where_that_fills_both_ranks():
    """Groups of 9 and 3 responses of one size: 6 responses each instead of 9 against 3."""
    rows = [row(0, 1, 11) for _ in range(9)] + [row(1, 1, 11) for _ in range(3)]
    plan = balanced_passes([list(range(9)), list(range(9, 12))], Costs(rows), 1000, 2, 1)
    assert plan is not None
    costs = Costs(rows)
    prices = [pass_cost(passes[0], costs, packed=True) for passes in plan]
    assert max(prices) == 62  # 60 tokens, and both prompts on one rank


def test_long_prompts_are_not_repeated_for_balance():
    """Dealing single responses would compute each prompt of 1,500 tokens on every rank."""
    rows = [row(group, 1500, 50 + 10 * group) for group in range(8) for _ in range(4)]
    plan = plan_passes(rows, 20_000, ranks=4)
    for passes in plan:
        (one,) = passes
        groups = {rows[n].group for n in one.rows}
        assert len(groups) == 2
        assert len(one.rows) == 8


lengths = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=200)
@given(lengths, st.integers(0, 30), st.integers(10, 90), st.integers(2, 5), st.sampled_from([0.0, 0.01, 0.3]))
def test_every_row_once_within_the_limit_and_never_dearer_than_whole_groups(lengths, prompt, limit, ranks, attention):
    rows = [row(group, prompt, n) for group, members in enumerate(lengths) for n in members]
    costs = Costs(rows, attention)
    plan = plan_passes(rows, limit, ranks=ranks, attention=attention)
    assert sorted(n for passes in plan for one in passes for n in one.rows) == list(range(len(rows)))
    assert len({len(passes) for passes in plan}) == 1
    for passes in plan:
        for one in passes:
            groups = {rows[n].group for n in one.rows}
            tokens = len(groups) * prompt + sum(costs.inputs(n) for n in one.rows)
            assert tokens <= limit or len(one.rows) == 1
    for number in range(len(plan[0])):  # no round of fillers alone
        assert any(passes[number].rows for passes in plan)
    whole = [
        [[own[n] for n in batch] for batch in split([rows[n] for n in own], limit)]
        for own in deal_groups(rows, range(len(rows)), ranks)
    ]
    most = max(map(len, whole))
    assert len(plan[0]) <= most
    before = price_of([[pass_cost(b, costs, True) for b in own] + [0.0] * (most - len(own)) for own in whole])
    now = price_of([[pass_cost(one.rows, costs, True) for one in passes] for passes in plan])
    assert now <= before * (1 + 1e-12)


def test_one_rank_keeps_the_order_of_its_rows():
    rows = [row(group, 3, n) for group, n in enumerate((2, 30, 4, 25, 3))]
    assert [list(one.rows) for one in plan_passes(rows, 40)[0]] == split(rows, 40)


def test_efficiency_by_hand():
    """Rank 0 has passes of 9 and 3 tokens, rank 1 of 9 and 1: both wait for 9 + 3."""
    rows = [_row(0, 9), _row(1, 9), _row(2, 3), _row(3, 1)]
    plans = plan_step(LearnStep([rows], [1.0], 0), 10, ranks=2)
    assert sorted(len(one.rows) for plan in plans for part in plan.minibatches for one in part.passes) == [1, 1, 1, 1]
    (found,) = values(efficiency(plans)).values()
    assert found == pytest.approx((9 + 9 + 3 + 1) / 2 / (9 + 3))
    assert efficiency(plan_step(LearnStep([rows], [1.0], 0), 10)) == {}


def _row(group: int, inputs: int) -> Row:
    """Return a row of a prompt of one token that costs ``inputs``."""
    tokens = np.zeros(inputs, np.int32)
    return Row(
        group=group,
        sample=0,
        prompt_ids=np.full(1, group, np.int32),
        token_ids=tokens,
        loss_mask=np.ones(inputs, bool),
        sampler_logprobs=np.zeros(inputs, np.float32),
        versions=np.zeros(inputs, np.int32),
        loss_weight=1.0,
        advantage=1.0,
    )
