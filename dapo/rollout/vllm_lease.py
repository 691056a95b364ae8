"""One trainer at a time on a vLLM server: each holds a lease there, renews it, and gives it back.

Without it a second trainer would publish its weights over the first one's, which then could only stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dapo.errors import EngineError
from dapo.rollout.vllm_http import Unreachable, Wire

log = logging.getLogger(__name__)

TRAINER = "dapo-"  # begins the name of every trainer
SECONDS = 30.0  # a trainer that was killed on another machine keeps the server for so long
_LOOK_AGAIN = 1.0


def this_trainer(work: str) -> dict[str, Any]:
    """Return a description of this trainer: its work and its process, so that the next trainer can name it and check
    that it runs."""
    return {"work": work, "process": os.getpid(), "machine": socket.gethostname(), "space": _process_space()}


def _process_space() -> str:
    """Return the scope in which a process number is unique: this boot of this machine, and the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def is_dead(who: Any) -> bool:
    """Whether this machine knows that a trainer's process is gone. (A number may have been given to another since.)"""
    if not isinstance(who, Mapping) or not isinstance(who.get("process"), int) or who["process"] <= 0:
        return False
    if not who.get("space") or who["space"] != _process_space():
        return False
    try:
        os.kill(who["process"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class ServerLease:
    """This trainer's, on one server.

    Args:
        wire: To the server.
        name: Of this trainer.
        work: What it works on, in words: its run folder.
    """

    def __init__(self, wire: Wire, name: str, work: str) -> None:
        self._wire, self._name, self._who = wire, name, this_trainer(work)
        self._known = True  # the server has our worker extension, which keeps leases

    async def take(self, patience: float, label: str) -> None:
        """Get the lease. Another trainer's is waited for until it ends, unless it is renewed: then that one lives.

        Args:
            patience: Seconds for an answer.
            label: Of the weights that the server holds; all there is to tell without our extension.

        Raises:
            EngineError: Another trainer has the server.
            Unreachable: The server went away.
        """
        clock, before, instead_of = asyncio.get_running_loop().time, None, ""
        while (holder := await self._claim(patience, instead_of)) is not None:
            name, left = str(holder.get("name")), float(holder.get("seconds", 0.0))
            end = clock() + left
            if before is not None and before[0] == name and end > before[1] + _LOOK_AGAIN / 2:
                raise EngineError(self._taken(holder, "renewed its claim just now"))
            if before is None:
                log.warning("the vLLM server at %s was %s: seeing whether it lives", self._wire.address, _other(holder))
            before = (name, end)
            instead_of = name if is_dead(holder.get("who")) else ""
            if not instead_of:
                await asyncio.sleep(min(_LOOK_AGAIN, max(0.05, left)))
        if not self._known and label.startswith(TRAINER):
            log.warning(
                "the vLLM server at %s holds weights of another trainer (%s), and without --worker-extension-cls "
                "dapo.rollout.vllm.WeightWorker it cannot say whether that one still runs: this run takes it over",
                self._wire.address,
                label,
            )

    async def renew(self, patience: float) -> EngineError | None:
        """To be called well within ``SECONDS``. Returns why it is lost: another trainer has taken the server."""
        with suppress(Unreachable, EngineError):  # whoever needs an answer learns what is wrong
            if self._known and (holder := await self._claim(patience)) is not None:
                return EngineError(self._taken(holder, "took it when this one had been silent for too long"))
        return None

    def refuse_label(self, label: str) -> None:
        """Look at the name of weights that are not ours, in a server that held ours.

        Raises:
            EngineError: Another trainer has published them.
        """
        if label.startswith(TRAINER):
            raise EngineError(
                f"another trainer has published its weights to the vLLM server at {self._wire.address} (they are "
                f"called {label!r}; ours begin with {self._name!r}); give each run a server of its own, then continue "
                "this one with `dapo train --resume`"
            )

    async def release(self, seconds: float) -> None:
        """Let the next trainer in at once. What goes wrong with it is no matter: leases end by themselves."""
        if self._known:
            with suppress(Unreachable, EngineError):
                await self._wire.workers("release_server", seconds, name=self._name)

    async def _claim(self, patience: float, instead_of: str = "") -> Mapping[str, Any] | None:
        """Try to take the lease; returns its holder if that is another trainer."""
        answers = await self._wire.workers(
            "claim_server", patience, name=self._name, who=self._who, seconds=SECONDS, instead_of=instead_of
        )
        self._known = answers is not None
        for holder in answers or ():
            if isinstance(holder, Mapping) and holder.get("name") not in (self._name, None):
                return holder
        return None

    def _taken(self, holder: Mapping[str, Any], doing: str) -> str:
        return (
            f"the vLLM server at {self._wire.address} is {_other(holder)}, which {doing}: two trainers would publish "
            "their weights over each other's. Give each run a server of its own, or stop the other one first; then "
            "start this one again (one that had begun: with `dapo train --resume`)"
        )


def _other(holder: Mapping[str, Any]) -> str:
    who = holder.get("who")
    who = who if isinstance(who, Mapping) else {}
    return (
        f"claimed by another trainer: {who.get('work', holder.get('name'))} (process {who.get('process', '?')} on "
        f"{who.get('machine', '?')})"
    )
