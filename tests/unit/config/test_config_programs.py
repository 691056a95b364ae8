"""Checks of rewards that run programs or ask a service, and what counts as a mixed group."""

from __future__ import annotations

from typing import Any

import pytest
from each import each

from dapo.config import recipe_from_dict
from dapo.config.mixed import mixed_by_spread, mixed_said
from dapo.config.schema import Recipe
from dapo.errors import RecipeError


def recipe(*rewards: dict[str, Any], **sections: Any) -> Recipe:
    settings = {
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rewards": list(rewards),
    }
    return recipe_from_dict(settings | sections).recipe


SERVICE = {"kind": "service", "url": "http://127.0.0.1:8000"}
CHAT = SERVICE | {"api": "openai", "model": "big", "template": "{response}"}


@pytest.mark.parametrize("address", ["http://me:password@a/score", "https://password@a"])
def test_credentials_in_an_address_are_refused_with_the_next_move(address: str) -> None:
    with pytest.raises(RecipeError, match="api_key_variable") as caught:
        recipe(SERVICE | {"url": address})
    assert "password@" not in str(caught.value)


@each(
    ("reward", "key"),
    [
        ({"kind": "exact", "memory_mib": 100}, "rewards.0.memory_mib"),
        ({"kind": "exact", "entry_point": "name"}, "rewards.0.entry_point"),
        ({"kind": "code", "memory_mib": 8192}, "rewards.0.memory_mib"),
        ({"kind": "code", "url": "http://a"}, "rewards.0.url"),
        ({"kind": "service"}, "rewards.0.url"),
        (SERVICE | {"url": "ftp://a"}, "rewards.0.url"),
        (SERVICE | {"url": "http://me:password@a/score"}, "rewards.0.url"),
        (SERVICE | {"tests": "other"}, "rewards.0.tests"),
        (SERVICE | {"template": "{response}"}, "rewards.0.template"),
        (SERVICE | {"parser": "a:b"}, "rewards.0.parser"),
        (SERVICE | {"pattern": "(a)"}, "rewards.0.pattern"),
        (SERVICE | {"api_key_variable": "sk-secret value"}, "rewards.0.api_key_variable"),
        (CHAT | {"model": None}, "rewards.0.model"),
        (CHAT | {"template": None}, "rewards.0.template"),
        (CHAT | {"template": "{other} {response}"}, "rewards.0.template"),
        (CHAT | {"template": "{response"}, "rewards.0.template"),
        (CHAT | {"template": "{problem}"}, "rewards.0.template"),
        (CHAT | {"batch": 4}, "rewards.0.batch"),
        (CHAT | {"pattern": "score"}, "rewards.0.pattern"),
        (CHAT | {"pattern": "(a)", "parser": "a:b"}, "rewards.0.parser"),
    ],
)
def test_a_setting_that_is_missing_or_read_by_nobody_is_refused(reward: dict[str, Any], key: str) -> None:
    with pytest.raises(RecipeError, match=key.replace(".", r"\.")):
        recipe(reward)


@each(
    ("sandbox", "key"),
    [
        ({"kind": "http"}, "sandbox.url"),
        ({"url": "http://a"}, "sandbox.url"),
        ({"kind": "bubblewrap", "require": "none"}, "sandbox.require"),
        ({"kind": "bubblewrap", "api_key_variable": "A"}, "sandbox.api_key_variable"),
        ({"timeout": 4.0}, "sandbox.timeout"),
        ({"memory_mib": 64}, "sandbox.memory_mib"),
    ],
)
def test_a_sandbox_that_contradicts_itself_is_refused(sandbox: dict[str, Any], key: str) -> None:
    with pytest.raises(RecipeError, match=key.replace(".", r"\.")):
        recipe({"kind": "code"}, sandbox=sandbox)


def test_a_sandbox_that_nobody_uses_is_refused() -> None:
    with pytest.raises(RecipeError, match="sandbox"):
        recipe({"kind": "exact"}, sandbox={"require": "none"})


CALLS = {"kind": "tools", "tools": ["python"], "tool_format": "hermes"}


def test_the_tool_python_uses_the_sandbox() -> None:
    found = recipe({"kind": "exact"}, environment=CALLS, sandbox={"require": "files", "timeout": 2.0})
    assert (found.sandbox.timeout, found.sandbox.memory_mib) == (2.0, 512)


@pytest.mark.parametrize(
    ("sandbox", "environment", "key"),
    [
        ({"timeout": 30.0}, {}, "sandbox.timeout"),
        ({"memory_mib": 1024}, {"memory_mib": 512}, "sandbox.memory_mib"),
        ({}, {"tools": ["ruby"]}, "environment.tools"),
    ],
)
def test_limits_of_the_tool_python_fit_its_process(
    sandbox: dict[str, Any], environment: dict[str, Any], key: str
) -> None:
    with pytest.raises(RecipeError, match=key.replace(".", r"\.")):
        recipe({"kind": "exact"}, environment=CALLS | environment, sandbox=sandbox)


def test_time_limits_are_those_of_the_kind() -> None:
    rewards = ({"kind": "code"}, SERVICE, {"kind": "exact"}, {"kind": "code", "timeout": 1.5})
    assert [recipe(each).rewards[0].seconds for each in rewards] == [5.0, 60.0, 10.0, 1.5]


@each(
    ("reward", "sampling", "spread"),
    [
        ({"kind": "exact"}, {}, False),
        ({"kind": "code"}, {}, False),
        ({"kind": "code", "partial": True}, {}, True),
        (SERVICE, {}, True),
        (SERVICE, {"mixed": "correct", "correct_at": 0.5}, False),
        ({"kind": "exact"}, {"mixed": "spread"}, True),
        ({"kind": "function", "function": "a:b"}, {"metric": "other"}, True),
    ],
)
def test_groups_are_mixed_by_spread_where_scores_are_fractions(
    reward: dict[str, Any], sampling: dict[str, Any], spread: bool
) -> None:
    made = recipe(reward, algorithm={"dynamic_sampling": sampling})
    assert mixed_by_spread(made) == spread
    assert ("differ by more" if spread else "correct_at") in mixed_said(made)
