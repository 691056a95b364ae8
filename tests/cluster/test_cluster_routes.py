"""Weights between real processes, by every route that this machine has: the contract, and whole runs."""

from __future__ import annotations

import pytest
import torch
from pool_runs import assert_lost_once, computed, shoot_at_the_second_publish, train
from small_run import write_recipe
from ticket_contract import CHECKS, Desk

from dapo.processes.local import ProcessTransport

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
RANKS = ("learner.ranks=2", "trainer.steps=3", "validation.every=0")


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Two engines of one model, and a learner of it for each route: 1 process, or 2 ranks."""
    desk = Desk(ProcessTransport, tmp_path_factory.mktemp("desk"))
    yield desk
    desk.close()


@pytest.mark.parametrize(("ranks", "lora"), [(1, None), (2, None), (1, 2), (2, 2)])
@pytest.mark.parametrize("route", ["folder", "broadcast"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(processes, check, route, ranks, lora):
    """``lora``: the engines get merged tensors."""
    check(processes.subject(route, ranks, lora))


CARDS = torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    desk = Desk(ProcessTransport, tmp_path_factory.mktemp("devices"), device="cuda")
    yield desk
    desk.close()


@pytest.mark.skipif(not CARDS, reason="CUDA IPC needs a CUDA device, and torch sees none here")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_by_cuda_ipc(devices, check):
    """Learner and engines on one device."""
    check(devices.subject("ipc", 1))


@pytest.mark.skipif(CARDS < 3, reason="a broadcast over NCCL to two engines needs 3 CUDA devices")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_by_nccl(devices, check):
    check(devices.subject("broadcast", 1))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("routes"))


@pytest.fixture(scope="module")
def by_files(recipe):
    return computed(train(recipe, "files", *RANKS))


def test_a_run_is_the_same_by_broadcast(recipe, by_files):
    assert computed(train(recipe, "broadcast", *RANKS, "rollout.weight_transfer=broadcast")) == by_files
    assert "published again" not in (recipe.parent / "broadcast" / "log.txt").read_text()


def test_also_with_an_engine_killed_while_it_takes_weights(recipe, by_files, monkeypatch):
    """At the second publish: one of the two members of the group is gone before it comes."""
    loads, shots = shoot_at_the_second_publish(monkeypatch)
    rows = train(recipe, "killed", *RANKS, "rollout.weight_transfer=broadcast")
    assert computed(rows) == by_files
    assert loads == ["broadcast"] * 4
    assert_lost_once(recipe.parent / "killed", shots[0])


def test_a_learner_beside_engines_broadcasts_to_them(recipe):
    """Each at its own pace: by the clock, so that no two runs are equal."""
    over = (
        "rollout.max_staleness=2",
        "rollout.weight_transfer=broadcast",
        "trainer.steps=3",
        "checkpoint.asynchronous=true",
    )
    rows = train(recipe, "beside", *over, "checkpoint.every=1")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert {row["cluster/engines"] for row in rows[1:]} == {2.0}
    assert (recipe.parent / "beside" / "checkpoints" / "step_000003" / "learner" / "state.json").is_file()
