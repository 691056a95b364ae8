"""Settings beside which a field is read: the switches of six trainers."""

from __future__ import annotations

from typing import Any

LEAST: dict[str, dict[str, Any]] = {
    "nemo-rl": {"grpo": {"num_prompts_per_step": 4}},
    "skyrl": {"trainer": {"algorithm": {"eps_clip_low": 0.2}}},
    "areal": {"gconfig": {"n_samples": 4}},
    "ms-swift": {"rlhf_type": "grpo"},
    "verl": {"actor_rollout_ref": {"rollout": {"n": 4}}},
    "trl": {"num_generations": 4},
}
SWITCHES: dict[str, list[dict[str, Any]]] = {
    "nemo-rl": [
        {
            "grpo": {
                "num_prompts_per_step": 4,
                "use_dynamic_sampling": True,
                "reward_scaling": {"enabled": True},
                "reward_shaping": {"enabled": True},
            },
            "loss_fn": {
                "use_importance_sampling_correction": True,
                "truncated_importance_sampling_type": "icepop",
            },
            "logger": {"wandb_enabled": True},
            "policy": {"dtensor_cfg": {"lora_cfg": {"enabled": True}}},
            "cluster": {"num_nodes": 4, "gpus_per_node": 8},
        }
    ],
    "skyrl": [
        {
            "trainer": {
                "algorithm": {
                    "use_entropy_loss": True,
                    "use_kl_loss": False,
                    "loss_reduction": "seq_mean_token_sum_norm",
                    "policy_loss_type": kind,
                    "dynamic_sampling": {"type": "filter"},
                    "off_policy_correction": correction,
                    "zero_variance_filter": True,
                },
                "logger": "wandb",
                "placement": {"policy_num_gpus_per_node": 8},
            }
        }
        for kind, correction in (
            ("clip_cov", {"tis_ratio_type": "token", "sequence_mask_metric": "geometric"}),
            ("kl_cov", {"tis_ratio_type": "sequence"}),
            ("cispo", {"tis_ratio_type": "token"}),
            ("sapo", {}),
        )
    ]
    + [{"trainer": {"algorithm": {"zero_variance_filter": True}}}],
    "areal": [
        {
            "gconfig": {"n_samples": 4},
            "actor": {"adv_norm": {"eps": 1e-4}, "overlong_reward_penalty": True, "use_decoupled_loss": True}
            | {"overlong_tokens": 5, "overlong_penalty_factor": 1.0, "rejection_sampling": rejection},
            "rollout": {"max_head_offpolicyness": 2, "backend": "sglang:d2"},
            "train_dataset": {"batch_size": 8},
            "cluster": {"n_nodes": 2},
        }
        for rejection in ({"level": "sequence"}, {"level": "token"})
    ],
    "ms-swift": [
        {
            "rlhf_type": "grpo",
            "use_vllm": True,
            "val_dataset": "held_out.jsonl",
            "dynamic_sample": True,
            "rollout_importance_sampling_mode": "token_truncate",
            "reward_funcs": ["accuracy", "soft_overlong"],
            "soft_cache_length": 8,
        },
        {"rlhf_type": "grpo", "use_vllm": True, "vllm_mode": "server"},
    ],
    "verl": [
        {
            "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"loss_agg_mode": "seq-mean-token-sum-norm"} | kl},
            "algorithm": {
                "filter_groups": {"enable": True},
                "adv_estimator": "grpo",
                "rollout_correction": {"rollout_is": "token"},
            }
            | in_reward,
            "trainer": {"logger": ["wandb"], "n_gpus_per_node": 8},
        }
        for kl, in_reward in (({"use_kl_loss": True}, {}), ({}, {"use_kl_in_reward": True}))
    ],
    "trl": [
        {"num_generations": 4, "use_vllm": True, "vllm_importance_sampling_mode": "token_mask"},
        {
            "num_generations": 4,
            "use_vllm": True,
            "vllm_mode": "server",
            "eval_strategy": "steps",
            "entropy_target": 1.0,
        },
    ],
}
VALUES: dict[tuple[str, str], Any] = {
    ("skyrl", "trainer.algorithm.off_policy_correction.sequence_mask_metric"): "product",
    ("areal", "actor.backend"): "fsdp:d4",
    ("areal", "actor.ppo_n_minibatches"): 2,
    ("areal", "actor.prox_logp_method"): "loglinear",
    ("ms-swift", "vllm_mode"): "server",
    ("verl", "algorithm.rollout_correction.rollout_is"): "sequence",
    ("verl", "data.truncation"): "left",
    ("verl", "actor_rollout_ref.actor.fsdp_config.fsdp_size"): 4,
    ("trl", "eval_strategy"): "steps",
    ("trl", "vllm_mode"): "server",
}
"""Values that mean something, where a made-up one would not."""
EARLIER = {
    ("environment_factory", "TRL"),  # an argument of its trainer
    ("interaction_config_path", "verl"),
    ("soft_overlong", "ms-swift"),  # a name among reward_funcs
    ("remote_inference_engine_urls", "SkyRL"),
    ("inference_engine_tensor_parallel_size", "SkyRL"),
    ("launcher", "AReaL"),
    ("chat_template", "NeMo RL"),  # of policy.tokenizer, in configurations of chat models
}
"""Keys that the newest releases do not have: of earlier ones, of files beside the schema, and values."""
