"""Replies as tokens: what ten public templates keep of earlier turns, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from each import each

from dapo.config.schema import Data, TrainSource
from dapo.data.formats import RawProblem
from dapo.data.render import make_prompts
from dapo.environments.speech import find_format, make_speech
from dapo.errors import RecipeError
from dapo.models.tiny import make_word_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "data"))
from test_data_templates import KWARGS, SPECIAL, tokenizer

REFUSED = {  # (template, thinking, role); every other is kept
    *((name, thinking, "tool") for name in ("gemma2", "mistral-v0.3", "deepseek-r1-distill") for thinking in (0, 1)),
    *((name, thinking, "user") for name in ("mistral-v0.3", "deepseek-r1-distill") for thinking in (0, 1)),
    ("qwen3", 1, "user"),
    ("qwen3", 1, "tool"),
}
ALTERNATE = ("gemma2", "mistral-v0.3")  # refuse a second message of the user
HERMES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def data(name: str, thinking: bool = False, **more) -> Data:
    kwargs = KWARGS.get(name, {})
    sources = [TrainSource(task="signed_sum")]
    return Data(train=sources, chat_template_kwargs=kwargs, thinking={"enabled": bool(thinking)}, **more)


@each("thinking", [0, 1])
@each("role", ["user", "tool"])
@each("name", SPECIAL)
def test_a_template_is_appended_to_or_refused(name, role, thinking):
    coder = tokenizer(name)
    speech = make_speech(data(name, thinking), coder, chat=True)
    if (name, thinking, role) in REFUSED:
        with pytest.raises(RecipeError, match=f"cannot be appended to by the role `{role}`"):
            speech.check(role)
        return
    speech.check(role)
    message = {"role": role, "content": "No.", "name": "add", "tool_call_id": "t0000c000"}
    said = "<think>\nHm.\n</think>\n\n7" if thinking else "7"
    begin = [{"role": "user", "content": "2+2?"}]
    own = KWARGS.get(name, {})
    asked = coder.apply_chat_template(begin, tokenize=False, add_generation_prompt=True, **own)
    whole = [*begin, {"role": "assistant", "content": said}, message]
    expected = coder.apply_chat_template(whole, tokenize=False, add_generation_prompt=True, **own)
    sampled = coder(said + speech.end_of_turn, add_special_tokens=False)["input_ids"]
    row = [*coder(asked, add_special_tokens=False)["input_ids"], *sampled, *speech.reply([message], closed=True)]
    assert coder.decode(row) == expected
    open_turn = [
        *row[: len(row) - len(speech.reply([message], closed=True)) - 1],
        *speech.reply([message], closed=False),
    ]
    assert coder.decode(open_turn) == expected  # a stop string ended it: the end of the turn comes with the reply


@each("name", SPECIAL)
def test_what_is_said_first_follows_the_problem_as_in_one_conversation(name):
    """The prompt asks for nothing yet, so no empty turn of the model stands before the environment's first words."""
    coder, own = tokenizer(name), data(name)
    speech = make_speech(own, coder, chat=True)
    (prompt,) = make_prompts([RawProblem(problem="2+2?", answer="4", row="a")], "a", own, coder, ask=False)
    for messages in ([], [{"role": "user", "content": "Quick."}]):
        if name in ALTERNATE and messages:
            with pytest.raises(RecipeError, match="cannot write what the environment says before the model speaks"):
                speech.opening(messages)
            continue
        whole = coder.apply_chat_template(
            [{"role": "user", "content": "2+2?"}, *messages],
            tokenize=False,
            add_generation_prompt=True,
            **KWARGS.get(name, {}),
        )
        assert coder.decode([*prompt.token_ids, *speech.opening(messages)]) == whole


def test_the_last_word_asks_for_no_further_turn():
    speech = make_speech(data("chatml"), tokenizer("chatml"), chat=True)
    ids = speech.reply([{"role": "user", "content": "Right."}], closed=True, ask=False)
    assert tokenizer("chatml").decode(ids) == "\n<|im_start|>user\nRight.<|im_end|>\n"


def test_the_format_of_calls_is_found_or_asked_for():
    own = data("chatml", chat_template=HERMES)
    assert find_format(own, tokenizer("chatml"), chat=True) == "hermes"
    with pytest.raises(RecipeError, match="name one of hermes, llama3, mistral, python, or module:function"):
        find_format(data("chatml"), tokenizer("chatml"), chat=True)
    with pytest.raises(RecipeError, match="there is no chat template"):
        find_format(data("chatml"), tokenizer("chatml"), chat=False)


def test_without_a_template_a_reply_is_its_text():
    words = make_word_tokenizer()
    speech = make_speech(data("none"), words, chat=False)
    assert np.array_equal(speech.reply([{"role": "user", "content": "+3 ="}], closed=True), words("+3 =")["input_ids"])
    with pytest.raises(ValueError, match="has no tokens for a part of 'plus'"):
        speech.reply([{"role": "user", "content": "plus"}], closed=True)


def test_a_long_reply_loses_its_middle_and_says_so():
    coder = tokenizer("chatml")
    speech = make_speech(data("chatml"), coder, chat=True)
    assert speech.shorten("abcdefgh", 8) == "abcdefgh"
    assert speech.shorten("abcdefghij", 5) == "abc [... 5 tokens cut ...] ij"


def test_a_tokenizer_without_these_words_cuts_and_says_nothing():
    """Else a long reply would be an error there: it could not be written."""
    words = make_word_tokenizer()
    speech = make_speech(data("none"), words, chat=False)
    short = speech.shorten("+1 +2 +3 +4 +5 +6", 5)
    assert short == "+1 +2 +3 +5 +6"
    assert len(speech.reply([{"role": "user", "content": short}], closed=True)) == 5


@pytest.mark.parametrize("rows", ["append", "turns"])
def test_a_template_without_an_end_of_turn_is_refused_with_moves_that_fit_both_modes(rows):
    plain = "{% for message in messages %}{{ message.content }} {% endfor %}"
    with pytest.raises(RecipeError, match="ends no turn of the assistant with a special token") as caught:
        make_speech(data("plain", chat_template=plain), tokenizer("qwen3"), chat=True, rows=rows)
    assert "role" not in str(caught.value)  # no role has such an end
    assert "rows: turns" not in str(caught.value)  # neither mode does without
