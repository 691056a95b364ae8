"""Environments of the library ``verifiers``, its classic interface, played without HTTP.

The library's own loop runs each episode. It asks a client for the model's turns, and the client (``_Turns``) waits for
those that the driver sends. The driver holds the tokens: what was sampled is appended, never encoded again. The rubric
scores an episode where it ends.

A rubric with a reward function that sees a whole group scores none of its episodes alone. One process plays all
episodes of a group and keeps their states; it is asked once for the scores of all. A state holds whatever the
environment put there (clients, handles, objects), so it neither travels nor is saved. What was lost with a process, or
by a stop of the run, is played again turn by turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dapo.environments.shapes import WrongReply, metric_numbers
from dapo.errors import RecipeError
from dapo.hooks import search_working_directory
from dapo.links import install
from dapo.types.batch import Prompt
from dapo.types.environment import ModelTurn, Reply

KIND = "verifiers"
ROW = "verifiers_row"
"""Column that holds a record of the environment's own data set."""
_SETTING = "environment.kind: verifiers"
_failures: contextvars.ContextVar[list[str]] = contextvars.ContextVar("failures")


def load_verified(name: str, args: Mapping[str, Any], data: str | None) -> Any:
    """Return the environment that a package's or module's ``load_environment(**args)`` makes.

    Args:
        name: of the package, as ``verifiers`` takes it.
        args: keyword arguments.
        data: folder for its data sets; None: they are not written.

    Raises:
        RecipeError: the library is not there or not of the classic interface, or the environment is not.
    """
    _check_version()
    search_working_directory()
    try:
        library = importlib.import_module("verifiers")
        importlib.import_module("verifiers.clients")
        environment = library.load_environment(name, **args)
    except Exception as error:
        cause = error.__cause__ or error
        raise RecipeError(
            f"environment.id: {name!r} cannot be loaded ({type(cause).__name__}: {cause}). Name a module or an "
            f"installed package with load_environment(); modules are looked up in {os.getcwd()}"
        ) from None
    if not isinstance(environment, library.Environment):
        raise RecipeError(f"environment.id: load_environment() of {name!r} made a {type(environment).__name__}")
    logging.getLogger("verifiers").addHandler(_Failures())
    if data is not None:
        _write_data(environment, Path(data))
    return environment


def _check_version() -> None:
    try:
        found = version("verifiers")
    except PackageNotFoundError:
        raise RecipeError(f"{_SETTING} needs the package; {install('verifiers')}") from None
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdecimal())
    if not (0, 1, 11) <= numbers < (0, 4):
        raise RecipeError(
            f"{_SETTING}: verifiers {found} lacks clients of its own (before 0.1.11) or the classic classes (from 0.4 "
            f"on); {install('verifiers')}"
        )


def compares_groups(rubric: Any) -> bool:
    """Return whether a reward function sees all responses of a group: of the rubric, of one of its parts, or of a task.

    The library's rubrics that hold others list them in ``rubrics`` (``RubricGroup``) or in ``env_map`` (``EnvGroup``).
    """
    parts = [*getattr(rubric, "rubrics", ()), *(each.rubric for each in getattr(rubric, "env_map", {}).values())]
    return bool(rubric._get_group_reward_funcs()) or any(map(compares_groups, parts))


def tool_schemas(environment: Any) -> list[dict[str, Any]]:
    """Return the schemas of the tools that the model may call, as chat templates take them."""
    schemas = []
    for tool in getattr(environment, "tool_defs", None) or ():
        own = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        schemas.append({"type": "function", "function": own})
    return schemas


# ---------------------------------------------------------------------- data


def data_files(folder: Path) -> dict[str, Path]:
    """Return the files of an environment's data sets by split."""
    return {"train": folder / "train.jsonl", "eval": folder / "eval.jsonl"}


def _write_data(environment: Any, folder: Path) -> None:
    """Write the environment's data sets, each once, for the driver to read."""
    files = data_files(folder)
    sets = {"train": environment.build_dataset(), "eval": environment.build_eval_dataset()}
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in sets.items():
        if rows is None or files[split].exists():
            continue
        part = files[split].with_suffix(f".{os.getpid()}")
        with part.open("w", encoding="utf-8") as file:
            for row in rows:
                info = row.get("info")
                if isinstance(info, Mapping) and info.get("tool_defs"):
                    raise RecipeError("environment.id: records have tools of their own (info['tool_defs'])")
                line = {
                    "problem": row["prompt"],
                    "answer": "" if row.get("answer") is None else str(row["answer"]),
                    ROW: row,
                }
                file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        part.rename(files[split])


