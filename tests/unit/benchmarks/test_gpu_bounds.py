"""Sizes of the published models, and what a card could do at best: worked by hand."""

from __future__ import annotations

import sys

import pytest

from benchmarks.gpu import bounds
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED, Shape, config_of


@pytest.mark.parametrize(
    ("size", "parameters"), [("0.5b", 494_032_768), ("1.5b", 1_543_714_304), ("7b", 7_615_616_512)]
)
def test_the_shapes_have_the_published_number_of_parameters(size, parameters):
    """The numbers of the safetensors headers on the hub."""
    assert PUBLISHED[size].parameters == parameters


@pytest.mark.parametrize("shape", [REHEARSED, Shape("untied", 48, 3, 6, 3, 80, 99, tied=False)], ids=lambda s: s.name)
def test_the_count_is_that_of_transformers_model(shape):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config_of(shape))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    matrices = [p.numel() for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
    assert shape.layers * shape.layer_matrices == sum(matrices)


# hidden 8, 2 layers, 4 heads of 2 with 2 key-value heads, ffn 16, vocabulary 10, tied
SMALL = Shape("by hand", 8, 2, 4, 2, 16, 10, tied=True)


def test_bytes_of_a_decode_step_by_hand():
    layer = 8 * 8 + 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16  # q, o, k and v, feed-forward
    assert SMALL.layer_matrices == layer == 576
    assert bounds.key_value_bytes(SMALL) == 2 * 2 * 2 * 2 * 2  # k and v, layers, heads, size, bytes
    assert bounds.decode_bytes(SMALL, rows=3, tokens=5) == 2 * (2 * 576 + 80) + 3 * 5 * 32
    assert bounds.decode_bound(SMALL, 3, 5, bandwidth=2944.0) == 3 * 2944 / 2944


def test_the_bound_of_the_half_billion_model_on_a_card_of_four_terabytes():
    """256 rows of 192 tokens: 0.99 GB of weights and 0.60 GB of keys and values, so 0.4 ms a step."""
    shape = PUBLISHED["0.5b"]
    assert bounds.decode_bytes(shape, 256, 192) == pytest.approx(0.988e9 + 0.604e9, rel=0.01)
    assert bounds.decode_bound(shape, 256, 192, 4e12) == pytest.approx(643_000, rel=0.01)


def test_the_floor_of_a_step_by_hand():
    """1,232 numbers in the matrices, 480 bytes of keys and values: 8 s at 60 bytes a second."""
    assert bounds.decode_matrices(SMALL) == 1232
    products = 2 * 3 * 1232  # operations of three rows
    assert bounds.decode_floor(SMALL, 3, 5, bandwidth=60.0, peak=products / 100) == pytest.approx(3 / (100 + 8))
    reads = 2 * 1232 / 60
    assert bounds.decode_floor(SMALL, 3, 5, bandwidth=60.0, peak=products / 2) == pytest.approx(3 / (reads + 8))


def test_at_256_rows_products_of_seven_billion_take_longer_than_their_reads():
    """2 x 256 x 7.07e9 operations at 780e12 a second are 4.64 ms; reading 14.1 GB at 4.3e12 would be 3.29 ms."""
    floor = bounds.decode_floor(PUBLISHED["7b"], 256, 0, 4.3e12, 780e12)
    assert 256 / floor == pytest.approx(4.64e-3, rel=0.01)
    assert 32 / bounds.decode_floor(PUBLISHED["7b"], 32, 0, 4.3e12, 780e12) == pytest.approx(3.29e-3, rel=0.01)


def test_operations_by_hand():
    forward = 2 * 2 * 576 * 7 + 4 * 2 * 8 * 7 * 3.0 + 2 * 80 * 4
    assert bounds.forward_operations(SMALL, tokens=7, attended=3.0, predicted=4) == forward
    assert bounds.training_operations(SMALL, 7, 3.0, 4) == 3 * forward


def test_operations_are_six_for_each_parameter_and_token_where_attention_is_short():
    shape = PUBLISHED["7b"]
    found = bounds.training_operations(shape, 1000, attended=0.0, predicted=1000)
    matrices = shape.parameters - shape.vocabulary * shape.hidden  # the embedding is looked up
    assert found == pytest.approx(6 * matrices * 1000, rel=1e-3)


@pytest.mark.parametrize(("prompt", "response", "group"), [(5, 4, 3), (1, 2, 1), (7, 9, 2)])
def test_attended_tokens_are_counted(prompt, response, group):
    seen = [n + 1 for n in range(prompt)]
    seen += [prompt + n + 1 for _ in range(group) for n in range(response - 1)]
    assert bounds.attended_tokens(prompt, response, group) == pytest.approx(sum(seen) / len(seen))


def test_layers_that_fit_fill_the_memory_and_no_more():
    shape = PUBLISHED["7b"]
    for free in (30e9, 80e9, 140e9):
        layers = bounds.layers_that_fit(shape, free, activations=3e9)

        def needed(n):
            return shape.with_layers(n).parameters * 20 + n * 3e9

        assert 0 < layers < 28
        assert needed(layers) <= free < needed(layers + 1)
    assert bounds.layers_that_fit(shape, 1e9, 0.0) == 0
    assert bounds.layers_that_fit(shape, 1e15, 0.0) == 28


def test_shapes_and_bounds_import_no_torch():
    """The parent of the command reads them before any child has started."""
    import subprocess

    modules = "benchmarks.gpu.bounds, benchmarks.gpu.plan, benchmarks.gpu.runner"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
