"""A pretrained chat model of 135 million parameters: what is exact on tiny random models is exact on it as well."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_here import LearnerHere
from learner_rows import learn_step
from safetensors.torch import load_file
from small_run import command, dapo, environment
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo.algorithms.objective import clip_objective
from dapo.config import schema
from dapo.models.load import load_model
from dapo.observe.metrics import read_metrics, without_clock
from dapo.types.batch import Row

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

RECIPE = """
preset: dapo
run: {{dir: {folder}, seed: 1}}
model: {{path: {model}, device: cpu}}
data:
  train: [{{path: {folder}/train.jsonl}}]
  validation: [{{path: {folder}/held.jsonl, name: held_out}}]
  prompt: chat
  few_shot: [{{problem: "What is 12 + 5?", response: "12 + 5 = 17"}}]
  max_prompt_tokens: 96
rewards: [{{name: accuracy, kind: last_number}}]
rollout: {{prompts_per_step: 2, group_size: 6, max_response_tokens: 12}}
algorithm: {{overlong_filtering: false, overlong_punishment: {{cache_length: 4}}}}
learner: {{learning_rate: 1.0e-5, minibatch_prompts: 1, warmup: 0, microbatch_tokens: 1024}}
validation: {{samples: 1, every: 0}}
trainer: {{steps: 3}}
checkpoint: {{every: 1, keep: 2}}
logging: {{console: plain}}
"""


@pytest.fixture
def folder(tmp_path, model):
    """Return a folder with a recipe; it goes with its test, since a checkpoint takes 1.8 GB."""
    for name, first in (("train", 3), ("held", 30)):
        problems = [
            {"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(first, first + 8) for b in (6, 9)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, problems)))
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path, model=model))
    return tmp_path


def chat(tokenizer, text):
    asked = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True, return_dict=False)


def make_rows(tokenizer):
    """Two prompts with three responses each, one of them of a single token."""
    answers = ["The answer is 7.", "3 + 4 = 7", "7"]
    return [
        Row(
            group=group,
            sample=sample,
            prompt_ids=np.array(chat(tokenizer, problem)),
            token_ids=(ids := np.array(tokenizer(answer, add_special_tokens=False)["input_ids"])),
            loss_mask=np.ones(len(ids), np.bool_),
            sampler_logprobs=np.full(len(ids), -1.5, np.float32),
            versions=np.zeros(len(ids), np.int32),
            loss_weight=0.0,
            advantage=(1.0, -0.5, 0.3)[sample],
        )
        for group, problem in enumerate(["What is 3 + 4?", "Add three and four, please."])
        for sample, answer in enumerate(answers)
    ]


def logprobs_of(model, row):
    """Log-probabilities of a row's response, through transformers alone."""
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()
    logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)
    return torch.stack([logprobs[len(row.prompt_ids) + t - 1, token] for t, token in enumerate(row.token_ids)])


def test_the_end_token_is_the_files_and_a_response_ends(model):
    loaded = load_model(model, device="cpu")
    assert loaded.packed
    assert loaded.tokenizer.decode(list(loaded.stop_token_ids)) == "<|im_end|>"
    plain = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.tensor([chat(loaded.tokenizer, "What is 3 + 4?")])
    made = plain.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)[
        0, ids.shape[1] :
    ]
    assert made[-1] == loaded.stop_token_ids[0]
    assert "7" in loaded.tokenizer.decode(made)


