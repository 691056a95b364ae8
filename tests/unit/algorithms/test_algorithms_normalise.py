"""Advantages of batch and tokens, their clip, and rewards of truncated responses: by hand and by loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from dapo.algorithms.advantages import group_advantages, normalise
from dapo.algorithms.shaping import shape_rewards
from dapo.config.load import recipe_from_dict
from dapo.config.unread import unread
from dapo.errors import RecipeError
from dapo.run.algorithm import make_algorithm
from dapo.types.batch import Group, Prompt, Response, Score
from dapo.types.enums import FinishReason

QUICK = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}
RAW = {"reward_scaling": {"enabled": False}, "overlong_punishment": {"enabled": False}, "overlong_filtering": False}


def close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


REWARDS, ALL = [[0.0, 1.0], [1.0, 1.0]], [[True, True], [True, True]]  # the mean of the batch is 3/4


@each(
    ("baseline", "scale", "expected"),
    [
        ("none", "none", [[0, 1], [1, 1]]),
        ("batch_mean", "none", [[-0.75, 0.25], [0.25, 0.25]]),
        ("batch_leave_one_out", "none", [[-1, 1 / 3], [1 / 3, 1 / 3]]),  # others: 1, 2/3
        # sqrt((9 + 1 + 1 + 1) / 16 / 4) = sqrt(3) / 4
        ("batch_mean", "batch_std", [[-3 / 3**0.5, 1 / 3**0.5], [1 / 3**0.5, 1 / 3**0.5]]),
        # of the first group sqrt((9 + 1) / 16 / 2), of the second 1/4
        ("batch_mean", "group_std", [[-3 / 5**0.5, 1 / 5**0.5], [1, 1]]),
        ("none", "batch_std", [[0, 2 / 3**0.5], [2 / 3**0.5, 2 / 3**0.5]]),
        ("none", "group_std", [[0, 2**0.5], [1, 1]]),
    ],
)
def test_baselines_of_the_batch_by_hand(baseline: Any, scale: Any, expected: list[list[float]]) -> None:
    close(group_advantages(REWARDS, ALL, baseline=baseline, scale=scale, ddof=0, eps=0.0), expected)


def test_responses_that_do_not_vote_count_in_no_mean() -> None:
    found = group_advantages([[0.0, 1.0, np.nan]], [[True, True, False]], baseline="batch_mean", scale="none")
    close(found, [[-0.5, 0.5, 0.0]])


def test_a_response_counts_once_for_each_token() -> None:
    # tokens 1, 1, 1, 5: the mean is 2, the squares 1 + 1 + 1 + 9 = 12
    close(normalise([[1.0, 5.0]], [[3, 1]], ddof=0, eps=0.0), [[-1 / 3**0.5, 3 / 3**0.5]])
    close(normalise([[1.0, 5.0]], [[3, 1]], ddof=1, eps=1.0), [[-1 / 3, 1.0]])  # sqrt(12 / 3) + 1
    close(normalise([[1.0, 5.0]], [[3, 1]], std="none", leave_one_out=True), [[-4 / 3, 4.0]])  # 5 - mean of 1, 1, 1
    close(normalise([[1.0, 5.0], [2.0]], [[1, 1], [0]], mean="group", std="none"), [[-2.0, 2.0], [0.0]])


LEVELS = ("group", "batch", "none")


COMBINATIONS = list(itertools.product(LEVELS, LEVELS, (False, True), (0, 1)))


@pytest.mark.parametrize(("mean", "std", "left_out", "ddof"), COMBINATIONS)
@given(data=st.data())
def test_all_levels_by_loops_over_tokens(mean: Any, std: Any, left_out: bool, ddof: int, data: Any) -> None:
    drawn = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), min_size=1, max_size=4)
    groups = data.draw(st.lists(drawn, min_size=1, max_size=3))
    values, weights = [[float(x) for x, _ in g] for g in groups], [[w for _, w in g] for g in groups]
    found = normalise(values, weights, mean=mean, std=std, leave_one_out=left_out, ddof=ddof, eps=0.25)
    tokens = [[(i, x) for i, (x, w) in enumerate(group) for _ in range(w)] for group in groups]
    flat = [(p, i, float(x)) for p, group in enumerate(tokens) for i, x in group]
    centred = []
    for n, (p, i, x) in enumerate(flat):
        peers = [y for m, (q, _, y) in enumerate(flat) if (mean == "batch" or q == p) and not (left_out and m == n)]
        centred.append((p, i, x - (sum(peers) / len(peers) if mean != "none" and peers else 0.0)))
    for p, i, c in centred:
        squares = [d * d for q, _, d in centred if std == "batch" or q == p]
        free = len(squares) - ddof
        deviation = (sum(squares) / free) ** 0.5 if free > 0 else 1.0
        expected = c if std == "none" else c / (deviation + 0.25)
        assert found[p][i] == pytest.approx(expected, abs=1e-9)
    assert all(found[p][i] == 0 for p, group in enumerate(groups) for i, (_, w) in enumerate(group) if w == 0)


def group_of(number: int, *members: tuple[float, int, bool]) -> Group:
    prompt = Prompt(f"id{number}", "p", np.array([1]), "p", "1", "set")
    ends = {True: FinishReason.LENGTH, False: FinishReason.STOP}
    made = [
        Response(np.ones(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.int32), ends[cut], tick=0)
        for _, n, cut in members
    ]
    return Group(number, prompt, made, [Score({"accuracy": reward}, reward) for reward, _, _ in members], born=1)


def advantages(settings: dict[str, Any], *groups: Group) -> list[list[float]]:
    algorithm = make_algorithm(recipe_from_dict({**QUICK, "algorithm": {**RAW, **settings}}).recipe)
    for group in groups:
        algorithm.shape_group(group)
    algorithm.assign_advantages(groups)
    return [np.asarray(group.advantages_G).tolist() for group in groups]


def test_a_recipe_normalises_by_tokens_with_loss_and_clips_at_the_end() -> None:
    raw = {"advantage": {"baseline": "none", "scale": "none"}}
    norm = {"advantage_norm": {"ddof": 0, "eps": 0.0}}
    # three tokens of reward 0, one of reward 1, the rest as often: the mean is 1/2, every distance 1/2
    groups = [group_of(0, (0.0, 3, False), (1.0, 1, False)), group_of(1, (1.0, 2, False), (0.0, 0, False))]
    close(advantages({**raw, **norm}, *groups), [[-1.0, 1.0], [1.0, 0.0]])
    close(advantages({**raw, **norm, "advantage_clip": {"high": 0.5}}, *groups), [[-1.0, 0.5], [0.5, 0.0]])
    close(advantages({**raw, "advantage_clip": {"low": 0.0, "high": 0.25}}, *groups), [[0.0, 0.25], [0.25, 0.0]])


def test_tokens_without_loss_count_in_no_mean() -> None:
    group = group_of(0, (0.0, 1, False), (0.5, 50, True), (1.0, 1, False))
    settings = {"advantage": {"baseline": "none", "scale": "none"}, "advantage_norm": {"std": "none"}}
    filtered = {"overlong_filtering": True, "truncated_vote": True}
    close(advantages({**settings, **filtered}, group), [[-0.5, 0.0, 0.5]])


def test_rewards_of_truncated_responses_are_multiplied_after_scaling() -> None:
    shaped, penalties = shape_rewards([1.0, 1.0, 0.0], [4, 4, 4], [False, True, True], truncated_factor=0.25)
    assert shaped.tolist() == [1.0, 0.25, -0.25]
    assert penalties.tolist() == [0.0, 0.0, 0.0]
    group = group_of(0, (1.0, 2, False), (1.0, 8, True))
    assert advantages({"truncated_factor": 0.0, "advantage": {"scale": "none"}}, group) == [[0.5, -0.5]]


@each(
    ("settings", "path", "why"),
    [
        ({"overlong_filtering": True, "truncated_factor": 0.5}, "truncated_factor", "neither vote nor carry loss"),
        ({"truncated_factor": 0.5, "advantage": {"kind": "gdpo"}}, "truncated_factor", "kind is gdpo"),
        ({"advantage_norm": {"mean": "none", "std": "none"}}, "advantage_norm.mean", "neither a mean nor a deviation"),
        ({"advantage_norm": {"std": "none", "eps": 0.1}}, "advantage_norm.eps", "std is none"),
        ({"advantage_norm": {"mean": "none", "leave_one_out": True}}, "advantage_norm.leave_one_out", "mean is none"),
    ],
)
def test_settings_that_nothing_reads_are_told(settings: dict[str, Any], path: str, why: str) -> None:
    recipe = recipe_from_dict({**QUICK, "algorithm": {**RAW, **settings}}).recipe
    told = dict(unread(recipe, {f"algorithm.{path}"}))
    assert why in told[f"algorithm.{path}"]


@each("clip", [{"low": 0.5}, {"high": -0.5}, {"low": "a"}])
def test_a_clip_that_leaves_out_zero_is_refused(clip: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"algorithm\.advantage_clip\.(low|high)"):
        recipe_from_dict({**QUICK, "algorithm": {"advantage_clip": clip}})
