"""Requests to a vLLM server over HTTP and readers of its answers, without any state of a run."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dapo.engines.requests import sequence_of
from dapo.engines.stops import StopStrings
from dapo.errors import EngineError
from dapo.http import Client, HttpError
from dapo.types.batch import FloatArray, IntArray, SampleRequest, VersionArray
from dapo.types.enums import FinishReason
from dapo.types.seeds import generator_seed

GENERATE, ABORT = "/inference/v1/generate", "/inference/v1/abort_requests"
_NOT_FINITE = -9999.0  # what vLLM writes for a log-probability that is nan or -inf (JSON knows neither)
LATER = frozenset({429, 502, 503, 504})  # says the way to the server or its load; the request may be sent again
_IDLE_SECONDS = 4.0  # vLLM drops idle connections after 5 s; a request on one just dropped would be lost
_PIECE = 2**16
_MOST_BYTES = 2**22  # of an answer that holds no response
_BYTES_PER_TOKEN = 2**11  # of an answer that does; vLLM writes some 150


class Unreachable(Exception):
    """No usable answer: no connection, a broken one, no answer in time, or a server that calls itself ill.

    ``status``: of an answer that came; else 0.
    """

    def __init__(self, said: str, status: int = 0) -> None:
        super().__init__(said)
        self.status = status


class Wire:
    """JSON over HTTP to one address. Lives in one asyncio loop."""

    def __init__(self, address: str, api_key: str | None) -> None:
        self.address = address.rstrip("/")
        self._client = Client(api_key, idle=_IDLE_SECONDS, proxies=False)

    async def close(self) -> None:
        await self._client.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        tokens: int = 0,
    ) -> tuple[int, Any]:
        """One request.

        Args:
            method: ``GET`` or ``POST``.
            path: Behind the address.
            body: Sent as JSON.
            query: Behind the path.
            timeout: Seconds for the whole of it; None: as long as it takes.
            tokens: Response tokens that the answer may hold; what it may weigh follows from it.

        Returns:
            The status, and the answer as JSON (as text where it is none). A refusal is without the key.

        Raises:
            Unreachable: No whole answer came, none within ``timeout`` seconds, or one larger than it can be.
        """
        most = _MOST_BYTES + tokens * _BYTES_PER_TOKEN
        try:
            answer = await self._client.send(
                method, self.address + path, body=body, query=query, timeout=timeout, limit=most
            )
        except HttpError as error:
            raise Unreachable(f"{path}: {error}") from error
        hidden = self._client.without_key
        try:
            said = json.loads(answer.body)
            return answer.status, said if answer.status == 200 else hidden(said)
        except (ValueError, RecursionError):
            return answer.status, hidden(answer.body.decode(errors="replace"))[:_PIECE]

    async def must(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """``call`` for routes that a working server does not refuse.

        Raises:
            Unreachable: See ``call``; and statuses from 500 on, of a dying server or a proxy whose server is gone,
                or too busy (429).
            EngineError: Any other status than 200.
        """
        status, answer = await self.call(method, path, body, **options)
        if status >= 500 or status in LATER:
            raise Unreachable(f"{path} answered {status}: {words(answer)}")
        if status != 200:
            raise EngineError(refusal(self.address, path, status, answer))
        return answer

    async def workers(self, method: str, timeout: float, **arguments: Any) -> list[Any] | None:
        """Ask each of the server's workers; None: they do not have that method.

        Raises:
            Unreachable: The server went away.
            EngineError: It refuses.
        """
        body = {"method": method, "kwargs": arguments}
        status, answer = await self.call("POST", "/collective_rpc", body, timeout=timeout)
        if status == 200:
            return self.results(answer)
        if lacks(method, answer):
            return None
        if status >= 500 or status in LATER:
            raise Unreachable(f"/collective_rpc ({method}) answered {status}: {words(answer)}")
        raise EngineError(refusal(self.address, "/collective_rpc", status, answer))

    def results(self, answer: Any) -> list[Any]:
        """Return the workers' results from an answer of /collective_rpc.

        Raises:
            EngineError: It is none.
        """
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or not results:
            raise EngineError(not_vllm(self.address, "/collective_rpc", answer, "{'results': [...]}"))
        return results

    async def weight_label(self, timeout: float) -> str:
        """Return the label of the weights that the server reports, after asking whether it is well.

        Raises:
            Unreachable: It is not.
            EngineError: It has no such route.
        """
        status, answer = await self.call("GET", "/health", timeout=timeout)
        if status != 200:
            raise Unreachable(f"/health answered {status}: {words(answer)}", status)
        answer = await self.must("GET", "/weight_info", timeout=timeout)
        if not isinstance(answer, dict) or not isinstance(answer.get("weight_version"), str):
            raise EngineError(not_vllm(self.address, "/weight_info", answer, "{'weight_version': ...}"))
        return str(answer["weight_version"])

    async def is_paused(self, timeout: float) -> bool:
        """Return whether the server is paused; one that does not know the question is taken to decode.

        Raises:
            Unreachable: See ``call``.
        """
        status, answer = await self.call("GET", "/is_paused", timeout=timeout)
        return status == 200 and isinstance(answer, dict) and bool(answer.get("is_paused"))


def not_vllm(address: str, path: str, answer: Any, expected: str, setting: str = "rollout.server.url") -> str:
    """Return a message for an answer with status 200 that cannot be vLLM's."""
    return (
        f"the server at {address} answered {path} with {words(answer)!r}; expected {expected}, as vLLM 0.32 or newer "
        f"does: see that `{setting}` names the vLLM server itself, not a page or a proxy in front of it, and "
        "that its version is known here"
    )


