"""Answers of a vLLM server that cannot be what was asked for: not believed, and asked for again."""

from __future__ import annotations

import pytest
from server_parts import building, drain, finish_under, requests

from dapo.types.enums import FinishReason

pytest.importorskip("aiohttp")
ASKED = 8


@pytest.fixture
def make(tmp_path):
    """Makes a server and an engine that has published version 1 (the number 1)."""
    with building(tmp_path) as build:
        yield build


def choice(label, tokens=range(2, 2 + ASKED), finish="length", **changed):
    tokens = list(tokens)
    return {
        "token_ids": tokens,
        "logprobs": {"content": [{"logprob": -5.0} for _ in tokens]},
        "weight_versions": [{"version": label, "start": 0, "end": len(tokens)}],
        "finish_reason": finish,
    } | changed


def spans(*limits):
    return lambda label: [{"version": label, "start": start, "end": end} for start, end in limits]


WRONG = {
    "more than asked": {"tokens": range(2, 20)},
    "none": {"tokens": ()},
    "too few": {"tokens": (5, 6)},
    "outside the vocabulary": {"tokens": (40, *range(2, 9))},
    "negative": {"tokens": (-5, *range(2, 9))},
    "no integer": {"tokens": (2.5, *range(2, 9))},
    "beyond 64 bits": {"tokens": (2**70, *range(2, 9))},
    "stop without a stop token": {"tokens": (5, 6), "finish": "stop"},
    "stop without a token": {"tokens": (), "finish": "stop"},
    "bare numbers": {"logprobs": {"content": [-5.0] * ASKED}},
    "a list of numbers": {"logprobs": [-5.0] * ASKED},
    "numbers in lists": {"logprobs": {"content": [{"logprob": [-5.0]}] * ASKED}},
    "late span": {"weight_versions": spans((2, 2 + ASKED))},
    "spans twice": {"weight_versions": spans((0, 4), (0, 4))},
    "a gap": {"weight_versions": spans((0, 2), (4, ASKED + 2))},
    "backwards": {"weight_versions": spans((0, -1), (-1, ASKED))},
    "no numbers in spans": {"weight_versions": spans((None, ASKED))},
    "spans of another form": {"weight_versions": [[0, ASKED]]},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_not_believed(make, help, changes):
    server, engine = make()
    made = {name: value(server.label) if callable(value) else value for name, value in changes.items()}
    server.answers = [(200, {"choices": [choice(server.label, **made)]})]
    engine.submit(requests(help, 1, 1))
    finish_under(drain(engine, 1), 1, 1)  # those made above have other log-probabilities
    assert len(server.generated) == 2


def test_the_same_answer_without_a_fault_is_believed(make, help):
    server, engine = make()
    server.answers = [(200, {"choices": [choice(server.label, weight_versions=spans((0, 3), (3, 8))(server.label))]})]
    engine.submit(requests(help, 1, 1))
    assert drain(engine, 1)[(0, 0)].logprobs.tolist() == [-5.0] * ASKED


def test_a_stop_token_ends_early(make, help):
    server, engine = make()
    server.answers = [(200, {"choices": [choice(server.label, tokens=(5, 6), finish="stop")]})]
    engine.submit(requests(help, 1, 1, stop_token_ids=(6,)))
    assert drain(engine, 1)[(0, 0)].token_ids.tolist() == [5, 6]


def test_a_server_that_does_not_name_its_context_may_end_before_the_limit(make, help):
    server, engine = make(context=None)
    server.answers = [(200, {"choices": [choice(server.label, tokens=(5, 6))]})]
    engine.submit(requests(help, 1, 1))
    event = drain(engine, 1)[(0, 0)]
    assert event.finish is FinishReason.LENGTH
    assert event.token_ids.tolist() == [5, 6]


def test_a_wrong_answer_that_stays_names_what_is_wrong(make, help, monkeypatch):
    monkeypatch.setattr("dapo.engines.vllm_dispatch._FIRST_PAUSE", 0.001)
    server, engine = make()
    server.answers = [(200, {"choices": [choice(server.label, tokens=(5, 6))]})] * 10
    engine.submit(requests(help, 1, 1))
    event = drain(engine, 1)[(0, 0)]
    assert event.finish is FinishReason.FAILED
    assert "6 times" in event.reason
    assert "after 2 of 8 tokens" in event.reason
    assert "--max-model-len" in event.reason
