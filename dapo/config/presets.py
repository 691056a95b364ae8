"""The presets of docs/losses.md, as sparse settings on top of the schema's defaults (which are ``dapo``)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

Sparse = dict[str, Any]

_OFF = {"enabled": False}

# The paper's run (arXiv 2503.14476, section 4.1); weight decay and gradient clip are from its published script.
# The length penalty's Lmax is left at its default, the response limit, so that a shorter run keeps the two equal.
_PAPER_RUN: Sparse = {
    "rollout": {"prompts_per_step": 512, "group_size": 16, "max_response_tokens": 20480},
    "learner": {"learning_rate": 1e-6, "weight_decay": 0.1, "max_grad_norm": 1.0, "minibatch_prompts": 32},
    "validation": {"samples": 32, "temperature": 1.0, "top_p": 0.7},
}

_GRPO_ALGORITHM: Sparse = {
    "clip": {"low": 0.2, "high": 0.2},
    "dynamic_sampling": {"mode": "off"},
    "overlong_punishment": _OFF,
    "overlong_filtering": False,
    "reward_scaling": _OFF,
}

_GRPO: Sparse = {
    **_GRPO_ALGORITHM,
    "loss": {"reduction": "sequence_mean"},
    "advantage": {"ddof": 1, "eps": 1e-4},
}
# What verl's and TRL's settings of GRPO are when nobody changes them: token means both.
_GRPO_TOKENS: Sparse = {**_GRPO, "loss": {"reduction": "token_mean"}}

PRESETS: dict[str, Sparse] = {
    "dapo": {},
    "dapo-paper": {
        **_PAPER_RUN,
        "algorithm": {
            "loss": {"reduction": "prompt_mean"},
            "dynamic_sampling": {"mode": "filter", "surplus": "discard", "unfinished": "drain"},
            "overlong_punishment": {"enabled": True, "cache_length": 4096, "factor": 1.0},
            "overlong_filtering": False,
        },
        "learner": {**_PAPER_RUN["learner"], "schedule_unit": "rollout", "warmup": 20},
    },
    "dapo-verl": {
        **_PAPER_RUN,
        "algorithm": {
            "clip": {"low": 0.2, "high": 0.28, "dual": 10.0},
            "loss": {"reduction": "token_mean"},
            "dynamic_sampling": {
                "mode": "filter",
                "oversample": 3.0,
                "cap": {"groups": 30.0, "then": "stop"},  # 10 rounds of 3 x P
                "surplus": "discard",
                "unfinished": "drain",
            },
            "overlong_punishment": {"enabled": True, "cache_length": 4096, "factor": 1.0},
            "overlong_filtering": False,
        },
        "learner": {**_PAPER_RUN["learner"], "schedule_unit": "rollout", "warmup": 10},
    },
    "grpo": {"algorithm": _GRPO},
    "grpo-paper": {  # DeepSeekMath, arXiv 2402.03300, section 4.2: 1024 responses a step, one update on them
        "algorithm": {**_GRPO, "kl_coefficient": 0.04, "kl_estimator": "k3"},
        "rollout": {"prompts_per_step": 16, "group_size": 64, "max_response_tokens": 1024},
        "learner": {"learning_rate": 1e-6},
    },
    "grpo-trl": {"algorithm": _GRPO_TOKENS, "learner": {"learning_rate": 1e-6, "weight_decay": 0.0}},  # TRL 1.16
    "grpo-verl": {  # verl 0.9 with the KL loss that its GRPO examples switch on, at its default coefficient
        "algorithm": {
            **_GRPO_TOKENS,
            "clip": {"low": 0.2, "high": 0.2, "dual": 3.0},
            "advantage": {"ddof": 1, "eps": 1e-6},
            "kl_coefficient": 0.001,
            "kl_estimator": "k3",
        },
        "learner": {"learning_rate": 1e-6, "weight_decay": 0.01},
    },
    "dr-grpo": {
        "algorithm": {**_GRPO_ALGORITHM, "loss": {"reduction": "constant"}, "advantage": {"scale": "none"}},
    },
    "gspo": {  # arXiv 2507.18071
        "algorithm": {
            **_GRPO_ALGORITHM,
            "clip": {"low": 3e-4, "high": 4e-4},
            "loss": {"ratio": "sequence", "reduction": "sequence_mean"},
            "advantage": {"ddof": 1, "eps": 1e-4},
        }
    },
    "cispo": {"algorithm": {"loss": {"kind": "cispo"}}},  # arXiv 2506.13585, which keeps DAPO's rest
    "sapo": {  # arXiv 2511.20347
        "algorithm": {**_GRPO, "loss": {"kind": "sapo", "reduction": "sequence_mean"}},
    },
    "clip-cov": {  # arXiv 2505.22617
        "algorithm": {**_GRPO_TOKENS, "loss": {"kind": "clip_cov", "reduction": "token_mean"}},
    },
    "kl-cov": {  # arXiv 2505.22617
        "algorithm": {**_GRPO_TOKENS, "loss": {"kind": "kl_cov", "reduction": "token_mean"}},
    },
    "gdpo": {  # arXiv 2601.05242
        "algorithm": {**_GRPO, "advantage": {"kind": "gdpo", "ddof": 1, "eps": 1e-4}},
    },
    "distillation": {  # on-policy, arXiv 2306.13649: reverse KL of every token, whatever the response is worth
        "algorithm": {
            "dynamic_sampling": {"mode": "off"},
            "overlong_punishment": _OFF,
            "overlong_filtering": False,
        },
    },
    "scalerl-loss": {
        "model": {"fp32_head": True},
        "algorithm": {
            "loss": {"kind": "cispo", "reduction": "prompt_mean"},
            "advantage": {"scale": "batch_std"},
            "dynamic_sampling": {"mode": "mask"},
            "overlong_punishment": _OFF,
            "overlong_filtering": False,
        },
    },
}


def preset_settings(name: str) -> Sparse:
    """Return a fresh copy of the preset's sparse settings; empty for an unknown name (the schema refuses that one)."""
    return deepcopy(PRESETS.get(name, {}))
