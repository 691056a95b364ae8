"""Keys of other trainers that change what is computed there and have no counterpart in a recipe, with the reason.

Patterns are read as in ``peers_apart``.
"""

from __future__ import annotations

from dapo.config.peer_key import AREAL, NEMO, SKYRL, SWIFT, TRL, VERL, ApartKey, apart_keys

_NO_REWARD_MODEL = "answers are checked by a program here; a reward model is asked over HTTP (rewards.N.kind: service)"
_DATA = "how data are read there (docs/data.md)"
_PARTS = "all weights are trained here, or an adapter"
_ADAPTERS = "an adapter is plain LoRA here: model.lora has its settings"
_FAILURES = "a lost response is sampled again, and a reward without an answer is asked again (docs/failures.md)"
_SAMPLING = (
    "responses are sampled by temperature, top_p, top_k and stop here, so that their log-probabilities are known"
)

MISSING: tuple[ApartKey, ...] = (
    *apart_keys(
        "it runs code that comes with the model: read that code, then set model.trust_remote_code",
        dict.fromkeys((VERL, TRL, SWIFT, NEMO, SKYRL, AREAL), "*trust_remote_code"),
    ),
    *apart_keys(
        _NO_REWARD_MODEL,
        {VERL: "reward_model.* reward.reward_model.*", SWIFT: "reward_model* reward_adapters reward_template"},
    ),
    *apart_keys(
        "ends of responses are those of model and tokenizer here unless set",
        {NEMO: "*stop_token_ids", AREAL: "*stop_token_ids"},
    ),
    *apart_keys(
        "the tokenizer is the model's",
        {
            NEMO: "*tokenizer*",
            AREAL: "*tokenizer*",
            SKYRL: "*tokenizer*",
            VERL: "*tokenizer*",
            SWIFT: "new_special_tokens",
        },
    ),
    *apart_keys(
        "the chat template is the tokenizer's unless data.chat_template gives another",
        {
            NEMO: "*chat_template*",
            VERL: "*chat_template*",
            SKYRL: "*chat_template*",
            SWIFT: "template template_backend use_chat_template model_type",
        },
    ),
    *apart_keys(
        "a file with the prompt's text: data.prompt_template or data.instruction hold it here", {NEMO: "*prompt_file"}
    ),
    *apart_keys("a file with the system's text: data.system_prompt holds it here", {NEMO: "*system_prompt_file"}),
    *apart_keys("data.system_prompt holds the system's text", {NEMO: "data.add_system_prompt"}),
    *apart_keys("the verifier's processes: rewards.N here", {NEMO: "env.*", SKYRL: "environment.skyrl_gym.*"}),
    *apart_keys(
        "a judge is a reward of kind `service` (docs/howto_judges.md)",
        {SKYRL: "environment.skyrl_gym.llm_as_a_judge.*"},
    ),
    *apart_keys(
        "programs run in a sandbox of dapo: rewards.N.kind: code, sandbox.url (docs/howto_code_rewards.md)",
        {VERL: "*sandbox_fusion*"},
    ),
    *apart_keys(
        "a rule of yours: rewards.N.kind: function (docs/own_reward.md)",
        {
            VERL: "*custom_reward_function.name *reward_manager.*",
            SWIFT: "cosine_* repetition_* external_plugins custom_register_path callbacks reward_model_plugin",
            SKYRL: "*zero_reward_on_non_stop",
        },
    ),
    *apart_keys(
        _DATA,
        {
            AREAL: "*drop_last valid_dataset.*",
            TRL: "dataloader_drop_last",
            SWIFT: "dataloader_drop_last columns split_dataset_ratio interleave_prob",
            NEMO: "data.*split_validation_size data.validation",
        },
    ),
    *apart_keys("the columns are found by name: data.train.N.fields says others", {VERL: "data.*key"}),
    *apart_keys("data.train.N.size: problems of the source that are taken", {VERL: "data.train_max_samples"}),
    *apart_keys(
        "validation.limit: problems of each set that are evaluated",
        {NEMO: "*max_val_samples", VERL: "data.val_max_samples"},
    ),
    *apart_keys(
        "the first pass takes minibatches in the order of the batch here, later passes draw them",
        {VERL: "actor_rollout_ref.actor.shuffle"},
    ),
    *apart_keys("GRPO and its relatives are what is here", {SWIFT: "rlhf_type"}),
    *apart_keys("model.lora.rank trains an adapter, without it all weights", {SWIFT: "*train_type"}),
    *apart_keys(
        _PARTS,
        {
            SWIFT: "freeze_* trainable_* llamapro* lisa_* target_parameters target_regex",
            TRL: "lora_target_parameters lora_task_type",
        },
    ),
    *apart_keys(
        _ADAPTERS,
        {
            SWIFT: (
                "adalora_* adapter_* adapters boft_* fourier_* galore_* vera_* reft_* lora_bias lora_dtype "
                "lora_ga_* lorap_* use_dora use_galore use_swift_lora init_weights init_strategy "
                "tuner_backend modules_to_save ref_adapters"
            ),
            TRL: "use_dora",
            VERL: "*lora_adapter_path *exclude_modules actor_rollout_ref.model.lora.*",
            SKYRL: "*lora.exclude_modules *lora.init_method",
            AREAL: "*peft_type",
        },
    ),
    *apart_keys(
        "no QLoRA and no trained quantization: the engine would sample from other weights",
        {
            TRL: "bnb_* use_bnb_nested_quant",
            SWIFT: "bnb_* quant_* hqq_axis",
            VERL: "*qat* *quantization*",
            SKYRL: "*fake_int4_qat*",
        },
    ),
    *apart_keys(
        "quantized weights or moments are not here",
        {NEMO: "*quant* *exp_avg* *master_weights *disable_modelopt*"},
    ),
    *apart_keys("model.dtype and rollout.vllm.dtype", {VERL: "*model.torch_dtype"}),
    *apart_keys("validation.samples says how often each problem is sampled", {NEMO: "data.validation.repeat"}),
    *apart_keys("the servers' own addresses go before it", {SKYRL: "*external_proxy_url"}),
    *apart_keys(
        "the engine has the learner's weights in their own precision", {SWIFT: "vllm_quantization", AREAL: "*fp8*"}
    ),
    *apart_keys(
        "steps with infinite gradients alone are skipped here",
        {VERL: "*grad_norm_threshold*", NEMO: "*seq_logprob_error_threshold"},
    ),
    *apart_keys(
        "the KL coefficient is fixed here",
        {
            SWIFT: "*beta_schedule*",
            VERL: "*kl_ctrl.horizon *kl_ctrl.target_kl",
            SKYRL: "*kl_ctrl.horizon *kl_ctrl.type",
        },
    ),
    *apart_keys(
        "TRL multiplies the KL term by the ratio unless it is false; here it is not (docs/peers.md)",
        {TRL: "use_bias_correction_kl"},
    ),
    *apart_keys(
        "log r is clamped to +-20 for every KL estimator here, and nothing else (docs/losses.md)",
        {NEMO: "*kl_input_clamp_value *kl_output_clamp_value *on_policy_kl_approximation"},
    ),
    *apart_keys("algorithm.reference.refresh_every counts training steps", {SKYRL: "*update_ref_every_epoch"}),
    *apart_keys(
        "rollout.max_staleness says how stale what is trained on may be",
        {AREAL: "async_training", VERL: "trainer.v1.*", NEMO: "async_rl.sampler.*"},
    ),
    *apart_keys(
        "rollout.embedded.recompute_cache and vLLM's reset: keys and values of old weights are made anew here",
        {
            SKYRL: "*clear_kv_cache_on_weight_sync",
            NEMO: "*in_flight_weight_updates *recompute_kv_cache*",
        },
    ),
    *apart_keys(_FAILURES, {NEMO: "async_rl.rollout_failure.* *max_generation_failures *stall_*"}),
    *apart_keys("a run begins with the model's weights here", {AREAL: "*init_from_scratch"}),
    *apart_keys(
        "advantages are normalised by algorithm.advantage, once",
        {AREAL: "*group_adv_norm", SKYRL: "*advantage_batch_normalize"},
    ),
    *apart_keys(
        "advantages are the same for every token of a response here",
        {SKYRL: "*algorithm.gamma", AREAL: "*discount *gae_lambda"},
    ),
    *apart_keys(
        "an advantage of yours: algorithm.advantage.kind takes a function (docs/hooks.md)",
        {
            NEMO: (
                "*advantage_clip_* *invalid_tool_call_advantage *malformed_thinking_advantage *minus_baseline "
                "reward_penalties.*"
            ),
            SWIFT: "advantage_reweight",
            VERL: "*pf_ppo*",
        },
    ),
    *apart_keys(
        "a loss of yours: algorithm.loss.kind takes a function (docs/hooks.md)",
        {
            TRL: "vespo_* top_entropy_quantile label_smoothing_factor router_aux_loss_coef",
            SWIFT: (
                "real_tau fipo_* top_entropy_quantile chord_* label_smoothing* router_aux_loss_coef "
                "loss_scale is_binary_loss_scale enable_dft_loss enable_channel_loss acc_strategy"
            ),
            VERL: "*dro_beta *rollout_correction.loss_type",
            SKYRL: "*dppo.* *temperature",
            AREAL: "*m2_threshold",
            NEMO: "*positive_example_nll_weight",
        },
    ),
    *apart_keys(
        "a correction that is not here: algorithm.correction.kind names those that are",
        {
            VERL: "*rollout_is_batch_normalize",
            SKYRL: "*outlier_token_is* *product_mask* *token_mask_is*",
        },
    ),
    *apart_keys(
        _SAMPLING,
        {
            TRL: "min_p repetition_penalty generation_kwargs *structured_outputs_regex",
            SWIFT: "min_p repetition_penalty structured_outputs_regex",
            VERL: "*ignore_eos *do_sample *logprobs_mode *over_sample_rate *max_inflight_gen_batches",
            SKYRL: "*min_p *repetition_penalty *additional_kwargs",
            AREAL: "*frequency_penalty *ignore_eos *use_beam_search *skip_special_tokens",
        },
    ),
    *apart_keys("no shortest response here: 0 and 1 are without effect", {AREAL: "*gconfig.min_new_tokens"}),
    *apart_keys("training samples here; false is without effect", {AREAL: "gconfig.greedy"}),
    *apart_keys(
        "validation.* says how evaluations sample",
        {SKYRL: "generator.eval_sampling_params.*", AREAL: "eval_gconfig.*", VERL: "*val_kwargs*"},
    ),
    *apart_keys(
        "a limit of prompt and response together; the two limits are apart here", {AREAL: "*gconfig.max_tokens"}
    ),
    *apart_keys(
        "AdamW is the only optimiser here",
        {
            AREAL: "*optimizer.type",
            TRL: "optim_args optim_target_modules",
            SWIFT: "optim_args optim_target_modules optimizer lorap_*",
            VERL: "*optimizer_impl *override_optimizer_config*",
        },
    ),
    *apart_keys(
        "learner.schedule has no further numbers but warmup and final_ratio",
        {TRL: "lr_scheduler_kwargs", SWIFT: "lr_scheduler_kwargs", VERL: "*num_cycles *zero_indexed_step"},
    ),
    *apart_keys(
        "loss scaling belongs to float16, which is not here",
        {AREAL: "*hysteresis *loss_scale*", TRL: "fp16*", SWIFT: "fp16*"},
    ),
    *apart_keys(
        "the model is trained as its folder has it: change its config.json",
        {
            TRL: "model_init_kwargs disable_dropout neftune_noise_alpha",
            SWIFT: "model_kwargs rope_scaling neftune_noise_alpha",
            VERL: "*override_config* *hf_config_path *external_lib",
            SKYRL: "*model_config_kwargs*",
            NEMO: "*hf_config_overrides*",
        },
    ),
    *apart_keys(
        "model.path takes a folder, or a name of the hub at its newest revision",
        {TRL: "model_revision", SWIFT: "model_revision ref_model_revision ref_model_type"},
    ),
    *apart_keys(
        "experts are routed anew by the learner",
        {VERL: "*routing_replay", SKYRL: "*routed_experts", AREAL: "*routed_experts", NEMO: "*router_replay*"},
    ),
    *apart_keys(
        "checkpoint.best takes a metric of dapo, such as validation/accuracy (docs/metrics.md)",
        {
            TRL: "metric_for_best_model greater_is_better load_best_model_at_end",
            SWIFT: "metric_for_best_model greater_is_better load_best_model_at_end early_stop_interval",
            NEMO: "*metric_name *higher_is_better",
        },
    ),
    *apart_keys("trainer.early_stop.metric ends a run that no longer gets better", {NEMO: "*stop_at_validation_*"}),
    *apart_keys("evaluations begin before the first step here", {NEMO: "*val_start_at"}),
    *apart_keys("trainer.steps or data.epochs end a run", {AREAL: "total_train_n_seqs", SWIFT: "max_epochs"}),
    *apart_keys("not a run of training there", {VERL: "skip.*", SKYRL: "*simulate_*"}),
    *apart_keys(
        "an environment of yours (docs/environments.md)",
        {
            VERL: "*multi_turn.* *rollout.agent.*",
            SKYRL: "*multi_turn *merge_stepwise_output",
            AREAL: "rollout.agent.*",
            SWIFT: "completion_length_limit_scope",
        },
    ),
    *apart_keys(
        "thinking is set by data.thinking and data.chat_template_kwargs",
        {SWIFT: "add_non_thinking_prefix preserve_thinking disable_ignore_empty_think"},
    ),
    *apart_keys("one seed, run.seed, decides all draws", {AREAL: "*random_seed"}),
    *apart_keys(
        "the mean is taken over the whole optimiser step here, whatever the devices",
        {TRL: "average_tokens_across_devices", SWIFT: "average_tokens_across_devices"},
    ),
    *apart_keys(
        "a penalty on rewards: algorithm.shaping takes a function of yours", {SKYRL: "trainer.algorithm.length_*"}
    ),
)
