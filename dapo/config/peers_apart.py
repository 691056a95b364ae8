"""Keys of other trainers that have no counterpart here and need none, with the reason and the effect.

Patterns are matched with the whole key, dots included; ``*`` stands for anything.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from dapo.config.peer_key import AREAL, NEMO, SKYRL, SWIFT, TRL, VERL

_MEMORY = "memory and speed only: it changes nothing that is computed"
_LAYOUT = "how the trainer is spread over devices: memory and speed only (docs/scaling.md)"
_MACHINES = (
    "machines and devices: slurm.nodes and slurm.options of `dapo launch`, learner.ranks, rollout.engines "
    "(docs/scaling.md)"
)
_NO_CRITIC = "no critic here, as in DAPO: advantages come from the group; without effect"
_NO_REWARD_MODEL = "answers are checked by a program here; a reward model is asked over HTTP (rewards.N.kind: service)"
_LOGS = "logs and folders: without effect on the run (docs/run_folder.md, docs/reading_a_run.md)"
_DATA = "how data are read there; without effect on the answers (docs/data.md)"
_SERVED = "how the engine is served: without effect on what is sampled but rounding (docs/engines.md)"
_RESUME = "a run is continued by its folder: dapo train --resume RUN"
_AT_START = "a run is always evaluated before its first step"

APART: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("critic.*", (VERL,), _NO_CRITIC),
    ("trainer.critic*", (SKYRL, VERL), _NO_CRITIC),
    ("critic_*", (SKYRL,), _NO_CRITIC),
    ("reward_model.*", (VERL,), _NO_REWARD_MODEL),
    ("*param_offload", (VERL,), _MEMORY),
    ("*optimizer_offload", (VERL,), _MEMORY),
    ("*grad_offload", (VERL,), _MEMORY),
    ("*offload*", (VERL, SKYRL, NEMO, AREAL, SWIFT, TRL), _MEMORY),
    ("*fsdp*", (VERL, SKYRL, AREAL, TRL, SWIFT), _LAYOUT),
    ("*megatron*", (VERL, SKYRL, NEMO, AREAL), _LAYOUT),
    ("*dtensor_cfg*", (NEMO,), _LAYOUT),
    ("*placement*", (SKYRL,), _LAYOUT),
    ("*sequence_parallel_size", (VERL, SKYRL, SWIFT), f"learner.context_parallel here. {_MEMORY}"),
    ("*context_parallel_size", (NEMO, AREAL, SWIFT), f"learner.context_parallel here. {_MEMORY}"),
    ("*_parallel_size", (VERL, SKYRL, AREAL, SWIFT, TRL), _LAYOUT),
    ("*sequence_parallel*", (VERL, NEMO, SKYRL, SWIFT), _LAYOUT),
    ("*parallel*", (NEMO, AREAL), _LAYOUT),
    ("trainer.strategy", (SKYRL,), _LAYOUT),
    ("*.strategy", (VERL,), _LAYOUT),
    ("*micro_batch*", (VERL, NEMO, SKYRL, AREAL), f"learner.microbatch_tokens here. {_MEMORY}"),
    ("*micro_*_batch*", (SKYRL,), f"learner.microbatch_tokens here. {_MEMORY}"),
    ("*mb_spec*", (AREAL,), f"learner.microbatch_tokens here. {_MEMORY}"),
    ("*logprob_batch_size", (NEMO,), _MEMORY),
    ("*use_dynamic_bsz", (VERL,), f"rows are always packed by tokens here. {_MEMORY}"),
    ("*max_token_len_per_gpu", (VERL,), f"learner.microbatch_tokens here. {_MEMORY}"),
    ("*use_remove_padding", (VERL,), f"model.attention: auto packs rows without padding. {_MEMORY}"),
    ("*use_sample_packing", (SKYRL,), f"model.attention: auto packs rows without padding. {_MEMORY}"),
    ("*sequence_packing*", (NEMO,), f"rows are packed here. {_MEMORY}"),
    ("*dynamic_batching*", (NEMO,), f"rows are packed here. {_MEMORY}"),
    ("*padding_free", (SWIFT, TRL), f"rows are packed here. {_MEMORY}"),
    ("*pad_to_maximum", (AREAL,), _MEMORY),
    ("*deepspeed*", (SWIFT, TRL), _LAYOUT),
    ("*ddp_*", (SWIFT, TRL), _LAYOUT),
    ("accelerate*", (TRL,), _LAYOUT),
    ("*n_gpus_per_node", (VERL, AREAL), _MACHINES),
    ("*nnodes", (VERL,), _MACHINES),
    ("*n_nodes", (AREAL,), _MACHINES),
    ("cluster.*", (AREAL,), _LAYOUT),
    ("cluster.*", (NEMO,), _MACHINES),
    ("launcher*", (AREAL,), _LAYOUT),
    ("scheduler.*", (AREAL,), _LAYOUT),
    ("ray_kwargs*", (VERL,), _LAYOUT),
    ("ray_init*", (VERL,), _LAYOUT),
    ("*num_inference_engines", (SKYRL,), f"rollout.engines here. {_LAYOUT}"),
    ("*log_prob_*", (VERL,), _MEMORY),
    ("actor_rollout_ref.ref.*", (VERL,), f"of the reference model. {_MEMORY}"),
    ("trainer.ref.*", (SKYRL,), f"of the reference model. {_MEMORY}"),
    ("ref.*", (AREAL,), f"of the reference model, which is the run's first weights here. {_MEMORY}"),
    ("*skip_reference_policy*", (NEMO,), "no reference is kept here where the KL coefficient is 0; without effect"),
    ("*chunked_prefill", (VERL, SKYRL), _SERVED),
    ("*prefix_caching", (SKYRL, VERL, SWIFT), _SERVED),
    ("*max_num_batched_tokens", (VERL, SKYRL), f"rollout.vllm.engine_args: {{max_num_batched_tokens: N}}. {_SERVED}"),
    ("*disable_log_stats", (VERL,), _SERVED),
    ("*load_format", (VERL,), _SERVED),
    ("*rollout.mode", (VERL,), _SERVED),
    ("*rollout.dtype", (VERL,), f"rollout.vllm.dtype here. {_SERVED}"),
    ("generator.batched", (SKYRL,), _SERVED),
    ("*run_engines_locally", (SKYRL,), _SERVED),
    ("*async_engine", (SKYRL, NEMO), _SERVED),
    ("*weight_sync*", (SKYRL, AREAL), "how weights travel: without effect on what is computed"),
    ("*weight_update_mode*", (AREAL,), "how weights travel: without effect on what is computed"),
    ("sglang.*", (AREAL,), _SERVED),
    ("vllm.*", (AREAL,), _SERVED),
    ("*vllm_cfg.*", (NEMO,), _SERVED),
    ("*vllm_kwargs*", (NEMO,), f"rollout.vllm.engine_args here. {_SERVED}"),
    ("*colocat*", (NEMO, SKYRL), "learner and engine share one device here unless rollout.engines or a server is set"),
    ("*stop_token_ids", (NEMO, AREAL), "ends of responses are those of model and tokenizer here unless set"),
    ("*tokenizer*", (NEMO, AREAL, SKYRL, VERL), "the tokenizer is the model's"),
    (
        "*chat_template*",
        (NEMO, VERL, SKYRL),
        "the chat template is the tokenizer's unless data.chat_template gives another",
    ),
    ("*prompt_file", (NEMO,), "a file with the prompt's text: data.prompt_template or data.instruction hold it here"),
    ("*system_prompt_file", (NEMO,), "a file with the system's text: data.system_prompt holds it here"),
    ("*processor", (NEMO,), _DATA),
    ("*env_name", (NEMO,), _DATA),
    ("env.*", (NEMO,), "the verifier's processes: rewards.N here"),
    ("*num_workers*", (VERL, NEMO, AREAL, SWIFT, TRL), _DATA),
    ("*_num_proc", (SWIFT, TRL), _DATA),
    ("*pin_memory", (AREAL,), _DATA),
    ("*drop_last", (AREAL,), _DATA),
    ("*dataset.type", (AREAL,), _DATA),
    ("data.return_*", (VERL,), _DATA),
    ("data.*key", (VERL,), "the columns are found by name: data.train.N.fields says others"),
    ("data.val_batch_size", (VERL,), _MEMORY),
    ("*val_batch_size", (NEMO,), _MEMORY),
    ("*eval_batch_size", (SKYRL, SWIFT, TRL), _MEMORY),
    ("*max_val_samples", (NEMO,), "validation.limit: problems of each set that are evaluated"),
    ("*remove_unused_columns", (TRL, SWIFT), _DATA),
    ("*val_before_train", (VERL,), _AT_START),
    ("*eval_before_train", (SKYRL,), _AT_START),
    ("*val_at_start", (NEMO,), _AT_START),
    ("*val_at_end", (NEMO,), "the last step is always evaluated"),
    ("*resume*", (VERL, SKYRL, TRL, SWIFT), _RESUME),
    ("recover.*", (AREAL,), _RESUME),
    ("*default_local_dir", (VERL,), "run.dir and run.name: checkpoints are in the run's folder"),
    ("*ckpt_path", (SKYRL,), "run.dir and run.name: checkpoints are in the run's folder"),
    ("*export_path", (SKYRL,), "run.dir and run.name; `dapo export` writes a model folder"),
    ("*hf_save_interval", (SKYRL,), "`dapo export` writes a model folder of any checkpoint"),
    ("*checkpoint_dir", (NEMO,), "run.dir and run.name: checkpoints are in the run's folder"),
    ("checkpointing.*", (NEMO,), "which checkpoints are kept: checkpoint.keep, the newest"),
    ("*max_actor_ckpt_to_keep", (VERL,), "checkpoint.keep: the newest"),
    ("*output_dir", (TRL, SWIFT), "run.dir and run.name: checkpoints are in the run's folder"),
    ("*fileroot", (AREAL,), "run.dir"),
    ("saver.*", (AREAL,), _LOGS),
    ("checkpointer.*", (AREAL,), _LOGS),
    ("evaluator.*", (AREAL,), _LOGS),
    ("stats_logger.*", (AREAL,), _LOGS),
    ("logger.*", (NEMO,), _LOGS),
    ("*log_val_generations", (VERL,), "every answer is kept: logging.rollouts, `dapo report`"),
    ("*num_val_samples_to_print", (NEMO,), "every answer is kept: logging.rollouts, `dapo report`"),
    ("*log_completions", (TRL, SWIFT), "every answer is kept: logging.rollouts, `dapo report`"),
    ("*logging_*", (TRL, SWIFT), "every step is written to metrics.jsonl"),
    ("*rollout_data_dir", (VERL,), "every answer is kept: logging.rollouts, `dapo report`"),
    ("*balance_batch", (VERL,), "how rows are dealt to devices there; minibatches are whole groups here"),
    ("actor_rollout_ref.hybrid_engine", (VERL,), _LAYOUT),
    (
        "actor_rollout_ref.actor.shuffle",
        (VERL,),
        "the first pass takes minibatches in the order of the batch here, later passes draw them",
    ),
    ("*torch_compile*", (VERL, TRL), _MEMORY),
    ("*flash_attn*", (SKYRL,), "model.attention: auto"),
    ("*attn_impl*", (SWIFT, TRL, AREAL), "model.attention: auto"),
    ("*attn_implementation", (TRL,), "model.attention: auto"),
    ("*gradient_checkpointing_kwargs*", (TRL, SWIFT), _MEMORY),
    ("*ds3_gather*", (TRL,), _MEMORY),
    ("*vllm_server_port", (TRL, SWIFT), "the port belongs to rollout.server.url"),
    ("*vllm_max_model_len*", (TRL, SWIFT), "the engine is started for the longest prompt and response"),
    ("*max_model_len", (VERL, SKYRL), "the engine is started for the longest prompt and response"),
    ("rlhf_type", (SWIFT,), "GRPO and its relatives are what is here"),
    ("*train_type", (SWIFT,), "model.lora.rank trains an adapter, without it all weights"),
    ("*save_strategy", (TRL, SWIFT), "checkpoint.every counts training steps"),
    ("*save_only_model", (TRL, SWIFT), "a checkpoint holds all that a resume needs"),
    ("*wandb*", (AREAL,), _LOGS),
    ("*use_sequence_parallel", (AREAL,), _LAYOUT),
    ("*gradient_checkpointing_use_reentrant", (SKYRL,), _MEMORY),
    ("*grad_norm_threshold*", (VERL,), "steps with infinite gradients alone are skipped here"),
    ("*beta_schedule*", (SWIFT,), "the KL coefficient is fixed here"),
    ("async_training", (AREAL,), "rollout.max_staleness says how stale what is trained on may be"),
    ("*enable_rollout_tracing", (AREAL,), _LOGS),
    ("*request_timeout*", (AREAL,), _SERVED),
    ("*setup_timeout*", (AREAL,), _SERVED),
    (
        "rollout.max_concurrent_rollouts",
        (AREAL,),
        "how requests are queued there: without effect on what is trained on",
    ),
    ("*disable_dropout", (AREAL,), "there is no dropout here"),
    ("*init_from_scratch", (AREAL,), "a run begins with the model's weights here"),
    ("*group_adv_norm", (AREAL,), "advantages are normalised by algorithm.advantage"),
    ("*log_agent_stats*", (AREAL,), _LOGS),
    ("gconfig.min_new_tokens", (AREAL,), "no shortest response here: 0 and 1 are without effect"),
    ("gconfig.greedy", (AREAL,), "training samples here; false is without effect"),
    ("*optimizer.type", (AREAL,), "AdamW is the only optimiser here"),
    ("valid_dataset.*", (AREAL,), _DATA),
    ("actor.experiment_name", (AREAL,), _LOGS),
    ("actor.trial_name", (AREAL,), _LOGS),
)


COMPUTED = frozenset(
    {
        "reward_model.*",
        "*stop_token_ids",
        "*tokenizer*",
        "*chat_template*",
        "*prompt_file",
        "*system_prompt_file",
        "env.*",
        "data.*key",
        "*max_val_samples",
        "valid_dataset.*",
        "*drop_last",
        "actor_rollout_ref.actor.shuffle",
        "rlhf_type",
        "*train_type",
        "*grad_norm_threshold*",
        "*beta_schedule*",
        "async_training",
        "*init_from_scratch",
        "*group_adv_norm",
        "gconfig.min_new_tokens",
        "gconfig.greedy",
        "*optimizer.type",
    }
)
"""Patterns of ``APART`` whose settings change what is computed there; the others are memory, speed and logs only."""


def apart_row(key: str, who: str) -> tuple[str, bool]:
    """Return why a key of ``who`` has no line (empty: it is not known), and whether it changes what is computed."""
    rows = ((pattern, reason) for pattern, people, reason in APART if who in people and fnmatchcase(key, pattern))
    pattern, reason = next(rows, ("", ""))
    return reason, not reason or pattern in COMPUTED


def apart_hint(path: str) -> str | None:
    """One sentence for a key that other trainers have and nobody needs here; None when it is nobody's."""
    key = path.lstrip("+-").replace("-", "_")
    found = [(people, reason) for pattern, people, reason in APART if fnmatchcase(key, pattern)]
    return f"no such key here (of {', '.join(found[0][0])}): {found[0][1]}" if found else None
