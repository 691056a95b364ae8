"""Keys of other trainers and their names in dapo: sizes, engines, and the rest of a run."""

from __future__ import annotations

from dapo.config.peer_key import AREAL, NEMO, SAME, SKYRL, SWIFT, TRL, VERL, PeerKey, peer_keys

_VLLM = "rollout.vllm"
_SERVER = "rollout.server"
_COUNTS = "one device for each rank, and so many for each engine; docs/scaling.md"
_MACHINES = f"of `dapo launch`; on a machine alone `learner.ranks` and `rollout.engines` count: {_COUNTS}"
_PRODUCT = "with rows for each device and the devices a product in responses; divided by G"
_RESUME = "dapo train --resume RUN"
_SLEEPS = {"true": True, "false": False, "1": True, "2": True, "0": False}

_YOURS = "the code of an environment or a tool cannot come along; docs/environments.md"

RUN: tuple[PeerKey, ...] = (
    # sizes
    *peer_keys({NEMO: "num_prompts_per_step"}, "rollout.prompts_per_step"),
    *peer_keys({VERL: "train_batch_size", SKYRL: "train_batch_size"}, "rollout.prompts_per_step"),
    *peer_keys({NEMO: "num_generations_per_prompt"}, "rollout.group_size"),
    *peer_keys({SWIFT: "num_generations", TRL: "num_generations"}, "rollout.group_size"),
    *peer_keys({SKYRL: "n_samples_per_prompt", AREAL: "n_samples"}, "rollout.group_size"),
    *peer_keys({NEMO: "max_new_tokens", AREAL: "max_new_tokens"}, "rollout.max_response_tokens"),
    *peer_keys({SKYRL: "max_generate_length"}, "rollout.max_response_tokens"),
    *peer_keys({SWIFT: "max_completion_length", TRL: "max_completion_length"}, "rollout.max_response_tokens"),
    *peer_keys(
        {VERL: "max_prompt_length", TRL: "max_prompt_length", SKYRL: "max_prompt_length"}, "data.max_prompt_tokens"
    ),
    *peer_keys({NEMO: "train_global_batch_size"}, "learner.minibatch_prompts", "in prompts, not responses"),
    *peer_keys({VERL: "ppo_mini_batch_size"}, "learner.minibatch_prompts"),
    *peer_keys({SKYRL: "policy_mini_batch_size"}, "learner.minibatch_prompts"),
    *peer_keys({AREAL: "ppo_n_minibatches"}, "learner.minibatch_prompts", "the size of one, not their number"),
    *peer_keys({SWIFT: "steps_per_generation", TRL: "steps_per_generation"}, "rollout.prompts_per_step", _PRODUCT),
    *peer_keys({SWIFT: "num_iterations", TRL: "num_iterations"}, "learner.epochs_per_rollout", values=SAME),
    *peer_keys({VERL: "ppo_epochs"}, "learner.epochs_per_rollout", values=SAME),
    *peer_keys({SKYRL: "update_epochs_per_batch"}, "learner.epochs_per_rollout", values=SAME),
    *peer_keys(
        {SWIFT: "per_device_train_batch_size", TRL: "per_device_train_batch_size"},
        "rollout.prompts_per_step learner.minibatch_prompts",
        _PRODUCT,
    ),
    *peer_keys(
        {SWIFT: "gradient_accumulation_steps", TRL: "gradient_accumulation_steps"},
        "learner.minibatch_prompts",
        _PRODUCT,
    ),
    *peer_keys({SWIFT: "num_generations_eval", TRL: "num_generations_eval"}, "validation.samples", values=SAME),
    *peer_keys({NEMO: "val_num_generations_per_prompt"}, "validation.samples", values=SAME),
    *peer_keys({NEMO: "grpo.seed", SKYRL: "trainer.seed"}, "run.seed", values=SAME),
    *peer_keys({TRL: "shuffle_dataset"}, "data.shuffle", values=SAME),
    *peer_keys({TRL: "cast_lm_head_to_fp32"}, "model.fp32_head", values=SAME),
    *peer_keys({AREAL: "min_lr_ratio"}, "learner.final_ratio", values=SAME),
    *peer_keys({SWIFT: "system"}, "data.system_prompt", values=SAME),
    *peer_keys(
        {SWIFT: "truncation_strategy"},
        "data.overlong_prompts",
        "nothing is ever cut: a prompt over the limit is dropped",
        {"delete": "drop", "raise": "refuse"},
    ),
    *peer_keys({SWIFT: "async_generate"}, "rollout.max_staleness", "one step", {"true": 1, "false": 0}),
    *peer_keys({AREAL: "max_tokens_per_mb"}, "learner.microbatch_tokens", "memory only: it cannot change the gradient"),
    # several turns
    *peer_keys(
        {VERL: "max_assistant_turns", NEMO: "max_rollout_turns", SKYRL: "generator.max_turns"}, "environment.max_turns"
    ),
    *peer_keys({TRL: "max_tool_calling_iterations"}, "environment.max_turns", "turns, so one more than calls"),
    *peer_keys({VERL: "max_parallel_calls"}, "", "all calls of a turn are answered"),
    *peer_keys({VERL: "multi_turn.format", AREAL: "tool_call_parser"}, "environment.tool_format"),
    *peer_keys({VERL: "max_tool_response_length"}, "environment.max_reply_tokens", "in tokens, there in characters"),
    *peer_keys(
        {VERL: "tool_response_truncate_side"}, "", "the middle of a long reply is cut (`environment.long_reply`)"
    ),
    *peer_keys({VERL: "tool_config_path"}, "environment.tools", _YOURS),
    *peer_keys(
        {
            VERL: "interaction_config_path agent_loop_config_path",
            SWIFT: "multi_turn_scheduler gym_env",
        },
        "environment.kind",
        _YOURS,
    ),
    *peer_keys(
        {TRL: "environment_factory", SKYRL: "env_class"},
        "environment.kind",
        "your class as it is, module:Class; docs/howto_environments.md",
    ),
    # engines
    *peer_keys({SWIFT: "use_vllm", TRL: "use_vllm"}, "rollout.engine", "true is `vllm`"),
    *peer_keys({SWIFT: "vllm_mode", TRL: "vllm_mode"}, "rollout.engine", "colocate is `vllm`, server is `vllm_server`"),
    *peer_keys(
        {
            SWIFT: "vllm_server_base_url vllm_server_host",
            TRL: "vllm_server_base_url vllm_server_host",
            SKYRL: "remote_inference_engine_urls",
        },
        f"{_SERVER}.url",
    ),
    *peer_keys({NEMO: "generation.backend", SKYRL: "generator.backend", VERL: "rollout.name"}, "rollout.engine"),
    *peer_keys(
        {
            NEMO: "gpu_memory_utilization",
            SKYRL: "gpu_memory_utilization",
            VERL: "gpu_memory_utilization",
            AREAL: "gpu_memory_utilization",
            SWIFT: "vllm_gpu_memory_utilization",
            TRL: "vllm_gpu_memory_utilization",
        },
        f"{_VLLM}.gpu_memory_utilization",
        values=SAME,
    ),
    *peer_keys(
        {
            SKYRL: "tensor_model_parallel_size inference_engine_tensor_parallel_size",
            VERL: "tensor_model_parallel_size",
            SWIFT: "vllm_tensor_parallel_size",
            TRL: "vllm_tensor_parallel_size",
        },
        f"{_VLLM}.tensor_parallel_size",
        values=SAME,
    ),
    *peer_keys({NEMO: "vllm_cfg.tensor_parallel_size"}, f"{_VLLM}.tensor_parallel_size", values=SAME),
    *peer_keys(
        {
            NEMO: "enforce_eager",
            SKYRL: "enforce_eager",
            VERL: "enforce_eager",
            AREAL: "enforce_eager",
            SWIFT: "vllm_enforce_eager",
        },
        f"{_VLLM}.enforce_eager",
        values=SAME,
    ),
    *peer_keys(
        {VERL: "free_cache_engine", TRL: "vllm_enable_sleep_mode", SWIFT: "sleep_level"},
        f"{_VLLM}.sleep",
        values=_SLEEPS,
    ),
    *peer_keys(
        {SKYRL: "max_num_seqs", VERL: "max_num_seqs", AREAL: "max_num_seqs", SWIFT: "vllm_max_num_seqs"},
        "rollout.slots",
        values=SAME,
    ),
    *peer_keys({SWIFT: "vllm_server_port", TRL: "vllm_server_port"}, f"{_SERVER}.url", "address and port in one"),
    *peer_keys(
        {
            NEMO: "max_model_len",
            VERL: "max_model_len",
            AREAL: "max_model_len",
            SWIFT: "max_model_len vllm_max_model_len",
            TRL: "vllm_max_model_length",
        },
        "data.max_prompt_tokens rollout.max_response_tokens",
        "the engine is started for their longest sum",
    ),
    *peer_keys(
        {SKYRL: "max_num_batched_tokens", VERL: "max_num_batched_tokens"},
        f"{_VLLM}.engine_args",
        "by the same name in it",
    ),
    *peer_keys(
        {VERL: "calculate_log_probs"}, "algorithm.old_logprobs", "engines always give them; `sampler` trains on them"
    ),
    *peer_keys(
        {
            VERL: "engine_kwargs",
            SKYRL: "engine_init_kwargs",
            NEMO: "vllm_kwargs",
            SWIFT: "vllm_engine_kwargs",
        },
        f"{_VLLM}.engine_args",
    ),
    # the rest of a run
    *peer_keys(
        {SWIFT: "log_completions", TRL: "log_completions"},
        "logging.rollouts",
        "every step's groups are kept; `dapo report` shows them",
    ),
    *peer_keys({NEMO: "model_name"}, "model.path"),
    *peer_keys({TRL: "model_name_or_path"}, "model.path"),
    *peer_keys({NEMO: "max_num_steps"}, "trainer.steps"),
    *peer_keys({SWIFT: "max_steps", TRL: "max_steps", VERL: "total_training_steps"}, "trainer.steps"),
    *peer_keys({NEMO: "checkpoint_dir"}, "run.dir run.name"),
    *peer_keys({SWIFT: "output_dir", TRL: "output_dir"}, "run.dir run.name"),
    *peer_keys({NEMO: "wandb_enabled wandb.name"}, "logging.trackers run.name"),
    *peer_keys({SWIFT: "save_steps", TRL: "save_steps", NEMO: "save_period"}, "checkpoint.every"),
    *peer_keys({SWIFT: "eval_steps", TRL: "eval_steps", NEMO: "val_period"}, "validation.every"),
    *peer_keys({NEMO: "lr", SKYRL: "lr", VERL: "lr", AREAL: "lr"}, "learner.learning_rate"),
    *peer_keys(
        {SWIFT: "warmup_steps", TRL: "warmup_steps", VERL: "lr_warmup_steps", SKYRL: "num_warmup_steps"},
        "learner.warmup",
    ),
    *peer_keys(
        {
            SWIFT: "max_grad_norm",
            TRL: "max_grad_norm",
            SKYRL: "max_grad_norm",
            NEMO: "max_grad_norm clip_grad",
            VERL: "clip_grad",
        },
        "learner.max_grad_norm",
    ),
    *peer_keys(
        {SWIFT: "resume_from_checkpoint", TRL: "resume_from_checkpoint", SKYRL: "resume_mode", VERL: "resume_mode"},
        "",
        f"use `{_RESUME}`",
    ),
    *peer_keys({NEMO: "num_nodes"}, "slurm.nodes", _MACHINES),
    *peer_keys({NEMO: "gpus_per_node"}, "slurm.options", f"gpus-per-node, {_MACHINES}"),
    *peer_keys({VERL: "nnodes"}, "slurm.nodes", _MACHINES),
    *peer_keys({VERL: "n_gpus_per_node", AREAL: "n_gpus_per_node"}, "slurm.options", f"gpus-per-node, {_MACHINES}"),
    *peer_keys(
        {AREAL: "launcher allocation_mode", TRL: "deepspeed", SWIFT: "deepspeed"},
        "learner.ranks rollout.engines",
        _COUNTS,
    ),
    *peer_keys({VERL: "data.max_response_length"}, "rollout.max_response_tokens"),
    *peer_keys({VERL: "rollout.n"}, "rollout.group_size"),
    *peer_keys(
        {SWIFT: "max_length", AREAL: "max_length"},
        "data.max_prompt_tokens",
        "of the length penalty: `algorithm.overlong_punishment.max_length`",
    ),
    *peer_keys({AREAL: "max_head_offpolicyness"}, "rollout.max_staleness", "the same unit: versions of the weights"),
    *peer_keys({SKYRL: "max_staleness_steps"}, "rollout.max_staleness"),
    *peer_keys({NEMO: "max_trajectory_age_steps"}, "rollout.max_staleness"),
    *peer_keys({NEMO: "async_grpo.enabled"}, "rollout.max_staleness", "2 or more: generation beside learning"),
    *peer_keys(
        {VERL: "train_files", SWIFT: "dataset dataset_name", TRL: "dataset dataset_name", NEMO: "dataset_name"},
        "data.train",
        "a list: [{path: FILE}]",
    ),
    *peer_keys(
        {VERL: "val_files", SWIFT: "val_dataset eval_dataset", TRL: "val_dataset eval_dataset"},
        "data.validation",
        "a list: [{path: FILE}]",
    ),
    *peer_keys({VERL: "prompt_key"}, "data.train.N.fields", "{problem: THE_COLUMN}"),
    *peer_keys(
        {
            TRL: "chat_template_kwargs",
            NEMO: "chat_template_kwargs",
            SKYRL: "chat_template_kwargs",
            VERL: "apply_chat_template_kwargs",
        },
        "data.chat_template_kwargs",
        values=SAME,
    ),
    *peer_keys(
        {NEMO: "chat_template", SKYRL: "chat_template", VERL: "custom_chat_template"},
        "data.chat_template",
        "its text or a file; null is the tokenizer's",
    ),
    *peer_keys(
        {NEMO: "stop_strings", SKYRL: "sampling_params.stop", AREAL: "gconfig.stop"}, "rollout.stop", values=SAME
    ),
    *peer_keys(
        {SWIFT: "interleave_prob"}, "data.train.N.weight", "one number for each source; they need not add up to 1"
    ),
    *peer_keys({SWIFT: "stop_words"}, "rollout.stop", "token ids among them go to `rollout.stop_token_ids`"),
    *peer_keys({SWIFT: "enable_thinking"}, "data.chat_template_kwargs", "{enable_thinking: false}"),
    *peer_keys({SWIFT: "response_prefix"}, "data.response_prefix", values=SAME),
    *peer_keys({VERL: "truncation filter_overlong_prompts"}, "data.overlong_prompts", "nothing is ever cut"),
    *peer_keys(
        {VERL: "total_epochs", AREAL: "total_train_epochs", TRL: "num_train_epochs", SWIFT: "num_train_epochs"},
        "data.epochs",
    ),
    *peer_keys({VERL: "save_freq", SKYRL: "ckpt_interval"}, "checkpoint.every"),
    *peer_keys({NEMO: "checkpointing.enabled"}, "checkpoint.every", "0 saves at the end only"),
    *peer_keys(
        {TRL: "save_total_limit", SWIFT: "save_total_limit", NEMO: "keep_top_k", SKYRL: "max_ckpts_to_keep"},
        "checkpoint.keep",
        "the newest",
        values=SAME,
    ),
    *peer_keys(
        {VERL: "test_freq", SKYRL: "eval_interval", TRL: "eval_strategy", SWIFT: "eval_strategy"},
        "validation.every",
        "0 is never",
    ),
    *peer_keys(
        {VERL: "val_before_train", SKYRL: "eval_before_train"}, "", "a run is always evaluated before its first step"
    ),
    *peer_keys(
        {TRL: "report_to", SWIFT: "report_to", VERL: "trainer.logger", SKYRL: "trainer.logger"}, "logging.trackers"
    ),
    *peer_keys({VERL: "project_name", SKYRL: "project_name"}, "logging.trackers.N.project"),
    *peer_keys(
        {VERL: "experiment_name", AREAL: "experiment_name", SKYRL: "run_name", TRL: "run_name", SWIFT: "run_name"},
        "run.name",
    ),
    *peer_keys({TRL: "logging_steps", SWIFT: "logging_steps"}, "", "every step is written to metrics.jsonl"),
    *peer_keys(
        {TRL: "bf16 torch_dtype", SWIFT: "bf16 torch_dtype", SKYRL: "bf16"}, "model.dtype", "bf16 is `bfloat16`"
    ),
    *peer_keys({TRL: "fp16", SWIFT: "fp16"}, "", "`model.dtype` is `float32` or `bfloat16`"),
    *peer_keys({TRL: "attn_implementation", SWIFT: "attn_impl", AREAL: "attn_impl"}, "model.attention"),
    *peer_keys({SWIFT: "lora_rank", VERL: "lora_rank", AREAL: "lora_rank", TRL: "lora_r"}, "model.lora.rank"),
    *peer_keys(
        {SWIFT: "lora_alpha", VERL: "lora_alpha", TRL: "lora_alpha", AREAL: "lora_alpha"},
        "model.lora.lora_alpha",
    ),
    *peer_keys({SWIFT: "use_rslora", TRL: "use_rslora"}, "model.lora.use_rslora", values=SAME),
    *peer_keys(
        {SWIFT: "lora_dropout", TRL: "lora_dropout"},
        "",
        "an adapter has no dropout: the sampler has none, and the ratio would take it for a change of the policy",
    ),
    *peer_keys(
        {
            TRL: "lora_target_modules",
            SWIFT: "target_modules",
            VERL: "target_modules",
            SKYRL: "target_modules",
            NEMO: "target_modules",
            AREAL: "target_modules",
        },
        "model.lora.target_modules",
    ),
    *peer_keys({TRL: "lora_modules_to_save", SWIFT: "modules_to_save"}, "model.lora.modules_to_save", values=SAME),
    *peer_keys(
        {
            SWIFT: "train_type tuner_type",
            TRL: "train_type tuner_type use_peft",
            AREAL: "use_lora",
            NEMO: "lora_cfg.enabled",
        },
        "model.lora.rank",
        "an adapter wherever it has a rank",
    ),
    *peer_keys(
        {TRL: "load_in_4bit load_in_8bit", SWIFT: "quant_method"},
        "",
        "no QLoRA: the engine would sample from other weights",
    ),
    *peer_keys(
        {TRL: "lr_scheduler_type", SWIFT: "lr_scheduler_type", AREAL: "lr_scheduler_type", VERL: "lr_scheduler_type"},
        "learner.schedule",
    ),
    *peer_keys(
        {NEMO: "optimizer.name", AREAL: "optimizer.type", VERL: "optim.optimizer", TRL: "optim", SWIFT: "optim"},
        "learner.optimizer",
        "AdamW, with moments in float32 or in 8 bits",
    ),
    *peer_keys({TRL: "adam_beta1 adam_beta2", SWIFT: "adam_beta1 adam_beta2"}, "learner.betas"),
    *peer_keys(
        {TRL: "warmup_ratio", SWIFT: "warmup_ratio", VERL: "lr_warmup_steps_ratio"}, "learner.warmup", "in steps"
    ),
    *peer_keys(
        {
            TRL: "gradient_checkpointing",
            SWIFT: "gradient_checkpointing",
            SKYRL: "gradient_checkpointing",
            AREAL: "gradient_checkpointing",
            VERL: "enable_gradient_checkpointing",
        },
        "model.activation_checkpointing",
        "true is `full`",
        {"true": "full", "false": "none"},
    ),
    *peer_keys(
        {VERL: "trust_remote_code", TRL: "trust_remote_code"},
        "model.trust_remote_code",
        "it runs code that comes with the model, so read that code before you set it",
    ),
)
