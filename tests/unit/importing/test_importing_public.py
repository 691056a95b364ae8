"""Settings of public configurations of other trainers that were lost or turned round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dapo.importing.convert import import_text


def lines_of(system: str, settings: dict) -> dict:
    made = import_text(json.dumps(settings), "a.json", system)
    return {key: line.value for key, line in made.reading.lines.items()}


def test_a_reward_models_engine_is_not_the_policys() -> None:
    engine = {"rollout": {"tensor_model_parallel_size": 4, "max_num_seqs": 8, "enforce_eager": True}}
    lines = lines_of("verl", {"reward": {"reward_model": engine}, "reward_model": engine})
    assert not {"rollout.slots", "rollout.vllm.enforce_eager", "rollout.vllm.tensor_parallel_size"} & set(lines)


def test_the_adapter_of_megatron() -> None:
    lora = {"rank": 256, "alpha": 512, "target_modules": ["linear_qkv"]}
    lines = lines_of("verl", {"actor_rollout_ref": {"model": {"lora": lora}}})
    assert (lines["model.lora.rank"], lines["model.lora.lora_alpha"]) == (256, 512.0)


def test_an_adapter_that_is_off_has_no_lines() -> None:
    settings = {"policy": {"dtensor_cfg": {"lora_cfg": {"enabled": False, "target_modules": []}}}}
    assert not [key for key in lines_of("nemo-rl", settings) if key.startswith("model.lora")]


def test_skyrls_cispo_bounds_are_distances_from_one() -> None:
    bounds = {"policy_loss_type": "cispo", "cispo": {"cispo_eps_clip_high": 3, "cispo_eps_clip_low": 0.5}}
    lines = lines_of("skyrl", {"trainer": {"algorithm": bounds}})
    assert (lines["algorithm.loss.cap"], lines["algorithm.loss.floor"]) == (4.0, 0.5)
    lines = lines_of("skyrl", {"trainer": {"algorithm": {"policy_loss_type": "cispo"}}})
    assert (lines["algorithm.loss.cap"], lines["algorithm.loss.floor"]) == (6.0, 1.0)  # 1 + 5, 1 - 0


@pytest.mark.parametrize(
    ("more", "mode"),
    [({}, "mask"), ({"sample_full_batch": True}, "filter")],
)
def test_skyrls_asynchronous_filter(more: dict, mode: str) -> None:
    trainer = {"algorithm": {"zero_variance_filter": True}, "fully_async": {"enabled": True} | more}
    assert lines_of("skyrl", {"trainer": trainer})["algorithm.dynamic_sampling.mode"] == mode


def test_steps_of_skyrl() -> None:
    assert lines_of("skyrl", {"trainer": {"max_training_steps": 40, "epochs": 3}})["trainer.steps"] == 40


def test_a_loss_of_areal() -> None:
    lines = lines_of("areal", {"actor": {"use_sapo_loss": True, "sapo_tau_neg": 1.2, "c_clip": 3.0}})
    assert (lines["algorithm.loss.kind"], lines["algorithm.loss.negative"]) == ("sapo", 1.2)
    assert "algorithm.clip.dual" not in lines


def test_no_limit_of_staleness_is_the_longest_here() -> None:
    assert lines_of("areal", {"rollout": {"max_head_offpolicyness": 1_000_000_000}})["rollout.max_staleness"] == 64


def test_nemo_rls_time_limit_best_checkpoint_and_staleness() -> None:
    settings = {
        "checkpointing": {"checkpoint_must_save_by": "00:03:45:00", "metric_name": "val:accuracy"},
        "data": {"validation": {"dataset_name": "AIME2024"}},
        "grpo": {"async_grpo": {"enabled": True, "max_trajectory_age_steps": 8}},
        "logger": {"mlflow_enabled": True},
    }
    lines = lines_of("nemo-rl", settings)
    assert lines["trainer.max_hours"] == 3.75
    assert lines["checkpoint.best"] == "validation/accuracy"
    assert lines["rollout.max_staleness"] == 8
    assert lines["logging.trackers"] == ["mlflow"]


def test_bounds_of_trls_correction() -> None:
    settings = {"use_vllm": True, "vllm_importance_sampling_mode": "token_mask"}
    settings |= {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": 2.0}
    lines = lines_of("trl", settings)
    assert (lines["algorithm.correction.floor"], lines["algorithm.correction.cap"]) == (0.5, 2.0)


def test_trls_reference_that_replaces_follows_and_one_that_mixes_is_listed() -> None:
    follows = {"sync_ref_model": True, "ref_model_sync_steps": 8, "beta": 0.1}
    assert lines_of("trl", follows | {"ref_model_mixup_alpha": 1.0})["algorithm.reference.refresh_every"] == 8
    made = import_text(json.dumps(follows), "a.json", "trl")
    assert "algorithm.reference.refresh_every" not in made.reading.lines
    assert "mixes reference and policy" in made.text


def test_arguments_of_vllm_come_along_and_those_with_a_setting_become_it() -> None:
    engine = {"engine_init_kwargs": {"max_num_seqs": 32, "max_model_len": 4096, "seed": 1}}
    lines = lines_of("skyrl", {"generator": {"inference_engine": engine}})
    assert lines["rollout.vllm.engine_args"] == {"seed": 1}
    assert lines["rollout.slots"] == 32


def test_a_quotation_over_several_lines_with_marks_of_comments() -> None:
    script = (
        'PROMPT="Don\'t guess.\n# Steps\n#### 42"\nswift rlhf --rlhf_type grpo --system "$PROMPT" --num_generations 4\n'
    )
    lines = import_text(script, "a.sh").reading.lines
    assert lines["rollout.group_size"].value == 4
    assert lines["data.system_prompt"].value == "Don't guess.\n# Steps\n#### 42"


def test_nemo_rls_override_replaces_a_section_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "data: {train: {dataset_name: gsm8k}, default: {prompt_file: a.txt}}\ngrpo: {num_prompts_per_step: 4}"
    )
    own = "defaults: base.yaml\ndata: {_override_: true, train: {data_path: d/t.jsonl, input_key: q, output_key: a}}"
    made = import_text(own, "a.yaml", folder=tmp_path)
    lines = {key: line.value for key, line in made.reading.lines.items()}
    assert lines["data.train"] == [{"path": "d/t.jsonl", "fields": {"problem": "q", "answer": "a"}}]
    assert lines["rollout.prompts_per_step"] == 4
    assert "prompt_file" not in made.text
    assert "output_key = a:" not in made.text  # it is in the line
    made = import_text(own.replace("_override_: true, ", ""), "a.yaml", folder=tmp_path)
    assert "prompt_file" in made.text


def test_a_key_of_a_section_that_nobody_knows_is_not_taken_for_another() -> None:
    settings = {"gconfig": {"n_samples": 4}, "actor": {"aent": {"entropy_coeff": 0.1}}}
    made = import_text(json.dumps(settings), "a.json", "areal")
    assert "algorithm.entropy_coefficient" not in made.reading.lines
    assert "actor.aent.entropy_coeff = 0.1" in made.text
    assert (
        lines_of("areal", {"gconfig": {"n_samples": 4}, "actor": {"entropy_coeff": 0.1}})[
            "algorithm.entropy_coefficient"
        ]
        == 0.1
    )


def test_the_least_rate_of_a_schedule() -> None:
    settings = {"num_generations": 8, "lr_scheduler_type": "cosine_with_min_lr"}
    lines = lines_of("trl", settings | {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}})
    assert (lines["learner.schedule"], lines["learner.final_ratio"]) == ("cosine", 0.1)
    script = "from trl import GRPOConfig\nGRPOConfig(lr_scheduler_type='cosine_with_min_lr', "
    made = import_text(script + "lr_scheduler_kwargs={'min_lr_rate': 0.2})", "a.py")
    assert made.reading.lines["learner.final_ratio"].value == 0.2


def test_areals_earlier_spelling_of_an_allocation() -> None:
    lines = lines_of("areal", {"gconfig": {"n_samples": 4}, "allocation_mode": "sglang.d4p1t1+d2p1t1"})
    assert (lines["learner.ranks"], lines["rollout.engines"]) == (2, 4)


def test_no_remark_is_empty() -> None:
    rejection = {"level": "token", "action": "mask"}
    settings = {"gconfig": {"n_samples": 4}, "actor": {"use_decoupled_loss": True, "rejection_sampling": rejection}}
    line = import_text(json.dumps(settings), "a.json", "areal").reading.lines["algorithm.correction.floor"]
    assert (line.value, line.comment) == (0.0, "what AReaL does without a setting")
    correction = {"rollout_rs": "geometric", "rollout_rs_threshold": 1.25}
    settings = {"actor_rollout_ref": {"rollout": {"n": 4}}, "algorithm": {"rollout_correction": correction}}
    made = import_text(json.dumps(settings), "a.json", "verl")
    assert made.reading.lines["algorithm.correction.token_cap"].value is None
    assert [key for key, line in made.reading.lines.items() if not line.comment] == []
