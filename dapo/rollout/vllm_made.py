"""What vLLM has made of one request, in a process of ours, and when that has ended. Imports no vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dapo.rollout.stops import StopStrings
from dapo.types.batch import Key, SampleEvent, SampleRequest
from dapo.types.enums import FinishReason

_KNOWN = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Ending(NamedTuple):
    """How a response has ended, and why it failed if it did."""

    finish: FinishReason
    reason: str | None = None


@dataclass(slots=True)
class VllmResponse:
    """What vLLM has made of one request so far."""

    request: SampleRequest
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
        if strings is not None and (end := strings.end(self.request, self.token_ids, len(new.token_ids))):
            del self.token_ids[end:], self.logprobs[end:], self.versions[end:]
            return Ending(FinishReason.STOP)
        if new.finish_reason is None:
            return None
        if new.finish_reason in _KNOWN:
            return Ending(_KNOWN[new.finish_reason])
        return Ending(FinishReason.FAILED, f"vLLM ended it with {new.finish_reason!r}")

    def event(self, finish: FinishReason, tick: int, reason: str | None = None) -> SampleEvent:
        return SampleEvent(
            key=self.request.key,
            token_ids=np.array(self.token_ids, dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            finish=finish,
            tick=tick,
            reason=reason,
        )


def name_of(key: Key) -> str:
    """vLLM's request id."""
    return "-".join(map(str, key))
