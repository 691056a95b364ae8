"""The ways to write an environment, as one class of episodes: generators, classes, lists of tools."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dapo.environments.call_formats import Reader, read_calls
from dapo.environments.shapes import (
    MOST_NUMBERS,
    GymText,
    Shape,
    ToolClass,
    WrongReply,
    gym_arguments,
    gym_opens,
    shape_of,
    tool_methods,
)
from dapo.environments.tools import Tool, ToolError, error_text, find_tool, result_text
from dapo.environments.verified import Verified, compare_group, compares_groups, tool_schemas
from dapo.errors import RecipeError
from dapo.metrics.names import reward_name_problem
from dapo.rewards.function import read_number
from dapo.sandbox.runs import SandboxError
from dapo.types.batch import Prompt
from dapo.types.environment import Abilities, Call, ModelTurn, Reply, Said, Spoken

HUGE = 1 << 17  # characters of a message that leave a worker
MOST_STATE = 1 << 20  # characters of an environment's state


class CallTimeout(Exception):
    """A call of an environment took longer than ``environment.timeout``."""


async def within(value: Any, seconds: float) -> Any:
    """Return a value; one that is to be awaited within ``seconds``.

    Raises:
        CallTimeout: it was not there in time.
    """
    if not inspect.isawaitable(value):
        return value
    try:
        async with asyncio.timeout(seconds) as limit:
            return await value
    except TimeoutError:
        if limit.expired():
            raise CallTimeout from None
        raise


@dataclass(slots=True)
class Form:
    """Facts that a worker needs to play episodes of an environment.

    Attributes:
        make: returns the environment of a new episode; None: there are tools alone.
        tools: functions that the model may call, by name.
        reader: reads calls; None: nothing is read.
        kind: how it is written.
        concurrent: calls wait for something else and may overlap.
        method_tools: names of the environment's own methods that are tools.
        compare: scores the environments of a group's episodes, which ended, together; None: each scores itself.
    """

    make: Callable[[], Any] | None
    tools: dict[str, Tool]
    reader: Reader | None
    kind: str
    concurrent: bool
    abilities: Abilities
    method_tools: tuple[str, ...] = ()
    compare: Callable[[Sequence[Any]], Awaitable[Sequence[Reply]]] | None = None


def form_of(
    found: Any,
    args: Mapping[str, Any],
    tools: Sequence[Callable[..., Any]],
    reader: Reader | None,
    *,
    max_turns: int = 8,
) -> Form:
    """Return the form of an environment.

    Args:
        found: a generator function, a class, or None where there are tools alone.
        args: its keyword arguments.
        tools: functions that the model may call beside its own.
        reader: reads calls.
        max_turns: of the model in an episode, for classes that ask.

    Raises:
        RecipeError: it is none of these, takes no such arguments, or has tools that cannot be.
    """
    shape: Shape = shape_of(found) if inspect.isclass(found) else "own"
    methods = tool_methods(found) if shape == "trl" else _methods(found) if shape == "own" else {}
    try:
        listed = [*map(Tool.of, tools), *(Tool.of(method, bound=False) for method in methods.values())]
    except ToolError as error:
        raise RecipeError(f"environment.tools: {error}") from None
    known = {tool.name: tool for tool in listed}
    if len(known) != len(listed):
        twice = next(tool.name for tool in listed if sum(tool.name == each.name for each in listed) > 1)
        raise RecipeError(f"environment.tools: two tools are called {twice!r}; rename one")
    schemas = tuple(tool.schema for tool in listed)
    waits = any(_is_async(tool.function) for tool in listed)
    if found is None:
        if not known:
            raise RecipeError("environment.tools: kind: tools needs at least one function")
        return Form(None, known, reader, "tools", waits, Abilities(False, False, False, "tool", schemas))
    if inspect.isasyncgenfunction(found) or inspect.isgeneratorfunction(found):
        _check_call(found, (None, None), args)

        def generated() -> _Generated:
            return _Generated(lambda prompt, rng: found(prompt, rng, **args))

        able = Abilities(True, False, False, "user", schemas)
        return Form(generated, known, reader, "generator", inspect.isasyncgenfunction(found) or waits, able)
    if not inspect.isclass(found):
        raise RecipeError(
            f"environment.kind: {getattr(found, '__name__', found)!r} is a {type(found).__name__}, expected a "
            "generator function f(prompt, rng) that yields replies, or a class with start, step, end and close"
        )
    known_methods = tuple(methods)
    if shape == "skyrl":
        _check_call(found, (), gym_arguments(found, args, {}))
        able = Abilities(gym_opens(found), True, False, "user", schemas)
        waits = waits or _is_async(getattr(found, "step", None))
        return Form(lambda: GymText(found, args, max_turns), known, reader, "skyrl", waits, able)
    if shape == "trl":
        _check_call(found, (), args)
        judged = callable(getattr(found, "get_reward", None))
        able = Abilities(True, True, False, "user", schemas, scores=judged)
        waits = waits or any(_is_async(getattr(found, name, None)) for name in ("reset", "get_reward"))
        return Form(lambda: ToolClass(found, args), known, reader, "trl", waits, able, known_methods)
    for one, other in (("state", "restore"), ("restore", "state")):
        if callable(getattr(found, one, None)) and not callable(getattr(found, other, None)):
            raise RecipeError(f"environment.kind: the class {found.__name__} has `{one}` and no `{other}`; write both")
    _check_call(found, (), args)
    waits = waits or any(_is_async(getattr(found, name, None)) for name in ("step", "start"))
    able = Abilities(
        opens=callable(getattr(found, "start", None)),
        ends=callable(getattr(found, "end", None)),
        restores=callable(getattr(found, "state", None)),
        role="user",
        tools=schemas,
    )
    return Form(lambda: found(**args), known, reader, "class", waits, able, known_methods)


def verified_form(environment: Any, read: Sequence[str], reader: Reader | None) -> Form:
    """Return the form of an environment of ``verifiers``; ``read``: names of rewards that read its scores."""
    compares = compares_groups(environment.rubric)
    able = Abilities(False, True, False, "user", tuple(tool_schemas(environment)), compares=compares)

    def made() -> Verified:
        return Verified(environment, read, alone=not compares)

    return Form(made, {}, reader, "verifiers", True, able, compare=compare_group if compares else None)


def _methods(found: Any) -> dict[str, Callable[..., Any]]:
    """Return the methods that a class names as tools."""
    methods = {}
    for name in getattr(found, "tools", ()) if inspect.isclass(found) else ():
        method = getattr(found, name, None) if isinstance(name, str) else None
        if not callable(method):
            raise RecipeError(f"environment.kind: {found.__name__}.tools names {name!r}, which is no method of it")
        methods[name] = method
    return methods


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


def _check_call(function: Callable[..., Any], given: tuple[Any, ...], args: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(*given, **args)
    except TypeError as error:
        wanted = "(prompt, rng, **environment.args)" if given else "(**environment.args)"
        raise RecipeError(
            f"environment.args: {getattr(function, '__name__', function)} is called as {wanted}: {error}"
        ) from None


class _Generated:
    """An environment that a generator function plays."""

    def __init__(self, begin: Callable[[Prompt, random.Random], Any]) -> None:
        self._begin = begin
        self._generator: Generator[Any, Any, Any] | AsyncGenerator[Any, Any] | None = None

    async def start(self, prompt: Prompt, seed: int) -> Reply | None:
        self._generator = self._begin(prompt, random.Random(seed))
        return await self._next(None)

    async def step(self, turn: ModelTurn) -> Reply:
        return await self._next(turn)

    async def _next(self, turn: ModelTurn | None) -> Reply:
        generator = self._generator
        try:
            if isinstance(generator, AsyncGenerator):
                said = await generator.asend(turn)
            else:
                assert generator is not None, "start comes first"
                said = generator.send(turn)
        except StopIteration as end:
            return _last(end.value)
        except StopAsyncIteration:
            return _last(None)
        if isinstance(said, Mapping):  # an async generator cannot return scores
            return _last(said)
        return said if isinstance(said, Reply) else Reply(said)

    async def close(self) -> None:
        if isinstance(self._generator, AsyncGenerator):
            await self._generator.aclose()
        elif self._generator is not None:
            self._generator.close()


def _last(value: Any) -> Reply:
    if value is None:
        return Reply(done=True)
    if isinstance(value, Reply):
        return replace(value, done=True)
    if isinstance(value, Mapping):
        return Reply(done=True, scores=value)
    raise WrongReply(f"the generator returned {type(value).__name__}, expected scores by name, a Reply or nothing")


@dataclass(slots=True)
class Episode:
    """One episode in a worker."""

    form: Form
    timeout: float  # seconds of a call that is awaited
    environment: Any = None
    answered: int = 0  # turns of the model

    async def start(self, prompt: Prompt, seed: int) -> Said | None:
        """Make the environment and let it speak first."""
        if self.form.make is None:
            return None
        self.environment = self.form.make()
        if not callable(getattr(self.environment, "start", None)):
            return None
        reply = await self._call(self.environment.start, prompt, seed)
        said = None if reply is None else checked(reply, self.form.abilities.role)
        if said is not None and (said.done or said.reward or said.facts):
            raise WrongReply("done, reward or facts before the model spoke")
        return None if said is None or not _says_something(said) else said

    async def restore(self, state: str, answered: int) -> None:
        """Make the environment as it was after ``answered`` turns."""
        assert self.form.make is not None
        self.environment = self.form.make()
        await self._call(self.environment.restore, json.loads(state))
        self.answered = answered

    async def step(self, spoken: Spoken) -> Said:
        """Answer a turn: by tools where it calls them, else by the environment."""
        calls, problem = read_calls(self.form.reader, spoken.raw, spoken.number)
        self.answered += 1
        if self.form.tools and (calls or problem):
            return await self._use(calls, problem)
        if self.environment is None:
            return Said(done=True)
        ids = np.asarray(spoken.token_ids, dtype=np.int64)
        turn = ModelTurn(
            spoken.number, spoken.text, calls, problem, ids, spoken.tokens_left, spoken.turns_left, spoken.cut
        )
        reply = checked(await self._call(self.environment.step, turn), self.form.abilities.role)
        if not reply.done and not _says_something(reply):
            raise WrongReply("an empty reply that does not end the episode; say something, or set done=True")
        return reply

    async def end(self, why: str) -> Said:
        """Return the scores of an episode that a limit ended."""
        if not self.form.abilities.ends:
            return Said(done=True)
        last = await self._call(self.environment.end, why)
        if isinstance(last, Reply):
            return checked(last, self.form.abilities.role)
        return Said(done=True, scores=numbers(last, "end() returned"))

    async def state(self) -> str | None:
        """Return the environment's state as JSON, where it has one."""
        if not self.form.abilities.restores:
            return None
        try:
            text = json.dumps(await self._call(self.environment.state), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise WrongReply(f"state() returned something that JSON cannot hold: {error}") from None
        if len(text) > MOST_STATE:
            raise WrongReply(f"state() returned {len(text):,} characters of JSON; at most {MOST_STATE:,}")
        return text

    async def close(self) -> None:
        """Close the environment."""
        environment, self.environment = self.environment, None
        if environment is not None and callable(getattr(environment, "close", None)):
            await self._call(environment.close)

    async def _call(self, function: Callable[..., Any], *values: Any) -> Any:
        return await within(function(*values), self.timeout)

    async def _use(self, calls: tuple[Call, ...], problem: str | None) -> Said:
        """Run the tools that a turn calls; the model reads what goes wrong."""
        if problem is not None:
            content = f"error: the call could not be read: {problem}"
            message = {"role": "tool", "content": content, "name": "error", "tool_call_id": "t0000c000"}
            return Said((message,), tool_errors=1)
        messages, failed = list[dict[str, str]](), 0
        for call in calls:
            try:
                tool = find_tool(self.form.tools, call)
                arguments = tool.check(call.arguments)
                own = tool.name in self.form.method_tools
                owner = getattr(self.environment, "adapted", self.environment)  # of a class in another shape
                function = getattr(owner, tool.name) if own else tool.function
                content = result_text(await self._call(lambda f=function, a=arguments: f(**a)))
            except (CallTimeout, SandboxError):  # no fault of the call
                raise
            except (Exception, SystemExit) as error:
                content, failed = error_text(error), failed + 1
            content, _ = _within(content or " ")
            messages.append({"role": "tool", "name": call.name[:64], "tool_call_id": call.id, "content": content})
        return Said(tuple(messages), calls=tuple(call.name[:64] for call in calls), tool_errors=failed)


def _says_something(said: Said) -> bool:
    return said.conversation is not None or any(message["content"] for message in said.messages)


def checked(reply: Any, role: str) -> Said:
    """Read what an environment returned.

    Raises:
        WrongReply: it is no reply.
    """
    if not isinstance(reply, Reply):
        raise WrongReply(f"expected a dapo.Reply, found {type(reply).__name__}")
    given = [{"role": role, "content": reply.messages}] if isinstance(reply.messages, str) else list(reply.messages)
    if isinstance(reply.messages, str) and not reply.messages:
        given = []
    messages, cut = list[dict[str, str]](), False
    for message in given:
        fine = isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not fine:
            raise WrongReply("a message is {'role': ..., 'content': ...} with texts, found " + repr(message)[:80])
        content, shortened = _within(message["content"])
        cut = cut or shortened
        extra = {key: str(message[key])[:64] for key in ("name", "tool_call_id") if key in message}
        messages.append({"role": message["role"][:32], "content": content, **extra})
    if not isinstance(reply.done, bool):
        raise WrongReply(f"done is True or False, found {reply.done!r}")
    if reply.scores and not reply.done:
        raise WrongReply("scores come with done=True; a turn's share is its `reward`")
    return Said(
        tuple(messages),
        reply.done,
        _number(reply.reward, "reward"),
        numbers(reply.scores, "scores"),
        numbers(reply.facts, "facts"),
        cut=cut,
        conversation=reply.conversation,
    )


def _within(text: str) -> tuple[str, bool]:
    """Cut the middle out of a huge text."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= HUGE:
        return text, False
    half = HUGE // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters cut ...]\n{text[-half:]}", True


def numbers(values: Any, what: str) -> dict[str, float]:
    """Return finite numbers by name.

    Raises:
        WrongReply: something else.
    """
    if not isinstance(values, Mapping) or len(values) > MOST_NUMBERS:
        raise WrongReply(f"{what}: expected at most {MOST_NUMBERS} numbers by name, found {repr(values)[:80]}")
    for name in values:
        if not isinstance(name, str) or reward_name_problem(name) is not None:
            raise WrongReply(f"{what}: {str(name)[:60]!r} cannot name a metric: it {reward_name_problem(str(name))}")
    return {name: _number(value, name) for name, value in values.items()}


def _number(value: Any, name: str) -> float:
    try:
        return read_number(value)
    except ValueError as error:
        raise WrongReply(f"{name}: {error}") from None
