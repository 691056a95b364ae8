"""Make the environment that a recipe names: its workers, its speech, and the episodes of the mailbox."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle

from dapo.config.check_data import ENVIRONMENT, source_name
from dapo.config.schema import Data, Recipe
from dapo.data.answers import Answers, answers_read
from dapo.data.chat import shows_tools
from dapo.data.load import PreparedData, prepare
from dapo.data.render import resolve_style
from dapo.environments.chat_requests import Sampling
from dapo.environments.cluster import HostedPlayers
from dapo.environments.pool import EnvironmentPool
from dapo.environments.programs import PYTHON, ProgramSettings
from dapo.environments.speech import PlainSpeech, TemplateSpeech, find_format, make_speech
from dapo.environments.verified import KIND, data_files
from dapo.environments.worker import Load
from dapo.errors import RecipeError
from dapo.hooks import given, is_object, load
from dapo.loop.sampling.episode import Limits
from dapo.loop.sampling.episodes import Episodes
from dapo.loop.sampling.texts import Texts
from dapo.processes.transport import Transport
from dapo.sandbox.select import SandboxSettings, try_sandbox
from dapo.types.environment import Abilities, Players

REPEATS = (
    "environment: an agent asks as it likes, so this run repeats itself only if the agent does, with equal requests "
    "after equal turns. A resume plays unfinished episodes again; one that asks otherwise starts again"
)


@dataclass(frozen=True, slots=True)
class Playing:
    """A started environment.

    Attributes:
        pool: its workers, here or on a cluster.
        what: they load.
        speech: writes its replies.
        data: the recipe's section, with the schemas of tools where the chat template shows them.
        answers: what rewards do with the gold answers of each source.
        notes: what a person should know of it.
        sandbox: a line that says what runs the programs of the tool ``python``; None: there is no such tool.
        closing: ends the workers, and deletes what only they needed.
    """

    pool: Players
    what: Load
    speech: TemplateSpeech | PlainSpeech
    data: Data
    answers: Mapping[str, Answers]
    notes: tuple[str, ...]
    sandbox: str | None = None
    closing: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End the workers of this machine."""
        self.closing.close()

    def prepared(self, tokenizer: Any) -> PreparedData:
        """Return the recipe's data; a prompt asks for the model's turn unless the environment speaks first."""
        asks = self.what.agent is not None or not self.pool.abilities.opens
        return prepare(self.data, tokenizer, answers=self.answers, ask=asks, keep_chat=self.speech.afresh)

    def moved(self, recipe: Recipe, transport: Transport, names: Sequence[str], output: Path | None) -> Playing:
        """End the workers of this machine, and return the environment as hosts of a transport play it."""
        self.pool.close()
        memory = recipe.environment.memory_mib
        hosts = HostedPlayers(transport, names, self.what, self.pool.abilities, memory_mib=memory, output=output)
        return replace(self, pool=hosts)

    def episodes(self, recipe: Recipe, texts: Texts, *, waits: bool) -> Episodes:
        """Return the episodes of a run; ``waits``: a late reply is waited for."""
        settings = recipe.environment
        limits = Limits(
            max_turns=settings.max_turns,
            max_turn_tokens=settings.max_turn_tokens,
            max_reply_tokens=settings.max_reply_tokens,
            truncates_turns=settings.turn_limit == "truncated",
            truncates_tokens=settings.long_turn == "truncated",
            refuses_long_replies=settings.long_reply == "error",
            ends_on_error=settings.on_error == "end",
            most_tokens=longest_conversation(recipe) if settings.kind == "agent" else None,
        )
        read = [reward.name for reward in recipe.rewards if reward.kind == "environment"]
        return Episodes(self.pool, self.speech, texts, limits, lag=settings.lag, read_scores=read, waits=waits)


def start_environment(recipe: Recipe, tokenizer: Any, *, workers: int, output: Path | None) -> Playing | None:
    """Start the environment of a recipe; None: it has none.

    Args:
        recipe: names it.
        tokenizer: of the model.
        workers: processes at most, unless the recipe says otherwise.
        output: file for what environments print; None: it is dropped.

    Raises:
        RecipeError: it cannot be loaded, or the chat template cannot be appended to.
        SandboxError: the tool ``python`` has no sandbox as the recipe wants it.
    """
    settings = recipe.environment
    if settings.kind is None:
        return None
    chat = resolve_style(recipe.data, tokenizer) == "chat"
    speech = make_speech(recipe.data, tokenizer, chat=chat, rows=settings.rows)
    for role in _roles(recipe):
        speech.check(role)
    what = Load(
        kind=None if settings.kind in ("tools", "agent") else _sent(settings.kind, "environment.kind"),
        args=dict(settings.args),
        tools=tuple(_sent(tool, "environment.tools") for tool in settings.tools),
        tool_format=_format(recipe, tokenizer, chat=chat),
        timeout=settings.timeout,
        max_turns=settings.max_turns,
        tell=settings.on_error == "tell",
        agent=_agent(recipe),
        sampling=Sampling(_sampling(recipe), settings.other_sampling == "ignore"),
        programs=ProgramSettings(sandbox_of(recipe), recipe.sandbox.timeout, recipe.sandbox.memory_mib),
        name=settings.id,
        read=tuple(reward.name for reward in recipe.rewards if reward.kind == "environment"),
    )
    sandbox = try_sandbox(sandbox_of(recipe)) if PYTHON in settings.tools else None
    with ExitStack() as undo:
        own_data = _data_folder(output, undo) if settings.kind == KIND else None
        what = replace(what, data=None if own_data is None else str(own_data))
        pool = EnvironmentPool(what, workers=settings.workers or workers, memory_mib=settings.memory_mib, output=output)
        undo.callback(pool.close)
        tools = list(pool.start().tools)
        if tools and what.tool_format == "none":
            find_format(recipe.data, tokenizer, chat=chat)  # says what to do
            raise RecipeError("environment.tool_format: none reads no calls, and the environment has tools; use auto")
        if tools:
            speech.check("tool")
        _check_scores(recipe, pool.abilities)
        if pool.abilities.opens and settings.kind != "agent":
            speech.opening(())
        data, notes = recipe.data, [REPEATS] if settings.kind == "agent" else list[str]()
        if pool.abilities.compares:
            notes += _compared(recipe)
        if own_data is not None:
            data = _with_own_data(data, data_files(own_data))
        if tools and chat and shows_tools(recipe.data, tokenizer):
            data = data.model_copy(update={"tools": tools})
            speech = make_speech(data, tokenizer, chat=True, rows=settings.rows)
        elif tools:
            names = ", ".join(tool["function"]["name"] for tool in tools)
            notes.append(f"environment: the prompt does not show the tools ({names}): describe them in the data")
        answers = answers_read(recipe.model_copy(update={"data": data}))
        return Playing(pool, what, speech, data, answers, tuple(notes), sandbox, undo.pop_all())


