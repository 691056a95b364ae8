"""Engine and learner's forward pass on tensors of a card that is not there: one device, and one read a decode step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_cuda import CARD, NEEDS_CUDA_BUILD, fake_card, move

from dapo.engines import decoders, embedded
from dapo.engines.embedded import EmbeddedEngine
from dapo.models.load import load_model
from dapo.models.packing import pack, pad
from dapo.models.policy import Policy
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import Key, SampleRequest, SamplingParams, TokenRow

pytestmark = NEEDS_CUDA_BUILD


@pytest.fixture
def loaded(request, tmp_path):
    return load_model(make_tiny_model(tmp_path), dtype=request.param, device="cpu", attention_mode="packed")


BOTH = pytest.mark.parametrize("loaded", [torch.float32, torch.bfloat16], indirect=True)


@BOTH
@pytest.mark.parametrize("packed", [True, False])
def test_the_forward_pass_of_the_learner(loaded, packed):
    rows = [TokenRow(group, np.arange(3, 8), np.arange(3, 3 + count)) for group, count in ((0, 3), (0, 7), (1, 9))]
    if not packed:
        loaded.model.set_attn_implementation("sdpa")
    with fake_card(), torch.no_grad():
        batch = pack(rows, CARD) if packed else pad(rows, CARD, 0)
        found = Policy(move(loaded))(batch, 0.7)
    assert [(tensor.device, tensor.shape) for tensor in found] == [(CARD, (19,))] * 2


def sample(loaded, monkeypatch, **options):
    """Token counts of nine responses on six slots, and how often the engine read."""
    words, rng, reads = loaded.model.config.vocab_size, np.random.default_rng(0), []

    def read(tokens, logprobs):
        assert (tokens.device, logprobs.device) == (CARD, CARD)
        reads.append(len(tokens))
        return rng.integers(3, words, len(tokens)), np.full(len(tokens), -1.0, np.float32)

    monkeypatch.setattr(embedded, "read", read)
    monkeypatch.setattr(decoders, "difference", lambda *_: None)  # compares values, and there are none
    requests = [
        SampleRequest(
            key=Key("train", number // 3, number % 3),
            prompt_ids=np.arange(3, 8 + number // 3),
            sampling=SamplingParams(max_tokens=5 + number, **options),
            seed=number,
            prefix=None,
            priority=0,
        )
        for number in range(9)
    ]
    with fake_card():
        engine = EmbeddedEngine(move(loaded), slots=6, longest=64, cuda_graphs=False)
        engine.submit(requests)
        events = []
        while made := engine.poll():
            events += made
        steps = engine.stats()["decode_steps"]
        engine.sleep()
    assert engine.decoder.name == "fused"
    return sorted(len(event.token_ids) for event in events), len(reads), steps


@BOTH
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "top_k": 5}, {"temperature": 0.0}], ids=str)
def test_the_engine_reads_once_for_a_step_and_once_for_those_who_come(loaded, monkeypatch, options):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    counts, reads, steps = sample(loaded, monkeypatch, **options)
    assert counts == list(range(5, 14))
    assert steps < reads <= steps + 9


@pytest.mark.parametrize("loaded", [torch.float32], indirect=True)
@pytest.mark.parametrize(("bug", "said"), [("another device", "device"), ("a read", "local_scalar_dense")])
def test_a_tensor_that_stays_behind_and_a_hidden_read_are_seen(loaded, monkeypatch, bug, said):
    draw, whole = embedded.draw_mixed, EmbeddedEngine._uniform

    def reading(logits, *rest):
        assert logits.isfinite().all()
        return draw(logits, *rest)

    if bug == "a read":
        monkeypatch.setattr(embedded, "draw_mixed", reading)
    else:
        monkeypatch.setattr(EmbeddedEngine, "_uniform", lambda *args: whole(*args).cpu())
    with pytest.raises(Exception, match=said):
        sample(loaded, monkeypatch)
