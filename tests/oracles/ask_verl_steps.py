"""Runs inside an environment that has verl: whole steps of its actor on a CPU; prints them as JSON.

What is verl's own: the actor's worker (``TrainingWorker``: FSDP2 over one process with gloo, float32, its
micro-batches, loss, clipping and optimiser), and of its PPO trainer everything from a scored batch to the update, in
the order of ``RayPPOTrainer.fit``: old and reference log-probabilities, KL in the reward, rollout correction,
advantages, ``_update_actor``. What is put in: a platform called ``cpu`` (``verl_cpu.py``), rollouts, and the worker in
the place of a Ray worker group.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed
from omegaconf import OmegaConf
from step_questions import STEPS, VERL, Step
from steps import GROUP, LIMIT, PAD, WORLDS, make_rollouts, mask_of, sketch, write_model
from torch.distributed.tensor import DTensor
from verl import DataProto
from verl.trainer.config import AlgoConfig, CheckpointConfig
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode, compute_rollout_correction_and_add_to_batch
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.config.engine import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss


def make_worker(step: Step, folder: Path) -> tuple[TrainingWorker, FSDPActorConfig]:
    """The actor as ``ActorRolloutRefWorker.init_model`` makes it, in float32 and without compiling anything."""
    actor = dict(step.theirs["actor"])
    correction = step.theirs["algorithm"].get("rollout_correction")
    policy_loss = dict(actor.pop("policy_loss", {}))
    if correction and correction.get("bypass_mode"):
        policy_loss = {"loss_mode": "bypass_mode", "rollout_correction": RolloutCorrectionConfig(**correction)}
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        model_dtype="fp32",
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False,
    )
    optimizer = FSDPOptimizerConfig(total_training_steps=100, **step.theirs["optim"])
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=GROUP, fsdp_config=engine, optim=optimizer, use_torch_compile=False,
        policy_loss=PolicyLossConfig(**policy_loss), **actor,
    )  # fmt: skip
    model = HFModelConfig(
        path=str(folder),
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    engine.use_dynamic_bsz = config.use_dynamic_bsz
    engine.max_token_len_per_gpu = config.ppo_max_token_len_per_gpu
    engine.infer_max_token_len_per_gpu = config.ppo_infer_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
    engine.infer_micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model", model_config=model, engine_config=engine, optimizer_config=optimizer,
            checkpoint_config=CheckpointConfig(),
        )
    )  # fmt: skip
    worker.reset()

    def loss(model_output, data, dp_group=None):
        return ppo_loss(config=config, model_output=model_output, data=data, dp_group=dp_group)

    worker.set_loss_fn(loss)
    return worker, config


def trainer_of(step: Step, worker: TrainingWorker, reference: TrainingWorker, config: FSDPActorConfig) -> Any:
    """What the methods of ``RayPPOTrainer`` read of their trainer."""
    cpu = lambda call: lambda data: call(data).cpu()  # noqa: E731
    actor = {
        "calculate_entropy": config.calculate_entropy, "entropy_coeff": config.entropy_coeff,
        "ppo_mini_batch_size": config.ppo_mini_batch_size, "ppo_epochs": config.ppo_epochs,
        "data_loader_seed": 42, "shuffle": False,
    }  # fmt: skip
    rollout = {"multi_turn": {"enable": False}, "temperature": 1.0, "n": GROUP}
    return SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"actor": actor, "rollout": rollout}}),
        distillation_config=None,
        ref_in_actor=False,
        actor_rollout_wg=SimpleNamespace(
            compute_log_prob=cpu(worker.infer_batch), update_actor=cpu(worker.train_mini_batch)
        ),
        ref_policy_wg=SimpleNamespace(compute_ref_log_prob=cpu(reference.infer_batch)),
    )


def batch_of(groups: list[dict]) -> DataProto:
    """Prompts padded on the left, responses on the right, as verl's rollouts are."""
    rows = [
        (number, group["prompt"], response, logprobs, reward, own)
        for number, group in enumerate(groups)
        for response, logprobs, reward, own in zip(
            group["responses"], group["sampler_logprobs"], group["rewards"], mask_of(group), strict=True
        )
    ]
    width = max(len(prompt) for _, prompt, *_ in rows)
    prompts = torch.tensor([[PAD] * (width - len(prompt)) + prompt for _, prompt, *_ in rows])
    responses = torch.tensor([response + [PAD] * (LIMIT - len(response)) for _, _, response, *_ in rows])
    there = torch.tensor([[1] * len(response) + [0] * (LIMIT - len(response)) for _, _, response, *_ in rows])
    mask = torch.tensor([own + [0] * (LIMIT - len(own)) for *_, own in rows])  # of an agent loop: 0 on replies
    before = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for _, prompt, *_ in rows])
    attention = torch.cat([before, there], dim=1)
    scores = torch.zeros(len(rows), LIMIT)
    for row, (_, _, response, _, reward, _) in enumerate(rows):
        scores[row, len(response) - 1] = reward
    tensors = {
        "prompts": prompts, "responses": responses, "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention, "position_ids": (attention.cumsum(1) - 1).clamp(min=0), "response_mask": mask,
        "token_level_scores": scores,
        "rollout_log_probs": torch.tensor([row + [0.0] * (LIMIT - len(row)) for _, _, _, row, *_ in rows]),
    }  # fmt: skip
    batch = DataProto.from_dict(
        tensors=tensors, non_tensors={"uid": np.array([str(number) for number, *_ in rows], dtype=object)}
    )
    batch.meta_info |= {"temperature": 1.0, "global_token_num": attention.sum(1).tolist()}
    return batch


