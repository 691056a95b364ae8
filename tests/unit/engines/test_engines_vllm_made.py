"""What a step of vLLM adds to a response, and when that has ended; vLLM's output is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from number_engine import Numbers

from dapo.engines.stops import StopStrings
from dapo.engines.vllm_made import RouteShape, VllmResponse, name_of
from dapo.errors import EngineError
from dapo.types.batch import Key, Response, SampleRequest, SamplingParams
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


EXPERTS = SimpleNamespace(
    name="m",
    shapes={"model.layers.1.mlp.experts.down_proj": (8, 4, 4), "model.layers.0.mlp.down_proj.weight": (4, 4),
            "model.layers.2.mlp.experts.gate_up_proj": (8, 8, 4), "model.layers.2.mlp.shared_experts.up.weight": (4,)},
    config={"num_local_experts": None, "n_routed_experts": 8, "num_experts_per_tok": 2},
)  # fmt: skip


def routed(tokens, finish, prefix=None):
    """A response to two tokens, with what vLLM says of the first ``tokens`` tokens in its three layers."""
    request = SampleRequest(KEY, np.array([5, 6]), SamplingParams(max_tokens=9), 7, prefix=prefix)
    one = VllmResponse(request, RouteShape.of(EXPERTS))
    new = output([8, 9, 4], finish)
    given = np.arange(tokens * 3 * 2, dtype=np.uint8).reshape(tokens, 3, 2) % 8
    new.routed_experts = given if finish else None
    one.take_in(new, 1, None)
    return one.event(FinishReason.LENGTH, 1).extra["routes"], given[:, 1:] + 1


@pytest.mark.parametrize("tokens", [4, 5])
def test_experts_of_all_tokens_but_the_newest(tokens):
    """vLLM counts experts from 0, and gives a place to the first layer, which has none."""
    routes, expected = routed(tokens, "length")
    assert routes.dtype == np.uint8
    np.testing.assert_array_equal(routes[:4], expected[:4])
    assert routes.shape == (5, 2, 2)
    assert not routes[4].any()


def test_behind_a_prefix_only_new_tokens_have_experts():
    prefix = Response(np.array([1]), np.zeros(1, np.float32), np.zeros(1, np.int32))
    routes, expected = routed(6, "length", prefix)
    np.testing.assert_array_equal(routes[:2], expected[3:5])
    assert routes.shape == (3, 2, 2)


def test_a_request_that_was_stopped_has_none():
    routes, _ = routed(0, None)
    assert routes.shape == (5, 2, 2)
    assert not routes.any()


def test_a_dense_model_has_no_experts():
    with pytest.raises(EngineError, match=r"m has no experts to record; set learner\.router_replay=off"):
        RouteShape.of(SimpleNamespace(name="m", shapes={"model.layers.0.mlp.up.weight": (4, 4)}, config={}))
