"""Whole training steps that a peer and we both make, and the differences by definition. Plain data: no package needed.

A step is asked with the peer's settings (``theirs``) and ours (``ours``, keys of a recipe). Both are equal within
rounding, or they are apart, because a definition differs: ``step_differences.py`` has those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

RATE, CLIP_NORM = 0.02, 2.0  # the norm is met by some steps and not by others
EPS = 1e-5  # of AdamW: with 1e-8 a first step is the sign of a gradient, also of one that is rounding and nothing else
TRL, VERL = "trl-1.16.0", "verl-0.9.1"


@dataclass(frozen=True)
class Step:
    name: str
    theirs: dict[str, Any]
    ours: dict[str, Any]
    world: Literal["even", "uneven", "turns"] = "even"
    equal: bool = True
    reward_factor: float = 1.0  # on the rewards of the world
    scale: float | None = None  # apart by this factor alone: our loss and gradient over theirs


# What only we have is off, and the optimiser is the same.
_OURS = {
    "algorithm.dynamic_sampling.mode": "off",
    "algorithm.reward_scaling.enabled": False,
    "algorithm.overlong_punishment.enabled": False,
    "algorithm.overlong_filtering": False,
    "algorithm.old_logprobs": "learner",
    "algorithm.correction.kind": "none",
    "learner.learning_rate": RATE,
    "learner.warmup": 0,
    "learner.weight_decay": 0.0,
    "learner.max_grad_norm": CLIP_NORM,
    "learner.eps": EPS,
    "learner.minibatch_prompts": 2,
}
# ---------------------------------------------------------------------------------------------------- TRL

# 16 responses are generated at a time, and trained in two optimiser steps of two micro-batches of four.
_TRL_THEIRS = {
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "learning_rate": RATE,
    "lr_scheduler_type": "constant",
    "max_grad_norm": CLIP_NORM,
    "adam_epsilon": EPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
}
_TRL_OURS = _OURS | {"algorithm.advantage.eps": 1e-4, "algorithm.clip.low": 0.2, "algorithm.clip.high": 0.28}
_WHOLE_THEIRS = {"gradient_accumulation_steps": 4}
_WHOLE_OURS = {"learner.minibatch_prompts": None}
REDUCTION = "algorithm.loss.reduction"


def _trl(name: str, theirs: dict, ours: dict, **more: Any) -> Step:
    return Step(name, _TRL_THEIRS | theirs, _TRL_OURS | ours, **more)


_DAPO, _GRPO = {"loss_type": "dapo"}, {"loss_type": "grpo"}
_ROWS = {REDUCTION: "sequence_mean"}
_MASKED = {"mask_truncated_completions": True}
_FILTERED = {"algorithm.overlong_filtering": True, "algorithm.truncated_vote": True}
_KL = {"beta": 0.1, "use_bias_correction_kl": False}
_OUR_KL = {"algorithm.kl_coefficient": 0.1, "algorithm.kl_estimator": "k3"}
_DR_THEIRS = {"loss_type": "dr_grpo", "scale_rewards": "none"}
_DR_OURS = {REDUCTION: "constant", "algorithm.advantage.scale": "none"}
_TWICE = {"learner.epochs_per_rollout": 2}
_LINEAR = {"learner.schedule": "linear", "learner.schedule_unit": "optimizer"}
_VLLM = {"vllm_importance_sampling_correction": True}


def _tis(mode: str, low: float | None, high: float) -> dict[str, Any]:
    bounds = {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
    return _DAPO | _VLLM | {"vllm_importance_sampling_mode": mode} | bounds


def _correction(**settings: Any) -> dict[str, Any]:
    return {f"algorithm.correction.{key}": value for key, value in settings.items()}


_TRL_STEPS = (
    _trl("dapo", _DAPO, {}),
    _trl("dapo, one optimiser step", _DAPO | _WHOLE_THEIRS | {"shuffled": True}, _WHOLE_OURS, world="uneven"),
    _trl("dapo, delta", _DAPO | {"delta": 1.3}, {"algorithm.clip.dual": 1.3}),
    _trl("dapo, temperature", _DAPO | {"temperature": 0.8}, {"rollout.temperature": 0.8}),
    _trl("dapo, one epsilon", _DAPO | {"epsilon_high": None}, {"algorithm.clip.high": 0.2}),
    _trl("dapo, masked", _DAPO | _MASKED, _FILTERED),
    _trl(
        "dapo, entropy", _DAPO | {"entropy_coef": 0.02},
        {"algorithm.entropy_coefficient": 0.02, REDUCTION: "token_mean"},
    ),
    _trl("dapo, linear", _DAPO | {"lr_scheduler_type": "linear"}, _LINEAR),
    _trl("dapo, close rewards", _DAPO, {}, reward_factor=0.002),
    _trl("grpo", _GRPO, _ROWS, world="uneven"),
    _trl("grpo, KL", _GRPO | _KL, _ROWS | _OUR_KL, world="uneven"),
    _trl(
        "bnpo", {"loss_type": "bnpo"},
        {REDUCTION: "micro_batch_mean", "algorithm.loss.reduction.sequences": 4,
         "algorithm.loss.reduction.weighted": False}, world="uneven",
    ),
    _trl("dr_grpo", _DR_THEIRS, _DR_OURS, world="uneven"),
    _trl(
        "cispo", {"loss_type": "cispo", "epsilon_high": 1.2},
        {"algorithm.loss.kind": "cispo", "algorithm.loss.cap": 1.2},
    ),
    _trl(
        "gspo", _GRPO | {"importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04},
        _ROWS | {"algorithm.loss.ratio": "sequence", "algorithm.clip.low": 0.03, "algorithm.clip.high": 0.04},
        world="uneven",
    ),
    _trl("sapo", {"loss_type": "sapo"}, _ROWS | {"algorithm.loss.kind": "sapo"}, world="uneven"),
    _trl("correction, token_truncate", _tis("token_truncate", None, 1.2), _correction(kind="truncate", cap=1.2)),
    _trl("correction, token_mask", _tis("token_mask", 0.6, 1.5), _correction(kind="mask_token", floor=0.6, cap=1.5)),
    _trl(
        "correction, sequence_truncate", _tis("sequence_truncate", None, 1.5),
        _correction(kind="truncate_sequence", sequence_cap=1.5),
    ),
    Step(
        "its own defaults", {"per_device_train_batch_size": 16, "learning_rate": RATE},
        {"preset": "grpo-trl", "learner.learning_rate": RATE, "algorithm.old_logprobs": "learner",
         "algorithm.correction.kind": "none", "learner.warmup": 0} | _LINEAR, world="uneven",
    ),
    _trl(
        "dapo, two passes", _DAPO | _WHOLE_THEIRS | {"num_iterations": 2}, _WHOLE_OURS | _TWICE, world="uneven",
    ),
    _trl(
        "grpo, three passes", _GRPO | _WHOLE_THEIRS | {"num_iterations": 3},
        _WHOLE_OURS | _ROWS | {"learner.epochs_per_rollout": 3}, world="uneven",
    ),
    _trl("turns, dapo", _DAPO | _WHOLE_THEIRS, _WHOLE_OURS, world="turns"),
    _trl("turns, dapo, masked", _DAPO | _WHOLE_THEIRS | _MASKED, _WHOLE_OURS | _FILTERED, world="turns"),
    _trl("turns, grpo", _GRPO, _ROWS, world="turns"),
    _trl("turns, dr_grpo", _DR_THEIRS, _DR_OURS, world="turns"),
    _trl(
        "turns, gspo", _GRPO | {"importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04},
        _ROWS | {"algorithm.loss.ratio": "sequence", "algorithm.clip.low": 0.03, "algorithm.clip.high": 0.04},
        world="turns",
    ),
    _trl("turns, grpo, KL", _GRPO | _KL, _ROWS | _OUR_KL, world="turns"),
    _trl(
        "turns, correction", _GRPO | _tis("sequence_truncate", None, 1.5) | _GRPO,
        _ROWS | _correction(kind="truncate_sequence", sequence_cap=1.5), world="turns",
    ),
    _trl(
        "turns, two passes", _DAPO | _WHOLE_THEIRS | {"num_iterations": 2}, _WHOLE_OURS | _TWICE, world="turns",
    ),
    # ------------------------------------------------------------------------------------------ apart
    _trl("two passes over minibatches", _GRPO | {"num_iterations": 2}, _ROWS | _TWICE, world="uneven", equal=False),
    _trl("our eps", _DAPO, {"algorithm.advantage.eps": 1e-6}, equal=False, reward_factor=0.002),
    _trl("windows of unequal tokens", _DAPO, {}, world="uneven", equal=False),
    _trl("shuffled", _GRPO | {"shuffled": True}, _ROWS, world="uneven", equal=False),
    _trl("the truncated do not vote", _DAPO | _MASKED, {"algorithm.overlong_filtering": True}, equal=False),
    _trl("grpo, masked", _GRPO | _MASKED, _ROWS | _FILTERED, equal=False, scale=4 / 3),
    _trl(
        "KL times ratio", _GRPO | _KL | {"use_bias_correction_kl": True}, _ROWS | _OUR_KL, world="uneven", equal=False,
    ),
    _trl(
        "entropy over tokens", _GRPO | {"entropy_coef": 0.2}, _ROWS | {"algorithm.entropy_coefficient": 0.2},
        world="uneven", equal=False,
    ),
    _trl("norms do not decay", _DAPO | {"weight_decay": 0.1}, {"learner.weight_decay": 0.1}, equal=False),
    _trl("constant rate", _DAPO | {"lr_scheduler_type": "linear"}, {}, equal=False),
    _trl(
        "warm-up", _DAPO | {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4},
        {"learner.warmup": 4, "learner.schedule_unit": "optimizer"}, equal=False,
    ),
    _trl("higher above", _DAPO | {"epsilon_high": None}, {}, equal=False),
    _trl("ratio against the sampler", _DAPO, {"algorithm.old_logprobs": "sampler"}, equal=False),
    _trl("mask by the product", _DAPO | _VLLM, _correction(kind="truncate", cap=3.0), equal=False),
    _trl("scaled rewards", _DR_THEIRS, _DR_OURS | {"algorithm.reward_scaling.enabled": True}, equal=False, scale=2.0),
    _trl("length penalty", _DAPO, {"algorithm.overlong_punishment.enabled": True}, equal=False),
    _trl(
        "deviation of all rewards", _DAPO | {"scale_rewards": "batch"}, {"algorithm.advantage.scale": "batch_std"},
        equal=False,
    ),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------- verl

# 16 responses in two optimiser steps of two micro-batches of four.
_VERL_THEIRS = {
    "actor": {
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "loss_agg_mode": "token-mean",
        "ppo_mini_batch_size": 2,
        "ppo_micro_batch_size_per_gpu": 4,
    },
    "optim": {
        "lr": RATE,
        "weight_decay": 0.0,
        "clip_grad": CLIP_NORM,
        "override_optimizer_config": {"eps": EPS},
    },
    "algorithm": {},
}
_VERL_OURS = _OURS | {"algorithm.clip.low": 0.2, "algorithm.clip.high": 0.28, "algorithm.clip.dual": 3.0}


def _verl(
    name: str, ours: dict, *, actor: dict | None = None, optim: dict | None = None,
    algorithm: dict | None = None, **more: Any,
) -> Step:  # fmt: skip
    changes = {"actor": actor or {}, "optim": optim or {}, "algorithm": algorithm or {}}
    return Step(name, {key: _VERL_THEIRS[key] | changes[key] for key in changes}, _VERL_OURS | ours, **more)


def _rollout_correction(**settings: Any) -> dict[str, Any]:
    return {"rollout_correction": {"rollout_is": None} | settings}


_THEIR_KL = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"}
_SLOW = {"learner.learning_rate": 0.004}  # no token gets as far from the reference as verl's clamp
_BYPASS = _rollout_correction(bypass_mode=True)
_SAMPLER = {"algorithm.old_logprobs": "sampler"}
_REJECT = _rollout_correction(
    rollout_is="token", rollout_is_threshold=1e6, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.8_1.25"
)
_OUR_REJECT = _correction(kind="mask_sequence", floor=0.8, cap=1.25, token_cap=None)

_VERL_STEPS = (
    _verl("token-mean", {}, world="uneven"),
    _verl("token-mean, old is the sampler's", _SAMPLER, algorithm=_BYPASS, world="uneven"),
    _verl(
        "token-mean, dynamic micro-batches", _SAMPLER, algorithm=_BYPASS, world="uneven",
        actor={"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 24, "ppo_infer_max_token_len_per_gpu": 24},
    ),
    _verl("seq-mean-token-mean", _ROWS, actor={"loss_agg_mode": "seq-mean-token-mean"}, world="uneven"),
    _verl(
        "seq-mean-token-sum", {REDUCTION: "sequence_sum"}, actor={"loss_agg_mode": "seq-mean-token-sum"}, world="uneven"
    ),
    _verl(
        "seq-mean-token-sum-norm", {REDUCTION: "constant", "algorithm.advantage.scale": "none"}, world="uneven",
        actor={"loss_agg_mode": "seq-mean-token-sum-norm"}, algorithm={"norm_adv_by_std_in_grpo": False},
    ),
    _verl("dual clip 10", _SAMPLER | {"algorithm.clip.dual": 10.0}, actor={"clip_ratio_c": 10.0}, algorithm=_BYPASS),
    _verl("KL", _OUR_KL | _SLOW, actor=_THEIR_KL, optim={"lr": 0.004}),
    _verl(
        "KL, k2", _OUR_KL | {"algorithm.kl_estimator": "k2"},
        actor={"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "mse"},
    ),
    _verl(
        "KL in the reward", _OUR_KL | {"algorithm.kl_in_reward": True},
        algorithm={"use_kl_in_reward": True, "kl_coef": 0.1, "kl_penalty": "kl"},
    ),
    _verl("entropy", {"algorithm.entropy_coefficient": 0.02}, actor={"entropy_coeff": 0.02}, world="uneven"),
    _verl(
        "gspo", _ROWS | {"algorithm.loss.ratio": "sequence", "algorithm.clip.low": 0.03, "algorithm.clip.high": 0.04,
                         "algorithm.clip.dual": None}, world="uneven",
        actor={"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_low": 0.03, "clip_ratio_high": 0.04,
               "loss_agg_mode": "seq-mean-token-mean"},
    ),
    _verl(
        "cispo", {"algorithm.loss.kind": "cispo", "algorithm.loss.cap": 1.2, "algorithm.loss.floor": 0.8,
         "algorithm.clip.dual": None},
        actor={"policy_loss": {"loss_mode": "cispo"}, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}, world="uneven",
    ),
    _verl(
        "correction, token", _correction(kind="truncate", cap=1.2),
        algorithm=_rollout_correction(rollout_is="token", rollout_is_threshold=1.2), world="uneven",
    ),
    _verl(
        "correction, sequence", _correction(kind="truncate_sequence", sequence_cap=1.5),
        algorithm=_rollout_correction(rollout_is="sequence", rollout_is_threshold=1.5), world="uneven",
    ),
    _verl(
        "rejected sequences, sums", _OUR_REJECT | {REDUCTION: "sequence_sum"}, algorithm=_REJECT, world="uneven",
        actor={"loss_agg_mode": "seq-mean-token-sum"},
    ),
    _verl("weight decay", {"learner.weight_decay": 0.1}, optim={"weight_decay": 0.1}, world="uneven"),
    Step(
        "its own defaults for GRPO, with the KL loss",
        {"actor": {"ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 16, "use_kl_loss": True},
         "optim": {"lr": 0.004}, "algorithm": {}},
        {"preset": "grpo-verl", "learner.learning_rate": 0.004, "learner.warmup": 0,
         "algorithm.old_logprobs": "learner", "algorithm.correction.kind": "none"}, world="uneven",
    ),
    _verl(
        "two passes", _WHOLE_OURS | _TWICE, actor={"ppo_mini_batch_size": 4, "ppo_epochs": 2}, world="uneven"
    ),
    _verl(
        "two passes, old is the sampler's", _WHOLE_OURS | _TWICE | _SAMPLER, algorithm=_BYPASS, world="uneven",
        actor={"ppo_mini_batch_size": 4, "ppo_epochs": 2},
    ),
    _verl("turns, token-mean", {}, world="turns"),
    _verl("turns, seq-mean-token-mean", _ROWS, actor={"loss_agg_mode": "seq-mean-token-mean"}, world="turns"),
    _verl(
        "turns, seq-mean-token-sum-norm", {REDUCTION: "constant", "algorithm.advantage.scale": "none"}, world="turns",
        actor={"loss_agg_mode": "seq-mean-token-sum-norm"}, algorithm={"norm_adv_by_std_in_grpo": False},
    ),
    _verl(
        "turns, gspo", _ROWS | {"algorithm.loss.ratio": "sequence", "algorithm.clip.low": 0.03,
                                "algorithm.clip.high": 0.04, "algorithm.clip.dual": None}, world="turns",
        actor={"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_low": 0.03, "clip_ratio_high": 0.04,
               "loss_agg_mode": "seq-mean-token-mean"},
    ),
    _verl("turns, entropy", {"algorithm.entropy_coefficient": 0.02}, actor={"entropy_coeff": 0.02}, world="turns"),
    _verl("turns, KL in the reward", _OUR_KL | {"algorithm.kl_in_reward": True}, world="turns",
          algorithm={"use_kl_in_reward": True, "kl_coef": 0.1, "kl_penalty": "kl"}),
    _verl(
        "turns, correction, sequence", _correction(kind="truncate_sequence", sequence_cap=1.5), world="turns",
        algorithm=_rollout_correction(rollout_is="sequence", rollout_is_threshold=1.5),
    ),
    # ------------------------------------------------------------------------------------------ apart
    _verl(
        "two passes over minibatches", _ROWS | _TWICE, world="uneven", equal=False,
        actor={"loss_agg_mode": "seq-mean-token-mean", "ppo_epochs": 2},
    ),
    _verl("no dual clip", _SAMPLER | {"algorithm.clip.dual": None}, algorithm=_BYPASS, equal=False),
    _verl("ratio against the sampler", _SAMPLER, equal=False),
    _verl("the truncated are left out", {"algorithm.overlong_filtering": True}, equal=False),
    _verl("rejected sequences", _OUR_REJECT, algorithm=_REJECT, world="uneven", equal=False),
    _verl("KL beyond the clamp", _OUR_KL, actor=_THEIR_KL, equal=False),
    _verl("warm-up", {"learner.warmup": 3}, optim={"lr_warmup_steps": 3}, equal=False),
)  # fmt: skip

STEPS: dict[str, dict[str, Step]] = {
    peer: {step.name: step for step in steps} for peer, steps in ((TRL, _TRL_STEPS), (VERL, _VERL_STEPS))
}

# ---------------------------------------------------------------------------------------------------- supervised


@dataclass(frozen=True)
class Imitation:
    """A supervised run of each side over the same examples, in their order."""

    name: str
    theirs: dict[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)
    equal: bool = True


_SFT_THEIRS = {
    "learning_rate": RATE,
    "lr_scheduler_type": "constant",
    "max_grad_norm": CLIP_NORM,
    "adam_epsilon": EPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "packing": False,
}
_SFT_OURS = {
    "sft.learning_rate": RATE,
    "sft.schedule": "constant",
    "sft.warmup": 0,
    "sft.batch_size": 8,
    "learner.weight_decay": 0.0,
    "learner.max_grad_norm": CLIP_NORM,
    "learner.eps": EPS,
}
IMITATIONS: dict[str, Imitation] = {
    one.name: one
    for one in (
        Imitation("completion-only", _SFT_THEIRS | {"completion_only_loss": True}, _SFT_OURS),
        Imitation(
            "completion-only, linear",
            _SFT_THEIRS | {"completion_only_loss": True, "lr_scheduler_type": "linear"},
            _SFT_OURS | {"sft.schedule": "linear"},
        ),
        Imitation("loss on the prompt too", _SFT_THEIRS | {"completion_only_loss": False}, _SFT_OURS, equal=False),
    )
}
