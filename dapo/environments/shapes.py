"""Classes in the shapes of SkyRL-Gym and TRL, played as environments of ours. Neither library is imported.

===========  ==================================================  =======================================
shape        recognised by                                       an episode ends
===========  ==================================================  =======================================
own          ``step``; without ``init`` and ``reset``            ``Reply(done=True)``
SkyRL-Gym    ``init`` and ``step``                               ``done`` of what ``step`` returned
TRL          ``reset`` without ``step``, or with ``get_reward``  a turn that calls no method
===========  ==================================================  =======================================
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dapo.errors import RecipeError
from dapo.metrics.names import reward_name_problem
from dapo.types.batch import Prompt
from dapo.types.environment import ModelTurn, Reply

Shape = Literal["own", "skyrl", "trl"]
MOST_NUMBERS = 64
"""Scores or facts of a reply."""
_OWN = ("start", "end", "state", "restore")
_GYM_BASES = ("skyrl_gym.core", "skyrl_gym.envs.base_text_env")
_NO_TOOLS = ("reset", "get_reward", "close")


class WrongReply(ValueError):
    """The environment returned something that is no reply."""


def shape_of(found: type) -> Shape:
    """Name the shape of a class.

    Raises:
        RecipeError: it has none of them, or more than one.
    """
    has = {name for name in (*_OWN, "step", "init", "reset", "get_reward") if callable(getattr(found, name, None))}
    own, gym = not has.isdisjoint(_OWN), {"init", "step"} <= has
    if gym and not own and "reset" not in has:
        return "skyrl"
    if "step" in has and not gym and (own or "reset" not in has):
        return "own"
    if "reset" in has and not own and not gym and ("step" not in has or "get_reward" in has):
        return "trl"
    raise RecipeError(
        f"environment.kind: the class {found.__name__} has {', '.join(f'`{name}`' for name in sorted(has)) or 'none'} "
        "of the methods by which environments are known: `start` and `step` (this project's), `init` and `step` "
        "(SkyRL-Gym's), or `reset` and perhaps `get_reward` (TRL's, whose other methods are tools). Rename those that "
        "mean something else, or write a class around it (docs/environments.md)"
    )


async def _there(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# ---------------------------------------------------------------------- SkyRL-Gym


class Config(dict[str, Any]):
    """A mapping whose keys are attributes as well, as those of ``env_config`` are there."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"environment.args has no {name!r}; it has {', '.join(self) or 'nothing'}") from None
        return Config(value) if isinstance(value, dict) else value


class GymText:
    """An episode of a class with ``init(prompt)``, ``step(action)`` and ``close()``."""

    def __init__(self, found: type, args: Mapping[str, Any], max_turns: int) -> None:
        self._found, self._args, self._max_turns = found, args, max_turns
        self.adapted: Any = None

    async def start(self, prompt: Prompt, seed: int) -> Reply | None:
        """Make the object from its record; return the messages that ``init`` added to the prompt."""
        extras = {**prompt.extra, "max_turns": self._max_turns}
        for name in ("reward_spec", "reward_model"):  # SkyRL-Gym's own classes read either
            extras.setdefault(name, {"method": "rule", "ground_truth": prompt.answer})
        self.adapted = self._found(**gym_arguments(self._found, self._args, extras))
        asked = [{"role": "user", "content": prompt.problem}]
        returned = await _there(self.adapted.init([dict(message) for message in asked]))
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], list)):
            raise WrongReply(f"init() returns (messages, metadata), found {repr(returned)[:80]}")
        if returned[0][:1] != asked:
            raise WrongReply(
                "init() rewrote the prompt, which was already written as tokens; put the change into the data, or "
                "add messages after the prompt"
            )
        return Reply(returned[0][1:]) if len(returned[0]) > 1 else None

    async def step(self, turn: ModelTurn) -> Reply:
        """Hand over the turn's text."""
        output = await _there(self.adapted.step(turn.text))
        observations, reward, done = (_part(output, name) for name in ("observations", "reward", "done"))
        replaced = _part(output, "postprocessed_action", None)
        if replaced is not None and replaced != turn.text:
            raise WrongReply(
                "postprocessed_action differs from the turn, and what was sampled is what trains; end turns with "
                "`rollout.stop` instead"
            )
        facts = metric_numbers(_part(output, "metadata", None))
        if done:
            facts = {**facts, **self._metrics()}
        return Reply(observations, bool(done), 0.0 if reward is None else reward, facts=facts)

    def end(self, why: str) -> Reply:
        """Return the metrics of an episode that a limit ended."""
        return Reply(done=True, facts=self._metrics())

    async def close(self) -> None:
        if callable(close := getattr(self.adapted, "close", None)):
            await _there(close())

    def _metrics(self) -> dict[str, float]:
        read = getattr(self.adapted, "get_metrics", None)
        return metric_numbers(read()) if callable(read) else {}


