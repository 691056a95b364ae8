"""Stores in which processes of a run find each other before they exchange tensors.

torch's ``TCPStore`` listens on all addresses of its machine unless it is given a socket. Here it listens on one
address, and every key begins with a random one, so that no stranger finds or disturbs a rendezvous by guessing. The
store does not authenticate who connects, and lists its keys to them: meet other machines on a private network only.
"""

from __future__ import annotations

import datetime
import os
import secrets
import socket
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
SCHEME = "store://"


def serve(host: str) -> tuple[Any, str]:
    """Open a store at an address of this machine, and nowhere else.

    Args:
        host: ``LOOPBACK`` for processes of this machine, or the address at which other machines reach it.

    Returns:
        The store, which is there for as long as it is held; and the address that ``find`` takes.

    Raises:
        OSError: this machine has no such address.
    """
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((host, 0), family=family, backlog=1024) as listener:
        port = listener.getsockname()[1]
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno()))
    key = secrets.token_hex(16)
    return PrefixStore(key, store), f"{SCHEME}{host}:{port}/{key}"


def find(address: str, patience: datetime.timedelta) -> Any:
    """Connect to the store of another process.

    Args:
        address: from ``serve``.
        patience: how long it may take to connect, and any key to appear.

    Raises:
        RuntimeError: no store answers there.
    """
    place, _, key = address.removeprefix(SCHEME).rpartition("/")
    host, _, port = place.rpartition(":")
    return PrefixStore(key, TCPStore(host, int(port), is_master=False, timeout=patience))
