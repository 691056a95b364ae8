"""Runs inside an environment that has verl; prints its answers as JSON. Serves 0.9.1 and the older 0.5.0."""

from __future__ import annotations

import json
from importlib.metadata import version

import numpy as np
import torch
from questions import BATCHES, CLIP_COV, CLIPS, GDPO, GSPO, KL_COV, MICRO_BATCHES, SAPO, UNEVEN
from verl.trainer.ppo import core_algos

VERSION = version("verl")
MODES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean", "sequence_sum": "seq-mean-token-sum"}


def tensors(batch: dict) -> dict[str, torch.Tensor]:
    made = {name: torch.tensor(values, dtype=torch.float32) for name, values in batch.items()}
    made["advantages"] = made["advantages"][:, None].expand_as(made["mask"])
    return made


def reductions(name: str, batch: dict) -> list[dict]:
    t = tensors(batch)
    cases = []
    for ours, theirs in MODES.items():
        answer = core_algos.agg_loss(t["loss_matrix"], t["mask"], theirs)
        cases.append({"settings": {"reduction": ours}, "peer": f"agg_loss({theirs!r})", "answer": answer.item()})
    answer = core_algos.agg_loss(
        t["loss_matrix"], t["mask"], "seq-mean-token-sum-norm", global_batch_size=len(t["mask"]), loss_scale_factor=5
    )
    settings = {"reduction": "constant", "constant_length": 5}
    cases.append({"settings": settings, "peer": "agg_loss('seq-mean-token-sum-norm')", "answer": answer.item()})
    return [{"question": "reduction", "batch": name} | case for case in cases]


def legacy_reductions(name: str, batch: dict) -> list[dict]:
    """As dp_actor.update_policy of 0.5.0 uses agg_loss with dynamic batches: each scaled by its share of the rows."""
    t = tensors(batch)
    cases = []
    for split in (MICRO_BATCHES, UNEVEN):
        parts = [core_algos.agg_loss(t["loss_matrix"][rows], t["mask"][rows], "token-mean") for rows in split]
        answer = sum(part * len(rows) / len(t["mask"]) for part, rows in zip(parts, split, strict=True))
        settings = {"reduction": "micro_batch_mean", "micro_batches": split, "micro_batch_weighted": True}
        peer = "agg_loss('token-mean') per micro-batch, times its share of the rows"
        cases.append(
            {"question": "reduction", "batch": name, "settings": settings, "peer": peer, "answer": answer.item()}
        )
    return cases


def losses(name: str, batch: dict) -> list[dict]:
    from verl.workers.config.actor import ActorConfig

    def ask(policy_loss: str, settings: dict, **config) -> dict:
        t = tensors(batch)
        actor = ActorConfig(
            strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4, ppo_mini_batch_size=8, **config
        )
        logprobs = t["logprobs"].requires_grad_()
        loss, _ = core_algos.get_policy_loss_fn(policy_loss)(
            old_log_prob=t["old_logprobs"], log_prob=logprobs, advantages=t["advantages"],
            response_mask=t["mask"], loss_agg_mode=MODES[settings["reduction"]], config=actor,
        )  # fmt: skip
        loss.backward()
        answer = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
        return {"question": "loss", "batch": name, "settings": settings, "peer": policy_loss, "answer": answer}

    def bounds(settings: dict) -> dict:
        return {
            "clip_ratio": settings["low"],
            "clip_ratio_low": settings["low"],
            "clip_ratio_high": settings["high"],
            "clip_ratio_c": settings["dual"] or 3.0,
        }

    cispo = {"kind": "cispo", "cap": 1.3, "floor": 0.7, "reduction": "token_mean"}
    return [
        *(ask("vanilla", settings, **bounds(settings)) for settings in CLIPS),
        ask("gspo", GSPO, **bounds(GSPO)),
        ask("cispo", cispo, clip_ratio=0.3, clip_ratio_low=0.3, clip_ratio_high=0.3),
    ]


