"""Further arrays of a response, one entry a token: what a loss or an engine needs beside the fields of every response.

Example: ``{"marked": array([True, False, False])}`` of a response of three tokens. The first axis of an array is the
tokens of the response, or of prompt and response; types and further axes are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Extra = Mapping[str, NDArray[Any]]

Span = Literal["response", "sequence"]
"""The tokens along the first axis: those of the response, or of prompt and response."""


def extra_problem(extra: Extra, *, prompt: int, response: int) -> str | None:
    """Return what is wrong with the extra arrays of a response: name, shape, expected. None: nothing.

    Args:
        extra: the arrays by name.
        prompt: tokens of the prompt.
        response: tokens of the response.
    """
    for name, values in extra.items():
        if not isinstance(name, str) or not isinstance(values, np.ndarray) or values.dtype == object:
            return f"extra {name!r} is {type(values).__name__}, expected a numpy array of numbers"
        if values.shape[:1] not in ((response,), (prompt + response,)):
            return (
                f"extra {name!r} has the shape {list(values.shape)}, expected a first axis of {response} (tokens of "
                f"the response) or {prompt + response} (of prompt and response)"
            )
    return None


def of_response(name: str, values: NDArray[Any], span: Span, *, prompt: int, response: int) -> NDArray[Any]:
    """Return the part of an extra array that is the response's.

    Raises:
        ValueError: the array does not span what is expected; with name, shape, expected.
    """
    expected = response if span == "response" else prompt + response
    if values.shape[:1] != (expected,):
        raise ValueError(
            f"extra {name!r} has the shape {list(values.shape)}, expected a first axis of {expected} (span {span!r}: "
            f"the prompt has {prompt} tokens, the response {response})"
        )
    return values[expected - response :]


def joined_extra(earlier: Extra, later: Extra) -> Extra:
    """Return the arrays of a response whose tokens come in two parts.

    Raises:
        ValueError: a part lacks an array that the other has, or they differ in type or further axes.
    """
    if earlier.keys() != later.keys():
        raise ValueError(f"extra arrays {sorted(later)} for some tokens of a response and {sorted(earlier)} for others")
    for name in earlier:
        first, second = earlier[name], later[name]
        if first.dtype != second.dtype or first.shape[1:] != second.shape[1:]:
            raise ValueError(
                f"extra {name!r} is {first.dtype} {list(first.shape[1:])} for some tokens of a response and "
                f"{second.dtype} {list(second.shape[1:])} for others"
            )
    return {name: np.concatenate([earlier[name], later[name]]) for name in earlier}


def cut_extra(extra: Extra, count: int) -> Extra:
    """Return the arrays without their last ``count`` tokens."""
    return {name: values[: len(values) - count] for name, values in extra.items()}


def empty_extra(extra: Extra, count: int) -> Extra:
    """Return such arrays of ``count`` tokens that no engine made: zeros."""
    return {name: np.zeros((count, *values.shape[1:]), values.dtype) for name, values in extra.items()}
