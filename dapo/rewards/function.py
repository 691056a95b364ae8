"""The user's own reward functions: loading them, and reading what they return."""

from __future__ import annotations

import importlib
import logging
import math
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from dapo.errors import RewardError
from dapo.hooks import given, is_object, line_that_trains, load, search_working_directory
from dapo.metrics.names import reward_name_problem

MAX_VALUES = 64  # numbers in the dict that one call may return
MAX_NUMBER = 1e15  # so that squares and sums over a group stay finite in single precision

log = logging.getLogger(__name__)

RewardFunction = Callable[..., Any]


def load_function(path: str) -> RewardFunction:
    """Import ``package.module:function``; modules of the current folder count.

    Raises:
        RewardError: the module cannot be imported, or has no such function. The message has the cause.
    """
    module_name, _, name = path.partition(":")
    if is_object(path):
        try:
            return load(path)  # type: ignore[no-any-return]
        except ImportError as error:
            raise RewardError(f"reward function {path!r}: {error}") from None
    search_working_directory()
    try:
        line = line_that_trains(module_name)
        if line is not None:
            raise ImportError(
                f'line {line} of it starts another trainer, outside of `if __name__ == "__main__":`; put that line '
                "below such a line, or move the function to a file of its own"
            )
        module = importlib.import_module(module_name)
    except BaseException as error:  # user code may raise anything, SystemExit included
        raise RewardError(
            f"reward function {path!r}: the module {module_name!r} cannot be imported: {describe_error(error)} "
            f"(searched in {os.getcwd()} and the Python path)"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        near = get_close_matches(name, [key for key, value in vars(module).items() if callable(value)], n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        found = "has no such name" if function is None else f"has it as {type(function).__name__}, not as a function"
        place = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        raise RewardError(f"reward function {path!r}: the module {module_name!r}{place} {found}{hint}")
    return function  # type: ignore[no-any-return]


def read_values(result: Any, name: str) -> dict[str, float]:
    """Return a verifier's result as finite numbers by name.

    Args:
        result: a number (bool, int, float, numpy scalar, 0-d tensor...), which becomes the value ``name``; or a dict of
            such numbers, which must hold ``name``; the others are recorded beside it.
        name: name of the reward.

    Raises:
        ValueError: anything else; the message begins with "not a number", or with "name" where a key cannot name a
            metric.
    """
    if not isinstance(result, Mapping):
        return {name: read_number(result)}
    if len(result) > MAX_VALUES:
        raise ValueError(f"not a number: a dict of {len(result)} entries, more than {MAX_VALUES}")
    values = {}
    for key, value in result.items():
        if not isinstance(key, str):
            raise ValueError(f"not a number: a dict with the key {describe(key)}, which is not text")
        wrong = None if key == name else reward_name_problem(key)
        if wrong is not None:
            raise ValueError(f"name: the key {describe(key)} cannot name a metric: it {wrong}")
        values[key] = read_number(value)
    if name not in values:
        raise ValueError(
            f"not a number: a dict without {name!r}, the name of the reward; it has {describe(list(values))}"
        )
    return values


def read_group(result: Any, name: str, count: int) -> list[dict[str, float] | str]:
    """Return a reward's verdicts on the responses of a group.

    Args:
        result: a list, array or tensor with an entry for each response, each as ``read_values`` takes it.
        name: of the reward.
        count: responses of the group.

    Returns:
        The numbers of each response by name, or why it has none.

    Raises:
        ValueError: there is not one entry for each response; the message begins with "not a number".
    """
    found = listed(result, count)
    verdicts: list[dict[str, float] | str] = []
    for each in found:
        try:
            verdicts.append(read_values(each, name))
        except ValueError as error:
            verdicts.append(str(error)[:400])
    return verdicts


def listed(result: Any, count: int) -> list[Any]:
    """Return the entries of a list, array or tensor.

    Raises:
        ValueError: it is none, or has another number of entries than ``count``; the message begins with "not a number".
    """
    in_order = isinstance(result, Sequence) and not isinstance(result, (str, bytes))
    found = list(result) if in_order or getattr(result, "shape", None) else None
    if found is not None and len(found) == count:
        return found
    entries = "" if found is None else f" with {len(found)} entries"
    wanted = "one number, for one completion" if count == 1 else f"{count} numbers, one for each of {count} completions"
    raise ValueError(f"not a number: expected a list with {wanted}; found {describe(result)}{entries}")


def read_number(value: Any) -> float:
    """Return a finite number.

    Raises:
        ValueError: it is none, or too large; the message begins with "not a number".
    """
    if isinstance(value, (str, bytes, complex)) or not hasattr(type(value), "__float__"):
        raise ValueError(f"not a number: {describe(value)}")
    try:
        number = float(value)
    except Exception as error:
        raise ValueError(f"not a number: {describe(value)} ({describe_error(error)})") from error
    if not math.isfinite(number):
        raise ValueError(f"not a number: {number}")
    if abs(number) > MAX_NUMBER:
        raise ValueError(f"not a number: {number:g} is beyond {MAX_NUMBER:g}")
    return number


def describe(value: Any) -> str:
    """Type and beginning of a value; never long, never raises, whatever the object does."""
    try:
        text = reprlib.repr(value)[:80]
    except Exception:  # its own __repr__ failed, or a whole number has more digits than Python writes
        text = "(cannot be shown)"
    return f"{type(value).__name__} {text}"


def describe_error(error: BaseException) -> str:
    """Type and message of an exception on one short line; never raises."""
    try:
        text = " ".join(str(error)[:2000].split())[:200]
    except Exception:
        text = ""
    if isinstance(error, MemoryError):
        text = f"{text} (run.reward_memory_mib is the limit)".strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def pickled(function: str, reward: str) -> bytes | None:
    """Return the function of ``python:NAME`` in a form that can be sent to a worker.

    Functions of a script or a notebook go whole, those of modules by name. None where it cannot be sent, which is said:
    it is then asked in the driver.

    Args:
        function: the hook; one that names a module's function gives None as well.
        reward: name of the reward.
    """
    found = given(function) if is_object(function) else None
    if found is None:
        return None
    import cloudpickle  # here: no worker needs it

    try:
        return cloudpickle.dumps(found)  # type: ignore[no-any-return]
    except Exception as error:  # whatever it holds on to: a lock, an open file, a connection
        log.warning(
            "the reward %r runs in this process, since it cannot be sent to another (%s): there it has no time limit "
            "(rewards.timeout), no memory limit (run.reward_memory_mib), what it prints stays here, a crash of it ends "
            "the run, and training waits for it. A function that holds no lock, file or connection is sent.",
            reward,
            describe_error(error),
        )
        return None


def runs_in_the_driver(function: str, sent: bytes | None) -> Callable[..., Any] | None:
    """Return the function itself if it was given as an object that cannot be sent."""
    return given(function) if is_object(function) and sent is None else None