def train(step: Step, trainer: Any, batch: DataProto) -> dict:
    """From a scored batch to the update, as ``RayPPOTrainer.fit`` does it; what the actor says of itself."""
    calls, settings = ray_trainer.RayPPOTrainer, dict(step.theirs["algorithm"])
    correction, in_reward = settings.pop("rollout_correction", None), settings.pop("use_kl_in_reward", False)
    coefficient, penalty = settings.pop("kl_coef", 0.0), settings.pop("kl_penalty", "kl")
    if correction and correction.get("bypass_mode"):
        apply_bypass_mode(batch, RolloutCorrectionConfig(**correction), OmegaConf.create({}))
    else:
        old, _ = calls._compute_old_log_prob(trainer, batch)
        old.batch.pop("entropys")
        batch = batch.union(old)
    if in_reward or step.theirs["actor"].get("use_kl_loss"):
        batch = batch.union(calls._compute_ref_log_prob(trainer, batch))
    if in_reward:
        batch, _ = ray_trainer.apply_kl_penalty(batch, core_algos.FixedKLController(coefficient), penalty)
    else:
        batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    if correction and not correction.get("bypass_mode"):
        batch, _ = compute_rollout_correction_and_add_to_batch(batch, RolloutCorrectionConfig(**correction))
    grpo = core_algos.AdvantageEstimator.GRPO
    batch = ray_trainer.compute_advantage(
        batch, grpo, num_repeat=GROUP, config=AlgoConfig(adv_estimator="grpo"), **settings
    )
    return calls._update_actor(trainer, batch).meta_info["metrics"]


def weights(worker: TrainingWorker) -> dict[str, np.ndarray]:
    whole = lambda p: p.full_tensor() if isinstance(p, DTensor) else p  # noqa: E731
    return {
        name: whole(p.detach()).numpy().astype(np.float64).copy() for name, p in worker.engine.module.named_parameters()
    }


def ask(step: Step, folder: Path, rollouts: list[list[dict]]) -> dict:
    worker, config = make_worker(step, folder)
    reference, _ = make_worker(step, folder)
    trainer, before = trainer_of(step, worker, reference, config), weights(worker)
    found: dict[str, list] = {"loss": [], "grad_norm": [], "update": []}
    for groups in rollouts:
        said = train(step, trainer, batch_of(groups))
        found["loss"].append(float(np.mean(said["actor/loss"])))
        found["grad_norm"].append(float(np.mean(said["actor/grad_norm"])))
        found["update"].append(sketch(before, weights(worker)))
    return found


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        meeting = f"file://{scratch}/meeting"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        folder = write_model(Path(scratch) / "model")
        worlds = {name: make_rollouts(folder, name) for name in WORLDS}
        cases = []
        for step in STEPS[VERL].values():
            print(step.name, file=sys.stderr, flush=True)
            answer = ask(step, folder, worlds[step.world])
            cases.append({"step": step.name, "theirs": step.theirs, "answer": answer})
        torch.distributed.destroy_process_group()
    print(json.dumps({"package": "verl", "version": version("verl"), "worlds": worlds, "cases": cases}))


if __name__ == "__main__":
    main()
