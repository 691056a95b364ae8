"""What a step of vLLM adds to a response, and when that has ended; vLLM's output is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from number_engine import Numbers

from dapo.rollout.stops import StopStrings
from dapo.rollout.vllm_made import VllmResponse, name_of
from dapo.types.batch import Key, SampleRequest, SamplingParams
from dapo.types.enums import FinishReason

KEY = Key("train", 4, 1)


def response(*stop):
    return VllmResponse(SampleRequest(KEY, np.array([5, 6]), SamplingParams(max_tokens=9, stop=stop), 7))


def output(tokens, finish=None, logprobs=None):
    made = [-0.5] * len(tokens) if logprobs is None else logprobs
    return SimpleNamespace(token_ids=tokens, logprobs=SimpleNamespace(logprobs=made), finish_reason=finish)


def test_tokens_add_up_and_carry_the_version_that_made_them():
    one = response()
    assert one.take_in(output([8, 9]), 1, None) is None
    end = one.take_in(output([4], "stop"), 2, None)
    event = one.event(end.finish, 30, end.reason)
    assert (event.key, event.finish, event.tick, event.reason) == (KEY, FinishReason.STOP, 30, None)
    assert event.token_ids.tolist() == [8, 9, 4]
    assert event.logprobs.tolist() == [-0.5] * 3
    assert event.versions.tolist() == [1, 1, 2]
    assert name_of(KEY) == "train-4-1"


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", (FinishReason.STOP, None)),
        ("length", (FinishReason.LENGTH, None)),
        ("abort", (FinishReason.FAILED, "vLLM ended it with 'abort'")),
    ],
)
def test_how_vllm_ends_it(finish, expected):
    assert response().take_in(output([8], finish), 1, None) == expected


def test_logits_that_are_not_finite_end_it_and_add_nothing():
    one = response()
    end = one.take_in(output([8, 9], "length", [-0.5, float("nan")]), 1, None)
    assert end == (FinishReason.FAILED, "the model's logits are not finite")
    assert one.token_ids == one.logprobs == one.versions == []


def test_a_stop_string_ends_it_and_what_vllm_made_behind_it_is_dropped():
    one, strings = response("w11"), StopStrings(Numbers)
    assert one.take_in(output([10]), 1, strings) is None
    end = one.take_in(output([11, 12, 13]), 3, strings)
    assert end == (FinishReason.STOP, None)
    assert (one.token_ids, one.versions) == ([10, 11], [1, 3])
    assert len(one.logprobs) == 2
