"""The comparison of two runs finds every difference in the last digit, and none in times and memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
ROW = {"step": 1, "train/loss": 0.25, "reward/raw": None, "time/step": 2.0, "memory/peak_rss_mib": 300.0}


@pytest.fixture
def golden(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import golden

    return golden


def test_equal_rows_have_no_difference_whatever_the_clock_says(golden):
    other = ROW | {"time/step": 9.0, "memory/peak_rss_mib": 1.0, "cost/rejected_seconds": 3.0}
    evaluated = ROW | {"step": 2, "validation/accuracy": 0.5}  # a key that not every row has
    assert golden.compare_rows([ROW, evaluated], [other, evaluated]) == []


def test_the_last_digit_counts_and_the_largest_relative_difference_is_told(golden):
    base = [ROW, ROW | {"step": 2, "train/loss": 4.0}, ROW | {"step": 3}]
    here = [ROW | {"train/loss": math.nextafter(0.25, 1)}, ROW | {"step": 2, "train/loss": 5.0}, ROW | {"step": 3}]
    (found,) = golden.compare_rows(base, here)
    assert (found.name, found.count, found.of, found.relative) == ("train/loss", 2, 3, 0.2)
    assert found.example == "step 1: 0.25 -> 0.25000000000000006"


@pytest.mark.parametrize(
    ("here", "name", "relative"),
    [
        (ROW | {"reward/raw": 0.0}, "reward/raw", None),
        ({key: value for key, value in ROW.items() if key != "train/loss"}, "train/loss", None),
        (ROW | {"custom/new": 1.0}, "custom/new", None),
        (ROW | {"train/loss": -0.25}, "train/loss", 2.0),
        (ROW | {"step": 2}, "steps of one side alone", None),
    ],
)
def test_what_one_side_has_alone_or_with_another_sign_differs(golden, here, name, relative):
    (found,) = golden.compare_rows([ROW], [here])
    assert (found.name, found.relative) == (name, relative)


def made_run(folder, tokens, weight):
    (folder / "rollouts").mkdir(parents=True)
    (folder / "checkpoints/step_000001/learner").mkdir(parents=True)
    pq.write_table(pa.table({"token_ids": tokens, "reward": [1.0, None]}), folder / "rollouts/step_000001.parquet")
    save_file({"w": np.array(weight, np.float32)}, folder / "checkpoints/step_000001/learner/model.safetensors")
    return folder


def test_one_token_and_one_bit_of_a_weight_are_found(golden, tmp_path):
    base = made_run(tmp_path / "a", [[1, 2], [3]], [1.0, 2.0])
    same = made_run(tmp_path / "b", [[1, 2], [3]], [1.0, 2.0])
    other = made_run(tmp_path / "c", [[1, 2], [4]], [1.0, np.nextafter(np.float32(2), np.float32(3))])
    assert golden.compare_rollouts(base, same) == golden.compare_weights(base, same) == []
    (column,) = golden.compare_rollouts(base, other)
    assert (column.name, column.count, column.of) == ("rollouts: token_ids", 1, 2)
    assert column.example == "step_000001.parquet row 1: [3] -> [4]"
    (tensor,) = golden.compare_weights(base, other)
    assert (tensor.name, tensor.count, tensor.of) == ("weights: w", 1, 2)
    assert tensor.relative == pytest.approx(2**-23, rel=1e-3)  # the spacing of float32 at 2, over 2 and a little
