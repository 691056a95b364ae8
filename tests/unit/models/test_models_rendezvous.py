"""Where processes of a run find each other: one address, and keys that a stranger does not guess."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore

from dapo.config import recipe_from_dict
from dapo.config.deployment import deployment_of
from dapo.models.rendezvous import LOOPBACK, find, serve
from dapo.run.publishing import make_exchange

PATIENCE = datetime.timedelta(seconds=30)


def listening() -> dict[int, set[str]]:
    """Addresses on which this process listens, by port."""
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(entry))
        except FileNotFoundError:  # the folder's own descriptor
            continue
    found: dict[int, set[str]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                words, port = fields[1].split(":")
                parts = [bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8)]
                found.setdefault(int(port, 16), set()).add(str(ipaddress.ip_address(b"".join(parts))))
    return found


def recipe(route):
    return recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum"}]},
            "rollout": {"max_staleness": 1, "engines": 2, "weight_transfer": route},
        }
    ).recipe


@pytest.fixture
def port():
    """Of an address that ``serve`` gave."""
    return lambda address: int(address.rpartition("/")[0].rpartition(":")[2])


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_the_looking_glass_sees_a_socket_of_all_addresses():
    """Or the tests below would show nothing."""
    with socket.create_server(("", 0)) as everywhere:
        assert listening()[everywhere.getsockname()[1]] == {"0.0.0.0"}


@linux
def test_a_store_listens_at_its_address_alone(port):
    store, address = serve(LOOPBACK)
    assert listening()[port(address)] == {LOOPBACK}
    del store


@linux
@pytest.mark.parametrize("one_machine", [None, True, False])
def test_a_broadcast_is_met_on_the_loopback_unless_there_are_other_machines(port, one_machine):
    here = "127.0.0.2"
    places = None if one_machine is None else SimpleNamespace(one_machine=one_machine, here=here)
    made = recipe("broadcast")
    facts = SimpleNamespace(parameters=1)
    exchange = make_exchange(made, deployment_of(made), facts, None, places)
    assert listening()[port(exchange.route._address)] == {here if one_machine is False else LOOPBACK}


def test_processes_that_know_the_address_meet():
    store, address = serve(LOOPBACK)
    find(address, PATIENCE).set("here", b"1")
    assert store.get("here") == b"1"


def test_a_stranger_at_the_port_who_guesses_names_neither_reads_nor_disturbs(port):
    store, address = serve(LOOPBACK)
    store.set("group/begin", b"ours")
    stranger = TCPStore(LOOPBACK, port(address), is_master=False, timeout=PATIENCE)
    assert not stranger.check(["group/begin"])
    stranger.set("group/begin", b"no")
    assert stranger.add("group/ranks", 1) == 1
    assert store.get("group/begin") == b"ours"
    assert store.add("group/ranks", 1) == 1
    assert serve(LOOPBACK)[1].rpartition("/")[2] != address.rpartition("/")[2]


def test_an_address_of_another_machine_is_no_place_to_listen():
    with pytest.raises(OSError, match=r"(?i)address"):
        serve("192.0.2.77")
