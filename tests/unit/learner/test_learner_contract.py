"""The learner contract, kept by the learner of this process, by one that lives elsewhere, and by the scripted one."""

from __future__ import annotations

import copy
import math
import threading
from dataclasses import replace

import pytest
import torch
from learner_contract import CHECKS
from learner_here import LearnerHere, learner_apart
from learner_rows import make_rows
from learner_subject import Subject, learn, publish
from quick import quick
from scripted_learner import ScriptedLearner

from dapo.algorithms.objective import Objective, clip_objective
from dapo.config import schema
from dapo.learner.checkpoint import Contents
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

OBJECTIVE = clip_objective(low=0.2, high=0.28)
EXPLOSIVE = Objective(lambda inputs: (inputs.logprobs * math.inf, {}))
SETTINGS = schema.LearnerSection(microbatch_tokens=48, max_skipped_steps=1)  # several passes a minibatch


KINDS = ["packed float32", "padded float32", "packed bfloat16", "packed float32 lora"]


@pytest.fixture(scope="module", params=quick(KINDS, KINDS[:1]))
def local(request, tmp_path_factory):
    """Learners of two models, each loaded once and copied."""
    mode, dtype, *adapter = request.param.split()
    lora = schema.Lora(rank=2) if adapter else None
    folder = tmp_path_factory.mktemp("models")
    loaded = {
        ffn: load_model(
            make_tiny_model(folder / str(ffn), hidden=16, heads=2, ffn=ffn),
            dtype=getattr(torch, dtype),
            attention_mode=mode,
            lora=lora,
        )
        for ffn in (24, 32)
    }

    def make(ffn=24, objective=OBJECTIVE):
        own = replace(loaded[ffn], model=copy.deepcopy(loaded[ffn].model))
        return LearnerHere(own, objective, SETTINGS, temperature=1.0)

    return subject_of(make, dtype)


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The same learner behind a transport, whose copies of what travels are the transport's contract."""
    folder = tmp_path_factory.mktemp("apart")
    loaded = {ffn: load_model(make_tiny_model(folder / str(ffn), hidden=16, heads=2, ffn=ffn)) for ffn in (24, 32)}

    def host(ffn, objective):
        own = replace(loaded[ffn], model=copy.deepcopy(loaded[ffn].model))
        return Worker(PolicyStep(own, objective, SETTINGS, temperature=1.0))

    def make(ffn=24, objective=OBJECTIVE):
        return learner_apart(host, ffn, objective, weights=folder / "weights")

    return subject_of(make, "float32")


def subject_of(make, dtype):
    return Subject(
        make=make,
        other=lambda: make(ffn=32),
        diverging=lambda: make(objective=EXPLOSIVE),
        close_to=1e-5 if dtype == "float32" else 0.05,
        dtype=dtype,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_learner_of_this_process(local, check, tmp_path):
    check(local, tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_learner_that_lives_elsewhere(apart, check, tmp_path):
    check(apart, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_scripted_learner(check, tmp_path):
    def diverging():
        learner = ScriptedLearner(max_skipped_steps=1)
        learner.diverge = True
        return learner

    check(Subject(ScriptedLearner, lambda: ScriptedLearner(50), diverging), tmp_path)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_the_next_step_does_not_wait_for_the_disk(elsewhere, tmp_path, monkeypatch):
    """``checkpoint.asynchronous``, of one rank."""
    gate, write = threading.Event(), Contents.write
    monkeypatch.setattr(Contents, "write", lambda held, folder: gate.wait() and write(held, folder))
    loaded = load_model(make_tiny_model(tmp_path / "model", hidden=16, heads=2, ffn=24))
    learner, resumed = (
        LearnerHere(
            replace(loaded, model=copy.deepcopy(loaded.model)),
            OBJECTIVE,
            SETTINGS,
            temperature=1.0,
            asynchronous=True,
        )
        for _ in range(2)
    )
    if elsewhere:
        worker = learner.worker
        learner = learner_apart(lambda: worker, weights=tmp_path / "weights", asynchronous=True)
    learn(learner, [make_rows(0)])
    dtypes = dict.fromkeys(publish(learner, 1), "float32")
    then = learner.checksums(dtypes)
    saving = learner.save(tmp_path / "saved")
    learn(learner, [make_rows(1)])
    assert not saving.done()
    gate.set()
    assert {file.name for file in saving.result(timeout=600)} == {path.name for path in (tmp_path / "saved").iterdir()}
    assert saving.done()
    resumed.load(tmp_path / "saved")
    assert resumed.checksums(dtypes) == then != learner.checksums(dtypes)
    learner.close()
    learner.close()
