"""What follows from a promise of staleness, and what it does not go with."""

from __future__ import annotations

import re

import pytest
from small_recipe import small_recipe

from dapo.config.checks import ratio_against
from dapo.config.deployment import Deployment
from dapo.config.load import load_recipe, recipe_from_dict
from dapo.errors import RecipeError

SERVER = {"engine": "vllm_server", "server": {"url": "http://localhost:8000"}}


def recipe(limit, rollout=SERVER, **sampling):
    return small_recipe(
        rollout=rollout | {"max_staleness": limit}, algorithm={"dynamic_sampling": sampling} if sampling else {}
    )


@pytest.mark.parametrize(
    ("limit", "max_age", "lookahead"), [(0, 4, 0.5), (1, 1, 0.5), (2, 2, 1.5), (4, 4, 3.5), (8, 8, 7.5)]
)
def test_what_is_left_open_follows_from_the_promise(limit, max_age, lookahead):
    sampling = recipe(limit).algorithm.dynamic_sampling
    assert (sampling.max_age, sampling.lookahead) == (max_age, lookahead)


def test_what_is_set_stays():
    sampling = recipe(4, max_age=2, lookahead=0.25).algorithm.dynamic_sampling
    assert (sampling.max_age, sampling.lookahead) == (2, 0.25)


def test_a_resolved_recipe_reads_the_same(tmp_path):
    given = {
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rollout": SERVER | {"max_staleness": 2},
    }
    loaded = recipe_from_dict(given)
    (tmp_path / "resolved.yaml").write_text(loaded.resolved)
    assert load_recipe(tmp_path / "resolved.yaml").recipe == loaded.recipe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampling": {"max_age": 3}}, "max_age.*max_staleness = 2.*max_age=2"),
        ({"rollout": {"engine": "generate"}}, "rollout.engine.*whole batches"),
        ({"rollout": {"engine": "embedded", "lockstep": True}}, "rollout.lockstep.*overlap_turns"),
        ({"limit": 0, "rollout": SERVER | {"overlap_turns": 3}}, "overlap_turns.*max_staleness"),
    ],
)
def test_what_cannot_hold_is_refused(change, words):
    with pytest.raises(RecipeError) as refused:
        recipe(change.get("limit", 2), change.get("rollout", SERVER), **change.get("sampling", {}))
    assert re.search(words, str(refused.value).replace("\n", " ")), refused.value


def warnings(limit, **learner):
    return " ".join(
        recipe_from_dict(
            {
                "model": {"path": "builtin/signed-sum"},
                "data": {"train": [{"task": "signed_sum"}]},
                "rollout": SERVER | {"max_staleness": limit},
                "learner": learner,
            }
        ).warnings
    )


def test_one_version_is_warned_of_and_two_are_not():
    assert "max_staleness = 1 waits" in warnings(1)
    assert "max_staleness" not in warnings(2)
    assert "max_staleness" not in warnings(0, minibatch_prompts=8)
    assert "further from the weights" in warnings(2, minibatch_prompts=8)
    assert "learner.epochs_per_rollout = 2: the last minibatch" in warnings(2, epochs_per_rollout=2)


@pytest.mark.parametrize(
    ("rollout", "pool", "lockstep"),
    [
        ({}, False, False),
        ({"max_staleness": 2}, True, False),
        ({"max_staleness": 2, "overlap_turns": 4}, True, True),
        ({"engines": 2}, True, True),
        ({"max_staleness": 2} | SERVER, False, False),
    ],
)
def test_an_engine_beside_the_learner_is_a_pool_of_one(rollout, pool, lockstep):
    found = Deployment(small_recipe(rollout=rollout))
    assert (found.pool, found.lockstep) == (pool, lockstep)


def embedded(limit, recompute, **algorithm):
    return recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum"}]},
            "rollout": {"max_staleness": limit, "embedded": {"recompute_cache": recompute}},
            "algorithm": algorithm,
        }
    )


@pytest.mark.parametrize(
    ("limit", "recompute", "against"), [(0, True, "sampler"), (2, True, "sampler"), (2, False, "learner")]
)
def test_a_cache_of_old_weights_moves_the_ratio_to_the_learners_logprobs(limit, recompute, against):
    assert ratio_against(embedded(limit, recompute).recipe) == against


def test_a_cache_of_old_weights_is_warned_of():
    def told(*args, **algorithm):
        return [text for text in embedded(*args, **algorithm).warnings if "recompute_cache" in text]

    assert told(2, True) == []
    (learner,) = told(2, False)
    assert "against the learner's" in learner
    for against in ("sampler", "interpolated"):
        (ours,) = told(2, False, old_logprobs=against)
        assert f"algorithm.old_logprobs: {against} trains on them" in ours
    (unread,) = told(0, False)
    assert "nothing reads it" in unread
