"""The recipes for one GPU: valid, and what their comments promise is what `dapo check` computes."""

from __future__ import annotations

import json
import re

import pytest
from quick import quick

from dapo.cli.check_memory import estimate_memory, load_tokenizer_and_facts
from dapo.cli.check_time import CARDS, needed_memory, step_seconds, step_work, time_lines
from dapo.cli.main import main
from dapo.config import load_recipe
from dapo.config.shipped import FOLDER
from dapo.models.tiny import SIGNED_SUM_WORDS, make_word_tokenizer

# config.json of the models as published on the hub; no weight is needed
QWEN2 = {"model_type": "qwen2", "vocab_size": 151936, "tie_word_embeddings": True}
SIZES = {
    "gsm8k_0.5b_1gpu": {**QWEN2, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
                        "num_key_value_heads": 2, "intermediate_size": 4864, "max_position_embeddings": 32768},
    "dapo_math_1.5b_1gpu": {**QWEN2, "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
                            "num_key_value_heads": 2, "intermediate_size": 8960, "max_position_embeddings": 4096},
    "qwen3_1.7b_lora_1gpu": {"model_type": "qwen3", "vocab_size": 151936, "tie_word_embeddings": True,
                             "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
                             "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144,
                             "max_position_embeddings": 40960},
    "qwen2.5_7b_lora_1gpu": {**QWEN2, "vocab_size": 152064, "tie_word_embeddings": False, "hidden_size": 3584,
                             "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
                             "intermediate_size": 18944, "max_position_embeddings": 131072},
    "llama3.2_1b_sft_then_dapo": {"model_type": "llama", "vocab_size": 128256, "tie_word_embeddings": True,
                                  "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
                                  "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
                                  "max_position_embeddings": 131072},
}  # fmt: skip
PARAMETERS = {
    "gsm8k_0.5b_1gpu": 494_032_768,
    "dapo_math_1.5b_1gpu": 1_543_714_304,
    "qwen3_1.7b_lora_1gpu": 1_720_574_976,
    "qwen2.5_7b_lora_1gpu": 7_615_616_512,
    "llama3.2_1b_sft_then_dapo": 1_235_814_400,
}
TEMPLATE = (  # what Qwen3's says of thinking, for a tokenizer of words
    "{% for m in messages %}{{ m.content }} {% endfor %}{% if enable_thinking is defined and not enable_thinking %}"
    "<think> </think> {% endif %}"
)
PROMPT = 200  # tokens; GSM8K's with the instruction have about 150


@pytest.fixture(params=quick(sorted(SIZES), ["gsm8k_0.5b_1gpu"]))
def name(request):
    return request.param


@pytest.fixture
def folder(tmp_path, name):
    """The published model's folder, without weights and with a tokenizer of words."""
    from transformers import AutoConfig

    folder, sizes = tmp_path / "model", dict(SIZES[name])
    AutoConfig.for_model(sizes.pop("model_type"), eos_token_id=1, **sizes).save_pretrained(folder)
    tokenizer = make_word_tokenizer(SIGNED_SUM_WORDS)
    if name.startswith("qwen3"):
        tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def estimated(name, folder):
    recipe = load_recipe(name, [f"model.path={folder}"]).recipe
    _, facts = load_tokenizer_and_facts(recipe)
    assert facts.parameters == PARAMETERS[name]
    return recipe, facts, estimate_memory(recipe, facts, recipe.data.max_prompt_tokens)


def numbers(name, pattern):
    """What the recipe's comment says, thousands commas removed."""
    text = " ".join(line.lstrip("# ") for line in (FOLDER / f"{name}.yaml").read_text().splitlines() if line[:1] == "#")
    return [tuple(part.replace(",", "") for part in found) for found in re.findall(pattern, text)]


def test_the_memory_in_the_comment_is_the_estimate(name, estimated):
    _, _, memory = estimated
    (learning,) = [int(found[0]) for found in numbers(name, r"(\d+)() GiB while learning")]
    assert round(memory.learning / 1024**3) == learning
    for generating, _ in numbers(name, r"(\d+)() GiB while generating"):
        assert round(memory.generating / 1024**3) == int(generating)


def test_the_tokens_and_hours_in_the_comment_are_those_computed(name, estimated):
    recipe, facts, memory = estimated
    work = step_work(recipe, facts, PROMPT)
    ((generated, trained),) = numbers(name, r"generates about ([\d,]+) tokens and trains on ([\d,]+)")
    assert (round(work.generated, -3), round(work.trained, -3)) == (int(generated), int(trained.rstrip(".")))
    told = numbers(name, r"([\d.]+) h on an? ((?:RTX 4090|A100|H100|H200))")
    assert len(told) == 3
    for hours, card_name in told:
        (card,) = [card for card in CARDS if card.name.startswith(card_name)]
        assert card.memory >= needed_memory(memory)
        computed = sum(step_seconds(work, card, facts.parameters)) * recipe.trainer.steps / 3600
        assert computed == pytest.approx(float(hours), rel=0.06, abs=0.06)


