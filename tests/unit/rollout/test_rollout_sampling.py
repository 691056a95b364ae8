"""Uniform numbers, truncation and inverse-CDF sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dapo.contracts.seeds import stream_keys, uniforms
from dapo.rollout.sampling import Law, draw, draw_mixed, truncate


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
    tokens, logprobs = draw(logits.expand(rows, -1), _uniform(rows), Law(temperature))
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
    tokens, logprobs = draw(logits, _uniform(rows), Law(top_p=0.7, top_k=4))
    assert set(tokens[:, 0].tolist()) == {1, 3, 4}
    expected = torch.tensor([0.0, 0.4, 0.0, 0.25, 0.2]) / 0.85
    torch.testing.assert_close(logprobs, expected.log()[tokens], atol=1e-5, rtol=0)


def test_zero_probability_tokens_are_never_drawn_at_the_ends():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    for number, token in ((2.0**-53, 1), (1 - 2.0**-53, 2)):
        drawn, logprob = draw(logits, torch.tensor([[number]], dtype=torch.float64), Law())
        assert drawn.item() == token
        assert logprob.item() == pytest.approx(np.log(0.5))


def test_a_number_on_the_border_belongs_to_the_right_token():
    token, _ = draw(torch.zeros(1, 2), torch.tensor([[0.5]], dtype=torch.float64), Law())
    assert token.item() == 1  # token 0 has [0, 0.5)


def test_greedy_takes_the_likeliest_at_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    token, logprob = draw(logits, _uniform(1), Law(temperature=0.0))
    assert token.item() == 1
    assert logprob.item() == pytest.approx(float(logits.softmax(-1)[0, 1].log()))


def test_mixed_laws_equal_each_law_alone():
    logits = torch.randn(9, 12, generator=torch.Generator().manual_seed(0))
    laws = [Law(0.0), Law(0.5, 0.8, 0), Law(1.0, 1.0, 3)]
    groups = [(law, torch.arange(i, 9, 3)) for i, law in enumerate(laws)]
    tokens, logprobs = draw_mixed(logits, _uniform(9), groups)
    for law, rows in groups:
        alone = draw(logits[rows], _uniform(9)[rows], law)
        assert torch.equal(tokens[rows], alone[0])
        assert torch.equal(logprobs[rows], alone[1])


def test_non_finite_logits_give_a_non_finite_logprob():
    token, logprob = draw(torch.full((1, 5), torch.nan), _uniform(1), Law())
    assert 0 <= token.item() < 5
    assert not torch.isfinite(logprob).item()
