"""Hosts on a Ray cluster of this machine: the contract, lost actors, and too little room."""

from __future__ import annotations

import os
import re
import signal

import pytest
from desk import Desk
from ray_processes import NEEDS_RAY, ancestors, wait_for_end
from transport_contract import CHECKS, Subject

from dapo.errors import ClusterError
from dapo.processes.placement import Bundle, Plan
from dapo.processes.ray_head import OwnCluster
from dapo.processes.transport import HostLost, HostSpec

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]


@pytest.fixture(scope="module")
def cluster():
    own = OwnCluster()
    from dapo.processes.ray import RayCluster  # asks, when it is imported, whether there is a token

    made = RayCluster(own)
    yield made
    made.close()


@pytest.fixture
def transport(cluster, tmp_path):
    made = cluster.transport(tmp_path / "output")
    yield made
    made.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, transport, tmp_path):
    check(Subject(transport, tmp_path))


def test_what_a_host_prints_is_in_its_file_and_its_machine_is_known(transport, tmp_path):
    host = transport.start(HostSpec("engine-1", Desk))
    transport.get(transport.call(host, "print", "good morning"))
    transport.kill(host)
    assert "good morning" in (tmp_path / "output" / "engine-1.txt").read_text()
    assert transport.where() == {}
    other = transport.start(HostSpec("engine-2", Desk))
    transport.get(transport.call(other, "process"))
    assert transport.where() == {"engine-2": os.uname().nodename}
    assert transport.has_place(other)


def test_a_killed_actor_takes_its_host_along(transport):
    host = transport.start(HostSpec("engine-1", Desk))
    process = transport.get(transport.call(host, "process"))
    watched = os.pidfd_open(process)
    os.kill(ancestors(process)[1], signal.SIGKILL)  # beyond the guard: Ray's worker
    with pytest.raises(HostLost, match=rf"engine-1 \(process {process} on .*went with its Ray actor: [^\n]*$"):
        transport.get(transport.call(host, "process"))
    wait_for_end(watched)


def test_a_run_folder_that_is_not_there_is_told(cluster, tmp_path):
    transport = cluster.transport(tmp_path / "nowhere" / "hosts")
    host = transport.start(HostSpec("engine-1", Desk))
    with pytest.raises(HostLost, match=r"engine-1 cannot work on .*nowhere.*file system that they share"):
        transport.get(transport.call(host, "process"))
    transport.close()


def test_too_little_room_is_refused_before_anything_is_placed(cluster):
    cpus = sum(node.cpus for node in cluster.nodes())
    for bundles, word in (((Bundle(1.0, 0),) * (int(cpus) + 1), "in all"), ((Bundle(0.5, 1),), "0 GPUs")):
        with pytest.raises(ClusterError, match=r"is too small for this recipe: it wants \d+ bundle") as refused:
            cluster.place(Plan(bundles, {}), 60.0)
        assert word in str(refused.value)
        assert f"{cpus:g} CPU" in str(refused.value)


def test_machines_that_others_keep_are_waited_for_and_then_both_sides_are_told(cluster):
    from ray.util.placement_group import placement_group, remove_placement_group

    cpus = sum(node.cpus for node in cluster.nodes())
    others = placement_group([{"CPU": 1.0}] * int(cpus))
    assert others.wait(600)
    try:
        with pytest.raises(ClusterError) as told:
            cluster.place(Plan((Bundle(1.0, 0),), {}), 1.0)  # however long it waits
    finally:
        remove_placement_group(others)
    assert re.search(
        r"^1 CPU in 1 bundle did not become free within 1 s \(cluster\.start_timeout\) on the Ray cluster at \S+:\d+: "
        r"it has as much, and at present [\d.]+ CPUs? and 0 GPUs are free; `ray status` shows who has the rest$",
        str(told.value),
    )
    cluster.place(Plan((Bundle(1.0, 0),) * int(cpus), {}), 600.0)  # nothing of the refused one is waiting
