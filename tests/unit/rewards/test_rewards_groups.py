"""Rewards ``per: group``: one call for all responses to a prompt."""

from __future__ import annotations

from typing import Any

import functions_for_tests as functions
import pytest
from each import each
from scoring import completion, prompt
from test_rewards_service import judge

from dapo.config.load import recipe_from_dict
from dapo.config.schema import Reward
from dapo.errors import RecipeError, RewardError
from dapo.rewards.compose import CompositeScorer, build_scorer
from dapo.rewards.signatures import adapt
from dapo.types.batch import Key, Prompt, Score

TEXTS = ["", "x", "42", "a long one"]


def function(hook: str, **settings: Any) -> Reward:
    return Reward(kind="function", function=f"functions_for_tests:{hook}", per="group", **settings)


def submit(scorer: CompositeScorer, group: int, texts: list[str], of: Prompt | None = None) -> None:
    keys = [Key("train", group, sample) for sample in range(len(texts))]
    scorer.submit_group(keys, of or prompt(level=3), [completion(text) for text in texts])


def scored(scorer: CompositeScorer, count: int) -> list[Score]:
    found: dict[Key, Score] = {}
    while len(found) < count:
        more = scorer.poll(60)
        assert more
        found.update(more)
    return [found[key] for key in sorted(found)]


def score(*rewards: Reward, texts: list[str] = TEXTS, **settings: Any) -> list[Score]:
    scorer = build_scorer(list(rewards), **settings)
    try:
        submit(scorer, 0, texts)
        return scored(scorer, len(texts))
    finally:
        scorer.close()


@each(
    ("name", "values"),
    [
        ("longest", [{"accuracy": v, "members": 4.0} for v in (0.0, 0.0, 0.0, 1.0)]),
        ("trl_rank", [{"accuracy": v, "members": 4.0} for v in (0.0, 0.25, 0.5, 0.75)]),
        ("verl_batch", [{"accuracy": v, "right": 1.0} for v in (0.0, 0.0, 1.0, 0.0)]),
        ("tensor_of_group", [{"accuracy": v} for v in (0.0, 0.25, 0.5, 0.75)]),
    ],
)
def test_one_call_scores_a_group_in_each_form(name: str, values: list[dict[str, float]]) -> None:
    assert [each.values for each in score(function(name))] == values


@each(
    ("name", "said"),
    [
        ("one_too_few", "not a number: expected a list with 4 numbers, one for each of 4 completions; found list"),
        ("one_number", "not a number: expected a list with 4 numbers, one for each of 4 completions; found float 0.5"),
        ("unordered", "not a number: expected a list with 4 numbers, one for each of 4 completions; found set"),
        ("group_raises", "exception: KeyError: 'level'"),
        ("group_ends", "crash: "),
        ("group_hangs", "timeout: no answer within 0.5 s"),
    ],
)
def test_a_call_that_fails_leaves_the_whole_group_unscored_and_no_other(name: str, said: str) -> None:
    scorer = build_scorer([function(name, timeout=0.5)])
    try:
        submit(scorer, 0, TEXTS)
        submit(scorer, 1, ["\\boxed{1}", "boxed"])
        first = scored(scorer, 6)
    finally:
        scorer.close()
    assert all(each.reason is not None and each.reason.startswith(said) for each in first[:4]), first
    assert [each.scored for each in first[4:]] == [name in ("group_ends", "group_hangs")] * 2
    assert scorer.stats()["unscored"] == sum(not each.scored for each in first)


def test_an_entry_that_is_no_number_costs_its_response_alone() -> None:
    reasons = [each.reason for each in score(function("some_missing"))]
    assert reasons[2:] == [None, None]
    assert [str(reason).partition(" (")[0] for reason in reasons[:2]] == [
        "not a number: NoneType None",
        "not a number: str 'high'",
    ]


def test_other_rewards_are_asked_for_each_response_beside_it() -> None:
    comparison = function("trl_rank", name="rank", weight=0.5)
    found = score(Reward(kind="last_number"), Reward(kind="math", name="boxed", weight=0), comparison)
    assert [each.values["accuracy"] for each in found] == [0.0, 0.0, 1.0, 0.0]
    assert [each.values["rank"] for each in found] == [0.0, 0.25, 0.5, 0.75]
    assert [each.reward for each in found] == [0.0, 0.125, 1.25, 0.375]


def test_a_response_alone_is_a_group_of_one() -> None:
    scorer = build_scorer([function("longest")])
    try:
        scorer.submit(Key("train", 0, 0), prompt(), completion("x"))
        assert scored(scorer, 1)[0].values == {"accuracy": 1.0, "members": 1.0}
    finally:
        scorer.close()


