"""Reward functions as other trainers call them, coroutines, and the first call of a function."""

from __future__ import annotations

import asyncio
from typing import Any

import functions_for_tests as functions
import pytest
from each import each
from scoring import completion, prompt, score_all

from dapo.config.schema import Reward
from dapo.errors import RewardError
from dapo.rewards.compose import build_scorer
from dapo.rewards.function import load_function, read_values
from dapo.rewards.signatures import adapt
from dapo.types.batch import Prompt


def call(name: str, text: str = "42", of: Prompt | None = None) -> dict[str, float]:
    """Values of one response, as a worker reads them."""
    function = adapt(getattr(functions, name), f"functions_for_tests:{name}", "accuracy")
    return read_values(function(of or prompt("42"), completion(text)), "accuracy")


def conversation(*messages: dict[str, str]) -> Prompt:
    asked = prompt("42")
    return Prompt(
        asked.id, asked.text, asked.token_ids, asked.problem, asked.answer, asked.source, {}, messages=tuple(messages)
    )


SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "question"}


@each(
    ("name", "right", "wrong"),
    [
        ("awaited", {"accuracy": 1.0, "length": 2.0}, {"accuracy": 0.0, "length": 2.0}),
        ("trl_plain", {"accuracy": 1.0}, {"accuracy": 0.0}),
        ("trl_messages", {"accuracy": 1.0}, {"accuracy": 0.0}),
        ("trl_ids", {"accuracy": 0.4}, {"accuracy": 0.4}),
        ("trl_metric", {"accuracy": 1.0, "length": 7.0}, {"accuracy": 1.0, "length": 7.0}),
        ("verl_number", {"accuracy": 1.0}, {"accuracy": 0.0}),
        *((name, {"accuracy": 1.0}, {"accuracy": 0.0}) for name in ("trl_places", "verl_places", "ours_places")),
        *((name, {"accuracy": 1.0}, {"accuracy": 0.0}) for name in ("trl_wrapped", "verl_wrapped", "ours_wrapped")),
        ("trl_metric_wrapped", {"accuracy": 1.0, "length": 7.0}, {"accuracy": 1.0, "length": 7.0}),
        ("ours_more", {"accuracy": 1.0}, {"accuracy": 0.0}),
    ],
)
def test_forms(name: str, right: dict[str, float], wrong: dict[str, float]) -> None:
    assert call(name) == right
    assert call(name, "43") == wrong


def test_a_column_goes_to_the_parameter_of_its_name() -> None:
    assert call("trl_async", of=prompt("42", level="easy")) == {"accuracy": 1.0}
    with pytest.raises(RewardError, match=r"asks for level, and the record has no such column; it has topic"):
        call("trl_async", of=prompt("42", topic="sums"))
    assert call("trl_plain", "7", prompt("42", ground_truth="7")) == {
        "accuracy": 1.0
    }  # a column of the record goes first


def test_none_leaves_a_response_unscored() -> None:
    with pytest.raises(ValueError, match="not a number: NoneType None"):
        call("trl_async", of=prompt("42", level="skip"))


def test_rows_of_messages_give_messages_and_rows_of_text_give_text() -> None:
    assert call("trl_kind") == {"accuracy": 0.0}
    assert call("trl_kind", of=conversation(USER)) == {"accuracy": 1.0}
    assert call("trl_messages", of=conversation(SYSTEM, USER)) == {"accuracy": 1.0}
    assert call("trl_plain", of=conversation(USER)) == {"accuracy": 1.0}  # text, as messages have no strip()


def test_a_list_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a list with one number, for one completion; found list"):
        call("trl_too_many")


def test_verl_gets_its_columns_and_its_numbers_are_recorded() -> None:
    row = {"data_source": "gsm8k", "reward_model": {"ground_truth": "42"}, "extra_info": {"index": 3}}
    assert call("compute_score", of=prompt("42", **row)) == {"accuracy": 1.0, "score": 1.0, "acc": 1.0, "index": 3.0}
    assert call("compute_score", " 43", prompt("42", index=4)) == {
        "accuracy": 0.0,
        "score": 0.0,
        "acc": 0.0,
        "index": 4.0,
    }


