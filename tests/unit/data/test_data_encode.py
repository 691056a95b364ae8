"""Which tokens an answer has: those that the whole text adds to the prompt's, for every family of tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizer_families import FAMILIES, family

from dapo.config.schema import Data, Sft, SftSource, TrainSource
from dapo.data.demonstrations import Demonstration, prepare_demonstrations
from dapo.data.encode import CutError, continuation, encode_pieces
from dapo.data.load import prepare
from dapo.errors import DataError
from dapo.models.tiny import make_word_tokenizer

TEMPLATES = Path(__file__).parents[2] / "data" / "chat_templates"
SPECIAL = {  # what ends a turn, and what else a template writes as one token
    "chatml": ("<|im_end|>", "<|im_start|>"),
    "gemma2": ("<end_of_turn>", "<start_of_turn>"),
    "llama3.2": ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    "mistral-v0.3": ("</s>", "[INST]", "[/INST]"),
    "olmo2": ("</s>",),
    "phi4": ("<|im_end|>", "<|im_start|>", "<|im_sep|>"),
    "smollm2": ("<|im_end|>", "<|im_start|>"),
    "tinyllama": ("</s>",),
}
ZEPHYR = (  # TinyLlama-Chat, Zephyr: an answer begins after a newline, which is no special token
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
KEPT = {("bytes_gpt2", "llama3.2")}
"""Here a prompt ends in two newlines, one token, and the whole text has them as two: the prompt's token stays."""
QUESTIONS = [{"role": "user", "content": "What is one two?"}, {"role": "user", "content": "The sum?"}]
ANSWERS = [{"role": "assistant", "content": text} for text in ("Paris is the capital.", "<think>\n4\n</think>\n\nfour")]
TALK = [QUESTIONS[0], ANSWERS[0], QUESTIONS[1], ANSWERS[1]]


def template(name: str) -> str:
    return ZEPHYR if name == "tinyllama" else (TEMPLATES / f"{name}.jinja").read_text()


def data(**settings: Any) -> Data:
    return Data(train=[TrainSource(task="signed_sum")], **settings)


def examples(folder: Path, record: Any, tokenizer: Any, given: Data, *ends: str, loss_on: Any = "all") -> Demonstration:
    path = folder / "records.jsonl"
    path.write_text(json.dumps(record) + "\n")
    section = Sft(train=[SftSource(path=str(path))], loss_on=loss_on)
    stops = tokenizer.convert_tokens_to_ids(list(ends or ("</s>",)))
    (one,) = prepare_demonstrations(section, given, tokenizer, stops).train
    return one


def ids_of(text: str, tokenizer: Any) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def learnt_texts(one: Demonstration, tokenizer: Any) -> list[str]:
    found, start = [], None
    for n, learnt in enumerate([*one.loss_mask.tolist(), False]):
        if learnt and start is None:
            start = n
        if not learnt and start is not None:
            found.append(tokenizer.decode(one.token_ids[start:n].tolist(), skip_special_tokens=True).strip())
            start = None
    return found


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("name", SPECIAL)
def test_a_conversation_has_the_tokens_of_its_whole_text(tmp_path: Path, kind: str, name: str) -> None:
    """Both views at once: the prompt as it is encoded when the model is asked, and the whole as it is rendered."""
    tokenizer, (end, *_) = family(kind, SPECIAL[name]), SPECIAL[name]
    given = data(chat_template=template(name), chat_template_kwargs={"date_string": "1 Jan"} if "3.2" in name else {})
    one = examples(tmp_path, {"messages": TALK}, tokenizer, given, end)

    def rendered(messages: Any, *, ask: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=ask,
                chat_template=given.chat_template,
                **given.chat_template_kwargs,
            )
        )

    assert one.prompt.token_ids.tolist() == ids_of(rendered(TALK[:1], ask=True), tokenizer)
    whole = ids_of(rendered(TALK, ask=False), tokenizer)
    ours = [*one.prompt.token_ids.tolist(), *one.token_ids.tolist()]
    if (kind, name) in KEPT:
        assert len(ours) < len(whole)
        assert tokenizer.decode(ours) == tokenizer.decode(whole)
        return
    assert ours == whole[: len(ours)]
    assert ours[-1] == tokenizer.convert_tokens_to_ids(end)
    expected = [ids_of(message["content"], tokenizer) for message in ANSWERS]
    assert learnt_texts(one, tokenizer) == [tokenizer.decode(ids).strip() for ids in expected]
    asked = ids_of(rendered(TALK[:3], ask=True), tokenizer)  # before the second answer the model sees its history
    assert ours[: len(asked)] == asked


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        ("Question: one\nAnswer:", " 42"),
        ("Question: one\nAnswer:", "\n\nSo four."),
        ("Question: one\nAnswer: ", "42"),  # the blank is the prompt's
        ("Question: one\nAnswer: ", "four"),
        ("Question: one\n", "\nParis is"),
        ("Question: one\n", "Paris is"),
        ("the cap", "ital of France"),
    ],
)
def test_a_response_is_learnt_after_the_prompt_that_the_model_is_asked_with(
    tmp_path: Path, kind: str, prompt: str, response: str
) -> None:
    tokenizer = family(kind)
    given = data(prompt_template="{problem}")
    record = {"prompt": prompt, "response": response}
    one = examples(tmp_path, record, tokenizer, given)
    assert one.prompt.token_ids.tolist() == ids_of(prompt, tokenizer)
    assert one.loss_mask.all()
    assert one.token_ids[-1] == tokenizer.eos_token_id
    seen = [*one.prompt.token_ids.tolist(), *one.token_ids[:-1].tolist()]
    assert tokenizer.decode(seen) == tokenizer.decode(ids_of(prompt + response, tokenizer))


