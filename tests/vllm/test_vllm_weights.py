"""Weights on their way into vLLM, and how it starts. Each test has an engine of its own: vLLM allows one at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vllm_parts import Published, drain, perturbed, request, start, true_logprobs

from dapo.errors import EngineError

pytestmark = pytest.mark.vllm

PROMPT = np.array([5, 9, 31, 7, 60])


def test_new_weights_reach_every_tensor_and_the_cache_of_the_old_ones_is_dropped(wide):
    """A tied head of 1,024 rows: the CPU build packs it, and a reload alone would leave the packed copy old."""
    prompt = np.arange(4, 4 + 2 * 32 + 7)  # two whole blocks of the prefix cache
    engine = start(wide)
    try:
        for version in (3, 4):
            perturbed(wide, seed=version)
            engine.load(Published(wide.model).ticket(version))
            engine.submit([request((version, i), prompt, seed=i) for i in range(8)])
            for event in drain(engine).values():
                np.testing.assert_allclose(event.logprobs, true_logprobs(wide, prompt, event.token_ids, 0.7), atol=5e-5)
                assert (event.versions == version).all()
        computed = engine.stats()["prefill_tokens"]
        assert computed <= 2 * (len(prompt) + 8 * 32)  # eight responses share the prompt's whole blocks
    finally:
        engine.close()


def test_weights_that_arrive_in_flight(wide):
    """Tokens carry the version that made them, and their log-probabilities are those of that version."""
    engine = start(wide)
    try:
        engine.load(Published(wide.model).ticket(0))
        engine.submit([request((0, i), PROMPT, seed=i, max_tokens=120, stop_token_ids=()) for i in range(6)])
        engine.submit([request((1, 0), PROMPT, max_tokens=10, stop_token_ids=())])
        assert [e.key for e in engine.poll()] == [(1, 0)]
        with pytest.raises(EngineError, match=r"6 responses are unfinished; call abort\(\) first"):
            engine.load(Published(wide.model).ticket(1))
        before = {name: tensor.clone() for name, tensor in wide.model.state_dict().items()}
        perturbed(wide, seed=11)
        engine.load(Published(wide.model).ticket(1), in_flight="keep")
        events = drain(engine)
        new = {k: true_logprobs(wide, PROMPT, e.token_ids, 0.7) for k, e in events.items()}
        after = {name: tensor.clone() for name, tensor in wide.model.state_dict().items()}
        wide.model.load_state_dict(before)
        old = {k: true_logprobs(wide, PROMPT, e.token_ids, 0.7) for k, e in events.items()}
        wide.model.load_state_dict(after)
        assert len(events) == 6
        for key, event in events.items():
            versions = event.versions
            assert len(versions) == 120
            assert (np.diff(versions) >= 0).all()
            assert 5 < (versions == 0).sum() < 20
            np.testing.assert_allclose(event.logprobs[versions == 0], old[key][versions == 0], atol=5e-5)
            np.testing.assert_allclose(event.logprobs[versions == 1], new[key][versions == 1], atol=5e-5)
    finally:
        engine.close()


def test_a_ticket_that_misses_a_tensor_is_refused_before_anything_is_touched(plain):
    class Partly(Published):
        def named_tensors(self):
            yield from list(super().named_tensors())[1:]

    engine = start(plain)
    try:
        missing = r"1 of the model's weights were not published \(model.embed_tokens.weight"
        with pytest.raises(EngineError, match=missing):
            engine.load(Partly(plain.model).ticket(0))
        engine.load(Published(plain.model).ticket(1))
        engine.submit([request((0, 0), PROMPT)])
        assert set(drain(engine)[0, 0].versions.tolist()) == {1}
    finally:
        engine.close()
    with pytest.raises(EngineError, match="was closed; make a new one"):
        engine.load(Published(plain.model).ticket(0))


def test_a_model_or_option_that_vllm_does_not_take_is_said_at_the_start(plain, tmp_path):
    from dapo.models.load import load_model
    from dapo.models.tiny import make_tiny_model

    with pytest.raises(EngineError, match=r"failed while starting: .*no_such_option.*engine_args"):
        start(plain, engine_args={"no_such_option": 1})
    small = load_model(str(make_tiny_model(tmp_path, "llama", heads=4)), device="cpu")
    with pytest.raises(EngineError, match=r"head.* 16.*32, 64"):
        start(small)


def test_a_cache_too_small_for_all_is_shared_in_turns(plain):
    """vLLM takes running responses off and computes them again; what they are does not change."""
    engine = start(plain, kv_cache_mib=1)  # 1,024 tokens; 32 responses want up to 4,000
    try:
        engine.load(Published(plain.model).ticket(0))
        engine.submit([request((0, i), PROMPT, seed=i, max_tokens=120, stop_token_ids=()) for i in range(32)])
        events = drain(engine)
        assert len(events) == 32
        assert engine.stats()["decode_steps"] > 300  # in several turns, not in 120 steps
        for event in events.values():
            assert len(event.token_ids) == 120
            np.testing.assert_allclose(event.logprobs, true_logprobs(plain, PROMPT, event.token_ids, 0.7), atol=5e-5)
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_workers_share_the_model_and_take_weights_through_a_folder(plain):
    engine = start(plain, tensor_parallel_size=2)
    try:
        for version in (1, 2):
            perturbed(plain, seed=version)
            engine.load(Published(plain.model).ticket(version))
            engine.submit([request((version, i), PROMPT, seed=i) for i in range(8)])
            for event in drain(engine).values():
                np.testing.assert_allclose(
                    event.logprobs, true_logprobs(plain, PROMPT, event.token_ids, 0.7), atol=5e-5
                )
    finally:
        engine.close()


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.timeout(300)])], ids=["stand-in", "two"]
)
def test_workers_read_published_files_themselves(plain, tmp_path, monkeypatch, workers):
    """No second set of files is written. The parts of ranks are joined; what lacks one is refused before a touch."""
    engine = start(plain, tensor_parallel_size=workers)
    engine._many_workers = True

    def written(*_):
        raise AssertionError("the weights were written once more")

    monkeypatch.setattr("dapo.engines.vllm.write_weights", written)
    try:
        for version in (1, 2):
            perturbed(plain, seed=version)
            engine.load(Published(plain.model).ticket(version, tmp_path))
            assert engine._shapes.keys() == {name for name, _ in Published(plain.model).named_tensors()}
            engine.submit([request((version, i), PROMPT, seed=i) for i in range(4)])
            for event in drain(engine).values():
                np.testing.assert_allclose(
                    event.logprobs, true_logprobs(plain, PROMPT, event.token_ids, 0.7), atol=5e-5
                )
        ticket = Published(plain.model).ticket(3, tmp_path)
        (file,) = Path(ticket.address).iterdir()
        file.rename(file.with_name("rank-00000-of-00002.safetensors"))
        with pytest.raises(FileNotFoundError, match="rank-00001-of-00002"):
            engine.load(ticket)
        assert engine.version == 2
    finally:
        engine.close()


def test_sleep_and_wake_in_the_order_that_vllm_wants(plain, monkeypatch):
    """On a GPU. Here a stand-in records the calls: CPUs have no sleep mode."""
    from dapo.engines import vllm as module

    said = []

    class Stand:
        def __getattr__(self, name):
            def call(*args, **kwargs):
                if name == "collective_rpc":
                    assert dict(kwargs["kwargs"]["tensors"])
                said.append((name, *args, *kwargs.values()) if name in ("sleep", "wake_up") else (name,))
                return True

            return call

    monkeypatch.setattr(module, "_start", lambda args, head_size: said.append(args["enable_sleep_mode"]) or Stand())
    engine = start(plain)
    engine.sleep()
    assert said == [False]  # a CPU: not asked for, and never called
    engine._sleeps = True
    engine.load(Published(plain.model).ticket(0))
    engine.sleep()
    engine.sleep()
    engine.load(Published(plain.model).ticket(1))
    assert said[1:] == [
        ("collective_rpc",),
        ("reset_prefix_cache",),
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("collective_rpc",),
        ("wake_up", ["kv_cache"]),
        ("reset_prefix_cache",),
    ]
