"""Stop strings in tokens: where a response ends, however its text is cut into tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dapo.engines.stops import StopStrings
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.sampling.texts import Texts, cut_text
from dapo.models.tiny import make_word_tokenizer
from dapo.types.batch import Key, Response, SampleRequest, SamplingParams
from dapo.types.enums import FinishReason

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def byte_tokenizer(*merged: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE: each byte is a token, and so are ``merged`` (with all that leads to them)."""
    vocabulary = {"<eos>": 0} | {c: n + 1 for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for text in merged:
        word = "".join(piece for piece, _ in BYTES.pre_tokenize_str(text))
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = BYTES
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")


def by_definition(tokenizer, ids, stops):
    """The first token behind which the whole text holds a stop string."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], skip_special_tokens=True)
        if any(stop in text for stop in stops):
            return count
    return None


@pytest.mark.parametrize("stops", [("</a>",), ("a>b", "</"), ("é</",), ("x\n\n",), ("日",), ("</a>", "</a", "b ")])
def test_the_end_is_the_first_token_behind_which_the_text_holds_it(stops):
    tokenizer, draw = byte_tokenizer("</a>b", "a>", "日本", " é"), random.Random(7)
    finder = StopStrings(tokenizer)
    found = 0
    for _ in range(150):
        text = "".join(draw.choice(["</", "a>", "b", " ", "é", "日本", "\n", "x", "</a", ">"]) for _ in range(12))
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if draw.random() < 0.5:  # as a model may sample it: not the tokens that the tokenizer would choose
            ids = [token for c in text for token in tokenizer(c, add_special_tokens=False)["input_ids"]]
        ids = [token for one in ids for token in ([0, one] if draw.random() < 0.2 else [one])]
        expected = by_definition(tokenizer, ids, stops)
        assert finder.first(ids, stops) == expected
        steps = (n for n in range(1, len(ids) + 1) if finder.ends_with(np.array(ids[:n]), stops))
        assert next(steps, None) == expected  # token by token, as an engine that decodes sees it
        found += expected is not None
    assert 0 < found < 150


def test_words_with_spaces_between_them():
    tokenizer = make_word_tokenizer(["the", "end", "ending", "is"])
    ids = tokenizer("the ending is the end is", add_special_tokens=False)["input_ids"]
    finder = StopStrings(tokenizer)
    assert finder.first(ids, ("the end",)) == 2  # "the ending" holds it
    assert finder.first(ids, ("the end ",)) == by_definition(tokenizer, ids, ("the end ",)) == 6
    assert finder.first(ids, ("no",)) is None


def test_the_text_before_the_first_of_them():
    assert cut_text("a </x> b </y>", ("</y>", "</x>"), keep=False) == "a "
    assert cut_text("a </x> b </y>", ("</y>", "</x>"), keep=True) == "a </x>"
    assert cut_text("a\n\nb", ("\n", "\n\n"), keep=True) == "a\n\n"  # of two that begin together the longer one
    assert cut_text("a", ("b",), keep=True) == "a"


class Fixed:
    """An engine that says what it is told to."""

    def __init__(self, *events):
        self.events = list(events)

    def submit(self, requests):
        pass

    def poll(self, timeout=None):
        events, self.events = self.events, []
        return events


def responses(ids, finish, keep=False, prefix="", stop=("</a>",)):
    tokenizer = byte_tokenizer("</a>b")
    ids = [t for piece in ids for t in ([piece] if isinstance(piece, int) else encode(tokenizer, piece))]
    key, params = Key("train", 0, 0), SamplingParams(max_tokens=99, stop_token_ids=(0,), stop=stop)
    arrays = np.array(ids), -np.ones(len(ids), np.float32), np.zeros(len(ids), np.int32)
    event = Response(*arrays, finish, key=key, tick=1)
    texts = Texts(
        lambda rows: tokenizer.batch_decode([row.tolist() for row in rows], skip_special_tokens=True),
        response_prefix=prefix,
        first_stop=StopStrings(tokenizer).first,
        keep_stop=keep,
    )
    rollouts = Rollouts(Fixed(event), None, texts)
    rollouts.submit([SampleRequest(key, np.array([1]), params, 0)])
    assert rollouts.pump()
    (one,) = rollouts.ended("train")
    return one


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("keep", "text"), [(False, "So 5"), (True, "So 5</a>")])
def test_rewards_see_the_text_before_it_and_training_every_token(keep, text):
    made = responses(["So 5", "</a>b"], FinishReason.STOP, keep)
    assert (made.text, made.finish) == (text, FinishReason.STOP)
    assert len(made) == 5  # "</a>b" is one token, sampled as one
    assert responses(["So 5", "</a>b"], FinishReason.STOP, keep, prefix="</a>!").text == "</a>!" + text


def test_a_stop_token_ends_before_any_string():
    made = responses(["So 5", 0], FinishReason.STOP)
    assert (made.text, len(made)) == ("So 5", 5)


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP])
def test_an_engine_that_reads_no_text_gives_the_same_response(finish):
    """One of the user's own goes on; what it made beyond the string is left out."""
    told = responses(["So 5", "</a>b"], FinishReason.STOP)
    deaf = responses(["So 5", "</a>b", " and more", 0], finish)
    assert deaf.text == told.text
    assert deaf.finish is FinishReason.STOP
    assert deaf.token_ids.tolist() == told.token_ids.tolist()
    assert len(deaf.logprobs) == len(deaf.versions) == len(told)