def lacks(method: str, answer: Any) -> bool:
    """Whether an answer says that the server's workers do not know a method of our extension."""
    said = words(answer)
    return method in said and "attribute" in said


def words(answer: Any) -> str:
    """Return the server's own words from an answer that refuses something."""
    if isinstance(answer, dict):
        error = answer.get("error", answer.get("detail", answer))
        answer = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(answer).split())[:400] or "(no words)"


def refusal(address: str, path: str, status: int, answer: Any) -> str:
    """Return a message for a status that is not 200, with the next move if the status names one."""
    said = f"the vLLM server at {address} answered {path} with {status}: {words(answer)}"
    if status == 401:
        return f"{said}; give its API key in the environment variable that `rollout.server.api_key_variable` names"
    if status == 403 and path.startswith("/inference"):
        return said if "--enable-scale-out" in said else f"{said}; start it with --enable-scale-out"
    if status == 404 and path.startswith("/inference"):
        return f"{said}; tokens in and out need vLLM 0.32 or newer, started with --enable-scale-out"
    if status == 404:
        return (
            f"{said}; the routes that change weights exist only in development mode: start the server with "
            "VLLM_SERVER_DEV_MODE=1 in its environment (and let only the trainer reach it)"
        )
    return said


def generate_body(request: SampleRequest, request_id: str, *, priority: bool) -> dict[str, Any]:
    """Return the request body for one response: prompt and prefix as tokens, and how to sample after them."""
    sampling, made = request.sampling, 0 if request.prefix is None else len(request.prefix)
    body: dict[str, Any] = {
        "request_id": request_id,
        "token_ids": sequence_of(request).tolist(),
        "sampling_params": {
            "max_tokens": sampling.max_tokens - made,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": generator_seed(request),
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,  # of the sampled token alone
            "ignore_eos": True,  # the recipe's stop tokens decide, not the server's model folder
            "detokenize": bool(sampling.stop),
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
        },
    }
    return body | ({"priority": request.priority} if priority else {})


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """One response as the server gave it."""

    token_ids: IntArray
    logprobs: FloatArray
    labels: tuple[tuple[str, int, int], ...]  # (label of the weights, from token, to token)
    finish: str
    complete: bool = False  # with a stop string
    cached: int = 0  # tokens before the first new one that the server had computed already, where it tells

    @classmethod
    def read(cls, payload: Any) -> ServerResponse:
        """Take apart what ``/inference/v1/generate`` answered.

        Raises:
            ValueError: A form that this program does not know.
        """
        try:
            choice = payload["choices"][0]
            tokens = np.asarray([operator.index(token) for token in choice["token_ids"] or ()], dtype=np.int64)
            content = (choice["logprobs"] or {}).get("content") or ()
            numbers = [math.nan if entry["logprob"] is None else float(entry["logprob"]) for entry in content]
            spans = tuple((str(s["version"]), int(s["start"]), int(s["end"])) for s in choice["weight_versions"] or ())
            finish = str(choice["finish_reason"])
            details = (payload.get("usage") or {}).get("prompt_tokens_details") or {}
            cached = operator.index(details.get("cached_tokens") or 0)
        except (KeyError, IndexError) as error:
            raise ValueError(f"an answer without {error}") from error
        except (TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"an answer of another form than vLLM 0.32's ({error})") from error
        if len(numbers) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens with {len(numbers)} log-probabilities")
        starts, ends = [start for _, start, _ in spans], [0, *(end for _, _, end in spans)]
        if ends != [*starts, len(tokens)] or sorted(ends) != ends:
            raise ValueError(f"weight_versions {spans} do not cover the {len(tokens)} tokens one after the other")
        logprobs = np.asarray(numbers, dtype=np.float32)
        logprobs[logprobs <= _NOT_FINITE] = np.nan
        return cls(tokens, logprobs, spans, finish, cached=cached)

    def up_to_stop(self, request: SampleRequest, strings: StopStrings | None) -> ServerResponse:
        """Cut the answer after its first stop string, as every engine ends it. A server without a tokenizer goes on to
        the limit; others may run a little past it."""
        count = None if strings is None else strings.end(request, self.token_ids[: self.finite], self.finite)
        if count is None:
            return self
        labels = tuple((label, start, min(end, count)) for label, start, end in self.labels if start < count)
        ids, logprobs = self.token_ids[:count], self.logprobs[:count]
        return replace(self, token_ids=ids, logprobs=logprobs, labels=labels, finish="stop", complete=True)

    def ended(self) -> tuple[FinishReason | None, str | None]:
        """How the response ended, and why where it failed."""
        if self.finite < len(self.token_ids):
            return FinishReason.FAILED, "the model's logits are not finite"
        known = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": None}
        if self.finish in known:
            return known[self.finish], None
        return FinishReason.FAILED, f"the server ended it with {self.finish!r}"

    @property
    def finite(self) -> int:
        """Tokens before the first one whose log-probability is no number."""
        finite = np.isfinite(self.logprobs)
        return len(finite) if finite.all() else int(np.argmin(finite))

    def fault(self, request: SampleRequest, vocabulary: int, context: int | None) -> str | None:
        """Why this cannot be the response to ``request``; None: it can.

        Args:
            request: What was asked for.
            vocabulary: Token ids that there are.
            context: Of the server; None where it does not say, so that it may end a response before its time.
        """
        count, stops = len(self.token_ids), request.sampling.stop_token_ids
        asked = request.sampling.max_tokens - (0 if request.prefix is None else len(request.prefix))
        if count > asked:
            return f"{count} tokens came where at most {asked} were asked for"
        good = self.token_ids[: self.finite]  # what a broken model chose after that is no token of a response
        outside = good[(good < 0) | (good >= vocabulary)]
        if len(outside):
            return f"token {outside[0]} came, which is not in the model's vocabulary of {vocabulary}"
        if len(good) < count:
            return None
        if self.finish == "stop" and not self.complete and not (count and int(self.token_ids[-1]) in stops):
            return f"it ended with 'stop' behind {self.token_ids[-1:].tolist()}; its stop tokens are {list(stops)}"
        if self.finish == "length" and count < asked and context is not None:
            return (
                f"it ended with 'length' after {count} of {asked} tokens, which a server started with a smaller "
                "--max-model-len than before does"
            )
        return None

    def versions(self, published: Mapping[str, int]) -> VersionArray | None:
        """Return the version of each token; None when some token was made by weights that were never published."""
        versions = np.zeros(len(self.token_ids), dtype=np.int32)
        for label, start, end in self.labels:
            if label not in published:
                return None
            versions[start:end] = published[label]
        return versions
