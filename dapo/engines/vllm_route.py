"""How a vLLM server gets new weights, and what it says of those that it has."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dapo.engines.vllm_http import LATER, Unreachable, Wire, lacks, refusal, words
from dapo.errors import EngineError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedFolder:
    """A set of weights on disk, under a label that no other set and no other trainer uses."""

    label: str
    version: int
    folder: Path


class ServerWeights:
    """The way of new weights into one server, found at the first load."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._extension: bool | None = None  # the server has our worker extension; None: not tried yet
        self._paused = False  # by us, and no /resume was confirmed since

    async def load(self, weights: PublishedFolder, seconds: float) -> None:
        """Load weights while requests are paused; their keys and values are computed again under the new weights.

        Raises:
            Unreachable: The server went away, or was replaced meanwhile.
            EngineError: It does not take these weights.
        """
        wire = self._wire
        self._paused = True  # should the answer be lost, too
        await wire.must("POST", "/pause", query={"mode": "keep"}, timeout=seconds)
        unfinished = f"{weights.label}-unfinished"
        try:
            # Should this end half-way, no token of what is then in the server passes for one of published weights.
            await self._name(unfinished, seconds)
            await self._reload(weights.folder, seconds)
            query = {"reset_running_requests": "true"}
            answer = await wire.must("POST", "/reset_prefix_cache", query=query, timeout=seconds)
            if isinstance(answer, dict) and answer.get("success") is False:
                raise EngineError(
                    f"the vLLM server at {wire.address} did not drop its prefix cache, which holds keys and values of "
                    "the old weights; start it again without a KV connector"
                )
            label = await wire.weight_label(seconds)
            if label != unfinished:  # one that was not there from the start may lack the weights
                raise Unreachable(f"the server was replaced while it loaded: its weights are called {label!r}")
            await self._name(weights.label, seconds)
        except BaseException:
            with suppress(Unreachable, EngineError):
                await self.resume(5.0)
            raise
        await self.resume(seconds)

    async def resume(self, seconds: float) -> None:
        """See to it that the server decodes: an earlier /resume, or the answer to it, may have been lost.

        Raises:
            Unreachable: The server went away.
            EngineError: It refuses to.
        """
        if self._paused or await self._wire.is_paused(seconds):
            await self._wire.must("POST", "/resume", timeout=seconds)
            self._paused = False

    async def _name(self, label: str, seconds: float) -> None:
        await self._wire.must("POST", "/update_weight_version", {"new_version": label}, timeout=seconds)

    async def _reload(self, folder: Path, seconds: float) -> None:
        status, answer = 0, None
        for has_extension, method in ((True, "load_published"), (False, "reload_weights")):
            body = {"method": method, "kwargs": {"weights_path": str(folder)}}
            if self._extension not in (None, has_extension):
                continue
            status, answer = await self._wire.call("POST", "/collective_rpc", body, timeout=seconds)
            if status == 200:
                self._wire.results(answer)
                self._extension = has_extension
                return
            if status in LATER:  # not the server's word on these weights
                raise Unreachable(f"/collective_rpc answered {status}: {words(answer)}")
            if not lacks(method, answer):
                break
            log.warning(
                "the server at %s lacks --worker-extension-cls dapo.engines.vllm.WeightWorker: its own reload_weights "
                "is used, which forgets tied output heads on CPUs, and its tensors cannot be compared",
                self._wire.address,
            )
        said = refusal(self._wire.address, "/collective_rpc", status, answer)
        await self._wire.weight_label(seconds)  # one that died meanwhile is waited for like any other
        raise EngineError(
            f"{said}. It was to load {folder}, which must be visible to the server under the same path "
            "(rollout.server.weights_dir) and hold the model it was started with. After a failed load vLLM cannot "
            "decode any more: start it again, then continue with `dapo train --resume`"
        )
