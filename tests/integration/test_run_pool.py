"""Whole runs over a pool of embedded engines, each with a model of its own."""

from __future__ import annotations

import random

import pytest
from faults import FaultyTransport
from inline_transport import InlineTransport
from pool_runs import computed, train
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo.engines import received_weights
from dapo.run import engines


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("pool"))


@pytest.fixture
def inline(monkeypatch):
    """Hosts live where the test wants them."""

    def use(transport):
        monkeypatch.setattr(engines, "transport_of", lambda run, places: transport)
        return transport

    return use


@pytest.mark.whole
def test_a_run_in_lockstep_does_not_tell_that_engines_died(recipe, inline):
    """To the last digit: losses, norms, tokens, the state of dynamic sampling, evaluations."""
    inline(InlineTransport())
    whole = train(recipe, "whole", "checkpoint.every=0", "trainer.steps=3")
    assert_none_lost_or_doubled(recipe.parent / "whole", 3)
    assert {row["cluster/engines"] for row in whole[1:]} == {2.0}
    assert all(row["train/sync_gap"] < 1e-5 for row in whole[1:])
    dice = random.Random(1)
    transport = inline(FaultyTransport(lambda *_: None))
    calls = []

    def fault(name, method):
        calls.append(method)
        return dice.choice(["before", "after"]) if len(calls) > 8 and dice.random() < 0.08 else None

    transport.fault = fault
    killed = train(recipe, "killed", "checkpoint.every=0", "cluster.max_engine_restarts=1000", "trainer.steps=3")
    assert_none_lost_or_doubled(recipe.parent / "killed", 3)
    assert len(transport.faults) >= 3
    assert computed(killed) == computed(whole)
    assert not list(recipe.parent.glob("*/weights"))  # neither the run nor the memory keeps sets of weights


def test_an_engine_that_keeps_an_old_tensor_stops_the_run(recipe, inline, monkeypatch):
    """The second engine of the pool forgets its head, from the second publish on."""
    inline(InlineTransport())
    models, whole = [], received_weights.copy_weights  # models in the order of their first publish

    def forgets(model, tensors):
        old = {name: x.clone() for name, x in model.state_dict().items() if "lm_head" in name}
        whole(model, tensors)
        models.append(model)
        if len(models) == 4:  # the second publish of the second engine
            for name, x in old.items():
                model.state_dict()[name].copy_(x)

    monkeypatch.setattr(received_weights, "copy_weights", forgets)
    done = dapo(
        "train", recipe, "run.name=stale", "rollout.engines=2", "rollout.slots=8", "validation.every=0", expect=1
    )
    assert "the sync check after step 1 failed" in done.stdout + done.stderr
    assert "engine 1 of EnginePool" in done.stdout + done.stderr
    assert "lm_head" in done.stdout + done.stderr
