"""Runs inside an environment that has TRL; prints its answers as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.metadata import version
from types import SimpleNamespace

import torch
from questions import BATCHES, ENTROPY_COEFFICIENT, KL_COEFFICIENT, OVERLONG, OVERLONG_LENGTHS, SAPO, WIDTH
from trl import GRPOTrainer
from trl.rewards import get_soft_overlong_punishment


class Trainer(SimpleNamespace):
    """What GRPOTrainer._compute_loss reads of its trainer, and nothing of the rest."""

    def __init__(self, loss_type: str, low: float, high: float, settings: dict, entropies: torch.Tensor) -> None:
        kl, entropy = settings.get("kl_coefficient", 0.0), settings.get("entropy_coefficient", 0.0)
        super().__init__(
            loss_type=loss_type, epsilon_low=low, epsilon_high=high, beta=kl, max_completion_length=WIDTH,
            args=SimpleNamespace(
                delta=settings.get("dual"), steps_per_generation=1, use_bias_correction_kl=False,
                sapo_temperature_pos=SAPO["positive"], sapo_temperature_neg=SAPO["negative"],
            ),
            current_gradient_accumulation_steps=1,
            importance_sampling_level="token", top_entropy_quantile=1.0, off_policy_mask_threshold=None,
            use_vllm=False, aux_loss_enabled=False, _entropy_bonus_enabled=entropy != 0, use_adaptive_entropy=False,
            entropy_coef=entropy, entropies=entropies,
            _metrics=defaultdict(lambda: defaultdict(list)),
            model=SimpleNamespace(training=True),
            accelerator=SimpleNamespace(
                num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
            ),
        )  # fmt: skip

    def _get_per_token_logps_and_entropies(self, model: torch.Tensor, *args: object, **kwargs: object) -> tuple:
        return model, self.entropies, None


def ask(name: str, batch: dict, loss_type: str, settings: dict) -> dict:
    mask = torch.tensor(batch["mask"], dtype=torch.float32)
    logprobs = torch.tensor(batch["logprobs"]).requires_grad_()
    inputs = {
        "prompt_ids": torch.zeros(8, 1, dtype=torch.long), "prompt_mask": torch.ones(8, 1),
        "completion_ids": torch.zeros(8, WIDTH, dtype=torch.long), "completion_mask": mask,
        "advantages": torch.tensor(batch["advantages"]), "old_per_token_logps": torch.tensor(batch["old_logprobs"]),
        "num_items_in_batch": mask.sum(), "ref_per_token_logps": torch.tensor(batch["sampler_logprobs"]),
    }  # fmt: skip
    entropies = torch.tensor(batch["loss_matrix"]).square().requires_grad_()
    high = settings["cap"] if loss_type == "cispo" else settings.get("high", 0.2)
    trainer = Trainer(loss_type, settings.get("low", 0.2), high, settings, entropies)
    loss = GRPOTrainer._compute_loss(trainer, logprobs, inputs)
    loss.backward()
    answer = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    if "entropy_coefficient" in settings:
        answer["entropy_gradient"] = entropies.grad.tolist()
    question = "terms" if "kl_coefficient" in settings else "named_loss" if loss_type == "sapo" else "loss"
    peer = f"GRPOTrainer._compute_loss(loss_type={loss_type!r})"
    return {"question": question, "batch": name, "settings": settings, "peer": peer, "answer": answer}


clip = {"kind": "clip", "low": 0.2, "high": 0.28, "dual": None, "ratio": "token"}
asked = [
    ("dapo", clip | {"reduction": "token_mean"}),
    ("dapo", clip | {"reduction": "token_mean", "dual": 1.5}),
    ("dr_grpo", clip | {"reduction": "constant", "constant_length": WIDTH}),
    ("cispo", {"kind": "cispo", "cap": 1.4, "floor": None, "reduction": "token_mean"}),
]
cases = [ask(name, batch, loss_type, settings) for name, batch in BATCHES.items() for loss_type, settings in asked]
# TRL's GRPO counts responses without loss tokens in its mean over responses; we do not
cases += [ask(name, BATCHES[name], "grpo", clip | {"reduction": "sequence_mean"}) for name in ("a", "b")]
cases += [ask(name, BATCHES[name], "sapo", SAPO) for name in ("a", "b")]
terms = {"kl_coefficient": KL_COEFFICIENT, "kl_estimator": "k3"}
with_entropy = terms | {"entropy_coefficient": ENTROPY_COEFFICIENT}
cases += [
    ask(name, batch, "dapo", clip | {"reduction": "token_mean"} | with_entropy) for name, batch in BATCHES.items()
]
cases += [ask(name, BATCHES[name], "grpo", clip | {"reduction": "sequence_mean"} | terms) for name in ("a", "b")]
for settings in OVERLONG:
    punish = get_soft_overlong_punishment(settings["max_length"], settings["cache_length"])
    answer = punish(completion_ids=[range(length) for length in OVERLONG_LENGTHS])
    settings = settings | {"lengths": OVERLONG_LENGTHS}
    cases.append(
        {"question": "overlong", "settings": settings, "peer": "get_soft_overlong_punishment", "answer": answer}
    )
print(json.dumps({"package": "trl", "version": version("trl"), "cases": cases}))
