"""Conversations as problems: what the model sees, what a person reads, and what makes two of them one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_data_load import LONG, WordTokenizer

from dapo.config.schema import Data, TrainSource
from dapo.data import prepare
from dapo.errors import DataError
from dapo.types.batch import content_id


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def source(path: Path, *prompts: Any, answers: tuple[str, ...] = ("1",) * 9) -> TrainSource:
    rows = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(prompts, answers, strict=False)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TrainSource(path=str(path))


SYSTEM = [message("system", "Be brief."), message("user", "Find x.")]
SHOTS = [message("user", "1+1?"), message("assistant", "2"), message("user", "Find x.")]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([message("user", "Find x.")], "[user] Find x. [assistant]"),
        (SYSTEM, "[system] Be brief. [user] Find x. [assistant]"),
        (SHOTS, "[user] 1+1? [assistant] 2 [user] Find x. [assistant]"),
        ([*SYSTEM[:1], *SHOTS], "[system] Be brief. [user] 1+1? [assistant] 2 [user] Find x. [assistant]"),
        ([message("user", [{"type": "text", "text": "Find "}, {"type": "text", "text": "x."}])], None),
        ([message("user", "Find x.", name=None)], None),  # Parquet's null: there is no name
        ([{"from": "human", "value": "Find x."}], None),  # ShareGPT's names
        (json.dumps(SYSTEM), "[system] Be brief. [user] Find x. [assistant]"),  # as a CSV file holds it
    ],
)
def test_the_chat_template_renders_all_messages_and_a_person_reads_the_last(
    tmp_path: Path, prompt: Any, text: str | None
) -> None:
    (made,) = prepare(Data(train=[source(tmp_path / "a.jsonl", prompt)]), WordTokenizer("yes")).train
    assert made.text == (text or "[user] Find x. [assistant]")
    assert made.problem == "Find x."
    assert made.extra == {}


def test_the_instruction_follows_the_last_message_and_the_recipe_may_bring_the_system_message(tmp_path: Path) -> None:
    data = Data(train=[source(tmp_path / "a.jsonl", SHOTS)], instruction="Box it.", system_prompt="Think.")
    (made,) = prepare(data, WordTokenizer("yes")).train
    assert made.text == "[system] Think. [user] 1+1? [assistant] 2 [user] Find x.\n\nBox it. [assistant]"


def test_messages_of_parquet_and_of_a_mapped_field(tmp_path: Path) -> None:
    rows = [{"messages": SYSTEM, "gold": 3}, {"messages": SHOTS, "gold": 4}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    fields = {"problem": "messages", "answer": "gold"}
    made = prepare(
        Data(train=[TrainSource(path=str(tmp_path / "a.parquet"), fields=fields)]), WordTokenizer("yes")
    ).train
    assert [prompt.text.count("[") for prompt in made] == [3, 4]


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ([], r"last one is the user's .*found \[\]"),
        ([*SHOTS, message("assistant", "3")], r"found \['user', 'assistant', 'user', 'assistant'\]; take the answer"),
        ([{"from": "human", "text": "Find x."}], r"message 1: .*`role` and `content`, found \['from', 'text'\]"),
        ([message("user", 5)], "message 1: expected text as `content`, found int"),
        ([message("user", None)], "message 1: expected text as `content`, found NoneType"),
        ([message("user", [{"type": "image", "url": "u"}])], r"parts of the kinds \['image'\]"),
        ([message("user", "a\ud800b")], "half of a surrogate pair"),
        ([message("user", "  ")], "the problem is empty"),
        ("[{'role': 'user', 'content': 'Find x.'}]", "as Python prints it"),
    ],
)
def test_what_is_no_conversation_is_refused_by_name(tmp_path: Path, prompt: Any, found: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl, line 1, field 'prompt': .*{found}"):
        prepare(Data(train=[source(tmp_path / "a.jsonl", prompt)]), WordTokenizer("yes"))


def test_a_text_that_only_looks_like_messages_is_a_text(tmp_path: Path) -> None:
    for text in ("[1, 2] is a list; what is its role?", '["role"]', "[{x}] role"):
        (made,) = prepare(Data(train=[source(tmp_path / "a.jsonl", text)]), WordTokenizer()).train
        assert made.text == text


def test_settings_that_contradict_the_messages(tmp_path: Path) -> None:
    data = Data(train=[source(tmp_path / "a.jsonl", SYSTEM)], system_prompt="Think.")
    with pytest.raises(DataError, match=r"line 1: its messages hold a system message.*`data.system_prompt` is set"):
        prepare(data, WordTokenizer("yes"))
    for style in ("raw", "auto"):  # auto: this tokenizer has no chat template
        with pytest.raises(DataError, match=r"line 1: messages of \['system', 'user'\] need `data.prompt: chat`"):
            prepare(Data(train=data.train, prompt=style), WordTokenizer())  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"line 1: the tokenizer's chat template failed on messages of \['system'"):
        prepare(Data(train=data.train), WordTokenizer("no system"))


def test_conversations_are_one_problem_when_all_that_was_said_is_the_same(tmp_path: Path) -> None:
    """Two dialogues that end with the same words are two problems; a system message makes another prompt of it."""
    again = [message("user", "And now?")]
    first, second = ([message("user", q), message("assistant", "ok"), *again] for q in ("1+1?", "2+2?"))
    made = prepare(
        Data(train=[source(tmp_path / "a.jsonl", first, second, first, SYSTEM, SYSTEM[1:])]), WordTokenizer("yes")
    )
    assert (made.report.train[0].repeats, len({prompt.id for prompt in made.train})) == (1, 3)
    assert made.train[2].id == made.train[3].id == content_id("Find x.")
    assert made.train[2].text != made.train[3].text


def test_a_system_message_hides_no_overlap(tmp_path: Path) -> None:
    train = source(tmp_path / "a.jsonl", [message("system", "Think."), message("user", LONG)], SHOTS)
    held = source(tmp_path / "b.jsonl", LONG.upper())
    made = prepare(Data(train=[train], validation=[held]), WordTokenizer("yes"))
    assert (made.report.train[0].in_validation, len(made.train)) == (1, 1)


def test_a_prompt_knows_whether_its_row_held_messages(tmp_path: Path) -> None:
    """Reward functions of TRL get messages for such rows, and text for others."""
    asked = [[message("user", "2+2?")], [message("system", "Brief."), message("user", "3+3?")], "4+4?"]
    made = prepare(Data(train=[source(tmp_path / "a.jsonl", *asked)]), WordTokenizer("yes")).train
    assert [[one["role"] for one in prompt.messages] for prompt in made] == [["user"], ["system", "user"], []]
    assert made[0].messages[0]["content"] == "2+2?"
