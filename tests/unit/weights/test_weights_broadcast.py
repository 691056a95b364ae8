"""A broadcast of weights over gloo: what arrives, who is waited for, and what a receiver that is gone does."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dapo.errors import EngineError
from dapo.models.rendezvous import LOOPBACK, serve
from dapo.types.batch import Ticket
from dapo.weights.broadcast import Broadcaster, BroadcastGroup, call_off, send_home

CPU = torch.device("cpu")
PATIENCE = 120.0


def weights(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(7, 3, generator=generator),
        "norm.weight": torch.randn(3, generator=generator),
        "scale": torch.randn((), generator=generator),
        "nothing": torch.zeros(0, 4),
        "steps": torch.arange(5) + seed,
        "mask": torch.tensor([True, False, seed % 2 == 0]),
    }


@pytest.fixture(scope="module")
def served():
    return serve(LOOPBACK)


@pytest.fixture
def store(served):
    return served[0]


@pytest.fixture
def group(served, request):
    """Publishes of one group, by their number."""

    def members(number, receivers, name="", seconds=PATIENCE):
        return BroadcastGroup(served[1], f"{request.node.name}{name}", number, receivers, seconds)

    return members


def ticket(members):
    return Ticket(members.number, "broadcast", members.key, (), members)


def take(end, members, into=None):
    """What one receiver got; ``into``: hears of each tensor as it comes."""
    found = {}
    for name, tensor in end.receive(ticket(members), CPU):
        found[name] = tensor
        if into is not None:
            into(name)
    return found


def publish(sender, receivers, members, tensors, dtype=torch.float32, **taking):
    """Whether all took part, and what each receiver got: tensors, or the error that it raised."""
    with ThreadPoolExecutor(len(receivers) + 1) as pool:
        sent = pool.submit(sender.send, members, tensors, dtype)
        got = [pool.submit(take, end, members, **taking.get(f"r{n}", {})) for n, end in enumerate(receivers)]
        return sent.result(), [one.exception() or one.result() for one in got]


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and found[name].shape == tensor.shape and torch.equal(found[name], tensor)
        for name, tensor in expected.items()
    )


def test_what_arrives_is_what_was_sent_to_the_bit_and_again_in_the_same_group(group):
    sender, receivers = Broadcaster(), [Broadcaster(), Broadcaster()]
    for number, dtype in ((1, torch.float32), (2, torch.bfloat16)):
        sent, got = publish(sender, receivers, group(number, 2), weights(number), dtype)
        expected = {n: t.to(dtype) if t.is_floating_point() else t for n, t in weights(number).items()}
        assert sent
        assert all(same(found, expected) for found in got)
        groups = [end._group for end in (sender, *receivers)]
        if number == 1:
            first = groups
    assert [id(one) for one in groups] == [id(one) for one in first]


def test_a_publish_that_is_called_off_holds_up_nobody_and_the_next_one_is_another_group(group, store):
    """One of two receivers never comes, which the driver knows."""
    sender, there = Broadcaster(), Broadcaster()
    members = group(1, 2)
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(sender.send, members, weights(1), torch.float32)
        got = pool.submit(take, there, members)
        store.wait([f"{members.key}/here/1"])
        call_off(store, members)
        assert sent.result() is False
        with pytest.raises(EngineError, match=r"version 1 did not come by broadcast: it was called off"):
            got.result()
    with pytest.raises(EngineError, match="called off"):
        take(Broadcaster(), members)  # whoever comes later goes home as well
    sent, (found,) = publish(sender, [there], group(2, 1, "again"), weights(2))
    assert sent
    assert same(found, weights(2))


def test_a_receiver_that_leaves_in_the_middle_is_told_to_the_others_and_the_sender_goes_on(group):
    """As where a tensor does not fit the engine's model. Tensors are large, so that none is sent ahead unseen."""
    tensors = {f"layer.{n}": torch.full((2**20,), float(n)) for n in range(8)}
    sender, receivers = Broadcaster(), [Broadcaster(), Broadcaster()]

    def refuse(name):
        raise EngineError(f"{name} does not fit")

    class Noting(dict):
        """Which tensors were asked for: where they are sharded, that is where ranks gather."""

        gathered = ()

        def values(self):
            self.gathered = []
            for name, tensor in self.items():
                self.gathered.append(name)
                yield tensor

    noting = Noting(tensors)
    sent, got = publish(sender, receivers, group(1, 2), noting, r0={"into": refuse})
    assert sent is False
    assert noting.gathered == list(tensors)  # to the end, with the other ranks
    assert "layer.0 does not fit" in str(got[0])
    assert isinstance(got[1], EngineError)
    assert "ended in the middle" in str(got[1])
    sent, got = publish(sender, receivers, group(2, 2, "again"), weights(3))
    assert sent
    assert all(same(found, weights(3)) for found in got)


def test_receivers_do_not_wait_for_what_a_sender_cannot_send(group):
    """Another rank of the learner's is gone, so that it cannot gather; and the sender itself is, before it says what
    will come."""

    class Torn(dict):
        def values(self):
            yield next(iter(super().values()))
            raise RuntimeError("Connection closed by peer")

    tensors = Torn({f"layer.{n}": torch.full((2**20,), float(n)) for n in range(2)})
    receivers = [Broadcaster(), Broadcaster()]
    with ThreadPoolExecutor(3) as pool:
        sent = pool.submit(Broadcaster().send, group(1, 2), tensors, torch.float32)
        got = [pool.submit(take, end, group(1, 2)) for end in receivers]
        assert "closed by peer" in str(sent.exception())
        assert all("ended in the middle" in str(one.exception(PATIENCE / 2)) for one in got)


def test_receivers_are_sent_home_whose_sender_is_gone(group, store):
    members = group(1, 1)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(take, Broadcaster(), members)
        store.wait([f"{members.key}/here/1"])
        send_home(store, members)
        assert "it was called off" in str(got.exception(PATIENCE / 2))


def test_a_sender_that_does_not_come_is_not_waited_for_without_end(group):
    with pytest.raises(EngineError, match=r"its sender did not come within 0.2 s"):
        take(Broadcaster(), group(1, 1, seconds=0.2))
    with socket.socket() as silent:  # the driver is gone, and with it the place to meet at
        silent.bind((LOOPBACK, 0))
        gone = BroadcastGroup(f"store://{LOOPBACK}:{silent.getsockname()[1]}/key", "gone", 1, 1, 0.2)
        with pytest.raises(EngineError, match=r"its sender did not come within 0.2 s"):
            take(Broadcaster(), gone)


def test_an_engine_on_another_kind_of_device_is_refused(group, store):
    members = group(1, 1)
    store.set(f"{members.key}/begin", '["nccl", []]')
    with pytest.raises(EngineError, match="sends by nccl, and this engine computes on cpu"):
        take(Broadcaster(), members)
