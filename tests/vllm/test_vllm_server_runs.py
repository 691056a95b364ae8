"""Whole runs over a vLLM server: one that dies in the middle and comes back, and one that stays away."""

from __future__ import annotations

import subprocess
import time

import pytest
from server_process import PATIENCE, Server
from small_run import assert_none_lost_or_doubled, command, dapo, environment, write_recipe

from dapo.observe.metrics import read_metrics

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3000)]


@pytest.fixture
def recipe(tmp_path):
    """A tied head of 1024 rows: it stays old where the worker extension is forgotten."""
    return write_recipe(tmp_path, heads=2, vocabulary=1024)


@pytest.fixture
def server(recipe, tmp_path):
    one = Server(str(tmp_path / "model"), tmp_path)
    one.start()
    one.wait()
    yield one
    one.kill()


def after_step(run, step, process):
    end = time.monotonic() + PATIENCE
    while len(read_metrics(run / "metrics.jsonl")) <= step:
        assert process.poll() is None, process.stderr.read()[-3000:]
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_run_outlives_its_server_and_is_resumed_when_it_did_not(tmp_path, recipe, server):
    """Killed after step 2, the server comes back in time; killed after step 4, it does not, and the run is resumed."""
    run = tmp_path / "run"
    over = [
        "rollout.engine=vllm_server",
        f"rollout.server.url={server.address}",
        "trainer.steps=1000",
    ]  # it does not end while we look elsewhere
    first = subprocess.Popen(
        command("train", recipe, *over, f"rollout.server.patience={PATIENCE}"),
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    after_step(run, 2, first)
    server.kill()
    server.start()
    after_step(run, 3, first)
    first.terminate()
    first.wait()
    second = subprocess.Popen(
        command("train", "--resume", run, "rollout.server.patience=2"),
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    after_step(run, 5, second)
    server.kill()
    assert second.wait(PATIENCE) == 1
    said = second.stderr.read()
    for part in (server.address, "responses were under way", "dapo train --resume"):
        assert part in said
    server.start()
    server.wait()
    last = read_metrics(run / "metrics.jsonl")[-1]["step"] + 2
    more = [f"rollout.server.patience={PATIENCE}", f"trainer.steps={last}"]
    dapo("train", "--resume", run, *more, own_process=True)
    assert_none_lost_or_doubled(run, last)
    rows = read_metrics(run / "metrics.jsonl")[1:]
    # the server may have died between a step and its publish
    assert sum("train/sync_gap" not in row for row in rows) <= 1
    for row in rows:
        assert row.get("train/sync_gap", 0.0) < 1e-4
        assert row.get("train/gap_max_current", 0.0) < 1e-3  # absent where only carried groups trained
    assert not (run / "weights").exists()