def test_no_blank_stands_before_an_answer_that_has_none(tmp_path: Path) -> None:
    """By hand: a tokenizer that puts a blank before every text begins an answer without one all the same."""
    tokenizer = family("blank_always")
    assert tokenizer.convert_ids_to_tokens(ids_of("Paris is", tokenizer)) == ["▁Paris", "▁is"]
    one = examples(tmp_path, {"messages": TALK[:2]}, tokenizer, data(chat_template=ZEPHYR))
    pieces = tokenizer.convert_ids_to_tokens(one.token_ids.tolist())
    assert "".join(pieces[:2]) == "Paris"
    assert pieces[-1] == "</s>"
    one = examples(tmp_path, {"prompt": "one\n", "response": "Paris"}, tokenizer, data())
    assert tokenizer.convert_ids_to_tokens(one.token_ids.tolist())[0] != "▁Paris"


def test_a_token_that_spans_a_border_is_not_made() -> None:
    """By hand, of a byte-level tokenizer with one token for two newlines."""
    tokenizer = family("bytes")
    assert tokenizer.convert_ids_to_tokens(ids_of("one\n\nSo", tokenizer))[-2:] == ["ĊĊ", "So"]
    prompt, answer, after = next(encode_pieces([("one\n", "\nSo", "\n four")], tokenizer))
    assert tokenizer.convert_ids_to_tokens(prompt)[-1] == "Ċ"
    assert tokenizer.convert_ids_to_tokens(answer) == ["Ċ", "So"]
    assert tokenizer.decode([*prompt, *answer, *after]) == "one\n\nSo\n four"


def test_offsets_of_characters_cannot_say_it() -> None:
    """A byte-level tokenizer leaves a token's blank out of its offsets: the token seems to begin with the answer."""
    tokenizer = family("bytes_gpt2")
    from tokenizers.processors import ByteLevel

    raw = tokenizer.backend_tokenizer
    before = raw.post_processor
    raw.post_processor = ByteLevel(trim_offsets=True)
    try:
        made = tokenizer("Answer: 42", add_special_tokens=False, return_offsets_mapping=True)
        assert tokenizer.convert_ids_to_tokens(made["input_ids"])[-1] == "Ġ42"
        assert made["offset_mapping"][-1] == (8, 10)
        prompt, answer = next(encode_pieces([("Answer: ", "42")], tokenizer))
        assert tokenizer.convert_ids_to_tokens(prompt)[-1] == "Ġ"
        assert tokenizer.convert_ids_to_tokens(answer) == ["42"]
    finally:
        raw.post_processor = before


def test_an_unknown_token_does_not_swallow_the_beginning_of_an_answer() -> None:
    words = make_word_tokenizer(["one", "two", "="])
    prompt, answer = next(encode_pieces([("one x", "= two")], words))  # "x=" is one unknown word
    assert words.convert_ids_to_tokens(prompt) == ["one", "<unk>"]
    assert words.convert_ids_to_tokens(answer) == ["=", "two"]


class Stubborn:
    """A tokenizer that begins every text with a mark, and makes one token of two blanks."""

    unk_token_id = None

    def __call__(self, texts: Any, add_special_tokens: bool = False) -> Any:
        return {"input_ids": [[1, *map(ord, text.replace("  ", "\u2003"))] for text in texts]}

    def decode(self, ids: Any, **how: Any) -> str:
        return "".join("^" if one == 1 else chr(one) for one in ids)


class Slow(Stubborn):
    """A tokenizer without offsets."""

    def __call__(self, texts: Any, add_special_tokens: bool = False) -> Any:
        return {"input_ids": [[*map(ord, text.replace("  ", "\u2003"))] for text in texts]}


def test_a_tokenizer_without_offsets_is_cut_as_well() -> None:
    assert next(encode_pieces([("ab", "cd ", "e")], Slow())) == [[97, 98], [99, 100, 32], [101]]


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    assert next(encode_pieces([("ab", "cd")], Stubborn())) == [[1, 97, 98], [99, 100]]
    with pytest.raises(CutError, match=r"one token of the end of 'a ' and the beginning of ' b'"):
        next(encode_pieces([("a ", " b")], Stubborn()))
    tokenizer: Any = Stubborn()
    tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids = 2, lambda names: [2]
    with pytest.raises(DataError, match=r"records\.jsonl, line 1: the tokenizer makes one token .*`data\.prompt_templ"):
        examples(tmp_path, {"prompt": "a", "response": " b"}, tokenizer, data(prompt_template="{problem} "))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_text_that_is_put_into_a_response_has_no_blank_of_its_own(kind: str) -> None:
    tokenizer = family(kind, ("</think>",))
    ids = continuation("\n</think>\n\n", tokenizer)
    before = ids_of("four", tokenizer)
    assert tokenizer.decode([*before, *ids]) == tokenizer.decode(ids_of("four\n</think>\n\n", tokenizer))


@pytest.mark.parametrize("kind", FAMILIES)
def test_prompts_of_training_by_reward_are_encoded_as_one_text(tmp_path: Path, kind: str) -> None:
    """The beginning of the response is a part of the prompt's text, not encoded apart."""
    tokenizer = family(kind)
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"problem": "What is one two?", "answer": "3"}) + "\n")
    given = Data(train=[TrainSource(path=str(path))], chat_template=ZEPHYR, response_prefix="Paris is")
    (prompt,) = prepare(given, tokenizer).train
    assert prompt.text == "<|user|>\nWhat is one two?</s>\n<|assistant|>\nParis is"
    assert prompt.token_ids.tolist() == ids_of(prompt.text, tokenizer)