def gym_arguments(found: type, args: Mapping[str, Any], extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a class is made with: ``env_config`` and ``extras`` where it takes them, else ``args`` by name."""
    parameters = inspect.signature(found).parameters
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    given = {"extras": dict(extras)} if anything or "extras" in parameters else {}
    if anything or "env_config" in parameters:
        return {**given, "env_config": Config(args)}
    return {**given, **args}


def gym_opens(found: type) -> bool:
    """Return whether ``init`` may add messages: it is not the one that SkyRL-Gym's base class has."""
    owner = next(each for each in found.__mro__ if "init" in vars(each))
    return owner.__module__ not in _GYM_BASES


def _part(output: Any, name: str, *default: Any) -> Any:
    """Return a field of what ``step`` returned, a mapping or an object."""
    if isinstance(output, Mapping) and name in output:
        return output[name]
    if not isinstance(output, Mapping) and hasattr(output, name):
        return getattr(output, name)
    if default:
        return default[0]
    raise WrongReply(f"step() returns observations, reward, done and metadata; {name} is not in {repr(output)[:80]}")


def metric_numbers(values: Any) -> dict[str, float]:
    """Return the finite numbers whose names can name a metric."""
    if not isinstance(values, Mapping):
        return {}
    numbers = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value) and reward_name_problem(str(name)) is None
    }
    return dict(list(numbers.items())[:MOST_NUMBERS])


# ---------------------------------------------------------------------- TRL


class ToolClass:
    """An episode of a class with ``reset(**columns)``, tools as public methods, and perhaps ``get_reward()``."""

    def __init__(self, found: Callable[..., Any], args: Mapping[str, Any]) -> None:
        self.adapted = found(**args)

    async def start(self, prompt: Prompt, seed: int) -> Reply | None:
        """Reset it with the columns of the record; return the text that ``reset`` returned."""
        columns = {**prompt.extra, "prompt": [{"role": "user", "content": prompt.problem}], "answer": prompt.answer}
        parameters = inspect.signature(self.adapted.reset).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            columns = {name: value for name, value in columns.items() if name in parameters}
        said = await _there(self.adapted.reset(**columns))
        if said is not None and not isinstance(said, str):
            raise WrongReply(f"reset() returns a text or nothing, found {type(said).__name__}")
        return Reply(said) if said else None

    async def step(self, turn: ModelTurn) -> Reply:
        """End the episode: the turn called no tool."""
        return await self._last()

    async def end(self, why: str) -> Reply:
        """Return the reward of an episode that a limit ended."""
        return await self._last()

    async def close(self) -> None:
        if callable(close := getattr(self.adapted, "close", None)):
            await _there(close())

    async def _last(self) -> Reply:
        if not callable(judge := getattr(self.adapted, "get_reward", None)):
            return Reply(done=True)
        return Reply(done=True, reward=await _there(judge()))


def tool_methods(found: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods that the model may call."""
    listed: Sequence[tuple[str, Callable[..., Any]]] = inspect.getmembers(found, inspect.isfunction)
    methods = {
        name: function
        for name, function in listed
        if not name.startswith("_")
        and name not in _NO_TOOLS
        and not isinstance(inspect.getattr_static(found, name), staticmethod)
    }
    if not methods:
        raise RecipeError(
            f"environment.kind: the class {found.__name__} has `reset`, as TRL's environments, and no public "
            "method that the model could call"
        )
    return methods