def advantages(name: str, batch: dict) -> list[dict]:
    mask = torch.ones(8, 1)
    rewards, index = torch.tensor(batch["rewards"])[:, None], np.array(batch["groups"])
    grpo, rloo = core_algos.compute_grpo_outcome_advantage, core_algos.compute_rloo_outcome_advantage
    asked = [
        ("mean", "group_std", grpo(rewards, mask, index)),
        ("mean", "none", grpo(rewards, mask, index, norm_adv_by_std_in_grpo=False)),
        ("leave_one_out", "none", rloo(rewards, mask, index)),
    ]
    return [
        {
            "question": "advantages",
            "batch": name,
            "settings": {"baseline": baseline, "scale": scale},
            "peer": "compute_rloo_outcome_advantage" if baseline != "mean" else "compute_grpo_outcome_advantage",
            "answer": answer[0][:, 0].tolist(),
        }
        for baseline, scale, answer in asked
    ]


def corrections(name: str, batch: dict) -> list[dict]:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask

    t = tensors(batch)
    gap = t["logprobs"] - t["sampler_logprobs"]

    def weights(level: str, threshold: float | str) -> torch.Tensor:
        return compute_rollout_correction_weights(gap, t["mask"], level, threshold)[0]

    def asked_of(level: str, threshold: float | str) -> str:
        return f"compute_rollout_correction_weights({level!r}, {threshold!r})"

    # its k1 is log(p_sampler / p_learner), so that its bounds are the inverses of ours
    kept, _ = compute_rollout_rejection_mask(gap, t["mask"], "seq_mean_k1", f"{1 / 1.2}_{1 / 0.8}")
    band, rejects = (
        {"kind": "mask_sequence", "cap": 1.2, "floor": 0.8},
        "x compute_rollout_rejection_mask('seq_mean_k1')",
    )
    none = 1e9  # verl has no switch for an untruncated ratio: a bound that nothing reaches
    asked = [
        ({"kind": "truncate", "cap": 1.5}, asked_of("token", 1.5), weights("token", 1.5)),
        ({"kind": "untruncated"}, asked_of("token", none), weights("token", none)),
        ({"kind": "truncate_sequence", "sequence_cap": 5.0}, asked_of("sequence", 5.0), weights("sequence", 5.0)),
        ({"kind": "truncate_sequence", "sequence_cap": 0.9}, asked_of("sequence", 0.9), weights("sequence", 0.9)),
        (
            {"kind": "mask_token", "cap": 1.5, "floor": 0.6},
            asked_of("token", "0.6_1.5"),
            weights("token", "0.6_1.5"),
        ),
        (band | {"token_cap": 1.2}, f"{asked_of('token', 1.2)} {rejects}", weights("token", 1.2) * kept),
        (band | {"token_cap": 1.5}, f"{asked_of('token', 1.5)} {rejects}", weights("token", 1.5) * kept),
        (band | {"token_cap": None}, f"{asked_of('token', none)} {rejects}", weights("token", none) * kept),
    ]
    return [
        {"question": "correction", "batch": name, "settings": settings, "peer": peer, "answer": answer.tolist()}
        for settings, peer, answer in asked
    ]


def k3(name: str, batch: dict) -> dict:
    t = tensors(batch)
    estimate = core_algos.kl_penalty_forward(t["sampler_logprobs"], t["logprobs"], "k3")
    answer = (estimate * t["mask"]).sum() / t["mask"].sum()
    return {
        "question": "k3",
        "batch": name,
        "settings": {},
        "peer": "kl_penalty_forward('k3')",
        "answer": answer.item(),
    }


def estimates(name: str, batch: dict) -> list[dict]:
    """Each estimator of the KL with its gradient; the sampler's numbers stand for a reference's."""
    cases = []
    for ours, theirs in (("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")):
        t = tensors(batch)
        logprobs = t["logprobs"].requires_grad_()
        found = core_algos.kl_penalty(logprobs, t["sampler_logprobs"], theirs)
        (found * t["mask"]).sum().backward()
        answer = {"value": (found.detach() * t["mask"]).tolist(), "gradient": logprobs.grad.tolist()}
        peer = f"kl_penalty({theirs!r})"
        cases.append({"question": "kl", "batch": name, "settings": {"estimator": ours}, "peer": peer, "answer": answer})
    return cases