@each(
    ("name", "per_group", "said"),
    [
        ("longest", False, r"a function of all responses to a prompt: add `per: group`"),
        ("verl_batch", False, r"a function of all responses to a prompt: add `per: group`"),
        ("awaited", True, r"expected \(prompt, completions\).*a function of one response: take `per: group` out"),
        ("compute_score", True, r"a function of one response: take `per: group` out"),
    ],
)
def test_a_function_of_the_other_kind_is_refused_with_the_setting(name: str, per_group: bool, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        adapt(getattr(functions, name), name, "accuracy", per_group)


def test_functions_whose_second_parameter_has_no_name_fit_both() -> None:
    assert adapt(lambda prompt, _: 1.0, "f", "accuracy")(prompt(), completion("")) == 1.0
    assert adapt(lambda prompt, _: [1.0], "f", "accuracy", True)(prompt(), [completion("")]) == [1.0]


def test_a_service_gets_the_responses_of_a_group_and_is_asked_once_for_equal_groups() -> None:
    def answer(number: int, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        groups = [each["responses"] for each in body["questions"]]
        return 200, {"scores": [[sorted(group).index(text) / 4 for text in group] for group in groups]}

    with judge(answer) as service:
        scorer = build_scorer([Reward(kind="service", per="group", url=service.url)])
        try:
            submit(scorer, 0, TEXTS)
            submit(scorer, 1, TEXTS)
            submit(scorer, 2, TEXTS[:2])
            found = scored(scorer, 10)
        finally:
            scorer.close()
    asked = [question for body in service.bodies for question in body["questions"]]
    assert sorted(len(question["responses"]) for question in asked) == [2, 4]
    assert asked[-1] | {"responses": TEXTS} == {
        "problem": "question",
        "prompt": "question",
        "answer": "42",
        "responses": TEXTS,
    }
    assert [each.values["accuracy"] for each in found] == [0.0, 0.75, 0.25, 0.5, 0.0, 0.75, 0.25, 0.5, 0.0, 0.25]


@each(
    ("answer", "said"),
    [
        (
            {"scores": [[0.1, 0.2]]},
            "not a number: expected a list with 4 numbers, one for each of 4 completions; found",
        ),
        ({"scores": [0.1]}, "not a number: expected a list with 4 numbers, one for each of 4 completions; found float"),
        ({"scores": 0.1}, "service: expected {scores: [...]} with 1 lists of scores"),
        ({"scores": [{"error": "too long"}]}, "service: too long"),
    ],
)
def test_a_service_that_answers_in_another_form_scores_no_response_of_the_group(answer: Any, said: str) -> None:
    with judge(lambda *_: (200, answer)) as service:
        found = score(Reward(kind="service", per="group", url=service.url, retries=0))
    assert all(str(each.reason).startswith(said) for each in found), found


def test_a_chat_model_scores_a_group_by_as_many_numbers() -> None:
    texts = []

    def answer(number: int, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        texts.append(body["messages"][0]["content"])
        reply = "1. Score: 0.5\n2. Score: 1" if number else "Score: 0.5"
        return 200, {"choices": [{"message": {"content": reply}}]}

    with judge(answer) as service:
        template = "{problem}|{responses}"
        reward = Reward(kind="service", per="group", url=service.url, api="openai", model="m", template=template)
        found = score(reward, texts=["a", "b"])
    assert [each.values["accuracy"] for each in found] == [0.5, 1.0]
    assert texts == ["question|Response 1:\na\n\nResponse 2:\nb"] * 2  # a reply of one score was asked for again


@each(
    ("reward", "said"),
    [
        ({"kind": "math"}, "kind: math scores one response"),
        ({"kind": "environment"}, "kind: environment scores one response"),
        (
            {"kind": "service", "url": "http://x", "api": "classify", "model": "m"},
            "api: classify scores one response",
        ),
        (
            {"kind": "service", "url": "http://x", "api": "openai", "model": "m", "template": "{response}"},
            "there are {problem}, {prompt}, {answer}, {responses}",
        ),
    ],
)
def test_rewards_that_cannot_see_a_group_are_refused(reward: dict[str, Any], said: str) -> None:
    rewards = [{"name": "accuracy", "kind": "last_number"}, {"name": "group", "per": "group", **reward}]
    made = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}, "rewards": rewards}
    with pytest.raises(RecipeError) as refused:
        recipe_from_dict(made)
    assert said in str(refused.value)
