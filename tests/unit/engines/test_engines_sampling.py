"""Uniform numbers, truncation and inverse-CDF sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_requests import prompt, request
from hypothesis import given, settings
from hypothesis import strategies as st
from tape import WAITS
from torch.utils._python_dispatch import TorchDispatchMode

from dapo.engines import sampling
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.sampling import SamplingSettings, draw, draw_by_parts, draw_mixed, truncate, truncate_by_few
from dapo.types.seeds import stream_keys, uniforms


def _uniform(rows: int) -> torch.Tensor:
    return torch.from_numpy(uniforms(stream_keys(range(rows)), np.zeros(rows, dtype=np.int64)))[:, None]


def test_uniforms_follow_splitmix64_by_hand():
    # SplitMix64 in plain Python integers, from the reference implementation.
    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    assert mix(1234567 + gamma) == 6457827717110365317  # published first output for seed 1234567
    for seed, t in ((0, 0), (1, 5), (2**63 - 1, 1000)):
        state = mix((seed + gamma) % 2**64)
        expected = ((mix((state + (t + 1) * gamma) % 2**64) >> 12) + 0.5) / 2**52
        assert uniforms(stream_keys([seed]), np.array([t]))[0] == expected


def test_uniforms_are_uniform_and_uncorrelated_between_neighbours():
    keys = stream_keys(range(400))
    table = np.stack([uniforms(keys, np.full(400, t)) for t in range(100)])
    assert table.min() > 0
    assert table.max() < 1
    counts = np.histogram(table, bins=20, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    for left, right in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_samples_follow_the_softmax(temperature):
    rows = 40_000
    logits = torch.tensor([1.0, -2.0, 0.5, 3.0, -0.5, 2.0, 0.0, -9.0])
    tokens, logprobs = draw(logits.expand(rows, -1), _uniform(rows), SamplingSettings(temperature))
    expected = (logits.double() / temperature).softmax(-1)
    counts = torch.bincount(tokens[:, 0], minlength=8).double()
    assert float(((counts - rows * expected) ** 2 / (rows * expected))[:7].sum()) < 22.5  # 6 degrees, p = 0.001
    torch.testing.assert_close(logprobs.double(), expected.log()[tokens], atol=1e-5, rtol=0)


def test_truncation_by_hand():
    probabilities = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]])
    logits = probabilities.log()

    def kept(**options):
        return truncate(logits, **({"top_k": 0, "top_p": 1.0} | options)).isfinite()[0].nonzero()[:, 0].tolist()

    assert kept(top_k=2) == [1, 3]
    assert kept(top_p=0.6) == [1, 3]  # 0.4 < 0.6 <= 0.65
    assert kept(top_p=0.7) == [1, 3, 4]
    assert kept(top_p=1e-9) == [1]
    assert kept(top_k=3, top_p=0.7) == [1, 3]  # after top-k: 0.47, 0.76
    assert kept() == [0, 1, 2, 3, 4]
    ties = truncate(torch.tensor([[1.0, 2.0, 2.0, 2.0]]), 2, 1.0)
    assert ties.isfinite()[0].tolist() == [False, True, True, False]


def test_truncated_draws_stay_inside_and_are_renormalised():
    rows = 5000
    logits = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2]).log().expand(rows, -1)
    tokens, logprobs = draw(logits, _uniform(rows), SamplingSettings(top_p=0.7, top_k=4))
    assert set(tokens[:, 0].tolist()) == {1, 3, 4}
    expected = torch.tensor([0.0, 0.4, 0.0, 0.25, 0.2]) / 0.85
    torch.testing.assert_close(logprobs, expected.log()[tokens], atol=1e-5, rtol=0)


def test_zero_probability_tokens_are_never_drawn_at_the_ends():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    for number, token in ((2.0**-53, 1), (1 - 2.0**-53, 2)):
        drawn, logprob = draw(logits, torch.tensor([[number]], dtype=torch.float64), SamplingSettings())
        assert drawn.item() == token
        assert logprob.item() == pytest.approx(np.log(0.5))


def test_a_number_on_the_border_belongs_to_the_right_token():
    token, _ = draw(torch.zeros(1, 2), torch.tensor([[0.5]], dtype=torch.float64), SamplingSettings())
    assert token.item() == 1  # token 0 has [0, 0.5)


def test_greedy_takes_the_likeliest_at_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    token, logprob = draw(logits, _uniform(1), SamplingSettings(temperature=0.0))
    assert token.item() == 1
    assert logprob.item() == pytest.approx(float(logits.softmax(-1)[0, 1].log()))


def test_mixed_laws_equal_each_law_alone():
    logits = torch.randn(9, 12, generator=torch.Generator().manual_seed(0))
    settings = [SamplingSettings(0.0), SamplingSettings(0.5, 0.8, 0), SamplingSettings(1.0, 1.0, 3)]
    groups = [(setting, torch.arange(i, 9, 3)) for i, setting in enumerate(settings)]
    tokens, logprobs = draw_mixed(logits, _uniform(9), groups)
    for setting, rows in groups:
        alone = draw(logits[rows], _uniform(9)[rows], setting)
        assert torch.equal(tokens[rows], alone[0])
        assert torch.equal(logprobs[rows], alone[1])


def test_non_finite_logits_give_a_non_finite_logprob():
    token, logprob = draw(torch.full((1, 5), torch.nan), _uniform(1), SamplingSettings())
    assert 0 <= token.item() < 5
    assert not torch.isfinite(logprob).item()


# ---------------------------------------------------------------------- truncation without an order of the vocabulary


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    width=st.sampled_from([0.0, 0.3, 1.0, 3.0, 8.0]),
    step=st.sampled_from([0.0, 0.25, 2.0]),  # equal logits, as bfloat16 makes them
    hidden=st.sampled_from([0.0, 0.3, 0.9]),
    top_k=st.sampled_from([0, 1, 2, 5, 11]),
    top_p=st.sampled_from([1e-9, 0.1, 0.25, 0.5, 0.7, 0.75, 0.9, 0.999, 1.0]),
    candidates=st.sampled_from([12, 30, 69]),
)
def test_few_candidates_keep_what_the_whole_order_keeps(seed, width, step, hidden, top_k, top_p, candidates):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 70, generator=generator) * width
    logits = logits if not step else (logits / step).round() * step
    logits[torch.rand(6, 70, generator=generator) < hidden] = -torch.inf
    whole, few = truncate(logits, top_k, top_p), truncate_by_few(logits, top_k, top_p, candidates)
    for found, wanted in zip(few, whole, strict=True):
        if not found.isnan().any():
            assert torch.equal(found, wanted)


def settled(logits, top_k=0, top_p=1.0, candidates=4):
    """Which rows so many candidates settle."""
    return (~truncate_by_few(logits, top_k, top_p, candidates).isnan().any(-1)).tolist()


def test_which_rows_a_few_candidates_settle():
    sharp = torch.tensor([0.5, 0.3, 0.1, 0.05, 0.03, 0.02]).log()
    assert settled(sharp.expand(1, -1), top_p=0.7) == [True]
    assert settled(sharp.expand(1, -1), top_p=0.96) == [False]  # four candidates have 0.95
    assert settled(sharp.expand(1, -1), top_k=3) == [True]
    equal = torch.tensor([[3.0, 1.0, 1.0, 1.0, 1.0, 0.0], [3.0, 1.0, 1.0, 0.0, 0.0, 0.0]])
    assert settled(equal, top_k=2) == [False, True]  # a fifth token may be as likely as the second one
    assert truncate_by_few(equal, 2, 1.0, 4)[1].isfinite().nonzero()[:, 0].tolist() == [0, 1]
    assert settled(torch.zeros(1, 8), top_p=0.5) == [False]  # a border at a token's: rounding would decide
    broken = torch.tensor([[torch.nan, 1.0, 0.0, 0.0, 0.0, 0.0], [torch.inf, 1.0, 0.0, 0.0, 0.0, 0.0]])
    assert settled(broken, top_p=0.9) == [False, False]


@pytest.mark.parametrize("given", [(1.0, 0.7), (0.8, 0.95, 40), (1.0, 1.0, 7)])
def test_draws_from_a_large_vocabulary_are_the_bits_of_the_whole_order(given, monkeypatch):
    logits = torch.randn(8, 6000, generator=torch.Generator().manual_seed(0)) * 4
    wanted = draw(logits, _uniform(8), SamplingSettings(*given))
    monkeypatch.setattr(sampling, "truncate", None)  # is not called
    found = draw(logits, _uniform(8), SamplingSettings(*given), candidates=1024)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def test_a_small_vocabulary_is_put_in_order_at_once(monkeypatch):
    monkeypatch.setattr(sampling, "truncate_by_few", None)  # is not called
    draw(torch.randn(2, 4000), _uniform(2), SamplingSettings(top_p=0.9), candidates=1024)


def test_drawing_asks_the_device_nothing():
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket.__name__ not in WAITS, f"{func} waits for the device"
            return func(*args, **(kwargs or {}))

    logits = torch.randn(9, 200, generator=torch.Generator().manual_seed(0))
    settings = [SamplingSettings(0.0), SamplingSettings(0.5, 0.8, 0), SamplingSettings(1.0, 1.0, 3)]
    groups = [(setting, torch.arange(i, 9, 3)) for i, setting in enumerate(settings)]
    with Watch():
        draw_mixed(logits, _uniform(9), groups, 16)


@pytest.mark.parametrize("settings", [[{"top_p": 0.8}], [{"top_p": 0.9}, {"temperature": 0.0}, {"top_k": 3}]])
def test_an_engine_draws_unsettled_rows_again(settings, model, monkeypatch):
    """With two candidates some rows are not settled at first; then the engine looks at more."""

    def run(few):
        monkeypatch.setattr(sampling, "FEW", few)
        engine = EmbeddedEngine(model("qwen3"), slots=4)
        engine.submit([request(n, prompt_ids=prompt(n, 5), **settings[n % len(settings)]) for n in range(9)])
        found = {}
        while events := engine.poll():
            found |= {event.key: event for event in events}
        return engine, found

    by_few = []
    real = sampling.truncate_by_few
    monkeypatch.setattr(sampling, "truncate_by_few", lambda *given: by_few.append(given[-1]) or real(*given))
    engine, found = run(2)
    assert 2 <= min(by_few) < max(by_few) <= 10  # a quarter of the vocabulary at most
    assert engine._candidates.count > 2
    by_few.clear()
    _, wanted = run(1000)
    assert not by_few
    assert found.keys() == wanted.keys()
    for key, event in wanted.items():
        assert found[key].token_ids.tolist() == event.token_ids.tolist()
        np.testing.assert_array_equal(found[key].logprobs, event.logprobs)


# ---------------------------------------------------------------------- by parts of the vocabulary, as on a card

EDGES = torch.tensor([2.0**-53, 2.0**-30, 0.5, 1 - 2.0**-30, 1 - 2.0**-53], dtype=torch.float64)


@pytest.mark.parametrize("words", [1024, 3000, 4096, 700])
def test_by_parts_the_same_tokens_are_drawn_as_by_one_running_sum(words):
    generator = torch.Generator().manual_seed(words)
    logits = 3 * torch.randn(2000, words, generator=generator)
    logits[::3, words // 2 :] = -torch.inf  # a truncated row, with parts that have no probability
    uniform = torch.rand(2000, 1, dtype=torch.float64, generator=generator)
    tokens, logprobs = draw(logits, uniform, SamplingSettings())
    parts = draw_by_parts(logits, uniform)
    assert torch.equal(parts[0], tokens)
    torch.testing.assert_close(parts[1], logprobs, rtol=0, atol=2e-6)


def test_by_parts_by_hand():
    """Four tokens in parts of two: 0.1, 0.2 | 0.3, 0.4. Up to 0.3 the first part; 0.5 is the third token's."""
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(5, -1)
    uniform = torch.tensor([[0.05], [0.25], [0.35], [0.59], [0.61]], dtype=torch.float64)
    tokens, logprobs = draw_by_parts(logits, uniform, width=2)
    assert tokens[:, 0].tolist() == [0, 1, 2, 2, 3]
    torch.testing.assert_close(logprobs[:, 0], torch.tensor([0.1, 0.2, 0.3, 0.3, 0.4]).log())