def test_accuracy_is_verls_acc_where_a_score_stands_beside_it() -> None:
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": -1.0, "acc": False}

    for reward, values in (("accuracy", {"accuracy": 0.0, "score": -1.0, "acc": 0.0}), ("s", {"s": -1.0, "acc": 0.0})):
        function = adapt(compute_score, "mine:compute_score", reward)
        assert read_values(function(prompt("42"), completion("43")), reward) == values


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("of_texts", "(text, gold)"),
        ("trl_state", "trainer_state is of another"),
        ("verl_server", "reward_router_address"),
        ("texts_wrapped", "(*args, **kwargs)"),
    ],
)
def test_other_parameters_are_refused_with_the_expected_ones_and_a_wrapper(name: str, said: str) -> None:
    with pytest.raises(RewardError) as refusal:
        adapt(getattr(functions, name), f"functions_for_tests:{name}", "accuracy")
    assert said in str(refusal.value)
    for part in ("(prompt, completion)", "(prompts, completions, **columns)", "def score(prompt, completion):"):
        assert part in str(refusal.value)
    with pytest.raises(RewardError, match="its parameters are"):
        build_scorer([Reward(kind="function", function=f"functions_for_tests:{name}")])


@pytest.mark.parametrize("ours", [lambda p, c: 1.0, lambda _, c: 1.0, lambda prompt, c, scale=2: 1.0])
def test_our_own_form_by_its_usual_names(ours: Any) -> None:
    adapt(ours, "m:f", "accuracy")


@each("other", [max, print, int, float, len, str.strip, dict, lambda *a, **k: 1.0, lambda **k: 1.0])
def test_what_names_no_parameters_is_refused_before_the_run(other: Any) -> None:
    """Called with a prompt and a completion, each would fail on every response, or return what is no score."""
    with pytest.raises(
        RewardError, match=r"expected \(prompt, completion\), TRL's(?s:.*)def score\(prompt, completion\)"
    ):
        adapt(other, "m:f", "accuracy")


def test_numbers_beside_a_score_that_cannot_be_recorded_cost_no_score() -> None:
    recorded = {"accuracy": 1.0, "format_ok": 1.0, "7": 2.0, "index": 3.0}
    assert call("verl_odd", of=prompt("42", extra_info={"index": 3})) == recorded
    assert call("trl_odd_metric") == {"accuracy": 1.0, "part_format": 1.0}
    with pytest.raises(ValueError, match="not a number: nan"):
        call("verl_nan")


def test_a_mapping_that_the_data_hold_as_text_is_read() -> None:
    row = {"extra_info": '{"index": 3}', "reward_model": '{"style": "rule", "ground_truth": "43"}'}
    assert call("verl_odd", "43", of=prompt("42", **row))["index"] == 3.0
    assert call("verl_odd", "43", of=prompt("42", **row))["accuracy"] == 1.0
    assert call("verl_text", of=prompt("42", extra_info="free text")) == {"accuracy": 1.0}


def test_a_coroutine_is_awaited_within_a_running_loop() -> None:
    """As in a notebook, where a function that cannot be sent to a worker is called."""

    async def cell() -> dict[str, float]:
        return call("awaited")

    assert asyncio.run(cell()) == {"accuracy": 1.0, "length": 2.0}


def test_forms_in_a_worker() -> None:
    rewards = [
        Reward(kind="function", function="functions_for_tests:trl_plain"),
        Reward(kind="function", function="functions_for_tests:compute_score", name="theirs"),
    ]
    scorer = build_scorer(rewards)
    scores = score_all(scorer, ["42", "43"], prompt("42", index=1))
    scorer.close()
    assert [score.values["accuracy"] for score in scores] == [1.0, 0.0]
    assert [score.values["theirs"] for score in scores] == [1.0, 0.0]


def test_a_slow_first_call_costs_no_response() -> None:
    scorer = build_scorer([Reward(kind="function", function="functions_for_tests:slow_at_first", timeout=1)])
    scores = score_all(scorer, ["42", "43", "42"])
    scorer.close()
    assert [score.reward for score in scores] == [1.0, 0.0, 1.0]
    assert scorer.stats()["timeouts"] == 0


def test_a_first_call_that_ends_the_worker_costs_no_response() -> None:
    scorer = build_scorer([Reward(kind="function", function="functions_for_tests:ends_at_a_box")])
    scores = score_all(scorer, ["42", "43"])
    scorer.close()
    assert [score.reward for score in scores] == [1.0, 0.0]
    assert scorer.stats()["worker_restarts"] == 1


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_a_script_that_would_train_when_it_is_imported_is_refused(tmp_path, monkeypatch, guard):
    monkeypatch.chdir(tmp_path)
    name = f"script_{len(guard)}"
    text = f"def score(prompt, completion):\n    return 1.0\n\n\n{guard}trainer.train()\n"
    (tmp_path / f"{name}.py").write_text(f"open('began', 'w')\n{text}")
    if guard:
        assert load_function(f"{name}:score")(None, None) == 1.0
    else:
        with pytest.raises(RewardError, match="line 6 of it starts another trainer"):
            load_function(f"{name}:score")
        assert not (tmp_path / "began").exists()
