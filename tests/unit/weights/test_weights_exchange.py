"""How a learner publishes: by a group while its members stay, again for late engines, and when a set is deleted."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import pytest
from exchanges import exchange_by
from inline_transport import InlineTransport

from dapo.errors import EngineError, LearnerLost
from dapo.learner.hosts import LearnerHosts
from dapo.processes.transport import HostSpec, Shipment
from dapo.types.batch import Ticket
from dapo.weights import broadcast as module
from dapo.weights.sets import WeightSets


class Process:
    """A learner's process that notes what it is asked."""

    def __init__(self, rank):
        self.rank, self.groups, self.delivers = rank, [], True
        self.asked, self.full = [], False

    def describe(self):
        return self.rank

    def give_back(self):
        self.asked.append("give_back")

    def send(self, route, *args):
        self.asked.append(route)
        if route == "broadcast":
            self.groups += args
            return self.delivers
        if route == "ipc":
            return f"GPU {self.rank}", [("a", self.rank)]
        (folder,) = args
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{self.rank}").touch()
        if self.full:
            raise EngineError("no room")
        return None


@dataclass(eq=False)
class Engine:
    """One of a pool."""

    index: int
    incarnation: int = 1
    takes_next: bool = True
    reading: Ticket | None = None


class Scene:
    """An exchange between two processes of a learner and a pool of two engines."""

    def __init__(self, folder, route, transport=None, engines=2):
        self.processes = [Process(0), Process(1)]
        self.transport = transport or InlineTransport()
        specs = [HostSpec(f"rank-{p.rank}", lambda p=p: p) for p in self.processes]
        self.hosts = LearnerHosts(self.transport, specs, 600.0)
        self.engines = [Engine(n) for n in range(engines)]
        self.folder = folder / "sets"
        self.exchange = exchange_by(route, self.folder, seconds=60.0)
        self.exchange.open(self.hosts, ("a", "b"))
        self.exchange.join(self.engines)

    def deliver(self, fine=True):
        for process in self.processes:
            process.delivers = fine

    def load(self, version):
        """Publish, and let every engine take it."""
        ticket = self.exchange.publish(version)
        self.exchange.offer(ticket)
        self.exchange.delete_read()
        return ticket

    def sets(self):
        """Return the versions of the sets on the disk."""
        return (
            sorted(int(path.name.rpartition("-v")[2]) for path in self.folder.iterdir()) if self.folder.exists() else []
        )


def test_memory_is_given_back_before_engines_that_receive_wake(tmp_path):
    """They wake when the ticket is there, and the broadcast goes on meanwhile."""
    scene = Scene(tmp_path, "broadcast")
    scene.exchange.publish(0)
    assert [process.asked for process in scene.processes] == [["give_back"]] * 2
    scene.exchange.moved()  # waits for the broadcast
    assert [process.asked for process in scene.processes] == [["give_back", "broadcast"]] * 2


def test_a_group_lasts_as_long_as_its_members_do(tmp_path):
    scene = Scene(tmp_path, "broadcast")
    tickets = [scene.exchange.publish(version) for version in (0, 1)]
    assert [(t.version, t.route, t.names) for t in tickets] == [
        (0, "broadcast", ("a", "b")),
        (1, "broadcast", ("a", "b")),
    ]
    first, second = (t.cargo for t in tickets)
    assert (first.address, first.receivers, first.seconds) == (scene.exchange.route._address, 2, 60.0)
    assert second == replace(first, number=second.number)
    assert second.key != first.key
    scene.engines[1].incarnation = 2  # one of them is another one by now
    third = scene.exchange.publish(2).cargo
    assert third.name != first.name
    scene.engines[1].takes_next = False
    assert scene.exchange.publish(3).cargo.receivers == 1
    assert scene.sets() == []
    scene.exchange.moved()  # the last broadcast is over by then
    assert [m.number for m in scene.processes[1].groups] == [1, 2, 3, 4]


def test_a_broadcast_that_did_not_reach_all_is_followed_by_another_group(tmp_path):
    scene = Scene(tmp_path, "broadcast")
    scene.deliver(False)
    first = scene.exchange.publish(0).cargo
    again = scene.exchange.again()
    assert again == Ticket(0, "folder", again.address, ("a", "b"))
    assert scene.sets() == [0]
    scene.deliver()
    second = scene.exchange.publish(1).cargo
    assert second.name != first.name


@pytest.mark.parametrize("route", ["broadcast", "ipc"])
def test_weights_can_be_had_again_until_they_move(tmp_path, route):
    scene = Scene(tmp_path, route)
    assert scene.exchange.again() is None
    scene.exchange.publish(5)
    assert [scene.exchange.again().version for _ in range(2)] == [5, 5]
    scene.exchange.moved()
    assert scene.exchange.again() is None
    assert scene.sets() == [5, 5]


