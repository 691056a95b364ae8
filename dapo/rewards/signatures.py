"""Reward functions by their parameters: ours, TRL's and verl's run as they are, others are refused.

- ours: ``f(prompt, completion)`` -> a number or a dict of numbers
- TRL: ``f(prompts, completions, **columns)`` -> a list, here with one value
- verl: ``compute_score(data_source, solution_str, ground_truth, extra_info)`` -> a number or a dict with ``score``

With ``per: group`` they see all responses to a prompt:

- ours: ``f(prompt, completions)`` -> a list of numbers or of dicts of numbers
- TRL: the same form, with lists of G
- verl's batch manager: ``compute_score(data_sources, solution_strs, ground_truths, extra_infos)`` -> a list

Each may be ``async def``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dapo.errors import RewardError
from dapo.metrics.names import reward_name_problem
from dapo.rewards.compared_text import read_golds
from dapo.rewards.function import describe, listed, read_values
from dapo.types.batch import MODEL, Prompt, Response

Ours = Callable[[Prompt, Any], Any]
"""Called with a prompt and its response, or with a list of its responses."""

_FIRST = frozenset(("prompt", "p", "item", "_", "_prompt", "unused"))
_SECOND = frozenset(("completion", "c", "response", "_", "_completion", "unused"))
_TOGETHER = frozenset(("completions", "responses", "_", "_completions", "unused"))
_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
_VERL_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
_ELSEWHERE = ("trainer_state", "environments", "reward_router_address", "reward_model_tokenizer")
"""What only another trainer has."""
_ANSWERS = ("answer", "ground_truth", "solution", "target", "label")
_PROBLEMS = ("problem", "question")
_OTHER_FORM = (TypeError, AttributeError, KeyError, IndexError)


def adapt(function: Callable[..., Any], name: str, reward: str, per_group: bool = False) -> Ours:
    """Return a reward function as one of ours.

    Args:
        function: the user's.
        name: of the function, for messages.
        reward: name of the reward; the value called so is the reward.
        per_group: it is called with all responses to a prompt, and returns a list.

    Raises:
        RewardError: its parameters are none of the three forms. The message shows how to wrap it.
    """
    parameters = _parameters(function)
    form = None if parameters is None else _form(parameters, per_group)
    if parameters is None or form is None:
        raise RewardError(_refusal(name, parameters, per_group))
    call = _awaited(function)
    if form == "ours":
        return call
    adapted = _Trl(call, parameters, reward) if form == "trl" else _Verl(call, parameters, reward)
    return adapted.of_group if per_group else adapted


def _parameters(function: Callable[..., Any], deepest: int = 4) -> list[inspect.Parameter] | None:
    """Return a function's parameters; of a wrapper ``(*args, **kwargs)`` those of the reward function that it calls.

    None: they cannot be read, as of a built-in function.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if deepest and all(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        cells = getattr(function, "__closure__", None) or ()
        wrapped = [_parameters(cell.cell_contents, deepest - 1) for cell in cells if callable(_content(cell))]
        known = [one for one in wrapped if one is not None and any(_form(one, group) for group in (False, True))]
        return known[0] if len(known) == 1 else parameters
    return parameters


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _form(parameters: list[inspect.Parameter], per_group: bool) -> Literal["ours", "trl", "verl"] | None:
    """Return the form that the parameters' names tell."""
    named = {one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    needed = set(_needed(parameters))
    if _is_ours(parameters, _TOGETHER if per_group else _SECOND):
        return "ours"
    if named & {"completions", "completion_ids", "completions_ids"} and not needed & {"prompt", *_ELSEWHERE}:
        return "trl"
    data, text, truth, extra = _VERL_BATCH if per_group else _VERL
    return "verl" if {text, truth} <= named and needed <= {data, text, truth, extra} else None


def _needed(parameters: list[inspect.Parameter]) -> list[str]:
    """Return the names of parameters without a default."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variable]


def _is_ours(parameters: list[inspect.Parameter], second: frozenset[str]) -> bool:
    """Return whether two positional arguments fit, and are called as ours are."""
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if not places or places[0].name not in _FIRST or _needed([one for one in parameters if one not in places[:2]]):
        return False
    any_more = any(one.kind == one.VAR_POSITIONAL for one in parameters)
    return places[1].name in second if len(places) > 1 else any_more


def _arguments(parameters: list[inspect.Parameter], given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the named arguments of a call, of all that is there by name."""
    places = [one for one in parameters if one.kind == one.POSITIONAL_ONLY]
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    if any(one.kind == one.VAR_KEYWORD for one in parameters):
        named = set(given) - {one.name for one in places}
    return [given.get(one.name, one.default) for one in places], {
        name: value for name, value in given.items() if name in named
    }


def _refusal(name: str, parameters: list[inspect.Parameter] | None, per_group: bool) -> str:
    shown = "cannot be read" if parameters is None else f"are ({', '.join(map(str, parameters)) or 'nothing'})"
    beyond = [one for one in _needed(parameters or []) if one in _ELSEWHERE]
    why = f" ({', '.join(beyond)} is of another trainer, and is not here)" if beyond else ""
    second, verl = ("completions", _VERL_BATCH) if per_group else ("completion", _VERL)
    found = (
        f"reward function {name}: its parameters {shown}{why}; expected (prompt, {second}), TRL's (prompts, "
        f"completions, **columns) or verl's ({', '.join(verl)})"
    )
    if parameters is not None and _form(parameters, not per_group) is not None:
        move = "one response: take `per: group` out" if per_group else "all responses to a prompt: add `per: group`"
        return f"{found}. It is a function of {move}"
    texts = "texts, gold = [one.text for one in completions]" if per_group else "text, gold = completion.text"
    return (
        f"{found}. Wrap it, and name the wrapper in the recipe:\n    def score(prompt, {second}):\n"
        f"        {texts}, prompt.answer  # prompt.problem, prompt.extra['column']\n"
        f"        return {name.rpartition(':')[2] or 'yours'}({texts.partition(',')[0]}, gold)"
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
    """A reward function of TRL, called with lists of one, or of a group.

    A row of messages gives lists of messages, a row of text gives texts, as in TRL. A prompt that a chat template made
    of a text may be meant as either: a function that fails on texts gets messages, and the other way round.
    """

    def __init__(self, function: Callable[..., Any], parameters: list[inspect.Parameter], reward: str) -> None:
        self._function, self._parameters, self._reward = function, parameters, reward
        self._needed = _needed(parameters)
        self._turned = False  # it took the other form

    def __call__(self, prompt: Prompt, completion: Response) -> Any:
        return self.of_group(prompt, [completion])[0]

    def of_group(self, prompt: Prompt, completions: Sequence[Response]) -> list[Any]:
        messages = bool(prompt.messages) != self._turned
        try:
            found, noted = self._call(prompt, completions, messages)
        except _OTHER_FORM as error:
            try:
                found, noted = self._call(prompt, completions, not messages)
            except Exception:
                raise error from None
            self._turned = not self._turned
        entries = listed(found, len(completions))
        return [{**_numbers(noted), self._reward: entry} for entry in entries] if noted else entries

    def _call(self, prompt: Prompt, completions: Sequence[Response], messages: bool) -> tuple[Any, dict[str, Any]]:
        """Return what the function returns, and the numbers that it recorded by TRL's ``log_metric``."""
        noted: dict[str, Any] = {}
        columns = _columns(prompt, self._needed)
        given: dict[str, Any] = {name: column * len(completions) for name, column in columns.items()}
        ids = [completion.token_ids.tolist() for completion in completions]
        given |= {
            "prompts": [_asked(prompt) if messages else prompt.text for _ in completions],
            "completions": [_said(completion) if messages else completion.text for completion in completions],
            "completion_ids": ids,
            "completions_ids": ids,
            "log_metric": noted.__setitem__,
            "log_extra": lambda *_: None,  # a column of a table that is not here
        }
        unknown = [name for name in self._needed if name not in given]
        if unknown:
            raise RewardError(
                f"the reward function asks for {', '.join(unknown)}, and the record has no such column; it has "
                f"{', '.join(prompt.extra) or 'none besides problem and answer'} (data.train.N.fields names columns)"
            )
        places, named = _arguments(self._parameters, given)
        return self._function(*places, **named), noted


def _columns(prompt: Prompt, needed: list[str]) -> dict[str, list[Any]]:
    """Return the columns of a record as TRL gives them; problem and answer under the name that is asked for."""
    golds = read_golds(prompt.answer)
    answer: Any = golds if len(golds) > 1 else prompt.answer
    given = {"answer": [answer], "problem": [prompt.problem]}
    given |= {name: [answer] for name in _ANSWERS if name in needed}
    given |= {name: [prompt.problem] for name in _PROBLEMS if name in needed}
    return given | {name: [value] for name, value in prompt.extra.items() if name not in ("prompt", "completion")}


def _asked(prompt: Prompt) -> list[dict[str, Any]]:
    return [dict(message) for message in prompt.messages] or [{"role": "user", "content": prompt.problem}]


def _said(completion: Response) -> list[dict[str, Any]]:
    """Return a response as messages: one, or the turns of an episode."""
    turns = [{"role": turn.who, "content": turn.text} for turn in completion.turns]
    return turns or [{"role": MODEL, "content": completion.text}]


# ---------------------------------------------------------------------- verl


class _Verl:
    """A reward function of verl."""

    def __init__(self, function: Callable[..., Any], parameters: list[inspect.Parameter], reward: str) -> None:
        self._function, self._parameters, self._reward = function, parameters, reward

    def __call__(self, prompt: Prompt, completion: Response) -> Any:
        places, named = _arguments(self._parameters, _of_verl(prompt, completion))
        return self._read(self._function(*places, **named))

    def of_group(self, prompt: Prompt, completions: Sequence[Response]) -> list[Any]:
        rows = [_of_verl(prompt, completion) for completion in completions]
        given = {f"{name}s": [row[name] for row in rows] for name in rows[0]}
        places, named = _arguments(self._parameters, given)
        return [self._read(each) for each in listed(self._function(*places, **named), len(rows))]

    def _read(self, found: Any) -> Any:
        if not isinstance(found, Mapping):
            return found
        if "score" not in found:
            raise ValueError(f"expected a number or a dict with 'score', found {describe(dict(found))}")
        if self._reward == "accuracy" and "acc" in found:  # whose score may be -1, or have more parts
            return {**_numbers(found), self._reward: found["acc"]}
        return {
            **_numbers({key: value for key, value in found.items() if key != "score"}),
            self._reward: found["score"],
        }


def _of_verl(prompt: Prompt, completion: Response) -> dict[str, Any]:
    """Return what a function for verl is given, by name."""
    extra = prompt.extra
    model = _read_object(extra.get("reward_model"))
    return {
        "data_source": extra.get("data_source", prompt.source),
        "solution_str": completion.text,
        "ground_truth": model.get("ground_truth", prompt.answer) if isinstance(model, Mapping) else prompt.answer,
        "extra_info": _read_object(extra.get("extra_info") or extra),
    }


def _read_object(value: Any) -> Any:
    """Return a mapping as a dict of its own, also one that the data hold as a text of JSON; anything else as it is."""
    if isinstance(value, str):
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return read if isinstance(read, dict) else value
    return dict(value) if isinstance(value, Mapping) else value


def _numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """Return the values that can be recorded as metrics: finite numbers. A slash in a name becomes an underscore."""
    kept = {}
    for key, value in values.items():
        name = str(key).replace("/", "_")
        try:
            number = read_values(value, name)[name]
        except (ValueError, KeyError):
            continue
        if reward_name_problem(name) is None:
            kept[name] = number
    return kept
