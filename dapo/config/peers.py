"""What the keys of other trainers are called here, so that a recipe brought along is refused with the right name.

The full comparison, behaviour included, is docs/peers.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NEMO, AREAL, SKYRL, SWIFT, VERL, TRL = "NeMo RL", "AReaL", "SkyRL", "ms-swift", "verl", "TRL"


@dataclass(frozen=True, slots=True)
class PeerKey:
    """One key of other trainers with its place here."""

    key: str  # as its documentation writes it, without the outermost sections
    who: tuple[str, ...]
    ours: tuple[str, ...]  # our settings; empty: not there yet, or not needed
    note: str = ""
    values: Mapping[str, Any] | None = None  # by their words, what its values are here; empty: what they are there

    def converted(self, value: Any) -> tuple[Any] | None:
        """The value that our first setting has for one of theirs; None where a single key does not tell it."""
        if self.values is None or not self.ours:
            return None
        if not self.values:
            return (value,)
        word = str(value).lower()
        return (self.values[word],) if word in self.values else None

    def hint(self) -> str:
        """One sentence: "`epsilon_high` is called `algorithm.clip.high` here (ms-swift, TRL)", and the note."""
        who = ", ".join(self.who)
        names = " and ".join(f"`{o}`" for o in self.ours)
        first = f"`{self.key}` is called {names} here ({who})" if self.ours else f"`{self.key}` ({who}) has no key here"
        return f"{first}: {self.note}" if self.note else first


_CLIP = "algorithm.clip"
_LOSS = "algorithm.loss"
_DS = "algorithm.dynamic_sampling"
_LEN = "algorithm.overlong_punishment"
_SCALE = "algorithm.reward_scaling"
_VLLM = "rollout.vllm"
_SERVER = "rollout.server"
_GSPO = f"GSPO is `preset: gspo` (`{_LOSS}.ratio: sequence`, reduction `sequence_mean`, clip 3e-4 / 4e-4)"
_FIX = "algorithm.correction"
_MODES = (
    "token_truncate is `truncate`, token_mask `mask_token`, sequence_truncate `truncate_sequence`; "
    "sequence_mask goes by the product there, `mask_sequence` by the geometric mean"
)
_KL = "0 in DAPO; `algorithm.kl_estimator` is k3 (verl's low_var_kl) unless set"
_CAP = f"rounds become a cap on dispatched groups, in multiples of P; `{_DS}.on_cap` says what happens there"
_COUNTS = "one device for each rank, and so many for each engine; docs/scaling.md"
_MACHINES = f"of `dapo launch`; on a machine alone `learner.ranks` and `rollout.engines` count: {_COUNTS}"
_PRODUCT = "with rows for each device and the devices a product in responses; divided by G"
_RESUME = "dapo train --resume RUN"


_SAME: dict[str, Any] = {}
_SLEEPS = {"true": True, "false": False, "1": True, "2": True, "0": False}


def _peer(
    keys: str, who: str | tuple[str, ...], ours: str, note: str = "", values: Mapping[str, Any] | None = None
) -> list[PeerKey]:
    people = (who,) if isinstance(who, str) else who
    return [PeerKey(key, people, tuple(ours.split()), note, values) for key in keys.split()]


PEER_KEYS: tuple[PeerKey, ...] = tuple(
    # clip
    _peer("ratio_clip_min", NEMO, f"{_CLIP}.low")
    + _peer("ratio_clip_max", NEMO, f"{_CLIP}.high")
    + _peer("ratio_clip_c", NEMO, f"{_CLIP}.dual")
    + _peer("eps_clip", AREAL, f"{_CLIP}.low", f"`{_CLIP}.high` is always set apart")
    + _peer("eps_clip_higher", AREAL, f"{_CLIP}.high")
    + _peer("c_clip", AREAL, f"{_CLIP}.dual")
    + _peer("eps_clip_low", SKYRL, f"{_CLIP}.low")
    + _peer("eps_clip_high", SKYRL, f"{_CLIP}.high")
    + _peer("epsilon", (SWIFT, TRL), f"{_CLIP}.low")
    + _peer("epsilon_low", (SWIFT, TRL), f"{_CLIP}.low")
    + _peer("epsilon_high", (SWIFT, TRL), f"{_CLIP}.high", f"with CISPO it is `{_LOSS}.cispo_cap`")
    + _peer("delta", (SWIFT, TRL), f"{_CLIP}.dual", "delta bounds the ratio itself, as c does for negative advantages")
    + _peer("clip_ratio", VERL, f"{_CLIP}.low {_CLIP}.high")
    + _peer("clip_ratio_low", VERL, f"{_CLIP}.low")
    + _peer("clip_ratio_high", VERL, f"{_CLIP}.high")
    + _peer("clip_ratio_c", (VERL, SKYRL), f"{_CLIP}.dual")
    # dynamic sampling
    + _peer("use_dynamic_sampling", NEMO, f"{_DS}.mode", "true is `filter`, false is `off`")
    + _peer("batch_multiplier", NEMO, f"{_DS}.oversample", "null adapts it to the measured acceptance rate")
    + _peer("dynamic_sampling_max_gen_batches", NEMO, f"{_DS}.max_groups", _CAP)
    + _peer("dynamic_sampling", AREAL, f"{_DS}.mode", "true is `filter`, false is `off`")
    + _peer("dynamic_bs", AREAL, f"{_DS}.mode", "`mask` trains on what is left of one batch")
    + _peer("dynamic_filter_fn should_accept_fn", AREAL, f"{_DS}.keep")
    + _peer("dynamic_sampling.type", SKYRL, f"{_DS}.mode", "`filter` and `replace` are the same")
    + _peer("max_sample_batches", SKYRL, f"{_DS}.max_groups", _CAP)
    + _peer("min_replace_ratio", SKYRL, f"{_DS}.min_replace_ratio")
    + _peer("zero_variance_filter", SKYRL, f"{_DS}.mode", "`mask` drops such groups without replacing them")
    + _peer("zero_variance_filter_tol", SKYRL, f"{_DS}.tolerance", values=_SAME)
    + _peer("dynamic_sample", SWIFT, f"{_DS}.mode", "true is `filter`, false is `off`")
    + _peer("max_resample_times", SWIFT, f"{_DS}.max_groups", _CAP)
    + _peer("filter_groups filter_groups.enable", VERL, f"{_DS}.mode", "true is `filter`, false is `off`")
    + _peer("filter_groups.metric", VERL, f"{_DS}.metric", "`acc` is `accuracy`")
    + _peer("filter_groups.max_num_gen_batches max_num_gen_batches", VERL, f"{_DS}.max_groups", _CAP)
    + _peer(
        "gen_batch_size",
        VERL,
        f"{_DS}.oversample",
        "gen_batch_size / train_batch_size, times what is still missing in each round",
    )
    # loss
    + _peer("token_level_loss", NEMO, f"{_LOSS}.reduction", "true is `token_mean`, false is `sequence_mean`")
    + _peer("loss_reduction", SKYRL, f"{_LOSS}.reduction", "`token_mean_legacy` is `micro_batch_mean`")
    + _peer("policy_loss_type", SKYRL, f"{_LOSS}.kind", _GSPO)
    + _peer(
        "loss_type",
        (SWIFT, TRL),
        f"{_LOSS}.reduction",
        f"dapo is `token_mean`, grpo `sequence_mean`, bnpo `micro_batch_mean`, dr_grpo `constant`; cispo is "
        f"`{_LOSS}.kind: cispo`",
    )
    + _peer(
        "loss_agg_mode",
        VERL,
        f"{_LOSS}.reduction",
        "token-mean is `token_mean`, seq-mean-token-mean `sequence_mean`, seq-mean-token-sum `sequence_sum`, "
        "seq-mean-token-sum-norm `constant`",
    )
    + _peer("loss_scale_factor max_seq_len", (VERL, SKYRL), f"{_LOSS}.constant_length")
    + _peer("sequence_level_importance_ratios", NEMO, f"{_LOSS}.ratio", f"true is `sequence`; {_GSPO}")
    + _peer("importance_sampling_level", (SWIFT, TRL), f"{_LOSS}.ratio", _GSPO)
    + _peer("use_cispo", NEMO, f"{_LOSS}.kind", "true is `cispo`")
    # length
    + _peer("overlong_buffer_length", NEMO, f"{_LEN}.cache_length")
    + _peer("overlong_buffer_penalty", NEMO, f"{_LEN}.factor")
    + _peer("reward_shaping.enabled", NEMO, f"{_LEN}.enabled")
    + _peer(
        "max_response_length", (NEMO, VERL), f"{_LEN}.max_length", "the limit itself: `rollout.max_response_tokens`"
    )
    + _peer("overlong_reward_penalty", AREAL, f"{_LEN}.enabled")
    + _peer("overlong_tokens", AREAL, f"{_LEN}.cache_length")
    + _peer("overlong_penalty_factor", AREAL, f"{_LEN}.factor")
    + _peer("overlong_buffer.len overlong_buffer_len", (SKYRL, VERL), f"{_LEN}.cache_length")
    + _peer(
        "overlong_buffer.penalty_factor overlong_buffer_penalty_factor penalty_factor", (SKYRL, VERL), f"{_LEN}.factor"
    )
    + _peer("overlong_buffer overlong_buffer_cfg overlong_buffer.enable", (SKYRL, VERL), f"{_LEN}.enabled")
    + _peer("soft_max_length", SWIFT, f"{_LEN}.max_length")
    + _peer("soft_cache_length", SWIFT, f"{_LEN}.cache_length")
    + _peer("soft_overlong", SWIFT, f"{_LEN}.enabled")
    + _peer("max_resp_len", VERL, f"{_LEN}.max_length")
    + _peer("overlong_filter", SWIFT, "algorithm.overlong_filtering")
    + _peer("apply_overlong_filtering", SKYRL, "algorithm.overlong_filtering")
    + _peer("overlong_filtering", NEMO, "algorithm.overlong_filtering")
    + _peer("mask_truncated_completions", TRL, "algorithm.overlong_filtering")
    # advantage and rewards
    + _peer("reward_scaling.enabled", NEMO, f"{_SCALE}.enabled")
    + _peer("reward_scaling.source_min", NEMO, f"{_SCALE}.source_min")
    + _peer("reward_scaling.source_max", NEMO, f"{_SCALE}.source_max")
    + _peer("reward_scaling.target_min", NEMO, f"{_SCALE}.target_min")
    + _peer("reward_scaling.target_max", NEMO, f"{_SCALE}.target_max")
    + _peer("reward_bias", AREAL, f"{_SCALE}.target_min {_SCALE}.target_max", "state the range that rewards map to")
    + _peer("scale_rewards", (SWIFT, TRL), "algorithm.advantage.scale", "group is `group_std`, batch `batch_std`")
    + _peer("normalize_rewards", NEMO, "algorithm.advantage.scale", "true is `group_std`, false is `none`")
    + _peer("grpo_norm_by_std norm_adv_by_std_in_grpo", (SKYRL, VERL), "algorithm.advantage.scale")
    + _peer("use_leave_one_out_baseline", NEMO, "algorithm.advantage.baseline", "true is `leave_one_out`")
    + _peer("adv_estimator advantage_estimator", (VERL, SKYRL, SWIFT), "algorithm.advantage.kind")
    + _peer("reward_funcs", (SWIFT, TRL), "rewards", "soft_overlong is `algorithm.overlong_punishment.enabled`")
    + _peer("reward_weights", (SWIFT, TRL), "rewards.N.weight")
    # old log-probabilities and KL
    + _peer("use_importance_sampling_correction", NEMO, f"{_FIX}.kind", "alone it is `untruncated`")
    + _peer(
        "truncated_importance_sampling_type",
        NEMO,
        f"{_FIX}.kind",
        "tis is `truncate`, icepop `mask_token`, seq-mask-tis `mask_sequence` with `token_cap: null`",
    )
    + _peer("truncated_importance_sampling_ratio", NEMO, f"{_FIX}.cap")
    + _peer("truncated_importance_sampling_ratio_min", NEMO, f"{_FIX}.floor")
    + _peer("use_tis", SKYRL, f"{_FIX}.kind", "true is `truncate`")
    + _peer("tis_ratio_type", SKYRL, f"{_FIX}.kind", "token is `truncate`, sequence `truncate_sequence`")
    + _peer("tis_imp_ratio_cap", (SKYRL, VERL), f"{_FIX}.cap")
    + _peer("token_tis_ratio_clip_high", SKYRL, f"{_FIX}.cap {_FIX}.token_cap", "the second beside a sequence mask")
    + _peer("sequence_tis_ratio_clip_high", SKYRL, f"{_FIX}.sequence_cap")
    + _peer(
        "sequence_mask_metric", SKYRL, f"{_FIX}.kind", "geometric is `mask_sequence`; one by the product is not here"
    )
    + _peer("geo_mask_high", SKYRL, f"{_FIX}.cap")
    + _peer("geo_mask_low", SKYRL, f"{_FIX}.floor")
    + _peer("rollout_is", VERL, f"{_FIX}.kind", "token is `truncate`, sequence `truncate_sequence`")
    + _peer("rollout_is_threshold", VERL, f"{_FIX}.cap {_FIX}.sequence_cap", "of tokens, and of sequences")
    + _peer("rollout_importance_sampling_mode", SWIFT, f"{_FIX}.kind", _MODES)
    + _peer("vllm_importance_sampling_correction", TRL, f"{_FIX}.kind", "true is `truncate_sequence` or a mask there")
    + _peer("vllm_importance_sampling_mode", TRL, f"{_FIX}.kind", _MODES)
    + _peer("vllm_importance_sampling_cap", TRL, f"{_FIX}.cap {_FIX}.sequence_cap", "of tokens, and of sequences")
    + _peer("beta", (SWIFT, TRL), "algorithm.kl_coefficient", _KL)
    + _peer("kl_ctl", AREAL, "algorithm.kl_coefficient", _KL)
    + _peer("use_kl_loss kl_loss_coef", (SKYRL, VERL), "algorithm.kl_coefficient", _KL)
    + _peer("reference_policy_kl_penalty", NEMO, "algorithm.kl_coefficient", _KL)
    # sizes
    + _peer("num_prompts_per_step", NEMO, "rollout.prompts_per_step")
    + _peer("train_batch_size", (VERL, SKYRL), "rollout.prompts_per_step")
    + _peer("num_generations_per_prompt", NEMO, "rollout.group_size")
    + _peer("num_generations", (SWIFT, TRL), "rollout.group_size")
    + _peer("n_samples_per_prompt n_samples", (SKYRL, AREAL), "rollout.group_size")
    + _peer("max_new_tokens", (NEMO, AREAL), "rollout.max_response_tokens")
    + _peer("max_generate_length", SKYRL, "rollout.max_response_tokens")
    + _peer("max_completion_length", (SWIFT, TRL), "rollout.max_response_tokens")
    + _peer("max_prompt_length", (VERL, TRL, SKYRL), "data.max_prompt_tokens")
    + _peer("train_global_batch_size", NEMO, "learner.minibatch_prompts", "in prompts, not responses")
    + _peer("ppo_mini_batch_size", VERL, "learner.minibatch_prompts")
    + _peer("policy_mini_batch_size", SKYRL, "learner.minibatch_prompts")
    + _peer("ppo_n_minibatches", AREAL, "learner.minibatch_prompts", "the size of one, not their number")
    + _peer("steps_per_generation", (SWIFT, TRL), "rollout.prompts_per_step", _PRODUCT)
    + _peer("num_iterations ppo_epochs", (SWIFT, TRL, VERL), "", "every minibatch is trained on once, as in the paper")
    + _peer("per_device_train_batch_size", (SWIFT, TRL), "rollout.prompts_per_step learner.minibatch_prompts", _PRODUCT)
    + _peer("gradient_accumulation_steps", (SWIFT, TRL), "learner.minibatch_prompts", _PRODUCT)
    + _peer("micro_batch_size", AREAL, "learner.microbatch_tokens", "memory only: it cannot change the gradient")
    # engines
    + _peer("use_vllm", (SWIFT, TRL), "rollout.engine", "true is `vllm`")
    + _peer("vllm_mode", (SWIFT, TRL), "rollout.engine", "colocate is `vllm`, server is `vllm_server`")
    + _peer("vllm_server_base_url vllm_server_host remote_inference_engine_urls", (SWIFT, TRL, SKYRL), f"{_SERVER}.url")
    + _peer("generation.backend generator.backend rollout.name", (NEMO, SKYRL, VERL), "rollout.engine")
    + _peer(
        "gpu_memory_utilization vllm_gpu_memory_utilization",
        (NEMO, SKYRL, SWIFT, VERL, TRL),
        f"{_VLLM}.gpu_memory_utilization",
        values=_SAME,
    )
    + _peer(
        "tensor_model_parallel_size vllm_tensor_parallel_size inference_engine_tensor_parallel_size",
        (SKYRL, SWIFT, VERL, TRL),
        f"{_VLLM}.tensor_parallel_size",
        values=_SAME,
    )
    + _peer("vllm_cfg.tensor_parallel_size", NEMO, f"{_VLLM}.tensor_parallel_size", values=_SAME)
    + _peer("enforce_eager", (NEMO, SKYRL, VERL), f"{_VLLM}.enforce_eager", values=_SAME)
    + _peer(
        "free_cache_engine vllm_enable_sleep_mode sleep_level", (VERL, TRL, SWIFT), f"{_VLLM}.sleep", values=_SLEEPS
    )
    + _peer("max_num_seqs vllm_max_num_seqs", (SKYRL, VERL, SWIFT), "rollout.slots", values=_SAME)
    + _peer("vllm_server_port", (SWIFT, TRL), f"{_SERVER}.url", "address and port in one")
    + _peer(
        "max_model_len vllm_max_model_len vllm_max_model_length",
        (NEMO, SKYRL, VERL, SWIFT, TRL),
        "data.max_prompt_tokens rollout.max_response_tokens",
        "the engine is started for their longest sum",
    )
    + _peer("max_num_batched_tokens", (SKYRL, VERL), f"{_VLLM}.engine_args", "by the same name in it")
    + _peer("calculate_log_probs", VERL, "algorithm.old_logprobs", "engines always give them; `sampler` trains on them")
    + _peer("engine_kwargs engine_init_kwargs vllm_kwargs", (VERL, SKYRL, NEMO), f"{_VLLM}.engine_args")
    # the rest of a run
    + _peer(
        "log_completions", (SWIFT, TRL), "logging.rollouts", "every step's groups are kept; `dapo report` shows them"
    )
    + _peer("model_name", NEMO, "model.path")
    + _peer("model_name_or_path", TRL, "model.path")
    + _peer("max_num_steps", NEMO, "trainer.steps")
    + _peer("max_steps total_training_steps", (SWIFT, TRL, VERL), "trainer.steps")
    + _peer("checkpoint_dir", NEMO, "run.dir run.name")
    + _peer("output_dir", (SWIFT, TRL), "run.dir run.name")
    + _peer("wandb_enabled wandb.name", NEMO, "logging.wandb run.name")
    + _peer("save_steps save_period", (SWIFT, TRL, NEMO), "checkpoint.every")
    + _peer("eval_steps val_period", (SWIFT, TRL, NEMO), "validation.every")
    + _peer("lr actor_lr", (NEMO, SKYRL, VERL), "learner.learning_rate")
    + _peer("warmup_steps lr_warmup_steps num_warmup_steps", (SWIFT, TRL, VERL), "learner.warmup")
    + _peer("max_grad_norm clip_grad", (SWIFT, TRL, VERL), "learner.max_grad_norm")
    + _peer("resume_from_checkpoint resume_mode", (SWIFT, TRL, SKYRL), "", f"use `{_RESUME}`")
    + _peer("num_nodes", NEMO, "slurm.nodes", _MACHINES)
    + _peer("gpus_per_node", NEMO, "slurm.gpus_per_node", _MACHINES)
    + _peer("nnodes", VERL, "slurm.nodes", _MACHINES)
    + _peer("n_gpus_per_node", VERL, "slurm.gpus_per_node", _MACHINES)
    + _peer("launcher allocation_mode deepspeed", (AREAL, TRL, SWIFT), "learner.ranks rollout.engines", _COUNTS)
    + _peer("data.max_response_length", VERL, "rollout.max_response_tokens")
    + _peer("rollout.n", VERL, "rollout.group_size")
    + _peer("actor.reward_scaling", AREAL, f"{_SCALE}.target_min {_SCALE}.target_max", "a factor there, a range here")
    + _peer("max_length", (SWIFT, TRL), "data.max_prompt_tokens", f"of the length penalty: `{_LEN}.max_length`")
    + _peer("max_head_offpolicyness", AREAL, "rollout.max_staleness", "the same unit: versions of the weights")
    + _peer("max_staleness_steps", SKYRL, "rollout.max_staleness")
    + _peer("max_trajectory_age_steps", NEMO, "rollout.max_staleness")
    + _peer(
        "use_decoupled_loss prox_logp_method",
        AREAL,
        "algorithm.old_logprobs algorithm.correction.kind",
        "`learner` and a correction; its `loglinear` is `interpolated`",
    )
    + _peer("async_grpo.enabled", NEMO, "rollout.max_staleness", "2 or more: generation beside learning")
    + _peer(
        "entropy_coeff entropy_coef", (VERL, AREAL, TRL), "algorithm.entropy_coefficient", "0 in DAPO", values=_SAME
    )
    + _peer("train_files dataset dataset_name", (VERL, SWIFT, TRL), "data.train", "a list: [{path: FILE}]")
    + _peer("val_files val_dataset eval_dataset", (VERL, SWIFT, TRL), "data.validation", "a list: [{path: FILE}]")
    + _peer("prompt_key", VERL, "data.train.N.fields", "{problem: THE_COLUMN}")
    + _peer(
        "chat_template_kwargs apply_chat_template_kwargs",
        (TRL, NEMO, SKYRL, VERL),
        "data.chat_template_kwargs",
        values=_SAME,
    )
    + _peer(
        "chat_template chat_template_path custom_chat_template",
        (NEMO, TRL, VERL),
        "data.chat_template",
        "its text or a file; null is the tokenizer's",
    )
    + _peer("stop_strings sampling_params.stop gconfig.stop", (NEMO, SKYRL, AREAL), "rollout.stop", values=_SAME)
    + _peer("interleave_prob", SWIFT, "data.train.N.weight", "one number for each source; they need not add up to 1")
    + _peer("stop_words", SWIFT, "rollout.stop", "token ids among them go to `rollout.stop_token_ids`")
    + _peer("include_stop_str_in_output", SKYRL, "rollout.include_stop_str_in_output", values=_SAME)
    + _peer("enable_thinking", SWIFT, "data.chat_template_kwargs", "{enable_thinking: false}")
    + _peer("response_prefix", SWIFT, "data.response_prefix", values=_SAME)
    + _peer("truncation filter_overlong_prompts", VERL, "data.overlong_prompts", "nothing is ever cut")
    + _peer("total_epochs total_train_epochs num_train_epochs", (VERL, AREAL, TRL, SWIFT), "data.epochs")
    + _peer("save_freq save_interval ckpt_interval", (VERL, SKYRL), "checkpoint.every")
    + _peer("checkpointing.enabled", NEMO, "checkpoint.every", "0 saves at the end only")
    + _peer(
        "save_total_limit keep_top_k max_ckpts_to_keep",
        (TRL, SWIFT, NEMO, SKYRL),
        "checkpoint.keep",
        "the newest",
        values=_SAME,
    )
    + _peer("test_freq eval_interval eval_strategy", (VERL, SKYRL, TRL), "validation.every", "0 is never")
    + _peer("val_before_train eval_before_train", (VERL, SKYRL), "", "a run is always evaluated before its first step")
    + _peer("report_to trainer.logger", (TRL, SWIFT, VERL, SKYRL), "logging.wandb logging.tensorboard")
    + _peer("project_name wandb_project", (VERL, SKYRL), "logging.wandb")
    + _peer("experiment_name run_name", (VERL, SKYRL, TRL), "run.name")
    + _peer("logging_steps", (TRL, SWIFT), "", "every step is written to metrics.jsonl")
    + _peer("bf16 torch_dtype", (TRL, SWIFT), "model.dtype", "bf16 is `bfloat16`")
    + _peer("fp16", (TRL, SWIFT), "", "`model.dtype` is `float32` or `bfloat16`")
    + _peer("attn_implementation attn_impl", (TRL, SWIFT), "model.attention")
    + _peer("lora_rank lora_r", (SWIFT, VERL, SKYRL, TRL), "model.lora.rank", values=_SAME)
    + _peer("lora_alpha", (SWIFT, VERL, TRL), "model.lora.lora_alpha", values=_SAME)
    + _peer("use_rslora", (SWIFT, TRL), "model.lora.use_rslora", values=_SAME)
    + _peer(
        "lora_dropout",
        (SWIFT, TRL),
        "model.lora.lora_dropout",
        "0 and nothing else: the sampler has none",
        values=_SAME,
    )
    + _peer("lora_target_modules target_modules", (TRL, SWIFT, VERL), "model.lora.target_modules", values=_SAME)
    + _peer("lora_modules_to_save modules_to_save", (TRL, SWIFT), "model.lora.modules_to_save", values=_SAME)
    + _peer(
        "train_type tuner_type use_peft use_lora lora_cfg.enabled",
        (SWIFT, TRL, AREAL, NEMO),
        "model.lora.rank",
        "an adapter wherever it has a rank",
    )
    + _peer(
        "load_in_4bit load_in_8bit quant_method",
        (TRL, SWIFT),
        "",
        "no QLoRA: the engine would sample from other weights",
    )
    + _peer("lr_scheduler_type scheduler.type scheduler.name", (TRL, SWIFT, NEMO), "learner.schedule")
    + _peer("optimizer.name optimizer.type", NEMO, "", "AdamW is the only one")
    + _peer("adam_beta1 adam_beta2", (TRL, SWIFT), "learner.betas")
    + _peer("warmup_ratio lr_warmup_steps_ratio", (TRL, SWIFT, VERL), "learner.warmup", "in steps")
    + _peer("kl_coef", (VERL, SKYRL), "algorithm.kl_coefficient", "in the reward with `algorithm.kl_in_reward: true`")
    + _peer("loss_mode", VERL, f"{_LOSS}.kind", "vanilla is `clip`; `clip_cov`, `kl_cov`, `sapo`, `cispo` are the same")
    + _peer("clip_cov_ratio kl_cov_ratio", VERL, f"{_LOSS}.cov_share", values=_SAME)
    + _peer("clip_cov_lb", VERL, f"{_LOSS}.cov_above", values=_SAME)
    + _peer("clip_cov_ub", VERL, f"{_LOSS}.cov_below", values=_SAME)
    + _peer("ppo_kl_coef", VERL, f"{_LOSS}.cov_coefficient", values=_SAME)
    + _peer("tau_pos sapo_temperature_pos", (VERL, TRL), f"{_LOSS}.sapo_positive", values=_SAME)
    + _peer("tau_neg sapo_temperature_neg", (VERL, TRL), f"{_LOSS}.sapo_negative", values=_SAME)
    + _peer("multi_objective_aggregation", TRL, "algorithm.advantage.kind", "normalize_then_sum is `gdpo`")
    + _peer("use_kl_in_reward", (VERL, SKYRL), "algorithm.kl_in_reward")
    + _peer(
        "kl_loss_type kl_penalty kl_estimator_type reference_policy_kl_type",
        (VERL, SKYRL, NEMO),
        "algorithm.kl_estimator",
        "kl is k1, mse k2, low_var_kl k3",
    )
    + _peer(
        "ref_model ref_model_path ref_model_name", (TRL, SWIFT, SKYRL), "algorithm.reference", "the run's first weights"
    )
    + _peer(
        "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha",
        (TRL, SWIFT),
        "algorithm.reference.refresh_every",
        "in training steps; the policy replaces the reference, nothing is mixed",
    )
    + _peer("use_adaptive_entropy entropy_target", TRL, "algorithm.entropy_control.target")
    + _peer("entropy_coef_delta", TRL, "algorithm.entropy_control.delta", values=_SAME)
    + _peer("entropy_coef_min", TRL, "algorithm.entropy_control.min", values=_SAME)
    + _peer(
        "gradient_checkpointing enable_gradient_checkpointing",
        (VERL, TRL, SWIFT, SKYRL, AREAL),
        "model.activation_checkpointing",
        "true is `full`",
        {"true": "full", "false": "none"},
    )
    + _peer("trust_remote_code", (VERL, TRL, SWIFT), "model.trust_remote_code", values=_SAME)
    + _peer("entropy_coef_max", TRL, "algorithm.entropy_control.max", values=_SAME)
)

_BY_KEY: dict[str, list[PeerKey]] = {}
for _entry in PEER_KEYS:
    _BY_KEY.setdefault(_entry.key, []).append(_entry)


def peer_entry(path: str, who: str | None = None) -> PeerKey | None:
    """The row of a key of ``who``, or of anybody: of the longest ending that is one."""
    parts = path.lstrip("+-").replace("-", "_").split(".")
    endings = (".".join(parts[start:]) for start in range(len(parts)))
    rows = (row for ending in endings for row in _BY_KEY.get(ending, ()))
    return next((row for row in rows if who is None or who in row.who), None)


def peer_hint(path: str) -> str | None:
    """What a peer's key is called here, for a path whose last parts are that key; None when it is nobody's."""
    entry = peer_entry(path)
    return entry.hint() if entry else None
