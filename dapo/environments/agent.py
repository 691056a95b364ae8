"""Play an agent as an environment: its requests to the endpoint are the replies, the model's turns their answers.

An agent is a function ``f(prompt, *, base_url, api_key, **args)``, also ``async``, or a program. It talks to the model
through any client of ``/v1/chat/completions``, and returns a score, scores by name, or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dapo.environments.call_formats import Reader
from dapo.environments.chat_requests import Completed, Sampling
from dapo.environments.endpoint import Conversation, Endpoint
from dapo.environments.forms import Form
from dapo.errors import RecipeError
from dapo.types.batch import Prompt
from dapo.types.environment import Abilities, Ended, ModelTurn, Reply

LAST_WORDS = 10.0
"""Seconds that an agent has to end after a limit ended its episode, unless ``_SHARE`` of a call's timeout is less."""
_SHARE = 0.8
MOST_OUTPUT = 1 << 20
"""Bytes that an agent's program may write to its output, and to its errors."""
_PIECE = 1 << 16  # bytes read at once
WHY: dict[str, str] = {
    "turns": "environment.max_turns ended this episode: return, with a score if there is one",
    "tokens": "the tokens of this episode are spent: return, with a score if there is one",
}


class AgentFailed(Exception):
    """An agent's program ended with an error."""


class AgentEnvironment:
    """One episode of an agent.

    Args:
        endpoint: of this process.
        run: a function, or the words of a command.
        args: keyword arguments of the function; a program finds them in its input.
        timeout: seconds of a call.
    """

    def __init__(
        self, endpoint: Endpoint, run: Callable[..., Any] | Sequence[str], args: Mapping[str, Any], timeout: float
    ) -> None:
        self._endpoint, self._run, self._args = endpoint, run, args
        self._last_words = min(LAST_WORDS, _SHARE * timeout)
        self._conversation: Conversation | None = None
        self._agent: asyncio.Future[Any] | None = None
        self._given: dict[str, Any] | None = None  # the message that was given to the client last

    async def start(self, prompt: Prompt, seed: int) -> Reply:
        """Begin the agent; return its first request."""
        await self._endpoint.start()
        conversation = self._conversation = self._endpoint.open()
        where = {"base_url": self._endpoint.base_url, "api_key": conversation.key}
        if callable(self._run):
            self._agent = asyncio.ensure_future(_call(self._run, prompt, {**where, **self._args}))
        else:
            self._agent = asyncio.ensure_future(_program(self._run, prompt, where, self._args))
        return await self._next()

    async def step(self, turn: ModelTurn) -> Reply:
        """Give the model's turn to the client that asked; return the agent's next request, or its end."""
        conversation, _ = self._begun()
        self._given = message_of(turn)
        conversation.answer(Completed(turn.number, self._given, turn.cut))
        return await self._next()

    async def end(self, why: Ended) -> Mapping[str, float]:
        """Refuse further requests; return the score of an agent that ends on its own then, and soon."""
        conversation, agent = self._begun()
        conversation.end(WHY[why])
        done, _ = await asyncio.wait({agent}, timeout=self._last_words)
        if not done or agent.cancelled() or agent.exception() is not None:
            return {}
        return scores_of(agent.result())

    async def close(self) -> None:
        """End the agent and forget its key."""
        if self._conversation is not None:
            self._endpoint.close(self._conversation)
        if self._agent is not None and not self._agent.done():
            self._agent.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._agent

    async def _next(self) -> Reply:
        conversation, agent = self._begun()
        coming = asyncio.ensure_future(conversation.next())
        try:
            await asyncio.wait({coming, agent}, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                return Reply(conversation={**coming.result().conversation(), "answered": self._given})
        finally:
            coming.cancel()
        return Reply(done=True, scores=scores_of(agent.result()))

    def _begun(self) -> tuple[Conversation, asyncio.Future[Any]]:
        assert self._conversation is not None, "start comes first"
        assert self._agent is not None, "start comes first"
        return self._conversation, self._agent


def agent_form(
    run: Callable[..., Any] | Sequence[str],
    args: Mapping[str, Any],
    reader: Reader | None,
    *,
    loaded: str,
    timeout: float,
    sampling: Sampling | None = None,
) -> Form:
    """Return the form of an agent.

    Args:
        run: a function, or the words of a command.
        args: its keyword arguments.
        reader: reads calls of tools; None: a request with tools is refused.
        loaded: name of the function, for errors.
        timeout: seconds of a call.
        sampling: of the run, which requests may name.

    Raises:
        RecipeError: the function takes no such arguments.
    """
    if callable(run):
        try:
            inspect.signature(run).bind(None, base_url="", api_key="", **args)
        except TypeError as error:
            raise RecipeError(
                f"environment.run: {loaded} is called as (prompt, base_url=..., api_key=..., **environment.args): "
                f"{error}"
            ) from None
    endpoint = Endpoint(reads_calls=reader is not None, sampling=sampling)
    able = Abilities(opens=True, ends=True, restores=False, role="user")
    return Form(lambda: AgentEnvironment(endpoint, run, args, timeout), {}, reader, "agent", True, able)


def message_of(turn: ModelTurn) -> dict[str, Any]:
    """Return a turn as a client gets it. A turn that calls tools has its calls, and no content."""
    if not turn.calls:
        return {"role": "assistant", "content": turn.text}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for call in turn.calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def scores_of(result: Any) -> dict[str, float]:
    """Return the scores that an agent returned: a number is its accuracy.

    Raises:
        TypeError: it is neither a number, nor scores by name, nor nothing.
    """
    if result is None:
        return {}
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, int | float):
        return {"accuracy": float(result)}
    raise TypeError(f"the agent returned {type(result).__name__}, expected a number, scores by name or nothing")


