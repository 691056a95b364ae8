"""Whole runs over vLLM: the quickstart learns, killed and broken runs go on, an engine with old weights is caught."""

import random
import signal
import subprocess
import time
from collections import Counter

import pytest
import torch
from small_run import assert_none_lost_or_doubled, command, dapo, environment, write_recipe

from dapo.config.load import load_recipe
from dapo.errors import EngineError
from dapo.observe.console import Console
from dapo.observe.metrics import read_metrics
from dapo.run.reinforcement import reward_session
from dapo.run.train import resume, train

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

VLLM = ("rollout.engine=vllm", "rollout.vllm.kv_cache_mib=64")
SMALL = {"heads": 2}  # of 32 dimensions


@pytest.mark.timeout(1200)
def test_the_quickstart_learns_over_vllm(tmp_path):
    """The recipe as it is, cut to a quarter; only the engine is another."""
    shorter = ("trainer.steps=15", "validation.every=15", f"run.dir={tmp_path}", "run.name=run")
    dapo("train", "quickstart", "rollout.engine=vllm", *shorter, own_process=True)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["validation/accuracy"] > rows[0]["validation/accuracy"] + 0.2
    for row in rows[1:]:
        assert row["train/gap_max_current"] < 1e-3  # nats: tokens of the present weights have the learner's numbers
        assert row["train/sync_gap"] < 1e-4


@pytest.mark.timeout(1200)
def test_killed_and_resumed_no_group_is_lost_or_doubled(tmp_path):
    rng = random.Random(4)
    recipe = write_recipe(tmp_path, **SMALL)
    run, arguments = tmp_path / "run", ["train", str(recipe), *VLLM]
    for _ in range(2):
        process = subprocess.Popen(
            command(*arguments), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        seen, deadline = len(read_metrics(run / "metrics.jsonl")), time.monotonic() + 500
        while process.poll() is None and time.monotonic() < deadline:
            if len(read_metrics(run / "metrics.jsonl")) > seen + 1:
                break
            time.sleep(0.005)
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["train", "--resume", str(run)]
    dapo(*arguments, own_process=True)
    assert_none_lost_or_doubled(run, 6)


def small(tmp_path, *overrides, **model):
    recipe = write_recipe(tmp_path, **(SMALL | model))
    return load_recipe(recipe, [*VLLM, "logging.console=quiet", *overrides])


def test_a_step_of_vllm_that_fails_stops_the_run_with_everything_kept(tmp_path, monkeypatch):
    from dapo.engines.vllm import VllmEngine

    loaded, steps, own = small(tmp_path, "checkpoint.every=0"), Counter(), VllmEngine._step

    def failing(self):
        steps["all"] += 1
        if steps["all"] == 250:
            for name in ("step", "abort_request"):  # it can be asked for nothing any more
                monkeypatch.setattr(self._engine, name, lambda *args: 1 / 0)
        return own(self)

    monkeypatch.setattr(VllmEngine, "_step", failing)
    with pytest.raises(EngineError, match=r"vLLM failed while decoding: ZeroDivisionError.*rollout.engine: embedded"):
        train(loaded)
    run = tmp_path / "run"
    reached = read_metrics(run / "metrics.jsonl")[-1]["step"]
    assert 0 < reached < 6
    assert (run / "checkpoints" / f"step_{reached:06d}").is_dir()  # of the step's boundary
    assert resume(run, []) == 0
    assert_none_lost_or_doubled(run, 6)


def test_an_output_head_that_stays_old_is_caught_before_the_first_step(tmp_path, monkeypatch):
    """vLLM 0.32's bug on a CPU, planted by leaving its cure out."""
    from dapo.engines import vllm_worker

    monkeypatch.setattr(vllm_worker, "repack_output_head", lambda model: None)
    with pytest.raises(EngineError) as raised:
        train(small(tmp_path, vocabulary=1024))
    said = str(raised.value)
    for part in ("VllmEngine took the new weights", "lm_head.weight still computes with old ones", "rollout.engine"):
        assert part in said
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == []


def test_an_update_that_stops_arriving_is_caught_during_the_run(tmp_path, monkeypatch):
    from dapo.engines.vllm import VllmEngine

    own = VllmEngine.load

    def stale(self, ticket, in_flight="abort"):
        if ticket.version == 0:
            own(self, ticket, in_flight)
        self.version = ticket.version

    monkeypatch.setattr(VllmEngine, "load", stale)
    with pytest.raises(EngineError, match=r"sync check after step [1-6] failed"):
        train(small(tmp_path))


@pytest.mark.skipif(
    not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()),
    reason="vLLM keeps keys and values in 8 bits on processors with AVX-512 or AMX only",
)
def test_keys_and_values_of_8_bits_pass_the_sync_check_and_are_corrected(tmp_path):
    """vLLM's CPU build keeps them, too. The gap is far above that of float32, and the correction sees it."""
    eight = small(tmp_path, "rollout.vllm.kv_cache_dtype=fp8", "trainer.steps=2")
    train(eight)
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl")[1:]:
        assert 1e-4 < row["train/sync_gap"] < row["train/sync_accepted"] <= 0.2
        assert row["train/gap_mean"] != 0.0
        assert row["train/correction_mean"] > 0


def test_weights_go_through_a_folder_where_there_are_several_workers(tmp_path):
    """The route of tensor parallelism, with one worker: two would take half a minute to start."""
    loaded = small(tmp_path)
    session = reward_session(loaded.recipe, Console("quiet"))
    try:
        session.parts.engine._many_workers = True
        learner = session.learner()
        session.parts.engine.load(learner.publish(0))
        assert session.parts.sync_check(learner)(0)["train/sync_gap"] < 1e-4
    finally:
        session.close()