@pytest.mark.parametrize("words", [2048, 2500])
def test_by_parts_no_token_without_probability_is_drawn(words):
    generator = torch.Generator().manual_seed(1)
    for kept in ([5], [1023], [1024], [words - 1], [0, words - 1], [7, 1025, 1300]):
        logits = torch.full((len(EDGES), words), -torch.inf)
        logits[:, kept] = torch.randn(len(kept), generator=generator)
        tokens, logprobs = draw_by_parts(logits, EDGES[:, None])
        assert set(tokens[:, 0].tolist()) <= set(kept)
        assert logprobs.isfinite().all()
        assert (tokens[0], tokens[-1]) == (kept[0], kept[-1])


def test_by_parts_what_the_rounding_of_a_part_adds_goes_to_no_unlikely_token():
    """A part whose float32 sum is 4e-8 above that of its tokens, the last of which has 4e-15: uniform numbers in
    between are not that token's."""
    logits = torch.randn(1, 1024, generator=torch.Generator().manual_seed(2))
    logits[0, -1] = -26.0
    probabilities = logits.softmax(-1)
    above = float(probabilities.sum(-1).double() - probabilities.double().sum(-1))
    assert above > 4e-8
    uniform = 1 - torch.linspace(0.1, 0.9, 50, dtype=torch.float64)[:, None] * above
    assert set(draw_by_parts(logits.expand(50, -1), uniform)[0][:, 0].tolist()) == {1022}


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_by_parts_logits_that_are_not_finite_say_so(wrong):
    logits = torch.zeros(2, 3000)
    logits[0, 17] = wrong
    tokens, logprobs = draw_by_parts(logits, torch.full((2, 1), 0.4, dtype=torch.float64))
    assert logprobs.isfinite()[:, 0].tolist() == [False, True]
    assert int(tokens.max()) < 3000
