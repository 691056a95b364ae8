"""Configurations that train something else there, and what is listed by its effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from each import each

from dapo.cli.main import main
from dapo.importing.convert import import_text
from dapo.importing.reading import Listed

LEAST = {
    "nemo-rl": {"grpo": {"num_prompts_per_step": 4}},
    "skyrl": {"trainer": {"algorithm": {"eps_clip_low": 0.2}}},
    "areal": {"gconfig": {"n_samples": 4}},
    "ms-swift": {"rlhf_type": "grpo"},
    "verl": {"actor_rollout_ref": {"rollout": {"n": 4}}},
    "trl": {"num_generations": 4},
}


def first_line(system: str, more: dict) -> str:
    settings = {**LEAST[system], **more}
    return import_text(json.dumps(settings), "a.json", system).text.splitlines()[0]


@each(
    ("system", "more", "key"),
    [
        ("nemo-rl", {"grpo": {"max_rollout_turns": 5}}, "grpo.max_rollout_turns = 5"),
        ("nemo-rl", {"env": {"should_use_nemo_gym": True}}, "env.should_use_nemo_gym = true"),
        ("nemo-rl", {"env": {"sliding_puzzle_game": {"cfg": {"num_env_workers": 1}}}}, "env.sliding_puzzle_game"),
        ("skyrl", {"generator": {"max_turns": 4}}, "generator.max_turns = 4"),
        ("skyrl", {"generator": {"step_wise_trajectories": True}}, "generator.step_wise_trajectories = true"),
        ("skyrl", {"environment": {"env_class": "search"}}, "environment.env_class = search"),
        ("areal", {"max_turns": 8}, "max_turns = 8"),
        ("areal", {"workflow": "areal.workflow.multi_turn.MultiTurnWorkflow"}, "workflow = "),
        ("areal", {"rollout": {"openai": {"mode": "inline"}}}, "rollout.openai.mode = inline"),
        ("ms-swift", {"multi_turn_scheduler": "math_tip_trick"}, "multi_turn_scheduler = math_tip_trick"),
        ("ms-swift", {"max_turns": 3}, "max_turns = 3"),
        ("ms-swift", {"use_gym_env": True}, "use_gym_env = true"),
        ("verl", {"actor_rollout_ref": {"rollout": {"multi_turn": {"enable": True}}}}, "multi_turn.enable = true"),
        (
            "verl",
            {"actor_rollout_ref": {"rollout": {"multi_turn": {"tool_config_path": "t.yaml"}}}},
            "tool_config_path",
        ),
        ("verl", {"actor_rollout_ref": {"rollout": {"agent": {"default_agent_loop": "tool_agent"}}}}, "tool_agent"),
        ("verl", {"actor_rollout_ref": {"rollout": {"multi_turn": {"max_assistant_turns": 5}}}}, "turns = 5"),
        ("trl", {"max_tool_calling_iterations": 5}, "max_tool_calling_iterations = 5"),
        ("trl", {"environment_factory": "games.Wordle"}, "environment_factory = games.Wordle"),
    ],
)
def test_turns_and_tools_are_the_first_line(system: str, more: dict, key: str) -> None:
    said = first_line(system, more)
    assert said.startswith("# CAUTION: this recipe needs an environment or tools of yours")
    assert key in said


@each(
    ("system", "more"),
    [
        ("nemo-rl", {"grpo": {"max_rollout_turns": 1}, "env": {"math": {"num_workers": 8}}}),
        ("skyrl", {"generator": {"max_turns": 1, "use_conversation_multi_turn": True}}),
        ("skyrl", {"environment": {"env_class": "gsm8k", "skyrl_gym": {"max_env_workers": 4}}}),
        ("areal", {"workflow": "areal.workflow.rlvr.RLVRWorkflow", "max_turns": None}),
        ("ms-swift", {"use_gym_env": False, "max_turns": 1}),
        ("verl", {"actor_rollout_ref": {"rollout": {"multi_turn": {"enable": False, "max_assistant_turns": 5}}}}),
        ("verl", {"actor_rollout_ref": {"rollout": {"agent": {"default_agent_loop": "single_turn_agent"}}}}),
        ("trl", {"environment_factory": None, "tools": []}),
    ],
)
def test_one_turn_without_tools_begins_as_ever(system: str, more: dict) -> None:
    assert first_line(system, more).startswith("# Made by")


@each(
    ("system", "more", "lines"),
    [
        ("nemo-rl", {"grpo": {"max_rollout_turns": 5}}, ['kind: "my_environment:FILL_IN"', "max_turns: 5"]),
        ("skyrl", {"generator": {"max_turns": 4}}, ['kind: "my_environment:FILL_IN"', "max_turns: 4"]),
        ("areal", {"max_turns": 8}, ["max_turns: 8"]),
        ("ms-swift", {"max_turns": 3}, ["max_turns: 3"]),
        (
            "verl",
            {
                "actor_rollout_ref": {
                    "rollout": {
                        "multi_turn": {"max_assistant_turns": 5, "format": "hermes", "tool_config_path": "t.yaml"}
                    }
                }
            },
            ["kind: tools", "tools: [", "tool_format: hermes", "max_turns: 5"],
        ),
        ("trl", {"max_tool_calling_iterations": 5}, ["kind: tools", "max_turns: 6"]),
    ],
)
def test_limits_of_turns_become_lines(system: str, more: dict, lines: list[str]) -> None:
    text = import_text(json.dumps({**LEAST[system], **more}), "a.json", system).text
    section = text.partition("environment:")[2]
    for line in lines:
        assert line in section


def test_tools_that_python_makes_are_seen_too() -> None:
    text = "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig(num_generations=4), tools=[multiply])"
    assert "tools = [multiply]" in import_text(text, "a.py").text.splitlines()[0]


def test_the_command_says_it_first_and_splits_the_report(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(
        "python -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.multi_turn.enable=True"
        " actor_rollout_ref.actor.fsdp_config.param_offload=True data.frobnicate=3 trainer.val_before_train=True"
    )
    assert main(["import", "run.sh", "-o", "mine.yaml"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("CAUTION: this recipe needs an environment or tools of yours")
    assert "settings that are not known to `dapo import`, or could not be read: 1: data.frobnicate" in out
    assert "settings without a line that change what is computed there, listed at its end: 1" in out
    text = Path("mine.yaml").read_text()
    unknown, computed = text.partition("# Unknown to `dapo import`")[2].split("# Changes what is computed there")
    assert "data.frobnicate = 3" in unknown
    assert "multi_turn.enable = true: code of an environment or of tools" in computed
    assert "param_offload" not in text
    assert main(["import", "run.sh", "-o", "mine.yaml", "--force", "--verbose"]) == 0
    idle = Path("mine.yaml").read_text().partition("# Memory, speed and logs only, or off here and there:")[2]
    assert "param_offload" in idle
    assert "val_before_train" in idle


@each(
    ("settings", "computed"),
    [
        ({"actor_rollout_ref": {"actor": {"optim": {"lr": "abc"}}}}, True),
        ({"actor_rollout_ref": {"actor": {"fsdp_config": {"wrap": 1}}}}, False),
        ({"trainer": {"log_val_generations": 3}}, False),
        ({"reward_model": {"model": {"path": "m"}}}, True),
        ({"actor_rollout_ref": {"actor": {"shuffle": True}}}, True),
        ({"actor_rollout_ref": {"model": {"custom": 1}}}, True),
        ({"actor_rollout_ref": {"actor": {"ppo_micro_batch_size_per_gpu": 2}}}, False),
        ({"trainer": {"critic_warmup": 0}}, False),
    ],
)
def test_an_entry_is_listed_by_its_effect(settings: dict, computed: bool) -> None:
    made = import_text(json.dumps({"actor_rollout_ref": {"rollout": {"n": 4}}} | settings), "a.json", "verl")
    (entry,) = made.reading.apart
    assert (entry.kind is not Listed.IDLE) is computed


def test_code_of_a_model_is_not_switched_on_by_an_import() -> None:
    """A recipe that runs code of a model's folder is written by the person who read that code."""
    for text, name in (
        ("actor_rollout_ref: {rollout: {n: 4}, model: {trust_remote_code: true}}", "a.yaml"),
        ("trl grpo --model_name_or_path m --trust_remote_code", "a.sh"),
        ("swift rlhf --rlhf_type grpo --dataset a --trust_remote_code true", "a.sh"),
    ):
        made = import_text(text, name)
        assert "model.trust_remote_code" not in made.reading.lines
        (entry,) = [entry for entry in made.reading.apart if "trust_remote_code" in entry.what]
        assert "runs code that comes with the model" in entry.reason
        assert entry.kind is not Listed.IDLE


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"enabled": False, "max_staleness_steps": 4}, None),
        ({"enabled": True}, 4),
        ({"enabled": True, "max_staleness_steps": 2}, 2),
        ({"max_staleness_steps": 2}, None),
        ({"enabled": True, "max_staleness_steps": 0}, 0),
    ],
)
def test_skyrls_switch_decides_whether_generation_overlaps(more: dict, expected: int | None) -> None:
    made = import_text(json.dumps({"trainer": {"algorithm": {"eps_clip_low": 0.2}, "fully_async": more}}), "a.json")
    line = made.reading.lines.get("rollout.max_staleness")
    assert (line and line.value) == expected
    assert made.refused == ""
    if expected is None and "max_staleness_steps" in more:
        assert f"trainer.fully_async.max_staleness_steps = {more['max_staleness_steps']}: " in made.text
