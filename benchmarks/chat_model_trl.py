"""TRL's GRPOTrainer on the data, prompts and settings of the recipe ``sums_smollm2``, for as many steps, beside it.

    python benchmarks/chat_model_trl.py --model MODEL --out FOLDER [--seed 1] [--threads 2] [--set KEY=VALUE ...]

real_model.py runs it, in an environment that holds both (`make .venv-trl/.installed`). MODEL is the folder of the
dequantised model, as ``dapo`` keeps it in its cache. TRL has no dynamic sampling. Its weights are
float32 and it computes in bfloat16, as it advises, a group at a time: 64 rows at once take 16 GB. Evaluations are plain
transformers; their seconds are not counted. The result is written anew after each. ``--set`` overrides the recipe.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from transformers import TrainerCallback

from dapo.config.load import load_recipe
from dapo.config.schema import Recipe
from dapo.rewards.last_number import judge, read_last_number

NAME = "chat_model_trl"
AT_ONCE = 25
"""Prompts of one call of an evaluation."""
LOGGED = {
    "entropy": "entropy",
    "clip_high": "clip_ratio/high_mean",
    "clip_low": "clip_ratio/low_mean",
    "length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
}
"""What is kept of TRL's metrics of each training step."""


def prompts_of(recipe: Recipe, file: Path, tokenizer: Any) -> list[dict[str, str]]:
    """Return the prompts of a JSONL file as the model sees them, with their answers."""
    shown = [{"role": role, "content": text} for one in recipe.data.few_shot for role, text in turns_of(one)]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        {
            "prompt": tokenizer.apply_chat_template(
                [*shown, {"role": "user", "content": row["problem"]}], tokenize=False, add_generation_prompt=True
            ),
            "answer": row["answer"],
        }
        for row in rows
    ]


def turns_of(example: Any) -> list[tuple[str, str]]:
    return [("user", example.problem), ("assistant", example.response)]


def is_right(text: str, answer: str) -> bool:
    return judge(read_last_number(text), answer, 0.0) == 1.0


def evaluate(model: Any, tokenizer: Any, problems: list[dict[str, str]], tokens: int, sampled: bool) -> float:
    """Return the share of right answers, one a problem."""
    right = 0
    model.eval()
    for first in range(0, len(problems), AT_ONCE):
        some = problems[first : first + AT_ONCE]
        batch = tokenizer([one["prompt"] for one in some], return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            made = model.generate(**batch, do_sample=sampled, top_k=0, max_new_tokens=tokens)
        texts = tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(is_right(text, one["answer"]) for text, one in zip(texts, some, strict=True))
    return right / len(problems)


class Record(TrainerCallback):
    """Evaluate as the recipe says, and write what was found and what training has cost until then."""

    def __init__(
        self, recipe: Recipe, model: Any, tokenizer: Any, problems: list[Any], about: dict[str, Any], out: Path
    ) -> None:
        self._asked = (model, tokenizer, problems, recipe.rollout.max_response_tokens)
        self._passes = passes_of(recipe)
        self._validation, self._last = recipe.validation, recipe.trainer.steps
        self._found: dict[str, Any] = {**about, "steps": {}, "training": {name: [] for name in LOGGED}}
        self._out = out
        self._spent = 0.0  # seconds of the processor in training

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._spent += time.process_time() - self._began
        step, rest = divmod(state.global_step, self._passes)
        if not rest and (step == self._last or not step % self._validation.every):
            self.evaluate(step)
            self._asked[0].train()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if LOGGED["entropy"] in logs:  # the last line of TRL's log sums up the whole run
            for name, key in LOGGED.items():
                self._found["training"][name].append(logs[key])

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.write()

    def evaluate(self, step: int) -> None:
        several = [evaluate(*self._asked, True) for _ in range(self._validation.samples)]
        shares = {"sampled": sum(several) / len(several), "greedy": evaluate(*self._asked, False)}
        self._found["steps"][step] = shares | {"processor": self._spent}
        self.write()
        print(step, self._found["steps"][step], flush=True)

    def write(self) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / f"{NAME}.json").write_text(json.dumps(self._found, indent=1) + "\n")


def passes_of(recipe: Recipe) -> int:
    """Return the optimizer steps of a training step."""
    return recipe.rollout.prompts_per_step // recipe.learner.minibatch_prompts


def trainer_of(recipe: Recipe, model: Any, tokenizer: Any, problems: list[dict[str, str]], options: Any) -> Any:
    """Return a GRPOTrainer with the recipe's settings."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.rewards import get_soft_overlong_punishment

    r, passes = recipe, passes_of(recipe)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=True,
        gradient_checkpointing=False,
        loss_type="dapo",
        epsilon=r.algorithm.clip.low,
        epsilon_high=r.algorithm.clip.high,
        beta=0.0,
        scale_rewards="group",
        mask_truncated_completions=True,
        num_generations=r.rollout.group_size,
        per_device_train_batch_size=r.rollout.group_size,
        steps_per_generation=r.rollout.prompts_per_step,
        gradient_accumulation_steps=r.learner.minibatch_prompts,
        max_steps=passes * r.trainer.steps,
        max_completion_length=r.rollout.max_response_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=r.learner.learning_rate,
        weight_decay=r.learner.weight_decay,
        adam_beta1=r.learner.betas[0],
        adam_beta2=r.learner.betas[1],
        max_grad_norm=r.learner.max_grad_norm,
        warmup_steps=passes * r.learner.warmup,  # the recipe counts training steps
        lr_scheduler_type="constant_with_warmup",
        logging_steps=passes,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=options.seed,
    )

    def accuracy(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [1.0 if is_right(text, gold) else -1.0 for text, gold in zip(completions, answer, strict=True)]

    cache = recipe.algorithm.overlong_punishment.cache_length
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[accuracy, get_soft_overlong_punishment(r.rollout.max_response_tokens, cache)],
        args=config,
        train_dataset=Dataset.from_list(problems),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the dequantised model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load_recipe("sums_smollm2", [f"model.path={options.model}", *options.set])
    recipe = loaded.recipe
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    (train,), (held_out,) = recipe.data.train, recipe.data.validation
    training, validation = (prompts_of(recipe, Path(one.path), tokenizer) for one in (train, held_out))
    validation = validation[: recipe.validation.limit]
    trainer = trainer_of(recipe, model, tokenizer, training, options)
    about = {
        "machine": describe_machine() | {"threads": options.threads},
        "seed": options.seed,
        "responses": recipe.rollout.prompts_per_step * recipe.rollout.group_size,  # of a training step
    }
    record = Record(recipe, model, tokenizer, validation, about, options.out)
    record.evaluate(0)
    trainer.add_callback(record)
    trainer.train()


if __name__ == "__main__":
    main()
