"""What ``dapo sft`` reads of a recipe that is for training by reward too."""

import pytest

from dapo.config import recipe_from_dict
from dapo.config.check_sft import _OF_REWARDS, _OF_REWARDS_TOO, _READ_ANYWAY, read_by_sft, supervised
from dapo.config.checks import long_warmup
from dapo.config.settings import settings
from dapo.run.algorithm import make_schedule

RECIPE = {
    "run": {"name": "both", "reward_workers": 2, "seed": 7},
    "model": {"path": "builtin/signed-sum"},
    "data": {"train": [{"task": "signed_sum", "size": 8}], "instruction": "Think.", "max_prompt_tokens": 99},
    "rewards": [{"kind": "task"}],
    "rollout": {"group_size": 4, "prompts_per_step": 2, "stop_token_ids": [2]},
    "learner": {"learning_rate": 1e-4, "betas": [0.9, 0.99], "minibatch_prompts": 1},
    "algorithm": {"overlong_filtering": False},
    "trainer": {"steps": 3, "max_hours": 2},
    "logging": {"tokens": 0, "console": "plain"},
    "sft": {"train": [{"path": "x.jsonl"}], "learning_rate": 1e-3},
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    return RECIPE


def test_a_supervised_run_names_the_settings_that_it_reads(recipe):
    assert set(recipe_from_dict(recipe, sft=True).difference) == {
        "run.seed",
        "data.instruction",
        "rollout.stop_token_ids",
        "learner.betas",
        "trainer.max_hours",
        "logging.console",
        "sft.learning_rate",
    }
    both = set(recipe_from_dict(recipe).difference)
    assert {"rollout.group_size", "learner.learning_rate", "trainer.steps", "run.reward_workers"} <= both
    assert not [path for path in both if path.startswith("sft.")]


def test_its_command_line_is_told_of_what_it_does_not_read(recipe):
    said = recipe_from_dict(recipe, ["learner.learning_rate=1e-5", "sft.epochs=2", "algorithm.clip.high=0.3"], sft=True)
    assert said.warnings == (
        "`dapo sft` does not read learner.learning_rate (it has sft.learning_rate), algorithm.clip.high",
    )
    assert recipe_from_dict(recipe, ["sft.epochs=2", "learner.eps=1e-6", "run.name=x"], sft=True).warnings == ()


def test_training_by_reward_is_told_of_settings_on_top_that_only_the_supervised_start_reads(recipe):
    """A file is for both, and says nothing; a command line, or a caller of the Python functions, is for one."""
    assert not [word for word in recipe_from_dict(recipe).warnings if "sft" in word]
    said = recipe_from_dict(recipe, ["sft.epochs=2", "sft.learning_rate=1e-3", "trainer.steps=4"]).warnings
    assert [word for word in said if "sft" in word] == ["`dapo train` does not read sft.epochs: `dapo sft` does"]
    laid = {**recipe, "sft": {**recipe["sft"], "batch_size": 4}}
    said = recipe_from_dict(laid, beneath=recipe).warnings
    assert [word for word in said if "sft" in word] == ["`dapo train` does not read sft.batch_size: `dapo sft` does"]


def test_every_name_of_the_rule_is_a_setting():
    known = settings()
    assert all(section in known for section in _OF_REWARDS)
    assert all(f"{section}.{name}" in known for section, names in _OF_REWARDS_TOO.items() for name in names.split())
    assert all(path in known and read_by_sft(path) for path in _READ_ANYWAY)
    assert not read_by_sft("rewards.0.weight")
    assert not read_by_sft("data.train.0.size")


@pytest.mark.parametrize(("steps", "ends"), [(1, "0.0001"), (9, "0.0009"), (10, ""), (20, ""), (21, None)])
def test_a_warm_up_of_half_the_run_or_more_is_told_with_the_rate_that_is_reached(recipe, steps, ends):
    made = recipe_from_dict(recipe | {"run": {"name": "both", "stage": "sft"}}).recipe
    schedule = make_schedule(supervised(made, steps))
    reached = max(schedule.at(step, step) for step in range(steps))
    said = long_warmup("sft", 10, steps, made.sft.learning_rate)
    assert (said is None) == (ends is None)
    if ends:
        assert f"takes all {steps} steps: the learning rate ends at {ends} and never reaches" in said
    elif said:
        assert f"takes 10 of the {steps} steps" in said
        assert said.endswith(f"with sft.warmup={steps // 10}")
    assert reached == pytest.approx(float(ends or 1e-3), rel=1e-12)
