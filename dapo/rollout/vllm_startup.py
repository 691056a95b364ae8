"""What a vLLM server must be before it is used, and how it gets new weights."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dapo.errors import EngineError
from dapo.rollout.vllm_http import GENERATE, LATER, Answer, Unreachable, Wire, refusal, words

log = logging.getLogger(__name__)
_EXACT = 1e-6
_SILENT_SECONDS = 2.0  # a server that is away for longer is told to whoever waits
_FIRST_TOKENS_SECONDS = 180.0  # a fresh server still compiles at its first request


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the start-up checks found out."""

    context: int | None  # tokens that a prompt and its response may have together
    vocabulary: int  # token ids that the run's model has, which the server's has, too
    priority: bool  # a request may name one (a server that does not order by it takes no notice)


async def inspect(wire: Wire, *, longest: int, vocabulary: int, patience: float) -> ServerFacts:
    """Refuse a server that cannot serve this run, before any work is spent.

    Raises:
        EngineError: It cannot be reached for ``patience`` seconds, runs without development mode, its context is
            shorter than ``longest``, its vocabulary smaller, or its log-probabilities are not the sampler's.
    """
    await _wait_until_healthy(wire, patience)
    patience = max(patience, _FIRST_TOKENS_SECONDS)
    try:
        await wire.weight_label(patience)  # first: its absence means that nothing below can be trusted either
        models = await wire.must("GET", "/v1/models", timeout=patience)
        context = models["data"][0].get("max_model_len")
        if context is not None and context < longest:
            raise EngineError(
                f"the vLLM server at {wire.address} takes {context} tokens of prompt and response together; this run "
                f"needs {longest}: start it with --max-model-len {longest}, or lower rollout.max_response_tokens"
            )
        if await wire.is_paused(patience):  # left behind by a trainer that died within a publish
            await wire.must("POST", "/resume", timeout=patience)
        priority = await _probe_logprobs(wire, vocabulary, patience)
    except Unreachable as error:
        raise EngineError(
            f"the vLLM server at {wire.address} stopped answering during the start-up checks ({error}); look at its log"
        ) from error
    return ServerFacts(context, vocabulary, priority)


async def _wait_until_healthy(wire: Wire, patience: float) -> None:
    start = time.monotonic()
    end, said = start + patience, False
    while True:
        try:
            left = max(1.0, end - time.monotonic())
            status, answer = await wire.call("GET", "/health", timeout=left if said else min(left, _SILENT_SECONDS))
            if status == 200:
                return
            last = f"/health answered {status}: {words(answer)}"
            if 400 <= status < 500 and status not in LATER:
                raise EngineError(
                    f"{wire.address} is no vLLM server ({last}); expected http://HOST:PORT, without a path"
                )
        except Unreachable as error:
            last = str(error)
        if time.monotonic() > end:
            raise EngineError(
                f"no vLLM server answered at {wire.address} for {patience:.0f} s ({last}); start it, check the address "
                "in the recipe, or raise `rollout.server.patience` if it needs longer to load"
            )
        if not said and time.monotonic() >= start + _SILENT_SECONDS:
            said = True
            log.warning("waiting for a vLLM server at %s, for up to %.0f s (%s)", wire.address, patience, last)
        await asyncio.sleep(min(1.0, patience / 10))


