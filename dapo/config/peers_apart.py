"""Keys of other trainers that change nothing that is computed, with the reason: memory, speed, logs, other methods.

Patterns match the whole key, dots included; ``*`` stands for anything. Of several that match one without a ``*`` in
front goes first, then the longest.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from dapo.config.peer_key import AREAL, NEMO, SKYRL, SWIFT, TRL, VERL, ApartKey, apart_keys
from dapo.config.peers_missing import MISSING

_MEMORY = "memory and speed only: it changes nothing that is computed"
_LAYOUT = "how the trainer is spread over devices: memory and speed only (docs/scaling.md)"
_MACHINES = (
    "machines and devices: slurm.nodes and slurm.options of `dapo launch`, learner.ranks, rollout.engines "
    "(docs/scaling.md)"
)
_NO_CRITIC = "no critic here, as in DAPO: advantages come from the group; without effect"
_LOGS = "logs and folders: without effect on the run (docs/run_folder.md, docs/reading_a_run.md)"
_DATA = "how data are read there; without effect on the answers (docs/data.md)"
_SERVED = "how the engine is served: without effect on what is sampled but rounding (docs/engines.md)"
_RESUME = "a run is continued by its folder: dapo train --resume RUN"
_AT_START = "a run is always evaluated before its first step"
_IMAGES = "of images: models read text here"
_OTHER_METHODS = "of another method than GRPO: without effect on it"

APART: tuple[ApartKey, ...] = (
    *apart_keys(_NO_CRITIC, {VERL: "critic.* trainer.critic*", SKYRL: "trainer.critic* critic_*"}),
    *apart_keys(
        _MEMORY,
        {
            VERL: (
                "*param_offload *optimizer_offload *grad_offload *offload* *log_prob_* data.val_batch_size "
                "*torch_compile*"
            ),
            SKYRL: "*offload* *eval_batch_size *gradient_checkpointing_use_reentrant",
            NEMO: "*offload* *logprob_batch_size *val_batch_size",
            AREAL: "*offload* *pad_to_maximum",
            SWIFT: "*offload* *eval_batch_size *gradient_checkpointing_kwargs*",
            TRL: "*offload* *eval_batch_size *torch_compile* *gradient_checkpointing_kwargs* *ds3_gather*",
        },
    ),
    *apart_keys(
        _LAYOUT,
        {
            VERL: (
                "*fsdp* *megatron* *_parallel_size *sequence_parallel* *.strategy ray_kwargs* ray_init* "
                "actor_rollout_ref.hybrid_engine"
            ),
            SKYRL: "*fsdp* *megatron* *placement* *_parallel_size *sequence_parallel* trainer.strategy",
            AREAL: (
                "*fsdp* *megatron* *_parallel_size *parallel* cluster.* launcher* scheduler.* *use_sequence_parallel"
            ),
            TRL: "*fsdp* *_parallel_size *deepspeed* *ddp_* accelerate*",
            SWIFT: "*fsdp* *_parallel_size *sequence_parallel* *deepspeed* *ddp_*",
            NEMO: "*megatron* *dtensor_cfg* *sequence_parallel* *parallel*",
        },
    ),
    *apart_keys(
        f"learner.context_parallel here. {_MEMORY}",
        {
            VERL: "*sequence_parallel_size",
            SKYRL: "*sequence_parallel_size",
            SWIFT: "*sequence_parallel_size *context_parallel_size",
            NEMO: "*context_parallel_size",
            AREAL: "*context_parallel_size",
        },
    ),
    *apart_keys(
        f"learner.microbatch_tokens here. {_MEMORY}",
        {
            VERL: "*micro_batch* *max_token_len_per_gpu",
            NEMO: "*micro_batch*",
            SKYRL: "*micro_batch* *micro_*_batch*",
            AREAL: "*micro_batch* *mb_spec*",
        },
    ),
    *apart_keys(f"rows are always packed by tokens here. {_MEMORY}", {VERL: "*use_dynamic_bsz"}),
    *apart_keys(
        f"model.attention: auto packs rows without padding. {_MEMORY}",
        {VERL: "*use_remove_padding", SKYRL: "*use_sample_packing"},
    ),
    *apart_keys(
        f"rows are packed here. {_MEMORY}",
        {NEMO: "*sequence_packing* *dynamic_batching*", SWIFT: "*padding_free", TRL: "*padding_free"},
    ),
    *apart_keys(_MACHINES, {VERL: "*n_gpus_per_node *nnodes", AREAL: "*n_gpus_per_node *n_nodes", NEMO: "cluster.*"}),
    *apart_keys(f"rollout.engines here. {_LAYOUT}", {SKYRL: "*num_inference_engines"}),
    *apart_keys(f"of the reference model. {_MEMORY}", {VERL: "actor_rollout_ref.ref.*", SKYRL: "trainer.ref.*"}),
    *apart_keys(f"of the reference model, which is the run's first weights here. {_MEMORY}", {AREAL: "ref.*"}),
    *apart_keys(
        "no reference is kept here where the KL coefficient is 0; without effect", {NEMO: "*skip_reference_policy*"}
    ),
    *apart_keys(
        _SERVED,
        {
            VERL: "*chunked_prefill *prefix_caching *disable_log_stats *load_format *rollout.mode",
            SKYRL: "*chunked_prefill *prefix_caching generator.batched *run_engines_locally *async_engine",
            SWIFT: "*prefix_caching",
            NEMO: "*async_engine *vllm_cfg.*",
            AREAL: "sglang.* vllm.* *request_timeout* *setup_timeout*",
        },
    ),
    *apart_keys(
        f"rollout.vllm.engine_args: {{max_num_batched_tokens: N}}. {_SERVED}",
        {VERL: "*max_num_batched_tokens", SKYRL: "*max_num_batched_tokens"},
    ),
    *apart_keys(f"rollout.vllm.dtype here. {_SERVED}", {VERL: "*rollout.dtype", SKYRL: "*model_dtype"}),
    *apart_keys(
        "how weights travel: without effect on what is computed",
        {SKYRL: "*weight_sync*", AREAL: "*weight_sync* *weight_update_mode*"},
    ),
    *apart_keys(f"rollout.vllm.engine_args here. {_SERVED}", {NEMO: "*vllm_kwargs*"}),
    *apart_keys(
        "learner and engine share one device here unless rollout.engines or a server is set",
        {NEMO: "*colocat*", SKYRL: "*colocat*"},
    ),
    *apart_keys(
        _DATA,
        {
            NEMO: "*processor *env_name *num_workers*",
            VERL: "*num_workers* data.return_*",
            AREAL: "*num_workers* *pin_memory *num_dataset_workers *dataset.type",
            SWIFT: "*num_workers* *_num_proc *remove_unused_columns",
            TRL: "*num_workers* *_num_proc *remove_unused_columns",
        },
    ),
    *apart_keys(_AT_START, {VERL: "*val_before_train", SKYRL: "*eval_before_train", NEMO: "*val_at_start"}),
    *apart_keys("the last step is always evaluated", {NEMO: "*val_at_end"}),
    *apart_keys(_RESUME, {VERL: "*resume*", SKYRL: "*resume*", TRL: "*resume*", SWIFT: "*resume*", AREAL: "recover.*"}),
    *apart_keys(
        "run.dir and run.name: checkpoints are in the run's folder",
        {
            VERL: "*default_local_dir",
            SKYRL: "*ckpt_path",
            NEMO: "*checkpoint_dir",
            TRL: "*output_dir",
            SWIFT: "*output_dir",
        },
    ),
    *apart_keys("run.dir and run.name; `dapo export` writes a model folder", {SKYRL: "*export_path"}),
    *apart_keys("`dapo export` writes a model folder of any checkpoint", {SKYRL: "*hf_save_interval"}),
    *apart_keys("which checkpoints are kept: checkpoint.keep, the newest", {NEMO: "checkpointing.*"}),
    *apart_keys("checkpoint.keep: the newest", {VERL: "*max_actor_ckpt_to_keep"}),
    *apart_keys("run.dir", {AREAL: "*fileroot"}),
    *apart_keys(
        _LOGS,
        {
            AREAL: (
                "saver.* checkpointer.* evaluator.* stats_logger.* *wandb* *enable_rollout_tracing "
                "*log_agent_stats* actor.experiment_name actor.trial_name"
            ),
            NEMO: "logger.*",
        },
    ),
    *apart_keys(
        "every answer is kept: logging.rollouts, `dapo report`",
        {
            VERL: "*log_val_generations *rollout_data_dir",
            NEMO: "*num_val_samples_to_print",
            TRL: "*log_completions",
            SWIFT: "*log_completions",
        },
    ),
    *apart_keys("every step is written to metrics.jsonl", {TRL: "*logging_*", SWIFT: "*logging_*"}),
    *apart_keys("how rows are dealt to devices there; minibatches are whole groups here", {VERL: "*balance_batch"}),
    *apart_keys(
        "model.attention: auto",
        {SKYRL: "*flash_attn*", SWIFT: "*attn_impl*", TRL: "*attn_impl* *attn_implementation", AREAL: "*attn_impl*"},
    ),
    *apart_keys("the port belongs to rollout.server.url", {TRL: "*vllm_server_port", SWIFT: "*vllm_server_port"}),
    *apart_keys(
        "the engine is started for the longest prompt and response",
        {TRL: "*vllm_max_model_len*", SWIFT: "*vllm_max_model_len*", VERL: "*max_model_len", SKYRL: "*max_model_len"},
    ),
    *apart_keys("checkpoint.every counts training steps", {TRL: "*save_strategy", SWIFT: "*save_strategy"}),
    *apart_keys("a checkpoint holds all that a resume needs", {TRL: "*save_only_model", SWIFT: "*save_only_model"}),
    *apart_keys(
        "how requests are queued there: without effect on what is trained on",
        {AREAL: "rollout.max_concurrent_rollouts", SKYRL: "*num_parallel_generation_workers"},
    ),
    *apart_keys("there is no dropout here", {AREAL: "*disable_dropout"}),
    # logs, folders, the hub
    *apart_keys(
        _LOGS,
        {
            TRL: (
                "push_to_hub hub_* *trackio* project run_name log_on_each_node log_level* log_unique_prompts "
                "log_multimodal log_completions_hub_repo num_completions_to_print disable_tqdm "
                "include_for_metrics include_num_input_tokens_seen save_on_each_node debug "
                "skip_memory_metrics batch_eval_metrics prediction_loss_only eval_do_concat_batches "
                "eval_use_gather_object eval_accumulation_steps"
            ),
            SWIFT: (
                "push_to_hub hub_* *trackio* project swanlab_* log_on_each_node log_level* log_entropy "
                "log_rollout_offpolicy_metrics wandb_* disable_tqdm include_for_metrics "
                "include_num_input_tokens_seen save_on_each_node debug skip_memory_metrics batch_eval_metrics "
                "prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
                "add_version create_checkpoint_symlink model_author model_name max_shard_size "
                "safe_serialization logprobs top_logprobs use_flash_ckpt"
            ),
            VERL: (
                "*profiler* *trace* *prometheus* *calculate_entropy *calculate_sum_pi_squared *checkpoint.* "
                "*hdfs* *del_local_ckpt_after_load *validation_data_dir *checkpoint_callback_class "
                "*moe_load_balance_metrics_interval"
            ),
            SKYRL: (
                "*torch_profiler* *record_memory trainer.tags *log_path *print_example_interval "
                "*log_example_interval *num_logger_* *dump_* *ray_gpu_monitor *prometheus_stats "
                "*served_model_name"
            ),
            AREAL: (
                "perf_tracer.* memory_profiler.* *log_level* *admin_api_key *dump_to_file "
                "*check_trajectory_format *experiment_name *trial_name"
            ),
            NEMO: "async_rl.diagnostics",
        },
    ),
    # machines and processes
    *apart_keys(
        _LAYOUT,
        {
            VERL: (
                "*esi_redundant_time *use_v1 "
                "transfer_queue.* *checkpoint_engine.* *disaggregation.* *ray_wait* *nccl_timeout "
                "trainer.device *multi_stage_wake_up *layered_summon *router_config_path "
                "*custom_async_server*"
            ),
            SKYRL: (
                "*distributed_executor_backend *enable_pd *num_prefill *router_init_kwargs* *max_loras "
                "*max_cpu_loras *lora_sync_path *fully_sharded_loras *inference_only_init "
                "*expandable_segments"
            ),
            AREAL: (
                "*scheduling_spec* *scheduling_strategy* *archon.* *grad_reduce_dtype *optimizer_dtype "
                "*routing_strategy *lora_name *setup_timeout rollout.model"
            ),
            NEMO: "async_rl.* data_plane.* policy.generation.port_range_* *refit_transport",
            TRL: "accelerator_config parallelism_config local_rank use_cpu vllm_group_port ignore_bias_buffers",
            SWIFT: (
                "accelerator_config parallelism_config local_rank use_cpu device_map max_memory ds3_gather* "
                "vllm_server_group_port ddp* zero_hpz_partition_size"
            ),
        },
    ),
    *apart_keys(
        _MEMORY,
        {
            TRL: (
                "activation_checkpointing* torch_empty_cache_steps use_liger_kernel liger_kernel_config tf32 "
                "*full_eval auto_find_batch_size pad_to_multiple_of use_cache cache_implementation "
                "enable_jit_checkpoint ignore_data_skip restore_callback_states_from_checkpoint "
                "full_determinism"
            ),
            SWIFT: (
                "activation_checkpointing* torch_empty_cache_steps use_liger_kernel liger_kernel_config tf32 "
                "*full_eval auto_find_batch_size use_cache torch_compile* padding_side packing* lazy_tokenize "
                "use_logits_to_keep enable_jit_checkpoint ignore_data_skip "
                "restore_callback_states_from_checkpoint full_determinism vit_gradient_checkpointing "
                "move_model_batches experts_impl enable_npu_model_patch"
            ),
            VERL: (
                "*entropy_checkpointing *entropy_from_logits* *pad_to_length* *fused_kernel* *tiled_mlp* "
                "*use_shm *use_liger *full_determinism *prefix_grouper"
            ),
            SKYRL: (
                "*logprobs_chunk_size *fused_lm_head* *remove_microbatch_padding *max_tokens_per_microbatch "
                "*use_torch_compile *recompute_old_logprobs_per_minibatch"
            ),
            AREAL: "*use_kernels *enable_tree_training",
            NEMO: "*logprob_chunk_size *generation_batch_size",
        },
    ),
    *apart_keys(
        _SERVED,
        {
            TRL: "vllm_model_impl vllm_server_timeout *continuous_batching* use_transformers_paged",
            SWIFT: (
                "vllm_server_timeout vllm_disable* vllm_enable* vllm_use_async_engine vllm_max_lora_rank "
                "vllm_mm* vllm_limit_mm* vllm_reasoning_parser vllm_server_pass_dataset "
                "enable_flattened_weight_sync vllm_speculative_config"
            ),
            VERL: "*cudagraph* *scheduling_policy *rollout.seed *engine_kwargs* *mtp*",
            SKYRL: "*vllm_v1_disable_multiproc *use_cache_salt *speculative_config *logprobs *mtp* *weight_transfer*",
            AREAL: (
                "rollout.api_url *_retries *poll_interval *pause_grace_period *queue_size *provider_api_key "
                "*consumer_batch_size"
            ),
            NEMO: (
                "*sglang_cfg.* *trtllm_cfg.* *dynamo_cfg.* *refit_cfg.* *trtllm_kwargs* *use_async_rollouts "
                "*mcore_generation_config* policy.draft.*"
            ),
        },
    ),
    *apart_keys(
        _DATA,
        {
            TRL: (
                "dataloader_* dataset_streaming dataset_test_split train_sampling_strategy length_column_name "
                "label_names do_train do_eval do_predict eval_on_start eval_delay"
            ),
            SWIFT: (
                "dataloader_* streaming shuffle_buffer_size load_from_cache_file download_mode strict "
                "stopping_strategy cached_* custom_dataset_info dataset_shuffle val_dataset_shuffle data_seed "
                "train_sampling_strategy length_column_name group_by_length label_names do_train do_eval "
                "do_predict eval_on_start eval_delay use_hf check_model ignore_args_error load_args "
                "load_data_args disable_auto_column_mapping train_dataloader_shuffle local_repo_path stream"
            ),
            VERL: "*overlong_prompts_workers data.seed data.custom_cls* *validation_shuffle *data_loader_seed",
            SKYRL: "data.dataloader.*",
            AREAL: "*dataset_kwargs*",
            NEMO: "data.use_multiple_dataloader data.num_prompts_per_dataloader data.custom_dataloader data._override_",
        },
    ),
    *apart_keys(
        _IMAGES,
        {
            SWIFT: "*vit* *aligner* max_pixels norm_bbox",
            VERL: "*image_patch_size *mm_processor_kwargs* *vision* *limit_images",
            SKYRL: "*vision_language* *language_model_only",
        },
    ),
    *apart_keys(
        "one turn, as without an environment",
        dict.fromkeys((NEMO, SKYRL, AREAL, SWIFT, VERL, TRL), "*_turns *max_turns *num_turns"),
    ),
    *apart_keys(
        "one seed, run.seed, decides all draws",
        {NEMO: "data.*seed", TRL: "data_seed", SWIFT: "data_seed", VERL: "data.seed"},
    ),
    *apart_keys(
        _MEMORY,
        {
            NEMO: "policy.make_sequence_length_divisible_by *refit_buffer_size_gb *store_param_remainders",
            VERL: "*use_legacy_worker_impl",
            SKYRL: "*enable_sleep_mode",
            AREAL: "*_version",
        },
    ),
    # of other methods, whose switches are not those of GRPO
    *apart_keys(
        _NO_CRITIC,
        {
            SWIFT: (
                "cliprange* vf_coef whiten_rewards num_ppo_epochs num_mini_batches num_sample_generations "
                "local_rollout_forward_batch_size missing_eos_penalty gamma lam kl_coef"
            ),
            SKYRL: "*value_clip *value_head_prefix *lambd",
            AREAL: "critic.*",
            VERL: "*max_critic_ckpt_to_keep",
        },
    ),
    *apart_keys(
        _OTHER_METHODS,
        {
            SWIFT: (
                "cpo_alpha rpo_alpha ld_alpha simpo_gamma discopop_tau desirable_weight undesirable_weight "
                "center_rewards_coefficient loss_weights sft_alpha lmbda seq_kd gkd_* teacher_* sdar_* rlsd_* "
                "decision_* mrl_dims problem_type num_labels task_type response_length eval_use_evalscope "
                "eval_dataset* eval_limit eval_generation_config extra_eval_args eval_metric num_beams "
                "max_new_tokens"
            ),
            AREAL: "teacher.* actor.is_critic",
            VERL: "distillation.*",
            NEMO: "on_policy_distillation*",
        },
    ),
    *apart_keys("W&B, MLflow and the like: logging.trackers. " + _LOGS, {NEMO: "logger.*_enabled"}),
    *apart_keys("it trains nothing there: `dapo evaluate` is its like", {VERL: "*val_only"}),
)


def _row(key: str, who: str | None = None) -> ApartKey | None:
    """Return the row whose pattern says most about a key, of one trainer or of any."""
    rows = [row for row in MISSING + APART if (who is None or who in row.who) and fnmatchcase(key, row.pattern)]
    return max(rows, key=lambda row: (not row.pattern.startswith("*"), len(row.pattern)), default=None)


def apart_row(key: str, who: str) -> tuple[str, bool]:
    """Return why a key of ``who`` has no line (empty: it is not known), and whether it changes what is computed."""
    row = _row(key, who)
    return ("", True) if row is None else (row.reason, row in MISSING)


def in_section_apart(key: str, who: str) -> bool:
    """Return whether a whole section is apart, such as ``critic.*``: no key in it means what it means elsewhere."""
    row = _row(key, who)
    return row is not None and row.pattern.endswith(".*") and not row.pattern.startswith("*")


def apart_hint(path: str) -> str | None:
    """Return a sentence on a key that other trainers have and dapo has not; None if no trainer is known to have it."""
    row = _row(path.lstrip("+-").replace("-", "_"))
    return None if row is None else f"no such key here (of {', '.join(row.who)}): {row.reason}"
