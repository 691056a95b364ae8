"""Runs inside an environment that has SkyRL (Python 3.12); prints its answers as JSON."""

from __future__ import annotations

import json
from importlib.metadata import version

import numpy as np
import torch
from questions import BATCHES, CLIPS, GSPO, REWARD_GROUPS
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import AlgorithmConfig
from skyrl.train.utils.trainer_utils import zero_variance_filter

REDUCTIONS = {
    "token_mean": {"reduction": "token_mean"},
    "prompt_mean": {"reduction": "prompt_mean"},
    "sequence_mean": {"reduction": "sequence_mean"},
    "seq_mean_token_sum_norm": {"reduction": "constant", "constant_length": 5},
    # its legacy form has micro-batches of one size, so that weighting them changes nothing
    "token_mean_legacy": {
        "reduction": "micro_batch_mean",
        "micro_batches": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "micro_batch_weighted": True,
    },
}
THEIRS = {ours["reduction"]: theirs for theirs, ours in REDUCTIONS.items()}


def scaled(values: torch.Tensor, mask: torch.Tensor, reduction: str) -> torch.Tensor:
    return ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        values, mask, reduction, micro_batch_size=2, max_seq_len=5, prompt_boundaries=[(0, 4), (4, 8)]
    )


def reductions(name: str, batch: dict) -> list[dict]:
    mask, loss_matrix = torch.tensor(batch["mask"]), torch.tensor(batch["loss_matrix"])
    return [
        {
            "question": "reduction",
            "batch": name,
            "settings": settings,
            "peer": f"apply_loss_reduction_to_advantages_minibatch({theirs!r})",
            "answer": (scaled(loss_matrix, mask, theirs) * mask).sum().item(),
        }
        for theirs, settings in REDUCTIONS.items()
    ]


def losses(name: str, batch: dict) -> list[dict]:
    def ask(policy_loss: str, settings: dict, config: AlgorithmConfig) -> dict:
        config.policy_loss_type = policy_loss
        config.loss_reduction = THEIRS[settings["reduction"]]
        mask, logprobs = torch.tensor(batch["mask"]), torch.tensor(batch["logprobs"]).requires_grad_()
        advantages = torch.tensor(batch["advantages"])[:, None].expand(mask.shape)
        loss, _ = ppo_utils.PolicyLossRegistry.get(policy_loss)(
            logprobs, torch.tensor(batch["old_logprobs"]), scaled(advantages, mask, config.loss_reduction), config, mask
        )
        loss.backward()
        answer = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
        return {"question": "loss", "batch": name, "settings": settings, "peer": policy_loss, "answer": answer}

    def bounds(settings: dict) -> AlgorithmConfig:
        config = AlgorithmConfig(eps_clip_low=settings["low"], eps_clip_high=settings["high"])
        config.clip_ratio_c = settings["dual"] or 3.0
        return config

    cispo_config = AlgorithmConfig()
    cispo_config.cispo.cispo_eps_clip_low, cispo_config.cispo.cispo_eps_clip_high = 0.3, 0.4
    cispo = {"kind": "cispo", "cap": 1.4, "floor": 0.7, "reduction": "prompt_mean"}
    return [
        *(ask("dual_clip", settings, bounds(settings)) for settings in CLIPS),
        ask("regular", CLIPS[0] | {"dual": None, "reduction": "prompt_mean"}, bounds(CLIPS[0])),
        ask("gspo", GSPO, bounds(GSPO)),
        ask("cispo", cispo, cispo_config),
    ]


def advantages(name: str, batch: dict) -> list[dict]:
    mask, index = torch.ones(8, 1), np.array(batch["groups"])

    def ask(function: str, settings: dict, **options: object) -> dict:
        rewards = torch.tensor(batch["rewards"])[:, None]
        answer, _ = getattr(ppo_utils, function)(rewards, mask, index, **options)
        answer = answer[:, 0].tolist()
        return {"question": "advantages", "batch": name, "settings": settings, "peer": function, "answer": answer}

    grpo = "compute_grpo_outcome_advantage"
    return [
        ask(grpo, {"baseline": "mean", "scale": "group_std"}),
        ask(grpo, {"baseline": "mean", "scale": "none"}, grpo_norm_by_std=False),
        ask("compute_rloo_outcome_advantage", {"baseline": "leave_one_out", "scale": "none"}),
    ]


cases = []
for name in ("a", "b"):  # it counts responses without loss tokens in its means; we do not, so that batch is left out
    cases += reductions(name, BATCHES[name]) + losses(name, BATCHES[name]) + advantages(name, BATCHES[name])
rewards = [reward for group in REWARD_GROUPS for reward in group]
groups = [str(i // 4) for i in range(4 * len(REWARD_GROUPS))]
for tolerance in (0.0, 1e-6):
    kept = set(zero_variance_filter(rewards, groups, tol=tolerance))
    answer = [4 * p in kept for p in range(len(REWARD_GROUPS))]
    settings = {"tolerance": tolerance, "values_PG": REWARD_GROUPS}
    cases.append({"question": "keep", "settings": settings, "peer": "zero_variance_filter", "answer": answer})
print(json.dumps({"package": "skyrl", "version": version("skyrl"), "cases": cases}))
