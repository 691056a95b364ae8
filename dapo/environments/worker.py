"""A worker process: plays episodes of an environment. Started by ``dapo.environments.pool``; imports no torch.

It talks over one socket in the frames of ``dapo.processes.wire``:

    driver -> worker   what to load, then lists of ``Ask`` and ``Drop``, pickled
    worker -> driver   the messages of ``dapo.environments.messages``, as JSON

A synchronous environment answers one question after the other. Questions to an asynchronous one overlap.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dapo.environments.call_formats import FORMATS, Reader
from dapo.environments.chat_requests import Sampling
from dapo.environments.forms import CallTimeout, Episode, Form, checked, form_of, verified_form, within
from dapo.environments.programs import PYTHON, ProgramSettings, python_tool
from dapo.environments.shapes import WrongReply
from dapo.environments.tools import error_text
from dapo.environments.verified import KIND, load_verified
from dapo.errors import RecipeError
from dapo.hooks import load, user_line
from dapo.processes.wire import answer_frame
from dapo.system import end_with_parent_if_asked
from dapo.types.batch import Key
from dapo.types.environment import NOT_HELD, Question, Said

CLOSING = 5.0  # seconds for an environment's ``close``
_HEADER = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Load:
    """First message to a worker. A hook is ``package.module:name``, or an object by cloudpickle."""

    kind: str | bytes | None  # a hook, or ``verifiers``; None: tools alone
    args: dict[str, Any]
    tools: tuple[str | bytes, ...]  # hooks, or ``PYTHON``
    tool_format: str | bytes  # of ``FORMATS``, "none", or a hook
    timeout: float
    max_turns: int
    tell: bool  # what an environment raises is told to the model
    programs: ProgramSettings | None = None  # of the tool ``python``
    name: str | None = None  # of an environment of ``verifiers``
    data: str | None = None  # folder for that environment's data sets
    read: tuple[str, ...] = ()  # names of rewards that read the environment's scores
    agent: str | bytes | tuple[str, ...] | None = None  # a hook, or the words of a command; ``kind`` is None then
    sampling: Sampling | None = None  # of the run, which an agent's requests may name


@dataclass(frozen=True, slots=True)
class Ask:
    """A question with its number."""

    number: int
    question: Question
    fresh: bool  # the episode is not held here, or not as the question has it: play it again


@dataclass(frozen=True, slots=True)
class Drop:
    """Close an episode; a message says when that is done."""

    number: int
    key: Key


def main(descriptor: int) -> None:
    """Serve questions until the driver closes the connection. The guard ends this process when the driver dies."""
    os.set_inheritable(descriptor, False)  # processes that user code starts must not hold it open
    end_with_parent_if_asked()
    try:
        asyncio.run(_serve(socket.socket(fileno=descriptor)))
    finally:
        os._exit(0)  # threads of user code do not hold up the end


def load_form(what: Load, say: Callable[[str], None]) -> Form:
    """Load an environment and its tools; ``say`` hears the name of what is imported.

    Raises:
        RecipeError: something cannot be loaded, or is no environment.
    """

    def loaded(hook: str | bytes, setting: str) -> Any:
        if hook == PYTHON and what.programs is not None:
            say("the sandbox of the tool python")
            return python_tool(what.programs)
        name = hook if isinstance(hook, str) else "an object given from Python"
        say(f"{setting}: {name}")
        try:
            return load(hook) if isinstance(hook, str) else pickle.loads(hook)
        except BaseException as error:  # modules may raise anything at import, SystemExit included
            raise RecipeError(
                f"{setting}: cannot load {name!r} ({type(error).__name__}: {error}). Give package.module:name; modules "
                f"are looked up in {os.getcwd()} and among installed packages"
            ) from None

    reader: Reader | None = None
    if what.tool_format != "none":
        known = FORMATS.get(what.tool_format) if isinstance(what.tool_format, str) else None
        reader = known or loaded(what.tool_format, "environment.tool_format")
    if what.kind == KIND:
        say(f"environment.id: {what.name}")
        environment = load_verified(str(what.name), what.args, what.data)
        return verified_form(environment, what.read, reader)
    if what.agent is not None:
        from dapo.environments.agent import agent_form

        run = what.agent if isinstance(what.agent, tuple) else loaded(what.agent, "environment.run")
        name = what.agent if isinstance(what.agent, str) else "it"
        return agent_form(run, what.args, reader, loaded=name, timeout=what.timeout, sampling=what.sampling)
    found = None if what.kind is None else loaded(what.kind, "environment.kind")
    tools = [loaded(tool, "environment.tools") for tool in what.tools]
    form = form_of(found, what.args, tools, reader, max_turns=what.max_turns)
    if form.kind == "generator" and what.tell:
        raise RecipeError(
            "environment.on_error: tell: a generator that raised is over; write a class, or use unscored or end"
        )
    if callable(prepare := getattr(found, "load", None)) and form.kind == "class":
        say("environment.kind: load()")
        prepare(what.args)
    return form


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)

    def send(message: dict[str, Any]) -> None:
        writer.write(answer_frame([message]))

    async def receive() -> Any:
        (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        return pickle.loads(await reader.readexactly(length))

    def loading(name: str) -> None:
        send({"type": "loading", "name": name[:400]})

    try:
        what: Load = await receive()
        try:
            form = load_form(what, loading)
        except BaseException as error:
            said = str(error) if isinstance(error, RecipeError) else f"{type(error).__name__}: {error}"
            send({"type": "refused", "error": said[:2000]})
            await writer.drain()
            return
        send({"type": "ready", "concurrent": form.concurrent, "abilities": asdict(form.abilities)})
        stage, tasks = Stage(form, what), set[asyncio.Task[None]]()

        async def answer(item: Ask | Drop) -> None:
            if isinstance(item, Ask):
                send(await stage.answer(item))
            else:
                await stage.drop(item.key)
                send({"type": "closed", "number": item.number})
            await writer.drain()

        while True:
            for item in await receive():
                if form.concurrent:
                    tasks.add(task := asyncio.create_task(answer(item)))
                    task.add_done_callback(tasks.discard)
                else:
                    await answer(item)
    except (EOFError, asyncio.IncompleteReadError, OSError):
        return  # the driver has done with us


class Stage:
    """The episodes that a worker holds."""

    def __init__(self, form: Form, what: Load) -> None:
        self.form, self.what = form, what
        self.episodes: dict[Key, Episode] = {}

    async def answer(self, ask: Ask) -> dict[str, Any]:
        """Answer one question, whatever the environment does short of ending the process."""
        began = time.monotonic()
        out: dict[str, Any] = {
            "type": "answered", "number": ask.number, "reply": None, "replayed": None, "state": None,
            "seconds": 0.0, "failure": None, "members": [],
        }  # fmt: skip
        try:
            await (self._compare if ask.question.members else self._play)(ask, out)
        except CallTimeout:
            out["failure"] = f"timeout: no answer within {self.what.timeout:g} s"
        except WrongReply as error:
            out["failure"] = f"reply: {error}"[:1000]
        except (Exception, SystemExit) as error:
            out["failure"] = f"exception: {error_text(error).removeprefix('error: ')}{user_line(error)}"[:1000]
        out["seconds"] = time.monotonic() - began
        return out

    async def drop(self, key: Key) -> None:
        """Close an episode."""
        episode = self.episodes.pop(key, None)
        if episode is None:
            return
        try:
            async with asyncio.timeout(CLOSING):
                await episode.close()
        except (Exception, SystemExit) as error:
            print(f"environment: close() raised {type(error).__name__}: {error}", flush=True)

    async def _play(self, ask: Ask, out: dict[str, Any]) -> None:
        question = ask.question
        episode = self.episodes.get(question.key)
        opening: Said | None = None
        if ask.fresh or episode is None:
            await self.drop(question.key)
            episode = self.episodes[question.key] = Episode(self.form, self.what.timeout)
            if question.state is not None:
                await episode.restore(question.state, len(question.past))
            else:
                opening = await episode.start(question.prompt, question.seed)
                replayed = [_plain(opening)]
                for spoken in question.past:
                    replayed.append(_plain(await self._step(episode, spoken)))
                out["replayed"] = replayed if question.past or question.turn or question.end else None
        if question.turn is not None:
            out["reply"] = _plain(await self._step(episode, question.turn))
        elif question.end is not None:
            out["reply"] = _plain(await episode.end(question.end))
        else:
            out["reply"] = _plain(opening)
        if not question.end and not (out["reply"] or {}).get("done"):
            out["state"] = await episode.state()

    async def _compare(self, ask: Ask, out: dict[str, Any]) -> None:
        """Score episodes of a group that ended. One that is not held here has to be played again first."""
        keys, compare = ask.question.members, self.form.compare
        assert compare is not None, "only an environment that compares is asked to"
        if not all(key in self.episodes for key in keys):
            out["failure"] = NOT_HELD
            return
        environments = [self.episodes[key].environment for key in keys]
        replies = await within(compare(environments), self.what.timeout)
        out["members"] = [_plain(checked(reply, self.form.abilities.role)) for reply in replies]

    async def _step(self, episode: Episode, spoken: Any) -> Said:
        try:
            return await episode.step(spoken)
        except (CallTimeout, WrongReply):
            raise
        except (Exception, SystemExit) as error:
            if not self.what.tell:
                raise
            said = error_text(error)
            message = {"role": self.form.abilities.role, "content": f"The environment failed: {said}"}
            return Said((message,), failure=said)


def _plain(said: Said | None) -> dict[str, Any] | None:
    if said is None:
        return None
    return {**asdict(said), "messages": list(said.messages), "calls": list(said.calls)}
