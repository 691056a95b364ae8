"""vLLM in this process: the learner's weights, sleep and wake."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.check_learner import learn
from benchmarks.gpu.made import finish, load_small, make_learner, make_rows, requests, row_of
from benchmarks.gpu.room import Room
from dapo.models.facts import facts_of
from dapo.models.loaded import LoadedModel

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""Environment variable that chooses vLLM's model runner."""
V2 = "vllm.v1.worker.gpu."  # its package; V1 is the module vllm.v1.worker.gpu_model_runner


def publish_sleep_learn(room: Room) -> None:
    """Three rounds of publish, sample, sleep, learn: log-probabilities, checksums, and memory that comes back."""
    loaded = load_small(room, "bfloat16", fp32_head=True, hidden=room.sized(512, 128))  # heads of 32 at least
    learner = make_learner(loaded)
    engine = start(room, loaded, slots=room.sized(64, 8), longest=256)
    try:
        for version in range(3):
            engine.load(learner.publish(version))
            gaps, versions = _sampled(room, engine, learner)
            what = f"round {version + 1}"
            room.expect(f"{what}: vLLM against learner, mean", float(gaps.mean()), at_most=0.05, unit="nats")
            room.expect_true(f"{what}: tokens carry the version of the weights", versions == {version}, str(versions))
            _same_tensors(room, what, engine, learner)
            awake = torch.cuda.mem_get_info()[0] if room.on_card else 0
            engine.sleep()
            if room.on_card:
                given_back = torch.cuda.mem_get_info()[0] - awake
                room.expect(f"{what}: memory that sleep gives back", given_back, at_least=2**28, unit="B")
            rows = make_rows(200, 2, 4, 8, 24, seed=version)
            learn(learner, rows, 1e-3)
    finally:
        engine.close()
        learner.close()


def start(room: Room, loaded: LoadedModel, *, slots: int, longest: int) -> Any:
    """vLLM for the model, which starts from dummy weights; notes which model runner it took.

    vLLM's CUDA build takes its model runner V2, and its CPU build V1, so no test on a CPU says anything about V2. Where
    V2 does not start, V1 is tried.
    """
    from dapo.config.schema import Vllm
    from dapo.engines.vllm import VllmEngine
    from dapo.errors import EngineError

    settings = Vllm(**({"gpu_memory_utilization": 0.4} if room.on_card else {"kv_cache_mib": 64}))

    def made() -> Any:
        return VllmEngine(facts_of(loaded), cuda=room.on_card, longest=longest, slots=slots, settings=settings)

    try:
        engine = made()
    except EngineError as error:
        if not room.on_card or RUNNER in os.environ:
            raise
        room.note("vLLM did not start with the model runner that it takes itself, so V1 is tried", str(error)[:400])
        os.environ[RUNNER] = "0"
        engine = made()
    room.note("vLLM's model runner", "V2" if _runner(engine).startswith(V2) else f"V1 ({_runner(engine)})", main=True)
    return engine


def _runner(engine: Any) -> str:
    """Return the module of the model runner's class."""
    (name,) = engine._engine.collective_rpc(_module_of_runner)
    return str(name)


def _module_of_runner(worker: Any) -> str:
    return type(worker.model_runner).__module__


def _sampled(room: Room, engine: Any, learner: Any) -> tuple[torch.Tensor, set[int]]:
    """|vLLM - learner| of every token, nats, and the versions of the tokens."""
    random = np.random.default_rng(0)
    asked = requests([random.integers(3, 200, 9), random.integers(3, 200, 40)], 8, room.sized(128, 16))
    engine.submit(asked)
    rows = [row_of(request, event) for request, event in zip(asked, finish(engine), strict=True)]
    own = learner.logprobs(rows).result()
    gaps = torch.cat([torch.from_numpy(abs(a - r.sampler_logprobs)) for a, r in zip(own, rows, strict=True)])
    return gaps, {int(version) for row in rows for version in row.versions}


def _same_tensors(room: Room, what: str, engine: Any, learner: Any) -> None:
    """Checksums of vLLM's tensors against the learner's, rounded to vLLM's types."""
    theirs = engine.checksums()
    if theirs is None:
        room.note(f"{what}: vLLM names no checksums", True)
        return
    ours = learner.checksums({name: found.dtype for name, found in theirs.items()})
    differing = [name for name, value in ours.items() if theirs[name].value != value]
    room.expect_true(
        f"{what}: vLLM's tensors are the learner's", not differing and len(ours) > 0, ", ".join(differing[:3])
    )
