"""``dapo init`` with a model that is here: what it asks, what it rewards, and sizes that fit the machine."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizer_families import family
from transformers import AutoConfig

from dapo.cli import check_machine, init_sizes
from dapo.cli.init import Wanted, write_recipe
from dapo.cli.init_form import equation
from dapo.cli.main import main
from dapo.config import Recipe, load_recipe
from dapo.config.schema import Reward
from dapo.data import prepare
from dapo.data.answers import answers_read
from dapo.errors import DataError, RecipeError
from dapo.rewards import last_number, math, simple

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
GIB = 2**30
SIZES = {  # as the published configurations have them, which make so many parameters
    "135M": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "intermediate_size": 1536},
    "1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 8960},
    "7B": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008},
}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without a GPU and with 2 cores and 24 GiB, whose products reach 10^11 operations a second of a thread.

    Returns a function that changes memory and speed.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(check_machine, "core_count", lambda: 2)

    def set_(memory: int = 24 * GIB, speed: float = 1e11) -> None:
        monkeypatch.setattr(check_machine, "memory_size", lambda: memory)
        monkeypatch.setattr(check_machine, "_product_rate", lambda *_: speed)

    set_()
    return set_


def model(folder: Path, size: str = "135M", chats: bool = True) -> str:
    """A published model's folder without its weights; its tokenizer has a token for each byte."""
    shape = SIZES[size] | {"vocab_size": 49152, "max_position_embeddings": 2048, "eos_token_id": 1}
    AutoConfig.for_model("llama", tie_word_embeddings=True, **shape).save_pretrained(folder)
    tokenizer = family("bytes")
    tokenizer.chat_template = TEMPLATE if chats else None
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


