"""A supervised start through the command line: from examples to a model, from there by reward, and back to examples."""

import json
import re
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from small_run import dapo

import dapo as package
from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import load_state
from dapo.data.signed_sum import make_problem, sloppy_solution
from dapo.models.tiny import SIGNED_SUM_WORDS, make_tiny_model
from dapo.observe.metrics import read_metrics, unknown_keys, without_clock
from dapo.observe.pictures import write_curve
from dapo.observe.run_folder import RunFolder
from dapo.observe.status import read_status

TEMPLATE = "{% for m in messages %}{{ m.content }} {% if m.role == 'assistant' %}<eos> {% endif %}{% endfor %}"
RECIPE = """
run: {{dir: {folder}/runs, name: two, seed: 3}}
model: {{path: {folder}/model}}
data:
  train: [{{task: signed_sum, seed: 1, size: 64, options: {{max_terms: 3}}}}]
  validation: [{{task: signed_sum, name: held_out, seed: 2, size: 6, options: {{max_terms: 3}}}}]
rewards: [{{name: accuracy, kind: regex, pattern: '=1'}}]
rollout: {{prompts_per_step: 4, group_size: 4, max_response_tokens: 16}}
algorithm: {{overlong_filtering: false, dynamic_sampling: {{cap: {{groups: 40}}}}}}
learner: {{learning_rate: 1.0e-3}}
sft:
  train: [{{path: {folder}/examples.jsonl}}]
  validation: [{{path: {folder}/held.jsonl}}]
  epochs: 2
  batch_size: 16
  learning_rate: 1.0e-2
  warmup: 2
  schedule: constant
  every: 2
trainer: {{steps: 2}}
validation: {{samples: 2}}
checkpoint: {{every: 2, keep: 9}}
logging: {{console: plain}}
"""


def weights(run, step):
    (file,) = (run / "checkpoints" / f"step_{step:06d}" / "learner").glob("*.safetensors")
    return {n.removeprefix("model/"): tensor for n, tensor in load_file(file).items() if n.startswith("model/")}