def test_one_optimizer_step_in_float64_is_torchs_on_the_loss_written_out(model):
    """Packed rows that share prompts, against plain transformers a row at a time: log-probabilities through the loss,
    the gradient's norm, and every weight after AdamW."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = make_rows(tokenizer)
    tokens = sum(len(row.token_ids) for row in rows)
    rows = [replace(row, loss_weight=1 / tokens) for row in rows]
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-4, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2)
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        r = torch.exp(logprobs_of(plain, row) - torch.from_numpy(row.sampler_logprobs).double())
        total = total - torch.minimum(r * row.advantage, r.clamp(0.8, 1.28) * row.advantage).sum()
    total = total / tokens
    total.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in plain.parameters()))
    for p in plain.parameters():
        p.grad *= min(1.0, 0.3 / norm)
    adamw.step()
    adamw.zero_grad()
    del adamw
    settings = schema.LearnerSection(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2, max_grad_norm=0.3)
    loaded = load_model(model, dtype=torch.float64, device="cpu", attention_mode="packed")
    learner = LearnerHere(loaded, clip_objective(low=0.2, high=0.28), settings, 1.0)
    metrics, _ = learn_step(learner, [rows], 1e-4)
    assert metrics["train/loss"] == pytest.approx(total.item(), abs=1e-5)
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    for (name, found), expected in zip(learner.loaded.model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-6, msg=name)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("bfloat16", 0.3)])
def test_log_probabilities_are_those_of_plain_transformers(model, dtype, most):
    loaded = load_model(model, dtype=dtype, device="cpu", attention_mode="packed")
    learner = LearnerHere(loaded, clip_objective(low=0.2, high=0.28), schema.LearnerSection(), 1.0)
    rows = make_rows(loaded.tokenizer)
    found = learner.logprobs(rows).result()
    plain = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for row, logprobs in zip(rows, found, strict=True):
            assert np.abs(logprobs - logprobs_of(plain, row).numpy()).max() < most


def test_a_window_of_attention_and_a_large_vocabulary_are_those_of_plain_transformers(gemma):
    """Gemma's layers see 512 tokens, every sixth all: log-probabilities and the gradient's norm behind a prompt that is
    longer, shared by two responses."""
    loaded = load_model(gemma, device="cpu", attention_mode="packed")
    tokenizer, window = loaded.tokenizer, loaded.model.config.sliding_window
    numbers = tokenizer("Count: " + " ".join(map(str, range(400))))["input_ids"]
    prompts = [numbers[: window + 60], tokenizer("The capital of France is")["input_ids"]]
    responses = [(0, 0, " 201 202 203", 1.0), (0, 1, " and so on.", -0.5), (1, 0, " Paris.", 0.7)]
    rows = [
        Row(
            group=group,
            sample=sample,
            prompt_ids=np.array(prompts[group]),
            token_ids=(ids := np.array(tokenizer(text, add_special_tokens=False)["input_ids"])),
            loss_mask=np.ones(len(ids), np.bool_),
            sampler_logprobs=np.full(len(ids), -2.0, np.float32),
            versions=np.zeros(len(ids), np.int32),
            loss_weight=0.1,
            advantage=advantage,
        )
        for group, sample, text, advantage in responses
    ]
    learner = LearnerHere(loaded, clip_objective(low=0.2, high=0.28), schema.LearnerSection(), 1.0)
    found = learner.logprobs(rows).result()
    plain = AutoModelForCausalLM.from_pretrained(gemma, attn_implementation="eager")
    total = torch.zeros(())
    for row, logprobs in zip(rows, found, strict=True):
        expected = logprobs_of(plain, row)
        np.testing.assert_allclose(logprobs, expected.detach().numpy(), atol=1e-3)
        r = torch.exp(expected - torch.from_numpy(row.sampler_logprobs))
        total = total - 0.1 * torch.minimum(r * row.advantage, r.clamp(0.8, 1.28) * row.advantage).sum()
    total.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in plain.parameters()))
    metrics, _ = learn_step(learner, [rows], 1e-6)
    assert metrics["train/loss"] == pytest.approx(total.item(), abs=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-3)


def test_killed_and_resumed_it_ends_with_the_same_bits(folder):
    dapo("train", folder / "recipe.yaml", "model.dtype=bfloat16", "run.name=whole", own_process=True)
    arguments = command("train", folder / "recipe.yaml", "model.dtype=bfloat16", "run.name=killed")
    with subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and not (folder / "killed/checkpoints/step_000001").is_dir():
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    assert not (folder / "killed/checkpoints/step_000003").is_dir(), "it ended before it was killed"
    dapo("train", "--resume", folder / "killed", own_process=True)
    whole, killed = (
        [without_clock(row) for row in read_metrics(folder / name / "metrics.jsonl")] for name in ("whole", "killed")
    )
    assert killed == whole
    files = [
        next((folder / name / "checkpoints/step_000003/learner").glob("*.safetensors")) for name in ("whole", "killed")
    ]
    first, second = map(load_file, files)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "settings", [["rollout.engines=2"], ["rollout.engines=1", "rollout.max_staleness=1"]], ids=["pool", "overlap"]
)
def test_engines_of_their_own_in_bfloat16(folder, settings):
    """The learner and each engine are processes with passes of their own, which differ by bfloat16's rounding."""
    name = settings[-1].rpartition(".")[2].replace("=", "_")
    dapo(
        "train",
        folder / "recipe.yaml",
        "model.dtype=bfloat16",
        f"run.name={name}",
        "trainer.steps=2",
        *settings,
        own_process=True,
    )
    assert read_metrics(folder / name / "metrics.jsonl")[-1]["step"] == 2


def test_an_adapter_is_trained_and_read_by_peft(folder, model):
    from peft import PeftModel

    dapo(
        "train",
        folder / "recipe.yaml",
        "model.lora.rank=4",
        "run.name=lora",
        "trainer.steps=1",
        "learner.learning_rate=1e-3",
        own_process=True,
    )
    dapo("export", folder / "lora", folder / "adapter", "--adapter", own_process=True)
    dapo("export", folder / "lora", folder / "merged", own_process=True)
    base = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.tensor([chat(AutoTokenizer.from_pretrained(folder / "merged"), "What is 3 + 4?")])
    with torch.no_grad():
        untrained = base(ids).logits
        tuned = PeftModel.from_pretrained(base, folder / "adapter")(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(folder / "merged")(ids).logits
    assert not torch.equal(untrained, tuned)
    torch.testing.assert_close(merged, tuned, rtol=0, atol=1e-3)


_MEASURE = """
import sys
from dapo.cli.main import main
from dapo.observe.spans import peak_rss_mib
code = main(sys.argv[1:])
print("PEAK", int(peak_rss_mib() * 2**20))
raise SystemExit(code)
"""
_UNITS = {"MiB": 2**20, "GiB": 2**30}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_that_check_estimates_is_near_what_a_run_takes(folder, dtype):
    asked = [str(folder / "recipe.yaml"), f"model.dtype={dtype}"]
    said = re.search(r"together about ([\d.,]+) (\wiB)", dapo("check", *asked, own_process=True).stdout)
    estimated = float(said[1].replace(",", "")) * _UNITS[said[2]]
    run = [
        sys.executable,
        "-c",
        _MEASURE,
        "train",
        *asked,
        f"run.name=memory_{dtype}",
        "trainer.steps=1",
        "checkpoint.every=0",
    ]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, check=True)
    peak = int(re.search(r"PEAK (\d+)", done.stdout)[1])
    assert 0.5 * peak < estimated < 1.6 * peak, f"{estimated / 2**30:.2f} of {peak / 2**30:.2f} GiB"
