"""Reward functions by their parameters: ours, TRL's and verl's run as they are, others are refused.

- ours: ``f(prompt, completion)`` -> a number or a dict of numbers
- TRL: ``f(prompts, completions, **columns)`` -> a list, here with one value
- verl: ``compute_score(data_source, solution_str, ground_truth, extra_info)`` -> a number or a dict with ``score``

Each may be ``async def``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dapo.errors import RewardError
from dapo.rewards.function import describe
from dapo.rewards.text import read_golds
from dapo.types.batch import MODEL, Completion, Prompt

Ours = Callable[[Prompt, Completion], Any]

_FIRST = frozenset(("prompt", "p", "item", "_", "_prompt", "unused"))
_SECOND = frozenset(("completion", "c", "response", "_", "_completion", "unused"))
_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
_ELSEWHERE = ("trainer_state", "environments", "reward_router_address", "reward_model_tokenizer")
"""What only another trainer has."""
_ANSWERS = ("answer", "ground_truth", "solution", "target", "label")
_PROBLEMS = ("problem", "question")
_OTHER_FORM = (TypeError, AttributeError, KeyError, IndexError)


def adapt(function: Callable[..., Any], name: str, reward: str) -> Ours:
    """Return a reward function as one of ours.

    Args:
        function: the user's.
        name: of the function, for messages.
        reward: name of the reward; the value called so is the reward.

    Raises:
        RewardError: its parameters are none of the three forms. The message shows how to wrap it.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a compiled function nothing is known
        return _awaited(function)
    named = {one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    missing = [one for one in _needed(parameters) if one in _ELSEWHERE]
    if named & {"completions", "completion_ids", "completions_ids"} and not missing:
        return _Trl(_awaited(function), parameters, reward)
    if {"solution_str", "ground_truth"} <= named and set(_needed(parameters)) <= set(_VERL):
        return _Verl(_awaited(function), parameters, reward)
    if _is_ours(parameters):
        return _awaited(function)
    raise RewardError(_refusal(name, parameters))


def _needed(parameters: list[inspect.Parameter]) -> list[str]:
    """Return the names of parameters without a default."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variable]


def _is_ours(parameters: list[inspect.Parameter]) -> bool:
    """Return whether two positional arguments fit, and are called as ours are (``*args`` is called anything)."""
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(places) < 2:
        return any(one.kind == one.VAR_POSITIONAL for one in parameters) and set(_needed(parameters)) <= _FIRST
    rest = [one for one in parameters if one not in places[:2]]
    return places[0].name in _FIRST and places[1].name in _SECOND and not _needed(rest)


def _refusal(name: str, parameters: list[inspect.Parameter]) -> str:
    shown = ", ".join(map(str, parameters)) or "nothing"
    beyond = [one for one in _needed(parameters) if one in _ELSEWHERE]
    why = f" ({', '.join(beyond)} is of another trainer, and is not here)" if beyond else ""
    return (
        f"reward function {name}: its parameters are ({shown}){why}; expected (prompt, completion), TRL's (prompts, "
        "completions, **columns) or verl's (data_source, solution_str, ground_truth, extra_info). Wrap it, and name "
        f"the wrapper in the recipe:\n    def score(prompt, completion):\n"
        f"        text, gold = completion.text, prompt.answer  # prompt.problem, prompt.extra['column']\n"
        f"        return {name.rpartition(':')[2] or 'yours'}(text, gold)"
    )


# ---------------------------------------------------------------------- async


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that awaits what the user's returns, where that is to be awaited."""
    runner: list[Any] = []  # one for all calls, so that clients which are kept belong to one loop

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not inspect.isawaitable(result):
            return result
        import asyncio  # here: few functions are awaited, and each worker would load it
        from concurrent.futures import ThreadPoolExecutor

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if not runner:
                runner.append(asyncio.Runner())
            return runner[0].run(_wait(result))
        with ThreadPoolExecutor(1) as beside:  # a notebook, whose loop runs in this thread
            return beside.submit(asyncio.run, _wait(result)).result()

    return call


async def _wait(result: Any) -> Any:
    return await result


# ---------------------------------------------------------------------- TRL


class _Trl:
    """A reward function of TRL, called with lists of one.

    A row of messages gives lists of messages, a row of text gives texts, as in TRL. A prompt that a chat template made
    of a text may be meant as either: a function that fails on texts gets messages, and the other way round.
    """

    def __init__(self, function: Callable[..., Any], parameters: list[inspect.Parameter], reward: str) -> None:
        self._function, self._reward = function, reward
        self._all = any(one.kind == one.VAR_KEYWORD for one in parameters)
        self._names = [one.name for one in parameters if one.kind != one.VAR_KEYWORD]
        self._needed = _needed(parameters)
        self._turned = False  # it took the other form

    def __call__(self, prompt: Prompt, completion: Completion) -> Any:
        messages = bool(prompt.messages) != self._turned
        try:
            found, noted = self._call(prompt, completion, messages)
        except _OTHER_FORM as error:
            try:
                found, noted = self._call(prompt, completion, not messages)
            except Exception:
                raise error from None
            self._turned = not self._turned
        return {**noted, self._reward: _only(found)} if noted else _only(found)

    def _call(self, prompt: Prompt, completion: Completion, messages: bool) -> tuple[Any, dict[str, Any]]:
        """Return what the function returns, and the numbers that it recorded by TRL's ``log_metric``."""
        noted: dict[str, Any] = {}
        given = _columns(prompt, self._needed)
        given |= {
            "prompts": [_asked(prompt) if messages else prompt.text],
            "completions": [_said(completion) if messages else completion.text],
            "completion_ids": [completion.token_ids.tolist()],
            "completions_ids": [completion.token_ids.tolist()],
            "log_metric": noted.__setitem__,
            "log_extra": lambda *_: None,  # a column of a table that is not here
        }
        unknown = [name for name in self._needed if name not in given]
        if unknown:
            raise RewardError(
                f"the reward function asks for {', '.join(unknown)}, and the record has no such column; it has "
                f"{', '.join(prompt.extra) or 'none beside problem and answer'} (data.train.N.fields names columns)"
            )
        found = self._function(**{name: value for name, value in given.items() if self._all or name in self._names})
        return found, noted


def _columns(prompt: Prompt, needed: list[str]) -> dict[str, Any]:
    """Return the columns of a record as TRL gives them; problem and answer under the name that is asked for."""
    golds = read_golds(prompt.answer)
    answer: Any = golds if len(golds) > 1 else prompt.answer
    given = {"answer": [answer], "problem": [prompt.problem]}
    given |= {name: [answer] for name in _ANSWERS if name in needed}
    given |= {name: [prompt.problem] for name in _PROBLEMS if name in needed}
    return given | {name: [value] for name, value in prompt.extra.items() if name not in ("prompt", "completion")}


def _asked(prompt: Prompt) -> list[dict[str, Any]]:
    return [dict(message) for message in prompt.messages] or [{"role": "user", "content": prompt.problem}]


def _said(completion: Completion) -> list[dict[str, Any]]:
    """Return a response as messages: one, or the turns of an episode."""
    turns = [{"role": turn.who, "content": turn.text} for turn in completion.turns]
    return turns or [{"role": MODEL, "content": completion.text}]


def _only(found: Any) -> Any:
    """Return the one value of a list.

    Raises:
        ValueError: it is no list, has another length, or holds None: the function leaves the response unscored.
    """
    if isinstance(found, (str, bytes, Mapping)) or not hasattr(found, "__len__") or len(found) != 1:
        raise ValueError(f"expected a list with one number, for one completion; found {describe(found)}")
    return found[0]


# ---------------------------------------------------------------------- verl


class _Verl:
    """A reward function of verl."""

    def __init__(self, function: Callable[..., Any], parameters: list[inspect.Parameter], reward: str) -> None:
        self._function, self._reward = function, reward
        takes_all = any(one.kind == one.VAR_KEYWORD for one in parameters)
        self._names = [name for name in _VERL if takes_all or name in {one.name for one in parameters}]

    def __call__(self, prompt: Prompt, completion: Completion) -> Any:
        extra = prompt.extra
        model = extra.get("reward_model")
        given = {
            "data_source": extra.get("data_source", prompt.source),
            "solution_str": completion.text,
            "ground_truth": model.get("ground_truth", prompt.answer) if isinstance(model, Mapping) else prompt.answer,
            "extra_info": dict(extra.get("extra_info") or extra),
        }
        found = self._function(**{name: given[name] for name in self._names})
        if not isinstance(found, Mapping):
            return found
        if "score" not in found:
            raise ValueError(f"expected a number or a dict with 'score', found {describe(dict(found))}")
        others = {key: value for key, value in found.items() if key != "score" and hasattr(type(value), "__float__")}
        return {**others, self._reward: found["score"]}
