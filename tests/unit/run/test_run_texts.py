"""How a recipe's responses become text: stop strings, tags of thinking, and the budget."""

from __future__ import annotations

import numpy as np
import pytest
from each import each
from tokenizer_families import family
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from dapo.config.load import recipe_from_dict
from dapo.errors import RecipeError
from dapo.models.tiny import make_word_tokenizer
from dapo.run.decoding import make_texts


def recipe(data=None, rollout=None, rewards=None):
    return recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum", "size": 8}], **(data or {})},
            "rollout": {"max_response_tokens": 20, **(rollout or {})},
            "rewards": rewards or [{"kind": "task"}],
        }
    ).recipe


def thinks(**settings):
    return {"thinking": {"enabled": True, **settings}}


THINKS = thinks()


def tokenizer():
    return make_word_tokenizer(["<think>", "</think>", "So", "5", "[assistant]"])


def test_off_unless_asked_for():
    texts = make_texts(recipe(), tokenizer())
    assert (texts.thinking, texts.first_stop, texts.response_prefix, texts.keep_stop) == (None, None, "", False)


def test_ids_beyond_the_tokenizer_are_told_once(caplog):
    decode, known = make_texts(recipe(), tokenizer()).decode, len(tokenizer())
    assert decode([np.array([known - 1, 1]), np.array([], dtype=np.int64)]) == ["[assistant]", ""]
    assert caplog.records == []
    decode([np.array([known - 1]), np.array([known + 3, 1])])
    decode([np.array([known])])
    (record,) = caplog.records
    assert f"sampled id {known + 3}, and its tokenizer has {known} tokens" in record.getMessage()


def test_a_prompt_that_ends_with_the_opening_tag_begins_the_thinking():
    words = tokenizer()
    ids = {
        text: np.array(words(text)["input_ids"]) for text in ("<think> So", "[assistant] <think>", "<think> </think>")
    }
    thinking = make_texts(recipe(THINKS), words).thinking
    assert [thinking.begun(one) for one in ids.values()] == [False, True, False]
    prefixed = make_texts(recipe({**THINKS, "response_prefix": " So"}), words).thinking
    assert [prefixed.begun(one) for one in ids.values()] == [True, True, False]


def test_a_thinking_over_budget_is_ended_by_the_tag_or_the_recipe_s_text():
    words = tokenizer()
    assert make_texts(recipe(thinks(budget=8)), words).thinking.forced.tolist() == words("</think>")["input_ids"]
    own = make_texts(recipe(thinks(budget=8, end="So </think> 5")), words).thinking
    assert own.forced.tolist() == words("So </think> 5")["input_ids"]
    assert own.budget == 8


def test_the_text_that_ends_a_thinking_has_no_blank_of_the_tokenizers_in_front():
    words = family("blank_always", ("<think>", "</think>"))
    settings = recipe(thinks(budget=4, end="So</think>"))
    ids = make_texts(settings, words).thinking.forced.tolist()
    assert words.convert_ids_to_tokens(words("So", add_special_tokens=False)["input_ids"]) == ["▁So"]
    assert words.convert_ids_to_tokens(ids) == ["So", "</think>"]


