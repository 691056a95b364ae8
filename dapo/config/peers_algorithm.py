"""Keys of other trainers and their names in dapo: settings of the computation."""

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
    *peer_keys({NEMO: "ratio_clip_min"}, f"{_CLIP}.low"),
    *peer_keys({NEMO: "ratio_clip_max"}, f"{_CLIP}.high"),
    *peer_keys({NEMO: "ratio_clip_c"}, f"{_CLIP}.dual"),
    *peer_keys({AREAL: "eps_clip"}, f"{_CLIP}.low", f"`{_CLIP}.high` is always set apart"),
    *peer_keys({AREAL: "eps_clip_higher"}, f"{_CLIP}.high"),
    *peer_keys({AREAL: "c_clip"}, f"{_CLIP}.dual"),
    *peer_keys({SKYRL: "eps_clip_low"}, f"{_CLIP}.low"),
    *peer_keys({SKYRL: "eps_clip_high"}, f"{_CLIP}.high"),
    *peer_keys({SWIFT: "epsilon", TRL: "epsilon"}, f"{_CLIP}.low"),
    *peer_keys({SWIFT: "epsilon_low", TRL: "epsilon_low"}, f"{_CLIP}.low"),
    *peer_keys({SWIFT: "epsilon_high", TRL: "epsilon_high"}, f"{_CLIP}.high", f"with CISPO it is `{_LOSS}.cap`"),
    *peer_keys(
        {SWIFT: "delta", TRL: "delta"},
        f"{_CLIP}.dual",
        "delta bounds the ratio itself, as c does for negative advantages",
    ),
    *peer_keys({VERL: "clip_ratio"}, f"{_CLIP}.low {_CLIP}.high"),
    *peer_keys({VERL: "clip_ratio_low"}, f"{_CLIP}.low"),
    *peer_keys({VERL: "clip_ratio_high"}, f"{_CLIP}.high"),
    *peer_keys({VERL: "clip_ratio_c", SKYRL: "clip_ratio_c"}, f"{_CLIP}.dual"),
    # dynamic sampling
    *peer_keys({NEMO: "use_dynamic_sampling"}, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys({NEMO: "batch_multiplier"}, f"{_DS}.oversample", "null adapts it to the measured acceptance rate"),
    *peer_keys({NEMO: "dynamic_sampling_max_gen_batches"}, f"{_DS}.cap.groups", _CAP),
    *peer_keys({AREAL: "dynamic_sampling"}, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys({AREAL: "dynamic_bs"}, f"{_DS}.mode", "`mask` trains on what is left of one batch"),
    *peer_keys({AREAL: "dynamic_filter_fn should_accept_fn"}, f"{_DS}.keep"),
    *peer_keys({SKYRL: "dynamic_sampling.type"}, f"{_DS}.mode", "`filter` and `replace` are the same"),
    *peer_keys({SKYRL: "max_sample_batches"}, f"{_DS}.cap.groups", _CAP),
    *peer_keys({SKYRL: "min_replace_ratio"}, f"{_DS}.replace.min_ratio"),
    *peer_keys({SKYRL: "zero_variance_filter"}, f"{_DS}.mode", "`mask` drops such groups without replacing them"),
    *peer_keys({SKYRL: "zero_variance_filter_tol"}, f"{_DS}.tolerance", values=SAME),
    *peer_keys({SWIFT: "dynamic_sample"}, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys({SWIFT: "max_resample_times"}, f"{_DS}.cap.groups", _CAP),
    *peer_keys({VERL: "filter_groups filter_groups.enable"}, f"{_DS}.mode", "true is `filter`, false is `off`"),
    *peer_keys({VERL: "filter_groups.metric"}, f"{_DS}.metric", "`acc` is `accuracy`"),
    *peer_keys({VERL: "filter_groups.max_num_gen_batches max_num_gen_batches"}, f"{_DS}.cap.groups", _CAP),
    *peer_keys(
        {VERL: "gen_batch_size"},
        f"{_DS}.oversample",
        "gen_batch_size / train_batch_size, times what is still missing in each round",
    ),
    # loss
    *peer_keys({NEMO: "token_level_loss"}, f"{_LOSS}.reduction", "true is `token_mean`, false is `sequence_mean`"),
    *peer_keys({SKYRL: "loss_reduction"}, f"{_LOSS}.reduction", "`token_mean_legacy` is `micro_batch_mean`"),
    *peer_keys({SKYRL: "policy_loss_type"}, f"{_LOSS}.kind", _GSPO),
    *peer_keys(
        {SWIFT: "loss_type", TRL: "loss_type"},
        f"{_LOSS}.reduction",
        f"dapo is `token_mean`, grpo `sequence_mean`, bnpo `micro_batch_mean`, dr_grpo `constant`; cispo is "
        f"`{_LOSS}.kind: cispo`",
    ),
    *peer_keys(
        {VERL: "loss_agg_mode"},
        f"{_LOSS}.reduction",
        "token-mean is `token_mean`, seq-mean-token-mean `sequence_mean`, seq-mean-token-sum `sequence_sum`, "
        "seq-mean-token-sum-norm `constant`",
    ),
    *peer_keys({VERL: "loss_scale_factor", SKYRL: "max_seq_len"}, f"{_LOSS}.reduction.length"),
    *peer_keys({NEMO: "sequence_level_importance_ratios"}, f"{_LOSS}.ratio", f"true is `sequence`; {_GSPO}"),
    *peer_keys(
        {SWIFT: "importance_sampling_level", TRL: "importance_sampling_level", AREAL: "importance_sampling_level"},
        f"{_LOSS}.ratio",
        _GSPO,
    ),
    *peer_keys({NEMO: "use_cispo"}, f"{_LOSS}.kind", "true is `cispo`"),
    # length
    *peer_keys({NEMO: "overlong_buffer_length"}, f"{_LEN}.cache_length"),
    *peer_keys({NEMO: "overlong_buffer_penalty"}, f"{_LEN}.factor"),
    *peer_keys({NEMO: "reward_shaping.enabled"}, f"{_LEN}.enabled"),
    *peer_keys(
        {NEMO: "max_response_length", VERL: "max_response_length"},
        f"{_LEN}.max_length",
        "the limit itself: `rollout.max_response_tokens`",
    ),
    *peer_keys({AREAL: "overlong_reward_penalty"}, f"{_LEN}.enabled"),
    *peer_keys({AREAL: "overlong_tokens"}, f"{_LEN}.cache_length"),
    *peer_keys({AREAL: "overlong_penalty_factor"}, f"{_LEN}.factor"),
    *peer_keys({SKYRL: "overlong_buffer.len overlong_buffer_len", VERL: "overlong_buffer.len"}, f"{_LEN}.cache_length"),
    *peer_keys(
        {
            SKYRL: "overlong_buffer.penalty_factor overlong_buffer_penalty_factor penalty_factor",
            VERL: "overlong_buffer.penalty_factor penalty_factor",
        },
        f"{_LEN}.factor",
    ),
    *peer_keys(
        {SKYRL: "overlong_buffer", VERL: "overlong_buffer overlong_buffer_cfg overlong_buffer.enable"},
        f"{_LEN}.enabled",
    ),
    *peer_keys({SWIFT: "soft_max_length"}, f"{_LEN}.max_length"),
    *peer_keys({SWIFT: "soft_cache_length"}, f"{_LEN}.cache_length"),
    *peer_keys({SWIFT: "soft_overlong"}, f"{_LEN}.enabled"),
    *peer_keys({VERL: "max_resp_len"}, f"{_LEN}.max_length"),
    *peer_keys({SWIFT: "overlong_filter"}, "algorithm.overlong_filtering"),
    *peer_keys({SKYRL: "apply_overlong_filtering"}, "algorithm.overlong_filtering"),
    *peer_keys({NEMO: "overlong_filtering"}, "algorithm.overlong_filtering"),
    *peer_keys({TRL: "mask_truncated_completions"}, "algorithm.overlong_filtering"),
    # advantage and rewards
    *peer_keys({NEMO: "reward_scaling.enabled"}, f"{_SCALE}.enabled"),
    *peer_keys({NEMO: "reward_scaling.source_min"}, f"{_SCALE}.source_min"),
    *peer_keys({NEMO: "reward_scaling.source_max"}, f"{_SCALE}.source_max"),
    *peer_keys({NEMO: "reward_scaling.target_min"}, f"{_SCALE}.target_min"),
    *peer_keys({NEMO: "reward_scaling.target_max"}, f"{_SCALE}.target_max"),
    *peer_keys(
        {AREAL: "reward_bias"}, f"{_SCALE}.target_min {_SCALE}.target_max", "state the range that rewards map to"
    ),
    *peer_keys(
        {SWIFT: "scale_rewards", TRL: "scale_rewards"},
        "algorithm.advantage.scale",
        "group is `group_std`, batch `batch_std`",
    ),
    *peer_keys({NEMO: "normalize_rewards"}, "algorithm.advantage.scale", "true is `group_std`, false is `none`"),
    *peer_keys({SKYRL: "grpo_norm_by_std", VERL: "norm_adv_by_std_in_grpo"}, "algorithm.advantage.scale"),
    *peer_keys({NEMO: "use_leave_one_out_baseline"}, "algorithm.advantage.baseline", "true is `leave_one_out`"),
    *peer_keys(
        {VERL: "adv_estimator", NEMO: "adv_estimator", SKYRL: "advantage_estimator", SWIFT: "advantage_estimator"},
        "algorithm.advantage.kind",
    ),
    *peer_keys(
        {SWIFT: "reward_funcs", TRL: "reward_funcs"},
        "rewards",
        "soft_overlong is `algorithm.overlong_punishment.enabled`",
    ),
    *peer_keys({SWIFT: "reward_weights", TRL: "reward_weights"}, "rewards.N.weight"),
    # old log-probabilities and KL
    *peer_keys({NEMO: "use_importance_sampling_correction"}, f"{_FIX}.kind", "alone it is `untruncated`"),
    *peer_keys(
        {NEMO: "truncated_importance_sampling_type"},
        f"{_FIX}.kind",
        "tis is `truncate`, icepop `mask_token`, seq-mask-tis `mask_sequence` with `token_cap: null`",
    ),
    *peer_keys({NEMO: "truncated_importance_sampling_ratio"}, f"{_FIX}.cap"),
    *peer_keys({NEMO: "truncated_importance_sampling_ratio_min"}, f"{_FIX}.floor"),
    *peer_keys({SKYRL: "use_tis"}, f"{_FIX}.kind", "true is `truncate`"),
    *peer_keys({SKYRL: "tis_ratio_type"}, f"{_FIX}.kind", "token is `truncate`, sequence `truncate_sequence`"),
    *peer_keys({SKYRL: "tis_imp_ratio_cap", VERL: "tis_imp_ratio_cap"}, f"{_FIX}.cap"),
    *peer_keys(
        {SKYRL: "token_tis_ratio_clip_high"}, f"{_FIX}.cap {_FIX}.token_cap", "the second beside a sequence mask"
    ),
    *peer_keys({SKYRL: "sequence_tis_ratio_clip_high"}, f"{_FIX}.sequence_cap"),
    *peer_keys(
        {SKYRL: "sequence_mask_metric"}, f"{_FIX}.kind", "geometric is `mask_sequence`; one by the product is not here"
    ),
    *peer_keys({TRL: "off_policy_mask_threshold"}, f"{_FIX}.threshold", "with `kind: mask_off_policy`"),
    *peer_keys({SWIFT: "off_policy_sequence_mask_delta"}, f"{_FIX}.threshold", "with `kind: mask_off_policy`"),
    *peer_keys({SKYRL: "geo_mask_high"}, f"{_FIX}.cap"),
    *peer_keys({SKYRL: "geo_mask_low"}, f"{_FIX}.floor"),
    *peer_keys({VERL: "rollout_is"}, f"{_FIX}.kind", "token is `truncate`, sequence `truncate_sequence`"),
    *peer_keys({VERL: "rollout_is_threshold"}, f"{_FIX}.cap {_FIX}.sequence_cap", "of tokens, and of sequences"),
    *peer_keys({VERL: "rollout_rs"}, f"{_FIX}.kind", "token_k1 is `mask_token`, seq_mean_k1 `mask_sequence`"),
    *peer_keys(
        {VERL: "rollout_rs_threshold rollout_rs_threshold_lower"},
        f"{_FIX}.floor {_FIX}.cap",
        "low_up is of sampler over learner: floor 1/up and cap 1/low",
    ),
    *peer_keys({SWIFT: "rollout_importance_sampling_mode"}, f"{_FIX}.kind", _MODES),
    *peer_keys(
        {TRL: "vllm_importance_sampling_correction"}, f"{_FIX}.kind", "true is `truncate_sequence` or a mask there"
    ),
    *peer_keys({TRL: "vllm_importance_sampling_mode"}, f"{_FIX}.kind", _MODES),
    *peer_keys({TRL: "vllm_importance_sampling_cap"}, f"{_FIX}.cap {_FIX}.sequence_cap", "of tokens, and of sequences"),
    *peer_keys({SWIFT: "beta", TRL: "beta"}, "algorithm.kl_coefficient", _KL),
    *peer_keys({AREAL: "kl_ctl"}, "algorithm.kl_coefficient", _KL),
    *peer_keys({SKYRL: "use_kl_loss kl_loss_coef", VERL: "use_kl_loss kl_loss_coef"}, "algorithm.kl_coefficient", _KL),
    *peer_keys({NEMO: "reference_policy_kl_penalty"}, "algorithm.kl_coefficient", _KL),
    # entropy, the reference, other losses
    *peer_keys(
        {AREAL: "actor.reward_scaling"}, f"{_SCALE}.target_min {_SCALE}.target_max", "a factor there, a range here"
    ),
    *peer_keys(
        {AREAL: "use_decoupled_loss prox_logp_method"},
        "algorithm.old_logprobs algorithm.correction.kind",
        "`learner` and a correction; its `loglinear` is `interpolated`",
    ),
    *peer_keys(
        {VERL: "entropy_coeff", AREAL: "entropy_coeff entropy_coef", TRL: "entropy_coef"},
        "algorithm.entropy_coefficient",
        "0 in DAPO",
        values=SAME,
    ),
    *peer_keys({VERL: "kl_coef"}, "algorithm.kl_coefficient", "in the reward with `algorithm.kl_in_reward: true`"),
    *peer_keys(
        {VERL: "loss_mode"}, f"{_LOSS}.kind", "vanilla is `clip`; `clip_cov`, `kl_cov`, `sapo`, `cispo` are the same"
    ),
    *peer_keys({VERL: "clip_cov_ratio kl_cov_ratio"}, f"{_LOSS}.share", values=SAME),
    *peer_keys({VERL: "clip_cov_lb", SKYRL: "clip_cov_lb"}, f"{_LOSS}.above", values=SAME),
    *peer_keys({VERL: "clip_cov_ub", SKYRL: "clip_cov_ub"}, f"{_LOSS}.below", values=SAME),
    *peer_keys({VERL: "ppo_kl_coef", SKYRL: "ppo_kl_coef"}, f"{_LOSS}.coefficient", values=SAME),
    *peer_keys(
        {VERL: "tau_pos", SKYRL: "tau_pos", SWIFT: "tau_pos", TRL: "sapo_temperature_pos"},
        f"{_LOSS}.positive",
        values=SAME,
    ),
    *peer_keys(
        {VERL: "tau_neg", SKYRL: "tau_neg", SWIFT: "tau_neg", TRL: "sapo_temperature_neg"},
        f"{_LOSS}.negative",
        values=SAME,
    ),
    *peer_keys(
        {TRL: "multi_objective_aggregation"},
        "algorithm.advantage.kind",
        "normalize_then_sum is `gdpo`",
        {"normalize_then_sum": "gdpo", "sum_then_normalize": "group"},
    ),
    *peer_keys(
        {VERL: "use_kl_in_reward", SKYRL: "use_kl_in_reward", NEMO: "use_kl_in_reward"}, "algorithm.kl_in_reward"
    ),
    *peer_keys(
        {VERL: "kl_loss_type kl_penalty", SKYRL: "kl_estimator_type", NEMO: "reference_policy_kl_type"},
        "algorithm.kl_estimator",
        "kl is k1, mse k2, low_var_kl k3",
    ),
    *peer_keys({SWIFT: "ref_model"}, "algorithm.reference", "the run's first weights"),
    *peer_keys(
        {
            TRL: "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha",
            SWIFT: "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha",
        },
        "algorithm.reference.refresh_every",
        "in training steps; the policy replaces the reference, nothing is mixed",
    ),
    *peer_keys({TRL: "use_adaptive_entropy entropy_target"}, "algorithm.entropy_control.target"),
    *peer_keys({TRL: "entropy_coef_delta"}, "algorithm.entropy_control.delta", values=SAME),
    *peer_keys({TRL: "entropy_coef_min"}, "algorithm.entropy_control.min", values=SAME),
    *peer_keys({TRL: "entropy_coef_max"}, "algorithm.entropy_control.max", values=SAME),
)
