"""How often a decode step makes the host wait for its device, counted on a CPU by what would wait on CUDA."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from engine_requests import prompt, request
from tape import WAITS
from torch.utils._python_dispatch import TorchDispatchMode

from dapo.engines import cache, embedded, fused, generic, traffic
from dapo.engines.cache import SlotCache
from dapo.engines.embedded import EmbeddedEngine


class Watch(TorchDispatchMode):
    """Refuses what would wait; the one read of a step is let through."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in WAITS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def spied(monkeypatch):
    """What an engine sends and reads, in order, beside its decode steps."""
    seen = []

    def spy(module, name, said):
        real = getattr(module, name)

        def call(*args, **kwargs):
            seen.append(said(args))
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for module in (embedded, cache, fused, generic):
        spy(module, "send", lambda args: ("send", args[0].dtype.kind, args[0].shape))
    spy(embedded, "read", lambda args: ("read",))
    spy(fused.FusedDecoder, "decode", lambda args: ("decode",))
    spy(generic.GenericDecoder, "decode", lambda args: ("decode",))
    monkeypatch.setattr(embedded, "SlotCache", partial(SlotCache, fixed=True))
    return seen


@pytest.mark.parametrize(
    ("decoder", "architecture", "config"),
    [("fused", "qwen3", {}), ("generic", "phi3", {}), ("generic", "mistral", {"sliding_window": 16})],
)
def test_a_step_reads_once_and_draws_its_numbers_while_the_device_computes(decoder, architecture, config, model, spied):
    engine = EmbeddedEngine(model(architecture, **config), slots=4)
    assert engine.decoder.name == decoder
    engine.submit([request(0, i, prompt_ids=prompt(0, 9), max_tokens=30, stop_token_ids=()) for i in range(4)])
    with Watch():
        engine.poll(timeout=0.0)  # prefill, the first tokens, and a step
        del spied[:]
        before = engine.clock
        for _ in range(5):  # the rows stay
            engine.poll(timeout=0.0)
    assert engine.clock == before + 5
    assert spied == [("decode",), ("send", "f", (4,)), ("read",)] * 5


def test_rows_that_change_cost_sends_and_no_further_read(model, spied):
    """Responses of unequal lengths over two pools: rows leave, arrive, move and outgrow their pool."""
    engine = EmbeddedEngine(model("qwen3"), slots=3, longest=120)
    lengths = (3, 5, 70, 9, 4, 60, 8)
    engine.submit([request(n, prompt_ids=prompt(n, 6), max_tokens=m, stop_token_ids=()) for n, m in enumerate(lengths)])
    ended = []
    del spied[:]  # the probe's
    with Watch():
        while events := engine.poll():
            ended += events
    assert sorted(len(event.token_ids) for event in ended) == sorted(lengths)
    passes = sum(1 for entry in spied if entry == ("read",)) - engine.clock
    assert 1 <= passes <= len(lengths)  # the first token of those that were prefilled together
    for before, now in pairwise(spied):
        assert before != ("decode",) or now[:2] == ("send", "f")


def test_a_planted_read_is_seen(model, spied, monkeypatch):
    draw = embedded.draw_mixed

    def curious(logits, *rest):
        assert logits.max().item() < 1e9
        return draw(logits, *rest)

    monkeypatch.setattr(embedded, "draw_mixed", curious)
    engine = EmbeddedEngine(model("qwen3"), slots=4)
    engine.submit([request(0)])
    with pytest.raises(AssertionError, match="waits for the device"), Watch():
        engine.poll(timeout=0.0)


def test_tokens_and_log_probabilities_travel_together_to_the_bit():
    tokens = torch.tensor([0, 1, 151_935, 2**31 + 1])
    logprobs = torch.tensor([-0.1, -torch.inf, torch.nan, -1e-45])
    one, other = traffic.unpacked(traffic.packed(tokens, logprobs))
    assert one.dtype == np.int64
    assert other.dtype == np.float32
    np.testing.assert_array_equal(one, tokens.numpy())
    np.testing.assert_array_equal(other.view(np.int32), logprobs.numpy().view(np.int32))