def write(name: str, rows: list[dict[str, Any]]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def sums(seed: int, count: int = 60) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    pairs = [(draw.randint(2, 99), draw.randint(2, 99)) for _ in range(count)]
    return [{"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]


def made(model: str, rows: list[dict[str, Any]], **wanted: Any) -> Recipe:
    held_out = write("test.jsonl", sums(2, 40))
    lines = write_recipe(
        Wanted("run", model, write("train.jsonl", rows), held_out, **wanted), Path("run.yaml"), force=True
    )
    assert lines
    return load_recipe("run.yaml").recipe


@pytest.mark.parametrize(("size", "memory"), [("135M", 4), ("1.5B", 10), ("1.5B", 64), ("7B", 64)])
def test_a_recipe_fits_the_machine_and_passes_its_own_check(machine, tmp_path, capsys, size, memory):
    machine(memory * GIB)
    made(model(tmp_path / "m", size), sums(1))
    capsys.readouterr()
    assert main(["check", "run.yaml"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("run.yaml: good"), told


def test_a_model_that_fits_with_no_setting_is_refused_with_both_sizes(machine, tmp_path):
    machine(8 * GIB)
    with pytest.raises(RecipeError, match=r"takes \d\d\.\d GiB at the least.*this machine has 8\.0 GiB"):
        made(model(tmp_path / "m", "7B"), sums(1))
    assert not Path("run.yaml").exists()


def test_sizes_shrink_until_the_run_takes_an_hour(machine, tmp_path):
    folder, found = model(tmp_path / "m"), []
    for speed in (1e12, 1e11, 1e10, 3e9):
        machine(speed=speed)
        recipe = made(folder, sums(1))
        found.append(recipe.trainer.steps * recipe.rollout.prompts_per_step * recipe.rollout.group_size)
    assert found == sorted(found, reverse=True)
    assert found[0] == 30 * 8 * 16
    assert found[-1] < found[0] / 4
    asked = made(folder, sums(1), steps=7)
    assert (asked.trainer.steps, asked.rollout.prompts_per_step) == (7, 2)


def test_a_run_of_days_is_refused(machine, tmp_path):
    machine(speed=1e7)
    with pytest.raises(RecipeError, match=r"would take about \d+ h"):
        made(model(tmp_path / "m"), sums(1))


def test_a_machine_without_a_gpu_gets_settings_of_its_own(machine, tmp_path):
    recipe = made(model(tmp_path / "m"), sums(1))
    assert recipe.model.device == "cpu"
    assert recipe.model.lora.rank is None
    assert recipe.learner.learning_rate == 6e-6
    assert recipe.algorithm.clip.high == 0.4
    assert recipe.rollout.max_response_tokens <= 32
    assert recipe.algorithm.overlong_punishment.cache_length < recipe.rollout.max_response_tokens
    assert recipe.data.max_prompt_tokens <= 256
    assert recipe.validation.limit is not None
    text = Path("run.yaml").read_text()
    assert "vllm" not in text
    assert "activation_checkpointing" not in text


def test_an_adapter_is_taken_where_all_weights_do_not_fit(machine, tmp_path):
    machine(10 * GIB)
    recipe = made(model(tmp_path / "m", "1.5B"), sums(1))
    assert recipe.model.lora.rank
    assert recipe.learner.learning_rate == pytest.approx(1e-5)  # ten times that of all weights


@pytest.mark.parametrize(("size", "memory", "adapter"), [("1.5B", 80, False), ("7B", 48, True)])
def test_a_gpu_holds_all_weights_or_an_adapter(machine, tmp_path, monkeypatch, size, memory, adapter):
    card = SimpleNamespace(name="a card", total_memory=memory * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    recipe = made(model(tmp_path / "m", size), sums(1))
    assert (recipe.model.lora.rank is not None) == adapter
    assert (recipe.model.device, recipe.model.dtype) == ("auto", "bfloat16")
    assert recipe.rollout.prompts_per_step == 32


@pytest.mark.parametrize("fast", [True, False])
def test_bfloat16_is_taken_where_the_processor_multiplies_it_fast(machine, tmp_path, monkeypatch, fast):
    from dapo.models import precision

    monkeypatch.setattr(precision, "product_rate", lambda name, *_: 2.0 if (name == "bfloat16") == fast else 1.0)
    assert made(model(tmp_path / "m"), sums(1)).model.dtype == ("bfloat16" if fast else "float32")


WORDS = [{"question": f"The colour of {n} apples and {n + 1} pears?", "answer": "green"} for n in range(40)]
FORMULAS = [{"problem": f"Solve $x^2 = {n}$.", "answer": rf"\sqrt{{{n}}}"} for n in range(40)]
RIDDLES = [{"question": f"Tom had {n} and {n + 3} and lost 2 of 7. How many?", "answer": str(n)} for n in range(40)]


@pytest.mark.parametrize(
    ("rows", "kind", "response"),
    [
        (sums(1), "last_number", None),
        (RIDDLES, "last_number", "The answer is 0."),
        (WORDS, "exact", "Answer: green"),
        (FORMULAS, "math", r"Answer: \sqrt{0}"),
    ],
)
@pytest.mark.parametrize("chats", [True, False])
def test_a_small_model_gets_a_worked_example_that_its_reward_calls_right(
    machine, tmp_path, rows, kind, response, chats
):
    recipe = made(model(tmp_path / "m", chats=chats), rows)
    (reward,), shots = recipe.rewards, recipe.data.few_shot
    assert reward.kind == kind
    assert response in (None, shots[0].response.strip())
    data = prepare(recipe.data, family_with(chats), answers=answers_read(recipe))
    assert data.report.train[0].in_few_shot == len(shots) >= 1
    for shot in shots:
        (gold,) = (row["answer"] for row in rows if shot.problem in row.values())
        assert accuracy_of(reward, shot.response, gold) == 1.0
        assert all(shot.problem in prompt.text and shot.problem != prompt.problem for prompt in data.train)
        assert len(family("bytes")(shot.response)["input_ids"]) < recipe.rollout.max_response_tokens
    assert bool(recipe.rollout.stop) is not chats  # a base model has no token that ends a response here


def accuracy_of(reward: Reward, response: str, gold: str) -> float:
    if reward.kind == "math":
        return math.accuracy(response, gold)
    if reward.kind == "last_number":
        return last_number.judge(last_number.read_last_number(response), gold, 0.0)
    return simple.equals(simple.find_answer(response, simple.compile_pattern(str(reward.pattern), "exact")), gold)


def family_with(chats: bool) -> Any:
    tokenizer = family("bytes")
    tokenizer.chat_template = TEMPLATE if chats else None
    return tokenizer


def test_examples_show_each_operation(machine, tmp_path):
    rows = [*sums(1), *({"problem": f"What is {n} - {n - 3}?", "answer": "3"} for n in range(20, 80))]
    random.Random(3).shuffle(rows)
    shots = made(model(tmp_path / "m"), rows).data.few_shot
    assert {sign for shot in shots for sign in "+-*/" if sign in shot.response} == {"+", "-"}


def test_long_problems_are_sampled_closer_to_the_best_response(machine, tmp_path):
    folder = model(tmp_path / "m")
    assert made(folder, sums(1)).rollout.temperature == 1.0
    told = [row | {"problem": f"On a sunny day in the market of the old town: {row['problem']}"} for row in sums(1)]
    recipe = made(folder, told)
    assert recipe.rollout.temperature == recipe.validation.temperature < 1.0


def test_a_larger_model_is_asked_for_a_box(machine, tmp_path):
    machine(64 * GIB)
    recipe = made(model(tmp_path / "m", "1.5B"), sums(1))
    assert recipe.rewards[0].kind == "math"
    assert "boxed" in (recipe.data.instruction or "")
    assert not recipe.data.few_shot


@pytest.mark.parametrize(
    ("asks", "mark"), [('Output the answer after "####".', "#### "), (r"Use \boxed{}.", r"\boxed{")]
)
def test_problems_that_say_how_to_answer_get_no_other_instruction(machine, tmp_path, asks, mark):
    rows = [row | {"problem": f"{row['problem']} {asks}"} for row in sums(1)]
    recipe = made(model(tmp_path / "m"), rows, reward="math")
    assert recipe.data.instruction is None
    assert mark in recipe.data.few_shot[0].response


def test_long_texts_as_gold_answers_are_refused_with_what_judges_them(machine, tmp_path):
    rows = [{"instruction": f"Tell a story of {n} bears.", "output": "Once upon a time. " * 20} for n in range(9)]
    for same in (rows, [{"problem": row["instruction"], "answer": row["output"]} for row in rows]):
        with pytest.raises(DataError, match=r"--reward package\.module:function"):
            made(model(tmp_path / "m"), same)
    assert made(model(tmp_path / "m"), rows, reward="mine:score").rewards[0].function == "mine:score"


@pytest.mark.parametrize(
    ("problem", "answer", "expected"),
    [
        ("What is 12 + 5?", "17", "12 + 5 = 17"),
        ("He had 3 of 12 left. How many went?", "9", "12 - 3 = 9"),
        ("4 boxes of 6 eggs.", "24", "4 * 6 = 24"),
        ("Share $1,200 among 3.", "400", "1200 / 3 = 400"),
        ("She had 32, her sister 42; they ate 35.", "39", "32 + 42 - 35 = 39"),
        ("6 birds, 4 more birds and 8 storks: how many birds?", "10", None),  # 6 + 4, or 6 - 4 + 8
        ("2 and 2.", "4", None),  # a sum, or a product
        ("5 of 7 and 9.", "4", None),
        ("One number: 5.", "5", None),
        ("12 and 5.", "blue", None),
        ("12 and 0.", "12", None),  # plus or minus
    ],
)
def test_the_equation_of_a_problem_by_hand(problem, answer, expected):
    assert equation(problem, answer) == expected


def test_the_rate_follows_the_size():
    rates = [init_sizes.rate_of(size, builtin=False) for size in (10_000_000, 135_000_000, 500_000_000, 7_000_000_000)]
    assert rates == [1e-4, 6e-6, 1e-6, 1e-6]
