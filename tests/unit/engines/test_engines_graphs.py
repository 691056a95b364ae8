"""Decode steps as graphs, on a CPU: a tape of operators stands in for a card's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from engine_requests import prompt, request
from hypothesis import given
from hypothesis import strategies as st
from quick import quick
from tape import WAITS, TapeRecorder
from tickets import to_model
from torch.utils._python_dispatch import TorchDispatchMode

from dapo.engines import embedded, fused, graphs
from dapo.engines.cache import SlotCache, most_rows
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.graphs import StepGraphs, make_graphs, rounded
from dapo.errors import EngineError
from dapo.models.loaded import LoadedModel

LENGTHS = (3, 20, 64, 9, 5, 61, 8, 12, 62, 6, 4, 20)  # over 64 tokens with their prompts: another pool


SHORT = (3, 20, 9, 5, 12, 8)


@pytest.fixture
def engine_with(monkeypatch):
    """Makes an engine whose cache is a card's and whose steps go through a recorder; None: rounded up alone."""
    monkeypatch.setattr(embedded, "SlotCache", partial(SlotCache, fixed=True))

    def make(loaded: LoadedModel, recorder, required: bool = False, slots: int = 10) -> EmbeddedEngine:
        def stand_in(wanted, decoder, rows, like):
            return StepGraphs(recorder, most_rows(rows), like, required=required)

        monkeypatch.setattr(embedded, "make_graphs", stand_in)
        return EmbeddedEngine(loaded, slots=slots, longest=120)

    return make


def respond(engine: EmbeddedEngine, lengths=LENGTHS, **sampling):
    engine.submit(
        [
            request(n, prompt_ids=prompt(n, 4 + n % 5), max_tokens=m, stop_token_ids=(), **sampling)
            for n, m in enumerate(lengths)
        ]
    )
    found = {}
    while events := engine.poll():
        found |= {event.key: event for event in events}
    assert len(found) == len(lengths)
    return found


def assert_same_bits(found, wanted):
    for key, event in wanted.items():
        assert found[key].token_ids.tolist() == event.token_ids.tolist()
        np.testing.assert_array_equal(found[key].logprobs, event.logprobs)


def learn(loaded: LoadedModel, engine: EmbeddedEngine, version: int) -> None:
    """Other weights, in place, as an optimiser leaves them."""
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    engine.load(to_model(version, loaded.model))


@pytest.mark.parametrize(
    ("architecture", "config"),
    quick([("qwen3", {}), ("qwen2", {}), ("llama", {"attention_bias": True, "mlp_bias": True})], [("qwen3", {})]),
)
def test_replays_give_the_bits_of_steps_that_run_as_they_are(architecture, config, fresh, engine_with):
    """Rows come, go and outgrow their pool; the engine sleeps, and its weights change in place."""
    tapes, runs = TapeRecorder(), []
    for recorder in (tapes, None):
        loaded = fresh(architecture, **config)
        engine = engine_with(loaded, recorder)
        runs.append([respond(engine)])
        learn(loaded, engine, 1)  # recordings stay
        before = 0 if recorder is None else engine.graphs.recorded
        runs[-1].append(respond(engine))
        if recorder is not None:
            assert engine.graphs.recorded == before > 0
            assert all(tape.replays > 0 for tape in tapes.made)
        engine.sleep()  # addresses change: all is recorded anew
        runs[-1].append(respond(engine, LENGTHS[:4], temperature=0.8, top_p=0.9))
        if recorder is not None:
            assert engine.graphs.recorded > before
            assert engine.graphs.broken is None
            assert engine.graphs.replayed > 0.7 * engine.clock
    for found, wanted in zip(*runs, strict=True):
        assert_same_bits(found, wanted)
    assert runs[0][0][0, 0].token_ids.tolist() != runs[0][1][0, 0].token_ids.tolist()  # the weights did change


def test_rows_that_compute_along_change_no_response(model, engine_with, monkeypatch):
    rounded_up = respond(engine_with(model("qwen3"), TapeRecorder()))
    monkeypatch.setattr(embedded, "make_graphs", lambda *_: None)
    alone = respond(EmbeddedEngine(model("qwen3"), slots=10, longest=120))
    for key, event in alone.items():
        assert rounded_up[key].token_ids.tolist() == event.token_ids.tolist()
        np.testing.assert_allclose(rounded_up[key].logprobs, event.logprobs, atol=1e-5)


def test_a_step_that_is_a_replay_reads_once_and_asks_the_device_nothing(model, engine_with, monkeypatch):
    engine = engine_with(model("qwen3"), TapeRecorder())
    engine.submit([request(0, i, prompt_ids=prompt(0, 9), max_tokens=30, stop_token_ids=()) for i in range(4)])
    for _ in range(3):  # as it is, recorded, replayed
        engine.poll(timeout=0.0)
    reads, read = [], embedded.read
    monkeypatch.setattr(embedded, "read", lambda *given: reads.append(1) or read(*given))

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket.__name__ not in WAITS, f"{func} waits for the device"
            return func(*args, **(kwargs or {}))

    before = engine.graphs.replayed
    with Watch():
        for _ in range(6):
            engine.poll(timeout=0.0)
    assert engine.graphs.replayed == before + 6
    assert len(reads) == 6