def _input_of(prompt: Prompt) -> dict[str, Any]:
    """Return the record as the library takes it."""
    if ROW in prompt.extra:
        return dict(prompt.extra[ROW])
    asked = [{"role": "user", "content": prompt.problem}]
    return {"example_id": 0, **prompt.extra, "prompt": asked, "answer": prompt.answer}


# ---------------------------------------------------------------------- an episode


class Verified:
    """An episode of an environment of ``verifiers``.

    Args:
        environment: shared by all episodes of the process.
        read: reward names; a metric of the rubric by such a name is a score.
        alone: the rubric scores the episode where it ends; else ``compare_group`` does.
    """

    def __init__(self, environment: Any, read: Iterable[str], *, alone: bool = True) -> None:
        self._environment, self._read, self._alone = environment, frozenset(read), alone
        self.rubric = environment.rubric
        self._turns = _client(self._asks)
        self._events: asyncio.Queue[Any] = asyncio.Queue()  # messages of a request, or the task when it ended
        self._task: asyncio.Task[Any] | None = None
        self._waiting: asyncio.Future[Any] | None = None  # what the library's loop waits for
        self._known: list[dict[str, Any]] = []  # messages up to the model's last turn

    async def start(self, prompt: Prompt, seed: int) -> None:
        """Begin the library's loop; it has to ask for the model with the prompt as it is."""
        record = _input_of(prompt)
        self._task = asyncio.create_task(self._play(record))
        self._task.add_done_callback(self._events.put_nowait)
        asked = await self._events.get()
        if asked is self._task:
            raise WrongReply(f"the environment ended before the model spoke: {_reason(self._task)}")
        if asked != [_plain(message) for message in _messages(record["prompt"])]:
            raise WrongReply(
                "the environment asks the model something else than its record's prompt, which was already written as "
                "tokens; put it into the data set instead of setup_state() or get_prompt_messages()"
            )
        self._known = asked

    async def step(self, turn: ModelTurn) -> Reply:
        """Hand the turn to the library's loop; return what it asks next, or its scores."""
        message = {"role": "assistant", "content": turn.text}
        if turn.calls:
            message["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": json.dumps(dict(call.arguments))} for call in turn.calls
            ]  # type: ignore[assignment]
        self._answer(_response(message, turn))
        asked = await self._events.get()
        if asked is self._task:
            return self._scored()
        kept = [*self._known, _plain(message)]
        if asked[: len(kept)] != kept:
            raise WrongReply("the environment rewrote earlier messages; what was sampled would not be what is trained")
        if len(asked) == len(kept):
            raise WrongReply("the environment asks for two turns in a row, or for two turns at once; one needs a reply")
        self._known = asked
        return Reply([{**each, "content": each["content"] or ""} for each in asked[len(kept) :]])

    async def end(self, why: str) -> Reply:
        """Tell the loop that the episode cannot go on, and return its scores."""
        from verifiers.errors import OverlongPromptError

        while self._task is not None and not self._task.done():
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(OverlongPromptError(f"the limit of {why} ended the episode"))
            await self._events.get()
        return self._scored()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(Exception, asyncio.CancelledError):
                state, _ = await self._task
                if not self._alone:
                    await self.rubric.cleanup(state)

    async def _play(self, record: dict[str, Any]) -> tuple[Any, list[str]]:
        """Play an episode, and score it unless its group is; return its state and what reward functions raised."""
        failures: list[str] = []
        _failures.set(failures)
        state = await self._environment.rollout(record, self._turns, "model", {})
        if self._alone:
            if state.get("error") is None:
                await self.rubric.score_rollout(state)
            await self.rubric.cleanup(state)
        return state, failures

    async def _asks(self, messages: Any) -> Any:
        """Wait for the model's next turn: what the client does.

        Raises:
            WrongReply: the loop waits for one already.
        """
        if self._waiting is not None and not self._waiting.done():
            raise WrongReply("the environment asks for two turns at once")
        self._waiting = asyncio.get_running_loop().create_future()
        self._events.put_nowait([_plain(message) for message in messages])
        return await self._waiting

    def _answer(self, response: Any) -> None:
        assert self._waiting is not None, "the loop asked"
        self._waiting.set_result(response)

    def _scored(self) -> Reply:
        """Return the rubric's reward and metrics, or only that the episode ended where its group is to be scored.

        Raises:
            Exception: what the environment raised.
            WrongReply: it recorded an error, or a reward function raised.
        """
        assert self._task is not None
        state, failures = self._task.result()
        if (error := state.get("error")) is not None:
            cause = error.__cause__ or error
            raise WrongReply(f"{type(cause).__name__}: {cause}")
        return self.reply(failures) if self._alone else Reply(done=True)

    @property
    def state(self) -> Any:
        """The library's state of the episode, which ended."""
        assert self._task is not None
        return self._task.result()[0]

    def reply(self, failures: Sequence[str]) -> Reply:
        """Return what the rubric wrote into the state; ``failures``: what reward functions raised.

        Raises:
            WrongReply: one raised.
        """
        if failures:
            raise WrongReply(failures[0])
        metrics = metric_numbers(self.state.get("metrics"))
        scores = {name: value for name, value in metrics.items() if name in self._read}
        return Reply(done=True, reward=self.state["reward"], scores=scores, facts=metrics)


