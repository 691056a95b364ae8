"""Machines that a run waits for: which are missing, for how long, and what is said then."""

from __future__ import annotations

import pytest
from each import each

from dapo.errors import ClusterError
from dapo.processes.placement import Node, await_machines, missing

BIG, SMALL = Node("big", 64.0, 8.0), Node("small", 8.0, 0.0)


@each(
    ("nodes", "wanted", "gpus", "said"),
    [
        ([BIG], None, None, ""),
        ([BIG, SMALL], 2, None, ""),
        ([BIG, SMALL], 1, 8, ""),
        ([BIG, SMALL], 3, None, "3 machines (cluster.nodes) are wanted, and there are 2 of 2"),
        ([BIG, SMALL], 2, 8, "2 machines with 8 GPUs (cluster.nodes) are wanted, and there are 1 of 2: big: 64 CPUs"),
        ([BIG, SMALL], None, 8, "machines with 8 GPUs each are wanted, and there are 1 of 2"),
    ],
)
def test_what_is_missing(nodes, wanted, gpus, said):
    found = missing(nodes, wanted, gpus)
    assert found.startswith(said)
    assert bool(found) is bool(said)


class Clock:
    """Seconds that pass when somebody pauses; a machine comes every ten."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds

    def look(self):
        return [BIG] * int(self.now // 10)


def test_machines_are_waited_for_as_long_as_is_allowed():
    clock = Clock()
    options = {"clock": clock, "pause": clock.pause}
    assert await_machines(clock.look, 2, 8, 60.0, **options) == [BIG, BIG]
    assert clock.now == 20.0
    with pytest.raises(ClusterError, match=r"not complete after 5 s .*: 4 machines with 8 GPUs .* there are 2 of 2"):
        await_machines(clock.look, 4, 8, 5.0, **options)
    assert clock.now == 25.0


def test_devices_alone_are_not_waited_for():
    clock = Clock()
    with pytest.raises(ClusterError, match="machines with 9 GPUs each are wanted"):
        await_machines(lambda: [BIG], None, 9, 60.0, clock=clock, pause=clock.pause)
    assert clock.now == 0.0