# ---------------------------------------------------------------------- what goes wrong


class Refusing:
    def renew(self):
        pass

    def record(self, work):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand a long story")


class Idle(Refusing):
    """Records, and repeats nothing."""

    def record(self, work):
        work()
        return self

    def replay(self):
        pass

    def reset(self):
        pass


@pytest.mark.parametrize(
    ("recorder", "said"), [(Refusing(), "not permitted when stream is capturing"), (Idle(), "off the step itself by 1")]
)
def test_what_cannot_be_recorded_goes_on_as_it_is_with_a_warning(recorder, said, model, engine_with, caplog):
    wanted = respond(engine_with(model("qwen3"), None), SHORT)
    engine = engine_with(model("qwen3"), recorder)
    found = respond(engine, SHORT)
    assert said in engine.graphs.broken
    assert [record.getMessage() for record in caplog.records if "without CUDA graphs" in record.getMessage()] == [
        f"decoding goes on without CUDA graphs: {engine.graphs.broken}"
    ]
    assert engine.graphs.replayed == 0
    for key, event in wanted.items():
        assert found[key].token_ids.tolist() == event.token_ids.tolist()


def test_graphs_that_are_required_end_the_run_where_they_cannot_be(model, engine_with):
    engine = engine_with(model("qwen3"), Refusing(), required=True)
    with pytest.raises(EngineError, match=r"cannot be recorded as a CUDA graph.*rollout\.embedded\.cuda_graphs"):
        respond(engine)
    assert len(engine.abort()) == len(LENGTHS)  # nothing is lost


def test_a_step_that_asks_the_device_is_not_recorded(model, engine_with, monkeypatch):
    rotate = fused._rotate

    def curious(x, turn):
        assert x.abs().max().item() < 1e9
        return rotate(x, turn)

    monkeypatch.setattr(fused, "_rotate", curious)
    engine = engine_with(model("qwen3"), TapeRecorder())
    respond(engine, SHORT)
    assert "aten.item.default is not permitted" in engine.graphs.broken


def test_weights_at_other_addresses_are_recorded_anew(fresh, engine_with, monkeypatch):
    """A planted refresh that makes its biases anew: the recordings know the old ones."""
    runs = []
    for recorder in (TapeRecorder(), None):
        loaded = fresh("qwen2")
        engine = engine_with(loaded, recorder)
        respond(engine, SHORT)
        with monkeypatch.context() as planted:
            planted.setattr(fused, "_at", lambda before, now: now.detach().clone())
            made = engine.graphs.recorded
            learn(loaded, engine, 1)
        runs.append(respond(engine, SHORT))
        assert recorder is None or engine.graphs.recorded > made
    assert_same_bits(*runs)


def test_a_recording_that_looks_at_an_old_address_would_be_seen(fresh, engine_with, monkeypatch):
    """The planted bug of the test above, and nobody looks at addresses."""
    monkeypatch.setattr(StepGraphs, "weights_at", lambda self, addresses: None)
    runs = []
    for recorder in (TapeRecorder(), None):
        loaded = fresh("qwen2")
        engine = engine_with(loaded, recorder)
        respond(engine, SHORT)
        with monkeypatch.context() as planted:
            planted.setattr(fused, "_at", lambda before, now: now.detach().clone())
            learn(loaded, engine, 1)
        runs.append(respond(engine, SHORT))
    with pytest.raises(AssertionError):
        assert_same_bits(*runs)


def test_the_recording_used_longest_ago_makes_room(model, engine_with, monkeypatch):
    monkeypatch.setattr(graphs, "MOST", 2)
    tapes = TapeRecorder()
    engine = engine_with(model("qwen3"), tapes)
    found = respond(engine)
    assert len(tapes.made) > 2
    assert sum(bool(tape.calls) for tape in tapes.made) == 2
    assert_same_bits(found, respond(engine_with(model("qwen3"), None)))


# ---------------------------------------------------------------------- who gets graphs


@pytest.mark.parametrize(("wanted", "device"), [(None, "cpu"), (False, "cpu"), (False, "cuda")])
def test_a_cpu_has_no_graphs_and_nobody_has_to(wanted, device, model):
    decoder = EmbeddedEngine(model("qwen3"), slots=2).decoder
    like = torch.empty(1, 4, device="meta") if device == "cuda" else torch.empty(1, 4)
    assert make_graphs(wanted, decoder, 2, like) is None


def test_graphs_on_a_cpu_are_refused(model):
    with pytest.raises(EngineError, match="cuda_graphs is true, and the model is on cpu"):
        EmbeddedEngine(model("qwen3"), slots=2, cuda_graphs=True)


@given(st.integers(1, 5000))
def test_rows_are_rounded_up_by_little(live):
    rows = rounded(live)
    assert rows % 8 == 0
    assert live <= rows <= live + max(7, live // 4)
    assert rounded(rows) == rows


@given(st.lists(st.integers(1, 400), min_size=1, max_size=15))
def test_no_step_has_more_rows_than_there_is_room_for(pools):
    assert sum(map(rounded, pools)) <= most_rows(sum(pools))