async def _call(function: Callable[..., Any], prompt: Prompt, given: Mapping[str, Any]) -> Any:
    """Call an agent; one that is not ``async`` has a thread of its own, since its client waits."""
    if inspect.iscoroutinefunction(function):
        return await function(prompt, **given)
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def tell(set_it: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            set_it(value)

    def work() -> None:
        try:
            found = function(prompt, **given)
        except BaseException as error:  # SystemExit is an agent's error, too
            kept = error if isinstance(error, Exception) else AgentFailed(f"{type(error).__name__}: {error}")
            loop.call_soon_threadsafe(tell, result.set_exception, kept)
        else:
            loop.call_soon_threadsafe(tell, result.set_result, found)

    threading.Thread(target=work, daemon=True).start()
    found = await result
    return await found if isinstance(found, Awaitable) else found


async def _program(command: Sequence[str], prompt: Prompt, where: Mapping[str, str], args: Mapping[str, Any]) -> Any:
    """Run an agent's program: the record on its input as JSON, a score on the last line of its output.

    Raises:
        AgentFailed: it ended with an error, its last line is no JSON, or it wrote too much.
    """
    environment = {**os.environ, "OPENAI_BASE_URL": where["base_url"], "OPENAI_API_KEY": where["api_key"]}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    record = {"problem": prompt.problem, "answer": prompt.answer, "extra": dict(prompt.extra), "args": dict(args)}
    given = asyncio.ensure_future(_give(process.stdin, json.dumps(record).encode()))
    both = ((process.stdout, "output"), (process.stderr, "errors"))
    read = [asyncio.ensure_future(_bounded(stream, command[0], name)) for stream, name in both]
    try:
        out, errors = await asyncio.gather(*read)
        await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it started
        for each in (given, *read):
            each.cancel()
    if process.returncode != 0:
        said = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise AgentFailed(f"{command[0]} ended with exit code {process.returncode}: {''.join(said)[:300]}")
    lines = out.decode("utf-8", "replace").strip().splitlines()
    if not lines:
        return None
    try:
        return json.loads(lines[-1])
    except ValueError:
        raise AgentFailed(
            f"the last line of {command[0]} is {lines[-1][:80]!r}, expected a number, scores by name as JSON, or no "
            "output at all"
        ) from None


async def _bounded(stream: asyncio.StreamReader | None, program: str, name: str) -> bytes:
    """Read a program's output to its end.

    Raises:
        AgentFailed: it is too long.
    """
    assert stream is not None, "a pipe"
    found = bytearray()
    while piece := await stream.read(_PIECE):
        found += piece
        if len(found) > MOST_OUTPUT:
            raise AgentFailed(
                f"{program} wrote more than {MOST_OUTPUT:,} bytes to its {name} and was ended; print a score as the "
                "last line, and write logs to a file"
            )
    return bytes(found)


async def _give(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    """Write a program's input; one that does not read it goes on without."""
    assert stream is not None, "a pipe"
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()