def named_losses(name: str, batch: dict) -> list[dict]:
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig

    def ask(policy: str, settings: dict, logprobs: torch.Tensor, mode: str, **config) -> dict:
        t = tensors(batch)
        actor = ActorConfig(
            strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4, ppo_mini_batch_size=8, **config
        )
        leaf = logprobs.clone().requires_grad_()
        loss, _ = core_algos.get_policy_loss_fn(policy)(
            old_log_prob=t["old_logprobs"], log_prob=leaf, advantages=t["advantages"].clone(),
            response_mask=t["mask"], loss_agg_mode=mode, config=actor,
        )  # fmt: skip
        loss.backward()
        answer = {"loss": loss.item(), "gradient": leaf.grad.tolist()}
        return {"question": "named_loss", "batch": name, "settings": settings, "peer": policy, "answer": answer}

    old = tensors(batch)["old_logprobs"]
    clip, kl = CLIP_COV, KL_COV
    clip_cov = PolicyLossConfig(
        loss_mode="clip_cov", clip_cov_ratio=clip["share"], clip_cov_lb=clip["above"], clip_cov_ub=clip["below"]
    )
    kl_cov = PolicyLossConfig(loss_mode="kl_cov", kl_cov_ratio=kl["share"], ppo_kl_coef=kl["coefficient"])
    bounds = {"clip_ratio": clip["low"], "clip_ratio_low": clip["low"], "clip_ratio_high": clip["high"]}
    tau = {"tau_pos": SAPO["positive"], "tau_neg": SAPO["negative"]}
    return [
        ask("sapo", SAPO, tensors(batch)["logprobs"], "seq-mean-token-mean", **tau),
        ask("clip_cov", clip, old + clip["shift"], "token-mean", policy_loss=clip_cov, **bounds),
        ask("kl_cov", kl, old + kl["shift"], "token-mean", policy_loss=kl_cov),
    ]


def teachers(name: str, batch: dict) -> list[dict]:
    """Its distillation loss on fresh tokens, on padded tensors; the sampler's numbers stand for a teacher's."""
    from verl.trainer.distillation import losses
    from verl.workers.config.actor import ActorConfig
    from verl.workers.config.distillation import DistillationConfig, DistillationLossConfig

    losses.no_padding_2_padding = lambda values, _: values
    actor = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4, ppo_mini_batch_size=8)
    cases = []
    for term, estimator in (("advantage", "k1"), ("loss", "k2"), ("loss", "k3")):
        t = tensors(batch)
        leaf = t["logprobs"].clone().requires_grad_()
        data = {
            "response_mask": t["mask"], "teacher_logprobs": t["sampler_logprobs"][..., None],
            "old_log_probs": t["logprobs"], "dp_size": 1, "batch_num_tokens": t["mask"].sum(), "global_batch_size": 8,
        }  # fmt: skip
        options = {"loss_mode": estimator, "use_policy_gradient": term == "advantage", "use_task_rewards": False}
        given = DistillationLossConfig(**options, loss_max_clamp=None, log_prob_min_clamp=None)
        loss, _ = losses.distillation_loss(
            actor, DistillationConfig(distillation_loss=given), {"log_probs": leaf}, data
        )
        loss.backward()
        answer = {"loss": loss.item(), "gradient": leaf.grad.tolist()}
        settings = {"term": term, "estimator": estimator, "reduction": "token_mean"}
        peer = f"distillation_loss({estimator!r}, use_policy_gradient={term == 'advantage'})"
        cases.append({"question": "teacher", "batch": name, "settings": settings, "peer": peer, "answer": answer})
    return cases


def decoupled() -> dict:
    """Responses of one token each, or its whitening would weigh them by their lengths."""
    names = list(GDPO["rewards"])
    found, _ = core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(8, 1), response_mask=torch.ones(8, 1), index=np.arange(8) // 4,
        config={"gdpo_reward_keys": names, "gdpo_reward_weights": [GDPO["weights"][name] for name in names]},
        non_tensor_batch={name: np.array(values) for name, values in GDPO["rewards"].items()},
        batch={"prompts": torch.zeros(8, 1), "attention_mask": torch.ones(8, 2, dtype=torch.long)},
    )  # fmt: skip
    peer = "compute_gdpo_outcome_advantage"
    return {"question": "decoupled", "settings": GDPO, "peer": peer, "answer": found[:, 0].tolist()}


cases = []
for name, batch in BATCHES.items():
    if VERSION.startswith("0.5."):
        cases += legacy_reductions(name, batch) if name != "empty_row" else []
    else:
        cases += reductions(name, batch) + losses(name, batch) + advantages(name, batch) + corrections(name, batch)
        cases.append(k3(name, batch))
        cases += estimates(name, batch) + named_losses(name, batch) + teachers(name, batch)
if not VERSION.startswith("0.5."):
    cases.append(decoupled())
print(json.dumps({"package": "verl", "version": VERSION, "cases": cases}))
