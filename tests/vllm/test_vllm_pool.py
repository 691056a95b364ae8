"""vLLM in the processes of hosts: two of it as one engine."""

from __future__ import annotations

import os
import re
import select

import pytest
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo.observe.metrics import read_metrics

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

VLLM = ("rollout.engine=vllm", "rollout.vllm.kv_cache_mib=64", "rollout.engines=2", "rollout.slots=8")


def test_two_engines_train_as_one_and_leave_nothing(tmp_path):
    recipe = write_recipe(tmp_path, heads=2)
    dapo("train", recipe, *VLLM, "trainer.steps=4", own_process=True)
    run = tmp_path / "run"
    rows = read_metrics(run / "metrics.jsonl")
    assert_none_lost_or_doubled(run, 4)
    assert {row["cluster/engines"] for row in rows[1:]} == {2.0}
    assert sum(row["cluster/engine_losses"] for row in rows[1:]) == 0
    assert all(row["train/sync_gap"] < 1e-4 for row in rows[1:])
    assert all(row["train/sync_tensors"] > 0 for row in rows[1:])
    processes = re.findall(r"engine-\d: process (\d+) on", (run / "log.txt").read_text())
    assert len(processes) == 2
    for process in map(int, processes):
        try:
            left = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        select.select([left], [], [])
        os.close(left)