def _data_folder(output: Path | None, undo: ExitStack) -> Path:
    """Return a new folder for an environment's own data sets: beside what it prints, else one that ``undo`` deletes."""
    if output is None:
        return Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="dapo-environment-")))
    folder = output.parent / "environment-data"
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _with_own_data(data: Data, files: Mapping[str, Path]) -> Data:
    """Return the section with files in place of the sources that stand for the environment's data sets."""

    def placed(source: Any) -> Any:
        if source.task != ENVIRONMENT:
            return source
        if not files[source.split].exists():
            raise RecipeError(f"data: the environment has no {source.split} data set; name another source")
        update = {"name": source_name(source), "task": None, "path": str(files[source.split]), "format": "plain"}
        return source.model_copy(update={**update, "split": "train"})

    return data.model_copy(update={"train": [*map(placed, data.train)], "validation": [*map(placed, data.validation)]})


def _check_scores(recipe: Recipe, able: Abilities) -> None:
    """Refuse rewards that an environment does not give."""
    read = [number for number, reward in enumerate(recipe.rewards) if reward.kind == "environment"]
    if read and not able.scores:
        raise RecipeError(
            f"rewards.{read[0]}: the environment's class has no get_reward(), so it scores nothing. Give it one, or "
            "name rewards that judge the model's text (math, exact, function, ...)"
        )


def _compared(recipe: Recipe) -> list[str]:
    """Return what a person should know of scores that depend on the size of a group."""
    trained, held_out = recipe.rollout.group_size, recipe.validation.samples
    if not recipe.data.validation or held_out == trained:
        return []
    return [
        f"environment: the rubric compares the responses of a group: {trained} in training, and in an evaluation the "
        f"{held_out} of a problem (validation.samples), so held-out scores are those of another comparison"
    ]


def longest_conversation(recipe: Recipe) -> int:
    """Return the most tokens that an agent's conversation may have, the model's turn included."""
    response = max(recipe.rollout.max_response_tokens, recipe.validation.max_response_tokens or 0)
    return recipe.data.max_prompt_tokens + response


def _sampling(recipe: Recipe) -> dict[str, Any]:
    """Return how the run samples, by the names that requests use."""
    rollout = recipe.rollout
    return {
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "min_p": 0,
        "repetition_penalty": 1,
        "seed": recipe.run.seed,
        "stop": list(rollout.stop),
    }


def _agent(recipe: Recipe) -> str | bytes | tuple[str, ...] | None:
    """Return what runs an agent; None: the environment is none."""
    run = recipe.environment.run
    if recipe.environment.kind != "agent" or run is None:
        return None
    return tuple(run) if isinstance(run, list) else _sent(run, "environment.run")


def sandbox_of(recipe: Recipe) -> SandboxSettings:
    """Return the recipe's sandbox, for rewards and tools."""
    own = recipe.sandbox
    return SandboxSettings(own.kind, own.require, own.url, own.api_key_variable)


def _roles(recipe: Recipe) -> list[str]:
    """Return the roles in which an environment answers for certain; others are checked when they first speak."""
    return ["tool"] if recipe.environment.kind == "tools" else []


def _format(recipe: Recipe, tokenizer: Any, *, chat: bool) -> str | bytes:
    """Return the tool format; "none" where nothing is known to be called."""
    asked = recipe.environment.tool_format
    if asked != "auto":
        return _sent(asked, "environment.tool_format") if ":" in asked else asked
    try:
        return find_format(recipe.data, tokenizer, chat=chat)
    except RecipeError:
        if recipe.environment.tools:
            raise
        return "none"


def _sent(hook: str, setting: str) -> str | bytes:
    """Return a hook as a worker can load it: objects of this program by cloudpickle.

    Raises:
        RecipeError: the object was not given, or cannot be sent.
    """
    if not is_object(hook):
        return hook
    try:
        found = given(hook) or load(hook)
        return bytes(cloudpickle.dumps(found))
    except Exception as error:
        raise RecipeError(
            f"{setting}: {hook.partition(':')[2]!r} cannot be sent to a worker process ({type(error).__name__}: "
            f"{error}); give an object that holds no lock, file or connection, or name one of a module"
        ) from None
