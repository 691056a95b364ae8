"""What an exported folder and a checkpoint look like to others: modes, tokenizer, model card."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest
from evaluated import evaluation
from learner_here import LearnerHere
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from dapo.algorithms.objective import clip_objective
from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import save_state
from dapo.config import recipe_from_dict, schema
from dapo.config.yaml_files import RESOLVED
from dapo.errors import CheckpointError
from dapo.models.facts import facts_of
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.observe.evaluations import write_evaluation
from dapo.observe.run_folder import RunFolder
from dapo.run.export import (
    card_rows,
    export,
    model_card,
    public_name,
    tokenizer_class,
    write_generation_config,
    write_model,
)


def learner_of(loaded):
    return LearnerHere(loaded, clip_objective(low=0.2, high=0.28), schema.LearnerSection(), 1.0)


def modes(folder):
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_tensors_are_as_readable_as_the_files_beside_them(tmp_path, mask, mode):
    loaded = load_model(make_tiny_model(tmp_path / "model", "llama"))
    before = os.umask(mask)
    try:
        learner_of(loaded).save(tmp_path / "saved")
        write_model(tmp_path / "out", loaded)
    finally:
        os.umask(before)
    for folder in ("saved", "out"):
        found = modes(tmp_path / folder)
        assert any(name.endswith(".safetensors") for name in found)
        assert set(found.values()) == {mode}, (folder, found)


@pytest.mark.parametrize(
    ("architecture", "expected"), [("llama", "AutoTokenizer"), ("qwen2", "PreTrainedTokenizerFast")]
)
def test_the_class_that_loads_the_tokenizer_as_training_used_it_is_found(tmp_path, architecture, expected):
    loaded = load_model(make_tiny_model(tmp_path / "model", architecture))
    write_model(tmp_path / "out", loaded)
    assert tokenizer_class(tmp_path / "out", loaded) == expected
    loader = {"AutoTokenizer": AutoTokenizer, "PreTrainedTokenizerFast": PreTrainedTokenizerFast}[expected]
    text = "4 +7 -9 ="
    assert loader.from_pretrained(tmp_path / "out").encode(text) == loaded.tokenizer.encode(text)


def card(rows, tokenizer="AutoTokenizer", **model):
    recipe = recipe_from_dict(
        {
            "model": {"path": "owner/base"} | model,
            "data": {"train": [{"task": "signed_sum", "size": 8}]},
            "rewards": [{"name": "accuracy", "kind": "task"}],
        }
    ).recipe
    return model_card("mine", recipe, rows, 60, "against preset dapo:\n  a  1 -> 2\n", tokenizer)


def row(step, accuracy, **more):
    return {
        "step": step,
        "validation/accuracy": accuracy,
        "validation/accuracy_low": accuracy - 0.1,
        "validation/accuracy_high": accuracy + 0.1,
        "validation/problems": 128,
        **more,
    }


def test_a_model_card_tells_recipe_and_result():
    text = card([row(0, 0.25), row(30, 0.5), row(60, 0.75)])
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "`owner/base` trained for 60 steps" in text
    assert "| accuracy, sampled | 25.0% (15.0–35.0) | 75.0% (65.0–85.0) |" in text
    assert "| held-out | step 0 | step 60 |" in text
    assert "unscored" not in text
    assert "  a  1 -> 2" in text
    assert "AutoTokenizer.from_pretrained" in text


def test_a_model_card_hides_neither_unscored_responses_nor_a_tokenizer_that_auto_breaks():
    text = card([row(0, 0.5, **{"validation/unscored": 24})], "PreTrainedTokenizerFast")
    assert "| unscored responses | 24 |" in text
    assert "PreTrainedTokenizerFast.from_pretrained" in text
    assert "AutoTokenizer.from_pretrained" not in text
    assert "not evaluated" in card([])


def test_a_card_of_a_run_without_held_out_results_has_the_accuracy_of_its_training():
    text = card([{"step": 1, "reward/accuracy": 0.25}, {"step": 60, "reward/accuracy": 0.5}])
    assert "training responses: 25.0% in step 1, 50.0% in step 60." in text


def test_an_evaluation_that_the_metrics_lost_is_counted_from_its_responses(tmp_path):
    """metrics.jsonl has step 4 without an accuracy; the file of its evaluation has three of four right."""
    run = RunFolder(tmp_path / "run")
    (run.path / "evaluations").mkdir(parents=True)
    run.metrics.write_text('{"step": 4, "reward/accuracy": 0.5}\n')
    for step in (4, 8):
        write_evaluation(run.evaluation_file(step), step, evaluation([[1.0], [1.0], [1.0], [0.0]]))
    (row,) = card_rows(run, 4)
    assert (row["step"], row["validation/accuracy"], row["validation/problems"]) == (4, 0.75, 4)
    text = card([row])
    assert "| accuracy, sampled | 75.0% |" in text
    assert "Sampled over 4 problems." in text
    assert "95 %" not in text


def test_a_model_that_a_supervised_run_left_is_named_by_what_was_trained(tmp_path):
    run = tmp_path / "words-sft"
    (run / "export").mkdir(parents=True)
    given = {"model": {"path": "owner/base"}, "data": {"train": [{"task": "signed_sum"}]}}
    (run / RESOLVED).write_text(recipe_from_dict(given).resolved)
    assert public_name(str(run / "export")) == ("owner/base", True)
    text = card([], path=str(run / "export"))
    assert "base_model: owner/base" in text
    assert "`owner/base`, after the supervised run `words-sft`, trained for 60 steps" in text


class Asked:
    """A tokenizer and a model that keep what they were asked for."""

    def __init__(self):
        self.calls = []

    def apply_chat_template(self, messages, **options):
        self.messages, self.options = messages, options
        return "<chat>"

    def __call__(self, prompt, **options):
        self.prompt = prompt
        return {"input_ids": np.zeros((1, 2))}

    def generate(self, **options):
        self.options_of_model = options
        return np.zeros((1, 3))

    def decode(self, tokens, **options):
        return ""


def asked(style, data=None, rollout=None):
    """What the lines of a model card do, run as a reader runs them."""
    recipe = recipe_from_dict(
        {
            "model": {"path": "owner/base"},
            "data": {"train": [{"task": "signed_sum", "size": 8}], **(data or {})},
            "rollout": rollout or {},
        }
    ).recipe
    here = 'against preset dapo:\n  run.dir  "runs" -> "/home/me"\n  run.seed  0 -> 1'
    text = model_card("mine", recipe, [], 60, here, "AutoTokenizer", style)
    code = text.partition("```python\n")[2].partition("```")[0]
    double = Asked()
    exec(code.partition('from_pretrained("mine")\n\n')[2], {"tokenizer": double, "model": double})
    return double, text


def test_a_model_card_asks_as_training_did():
    text = "Think ``` first.\n'\"\\"
    data = {"system_prompt": text, "instruction": "Be brief.", "response_prefix": "<think>"}
    double, card = asked("chat", data | {"chat_template_kwargs": {"thinking": True}}, {"stop": ["</a>", "`"]})
    assert double.messages == [
        {"role": "system", "content": text},
        {"role": "user", "content": "Write your problem here.\n\nBe brief."},
    ]
    assert double.options == {"tokenize": False, "add_generation_prompt": True, "thinking": True}
    assert double.prompt == "<chat><think>"
    assert double.options_of_model["stop_strings"] == ["</a>", "`"]
    assert double.options_of_model["tokenizer"] is double
    assert "`generate` needs `tokenizer=tokenizer`" in card
    assert ("/home/me" in card, "run.seed" in card) == (False, True)
    assert [double.options_of_model[key] for key in ("top_p", "top_k")] == [1.0, 0]
    double, _ = asked("template", {"prompt": "template", "prompt_template": "Q: {problem}\nA:"})
    assert double.prompt == "Q: Write your problem here.\nA:"
    assert "stop_strings" not in double.options_of_model
    assert asked("raw")[0].prompt == "Write your problem here."


def test_a_base_model_has_its_public_name(tmp_path):
    assert public_name("owner/base") == ("owner/base", True)
    assert public_name("builtin/signed-sum") == ("builtin/signed-sum", False)
    cached = tmp_path / "models--Qwen--Qwen2.5-0.5B" / "snapshots" / "abc"
    assert public_name(str(cached)) == ("Qwen/Qwen2.5-0.5B", True)
    copy = tmp_path / "copy"
    copy.mkdir()
    assert public_name(str(copy)) == ("copy", False)
    (copy / "config.json").write_text('{"_name_or_path": "Qwen/Qwen3-8B"}')
    assert public_name(str(copy)) == ("Qwen/Qwen3-8B", True)
    (copy / "config.json").write_text('{"_name_or_path": "/home/me/models/x"}')
    assert public_name(str(copy)) == ("copy", False)
    assert "base_model: owner/base" in card([])


def test_the_generation_config_holds_what_ends_a_response(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path / "model", "llama"))
    write_model(tmp_path / "out", loaded)
    recipe = recipe_from_dict(
        {
            "model": {"path": "owner/base"},
            "data": {"train": [{"task": "signed_sum"}]},
            "rollout": {"stop": ["</answer>"], "stop_token_ids": [1, 2]},
        }
    ).recipe
    write_generation_config(tmp_path / "out", recipe, facts_of(loaded))
    config = GenerationConfig.from_pretrained(tmp_path / "out")
    assert (config.stop_strings, config.eos_token_id) == (["</answer>"], [1, 2])
    assert config.do_sample is True
    assert (config.top_p, config.top_k) == (1.0, 0)  # of None transformers makes 50


def test_a_folder_that_cannot_be_made_is_refused_before_a_model_is_loaded(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RESOLVED).touch()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/out cannot be made: Not a directory; give another folder"):
        export(tmp_path / "run", tmp_path / "file" / "out")


def test_the_base_model_is_named_once(tmp_path, monkeypatch, capsys):
    """Facts come before weights, so that another model is refused early; both are of one built-in model."""
    base = make_tiny_model(tmp_path / "base", hidden=16, layers=1, heads=2, ffn=16)
    monkeypatch.setattr("dapo.run.model.find_builtin_model", lambda *args, **options: base)
    loaded = load_model(base)
    run = tmp_path / "run"
    given = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}
    recipe = recipe_from_dict({**given, "run": {"name": "run", "dir": str(tmp_path)}})
    run.mkdir()
    (run / RESOLVED).write_text(recipe.resolved)

    def write(folder):
        save_state({"fingerprint": loaded.fingerprint}, folder)
        learner_of(loaded).save(folder / "learner")
        return ()  # nobody describes them: the store looks at them itself

    CheckpointStore(run / "checkpoints").save(3, write)
    assert export(run, tmp_path / "out") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "base model" in line] == [f"the warmed-up base model is {base}"]
    assert any(line.startswith("load it with AutoModelForCausalLM") for line in said)
