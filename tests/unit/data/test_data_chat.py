"""What a chat template gets beside the problem: its variables, tools, examples, and how the response begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_data_load import WordTokenizer, jsonl

from dapo.config.load import dump_resolved, load_recipe, recipe_from_dict
from dapo.config.resume import check_resume
from dapo.config.schema import Data, TrainSource
from dapo.data import EpochStream, prepare
from dapo.data.render import seen_lines
from dapo.errors import DataError, RecipeError
from dapo.models.decode import make_decode
from dapo.models.tiny import make_word_tokenizer
from dapo.run.model import make_tokenizer

TEMPLATE = (
    "<s> {% if tools %}[tools] {{ tools | tojson }} {% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if loud %} LOUD{% endif %}{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


@pytest.fixture
def one(tmp_path: Path) -> TrainSource:
    return jsonl(tmp_path / "one.jsonl", ("1+1?", "2"))


def real(template: str | None = TEMPLATE) -> Any:
    """A tokenizer of transformers over a few words."""
    tokenizer = make_word_tokenizer(["1+1?", "2+2?", "[user]", "[assistant]", "LOUD", "So", "so", "2", "4"])
    tokenizer.chat_template = template
    return tokenizer


def text_of(data: Data, tokenizer: Any) -> str:
    (prompt,) = prepare(data, tokenizer).train
    return prompt.text


def test_a_template_of_ones_own_and_its_variables(one: TrainSource) -> None:
    assert text_of(Data(train=[one]), real()) == "<s> [user] 1+1? [assistant]"
    assert text_of(Data(train=[one], chat_template_kwargs={"loud": True}), real()) == "<s> [user] 1+1? [assistant] LOUD"
    own = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:"
    assert text_of(Data(train=[one], chat_template=own), real()) == "user: 1+1?\nbot:"
    assert text_of(Data(train=[one], chat_template=own), real(None)) == "user: 1+1?\nbot:"


def test_a_variable_that_the_template_does_not_read_is_refused(one: TrainSource) -> None:
    with pytest.raises(DataError, match=r"chat_template_kwargs\.loudd`.*change nothing; did you mean loud\?"):
        prepare(Data(train=[one], chat_template_kwargs={"loudd": True}), real())
    with pytest.raises(DataError, match=r"`data\.tools` is set, but the chat template shows no tools"):
        prepare(Data(train=[one], tools=[TOOL]), real("{{ messages[0].content }}"))


@pytest.mark.parametrize(
    "setting",
    [
        {"chat_template": TEMPLATE},
        {"chat_template_kwargs": {"loud": 1}},
        {"tools": [TOOL]},
        {"tools_field": "tools"},
        {"system_prompt": "Be brief."},
    ],
)
def test_what_only_a_chat_template_reads_needs_one(one: TrainSource, setting: dict[str, Any]) -> None:
    (key,) = setting
    with pytest.raises(DataError, match=rf"`data\.{key}` needs `data\.prompt: chat`"):
        prepare(Data(train=[one], prompt="raw", **setting), WordTokenizer("yes"))


def test_tools_of_the_recipe_and_of_a_column(tmp_path: Path, one: TrainSource) -> None:
    shown = f"<s> [tools] {json.dumps([TOOL])} [user] 1+1? [assistant]"
    assert text_of(Data(train=[one], tools=[TOOL]), real()) == shown
    path = tmp_path / "own.jsonl"
    columns = [[TOOL], json.dumps([TOOL]), None, "", []]
    rows = [{"problem": f"{n}?", "answer": "1", "has": tools} for n, tools in enumerate(columns)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = prepare(Data(train=[TrainSource(path=str(path))], tools_field="has"), real()).train
    assert ["[tools]" in prompt.text for prompt in made] == [True, True, False, False, False]
    assert made[0].text.replace("0?", "1?") == made[1].text
    for wrong, said in (("{", "the tools are no JSON"), ([{"x": 1}], "expected a schema such as")):
        path.write_text(json.dumps({"problem": "p", "answer": "1", "has": wrong}) + "\n")
        with pytest.raises(DataError, match=rf"own\.jsonl, line 1, field 'has': {said}"):
            prepare(Data(train=[TrainSource(path=str(path))], tools_field="has"), real())
    with pytest.raises(DataError, match=r"tools_field: tool` names no column of this record; it has has"):
        prepare(Data(train=[TrainSource(path=str(path))], tools_field="tool"), real())


SHOTS: list[Any] = [{"problem": "2+2?", "response": "So 4"}, {"problem": "3+3?", "response": "So 6"}]


def test_examples_stand_before_the_problem_behind_the_system_message(tmp_path: Path, one: TrainSource) -> None:
    data = Data(train=[one], few_shot=SHOTS, instruction="Go.", system_prompt="Hm.")
    assert text_of(data, WordTokenizer("yes")) == (
        "[system] Hm. [user] 2+2?\n\nGo. [assistant] So 4 [user] 3+3?\n\nGo. [assistant] So 6 [user] 1+1?\n\nGo. "
        "[assistant]"
    )
    own = [{"role": r, "content": c} for r, c in (("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"))]
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps({"messages": own, "answer": "1"}) + "\n")
    turns = Data(train=[TrainSource(path=str(path))], few_shot=SHOTS[:1])
    assert text_of(turns, WordTokenizer("yes")) == (
        "[system] S [user] 2+2? [assistant] So 4 [user] a [assistant] b [user] c [assistant]"
    )
    template = Data(train=[one], few_shot=SHOTS, prompt_template="Q: {problem}\nA:")
    assert text_of(template, WordTokenizer()) == "Q: 2+2?\nA:So 4\n\nQ: 3+3?\nA:So 6\n\nQ: 1+1?\nA:"
    with pytest.raises(DataError, match=r"`data\.few_shot` needs `data\.prompt_template`"):
        prepare(Data(train=[one], few_shot=SHOTS), WordTokenizer())


def test_problems_that_every_prompt_solves_are_taken_out_of_all_data(tmp_path: Path) -> None:
    train = jsonl(tmp_path / "a.jsonl", ("1+1?", "2"), ("2+2?", "4"), ("2 +2?", "4"))
    held = jsonl(tmp_path / "b.jsonl", ("2+2?", "4"), ("5+5?", "10"))
    made = prepare(Data(train=[train], validation=[held], few_shot=SHOTS), WordTokenizer("yes"))
    assert [p.problem for p in made.train] == ["1+1?", "2 +2?"]  # few letters are compared as they are
    assert [p.problem for p in made.validation["b"]] == ["5+5?"]
    assert "1 taken out because they are in data.few_shot" in made.report.lines()[0]


@pytest.mark.parametrize(
    ("settings", "chat", "expected"),
    [
        ({}, "yes", "[user] 1+1? [assistant]So"),
        ({"prompt_template": "Q: {problem} A:"}, None, "Q: 1+1? A:So"),
        ({"prompt": "raw"}, None, "1+1?So"),
    ],
)
def test_the_beginning_of_the_response_ends_the_prompt(
    one: TrainSource, settings: Any, chat: str | None, expected: str
) -> None:
    assert text_of(Data(train=[one], response_prefix="So", **settings), WordTokenizer(chat)) == expected


def test_a_response_is_decoded_behind_its_beginning() -> None:
    tokenizer = real()
    ids = tokenizer("so 2", add_special_tokens=False)["input_ids"]
    rows = [np.array(ids), np.array([], np.int64)]
    assert make_decode(tokenizer)(rows) == ["so 2", ""]
    assert make_decode(tokenizer, "So")(rows) == [" so 2", ""]  # with the space that the tokenizer puts between
    assert make_decode(tokenizer, "So")([]) == []


@pytest.mark.parametrize("prefix", [None, "So"])
def test_short_and_long_responses_are_decoded_as_the_tokenizer_does(prefix: str | None) -> None:
    tokenizer = real()
    tokenizer.add_special_tokens({"eos_token": "</s>"})
    words = np.array(tokenizer("so 2 </s> 4", add_special_tokens=False)["input_ids"])
    rows = [np.resize(words, count) for count in (0, 1, 31, 32, 33, 200)]
    before = [] if prefix is None else tokenizer(prefix, add_special_tokens=False)["input_ids"]
    whole = tokenizer.batch_decode([[*before, *row.tolist()] for row in rows], skip_special_tokens=True)
    assert make_decode(tokenizer, prefix)(rows) == [text.removeprefix(prefix or "") for text in whole]
    assert max(map(len, whole)) > 200


def test_a_beginning_of_sequence_that_stands_twice_is_refused(one: TrainSource) -> None:
    tokenizer = make_word_tokenizer(["[user]", "1+1?"])
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    twice = "{{ bos_token }} {{ bos_token }} {{ messages[0].content }}"
    with pytest.raises(DataError, match=r"one\.jsonl, line 1: the prompt begins with the beginning-of-seq.* twice"):
        prepare(Data(train=[one], chat_template=twice), tokenizer)
    once = prepare(Data(train=[one], chat_template=twice.replace("{{ bos_token }}", "", 1)), tokenizer)
    assert once.train[0].token_ids.tolist().count(tokenizer.bos_token_id) == 1


def test_a_template_that_swallows_the_system_message_is_refused(one: TrainSource) -> None:
    silent = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    with pytest.raises(DataError, match=r"leaves the system message out.*; remove `data\.system_prompt`"):
        prepare(Data(train=[one], chat_template=silent, system_prompt="Be brief."), real())


def test_what_the_model_sees_is_shown_with_its_special_tokens(one: TrainSource) -> None:
    tokenizer = real()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    (prompt,) = prepare(Data(train=[one]), tokenizer).train
    sees, reads = seen_lines(prompt, tokenizer)
    assert sees == f"the model sees {len(prompt.token_ids)} tokens: '<s> [user] 1+1? [assistant]'"
    assert reads.endswith("'1+1?'")
    long = prepare(Data(train=[one], instruction="LOUD " * 200), tokenizer).train[0]
    assert "characters ... " in seen_lines(long, tokenizer)[0]
    assert seen_lines(long, tokenizer)[0].endswith("[assistant]'")  # where the response begins is never left out


def settings(tmp_path: Path, **data: Any) -> dict[str, Any]:
    return {
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum", "size": 8}], **data},
        "rewards": [{"kind": "task"}],
    }


def test_a_template_file_is_read_once_and_the_recipe_holds_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    recipe = recipe_from_dict(settings(tmp_path, chat_template="own.jinja")).recipe
    file.write_text("another {{ one }}")
    assert recipe.data.chat_template == TEMPLATE
    (tmp_path / "r.yaml").write_text(dump_resolved(recipe))
    assert load_recipe(tmp_path / "r.yaml").recipe == recipe
    assert make_tokenizer(recipe.model, recipe.data.chat_template).chat_template == TEMPLATE
    for wrong, said in (("none.jinja", "nor a file"), ("r.txt", "holds no Jinja template")):
        (tmp_path / "r.txt").write_text("plain")
        with pytest.raises(RecipeError, match=rf"(?s)data\.chat_template.*{said}"):
            recipe_from_dict(settings(tmp_path, chat_template=wrong))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"prompt": "raw", "chat_template": TEMPLATE}, r"(?s)data\.chat_template.*is only read with prompt: chat"),
        ({"chat_template_kwargs": {"messages": []}}, r"(?s)chat_template_kwargs\.messages.*is no variable of your own"),
        ({"tools": [{"nme": 1}]}, r"(?s)data\.tools\.0.*expected a schema such as"),
        ({"tools": [TOOL], "tools_field": "x"}, r"(?s)data\.tools_field.*data\.tools gives every problem the same"),
        ({"prompt": "raw", "few_shot": SHOTS}, r"(?s)data\.few_shot.*needs prompt: chat"),
        ({"few_shot": [{"problem": " ", "response": "x"}]}, r"(?s)data\.few_shot\.0.*an example has"),
        ({"response_prefix": ""}, r"(?s)data\.response_prefix.*is empty"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, data: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe_from_dict(settings(tmp_path, **data))


@pytest.mark.parametrize(
    "change",
    [
        {"chat_template": TEMPLATE},
        {"chat_template_kwargs": {"loud": False}},
        {"tools": [TOOL]},
        {"few_shot": SHOTS},
        {"few_shot": [{**SHOTS[0], "response": "4"}]},
        {"response_prefix": "So"},
    ],
)
def test_none_of_it_may_change_on_resume(tmp_path: Path, change: dict[str, Any]) -> None:
    (key,) = change
    old, new = (
        recipe_from_dict(settings(tmp_path, **({"few_shot": SHOTS[:1]} | more))).recipe for more in ({}, change)
    )
    with pytest.raises(RecipeError, match=rf"data\.{key}.*fixed"):
        check_resume(old, new, [f"data.{key}=x"])


def test_a_saved_position_is_refused_where_another_version_renders_otherwise(one: TrainSource) -> None:
    before = EpochStream(prepare(Data(train=[one]), real()).train, seed=0).state()
    after = EpochStream(prepare(Data(train=[one], response_prefix="So"), real()).train, seed=0)
    with pytest.raises(DataError, match="rendered prompts"):
        after.load(before)
