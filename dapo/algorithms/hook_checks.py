"""Functions of the user, held to their contract in every call: keep rule, shaping, advantage, loss, extra arrays.

``checked`` and ``checked_objective`` stand before a function, with its own signature. What it returned is read by a
function below, which refuses a result that would train something else than its author meant.
"""

from __future__ import annotations

import copy
import reprlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import Loss, Need, Objective, StepRow
from dapo.errors import DapoError, HookError, of_the_machine
from dapo.hooks import user_line
from dapo.metrics.names import name_problem
from dapo.types.enums import Verdict
from dapo.types.extra import Extra, extra_problem

Float64 = NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)
"""Bound of rewards and advantages: the learner computes in float32."""


def checked(function: Callable[..., Any], setting: str, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the user whose result ``read(result, *arguments)`` reads.

    It gets copies of small arrays, so that it cannot change what a run records.

    Args:
        function: the user's.
        setting: the recipe's key that names it.
        name: ``package.module:function``, as the recipe has it.
        read: ``read_verdict``, ``read_shaping``, ``read_advantages`` or ``read_extra``.
    """
    copied: Callable[[Any], Any] = (lambda rows: rows) if read is read_extra else copy.deepcopy

    @wraps(function)  # inspect.signature finds the user's own
    def call(*arguments: Any) -> Any:
        with _blame(setting, name):
            return read(function(*copied(arguments)), *arguments)

    return call


def checked_objective(objective: Objective, setting: str, name: str) -> Objective:
    """Return an objective of the user whose loss, and maker of extra arrays, are checked; as ``checked``."""
    extra = None if objective.extra is None else checked(objective.extra, setting, name, read_extra)
    return replace(objective, loss=_checked_loss(objective, setting, name), extra=extra)


def _checked_loss(objective: Objective, setting: str, name: str) -> Loss:
    """Return the loss of an objective with its check.

    Types, shapes and devices are compared in every call. Values and gradients are read in one call alone, since reading
    them waits for the device.
    """
    looked = False  # at values and gradients
    names: set[str] | None = None  # of its flags
    function, needs = objective.loss, objective.needs

    @wraps(function)
    def call(inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        nonlocal looked, names
        trains = inputs.logprobs.requires_grad and torch.is_grad_enabled()
        look = trains and not looked and _is_sound(inputs)
        given = _with_own_gradient(inputs, needs) if look else inputs
        tensors = _tensors(given)
        versions = {field: tensor._version for field, tensor in tensors.items()}
        with _blame(setting, name):
            loss, flags = read_loss(function(given), inputs)
            if changed := [field for field, tensor in tensors.items() if tensor._version != versions[field]]:
                raise _refused(f"inputs.{changed[0]} changed in place", f"a copy, inputs.{changed[0]}.clone()")
            if names is not None and set(flags) != names:
                raise _refused(f"the flags {sorted(flags)}", f"{sorted(names)} in every call")
            if trains and not loss.requires_grad:
                raise _refused("L with no gradient", "no detach(), item() or numpy() of inputs.logprobs")
            if look:
                _look(loss, given, needs)
        looked, names = looked or look, set(flags)
        return loss, flags

    return call


def read_verdict(found: Any, *_: Any) -> Verdict:
    """Read what a keep rule returned."""
    if not isinstance(found, Verdict):
        raise _refused(
            _shown(found), "a dapo.types.enums.Verdict: Verdict.KEPT for a group that trains, or why it does not"
        )
    return found


def read_shaping(found: Any, rewards_G: Float64, *_: Any) -> tuple[Float64, Float64]:
    """Read shaped rewards and penalties of one group; nan stays allowed where a response is unscored."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise _refused(_shown(found), "two arrays, `return shaped, penalties`; np.zeros_like(shaped) is no penalty")
    scored = ~np.isnan(rewards_G)
    return _numbers(found[0], scored, "shaped rewards"), _numbers(found[1], scored, "penalties")


def read_advantages(found: Any, _: Any, voters_PG: Sequence[NDArray[np.bool_]], *__: Any) -> list[Float64]:
    """Read one array [responses] a group: finite, and 0 for responses without a vote."""
    if not isinstance(found, list | tuple | np.ndarray) or len(found) != len(voters_PG):
        raise _refused(_shown(found), f"a list of arrays, one for each of {len(voters_PG)} groups")
    groups = [_numbers(part, voters_PG[p], f"group {p}") for p, part in enumerate(found)]
    for p, (numbers, voters_G) in enumerate(zip(groups, voters_PG, strict=True)):
        if (bad := ~voters_G & (numbers != 0)).any():  # nan is not 0
            at = int(bad.argmax())
            what = f"{numbers[at]} at response {at} of group {p}, which has no vote"
            raise _refused(
                what, "0 there: take statistics over rewards_G[voters_G], and end with np.where(voters_G, ...)"
            )
    return groups


def read_extra(found: Any, rows: Sequence[StepRow], *_: Any) -> list[Extra]:
    """Read the extra arrays of one optimizer step, which must span the tokens of their rows."""
    if not isinstance(found, list | tuple) or len(found) != len(rows):
        raise _refused(_shown(found), f"a list of mappings from names to arrays, one for each of {len(rows)} responses")
    for row, extra in zip(rows, found, strict=True):
        if not isinstance(extra, Mapping):
            raise _refused(_shown(extra), "a mapping from names to numpy arrays for each response")
        if problem := extra_problem(extra, prompt=len(row.prompt_ids), response=len(row.token_ids)):
            raise _refused(problem, "[{'NAME': array with one entry a token} for row in rows]")
    return list(found)


def read_loss(found: Any, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Read (L, flags), [tokens] each: by type, shape and device alone, for nothing here may wait for a device."""
    own = inputs.logprobs
    if not isinstance(found, tuple) or len(found) != 2:
        raise _refused(_shown(found), "(L, flags); end with `return loss, {}`")
    loss, flags = found
    if not isinstance(loss, Tensor) or loss.shape != own.shape or loss.device != own.device:
        raise _refused(
            _shown(loss),
            f"L of every token, unreduced: a tensor of shape {list(own.shape)} on {own.device}, made from "
            "inputs.logprobs. algorithm.loss.reduction sums it; a number a response becomes loss_R[inputs.rows]",
        )
    if not loss.is_floating_point() or torch.finfo(loss.dtype).eps > torch.finfo(own.dtype).eps:
        raise _refused(_shown(loss), f"L in {own.dtype}, the type of inputs.logprobs")
    if not isinstance(flags, Mapping):
        raise _refused(_shown(flags), "flags by name; end with `return loss, {}` if there are none")
    for name, flag in flags.items():
        if not isinstance(name, str) or (problem := name_problem(name)):
            raise _refused(f"a flag named {name!r}", f"a name for the metric custom/NAME ({problem})")
        if not isinstance(flag, Tensor) or flag.dtype != torch.bool or flag.shape != own.shape:
            raise _refused(
                _shown(flag), f"as flag {name!r} a bool for every token, {list(own.shape)}: inputs.logprobs > -0.1"
            )
    return loss, flags


def _look(loss: Tensor, inputs: LossInputs, needs: frozenset[Need]) -> None:
    """Read the values of a loss and its gradients, which must be finite and of what the run differentiates by."""
    at_loss = torch.where(inputs.loss_mask, loss, 0.0)
    if (at := _first_bad(at_loss)) is not None:
        raise _refused(
            f"L of {float(loss.detach()[at])} at token {at}, whose inputs are finite",
            "finite numbers: bound what goes into exp(), and look for log(0) or a division by 0",
        )
    wanted = [t for t in (inputs.logprobs, inputs.entropy) if t is not None and t.requires_grad]
    by_logprobs, *by_entropy = torch.autograd.grad(at_loss.sum(), wanted, retain_graph=True, allow_unused=True)
    of_entropy = by_entropy and by_entropy[0] is not None
    if of_entropy and "entropy" not in needs:
        raise _refused(
            "L that depends on inputs.entropy, which has no gradient in this run",
            "dapo.Objective(..., needs=frozenset({'entropy'})), or inputs.entropy.detach() for its number",
        )
    if by_logprobs is None and not of_entropy:
        raise _refused("L with a gradient that does not come from inputs.logprobs", "one that does")
    if by_logprobs is not None and (at := _first_bad(by_logprobs)) is not None:
        raise _refused(
            f"L whose gradient at token {at} is {float(by_logprobs[at])}",
            "a finite gradient. sqrt(0), log(0) and norm(0) have none: put torch.where around what goes into them",
        )


def _with_own_gradient(inputs: LossInputs, needs: frozenset[Need]) -> LossInputs:
    """Return inputs whose gradients can be asked for without running the model's backward pass.

    The log-probabilities are copied, with the same gradient. An entropy without a gradient gets one of its own, which
    shows whether the loss wanted it.
    """
    entropy = inputs.entropy
    if entropy is not None and "entropy" not in needs:
        entropy = entropy.detach().clone().requires_grad_()
    return replace(inputs, logprobs=inputs.logprobs.clone(), entropy=entropy)


def _numbers(value: Any, needed_G: NDArray[np.bool_], what: str) -> Float64:
    """Return numbers of the responses of a group [responses], which are finite where they are needed."""
    numbers = np.array(value) if isinstance(value, list) else value
    if not isinstance(numbers, np.ndarray) or numbers.shape != needed_G.shape or numbers.dtype.kind not in "fiu":
        raise _refused(_shown(value), f"as {what} a numpy array of numbers for its {len(needed_G)} responses")
    numbers = numbers.astype(np.float64)
    if (bad := needed_G & ~(np.abs(numbers) <= _LARGEST)).any():
        at = int(bad.argmax())
        raise _refused(
            f"{numbers[at]} at response {at} of {what}",
            "finite numbers, which float32 can hold (equal rewards have std 0, unscored responses the reward nan)",
        )
    return numbers


def _is_sound(inputs: LossInputs) -> bool:
    """Whether loss tokens exist and have finite inputs: a model's nan is not the loss's fault."""
    mask = inputs.loss_mask
    parts = (inputs.logprobs, inputs.old_logprobs, inputs.advantages)
    return bool(mask.any()) and all(bool(torch.isfinite(part.detach()[mask]).all()) for part in parts)


def _first_bad(values: Tensor) -> int | None:
    bad = ~torch.isfinite(values.detach())
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def _tensors(inputs: LossInputs) -> dict[str, Tensor]:
    found = {name: getattr(inputs, name) for name in LossInputs.__slots__}
    found |= {f"extra[{name!r}]": value for name, value in inputs.extra.items()}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


class _Refused(Exception):
    """A result that was refused: what it is, and what was expected."""


def _refused(what: str, expected: str) -> _Refused:
    return _Refused(f"returned {what}; expected {expected}")


def _shown(value: Any) -> str:
    """Return type and beginning of a value; arrays by their shape."""
    if isinstance(value, np.ndarray | Tensor):
        return f"{type(value).__name__} of shape {list(value.shape)} and {value.dtype}"
    return "None (no `return` was reached)" if value is None else f"{type(value).__name__} {reprlib.repr(value)}"


@contextmanager
def _blame(setting: str, name: str) -> Iterator[None]:
    """Say which function of the user an exception comes from.

    Raises:
        HookError: in place of any exception but the program's own and what the machine refuses; with the line.
    """
    try:
        yield
    except _Refused as error:
        raise HookError(f"{setting}: {name} {error}") from None
    except (Exception, SystemExit) as error:  # sys.exit() of a hook would end the run unsaved, without a word
        if isinstance(error, DapoError) or of_the_machine(error) is not None:
            raise
        said = textwrap.shorten(str(error), 300)
        raise HookError(
            f"{setting}: {name}{user_line(error)}, raised {type(error).__name__}: {said}. docs/hooks.md says how it is "
            "called, and what of LossInputs is there because an Objective names it in `needs` and `reads`"
        ) from error
