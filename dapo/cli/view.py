"""``dapo view``: find a free port, say where the pages are, serve until Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import sys
import webbrowser
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dapo import __version__
from dapo.errors import RecipeError
from dapo.observe.report_extra import PAGES, check_installed

PORT = 6116
"""The first port to try: of no other tool that a machine for training usually runs."""
PORTS_TRIED = 20


def view(folder: Path, port: int, host: str, open_browser: bool, expose: bool) -> int:
    """Serve the runs of a folder until Ctrl-C; returns the exit code.

    Args:
        folder: of runs, or one run.
        port: the first to try; where it is taken, the next free one. 0: any.
        host: name or address to listen on.
        open_browser: show the page in the default browser.
        expose: the user has seen that anyone who reaches this machine may read, so ``host`` may be no loopback.

    Raises:
        RecipeError: no such folder, a host that is not the loopback without ``expose``, no free port, or the server's
            packages are not installed.
    """
    check_installed("dapo view", PAGES)
    from dapo.report.runs_list import RunsFolder
    from dapo.report.serve import make_app, make_server

    runs = RunsFolder.at(folder)
    loopback = is_loopback(host)
    if not loopback and not expose:
        raise RecipeError(
            f"--host {host} is not this machine's loopback: anyone who reaches that address could read all prompts and "
            "responses, for there is no password. From elsewhere, use a tunnel: "
            f"ssh -L {port}:127.0.0.1:{port} THIS_MACHINE. If you want it open all the same, add --expose."
        )
    listener = listen(host, port)
    bound = listener.getsockname()[1]
    own = f"[{host}]" if ":" in host else host  # also 127.0.0.2, which is the loopback as well
    names = (own,) if loopback else (own, socket.gethostname(), socket.getfqdn())
    server = make_server(make_app(runs, names, any_address=not loopback, version=__version__))
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # its routine words; ours say what matters
    address = address_for(host, bound)
    say(folder, address, bound, port, loopback)
    if open_browser:
        webbrowser.open(address)
    try:
        asyncio.run(server.serve(sockets=[listener]))
    except KeyboardInterrupt:  # uvicorn ends in order and then raises it again
        pass
    finally:
        listener.close()
    Console(highlight=False).print("\nended", style="dim")
    return 0


def say(folder: Path, address: str, bound: int, wanted: int, loopback: bool) -> None:
    """Print what is served where, how to reach it from another machine, and how to end it."""
    out = Console(highlight=False, soft_wrap=True)
    out.print(Text("Runs in ").append(str(folder), "bold").append(" are shown at ").append(address, "bold cyan"))
    if wanted not in (0, bound):
        out.print(Text(f"(port {wanted} is taken: another `dapo view`? --port chooses one)", "dim"))
    if not loopback:
        out.print(
            Text("warning: ", "bold yellow").append(
                "no password: anyone who reaches this address reads every prompt and response", "not bold default"
            )
        )
    elif os.environ.get("SSH_CONNECTION"):
        out.print(
            Text("You are on a remote machine. On your own, run ")
            .append(f"ssh -L {bound}:127.0.0.1:{bound} {socket.gethostname()}", "bold")
            .append(" and open the same address there.")
        )
    else:
        out.print(Text(f"From another machine: ssh -L {bound}:127.0.0.1:{bound} {socket.gethostname()}", "dim"))
    out.print(Text("Ctrl-C ends it; the runs go on.", "dim"))
    sys.stdout.flush()


def is_loopback(host: str) -> bool:
    """Whether a name or address is of this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_for(host: str, port: int) -> str:
    """Return the address to type into a browser; for a server on every interface, the loopback."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on ``port`` or the next free one of a few.

    Raises:
        RecipeError: the host is none of this machine's, or all of these ports are taken.
    """
    last = port if port == 0 else min(65535, port + PORTS_TRIED - 1)
    for candidate in range(port, last + 1):
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise RecipeError(f"--host {host} cannot be used ({error.strerror}); the usual one is 127.0.0.1") from None
        try:
            # Only connections that linger may be taken over; a port that someone listens on stays refused.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                continue
            hint = "choose a --port from 1024 up" if error.errno == errno.EACCES else "the usual --host is 127.0.0.1"
            raise RecipeError(f"{host} port {candidate} cannot be used ({error.strerror}); {hint}") from None
        return listener
    raise RecipeError(f"the ports {port} to {last} of {host} are all taken; choose another with --port")
