import itertools

import numpy as np
import pytest
from evaluated import evaluation, of_counts

from dapo.config import recipe_from_dict
from dapo.observe.evaluations import held_out_of
from dapo.observe.shares import expected_shares
from dapo.observe.why import filling_line, heartbeat, start_said, why
from dapo.types.evidence import CollectProgress, Shares, hopeless_of, mixed


def test_too_hard_names_both_causes_and_what_a_larger_group_would_do():
    said = why(Shares(kept=0.04, all_wrong=0.92, all_correct=0.04, judged=100, group_size=16), "RUN/rollouts")
    assert said == (
        "92% of the groups are all wrong: the problems are too hard for the model, or the verifier cannot read its "
        "answers. Look at RUN/rollouts, at the prompt's instruction and at the reward's settings; then take easier "
        "problems, show a worked example (data.few_shot), or start a run with a larger rollout.group_size (now 16): "
        "of problems solved 1 time in 50, groups of 16 hold right and wrong responses in 28% of the "
        "tries, groups of 64 in 73%."
    )


@pytest.mark.parametrize(
    ("shares", "parts"),
    [
        (
            {"kept": 0.04, "all_correct": 0.92},
            ["92% of the groups are all correct", "harder problems", "selection.retire.at=1"],
        ),
        ({"kept": 0.2, "all_correct": 0.6, "all_wrong": 0.2}, ["60% of the groups are all correct", "Add harder"]),
        ({"kept": 0.2, "all_wrong": 0.6, "all_correct": 0.2}, ["60% of the groups are all wrong", "easier"]),
        ({"all_wrong": 0.9, "answered": 0.01}, ["found an answer in 1% of the responses: it cannot read them"]),
        (
            {"all_wrong": 0.9, "answered": 0.97},
            ["found an answer in 97% of the responses, so the problems are too hard"],
        ),
        ({"all_wrong": 0.6, "answered": 0.97}, ["in 97% of the responses, so many problems are too hard"]),
        ({"all_wrong": 0.9, "truncated": 0.7}, ["70% of the responses are truncated", "max_response_tokens"]),
        ({"too_few_scored": 0.9, "truncated": 0.8}, ["truncated ones do not vote", "algorithm.truncated_vote=true"]),
        ({"too_few_scored": 0.9, "truncated": 0.8, "truncated_vote": True}, ["could not be scored", "`unscored`"]),
        (
            {"too_few_scored": 0.9, "unscored": {"crash": 2, "timeout": 30}},
            ["30 of them because of 'timeout'", "`unscored`"],
        ),
        ({"kept": 0.1, "uniform": 0.9}, ["algorithm.dynamic_sampling.metric", "90% of the groups"]),
        ({"kept": 0.1, "out_of_band": 0.9}, ["90% of the groups", "algorithm.dynamic_sampling.band"]),
        ({"data_ended": True, "kept": 0.5}, ["data.epochs ran out"]),
        ({"data_ended": True, "all_correct": 0.9}, ["data.epochs ran out", "the problems are solved"]),
        (
            {"all_wrong": 0.9, "accuracy": 0.37},
            ["mean accuracy is 0.37", "correct_at = 1 on. Lower it, or", "mixed: spread"],
        ),
        ({"kept": 0.6}, ["Nothing to mend: 60% of the groups are kept", "takes about 53 groups"]),
        ({"all_wrong": 0.5, "all_correct": 0.5}, ["between solved and hopeless", "no batch gets full"]),
        ({"kept": 0.25, "all_wrong": 0.25, "all_correct": 0.5}, ["between solved and hopeless"]),
        (
            {"kept": 0.22, "all_wrong": 0.78, "accuracy": 0.21},
            ["too hard"],
        ),  # right or wrong: 0.21 is of the mixed groups
        ({"kept": 0.22, "all_wrong": 0.78, "accuracy": 0.24}, ["scores are fractions", "correct_at"]),
        ({"all_retired": True, "data_ended": True}, ["every prompt reached", "selection.retire.review"]),
        ({"judged": 0}, ["No group was judged yet"]),
        (
            {"kept": 0.2, "all_wrong": 0.42, "all_correct": 0.38},
            ["between solved and hopeless", "a batch of 32 takes about 160 groups"],
        ),
        (
            {"kept": 0.47, "all_wrong": 0.53},
            ["Nothing to mend: 47% of the groups are kept", "a batch of 32 takes about 68 groups"],
        ),
        (
            {"kept": 0.1},
            ["10% of the groups are kept", "takes about 320 groups"],
        ),  # a keep rule whose verdicts are unknown
    ],
)
def test_each_cause_names_its_numbers_and_the_setting_to_change(shares, parts):
    said = why(Shares(**{"judged": 100, "group_size": 16, "prompts_per_step": 32, **shares}))
    for part in parts:
        assert part in said
    assert len(said) < 500


