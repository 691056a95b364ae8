"""What the keys of other trainers are called here: sizes, engines, and the rest of a run."""

from __future__ import annotations

from dapo.config.peer_key import AREAL, NEMO, SAME, SKYRL, SWIFT, TRL, VERL, PeerKey, peer_keys

_VLLM = "rollout.vllm"
_SERVER = "rollout.server"
_COUNTS = "one device for each rank, and so many for each engine; docs/scaling.md"
_MACHINES = f"of `dapo launch`; on a machine alone `learner.ranks` and `rollout.engines` count: {_COUNTS}"
_PRODUCT = "with rows for each device and the devices a product in responses; divided by G"
_RESUME = "dapo train --resume RUN"
_ADAMW = {
    **dict.fromkeys(["adamw_torch", "adamw_torch_fused", "adamw_hf", "paged_adamw", "paged_adamw_32bit"], "adamw"),
    **dict.fromkeys(["adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "paged_adamw_8bit"], "adamw_8bit"),
}
_SLEEPS = {"true": True, "false": False, "1": True, "2": True, "0": False}

_YOURS = "the code of an environment or a tool cannot come along; docs/environments.md"

RUN: tuple[PeerKey, ...] = (
    # sizes
    *peer_keys("num_prompts_per_step", NEMO, "rollout.prompts_per_step"),
    *peer_keys("train_batch_size", (VERL, SKYRL), "rollout.prompts_per_step"),
    *peer_keys("num_generations_per_prompt", NEMO, "rollout.group_size"),
    *peer_keys("num_generations", (SWIFT, TRL), "rollout.group_size"),
    *peer_keys("n_samples_per_prompt n_samples", (SKYRL, AREAL), "rollout.group_size"),
    *peer_keys("max_new_tokens", (NEMO, AREAL), "rollout.max_response_tokens"),
    *peer_keys("max_generate_length", SKYRL, "rollout.max_response_tokens"),
    *peer_keys("max_completion_length", (SWIFT, TRL), "rollout.max_response_tokens"),
    *peer_keys("max_prompt_length", (VERL, TRL, SKYRL), "data.max_prompt_tokens"),
    *peer_keys("train_global_batch_size", NEMO, "learner.minibatch_prompts", "in prompts, not responses"),
    *peer_keys("ppo_mini_batch_size", VERL, "learner.minibatch_prompts"),
    *peer_keys("policy_mini_batch_size", SKYRL, "learner.minibatch_prompts"),
    *peer_keys("ppo_n_minibatches", AREAL, "learner.minibatch_prompts", "the size of one, not their number"),
    *peer_keys("steps_per_generation", (SWIFT, TRL), "rollout.prompts_per_step", _PRODUCT),
    *peer_keys("num_iterations", (SWIFT, TRL), "learner.epochs_per_rollout", values=SAME),
    *peer_keys("ppo_epochs", VERL, "learner.epochs_per_rollout", values=SAME),
    *peer_keys("update_epochs_per_batch", SKYRL, "learner.epochs_per_rollout", values=SAME),
    *peer_keys(
        "per_device_train_batch_size", (SWIFT, TRL), "rollout.prompts_per_step learner.minibatch_prompts", _PRODUCT
    ),
    *peer_keys("gradient_accumulation_steps", (SWIFT, TRL), "learner.minibatch_prompts", _PRODUCT),
    *peer_keys("micro_batch_size", AREAL, "learner.microbatch_tokens", "memory only: it cannot change the gradient"),
    # several turns
    *peer_keys("max_assistant_turns", VERL, "environment.max_turns"),
    *peer_keys("max_rollout_turns", NEMO, "environment.max_turns"),
    *peer_keys("generator.max_turns", SKYRL, "environment.max_turns"),
    *peer_keys("max_tool_calling_iterations", TRL, "environment.max_turns", "turns, so one more than calls"),
    *peer_keys("max_parallel_calls", VERL, "", "all calls of a turn are answered"),
    *peer_keys("multi_turn.format tool_call_parser", VERL, "environment.tool_format"),
    *peer_keys("max_tool_response_length", VERL, "environment.max_reply_tokens", "in tokens, there in characters"),
    *peer_keys("tool_response_truncate_side", VERL, "", "the middle of a long reply is cut (`environment.long_reply`)"),
    *peer_keys("tool_config_path", VERL, "environment.tools", _YOURS),
    *peer_keys("interaction_config_path agent_loop_config_path", VERL, "environment.kind", _YOURS),
    *peer_keys("environment_factory", TRL, "environment.kind", _YOURS),
    *peer_keys("multi_turn_scheduler gym_env", SWIFT, "environment.kind", _YOURS),
    *peer_keys("env_class", SKYRL, "environment.kind", _YOURS),
    # engines
    *peer_keys("use_vllm", (SWIFT, TRL), "rollout.engine", "true is `vllm`"),
    *peer_keys("vllm_mode", (SWIFT, TRL), "rollout.engine", "colocate is `vllm`, server is `vllm_server`"),
    *peer_keys(
        "vllm_server_base_url vllm_server_host remote_inference_engine_urls", (SWIFT, TRL, SKYRL), f"{_SERVER}.url"
    ),
    *peer_keys("generation.backend generator.backend rollout.name", (NEMO, SKYRL, VERL), "rollout.engine"),
    *peer_keys(
        "gpu_memory_utilization vllm_gpu_memory_utilization",
        (NEMO, SKYRL, SWIFT, VERL, TRL),
        f"{_VLLM}.gpu_memory_utilization",
        values=SAME,
    ),
    *peer_keys(
        "tensor_model_parallel_size vllm_tensor_parallel_size inference_engine_tensor_parallel_size",
        (SKYRL, SWIFT, VERL, TRL),
        f"{_VLLM}.tensor_parallel_size",
        values=SAME,
    ),
    *peer_keys("vllm_cfg.tensor_parallel_size", NEMO, f"{_VLLM}.tensor_parallel_size", values=SAME),
    *peer_keys("enforce_eager", (NEMO, SKYRL, VERL), f"{_VLLM}.enforce_eager", values=SAME),
    *peer_keys(
        "free_cache_engine vllm_enable_sleep_mode sleep_level", (VERL, TRL, SWIFT), f"{_VLLM}.sleep", values=_SLEEPS
    ),
    *peer_keys("max_num_seqs vllm_max_num_seqs", (SKYRL, VERL, SWIFT), "rollout.slots", values=SAME),
    *peer_keys("vllm_server_port", (SWIFT, TRL), f"{_SERVER}.url", "address and port in one"),
    *peer_keys(
        "max_model_len vllm_max_model_len vllm_max_model_length",
        (NEMO, SKYRL, VERL, SWIFT, TRL),
        "data.max_prompt_tokens rollout.max_response_tokens",
        "the engine is started for their longest sum",
    ),
    *peer_keys("max_num_batched_tokens", (SKYRL, VERL), f"{_VLLM}.engine_args", "by the same name in it"),
    *peer_keys(
        "calculate_log_probs", VERL, "algorithm.old_logprobs", "engines always give them; `sampler` trains on them"
    ),
    *peer_keys("engine_kwargs engine_init_kwargs vllm_kwargs", (VERL, SKYRL, NEMO), f"{_VLLM}.engine_args"),
    # the rest of a run
    *peer_keys(
        "log_completions", (SWIFT, TRL), "logging.rollouts", "every step's groups are kept; `dapo report` shows them"
    ),
    *peer_keys("model_name", NEMO, "model.path"),
    *peer_keys("model_name_or_path", TRL, "model.path"),
    *peer_keys("max_num_steps", NEMO, "trainer.steps"),
    *peer_keys("max_steps total_training_steps", (SWIFT, TRL, VERL), "trainer.steps"),
    *peer_keys("checkpoint_dir", NEMO, "run.dir run.name"),
    *peer_keys("output_dir", (SWIFT, TRL), "run.dir run.name"),
    *peer_keys("wandb_enabled wandb.name", NEMO, "logging.trackers run.name"),
    *peer_keys("save_steps save_period", (SWIFT, TRL, NEMO), "checkpoint.every"),
    *peer_keys("eval_steps val_period", (SWIFT, TRL, NEMO), "validation.every"),
    *peer_keys("lr actor_lr", (NEMO, SKYRL, VERL), "learner.learning_rate"),
    *peer_keys("warmup_steps lr_warmup_steps num_warmup_steps", (SWIFT, TRL, VERL), "learner.warmup"),
    *peer_keys("max_grad_norm clip_grad", (SWIFT, TRL, VERL), "learner.max_grad_norm"),
    *peer_keys("resume_from_checkpoint resume_mode", (SWIFT, TRL, SKYRL), "", f"use `{_RESUME}`"),
    *peer_keys("num_nodes", NEMO, "slurm.nodes", _MACHINES),
    *peer_keys("gpus_per_node", NEMO, "slurm.options", f"gpus-per-node, {_MACHINES}"),
    *peer_keys("nnodes", VERL, "slurm.nodes", _MACHINES),
    *peer_keys("n_gpus_per_node", VERL, "slurm.options", f"gpus-per-node, {_MACHINES}"),
    *peer_keys("launcher allocation_mode deepspeed", (AREAL, TRL, SWIFT), "learner.ranks rollout.engines", _COUNTS),
    *peer_keys("data.max_response_length", VERL, "rollout.max_response_tokens"),
    *peer_keys("rollout.n", VERL, "rollout.group_size"),
    *peer_keys(
        "max_length",
        (SWIFT, TRL),
        "data.max_prompt_tokens",
        "of the length penalty: `algorithm.overlong_punishment.max_length`",
    ),
    *peer_keys("max_head_offpolicyness", AREAL, "rollout.max_staleness", "the same unit: versions of the weights"),
    *peer_keys("max_staleness_steps", SKYRL, "rollout.max_staleness"),
    *peer_keys("max_trajectory_age_steps", NEMO, "rollout.max_staleness"),
    *peer_keys("async_grpo.enabled", NEMO, "rollout.max_staleness", "2 or more: generation beside learning"),
    *peer_keys("train_files dataset dataset_name", (VERL, SWIFT, TRL), "data.train", "a list: [{path: FILE}]"),
    *peer_keys("val_files val_dataset eval_dataset", (VERL, SWIFT, TRL), "data.validation", "a list: [{path: FILE}]"),
    *peer_keys("prompt_key", VERL, "data.train.N.fields", "{problem: THE_COLUMN}"),
    *peer_keys(
        "chat_template_kwargs apply_chat_template_kwargs",
        (TRL, NEMO, SKYRL, VERL),
        "data.chat_template_kwargs",
        values=SAME,
    ),
    *peer_keys(
        "chat_template chat_template_path custom_chat_template",
        (NEMO, TRL, VERL),
        "data.chat_template",
        "its text or a file; null is the tokenizer's",
    ),
    *peer_keys("stop_strings sampling_params.stop gconfig.stop", (NEMO, SKYRL, AREAL), "rollout.stop", values=SAME),
    *peer_keys(
        "interleave_prob", SWIFT, "data.train.N.weight", "one number for each source; they need not add up to 1"
    ),
    *peer_keys("stop_words", SWIFT, "rollout.stop", "token ids among them go to `rollout.stop_token_ids`"),
    *peer_keys("include_stop_str_in_output", SKYRL, "rollout.include_stop_str_in_output", values=SAME),
    *peer_keys("enable_thinking", SWIFT, "data.chat_template_kwargs", "{enable_thinking: false}"),
    *peer_keys("response_prefix", SWIFT, "data.response_prefix", values=SAME),
    *peer_keys("truncation filter_overlong_prompts", VERL, "data.overlong_prompts", "nothing is ever cut"),
    *peer_keys("total_epochs total_train_epochs num_train_epochs", (VERL, AREAL, TRL, SWIFT), "data.epochs"),
    *peer_keys("save_freq save_interval ckpt_interval", (VERL, SKYRL), "checkpoint.every"),
    *peer_keys("checkpointing.enabled", NEMO, "checkpoint.every", "0 saves at the end only"),
    *peer_keys(
        "save_total_limit keep_top_k max_ckpts_to_keep",
        (TRL, SWIFT, NEMO, SKYRL),
        "checkpoint.keep",
        "the newest",
        values=SAME,
    ),
    *peer_keys("test_freq eval_interval eval_strategy", (VERL, SKYRL, TRL), "validation.every", "0 is never"),
    *peer_keys(
        "val_before_train eval_before_train", (VERL, SKYRL), "", "a run is always evaluated before its first step"
    ),
    *peer_keys("report_to trainer.logger", (TRL, SWIFT, VERL, SKYRL), "logging.trackers"),
    *peer_keys("project_name wandb_project", (VERL, SKYRL), "logging.trackers.N.project"),
    *peer_keys("experiment_name run_name", (VERL, SKYRL, TRL), "run.name"),
    *peer_keys("logging_steps", (TRL, SWIFT), "", "every step is written to metrics.jsonl"),
    *peer_keys("bf16 torch_dtype", (TRL, SWIFT), "model.dtype", "bf16 is `bfloat16`"),
    *peer_keys("fp16", (TRL, SWIFT), "", "`model.dtype` is `float32` or `bfloat16`"),
    *peer_keys("attn_implementation attn_impl", (TRL, SWIFT), "model.attention"),
    *peer_keys("lora_rank lora_r", (SWIFT, VERL, SKYRL, TRL), "model.lora.rank", values=SAME),
    *peer_keys("lora_alpha", (SWIFT, VERL, TRL), "model.lora.lora_alpha", values=SAME),
    *peer_keys("use_rslora", (SWIFT, TRL), "model.lora.use_rslora", values=SAME),
    *peer_keys(
        "lora_dropout",
        (SWIFT, TRL),
        "",
        "an adapter has no dropout: the sampler has none, and the ratio would take it for a change of the policy",
    ),
    *peer_keys("lora_target_modules target_modules", (TRL, SWIFT, VERL), "model.lora.target_modules", values=SAME),
    *peer_keys("lora_modules_to_save modules_to_save", (TRL, SWIFT), "model.lora.modules_to_save", values=SAME),
    *peer_keys(
        "train_type tuner_type use_peft use_lora lora_cfg.enabled",
        (SWIFT, TRL, AREAL, NEMO),
        "model.lora.rank",
        "an adapter wherever it has a rank",
    ),
    *peer_keys(
        "load_in_4bit load_in_8bit quant_method",
        (TRL, SWIFT),
        "",
        "no QLoRA: the engine would sample from other weights",
    ),
    *peer_keys("lr_scheduler_type scheduler.type scheduler.name", (TRL, SWIFT, NEMO), "learner.schedule"),
    *peer_keys("optimizer.name optimizer.type", NEMO, "", "AdamW is the only one"),
    *peer_keys("optim", (TRL, SWIFT), "learner.optimizer", "AdamW, with moments in float32 or in 8 bits", _ADAMW),
    *peer_keys("optim.optimizer", VERL, "learner.optimizer", "", {"adamw": "adamw", "adamw8bit": "adamw_8bit"}),
    *peer_keys("adam_beta1 adam_beta2", (TRL, SWIFT), "learner.betas"),
    *peer_keys("warmup_ratio lr_warmup_steps_ratio", (TRL, SWIFT, VERL), "learner.warmup", "in steps"),
    *peer_keys(
        "gradient_checkpointing enable_gradient_checkpointing",
        (VERL, TRL, SWIFT, SKYRL, AREAL),
        "model.activation_checkpointing",
        "true is `full`",
        {"true": "full", "false": "none"},
    ),
    *peer_keys(
        "trust_remote_code",
        (VERL, TRL, SWIFT, NEMO, SKYRL, AREAL),
        "model.trust_remote_code",
        "it runs code that comes with the model, so read that code before you set it",
    ),
)
