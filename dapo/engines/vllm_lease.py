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
from typing import Any

from dapo.engines.vllm_http import Unreachable, Wire
from dapo.errors import EngineError

log = logging.getLogger(__name__)

TRAINER = "dapo-"  # begins the name of every trainer
SECONDS = 30.0  # a trainer that was killed keeps the server for so long
_LOOK_AGAIN = 1.0


class ServerLease:
    """This trainer's, on one server.

    Args:
        wire: To the server.
        name: Of this trainer.
        work: What it works on, in words: its run folder.
    """

    def __init__(self, wire: Wire, name: str, work: str) -> None:
        self._wire, self._name = wire, name
        self._who = f"{work} (process {os.getpid()} on {socket.gethostname()})"
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
        clock, seen = asyncio.get_running_loop().time, ("", 0.0)
        while (holder := await self._claim(patience)) is not None:
            name, who, left = holder["name"], holder["who"], float(holder["seconds"])
            end = clock() + left
            if name != seen[0]:  # also: another one that waited got it
                log.warning("%s has the vLLM server at %s: seeing whether it lives", who, self._wire.address)
                seen = (name, end)
            if end > seen[1] + _LOOK_AGAIN / 2:
                raise EngineError(
                    f"the vLLM server at {self._wire.address} is claimed by another trainer, {who}, which renewed its "
                    "claim just now: two trainers would publish their weights over each other's. Give each run a "
                    "server of its own, or stop the other one first; then start this one again"
                )
            await asyncio.sleep(min(_LOOK_AGAIN, max(0.05, left)))
        if not self._known and label.startswith(TRAINER):
            log.warning(
                "the vLLM server at %s holds weights of another trainer (%s), and without --worker-extension-cls "
                "dapo.engines.vllm.WeightWorker it cannot say whether that one still runs: this run takes it over",
                self._wire.address,
                label,
            )

    async def renew(self, patience: float) -> None:
        """Keep the lease; to be called well within ``SECONDS``. A trainer that took it shows by its weights' label."""
        if self._known:
            with suppress(Unreachable, EngineError):  # the next request says what is wrong
                await self._claim(patience)

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

    async def _claim(self, patience: float) -> Mapping[str, Any] | None:
        """Try to take the lease; returns its holder if that is another trainer."""
        answers = await self._wire.workers("claim_server", patience, name=self._name, who=self._who, seconds=SECONDS)
        self._known = answers is not None
        return next((holder for holder in answers or () if holder["name"] != self._name), None)