def test_pass_rates_that_are_known_take_the_place_of_the_example():
    rates = [0.0] * 20 + [0.05] * 20
    said = why(Shares(all_wrong=0.9, judged=100, group_size=8, hopeless=hopeless_of(rates, 8)))
    expected = [50 * (1 - 0.05**size - 0.95**size) for size in (8, 32)]
    assert f"{expected[0]:.0f}% of their groups of 8 are mixed, {expected[1]:.0f}% of 32" in said
    assert "by the earlier pass rates of the 40 prompts" in said
    never = why(Shares(all_wrong=0.9, judged=100, group_size=8, hopeless=hopeless_of([0.0] * 20, 8)))
    assert "would help little: none of the 20 prompts" in never
    few = why(Shares(all_wrong=0.9, judged=100, group_size=8, hopeless=hopeless_of([0.0] * 19, 8)))
    assert "problems solved 1 time in 20" in few


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5, 1.0])
def test_mixed_is_the_sum_over_all_outcomes(rate, size):
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=size):
        if 0 < sum(outcome) < size:
            total += rate ** sum(outcome) * (1 - rate) ** (size - sum(outcome))
    assert mixed(rate, size) == pytest.approx(total, abs=1e-12)


def test_shares_are_not_rounded_to_all_or_nothing():
    assert "more than 99% of the groups are all wrong" in why(Shares(kept=0.002, all_wrong=0.998, judged=1000))
    assert "100% of the groups are all wrong" in why(Shares(all_wrong=1.0, judged=5))


def test_a_reason_is_untrusted():
    said = why(Shares(too_few_scored=1.0, judged=9, unscored={"exception: \x1b[2J" + "x" * 500: 3}))
    assert "\x1b" not in said
    assert len(said) < 400


def test_the_lines_of_a_batch_that_fills_slowly():
    shares = Shares(kept=0.3, all_wrong=0.7, judged=667, prompts_per_step=512)
    progress = CollectProgress(step=12, kept=200, wanted=512, judged=667, shares=shares)
    assert heartbeat(progress) == "step 12: 200 of 512 groups kept, 30% of those judged"
    assert filling_line(progress) == heartbeat(progress) + ", 667 groups judged. " + why(shares)


def a_batch(kept, judged, wanted=8, carried=0, **more):
    shares = Shares(kept=kept / judged if judged else 0.0, all_wrong=1.0 - kept / max(1, judged), judged=judged)
    return CollectProgress(1, kept + carried, wanted, judged, shares, **{"cap_groups": 20.0 * wanted, **more})


@pytest.mark.parametrize(
    ("batch", "starves"),
    [
        (a_batch(1, 32), True),  # 7 more take 224 groups: 256 of 160
        (a_batch(2, 32), False),  # 6 more take 96: 128
        (a_batch(1, 16), False),  # 7 more take 112: 128
        (a_batch(0, 16), True),
        (a_batch(0, 15), False),  # too few to say
        (a_batch(0, 127, wanted=512), False),
        (a_batch(0, 128, wanted=512), True),
        (a_batch(0, 4, wanted=1, cap_groups=20.0), False),
        (a_batch(0, 5, wanted=1, cap_groups=20.0), True),  # a quarter of the cap
        (a_batch(1, 32, carried=7), False),  # it is full
        (a_batch(0, 32, carried=8), False),
        (a_batch(0, 64, cap_groups=None), True),  # nothing ends the search
        (a_batch(1, 640, cap_groups=None), False),  # it takes long
        (a_batch(0, 64, cap_groups=None, carried=8), False),
        (a_batch(2, 32, cap_tokens=10_000, generated_tokens=3000), True),  # 128 groups take 12,000 tokens
        (a_batch(2, 32, cap_tokens=12_001, generated_tokens=3000), False),
        (a_batch(2, 32, cap_groups=None, cap_tokens=10_000, generated_tokens=3000), True),
    ],
)
def test_a_batch_starves_when_its_rate_needs_more_than_the_cap(batch, starves):
    assert batch.starves == starves


def test_a_batch_that_starves_names_what_it_needs_and_the_cap():
    assert heartbeat(a_batch(1, 32)) == (
        "step 1: 1 of 8 groups kept, 3% of those judged; at this rate the batch needs about 256 groups, and "
        "algorithm.dynamic_sampling.cap.groups ends the search at 160"
    )
    assert "the batch never gets full, and algorithm.dynamic_sampling.cap.groups ends" in heartbeat(a_batch(0, 32))
    tokens = a_batch(2, 32, cap_tokens=10_000, generated_tokens=3000)
    assert heartbeat(tokens).endswith("cap.tokens ends the search at 10,000 tokens (3,000 are generated)")
    assert heartbeat(a_batch(0, 32, cap_groups=None)).endswith(
        ", and no algorithm.dynamic_sampling.cap ends the search"
    )
    assert ", 32 groups judged; at this rate the batch needs" in filling_line(a_batch(1, 32))


