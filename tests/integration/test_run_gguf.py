"""A GGUF file through the command line: checked, trained, resumed, exported, evaluated."""

from importlib.util import find_spec

import pytest

if find_spec("gguf") is None:
    pytest.skip("needs the package gguf", allow_module_level=True)

from safetensors.torch import load_file
from small_run import dapo
from tiny_gguf import tiny_llama, write_gguf

from dapo.observe.metrics import read_metrics
from dapo.observe.run_folder import RunFolder

RECIPE = """
run: {{dir: {folder}/runs, name: tiny}}
model: {{path: Tiny.gguf}}
data:
  train: [{{path: {folder}/train.jsonl}}]
  validation: [{{path: {folder}/held.jsonl, name: held_out}}]
  prompt: chat
rewards: [{{name: accuracy, kind: regex, pattern: '[a-m]'}}]
rollout: {{prompts_per_step: 2, group_size: 4, max_response_tokens: 4}}
algorithm: {{overlong_filtering: false}}
learner: {{learning_rate: 1.0e-3}}
validation: {{samples: 1}}
trainer: {{steps: 2}}
checkpoint: {{every: 1, keep: 9}}
logging: {{console: plain}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "Tiny.gguf", tiny_llama())
    for name, problems in (("train", "abcdefgh"), ("held", "xyz")):
        (folder / f"{name}.jsonl").write_text(
            "\n".join(f'{{"problem": "hello {p}", "answer": "he"}}' for p in problems)
        )
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    return folder


def test_a_run_from_a_file_resumes_exports_and_is_compared(folder):
    checked = dapo("check", folder / "recipe.yaml")  # the file is found beside the recipe
    assert "dequantising Tiny.gguf once" in checked.stderr
    dapo("train", folder / "recipe.yaml", "trainer.steps=1")
    run = RunFolder(folder / "runs" / "tiny")
    assert f"path: {folder}/Tiny.gguf" in run.resolved_recipe.read_text()  # what was given, not where it was put
    dapo("train", "--resume", run.path, "trainer.steps=2", cwd=folder.parent)
    assert [row["step"] for row in read_metrics(run.metrics)][-1] == 2
    dapo("export", run.path, folder / "out")
    assert load_file(folder / "out" / "model.safetensors")["model.layers.1.mlp.up_proj.weight"].shape == (96, 64)
    assert "`Tiny.gguf` trained for 2 steps" in (folder / "out" / "README.md").read_text()
    evaluated = dapo(
        "evaluate", folder / "Tiny.gguf", "--data", folder / "held.jsonl", "rollout.max_response_tokens=4", expect=None
    )
    assert "Tiny" in evaluated.stdout


def test_a_file_that_is_not_there_is_refused_before_work(folder):
    refused = dapo("check", folder / "recipe.yaml", "model.path=./Tinny.gguf", expect=2)
    assert "no such file" in refused.stderr + refused.stdout
    assert "did you mean `Tiny.gguf`?" in refused.stderr + refused.stdout


def test_init_looks_into_the_file(folder):
    own = ["--reward", "package.module:function"]  # without an instruction: this model has few positions
    done = dapo("init", "mine", "--model", "Tiny.gguf", "--data", "train.jsonl", *own, cwd=folder)
    assert "0.1 million parameters" in done.stdout
    assert "path: Tiny.gguf" in (folder / "mine.yaml").read_text()
