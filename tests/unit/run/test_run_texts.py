"""How a recipe's responses become text: stop strings, tags of thinking, and the budget."""

from __future__ import annotations

import numpy as np
import pytest

from dapo.config.load import recipe_from_dict
from dapo.errors import RecipeError
from dapo.models.tiny import make_word_tokenizer
from dapo.run.texts import make_texts


def recipe(data=None, rollout=None, rewards=None):
    return recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum", "size": 8}], **(data or {})},
            "rollout": {"max_response_tokens": 20, **(rollout or {})},
            "rewards": rewards or [{"kind": "task"}],
        }
    ).recipe


THINKS = {"thinking": {"enabled": True}}


def tokenizer():
    return make_word_tokenizer(["<think>", "</think>", "So", "5", "[assistant]"])


def test_off_unless_asked_for():
    texts = make_texts(recipe(), tokenizer())
    assert (texts.thinking, texts.first_stop, texts.response_prefix, texts.keep_stop) == (None, None, "", False)


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
    words, budget = tokenizer(), {"thinking_budget": 8}
    assert make_texts(recipe(THINKS, budget), words).thinking.forced.tolist() == words("</think>")["input_ids"]
    own = make_texts(recipe(THINKS, {**budget, "thinking_end": "So </think> 5"}), words).thinking
    assert own.forced.tolist() == words("So </think> 5")["input_ids"]
    assert own.budget == 8


@pytest.mark.parametrize(
    ("data", "rollout", "rewards", "said"),
    [
        ({}, {"thinking_budget": 8}, None, r"rollout\.thinking_budget.*needs data\.thinking\.enabled"),
        (THINKS, {"thinking_budget": 20}, None, r"leaves no token for an answer: rollout\.max_response_tokens is 20"),
        (THINKS, {"thinking_end": "</think>"}, None, r"rollout\.thinking_end.*only read with rollout\.thinking_budget"),
        (THINKS, {"thinking_budget": 8, "thinking_end": "So"}, None, r"does not hold '</think>'"),
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
    with pytest.raises(RecipeError, match=r"rollout\.stop: '<eos>' is a special token.*stop_token_ids, with 1 beside"):
        make_texts(recipe(rollout={"stop": ["<eos>"]}), words)
    with pytest.raises(RecipeError, match=r"data\.thinking: <pad> is a special token"):
        make_texts(recipe({"thinking": {"enabled": True, "open": "<pad>"}}), words)
    with pytest.raises(RecipeError, match=r"18 tokens and the 2 that end the thinking leave none of 20"):
        make_texts(recipe(THINKS, {"thinking_budget": 18, "thinking_end": "</think> 5"}), words)
    tags = {"thinking": {"enabled": True, "close": "</nope>"}}
    with pytest.raises(RecipeError, match=r"the tokenizer cannot write '</nope>'"):
        make_texts(recipe(tags, {"thinking_budget": 8}), words)
