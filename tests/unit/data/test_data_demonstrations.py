"""What is imitated: which tokens carry loss, by hand, and which records are no examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dapo.config.schema import Data, Sft, SftSource, TrainSource
from dapo.data.demonstrations import Demonstrations, masked, prepare_demonstrations
from dapo.errors import DataError
from dapo.models.tiny import make_word_tokenizer

# One token a word: <pad> 0, <eos> 1, <unk> 2, then these from 3 on.
WORDS = [
    "[user]",
    "[assistant]",
    "[end]",
    "[nl]",
    "[system]",
    "one",
    "two",
    "three",
    "four",
    "So",
    "[think]",
    "thought",
]
U, A, END, NL, S, ONE, TWO, THREE, FOUR, SO, THINK, THOUGHT = range(3, 3 + len(WORDS))
EOS = 1
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} [end] [nl] {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
FORGETS = (  # thinking is shown of the last answer alone
    "{% for m in messages %}[{{ m.role }}] "
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('thought ')[-1] }}"
    "{% else %}{{ m.content }}{% endif %} [end] {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def tokenizer(template: str | None = None) -> Any:
    made = make_word_tokenizer(WORDS)
    made.chat_template = template
    return made


def prepared(
    folder: Path, *records: Any, template: str | None = None, data: Any = None, held_out: Any = (), **sft: Any
) -> Demonstrations:
    paths = {}
    for name, lines in (("train", records), ("held", held_out)):
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(json.dumps(line) + "\n" for line in lines))
    fields = sft.pop("fields", {})
    section = Sft(
        train=[SftSource(path=str(paths["train"]), fields=fields)],
        validation=[SftSource(path=str(paths["held"]), fields=fields)] if held_out else [],
        **sft,
    )
    given = Data(train=[TrainSource(task="signed_sum")], **(data or {}))
    stops = (EOS,) if template is None else (END, EOS)
    return prepare_demonstrations(section, given, tokenizer(template), stops)


def tokens(found: Demonstrations, n: int = 0) -> tuple[list[int], list[int], list[int]]:
    one = found.train[n]
    return one.prompt.token_ids.tolist(), one.token_ids.tolist(), one.loss_mask.astype(int).tolist()


def test_a_prompt_is_what_the_recipe_makes_of_problems_and_a_response_ends(tmp_path: Path) -> None:
    found = prepared(tmp_path, {"prompt": "one two", "response": "three four"}, data={"instruction": "four"})
    assert tokens(found) == ([ONE, TWO, FOUR], [THREE, FOUR, EOS], [1, 1, 1])
    assert found.train[0].prompt.answer == "three four"
    template = {"prompt_template": "[user] {problem} [assistant]"}
    found = prepared(tmp_path, {"question": "one", "solution": "two"}, data=template)
    assert tokens(found) == ([U, ONE, A], [TWO, EOS], [1, 1])
    found = prepared(tmp_path, {"q": "one", "a": {"b": "two"}}, fields={"prompt": "q", "response": "a.b"})
    assert tokens(found) == ([ONE], [TWO, EOS], [1, 1])


def test_a_response_with_its_end_in_it_gets_no_second_one() -> None:
    ids, mask = masked([([ONE, END, NL], True)], [END])
    assert (ids.tolist(), mask.tolist()) == ([ONE, END], [True, True])
    ids, mask = masked([([ONE], True)], [EOS, END])
    assert (ids.tolist(), mask.tolist()) == ([ONE, EOS], [True, True])
    ids, mask = masked([([ONE, END, NL], True), ([U, TWO], False), ([THREE], True)], [END])
    assert ids.tolist() == [ONE, END, NL, U, TWO, THREE, END]
    assert mask.astype(int).tolist() == [1, 1, 0, 0, 0, 1, 1]


CHAT = [
    {"role": "system", "content": "four"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four one"},
]


def test_of_a_conversation_only_the_assistants_words_and_their_end_carry_loss(tmp_path: Path) -> None:
    prompt = [S, FOUR, END, NL, U, ONE, END, NL, A]
    found = prepared(tmp_path, {"messages": CHAT}, template=TEMPLATE)
    after = [TWO, END, NL, U, THREE, END, NL, A, FOUR, ONE, END]
    assert tokens(found) == (prompt, after, [1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    found = prepared(tmp_path, {"messages": CHAT}, template=TEMPLATE, loss_on="last")
    assert tokens(found) == ([*prompt, *after[:8]], [FOUR, ONE, END], [1, 1, 1])


def test_the_recipes_own_template_and_other_shapes_of_conversations(tmp_path: Path) -> None:
    gpt = {"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}]}
    found = prepared(
        tmp_path, gpt, data={"chat_template": TEMPLATE}
    )  # of the tokenizer without one: [end] ends nothing
    assert tokens(found) == ([U, ONE, END, NL, A], [TWO, END, NL, EOS], [1, 1, 1, 1])
    trl = {"prompt": [CHAT[1]], "completion": [CHAT[2]]}
    assert tokens(prepared(tmp_path, trl, template=TEMPLATE)) == ([U, ONE, END, NL, A], [TWO, END], [1, 1])
    # what stands in the prompt is not learnt, whoever said it
    trl = {"prompt": CHAT[1:4], "completion": [CHAT[4]]}
    found = prepared(tmp_path, trl, template=TEMPLATE)
    assert tokens(found)[1:] == ([FOUR, ONE, END], [1, 1, 1])


def test_a_prompt_through_the_chat_template_ends_as_the_model_does(tmp_path: Path) -> None:
    found = prepared(tmp_path, {"prompt": "one", "response": "two"}, template=TEMPLATE)
    assert tokens(found) == ([U, ONE, END, NL, A], [TWO, EOS], [1, 1])  # the tokenizer's own end token comes first


def test_the_beginning_of_every_response_is_the_prompts_end(tmp_path: Path) -> None:
    data = {"response_prefix": " So"}
    found = prepared(tmp_path, {"prompt": "one", "response": " So two"}, data=data)
    assert tokens(found) == ([ONE, SO], [TWO, EOS], [1, 1])
    with pytest.raises(DataError, match=r"line 1: its response does not begin with `data\.response_prefix` = ' So'"):
        prepared(tmp_path, {"prompt": "one", "response": "two"}, data=data)


def test_a_template_that_forgets_thinking_is_refused_for_earlier_turns(tmp_path: Path) -> None:
    thinking = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "[think] thought two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "[think] thought four"},
    ]
    with pytest.raises(DataError, match=r"message 4 as an answer; it writes earlier turns otherwise.*loss_on: last"):
        prepared(tmp_path, {"messages": thinking}, template=FORGETS)
    found = prepared(tmp_path, {"messages": thinking}, template=FORGETS, loss_on="last")
    assert tokens(found) == ([U, ONE, END, A, TWO, END, U, THREE, END, A], [THINK, THOUGHT, FOUR, END], [1, 1, 1, 1])


R1 = (  # all up to the end of thinking is taken out of the assistant's turns
    "{% for m in messages %}[{{ m.role }}] "
    "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %} [end] "
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
R1_OPENS = R1.replace("[assistant] {% endif %}", "[assistant] [think] {% endif %}")
OPENS = R1_OPENS.replace("m.content.split('</think>')[-1]", "m.content")
LAST_ONLY = R1.replace("if m.role == 'assistant'", "if m.role == 'assistant' and loop.last")
EARLIER = R1.replace("if m.role == 'assistant'", "if m.role == 'assistant' and not loop.last")
TRACES = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "[think] thought </think> two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "[think] thought </think> four"},
]


@pytest.mark.parametrize(
    ("template", "messages", "loss_on", "number"),
    [
        (R1, TRACES[:2], "all", 2),
        (R1, TRACES, "all", 2),
        (R1, TRACES, "last", 4),
        (R1_OPENS, TRACES[:2], "all", 2),
        (LAST_ONLY, TRACES, "last", 4),
    ],
)
def test_a_template_that_takes_thinking_out_of_what_is_learnt_is_refused(
    tmp_path: Path, template: str, messages: Any, loss_on: str, number: int
) -> None:
    said = (
        rf"line 1, message {number}: the chat template takes the thinking \(all up to '</think>'\) out of the "
        r"assistant's turns, so it would not be learnt; expected '\[think\] thought </think> .*"
        r"`data\.chat_template`.*prompt and a response"
    )
    with pytest.raises(DataError, match=said):
        prepared(tmp_path, {"messages": messages}, template=template, loss_on=loss_on)


def test_thinking_may_be_left_out_of_what_is_not_learnt(tmp_path: Path) -> None:
    found = prepared(tmp_path, {"messages": TRACES}, template=EARLIER, loss_on="last")
    assert tokens(found)[0] == [U, ONE, END, A, TWO, END, U, THREE, END, A]
    assert tokens(found)[1][:2] == [THINK, THOUGHT]
    with pytest.raises(DataError, match=r"writes earlier turns otherwise once others follow"):
        prepared(tmp_path, {"messages": TRACES}, template=EARLIER)
    # the template itself begins every answer with the tag: it is in the prompt, and the rest is learnt
    opened = [TRACES[0], {"role": "assistant", "content": "[think] thought two"}]
    found = prepared(tmp_path, {"messages": opened}, template=OPENS)
    assert tokens(found) == ([U, ONE, END, A, THINK], [THOUGHT, TWO, END], [1, 1, 1])
    # white space around tags is the template's
    spaced = TEMPLATE.replace("{{ m.content }}", "{{ m.content.replace(' ', '\n') }}")
    assert tokens(prepared(tmp_path, {"messages": opened}, template=spaced))[1][:3] == [THINK, THOUGHT, TWO]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"reasoning_content": "thought"}, r"does not write its field `reasoning_content`.*expected 'thought'"),
        ({"thinking": "thought"}, r"does not write its field `thinking`"),
        (
            {"tool_calls": [{"function": {"name": "add", "arguments": {}}}]},
            r"does not write its field `tool_calls`.*'add'",
        ),
        ({"content": "[think] three"}, r"leaves out or changes some of its content.*expected '\[think\] three'"),
    ],
)
def test_what_else_a_template_leaves_out_is_refused(tmp_path: Path, more: Any, said: str) -> None:
    changes = TEMPLATE.replace("m.content", "m.content.replace('three', 'four')")
    record = {"messages": [CHAT[1], {**CHAT[2], **more}]}
    with pytest.raises(DataError, match=rf"line 1, message 2: the chat template {said}"):
        prepared(tmp_path, record, template=changes)


def test_a_response_that_ends_in_its_midst_is_refused(tmp_path: Path) -> None:
    said = r"line 1: the response holds '<eos>', which ends a response, before 'three', so .* number 1 out of"
    with pytest.raises(DataError, match=said):
        prepared(tmp_path, {"prompt": "one", "response": "two <eos> three"})
    assert tokens(prepared(tmp_path, {"prompt": "one", "response": "two <eos>"})) == ([ONE], [TWO, EOS], [1, 1])
    messages = [CHAT[1], {"role": "assistant", "content": "two <eos> three"}]
    with pytest.raises(DataError, match=said):
        prepared(tmp_path, {"messages": messages}, template=TEMPLATE)


@pytest.mark.parametrize(
    "record",
    [
        r'{"prompt": "one", "response": "a\ud800b"}',
        r'{"prompt": "a\ud800b", "response": "one"}',
        r'{"messages": [{"role": "user", "content": "a\ud800b"}, {"role": "assistant", "content": "two"}]}',
    ],
)
def test_half_of_a_surrogate_pair_is_refused_with_its_line(tmp_path: Path, record: str) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text('{"prompt": "one", "response": "two"}\n' + record + "\n")
    section, given = Sft(train=[SftSource(path=str(path))]), Data(train=[TrainSource(task="signed_sum")])
    with pytest.raises(DataError, match=r"cut\.jsonl, line 2, field '\w+': half of a surrogate pair.* write it again"):
        prepare_demonstrations(section, given, tokenizer(TEMPLATE), (END, EOS))


def test_long_examples_are_dropped_or_refused_and_never_cut(tmp_path: Path) -> None:
    records = [{"prompt": "one two", "response": "three"}, {"prompt": "one", "response": "two"}]
    found = prepared(tmp_path, *records, max_tokens=3)
    assert [len(one) for one in found.train] == [3]
    assert found.lines == [
        "training    train: 1 example of 2 records, 3 tokens, 2 of them with loss, longest 3; 1 over sft.max_tokens "
        "dropped"
    ]
    with pytest.raises(DataError, match=r"1 example is longer than `sft\.max_tokens: 3`.*the first is .*line 1"):
        prepared(tmp_path, *records, max_tokens=3, overlong="refuse")
    with pytest.raises(DataError, match=r"no example is left to train on"):
        prepared(tmp_path, *records, max_tokens=2)


def test_held_out_examples_are_taken_out_of_training(tmp_path: Path) -> None:
    records = [{"prompt": "one", "response": "two"}, {"prompt": "one", "response": "three"}]
    found = prepared(tmp_path, *records, held_out=records[:1])
    assert [tokens(found)[1], len(found.validation["held"])] == [[THREE, EOS], 1]
    assert found.lines[-1] == "overlap     1 training examples are in validation too, and were taken out"


def test_answers_to_held_out_problems_are_taken_out(tmp_path: Path) -> None:
    held_out = tmp_path / "problems.jsonl"
    held_out.write_text(json.dumps({"problem": "one", "answer": "1"}) + "\n")
    records = [{"prompt": "one", "response": "two"}, {"prompt": "two", "response": "three"}]
    found = prepared(tmp_path, *records, data={"validation": [TrainSource(path=str(held_out))]})
    assert [tokens(found, n)[0] for n in range(len(found.train))] == [[TWO]]
    assert found.lines[-1].startswith("overlap     1 training examples answer held-out problems")
    chat = [{"messages": CHAT[1:3]}, {"messages": [{"role": "user", "content": "four"}, CHAT[2]]}]
    data = {"validation": [TrainSource(path=str(held_out))]}
    assert len(prepared(tmp_path, *chat, template=TEMPLATE, data=data).train) == 1


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": "one"}, r"line 1: no response \(nor messages\) among the fields \['prompt'\]"),
        ({"prompt": "one", "response": ""}, r"expected a prompt and a response as text"),
        ({"prompt": 1, "response": "two"}, r"found int .1."),
        ({"messages": CHAT[:2]}, r"last one is the assistant's, found \['system', 'user'\]"),
        ({"messages": [{"role": "user"}]}, r"field 'messages': message 1: expected an object with `role`"),
        ({"messages": "words"}, r"expected a list of messages, found 'words'"),
    ],
)
def test_what_is_no_example_is_told_with_its_place(tmp_path: Path, record: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        prepared(tmp_path, record, template=TEMPLATE)


def test_messages_need_a_template(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"messages need a chat template, and the tokenizer has none"):
        prepared(tmp_path, {"messages": CHAT})
