"""How many groups to dispatch, and what may stay behind; numbers by hand."""

import pytest

from dapo.config.schema import DynamicSampling
from dapo.loop.sampling.prompts import LOWEST_ACCEPTANCE, Refill, in_time, is_full, least_kept


def refill(judged=0, accepted=0, prompts=10, **settings):
    made = Refill(DynamicSampling(**({"lookahead": 0.0, "cap": {"groups": None}, "max_age": 99} | settings)), prompts)
    for n in range(judged):
        made.judged(n < accepted)
    return made


def test_the_estimate_starts_at_one_follows_what_is_judged_and_forgets():
    made = refill()
    assert made.acceptance == 1.0
    for accepted in (True, False, False, False):
        made.judged(accepted)
    assert made.acceptance == pytest.approx(2 / 5)
    made.begin()
    assert made.acceptance == pytest.approx((0.7 + 1) / (2.8 + 1))
    assert refill(judged=1000).acceptance == LOWEST_ACCEPTANCE


def test_what_is_missing_over_the_acceptance_less_what_is_under_way():
    made = refill(judged=19, accepted=9)  # (9 + 1) / (19 + 1) = 0.5
    assert made.wanted(kept=0, under_way=0, free=99, dispatched=0, carried=0) == 20
    assert made.wanted(kept=4, under_way=5, free=99, dispatched=0, carried=0) == 7
    assert made.wanted(kept=4, under_way=5, free=3, dispatched=0, carried=0) == 3  # beyond the slots it would only wait
    assert (
        made.wanted(kept=4, under_way=0, free=0, dispatched=0, carried=0) == 1
    )  # an engine smaller than a group still works
    assert made.wanted(kept=10, under_way=0, free=99, dispatched=0, carried=0) == 0
    assert made.wanted(kept=4, under_way=30, free=99, dispatched=0, carried=0) == 0


def test_lookahead_asks_for_part_of_the_next_batch_where_everything_is_carried():
    half = {"judged": 19, "accepted": 9, "lookahead": 0.5}
    assert refill(**half).wanted(0, 0, 99, 0, 0) == 30
    assert refill(**half).wanted(10, 3, 99, 0, 0) == 7
    assert refill(**half, unfinished="drain").wanted(0, 0, 99, 0, 0) == 20
    assert refill(**half, surplus="discard").wanted(0, 0, 99, 0, 0) == 20


def test_a_fixed_factor_is_dispatched_whatever_the_slots():
    assert refill(judged=19, accepted=9, oversample=3.0).wanted(4, 1, 0, 0, 0) == 17


def test_a_fixed_factor_refills_in_rounds():
    made = refill(judged=19, accepted=9, oversample=3.0, surplus="discard", unfinished="drain")
    made.begin()
    assert made.wanted(kept=0, under_way=2, free=0, dispatched=0, carried=2) == 28  # a step begins: 3 x 10 - 2
    for under_way in (29, 7, 1):
        assert made.wanted(kept=4, under_way=under_way, free=99, dispatched=30, carried=2) == 0
    assert made.wanted(kept=8, under_way=0, free=99, dispatched=30, carried=2) == 6  # the next round: 3 x 2
    assert made.wanted(kept=8, under_way=6, free=99, dispatched=36, carried=2) == 0
    made.begin()
    assert made.wanted(kept=8, under_way=5, free=99, dispatched=0, carried=13) == 1


def test_no_more_is_held_than_can_train_in_time():
    made = refill(judged=1000, max_age=2)
    assert made.wanted(kept=4, under_way=20, free=99, dispatched=0, carried=0) == 6  # 10 x (2 + 1) - 24
    assert refill(judged=1000, max_age=2, surplus="discard").wanted(4, 20, 99, 0, 0) == 99
    assert refill(judged=1000, max_age=2, on_max_age="drop").wanted(4, 20, 99, 0, 0) == 99


def test_the_cap_counts_what_was_dispatched_in_the_step():
    made = refill(judged=19, accepted=9, cap={"groups": 2.5})
    assert made.wanted(kept=0, under_way=0, free=99, dispatched=18, carried=0) == 7
    assert made.wanted(kept=0, under_way=0, free=99, dispatched=25, carried=0) == 0


def test_modes_without_refill_dispatch_p_groups():
    for mode in ("off", "mask"):
        made = refill(judged=19, accepted=9, mode=mode)
        assert made.wanted(kept=0, under_way=0, free=0, dispatched=0, carried=0) == 10
        assert made.wanted(kept=2, under_way=0, free=99, dispatched=10, carried=0) == 0


def test_replace_adds_prompts_until_the_ratio_is_passed():
    made = refill(judged=19, accepted=9, mode="replace", replace={"min_ratio": 0.3})
    assert least_kept(made.settings, 10) == 4  # more than 3
    assert made.wanted(kept=0, under_way=0, free=0, dispatched=0, carried=0) == 10
    assert made.wanted(kept=1, under_way=2, free=0, dispatched=10, carried=0) == 4  # 3 / 0.5 - 2
    assert made.wanted(kept=4, under_way=0, free=0, dispatched=10, carried=0) == 0
    full = lambda kept, unfinished: is_full(made.settings, 10, 1, [1] * kept, [1] * unfinished, 10)  # noqa: E731
    assert [full(3, 0), full(4, 0), full(4, 1)] == [False, True, False]


def test_what_stays_behind_must_fit_into_the_steps_that_are_left():
    # P = 2, max_age = 2, after the batch of step 5: births 3 are due now, 4 in one step, 5 in two
    assert in_time([5, 5, 5, 5], 5, 2, 2)
    assert not in_time([5, 5, 5, 5, 5], 5, 2, 2)
    assert in_time([4, 4, 5, 5], 5, 2, 2)
    assert not in_time([4, 4, 4], 5, 2, 2)
    assert not in_time([3], 5, 2, 2)
    assert not in_time([1], 5, 2, 2)  # overdue, as after a resume with a lower limit
    assert in_time([], 5, 2, 0)


def test_a_full_batch_waits_for_what_is_unfinished_as_the_recipe_says():
    def full(open_births, **settings):
        return is_full(DynamicSampling(**settings), 2, 5, [5, 5, 5], open_births, 9)

    assert full([4], unfinished="carry", max_age=2)
    assert not full([3], unfinished="carry", max_age=2)
    assert full([3], unfinished="carry", max_age=2, on_max_age="drop")
    assert full([3], unfinished="discard", max_age=2)
    assert not full([4], unfinished="drain")
    assert full([], unfinished="drain")
    assert not is_full(DynamicSampling(), 4, 5, [5, 5, 5], [], 9)
    # the kept surplus counts: one of birth 4 is due next step beside two unfinished ones, and only two can train then
    assert full([4, 4], max_age=2)
    assert not is_full(DynamicSampling(max_age=2), 2, 5, [3, 3, 4], [4, 4], 9)
    assert is_full(DynamicSampling(max_age=2, surplus="discard"), 2, 5, [3, 3, 4], [4, 4], 9)
