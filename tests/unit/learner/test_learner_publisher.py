"""How the driver publishes: by a group while its members stay, again for whoever was late, and what it settles."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
from inline_transport import InlineTransport

from dapo.errors import LearnerLost
from dapo.learner import publisher as module
from dapo.learner.hosts import LearnerHosts
from dapo.learner.publisher import Publisher, Receivers
from dapo.processes.transport import HostSpec
from dapo.types.batch import Shipment, Ticket


class Process:
    """A learner's process that notes what it is asked."""

    def __init__(self, rank):
        self.rank, self.groups, self.delivers = rank, [], True
        self.asked = []

    def describe(self):
        return self.rank

    def give_back(self):
        self.asked.append("give_back")

    def send(self, group):
        self.asked.append("send")
        self.groups.append(group)
        return self.delivers

    def lend(self):
        return f"GPU {self.rank}", [("a", self.rank)]


class Scene:
    """A publisher over two processes."""

    def __init__(self, route, transport=None):
        self.processes = [Process(0), Process(1)]
        self.transport = transport or InlineTransport()
        specs = [HostSpec(f"rank-{p.rank}", lambda p=p: p) for p in self.processes]
        self.hosts = LearnerHosts(self.transport, specs, 600.0)
        self.members, self.folders = [(0, 1), (1, 1)], []
        self.receivers = Receivers(route, SimpleNamespace(), "store://here:4711/key", 60.0, lambda: self.members)
        self.publisher = Publisher(self.hosts, ("a", "b"), self.in_folder, self.receivers)

    def in_folder(self, version):
        self.folders.append(version)
        return Ticket(version, "folder", f"/sets/{len(self.folders)}", ("a", "b"))

    def deliver(self, fine=True):
        for process in self.processes:
            process.delivers = fine


def test_memory_is_given_back_before_engines_that_receive_wake():
    """They wake when the ticket is there, and the broadcast goes on meanwhile."""
    scene = Scene("broadcast")
    scene.publisher.publish(0)
    assert [process.asked for process in scene.processes] == [["give_back"]] * 2
    scene.publisher.moved()  # waits for the broadcast
    assert [process.asked for process in scene.processes] == [["give_back", "send"]] * 2


def test_a_group_lasts_as_long_as_its_members_do():
    scene = Scene("broadcast")
    tickets = [scene.publisher.publish(version) for version in (0, 1)]
    assert [(t.version, t.route, t.names) for t in tickets] == [
        (0, "broadcast", ("a", "b")),
        (1, "broadcast", ("a", "b")),
    ]
    first, second = (t.group for t in tickets)
    assert (first.address, first.receivers, first.seconds) == ("store://here:4711/key", 2, 60.0)
    assert second == replace(first, number=second.number)
    assert second.key != first.key
    scene.members = [(0, 1), (1, 2)]  # one of them is another one by now
    third = scene.publisher.publish(2).group
    assert third.name != first.name
    scene.members = [(0, 1)]
    assert scene.publisher.publish(3).group.receivers == 1
    assert scene.folders == []
    scene.publisher.moved()  # the last broadcast is over by then
    assert [m.number for m in scene.processes[1].groups] == [1, 2, 3, 4]


def test_a_broadcast_that_did_not_reach_all_is_followed_by_another_group():
    scene = Scene("broadcast")
    scene.deliver(False)
    first = scene.publisher.publish(0).group
    assert scene.publisher.again() == Ticket(0, "folder", "/sets/1", ("a", "b"))
    scene.deliver()
    second = scene.publisher.publish(1).group
    assert second.name != first.name


@pytest.mark.parametrize("route", ["broadcast", "ipc"])
def test_weights_can_be_had_again_until_they_move(route):
    scene = Scene(route)
    assert scene.publisher.again() is None
    scene.publisher.publish(5)
    assert [scene.publisher.again().version for _ in range(2)] == [5, 5]
    scene.publisher.moved()
    assert scene.publisher.again() is None
    assert scene.folders == [5, 5]


@pytest.mark.parametrize("route", ["broadcast", "ipc"])
def test_no_engine_present_means_no_receivers(route):
    scene = Scene(route)
    scene.members = []
    assert scene.publisher.publish(1).route == "folder"


def test_memory_is_lent_by_every_process():
    ticket = Scene("ipc").publisher.publish(1)
    assert ticket.route == "ipc"
    assert pickle.loads(ticket.handles) == {"GPU 0": [("a", 0)], "GPU 1": [("a", 1)]}


def calls_of(monkeypatch, function):
    """Those with which that function is called."""
    called = []
    monkeypatch.setattr(module, function, lambda store, group: called.append(group))
    return called


def test_a_publish_is_called_off_once_it_is_open(monkeypatch):
    called = calls_of(monkeypatch, "call_off")
    scene = Scene("broadcast")
    scene.publisher.call_off()
    group = scene.publisher.publish(0).group
    scene.publisher.call_off()
    scene.publisher.moved()
    scene.publisher.call_off()  # it is over
    assert called == [group]


def test_receivers_of_a_sender_that_is_lost_go_home(monkeypatch):
    called = calls_of(monkeypatch, "send_home")
    scene = Scene("broadcast")
    scene.publisher.look()
    scene.publisher.publish(0)
    scene.publisher.look()  # it has come
    scene.publisher.publish(1)
    assert called == []
    scene = Scene("broadcast")
    group = scene.publisher.publish(0).group
    scene.transport.kill(scene.transport.hosts[0])
    while not called:  # the other one may say what it saw
        scene.publisher.look()
    assert called == [group]
    with pytest.raises(LearnerLost, match="rank-0 was killed"):
        scene.publisher.again()


def test_files_are_carried_from_every_process():
    class Carrier(InlineTransport):
        def collect(self, hosts, folder):
            return tuple(f"{host.name} {folder}" for host in hosts)

    scene = Scene("object_store", Carrier())
    for ticket in (scene.publisher.publish(3), scene.publisher.again()):
        assert (ticket.version, ticket.route) == (3, "object_store")
        assert ticket.shipment == Shipment(ticket.address, tuple(f"rank-{n} {ticket.address}" for n in range(2)))


def test_where_the_machine_starts_no_further_process_those_that_started_end():
    class Full(InlineTransport):
        def start(self, spec):
            if self.hosts:
                raise BlockingIOError("Resource temporarily unavailable")
            return super().start(spec)

    transport = Full()
    with pytest.raises(BlockingIOError):
        LearnerHosts(transport, [HostSpec(f"rank-{n}", Process, (n,)) for n in range(2)], 600.0)
    assert [host.lost for host in transport.hosts] == [True]