async def compare_group(environments: Sequence[Verified]) -> list[Reply]:
    """Ask the rubric once about all episodes of a group, which ended; return the scores of each.

    Raises:
        Exception: what the rubric raised.
        WrongReply: a reward function raised.
    """
    failures: list[str] = []
    _failures.set(failures)
    await environments[0].rubric.score_group([each.state for each in environments])
    return [each.reply(failures) for each in environments]


def _client(asks: Any) -> Any:
    """Return a client of the library that takes its responses from ``asks``."""
    from verifiers.clients import Client

    class Turns(Client):  # type: ignore[misc]
        def setup_client(self, config: Any) -> Any:
            return config

        async def to_native_tool(self, tool: Any) -> Any:
            return tool

        async def to_native_prompt(self, messages: Any) -> Any:
            return messages, {}

        async def get_native_response(self, prompt: Any, *rest: Any, **more: Any) -> Any:
            return await asks(prompt)

        async def raise_from_native_response(self, response: Any) -> None:
            pass

        async def from_native_response(self, response: Any) -> Any:
            return response

        async def close(self) -> None:
            pass

    return Turns(object())


def _response(message: dict[str, Any], turn: ModelTurn) -> Any:
    """Return the model's turn as the library has it."""
    from verifiers.types import Response, ResponseMessage, ToolCall, Usage

    calls = [ToolCall(**call) for call in message.get("tool_calls", ())]
    tokens = len(turn.token_ids)
    usage = Usage(prompt_tokens=0, reasoning_tokens=0, completion_tokens=tokens, total_tokens=tokens)
    finish = "tool_calls" if calls else "length" if turn.cut else "stop"
    own = ResponseMessage(
        content=message["content"], tool_calls=calls or None, finish_reason=finish, is_truncated=turn.cut
    )
    return Response(id=f"turn {turn.number}", created=0, model="model", usage=usage, message=own)


def _messages(prompt: Any) -> list[Any]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _plain(message: Any) -> dict[str, Any]:
    """Return role, text and calls of a message of the library, or of a record."""
    found = dict(message) if isinstance(message, Mapping) else message.model_dump()
    content = found.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise WrongReply("a message holds something else than text")
        content = "".join(part["text"] for part in content)
    plain: dict[str, Any] = {"role": found["role"], "content": content}
    if found.get("tool_call_id"):
        plain["tool_call_id"] = found["tool_call_id"]
    if found.get("tool_calls"):
        plain["tool_calls"] = [{key: call[key] for key in ("id", "name", "arguments")} for call in found["tool_calls"]]
    return plain


def _reason(task: asyncio.Task[Any]) -> str:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        return f"{type(error).__name__}: {error}"
    found = None if task.cancelled() else task.result()[0].get("error")
    return "without an error" if found is None else f"{type(found).__name__}: {found}"


class _Failures(logging.Handler):
    """Collect what the library only logs: a reward function that raised, which counts as 0 there."""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        found = _failures.get(None)
        if found is not None and said.startswith("Error calling"):
            found.append(said)