@pytest.mark.parametrize(
    ("shares", "parts", "not_said"),
    [
        ({"all_wrong": 1.0, "truncated": 0.84, "answered": 0.0}, ["84% of the responses", "max_response_tokens"], ""),
        ({"too_few_scored": 0.9, "truncated": 0.9, "answered": 0.01}, ["truncated ones do not vote"], "let them vote"),
        ({"all_wrong": 1.0, "answered": 0.0}, ["in 0% of the responses: it cannot read them"], ""),
    ],
)
def test_answers_that_are_never_read_are_named_beside_the_cut(shares, parts, not_said):
    said = why(Shares(**{"judged": 100, "group_size": 16, **shares}))
    for part in (*parts, "data.few_shot", "another kind of reward"):
        assert part in said
    assert not not_said or not_said not in said
    ended = why(Shares(all_wrong=1.0, truncated=0.6, answered=0.35, judged=100))  # nearly all of those that ended
    assert "cannot read those that end" not in ended


def a_recipe(**more):
    given = {
        "model": {"path": "a/b"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rewards": [{"kind": "math"}],
        "rollout": {"group_size": 8},
    }
    return recipe_from_dict({**given, **more}).recipe


def foretold(right, recipe=None, **more):
    return start_said(held_out_of(evaluation(right, **more)), recipe or a_recipe())


def test_the_first_evaluation_foretells_batches_that_hardly_fill():
    said = foretold([[0.0] * 4] * 60, cut=160, read=False)
    assert said.startswith(
        "0 of 240 held-out responses are right before training. If the training problems are like them, 100% of the "
        "groups are all wrong, and 67% of the responses are truncated"
    )
    assert "rollout.max_response_tokens" in said
    assert "data.few_shot" in said
    assert "in 100% of the responses, so the problems are too hard" in foretold([[0.0] * 4] * 60)
    assert "the problems are solved. Take harder problems" in foretold([[1.0] * 4] * 60)
    assert foretold([[1.0, 0.0]] * 120, cut=121) == (
        "50% of the held-out responses are cut off at their limit. Raise rollout.max_response_tokens, or ask for "
        "shorter answers in data.instruction."
    )


def test_no_problems_are_solved_while_wrong_answers_have_no_score():
    said = foretold([[1.0, None]] * 60)
    assert said.startswith("60 of 120 held-out responses could not be scored")
    assert "problems are solved" not in said
    assert "{name: accuracy, kind: math, weight: 0}" in said
    assert "the problems are solved" in foretold([[1.0] * 4] * 60 + [[1.0, 1.0, 1.0, None]])  # 1 in 244 is nothing
    shares = Shares(all_correct=0.9, kept=0.0, judged=50, unscored={"accuracy": 200})
    assert "problems are solved" not in why(shares)
    assert "200 responses had none" in why(shares)


def test_nothing_is_foretold_of_a_model_that_can_learn_or_where_too_little_is_known():
    assert foretold([[1.0, 0.0]] * 120, cut=120) == ""
    assert foretold([[0.0]] * 19, cut=19) == ""
    # 5 % right: 1 - 0.95^8 - 0.05^8 = 34 % of groups of 8 may be mixed; 4 %: 28 %
    assert foretold([[1.0]] * 5 + [[0.0]] * 95) == ""
    assert foretold([[1.0]] * 4 + [[0.0]] * 96) != ""
    spread = a_recipe(algorithm={"dynamic_sampling": {"mixed": "spread"}})
    assert foretold([[0.3]] * 100, spread) == ""
    below = a_recipe(algorithm={"dynamic_sampling": {"correct_at": 0.25}})
    assert "solved" in foretold([[0.99]] * 100, below)


def test_no_other_rates_with_that_mean_give_more_mixed_groups():
    dice = np.random.default_rng(2)
    for _ in range(50):
        right = dice.binomial(10, dice.beta(0.3, 1.0, 80))
        held_out = held_out_of(evaluation(of_counts(right, 10)))
        expected = expected_shares(held_out, a_recipe())
        assert expected.kept >= np.mean([mixed(count / 10, 8) for count in right]) - 1e-12
        assert expected.kept + expected.all_wrong + expected.all_correct == pytest.approx(1.0)