async def _probe_logprobs(wire: Wire, vocabulary: int, patience: float) -> bool:
    """See that log-probabilities are those of the distribution sampled from, where that is known without the model.

    With top_k 1 there is one outcome, of log-probability 0. The raw ones of a model that is sure of itself are close
    to that; but they do not know the temperature, which scales the distance between the two likeliest tokens.

    Returns:
        Whether a request may name a priority.
    """
    priority = True

    async def ask(**law: Any) -> Any:
        nonlocal priority
        sampling = {"seed": 0, "logprobs": 0, "ignore_eos": True, "detokenize": False, **law}
        body: dict[str, Any] = {"token_ids": [vocabulary - 1], "sampling_params": sampling}
        status, payload = 400, None
        if priority:
            status, payload = await wire.call("POST", GENERATE, {**body, "priority": 1}, timeout=patience)
            priority = not (status == 400 and "priority" in words(payload))
        if not priority:
            status, payload = await wire.call("POST", GENERATE, body, timeout=patience)
        return _accepted(wire, vocabulary, status, payload)

    async def distance(temperature: float) -> float:
        payload = await ask(max_tokens=1, temperature=temperature, logprobs=3)  # the sampled one, then the likeliest
        found = sorted(entry["logprob"] for entry in payload["choices"][0]["logprobs"]["content"][0]["top_logprobs"])
        return float(found[-1] - found[-2])

    certain = Answer.read(await ask(max_tokens=4, temperature=0.5, top_k=1)).logprobs
    cold, warm = await distance(0.5), await distance(2.0)
    if not (np.abs(certain) <= _EXACT).all() or (warm > _EXACT and cold < 2 * warm):
        raise EngineError(
            f"the vLLM server at {wire.address} does not report the sampler's own log-probabilities: tokens that were "
            f"certain have {certain.tolist()} instead of 0, and from temperature 2 to 0.5 the distance of two tokens "
            f"went from {warm:.4g} to {cold:.4g} instead of four times as far; start it with "
            "--logprobs-mode processed_logprobs"
        )
    return priority


def _accepted(wire: Wire, vocabulary: int, status: int, payload: Any) -> Any:
    if status == 400 and "vocabulary" in words(payload):
        raise EngineError(
            f"the model of the vLLM server at {wire.address} does not know token {vocabulary - 1}; the run's model has "
            f"a vocabulary of {vocabulary}: start the server on the folder in `model.path`"
        )
    if status != 200:
        raise EngineError(refusal(wire.address, GENERATE, status, payload))
    try:
        Answer.read(payload)
    except ValueError as error:
        raise EngineError(
            f"the vLLM server at {wire.address} answered in a form that is not known here: {error}; "
            "expected that of vLLM 0.32 or newer"
        ) from error
    return payload


@dataclass(frozen=True, slots=True)
class Published:
    """A set of weights on disk, under a label that no other set and no other trainer uses."""

    label: str
    version: int
    folder: Path


class WeightRoute:
    """The way of new weights into one server, found at the first load."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._extension: bool | None = None  # the server has our worker extension; None: not tried yet
        self._paused = False  # by us, and no /resume was confirmed since

    async def load(self, weights: Published, seconds: float) -> None:
        """What is in flight stands still meanwhile; its keys and values are computed again under the new weights.

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
        own = {"method": "load_published", "args": [str(folder)]}
        plain = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        status, answer = 0, None
        for has_extension, body in ((True, own), (False, plain)):
            if self._extension not in (None, has_extension):
                continue
            status, answer = await self._wire.call("POST", "/collective_rpc", body, timeout=seconds)
            if status == 200:
                self._extension = has_extension
                return
            if status in LATER:  # not the server's word on these weights
                raise Unreachable(f"/collective_rpc answered {status}: {words(answer)}")
            if not ("load_published" in words(answer) and "attribute" in words(answer)):
                break
            log.warning(
                "the server at %s lacks --worker-extension-cls dapo.rollout.vllm.WeightWorker: its own reload_weights "
                "is used, which forgets tied output heads on CPUs",
                self._wire.address,
            )
        said = refusal(self._wire.address, "/collective_rpc", status, answer)
        await self._wire.weight_label(seconds)  # one that died meanwhile is waited for like any other
        raise EngineError(
            f"{said}. It was to load {folder}, which must be visible to the server under the same path "
            "(rollout.server.weights_dir) and hold the model it was started with. After a failed load vLLM cannot "
            "decode any more: start it again, then continue with `dapo train --resume`"
        )