def rows(run):
    return [without_clock(row) for row in read_metrics(run / "metrics.jsonl")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    make_tiny_model(folder / "model", "llama", seed=0)
    for name, seed, count in (("examples", 7, 60), ("held", 8, 8)):
        problems = [make_problem(seed, n, max_terms=3) for n in range(count)]
        careful = [sloppy_solution(p, Random(0), misread_probability=0.0, rambler_share=0.0) for p in problems]
        lines = [json.dumps({"prompt": p.prompt, "response": text}) for p, text in zip(problems, careful, strict=True)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    dapo("sft", folder / "recipe.yaml", "checkpoint.best=validation/loss")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return folder / "runs" / "two-sft"


def test_a_run_folder_with_losses_a_curve_and_a_model(run):
    found = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in found] == list(range(9))  # the start, and 2 epochs of 60 examples by 16
    assert unknown_keys(key for row in found for key in row) == []
    assert found[-1]["validation/loss"] < found[0]["validation/loss"] - 0.5
    assert found[-1]["validation/held/loss"] == found[-1]["validation/loss"]
    assert (found[-1]["sft/epoch"], found[-1]["sft/examples"]) == (2.0, 8)
    assert (read_status(run / "status.json").state, read_status(run / "status.json").steps) == ("finished", 8)
    assert write_curve(RunFolder(run)).stat().st_size > 10_000
    card = (run / "export" / "README.md").read_text()
    assert "supervised, 16 examples a step" in card
    assert "Held-out loss, nats a token:" in card
    log = (run / "log.txt").read_text()
    assert "learnt" in log
    assert "step 8/8  loss" in log


def test_its_report_speaks_of_losses(run):
    from dapo.report.outcome import sentences_of, tiles_of
    from dapo.report.reader import read_run
    from dapo.report.rules import advice_of

    found, measured = read_run(run), read_metrics(run / "metrics.jsonl")
    first, last = (f"{row['validation/loss']:.3g}" for row in (measured[0], measured[-1]))
    said = " ".join(sentences_of(found))
    assert f"Held-out loss went from {first} to {last} nats a token in 8 steps" in said
    assert "accuracy" not in said
    assert advice_of(found) == []
    assert "8 of 8" in " ".join(f"{tile['value']} {tile['detail']}" for tile in tiles_of(found))


def test_a_run_that_is_left_in_the_middle_goes_on_to_the_bit(folder, run):
    parts, whole = folder / "runs" / "parts", run
    dapo("sft", folder / "recipe.yaml", "run.name=parts", "sft.export=false", "trainer.max_hours=1.0e-9", expect=75)
    assert CheckpointStore(parts / "checkpoints").steps() == [0]
    dapo("sft", "--resume", parts, "trainer.max_hours=null", "sft.steps=3")
    assert not (parts / "export").exists()
    dapo("train", "--resume", parts, "sft.steps=null")  # a run knows what it does
    ours, theirs = weights(parts, 8), weights(whole, 8)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    kept = ("train/loss", "train/grad_norm", "sft/epoch", "train/learning_rate")
    assert [[row.get(k) for k in kept] for row in rows(parts)] == [[row.get(k) for k in kept] for row in rows(whole)]


@pytest.mark.whole
def test_training_by_reward_goes_on_from_it_and_its_correct_responses_are_examples(folder, run, tmp_path):
    dapo("train", folder / "recipe.yaml", f"model.path={run / 'export'}")
    trained = folder / "runs" / "two"
    state = load_state(trained / "checkpoints" / "step_000002")
    assert state["counters"]["training_steps"] == 2
    said = dapo("rollouts", trained, "--correct", "--out", tmp_path / "right.jsonl", "--per-prompt", "2").stderr
    lines = [json.loads(line) for line in (tmp_path / "right.jsonl").read_text().splitlines()]
    assert f"{len(lines):,} of " in said
    assert lines
    assert all(set(line) == {"prompt", "response"} and "=1" in line["response"] for line in lines)
    assert all(line["prompt"].endswith("=") for line in lines)
    # rejection sampling is two commands
    again = ["run.name=again", f"sft.train=[{{path: {tmp_path / 'right.jsonl'}}}]", "sft.validation=[]", "sft.steps=2"]
    dapo("sft", folder / "recipe.yaml", f"model.path={run / 'export'}", *again)
    first = read_metrics(folder / "runs" / "again" / "metrics.jsonl")[0]
    assert first["step"] == 1
    # as messages, for a model with a chat template; this one's shows what was said, and ends an answer
    dapo("rollouts", trained, "--correct", "--format", "messages", "--out", tmp_path / "chat.jsonl")
    chat = json.loads((tmp_path / "chat.jsonl").read_text().splitlines()[0])["messages"]
    assert [message["role"] for message in chat] == ["user", "assistant"]
    template = ["data.prompt=auto", f"data.chat_template={json.dumps(TEMPLATE)}", "run.name=chat"]
    settings = [*template, f"sft.train=[{{path: {tmp_path / 'chat.jsonl'}}}]", "sft.validation=[]", "sft.steps=1"]
    said = dapo("sft", folder / "recipe.yaml", f"model.path={run / 'export'}", *settings).stdout
    assert "first example: learnt" in said
    # what was not asked for is refused
    assert "exists already" in dapo("rollouts", trained, "--out", tmp_path / "chat.jsonl", expect=2).stderr
    assert "made no responses" in dapo("rollouts", run, "--correct", expect=2).stderr
    shown = json.loads(dapo("rollouts", trained, "--first", "2").stdout.splitlines()[0])
    assert {"accuracy", "step"} <= shown.keys()
    assert shown["step"] == 2


@pytest.mark.whole
def test_an_adapter_is_trained_alone_and_merged_into_the_export(folder):
    settings = ["run.name=lora", "model.lora.rank=4", "sft.steps=3", "sft.warmup=4"]
    short = "warm-up (sft.warmup = 4) takes all 3 steps: the learning rate ends at 0.0075"
    checked = dapo("check", "--sft", folder / "recipe.yaml", *settings).stdout
    assert f"warning: {short}" in checked
    assert re.search(r"learnt  \d+ tokens: \d+ '[-+=]\d+', .*, 1 '<eos>'\n", checked)  # numbers, not only text
    assert short in dapo("sft", folder / "recipe.yaml", *settings).stdout
    made = load_file(folder / "runs" / "lora" / "export" / "model.safetensors")
    base = load_file(folder / "model" / "model.safetensors")
    moved = {name for name in base if not torch.equal(made[name], base[name])}
    assert moved
    assert all("proj" in name for name in moved)
    found = read_metrics(folder / "runs" / "lora" / "metrics.jsonl")
    assert found[-1]["validation/loss"] < found[0]["validation/loss"]  # of the same examples


def test_from_python(folder, tmp_path):
    records = [{"prompt": p, "response": "=1"} for p in SIGNED_SUM_WORDS[:8]]
    run = package.sft(
        {"model": {"path": str(folder / "model")}},
        train=records,
        validation={"held": records[:2]},
        run={"dir": str(tmp_path), "name": "py"},
        sft={"batch_size": 4, "learning_rate": 1e-2, "warmup": 0, "every": 1},
        **{"logging.console": "quiet"},
    )
    assert (run.path.name, run.finished, len(run.metrics)) == ("py-sft", True, 3)
    assert type(run.model()).__name__ == "LlamaForCausalLM"


def test_what_cannot_be_is_refused_before_work(folder):
    recipe = folder / "recipe.yaml"
    assert "sft.train" in dapo("sft", recipe, "sft.train=[]", expect=2).stderr
    said = dapo("sft", recipe, "checkpoint.best=validation/accuracy", expect=2).stderr
    assert "add checkpoint.best=validation/loss" in said
    said = dapo("sft", recipe, "sft.train.0.fields={text: a}", expect=2).stderr
    assert "expected `prompt` and `response`, or `messages` alone" in said
    assert "no such file" in dapo("sft", recipe, "sft.train.0.path=nowhere.jsonl", expect=2).stderr
    said = dapo("train", "--resume", folder / "runs" / "two-sft", "sft.loss_on=last", expect=2).stderr
    assert "sft.loss_on" in said