def test_the_smallest_card_named_holds_it(name, estimated):
    _, _, memory = estimated
    (least,) = [int(found[0]) for found in numbers(name, r"one GPU of (\d+)() G")]
    assert needed_memory(memory) <= least * 1e9
    assert needed_memory(memory) > least * 1e9 / 2  # and half of it would not do


@pytest.mark.parametrize("name", ["dapo_math_1.5b_1gpu"], indirect=True)
def test_what_is_left_of_the_smallest_card_while_vllm_has_its_share(name, estimated):
    """14 bytes of each of 1.54 billion parameters stay: weights, masters, moments. 24 - 21.6 and 28.8 - 21.6 GB."""
    recipe, _, memory = estimated
    assert memory.resident == 14 * PARAMETERS[name]
    ((kept, left),) = numbers(name, r"the learner keeps (\d+) GiB, which leaves (\d+) GiB")
    ((lower, more),) = numbers(name, r"gpu_memory_utilization=([\d.]+) there; (\d+) GiB are left")
    assert round(memory.resident / 1024**3) == int(kept)
    for share, told in ((recipe.rollout.vllm.gpu_memory_utilization, left), (float(lower), more)):
        assert round((48e9 * (1 - share) - memory.resident) / 1024**3) == int(told)


def test_check_explains_it_offline(name, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers = [{"question": f"1 +{n} = ?", "answer": f"thus\n#### {n + 1}"} for n in range(1, 9)]
    if name.startswith(("dapo", "qwen2.5")):
        answers = [
            {"prompt": [{"role": "user", "content": row["question"]}], "reward_model": {"ground_truth": str(n + 2)}}
            for n, row in enumerate(answers)
        ]
    for file in ("train", "test"):
        own = [row for number, row in enumerate(answers) if (number % 2 == 0) == (file == "train")]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    settings = [f"model.path={folder}", "data.train.0.path=train.jsonl", "data.validation.0.path=test.jsonl"]
    if not name.startswith(("qwen3", "llama")):
        settings.append("data.prompt=raw")
    vllm = load_recipe(name).recipe.rollout.engine == "vllm"
    monkeypatch.setattr("dapo.run.here.missing_package", lambda recipe: "no vLLM" if vllm else None)  # as on a laptop
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 8 * 2**30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["check", name, *settings]) == 3
    told = capsys.readouterr().out
    assert "time on a GPU, by arithmetic" in told
    assert "H200: " in told
    assert "while learning (the engine sleeps)" in told
    assert ("a publish copies" in told) == vllm
    assert ("vLLM takes" in told) == vllm
    if name == "gsm8k_0.5b_1gpu":  # 0.4 of it, by hand
        assert "vLLM takes 40% of a GPU" in told
        assert "10 of 24 GB, 32 of 80 GB, 56 of 141 GB" in told
    first = told.splitlines()[0]
    assert first.startswith(f"{name}: this machine cannot run it")
    assert "\n  not here: it takes about " in told
    assert ("\n  not here: no vLLM\n" in told) == vllm


def test_lines_and_comment_speak_of_the_same_cards(name, estimated):
    recipe, facts, memory = estimated
    text = "\n".join(time_lines(recipe, facts, memory, PROMPT))
    for _, card_name in numbers(name, r"([\d.]+) h on an? ((?:RTX 4090|A100|H100|H200))"):
        assert f"\n{card_name}" in text


def test_the_supervised_start_is_explained_offline(tmp_path, capsys, monkeypatch):
    from transformers import AutoConfig

    monkeypatch.chdir(tmp_path)
    sizes = dict(SIZES["llama3.2_1b_sft_then_dapo"])
    AutoConfig.for_model(sizes.pop("model_type"), eos_token_id=1, **sizes).save_pretrained(tmp_path / "model")
    make_word_tokenizer(SIGNED_SUM_WORDS).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    for file, first in (("train", 1), ("test", 2)):
        lines = [json.dumps({"question": f"1 +{n} = ?", "answer": f"=1 #### {n}"}) for n in range(first, 10, 2)]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines))
    paths = [f"{part}.0.path={part.rpartition('.')[2].replace('validation', 'test')}.jsonl"
             for part in ("data.train", "data.validation", "sft.train", "sft.validation")]  # fmt: skip
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 8 * 2**30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["check", "llama3.2_1b_sft_then_dapo", "--sft", "model.path=model", *paths]) == 3
    told = capsys.readouterr().out
    assert "learnt" in told
    # by hand: 20 bytes of each of 1,235,814,400 parameters are 23.0 GiB; logits of 64 examples of 10 tokens 1.7 GiB
    assert "together about 24.9 GiB; there is no engine" in told
    assert "this machine, without a GPU, has 8.0 GiB" in told
    assert ": dapo sft llama3.2_1b_sft_then_dapo" in told.splitlines()[0]
