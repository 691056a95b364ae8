"""TRL's side of ``against_trl.py``: GRPOTrainer on one setting, timed by phase. Run by it, in the same environment.

python benchmarks/trl_worker.py SETTING.json OUT.json
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

import dapo
from dapo.data.signed_sum import make_problem
from dapo.observe.spans import peak_rss_mib


def grpo_config(setting: dict[str, Any], output: Path) -> Any:
    """TRL's settings for the work that our recipe describes."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(output),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        scale_rewards="group",
        mask_truncated_completions=True,
        num_generations=setting["group_size"],
        per_device_train_batch_size=setting["prompts"] * setting["group_size"] // setting["minibatches"],
        steps_per_generation=setting["minibatches"],
        gradient_accumulation_steps=1,
        max_steps=setting["minibatches"] * setting["steps"],
        max_completion_length=setting["max_response_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=setting["learning_rate"],
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        warmup_steps=10,
        lr_scheduler_type="constant_with_warmup",
        shuffle_dataset=False,
        logging_steps=setting["minibatches"],
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=setting["seed"],
    )


def main(setting_file: str, out_file: str) -> None:
    setting = json.loads(Path(setting_file).read_text())
    torch.set_num_threads(setting["threads"])
    torch.set_float32_matmul_precision(setting["matmul_precision"])
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer
    from trl.rewards import get_soft_overlong_punishment

    rounds: list[dict[str, float]] = []

    class TimedTrainer(GRPOTrainer):
        """Adds up seconds by phase; one round is one generation batch and its optimiser steps."""

        def _generate(self, prompts: list[Any]) -> Any:
            start = time.perf_counter()
            result = super()._generate(prompts)
            rounds[-1]["generate"] += time.perf_counter() - start
            rounds[-1]["generated_tokens"] += sum(len(ids) for ids in result[1])
            return result

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = time.perf_counter()
            result = super()._generate_and_score_completions(inputs)
            rounds[-1]["collect"] += time.perf_counter() - start
            return result

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if self._step % setting["minibatches"] == 0:
                now = time.perf_counter()
                rounds.append({"start": now, "generate": 0.0, "collect": 0.0, "generated_tokens": 0})
            return super().training_step(*args, **kwargs)

    model = AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(setting["model"], padding_side="left")
    problems = [make_problem(setting["data_seed"], i) for i in range(setting["prompts"] * setting["steps"])]
    data = Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in problems])

    def accuracy(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [1.0 if _correct(setting, text, gold) else -1.0 for text, gold in zip(completions, answer, strict=True)]

    trainer = TimedTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[accuracy, get_soft_overlong_punishment(setting["max_response_tokens"], setting["cache_length"])],
        args=grpo_config(setting, Path(out_file).parent / "trl"),
        train_dataset=data,
    )
    trainer.train()
    # A round ends where the next one starts: the optimiser's step comes after ``training_step`` returns.
    ends = [entry["start"] for entry in rounds[1:]] + [time.perf_counter()]
    logged = [entry["rewards/accuracy/mean"] for entry in trainer.state.log_history if "rewards/accuracy/mean" in entry]
    steps = [_phases(entry, end, reward) for entry, end, reward in zip(rounds, ends, logged, strict=True)]
    Path(out_file).write_text(json.dumps({"steps": steps, "peak_rss_mib": peak_rss_mib(), "dapo": dapo.__version__}))


def _phases(entry: dict[str, float], end: float, reward: float) -> dict[str, float]:
    step = end - entry["start"]
    return {
        "step": step,
        "generate": entry["generate"],
        "score": entry["collect"] - entry["generate"],  # rewards, advantages, old log-probabilities
        "learn": step - entry["collect"],
        "generated_tokens": entry["generated_tokens"],
        "accuracy": (reward + 1) / 2,
    }


def _correct(setting: dict[str, Any], text: str, gold: str) -> bool:
    if setting["reward"] == "answer":
        words = text.split()
        return bool(words) and words[-1] == f"={gold}"
    return re.search(setting["pattern"], text) is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
