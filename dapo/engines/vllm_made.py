"""One request's output from a vLLM that runs in this process, and when it has ended. Imports no vLLM."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dapo.engines.stops import StopStrings
from dapo.errors import EngineError
from dapo.models.routing import EXTRA, Routes
from dapo.types.batch import Key, Response, SampleRequest
from dapo.types.enums import FinishReason
from dapo.types.extra import Extra
from dapo.types.model import ModelFacts

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # what configurations call their number
_KNOWN = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Ending(NamedTuple):
    """How a response has ended, and why it failed if it did."""

    finish: FinishReason
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RouteShape:
    """Shape of a token's expert choices, see ``dapo.models.routing``."""

    layers: tuple[int, ...]  # those with experts: vLLM numbers all
    k: int
    experts: int

    @classmethod
    def of(cls, facts: ModelFacts) -> RouteShape:
        """Raise EngineError for a model without experts."""
        found = {int(m[1]) for name in facts.shapes if (m := re.search(r"\.(\d+)\..*\bexperts\b", name))}
        experts = next((int(facts.config[key]) for key in _EXPERTS if facts.config.get(key)), 0)
        if not found or not experts:
            raise EngineError(
                f"learner.router_replay is 'sampler', and {facts.name} has no experts to record; set "
                "learner.router_replay=off"
            )
        return cls(tuple(sorted(found)), int(facts.config["num_experts_per_tok"]), experts)

    def routes(self, given: NDArray[Any] | None, tokens: int) -> Routes:
        """Return the routes of a sequence from vLLM's experts [its first tokens, layers, k], counted from 0."""
        kind = np.uint8 if self.experts < 2**8 else np.int16
        found = np.zeros((tokens, len(self.layers), self.k), kind)
        if given is not None:
            known = given[: tokens - 1, list(self.layers)]  # the newest token went through no router yet
            found[: len(known)] = known.astype(np.int16) + 1
        return found


@dataclass(slots=True)
class VllmResponse:
    """Output of vLLM for one request so far."""

    request: SampleRequest
    shape: RouteShape | None = None  # of the routes that are given with the response
    routed: NDArray[Any] | None = None  # by vLLM, when the request ends
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take_in(self, new: Any, version: int, strings: StopStrings | None) -> Ending | None:
        """Add what a step of vLLM brought.

        Args:
            new: vLLM's ``CompletionOutput``, with the tokens of this step alone.
            version: of the weights that made them.
            strings: finds stop strings, behind which tokens are dropped; None: there are none.

        Returns:
            How the response has ended; None: it goes on.
        """
        logprobs = new.logprobs.logprobs
        if not np.isfinite(logprobs).all():
            return Ending(FinishReason.FAILED, "the model's logits are not finite")
        self.token_ids += new.token_ids
        self.logprobs += logprobs
        self.versions += [version] * len(new.token_ids)
        if self.shape is not None:
            self.routed = new.routed_experts
        if strings is not None and (end := strings.end(self.request, self.token_ids, len(new.token_ids))):
            del self.token_ids[end:], self.logprobs[end:], self.versions[end:]
            return Ending(FinishReason.STOP)
        if new.finish_reason is None:
            return None
        if new.finish_reason in _KNOWN:
            return Ending(_KNOWN[new.finish_reason])
        return Ending(FinishReason.FAILED, f"vLLM ended it with {new.finish_reason!r}")

    def event(self, finish: FinishReason | None, tick: int, reason: str | None = None) -> Response:
        return Response(
            token_ids=np.array(self.token_ids, dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            finish=finish,
            extra=self._extra(),
            key=self.request.key,
            tick=tick,
            reason=reason,
        )

    def _extra(self) -> Extra:
        """Return the routes of the new tokens, and before them of the prompt if these are the first.

        vLLM gives none for a request that is aborted, or that ends with a stop string of ours: nothing is recorded.
        """
        if self.shape is None or not self.token_ids:
            return {}
        prefix = 0 if self.request.prefix is None else len(self.request.prefix)
        start = len(self.request.prompt_ids) + prefix
        routes = self.shape.routes(self.routed, start + len(self.token_ids))
        return {EXTRA: routes[start:] if prefix else routes}


def name_of(key: Key) -> str:
    """vLLM's request id."""
    return "-".join(map(str, key))
