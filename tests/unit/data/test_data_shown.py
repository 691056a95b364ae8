"""What a prompt must show: the problem's text, in tokens that the model knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_data_chat import real
from test_data_load import jsonl

from dapo.config.schema import Data, Shot
from dapo.data import prepare
from dapo.data.unknown import unknown_in_prompts
from dapo.errors import DataError
from dapo.models.tiny import make_word_tokenizer

EACH = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} {% endfor %}"


def prepared(folder: Path, template: str, problem: Any = "What is 1 + 1?", **more: Any) -> Any:
    return prepare(Data(train=[jsonl(folder / "one.jsonl", (problem, "2"))], **more), real(template))


@pytest.mark.parametrize(
    "template",
    [
        "1",
        "{{ messages | length }}",
        "{% for m in messages %}[{{ m.role }}]{% endfor %}",
        "{{ messages[0].content[:7] }}",
    ],
)
def test_a_template_that_does_not_show_the_problem_is_refused(tmp_path: Path, template: str) -> None:
    with pytest.raises(DataError) as refused:
        prepared(tmp_path, template)
    said = str(refused.value)
    assert "one.jsonl, line 1" in said
    assert "leaves the user's message out" in said
    assert "'What is 1 + 1?'" in said
    assert "data.chat_template" in said


def test_a_template_may_trim_and_wrap_white_space(tmp_path: Path) -> None:
    """Whatever the template does with blanks and line ends, the words are there."""
    spaced = "  What is\n\n 1 + 1?  "
    assert "What is" in prepared(tmp_path, EACH, spaced).train[0].text
    split = "{% for m in messages %}{{ m.content.split() | join(' ') }}{% endfor %}"
    assert "What is 1 + 1?" in prepared(tmp_path, split, spaced).train[0].text


def test_every_message_of_the_user_has_to_be_there(tmp_path: Path) -> None:
    """An assistant's earlier turn may be shortened (templates take its thinking out); what the user said may not."""
    talk = [
        {"role": "user", "content": "First this."},
        {"role": "assistant", "content": "<think>hm</think>Yes."},
        {"role": "user", "content": "Then that."},
    ]
    without_thinking = "{% for m in messages %}{{ m.content.split('</think>')[-1] }} {% endfor %}"
    assert prepared(tmp_path, without_thinking, talk).train[0].text.split() == [
        "First",
        "this.",
        "Yes.",
        "Then",
        "that.",
    ]
    with pytest.raises(DataError, match=r"leaves the user's message out.*'First this.'"):
        prepared(tmp_path, "{{ messages[-1].content }}", talk)
    with pytest.raises(DataError, match=r"leaves the user's message out.*'Then that.'"):
        prepared(tmp_path, "{{ messages[0].content }}", talk)


def test_an_example_does_not_stand_for_the_problem(tmp_path: Path) -> None:
    """The problem is the beginning of an example: it has to be found after it."""
    shot = Shot(problem="What is 1 + 1? Say.", response="2")
    with pytest.raises(DataError, match=r"leaves the user's message out"):
        prepared(tmp_path, "{{ messages[0].content }} {{ messages[1].content }}", few_shot=[shot])
    assert prepared(tmp_path, EACH, few_shot=[shot]).train


def doubts(folder: Path, *problems: str, **more: Any) -> list[str]:
    tokenizer = make_word_tokenizer()
    data = prepare(Data(train=[jsonl(folder / "sums.jsonl", *((p, "3") for p in problems))], **more), tokenizer)
    return unknown_in_prompts(data, tokenizer)


def test_unknown_tokens_in_prompts_are_a_doubt(tmp_path: Path) -> None:
    """6 words of 9 are unknown in each prompt, all of them the instruction's."""
    assert doubts(tmp_path, "1 +2 =", "2 +1 =") == []
    (said,) = doubts(tmp_path, "1 +2 =", "2 +1 =", instruction=r"Put your final answer in \boxed{}.")
    assert said.startswith(
        "sums: 66.7 % of the prompts' tokens are unknown to the tokenizer (<unk>), in 2 of 2 prompts"
    )
    assert "'Put'" in said
    assert "data.instruction" in said
    (said,) = doubts(tmp_path, "1 +2 =", "eleven +1 =")
    assert said.startswith("sums: 16.7 % of")
    assert "in 1 of 2 prompts" in said
    assert "'eleven'" in said


def test_a_tokenizer_without_an_unknown_token_has_no_doubts(tmp_path: Path) -> None:
    """Byte-level tokenizers of GPT-2's kind name their end-of-text token as the unknown one, and never need it."""
    tokenizer = make_word_tokenizer()
    data = prepare(Data(train=[jsonl(tmp_path / "sums.jsonl", ("eleven =", "3"))]), tokenizer)
    assert unknown_in_prompts(data, tokenizer)
    tokenizer.eos_token = tokenizer.unk_token
    assert unknown_in_prompts(data, tokenizer) == []
    tokenizer = make_word_tokenizer()
    tokenizer.unk_token = None
    assert unknown_in_prompts(data, tokenizer) == []