@pytest.mark.parametrize("route", ["broadcast", "ipc"])
def test_no_engine_present_means_no_receivers(tmp_path, route):
    scene = Scene(tmp_path, route)
    scene.engines.clear()
    assert scene.exchange.publish(1).route == "folder"


def test_memory_is_lent_by_every_process(tmp_path):
    ticket = Scene(tmp_path, "ipc").exchange.publish(1)
    assert ticket.route == "ipc"
    assert pickle.loads(ticket.cargo) == {"GPU 0": [("a", 0)], "GPU 1": [("a", 1)]}


def calls_of(monkeypatch, function):
    """Those with which that function is called."""
    called = []
    monkeypatch.setattr(module, function, lambda store, group: called.append(group))
    return called


def test_a_publish_is_called_off_once_it_is_open(tmp_path, monkeypatch):
    called = calls_of(monkeypatch, "call_off")
    scene = Scene(tmp_path, "broadcast")
    scene.exchange.route.call_off()
    group = scene.exchange.publish(0).cargo
    scene.exchange.route.call_off()
    scene.exchange.moved()
    scene.exchange.route.call_off()  # it is over
    assert called == [group]


def test_receivers_of_a_sender_that_is_lost_go_home(tmp_path, monkeypatch):
    called = calls_of(monkeypatch, "send_home")
    scene = Scene(tmp_path, "broadcast")
    scene.exchange.route.look()
    scene.exchange.publish(0)
    scene.exchange.route.look()  # it has come
    scene.exchange.publish(1)
    assert called == []
    scene = Scene(tmp_path, "broadcast")
    group = scene.exchange.publish(0).cargo
    scene.transport.kill(scene.transport.hosts[0])
    while not called:  # the other one may say what it saw
        scene.exchange.route.look()
    assert called == [group]
    with pytest.raises(LearnerLost, match="rank-0 was killed"):
        scene.exchange.again()


def test_files_are_carried_from_every_process(tmp_path):
    class Carrier(InlineTransport):
        def collect(self, hosts, folder):
            return tuple(f"{host.name} {folder}" for host in hosts)

    scene = Scene(tmp_path, "object_store", Carrier())
    for ticket in (scene.exchange.publish(3), scene.exchange.again()):
        assert (ticket.version, ticket.route) == (3, "object_store")
        assert ticket.cargo == Shipment(ticket.address, tuple(f"rank-{n} {ticket.address}" for n in range(2)))


def test_a_set_goes_when_no_engine_of_the_pool_can_be_reading_it(tmp_path):
    """One that starts reads the set that it was given, however many come meanwhile."""
    scene = Scene(tmp_path, "folder")
    first = scene.load(1)
    scene.engines[1].reading = first
    for version in (2, 3):
        scene.load(version)
    assert scene.sets() == [1, 3]
    scene.engines[1].reading = None
    scene.load(4)
    assert scene.sets() == [4]
    late = scene.exchange.publish(5)  # which no engine has taken yet
    assert scene.sets() == [4, 5]
    scene.exchange.offer(late)
    scene.exchange.offer(late)  # loaded twice
    scene.exchange.delete_read()
    assert scene.sets() == [5]


def test_without_a_pool_the_set_before_goes_with_the_next_publish(tmp_path):
    """The one engine has read the last set by then, and may have to be given it again until the next is written."""
    scene = Scene(tmp_path, "folder", engines=0)
    for version in range(4):
        scene.exchange.publish(version)
    assert scene.sets() == [2, 3]


def test_a_set_that_cannot_be_written_leaves_nothing(tmp_path):
    scene = Scene(tmp_path, "folder")
    scene.load(1)
    scene.processes[1].full = True
    with pytest.raises(EngineError, match="no room"):
        scene.exchange.publish(2)
    assert scene.sets() == [1]


@pytest.mark.parametrize("own", [True, False])
def test_the_end_deletes_its_own_sets_and_in_a_folder_of_its_own_all(tmp_path, own):
    """A killed trainer may have left some. Whatever else is there stays, and so does the folder around it."""
    left, notes = tmp_path / "sets" / "dapo-0123abcd-7-v7", tmp_path / "sets" / "notes"
    for folder in (left, notes) if own else (left,):
        folder.mkdir(parents=True)
    sets = WeightSets(tmp_path / "sets", own=own)
    sets.new(1).mkdir()
    sets.close()
    assert [path.name for path in (tmp_path / "sets").iterdir()] == (["notes"] if own else [left.name])
    if own:
        notes.rmdir()
        sets.close()
        assert not (tmp_path / "sets").exists()


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
