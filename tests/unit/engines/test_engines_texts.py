"""Responses that engines in processes of their own decode have the text that the driver would have made."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from dapo.config.load import recipe_from_dict
from dapo.engines.host import EngineHost
from dapo.loop.sampling.rollouts import Rollouts
from dapo.run.decoding import decode_spec, make_texts
from dapo.types.batch import Key, Response, SampleRequest, SamplingParams
from dapo.types.enums import FinishReason

OPEN, CLOSE = "<think>", "</think>"
RECIPES = {
    "plain": {},
    "stop strings": {"rollout": {"stop": ["b7", "é"]}},
    "stop strings kept": {"rollout": {"stop": ["b7"], "include_stop_str_in_output": True}},
    "thinking": {"data": {"thinking": {"enabled": True}}},
    "after a prefix": {"data": {"response_prefix": "b"}},
    "all": {
        "rollout": {"stop": ["b7"]},
        "data": {"response_prefix": OPEN, "thinking": {"enabled": True}},
    },
}


def make_tokenizer(*, special: bool) -> PreTrainedTokenizerFast:
    """Byte-level, with tags of thinking that decoding drops if they are ``special``."""
    made = Tokenizer(BPE({c: n for n, c in enumerate(sorted(ByteLevel.alphabet()))}, []))
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    made.add_special_tokens(["<eos>"])
    made.add_tokens([AddedToken(tag, special=special) for tag in (OPEN, CLOSE)])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")


class Given:
    """An engine that gives events which were made before."""

    capacity, clock, version, shares_weights = 1, 0, 0, False

    def __init__(self, event: Response) -> None:
        self.event = event

    def submit(self, requests):
        pass

    def poll(self, timeout=None):
        self.clock += 1
        return [self.event]

    def abort(self, keys=None):
        return [self.event]

    def stats(self):
        return {}


def completion(texts, request, event):
    rollouts = Rollouts(Given(event), None, texts)
    rollouts.submit([request])
    rollouts.pump()
    (made,) = rollouts.ended("train")
    return made


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_the_driver_gets_the_text_that_it_would_make(tmp_path, name, special):
    tokenizer = make_tokenizer(special=special)
    tokenizer.save_pretrained(tmp_path)
    sections = RECIPES[name]
    recipe = recipe_from_dict(
        {
            "model": {"path": str(tmp_path)},
            "data": {"train": [{"task": "signed_sum", "size": 8}], **sections.get("data", {})},
            "rollout": {"max_response_tokens": 20, **sections.get("rollout", {})},
            "rewards": [{"kind": "task"}],
        }
    ).recipe
    texts, decode = make_texts(recipe, tokenizer), decode_spec(recipe, tokenizer, str(tmp_path)).make()
    some = [
        tokenizer.eos_token_id,
        *tokenizer(f"{OPEN}{CLOSE}b7 é日\n", add_special_tokens=False)["input_ids"],
        *tokenizer("b7", add_special_tokens=False)["input_ids"] * 3,
    ]
    params = SamplingParams(20, stop_token_ids=(tokenizer.eos_token_id,), stop=tuple(recipe.rollout.stop))
    rng, seen = np.random.default_rng(0), set()
    for _ in range(150):
        before, made = (rng.choice(some, rng.integers(low, 60)).astype(np.int64) for low in (0, 1))
        finish = FinishReason(rng.choice(list(FinishReason)))
        numbers = np.zeros(len(before), np.float32), np.zeros(len(before), np.int32)
        prefix = Response(before, *numbers) if rng.random() < 0.5 else None
        request = SampleRequest(Key("train", 0, 0), rng.choice(some, 4), params, 0, prefix)
        arrays = made, np.zeros(len(made), np.float32), np.zeros(len(made), np.int32)
        event = Response(*arrays, finish, key=request.key)
        host = EngineHost(Given, event, decode=decode)
        (travelled,) = host.turn([request], 1).events
        assert travelled.token_ids.dtype == np.int32
        ours, theirs = completion(texts, request, event), completion(texts, request, travelled)
        assert np.array_equal(ours.token_ids, theirs.token_ids)
        for field in ("text", "finish", "answer", "thinking", "closed"):
            assert getattr(ours, field) == getattr(theirs, field)
        seen.add(ours.text)
    assert len(seen) > 100
