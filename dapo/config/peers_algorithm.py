"""What the keys of other trainers are called here: of what is computed."""

from __future__ import annotations

from dapo.config.peer_key import AREAL, NEMO, SAME, SKYRL, SWIFT, TRL, VERL, PeerKey, peer_keys

_CLIP = "algorithm.clip"
_LOSS = "algorithm.loss"
_DS = "algorithm.dynamic_sampling"
_LEN = "algorithm.overlong_punishment"
_SCALE = "algorithm.reward_scaling"
_GSPO = f"GSPO is `preset: gspo` (`{_LOSS}.ratio: sequence`, reduction `sequence_mean`, clip 3e-4 / 4e-4)"
_FIX = "algorithm.correction"
_MODES = (
    "token_truncate is `truncate`, token_mask `mask_token`, sequence_truncate `truncate_sequence`; "
    "sequence_mask goes by the product there, `mask_sequence` by the geometric mean"
)
_KL = "0 in DAPO; `algorithm.kl_estimator` is k3 (verl's low_var_kl) unless set"
_CAP = f"rounds become a cap on dispatched groups, in multiples of P; `{_DS}.cap.then` says what happens there"

ALGORITHM: tuple[PeerKey, ...] = (
    # clip
    *peer_keys("ratio_clip_min", NEMO, f"{_CLIP}.low"),
    *peer_keys("ratio_clip_max", NEMO, f"{_CLIP}.high"),
    *peer_keys("ratio_clip_c", NEMO, f"{_CLIP}.dual"),
    *peer_keys("eps_clip", AREAL, f"{_CLIP}.low", f"`{_CLIP}.high` is always set apart"),
    *peer_keys("eps_clip_higher", AREAL, f"{_CLIP}.high"),
    *peer_keys("c_clip", AREAL, f"{_CLIP}.dual"),
    *peer_keys("eps_clip_low", SKYRL, f"{_CLIP}.low"),
    *peer_keys("eps_clip_high", SKYRL, f"{_CLIP}.high"),
    *peer_keys("epsilon", (SWIFT, TRL), f"{_CLIP}.low"),
    *peer_keys("epsilon_low", (SWIFT, TRL), f"{_CLIP}.low"),
    *peer_keys("epsilon_high", (SWIFT, TRL), f"{_CLIP}.high", f"with CISPO it is `{_LOSS}.cap`"),
    *peer_keys(
        "delta", (SWIFT, TRL), f"{_CLIP}.dual", "delta bounds the ratio itself, as c does for negative advantages"
    ),
    *peer_keys("clip_ratio", VERL, f"{_CLIP}.low {_CLIP}.high"),
    *peer_keys("clip_ratio_low", VERL, f"{_CLIP}.low"),
    *peer_keys("clip_ratio_high", VERL, f"{_CLIP}.high"),
    *peer_keys("clip_ratio_c", (VERL, SKYRL), f"{_CLIP}.dual"),
    # dynamic sampling
    *peer_keys("use_dynamic_sampling", NEMO, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys("batch_multiplier", NEMO, f"{_DS}.oversample", "null adapts it to the measured acceptance rate"),
    *peer_keys("dynamic_sampling_max_gen_batches", NEMO, f"{_DS}.cap.groups", _CAP),
    *peer_keys("dynamic_sampling", AREAL, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys("dynamic_bs", AREAL, f"{_DS}.mode", "`mask` trains on what is left of one batch"),
    *peer_keys("dynamic_filter_fn should_accept_fn", AREAL, f"{_DS}.keep"),
    *peer_keys("dynamic_sampling.type", SKYRL, f"{_DS}.mode", "`filter` and `replace` are the same"),
    *peer_keys("max_sample_batches", SKYRL, f"{_DS}.cap.groups", _CAP),
    *peer_keys("min_replace_ratio", SKYRL, f"{_DS}.replace.min_ratio"),
    *peer_keys("zero_variance_filter", SKYRL, f"{_DS}.mode", "`mask` drops such groups without replacing them"),
    *peer_keys("zero_variance_filter_tol", SKYRL, f"{_DS}.tolerance", values=SAME),
    *peer_keys("dynamic_sample", SWIFT, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys("max_resample_times", SWIFT, f"{_DS}.cap.groups", _CAP),
    *peer_keys("filter_groups filter_groups.enable", VERL, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys("filter_groups.metric", VERL, f"{_DS}.metric", "`acc` is `accuracy`"),
    *peer_keys("filter_groups.max_num_gen_batches max_num_gen_batches", VERL, f"{_DS}.cap.groups", _CAP),
    *peer_keys(
        "gen_batch_size",
        VERL,
        f"{_DS}.oversample",
        "gen_batch_size / train_batch_size, times what is still missing in each round",
    ),
    # loss
    *peer_keys("token_level_loss", NEMO, f"{_LOSS}.reduction", "true is `token_mean`, false is `sequence_mean`"),
    *peer_keys("loss_reduction", SKYRL, f"{_LOSS}.reduction", "`token_mean_legacy` is `micro_batch_mean`"),
    *peer_keys("policy_loss_type", SKYRL, f"{_LOSS}.kind", _GSPO),
    *peer_keys(
        "loss_type",
        (SWIFT, TRL),
        f"{_LOSS}.reduction",
        f"dapo is `token_mean`, grpo `sequence_mean`, bnpo `micro_batch_mean`, dr_grpo `constant`; cispo is "
        f"`{_LOSS}.kind: cispo`",
    ),
    *peer_keys(
        "loss_agg_mode",
        VERL,
        f"{_LOSS}.reduction",
        "token-mean is `token_mean`, seq-mean-token-mean `sequence_mean`, seq-mean-token-sum `sequence_sum`, "
        "seq-mean-token-sum-norm `constant`",
    ),
    *peer_keys("loss_scale_factor max_seq_len", (VERL, SKYRL), f"{_LOSS}.reduction.length"),
    *peer_keys("sequence_level_importance_ratios", NEMO, f"{_LOSS}.ratio", f"true is `sequence`; {_GSPO}"),
    *peer_keys("importance_sampling_level", (SWIFT, TRL), f"{_LOSS}.ratio", _GSPO),
    *peer_keys("use_cispo", NEMO, f"{_LOSS}.kind", "true is `cispo`"),
    # length
    *peer_keys("overlong_buffer_length", NEMO, f"{_LEN}.cache_length"),
    *peer_keys("overlong_buffer_penalty", NEMO, f"{_LEN}.factor"),
    *peer_keys("reward_shaping.enabled", NEMO, f"{_LEN}.enabled"),
    *peer_keys(
        "max_response_length", (NEMO, VERL), f"{_LEN}.max_length", "the limit itself: `rollout.max_response_tokens`"
    ),
    *peer_keys("overlong_reward_penalty", AREAL, f"{_LEN}.enabled"),
    *peer_keys("overlong_tokens", AREAL, f"{_LEN}.cache_length"),
    *peer_keys("overlong_penalty_factor", AREAL, f"{_LEN}.factor"),
    *peer_keys("overlong_buffer.len overlong_buffer_len", (SKYRL, VERL), f"{_LEN}.cache_length"),
    *peer_keys(
        "overlong_buffer.penalty_factor overlong_buffer_penalty_factor penalty_factor", (SKYRL, VERL), f"{_LEN}.factor"
    ),
    *peer_keys("overlong_buffer overlong_buffer_cfg overlong_buffer.enable", (SKYRL, VERL), f"{_LEN}.enabled"),
    *peer_keys("soft_max_length", SWIFT, f"{_LEN}.max_length"),
    *peer_keys("soft_cache_length", SWIFT, f"{_LEN}.cache_length"),
    *peer_keys("soft_overlong", SWIFT, f"{_LEN}.enabled"),
    *peer_keys("max_resp_len", VERL, f"{_LEN}.max_length"),
    *peer_keys("overlong_filter", SWIFT, "algorithm.overlong_filtering"),
    *peer_keys("apply_overlong_filtering", SKYRL, "algorithm.overlong_filtering"),
    *peer_keys("overlong_filtering", NEMO, "algorithm.overlong_filtering"),
    *peer_keys("mask_truncated_completions", TRL, "algorithm.overlong_filtering"),
    # advantage and rewards
    *peer_keys("reward_scaling.enabled", NEMO, f"{_SCALE}.enabled"),
    *peer_keys("reward_scaling.source_min", NEMO, f"{_SCALE}.source_min"),
    *peer_keys("reward_scaling.source_max", NEMO, f"{_SCALE}.source_max"),
    *peer_keys("reward_scaling.target_min", NEMO, f"{_SCALE}.target_min"),
    *peer_keys("reward_scaling.target_max", NEMO, f"{_SCALE}.target_max"),
    *peer_keys("reward_bias", AREAL, f"{_SCALE}.target_min {_SCALE}.target_max", "state the range that rewards map to"),
    *peer_keys("scale_rewards", (SWIFT, TRL), "algorithm.advantage.scale", "group is `group_std`, batch `batch_std`"),
    *peer_keys("normalize_rewards", NEMO, "algorithm.advantage.scale", "true is `group_std`, false is `none`"),
    *peer_keys("grpo_norm_by_std norm_adv_by_std_in_grpo", (SKYRL, VERL), "algorithm.advantage.scale"),
    *peer_keys("use_leave_one_out_baseline", NEMO, "algorithm.advantage.baseline", "true is `leave_one_out`"),
    *peer_keys("adv_estimator advantage_estimator", (VERL, SKYRL, SWIFT), "algorithm.advantage.kind"),
    *peer_keys("reward_funcs", (SWIFT, TRL), "rewards", "soft_overlong is `algorithm.overlong_punishment.enabled`"),
    *peer_keys("reward_weights", (SWIFT, TRL), "rewards.N.weight"),
    # old log-probabilities and KL
    *peer_keys("use_importance_sampling_correction", NEMO, f"{_FIX}.kind", "alone it is `untruncated`"),
    *peer_keys(
        "truncated_importance_sampling_type",
        NEMO,
        f"{_FIX}.kind",
        "tis is `truncate`, icepop `mask_token`, seq-mask-tis `mask_sequence` with `token_cap: null`",
    ),
    *peer_keys("truncated_importance_sampling_ratio", NEMO, f"{_FIX}.cap"),
    *peer_keys("truncated_importance_sampling_ratio_min", NEMO, f"{_FIX}.floor"),
    *peer_keys("use_tis", SKYRL, f"{_FIX}.kind", "true is `truncate`"),
    *peer_keys("tis_ratio_type", SKYRL, f"{_FIX}.kind", "token is `truncate`, sequence `truncate_sequence`"),
    *peer_keys("tis_imp_ratio_cap", (SKYRL, VERL), f"{_FIX}.cap"),
    *peer_keys("token_tis_ratio_clip_high", SKYRL, f"{_FIX}.cap {_FIX}.token_cap", "the second beside a sequence mask"),
    *peer_keys("sequence_tis_ratio_clip_high", SKYRL, f"{_FIX}.sequence_cap"),
    *peer_keys(
        "sequence_mask_metric", SKYRL, f"{_FIX}.kind", "geometric is `mask_sequence`; one by the product is not here"
    ),
    *peer_keys("off_policy_mask_threshold", TRL, f"{_FIX}.threshold", "with `kind: mask_off_policy`"),
    *peer_keys("off_policy_sequence_mask_delta", SWIFT, f"{_FIX}.threshold", "with `kind: mask_off_policy`"),
    *peer_keys("geo_mask_high", SKYRL, f"{_FIX}.cap"),
    *peer_keys("geo_mask_low", SKYRL, f"{_FIX}.floor"),
    *peer_keys("rollout_is", VERL, f"{_FIX}.kind", "token is `truncate`, sequence `truncate_sequence`"),
    *peer_keys("rollout_is_threshold", VERL, f"{_FIX}.cap {_FIX}.sequence_cap", "of tokens, and of sequences"),
    *peer_keys("rollout_rs", VERL, f"{_FIX}.kind", "token_k1 is `mask_token`, seq_mean_k1 `mask_sequence`"),
    *peer_keys(
        "rollout_rs_threshold rollout_rs_threshold_lower",
        VERL,
        f"{_FIX}.floor {_FIX}.cap",
        "low_up is of sampler over learner: floor 1/up and cap 1/low",
    ),
    *peer_keys("rollout_importance_sampling_mode", SWIFT, f"{_FIX}.kind", _MODES),
    *peer_keys(
        "vllm_importance_sampling_correction", TRL, f"{_FIX}.kind", "true is `truncate_sequence` or a mask there"
    ),
    *peer_keys("vllm_importance_sampling_mode", TRL, f"{_FIX}.kind", _MODES),
    *peer_keys("vllm_importance_sampling_cap", TRL, f"{_FIX}.cap {_FIX}.sequence_cap", "of tokens, and of sequences"),
    *peer_keys("beta", (SWIFT, TRL), "algorithm.kl_coefficient", _KL),
    *peer_keys("kl_ctl", AREAL, "algorithm.kl_coefficient", _KL),
    *peer_keys("use_kl_loss kl_loss_coef", (SKYRL, VERL), "algorithm.kl_coefficient", _KL),
    *peer_keys("reference_policy_kl_penalty", NEMO, "algorithm.kl_coefficient", _KL),
    # entropy, the reference, other losses
    *peer_keys(
        "actor.reward_scaling", AREAL, f"{_SCALE}.target_min {_SCALE}.target_max", "a factor there, a range here"
    ),
    *peer_keys(
        "use_decoupled_loss prox_logp_method",
        AREAL,
        "algorithm.old_logprobs algorithm.correction.kind",
        "`learner` and a correction; its `loglinear` is `interpolated`",
    ),
    *peer_keys(
        "entropy_coeff entropy_coef", (VERL, AREAL, TRL), "algorithm.entropy_coefficient", "0 in DAPO", values=SAME
    ),
    *peer_keys(
        "kl_coef", (VERL, SKYRL), "algorithm.kl_coefficient", "in the reward with `algorithm.kl_in_reward: true`"
    ),
    *peer_keys(
        "loss_mode", VERL, f"{_LOSS}.kind", "vanilla is `clip`; `clip_cov`, `kl_cov`, `sapo`, `cispo` are the same"
    ),
    *peer_keys("clip_cov_ratio kl_cov_ratio", VERL, f"{_LOSS}.share", values=SAME),
    *peer_keys("clip_cov_lb", VERL, f"{_LOSS}.above", values=SAME),
    *peer_keys("clip_cov_ub", VERL, f"{_LOSS}.below", values=SAME),
    *peer_keys("ppo_kl_coef", VERL, f"{_LOSS}.coefficient", values=SAME),
    *peer_keys("tau_pos sapo_temperature_pos", (VERL, TRL), f"{_LOSS}.positive", values=SAME),
    *peer_keys("tau_neg sapo_temperature_neg", (VERL, TRL), f"{_LOSS}.negative", values=SAME),
    *peer_keys("multi_objective_aggregation", TRL, "algorithm.advantage.kind", "normalize_then_sum is `gdpo`"),
    *peer_keys("use_kl_in_reward", (VERL, SKYRL), "algorithm.kl_in_reward"),
    *peer_keys(
        "kl_loss_type kl_penalty kl_estimator_type reference_policy_kl_type",
        (VERL, SKYRL, NEMO),
        "algorithm.kl_estimator",
        "kl is k1, mse k2, low_var_kl k3",
    ),
    *peer_keys(
        "ref_model ref_model_path ref_model_name", (TRL, SWIFT, SKYRL), "algorithm.reference", "the run's first weights"
    ),
    *peer_keys(
        "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha",
        (TRL, SWIFT),
        "algorithm.reference.refresh_every",
        "in training steps; the policy replaces the reference, nothing is mixed",
    ),
    *peer_keys("use_adaptive_entropy entropy_target", TRL, "algorithm.entropy_control.target"),
    *peer_keys("entropy_coef_delta", TRL, "algorithm.entropy_control.delta", values=SAME),
    *peer_keys("entropy_coef_min", TRL, "algorithm.entropy_control.min", values=SAME),
    *peer_keys("entropy_coef_max", TRL, "algorithm.entropy_control.max", values=SAME),
)
