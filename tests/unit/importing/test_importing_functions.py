"""The reward function of a verl command becomes a reward of the recipe, or the first line says that it did not."""

from __future__ import annotations

import yaml
from each import each

from dapo.importing.convert import import_text

COMMAND = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=4 data.train_batch_size=8 "
    "algorithm.adv_estimator=grpo "
)
ACCURACY = {"name": "accuracy", "kind": "math", "weight": 0.0}


def recipe_of(more: str) -> tuple[str, dict]:
    text = import_text(COMMAND + more, "run.sh", "verl").text
    return text, yaml.safe_load(text)


@each("section", ["custom_reward_function", "reward.custom_reward_function", "reward_model.custom_reward_function"])
def test_the_function_is_called_as_it_is_beside_an_accuracy_that_does_not_train(section: str) -> None:
    text, recipe = recipe_of(f"{section}.path=rules/my_reward.py {section}.name=grade reward_model.reward_manager=dapo")
    assert recipe["rewards"] == [{"name": "score", "kind": "function", "function": "my_reward:grade"}, ACCURACY]
    assert recipe["algorithm"]["reward_scaling"]["enabled"] is False  # a score of -1 is not clamped to 0
    assert "CAUTION" not in text
    assert "my_reward must be importable from the folder you start in" in text


def test_the_name_has_verls_default() -> None:
    for path, module in (("/data/my_reward.py", "my_reward"), ("pkg://rules.math", "rules.math")):
        rewards = recipe_of(f"custom_reward_function.path={path}")[1]["rewards"]
        assert rewards[0]["function"] == f"{module}:compute_score"


def test_a_function_of_the_batch_manager_sees_its_group() -> None:
    text, recipe = recipe_of("custom_reward_function.path=my_reward.py reward_model.reward_manager=batch")
    assert recipe["rewards"][0]["per"] == "group"
    assert "those to one prompt here" in text


@each("path", ["my-reward.py", "$(find_it)", "rules.so", "rules"])
def test_a_function_that_cannot_be_named_is_the_first_line(path: str) -> None:
    text = import_text(f"{COMMAND} custom_reward_function.path={path}", "run.sh", "verl").text
    assert text.splitlines()[0].startswith("# CAUTION: your reward function was not taken")


def test_arguments_that_the_function_does_not_get_are_named_first() -> None:
    text, _ = recipe_of("custom_reward_function.path=r.py +custom_reward_function.reward_kwargs.strict=True")
    assert "CAUTION: your reward function does not get" in text.splitlines()[0]
    assert "custom_reward_function.reward_kwargs.strict = true" in text.splitlines()[0]


def test_a_command_without_a_function_keeps_the_rule() -> None:
    assert recipe_of("custom_reward_function.path=null")[1].get("rewards", [{"kind": "math"}])[0]["kind"] == "math"


def test_a_reward_manager_of_the_users_is_named_first() -> None:
    text, _ = recipe_of("reward.reward_manager.source=importlib reward.reward_manager.module.path=mine.py")
    assert text.startswith("# CAUTION: your reward manager was not taken (reward.reward_manager.module.path = mine.py)")
