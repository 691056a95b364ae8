"""The engine contract, kept by the engines of this process and by the client of a server."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch
from engine_contract import CHECKS, Subject, drain
from number_engine import Numbers
from quick import quick
from server_parts import building
from tickets import in_folder, to_model

from dapo.engines import fused
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.generate import GenerateEngine
from dapo.engines.stops import StopStrings
from dapo.errors import EngineError
from dapo.models.attention import own_attention
from dapo.types.enums import FinishReason

KINDS = ["fused", "generic", "generate"]


def bad_requests(subject: Subject, vocabulary: int, longest: int) -> dict:
    return {
        "empty prompt": subject.request(5, prompt_ids=()),
        f"token {vocabulary}": subject.request(5, prompt_ids=(3, vocabulary)),
        "token -1": subject.request(5, prompt_ids=(-1, 3)),
        "lower rollout.max_response_tokens|shorter": subject.request(5, max_tokens=longest),
    }


def subject_of(kind, shares, fresh, monkeypatch) -> Subject:
    if kind == "generic":
        monkeypatch.setattr(fused, "why_not", lambda model: "switched off by the test")
    loaded = replace(fresh("qwen3"), tokenizer=Numbers)  # the learner's
    start = {name: x.clone() for name, x in loaded.model.state_dict().items()}

    def source(number):
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for name, x in loaded.model.state_dict().items():
                x.copy_(start[name] + 0.01 * number * torch.randn(x.shape, generator=generator))
        return to_model(number, loaded.model)

    def make(slots):
        ticket = source(0)
        own = loaded if shares else replace(fresh("qwen3"), tokenizer=Numbers)
        if kind == "generate":
            engine = GenerateEngine(own, slots=slots, shares_weights=shares)
        else:
            engine = EmbeddedEngine(own, slots=slots, shares_weights=shares, keeps=True)
        assert kind == "generate" or engine.decoder.name == kind
        engine.load(ticket)
        return engine

    def plain(version, prompt, response):
        source(version)
        tokens = torch.tensor([*prompt, *response])[None]
        with torch.no_grad(), own_attention(loaded.model):
            logits = loaded.model(tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None])[:, 0].numpy()

    subject = Subject(make, source, stepwise=kind != "generate", text=Numbers.decode, plain=plain)
    subject.keeps_slots = None if kind == "generate" else lambda engine: len(engine.kept)
    subject.bad = bad_requests(subject, loaded.model.config.vocab_size, loaded.model.config.max_position_embeddings)
    return subject


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("kind", "shares"), quick(product(KINDS, [True, False]), [("fused", False), ("fused", True), ("generic", True)])
)
def test_engines_of_this_process(kind, shares, check, fresh, monkeypatch):
    check(subject_of(kind, shares, fresh, monkeypatch))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_client_of_a_server(check, tmp_path):
    pytest.importorskip("aiohttp")
    servers = []

    @contextmanager
    def standing():
        for server in servers:
            server.hold = True
        yield
        for server in servers:
            server.hold = False

    def make(slots):
        server, engine = build(published=0, slots=slots, strings=StopStrings(Numbers))
        servers.append(server)
        return engine

    with building(tmp_path) as build:
        subject = Subject(
            make,
            lambda number: in_folder(number, {"value": torch.tensor(float(number))}, tmp_path / "weights"),
            repeats=False,
            stepwise=False,
            counts=False,
            standing=standing,
            text=Numbers.decode,
        )
        subject.bad = bad_requests(subject, 40, 64)
        check(subject)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_raises_loses_no_request(kind, fresh, monkeypatch, help):
    """Out of memory in a forward pass: what was being made comes back from ``abort``."""
    subject = subject_of(kind, True, fresh, monkeypatch)
    engine = subject.make(slots=2)
    engine.submit([subject.request(g, max_tokens=4 + g) for g in range(4)])
    whole = drain(engine)

    def fails(*_, **__):
        raise torch.OutOfMemoryError("no memory left")

    for calls in (0, 1, 3):  # in the prefill, or while decoding
        engine.submit([subject.request(g, max_tokens=4 + g) for g in range(4)])
        left = iter(range(calls))
        head = type(engine._loaded).head

        def now_and_then(self, hidden, left=left, head=head):
            return head(self, hidden) if next(left, None) is not None else fails()

        with monkeypatch.context() as patch:
            patch.setattr(type(engine._loaded), "head", now_and_then)
            patch.setattr(type(engine._loaded.model), "generate", fails)
            with pytest.raises(EngineError):
                drain(engine)
        assert {event.key for event in engine.abort()} == set(whole)
        assert engine.poll() == []
        engine.submit([subject.request(g, max_tokens=4 + g) for g in range(4)])
        again = drain(engine)
        assert {key: e.token_ids.tolist() for key, e in again.items()} == {
            key: e.token_ids.tolist() for key, e in whole.items()
        }


def test_what_ended_before_the_model_raises_is_not_lost(fresh, monkeypatch):
    """Response 0 ends with its first token, and memory runs out in the decode step of the same poll."""
    subject = subject_of("fused", True, fresh, monkeypatch)
    engine = subject.make(slots=2)
    engine.submit([subject.request(0, max_tokens=1), subject.request(1, max_tokens=8)])

    def fails(*_, **__):
        raise torch.OutOfMemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(engine.decoder, "decode", fails)
        with pytest.raises(EngineError, match="the device has no memory left"):
            engine.poll()
    events = engine.abort()
    assert [(event.key[0], len(event.token_ids), event.finish) for event in events] == [
        (0, 1, FinishReason.LENGTH),
        (1, 1, None),
    ]