@each(
    ("data", "rollout", "rewards", "said"),
    [
        ({"thinking": {"budget": 8}}, {}, None, r"data\.thinking\.budget.*needs data\.thinking\.enabled"),
        (thinks(budget=20), {}, None, r"leaves no token for an answer: rollout\.max_response_tokens is 20"),
        (thinks(end="</think>"), {}, None, r"data\.thinking\.end.*only read with data\.thinking\.budget"),
        (thinks(budget=8, end="So"), {}, None, r"does not hold '</think>'"),
        ({"thinking": {"close": "x"}}, {}, None, r"data\.thinking\.close.*only read with data\.thinking\.enabled"),
        ({"thinking": {"enabled": True, "open": "x", "close": "x"}}, {}, None, "needs two different tags"),
        ({}, {}, [{"kind": "task", "reads": "response"}], r"rewards\.0\.reads.*only read with data\.thinking"),
        (THINKS, {}, [{"kind": "function", "function": "a:b", "reads": "answer"}], "a function gets both"),
        ({}, {"stop": [""]}, None, r"rollout\.stop\.0.*is empty"),
        ({}, {"stop": ["a", "a"]}, None, r"rollout\.stop\.1.*stands there twice"),
        ({}, {"include_stop_str_in_output": True}, None, "only read with stop strings"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(data, rollout, rewards, said):
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        recipe(data, rollout, rewards)


def test_what_the_tokenizer_cannot_write_is_refused():
    words = tokenizer()
    with pytest.raises(RecipeError, match=r"rollout\.stop: '<eos>' is a special token.*_ids, with 1 in addition"):
        make_texts(recipe(rollout={"stop": ["<eos>"]}), words)
    with pytest.raises(RecipeError, match=r"18 tokens and the 2 that end the thinking leave none of 20"):
        make_texts(recipe(thinks(budget=18, end="</think> 5")), words)
    with pytest.raises(RecipeError, match=r"the tokenizer cannot write '</nope>'"):
        make_texts(recipe(thinks(close="</nope>", budget=8)), words)


TAGS = ("[THINK]", "[/THINK]")
TAGGED = {"thinking": {"enabled": True, "open": TAGS[0], "close": TAGS[1]}}


def bytes_tokenizer(how):
    """Of bytes, with tags that are added tokens: ``plain`` (as in Qwen3), ``special``, or so ``with a role``."""
    alphabet = sorted(ByteLevel.alphabet())
    raw = Tokenizer(BPE({letter: n for n, letter in enumerate(alphabet)}, [], ignore_merges=True))
    raw.pre_tokenizer, raw.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", clean_up_tokenization_spaces=False)
    if how == "with a role":
        made.add_special_tokens({"additional_special_tokens": list(TAGS)})
    else:
        made.add_tokens([AddedToken(tag, special=how == "special", normalized=False) for tag in TAGS])
    return made


@pytest.mark.parametrize("how", ["special", "with a role"])
def test_tags_that_are_special_tokens_are_read_as_those_that_are_none(how):
    """Oracle: the same tokenizer in which they are plain added tokens, of the same numbers."""
    ours, theirs = bytes_tokenizer(how), bytes_tokenizer("plain")
    tags = ours.convert_tokens_to_ids(list(TAGS))
    assert tags == theirs.convert_tokens_to_ids(list(TAGS))
    assert "THINK" not in ours.decode(tags, skip_special_tokens=True)  # or there is nothing to test
    settings = recipe(thinks(**TAGGED["thinking"], budget=4, end="So[/THINK]"))
    one, other = make_texts(settings, ours), make_texts(settings, theirs)
    assert one.thinking.forced.tolist() == other.thinking.forced.tolist()
    rng = np.random.default_rng(0)
    texts = set()
    for _ in range(300):
        some = [*tags, *tags, ours.eos_token_id, *ours("a 7", add_special_tokens=False)["input_ids"]]
        ids = rng.choice(some, size=rng.integers(1, 9)).astype(np.int64)
        text = one.decode([ids])[0]
        assert text == other.decode([ids])[0]
        assert one.thinking.begun(ids) == other.thinking.begun(ids)
        for begun in (False, True):
            assert one.thinking.answer(text, begun) == other.thinking.answer(text, begun)
        closings = text.count(TAGS[1])
        assert one.thinking.tokens(ids, closings) == other.thinking.tokens(ids, closings)
        assert one.thinking.tokens(ids, closings) == max(
            (n + 1 for n in range(len(ids)) if ids[n] == tags[1]), default=0
        )
        texts.add(text)
    assert len(texts) > 100


def test_without_thinking_special_tokens_stand_in_no_text():
    words = bytes_tokenizer("special")
    ids = np.array(words("a[THINK]7<eos>", add_special_tokens=False)["input_ids"])
    assert make_texts(recipe(), words).decode([ids]) == ["a7"]
    assert make_texts(recipe(TAGGED), words).decode([ids]) == ["a[THINK]7"]


@pytest.mark.parametrize(
    ("stop", "said"),
    [(["[/THINK]"], r"'\[/THINK\]' is a special token.*stop_token_ids, with 258"), (["THINK"], "is a part of a tag")],
)
def test_stop_strings_that_no_engine_would_see_are_refused(stop, said):
    with pytest.raises(RecipeError, match=said):
        make_texts(recipe(TAGGED, {"stop": stop}), bytes_tokenizer("special"))
    assert make_texts(recipe(TAGGED, {"stop": ["THINK"]}), bytes_tokenizer("plain")).first_stop is not None
