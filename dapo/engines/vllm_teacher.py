"""A teacher on a vLLM server: what it says of tokens that the policy made (``algorithm.teacher``).

vLLM's ``prompt_logprobs`` are those of the logits as they are, whatever the temperature and ``--logprobs-mode``: so the
policy has to sample at temperature 1.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dapo.engines.vllm_http import LATER, Unreachable, Wire, not_vllm, words
from dapo.engines.vllm_startup import context_of
from dapo.engines.vllm_waiting import ANSWER, Outage
from dapo.errors import EngineError
from dapo.http import Background
from dapo.types.batch import FloatArray, TokenRow

_MODELS, _TEXT, _JUDGE = "/v1/models", "/detokenize", "/v1/completions"
_AT_ONCE = 64  # requests at the server; the rest wait here
_MOST_ERRORS = 5  # of the server over one request: it will fail over it always
_PIECE = 8192  # token ids of which the text is asked at once
_MOST = 1 + 1e-3  # that probabilities of different tokens add up to


class TeacherAway(EngineError):
    """A teacher's server that gives no answer."""


class ServedTeacher:
    """A model on a vLLM server, which computes log-probabilities of given tokens.

    A server that is away is waited for; a request that it lost is sent again. It must go on to serve the model by the
    name that it had at first.

    Args:
        address: such as ``http://127.0.0.1:8000``.
        patience: seconds that the server may take for an answer, or be away.
        api_key: sent with every request.

    Raises:
        TeacherAway: no server answers within ``patience``.
        EngineError: it is no vLLM server.

    Attributes:
        model: the name by which the server knows it.
        context: tokens that a row may have; None: the server does not say.
    """

    def __init__(self, address: str, *, patience: float, api_key: str | None = None) -> None:
        self._wire, self._patience = Wire(address, api_key), patience
        self._outage = Outage(self._wire.address, patience, "algorithm.teacher.patience")
        self._heard, self._background = time.monotonic(), Background("teacher")
        self._call, self.model = self._background.call, ""
        try:
            models = self._call(self._ask("GET", _MODELS))
            self.context = context_of(self._wire, models, "algorithm.teacher")
            self.model = str(models["data"][0].get("id") or "")
        except BaseException:
            self.close()
            raise

    def check(self, tokenizer: Any, longest: int) -> str | None:
        """Refuse a server that cannot judge this run, and return how its tokens differ; None: they are the student's.

        The server is asked for the text of all ids. Tokens that are parts of a character look alike there.

        Args:
            tokenizer: the student's.
            longest: tokens of prompt and response together.

        Raises:
            EngineError: it takes shorter rows, does not tell its tokens, or its numbers are no log-probabilities.
        """
        if self.context is not None and self.context <= longest:
            raise EngineError(
                f"algorithm.teacher: the vLLM server at {self._wire.address} takes {self.context} tokens; this run "
                f"needs {longest + 1}, the longest prompt and response and one more: start it with --max-model-len "
                f"{longest + 1}, or lower rollout.max_response_tokens"
            )
        size = max(tokenizer.get_vocab().values()) + 1
        if (differing := self._call(self._differing(tokenizer, size))) is None:
            ends = np.array([0, size - 1])
            self.logprobs([TokenRow(0, ends[:1], ends[1:])])
        return differing

    def logprobs(self, rows: Sequence[TokenRow], look: Callable[[], None] | None = None) -> list[FloatArray]:
        """Log-probability of every response token, in the order of ``rows``.

        Args:
            rows: of which the tokens are given.
            look: called every second while the server says nothing; it may raise.

        Raises:
            TeacherAway: the server gives no answer for too long.
            EngineError: it refuses, or its answer has not a number for each token.
        """

        def patiently() -> None:
            if look is not None and time.monotonic() - self._heard > ANSWER:
                look()

        self._heard = time.monotonic()
        self._outage.over()
        return self._call(self._judge_all(rows), patiently)

    def close(self) -> None:
        """Let go of the server."""
        if not self._background.closed:
            self._call(self._wire.close())
            self._background.stop()

    # ------------------------------------------------------------------ the other thread

    async def _judge_all(self, rows: Sequence[TokenRow]) -> list[FloatArray]:
        slots = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._judge(row, slots)) for row in rows]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [one.result() for one in asked]

    async def _judge(self, row: TokenRow, slots: asyncio.Semaphore) -> FloatArray:
        ids = [*row.prompt_ids.tolist(), *row.token_ids.tolist()]
        # One more than the token's own number: without it vLLM does not refuse settings under which it is wrong.
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 1}
        async with slots:
            answer = await self._ask("POST", _JUDGE, body, len(ids))
        try:
            return _numbers(answer, ids)[len(row.prompt_ids) :]
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise EngineError(
                f"algorithm.teacher: the vLLM server at {self._wire.address} gave no log-probability of each of "
                f"{len(ids)} tokens ({type(error).__name__}: {error}), but {words(answer)!r}; its log may say why, and "
                "docs/distillation.md how to start it"
            ) from error

    async def _differing(self, tokenizer: Any, size: int) -> str | None:
        """Return the first of the student's tokens that is another one there, or what the server has beyond them."""
        for first in range(0, size, _PIECE):
            ids = range(first, min(first + _PIECE, size))
            if await self._same(tokenizer, ids):
                continue
            while len(ids) > 1:
                half = ids[: len(ids) // 2]
                ids = ids[len(half) :] if await self._same(tokenizer, half) else half
            here, there = tokenizer.decode(list(ids)), await self._text(ids)
            return f"token {ids[0]} is {here!r} here and {there!r} there"
        beyond = range(size, size + _PIECE)
        try:
            tokenizer.decode(list(beyond))
        except Exception:  # nor does the same tokenizer there
            return None
        more = (await self._text(beyond)).strip()
        return f"the student's tokenizer has {size:,} tokens, the teacher's also {more[:40]!r}" if more else None

    async def _same(self, tokenizer: Any, ids: Sequence[int]) -> bool:
        """Whether ids have the student's text in both orders, however spaces before punctuation are shown."""
        both = [*ids, *reversed(ids)]  # in one, "ab" and "c" would be the text of "a" and "bc"
        text = tokenizer.decode(both)
        return await self._text(both) in (text, tokenizer.clean_up_tokenization(text))

    async def _text(self, ids: Sequence[int]) -> str:
        answer = await self._ask("POST", _TEXT, {"model": self.model, "tokens": list(ids)}, len(ids))
        if not isinstance(answer, dict) or not isinstance(answer.get("prompt"), str):
            raise EngineError(not_vllm(self._wire.address, _TEXT, answer, "{'prompt': ...}", "algorithm.teacher"))
        return str(answer["prompt"])

    async def _ask(self, method: str, path: str, body: Any = None, tokens: int = 0) -> Any:
        """Return the answer to a request, which is sent again as long as the server may yet give one."""
        errors = 0
        while True:
            try:
                status, answer = await self._wire.call(method, path, body, timeout=self._patience, tokens=tokens)
            except Unreachable as error:
                said = str(error)
            else:
                if status == 200:
                    self._heard = time.monotonic()
                    self._outage.over()
                    return answer
                said = f"{path} answered {status}: {words(answer)}"
                if status < 500 and status not in LATER:
                    key = " Give its key in the variable that algorithm.teacher.api_key_variable names."
                    raise EngineError(
                        f"algorithm.teacher: the vLLM server at {self._wire.address} refused a request: {said}. "
                        f"Expected vLLM as docs/distillation.md starts it{self.model and f', serving {self.model!r}'}."
                        + (key if status == 401 else "")
                    )
                errors += status not in LATER
            if errors > _MOST_ERRORS or not await self._outage.wait(said):
                raise TeacherAway(
                    f"algorithm.teacher: the vLLM server at {self._wire.address} gave no answer ({said}); its log may "
                    "say why. See that it runs, correct the address, or raise algorithm.teacher.patience if it needs "
                    "longer. A run that had begun goes on with `dapo train --resume RUN`"
                )


def _numbers(answer: Any, ids: Sequence[int]) -> FloatArray:
    """Return the log-probability of each token but the first, whose is nan.

    Raises:
        ValueError: they are not as many, not finite, or no log-probabilities. Others: the answer has another form.
    """
    entries = answer["choices"][0]["prompt_logprobs"]
    if len(entries) != len(ids):
        raise ValueError(f"{len(entries)} positions came")
    found = np.full(len(ids), np.nan, dtype=np.float32)
    for place, (entry, token) in enumerate(zip(entries[1:], ids[1:], strict=True), start=1):
        if sum(math.exp(min(float(one["logprob"]), 1.0)) for one in entry.values()) > _MOST:
            raise ValueError(f"at position {place} probabilities are above 1, as with --logprobs-mode raw_logits")
        found[place] = entry[str(token)]["logprob"]
    if np.isnan(found[1:]).any():
        raise ValueError("some are nan, as of a model whose logits are not finite")
    return found
