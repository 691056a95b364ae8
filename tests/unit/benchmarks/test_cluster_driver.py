"""The hosts of ``cluster.py`` that take no time keep what the pool asks of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.mark.parametrize("lockstep", [False, True])
def test_each_engine_of_the_driver_s_table_answers_each_response(monkeypatch, lockstep):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cluster

    row = cluster.driver_seconds(3, 48, 100, lockstep=lockstep, together=True)
    assert (row["engines"], row["responses"]) == (3, 48)
    assert 48 * 50 <= row["tokens"] < 48 * 150
    assert row["turns"] >= 3 * 2  # of 64 steps: each engine has a response of more than that
