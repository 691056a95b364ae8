"""Scripts that run seldom still go with the program as it is: their own engine and recorded run make a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapo.models.builtin import ensure_builtin_model
from dapo.models.load import load_model
from dapo.observe.metrics import read_metrics

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SMALL = ["rollout.prompts_per_step=2", "rollout.group_size=4", "learner.minibatch_prompts=2"]
SMALL += ["rollout.max_response_tokens=12", "algorithm.overlong_punishment.cache_length=2"]


@pytest.fixture
def model(monkeypatch, pytestconfig):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return ensure_builtin_model("builtin/signed-sum", Path(pytestconfig.cache.mkdir("models")))


@pytest.mark.whole
@pytest.mark.parametrize("side", ["nothing", "everything"])
def test_a_side_of_the_recording_benchmark_makes_and_records_a_step(model, tmp_path, side):
    import recording

    run = recording.Side(
        side, [*recording.SIDES[side], *SMALL, f"model.path={model}", "validation.every=99"], tmp_path, 2
    )
    run.run(1)
    run.recorder.close()
    assert read_metrics(run.folder.metrics)[-1]["step"] == 1


@pytest.mark.whole
def test_the_engine_that_counts_prefill_passes_counts_them(model):
    import dynamic_sampling
    import numpy as np

    from dapo.types.batch import Key, SampleRequest, SamplingParams

    engine = dynamic_sampling.CountingEngine(load_model(model, device="cpu"), slots=2)
    engine.submit([SampleRequest(Key("train", 0, n), np.array([5, 6]), SamplingParams(4), seed=n) for n in range(2)])
    while engine.poll():
        pass
    assert engine.stats()["prefill_passes"] == 1
