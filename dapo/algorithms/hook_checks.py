"""Functions of the user, held to their contract when they are called: keep rule, shaping, advantage, loss.

Each class below stands before one function with the function's own signature. It passes copies of small arrays, so that
a hook cannot change what a run records, and refuses a result that would train something else than its author meant.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import StepRow
from dapo.errors import DapoError, HookError, of_the_machine
from dapo.hooks import user_line
from dapo.metrics.names import name_problem
from dapo.types.enums import Verdict
from dapo.types.extra import Extra, extra_problem

Float64 = NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)
"""Bound of an advantage: the learner computes in float32."""


@dataclass(eq=False)
class _Hook:
    """A function of the user with what its errors say of it.

    Attributes:
        function: the function.
        setting: the recipe's key that names it.
        name: ``package.module:function``, as the recipe has it.
    """

    function: Callable[..., Any]
    setting: str
    name: str

    called = "function(...)"
    """How it is called, for messages."""

    def __post_init__(self) -> None:
        self.__wrapped__ = self.function  # inspect.signature finds the user's own

    def call(self, *arguments: Any) -> Any:
        """Call the function.

        Raises:
            HookError: the function raised; the message has the line.
        """
        try:
            return self.function(*arguments)
        except (Exception, SystemExit) as error:  # sys.exit() of a hook would end the run unsaved, without a word
            if isinstance(error, DapoError) or of_the_machine(error) is not None:
                raise
            raise HookError(
                f"{self.setting}: {self.name}{user_line(error)}, raised {type(error).__name__}: {_brief(error)}. It "
                f"is called as {self.called}{self.hint(error, *arguments)}; examples: docs/hooks.md"
            ) from error

    def hint(self, error: BaseException, *arguments: Any) -> str:
        """Return what the arguments say about an exception; "" for nothing."""
        return ""

    def refuse(self, found: str, expected: str, move: str) -> NoReturn:
        """Raise HookError: what the function returned, what was expected, and the next move."""
        raise HookError(f"{self.setting}: {self.name} returned {found}; expected {expected}. {move}")


class KeepHook(_Hook):
    """A keep rule: returns a ``Verdict``."""

    called = "keep(values_G, voters_G)"

    def __call__(self, values_G: Float64, voters_G: NDArray[np.bool_]) -> Verdict:
        """Judge one group.

        Raises:
            HookError: the rule raised, or returned no ``Verdict``.
        """
        verdict = self.call(values_G.copy(), voters_G.copy())
        if not isinstance(verdict, Verdict):
            self.refuse(
                _shown(verdict),
                "a dapo.types.enums.Verdict",
                f"Return Verdict.KEPT for a group that trains, else one of {_other_verdicts()}",
            )
        return verdict


class ShapingHook(_Hook):
    """A reward shaping: returns the shaped rewards and the penalties that they contain."""

    called = "shaping(rewards_G, lengths_G, truncated_G)"

    def __call__(
        self, rewards_G: Float64, lengths_G: NDArray[np.int64], truncated_G: NDArray[np.bool_]
    ) -> tuple[Float64, Float64]:
        """Shape the rewards of one group; nan stays allowed where a response is unscored.

        Raises:
            HookError: the function raised, or returned no two arrays [responses] that are finite at scored responses.
        """
        result = self.call(rewards_G.copy(), lengths_G.copy(), truncated_G.copy())
        move = "End with `return shaped, penalties`; the penalties are reported alone, np.zeros_like(shaped) is none"
        if not isinstance(result, tuple) or len(result) != 2:
            self.refuse(_shown(result), "two arrays: shaped rewards and penalties, one number a response each", move)
        shaped, penalties = (
            self._numbers(part, what, ~np.isnan(rewards_G), move)
            for part, what in zip(result, ("shaped rewards", "penalties"), strict=True)
        )
        return shaped, penalties

    def _numbers(self, part: Any, what: str, scored: NDArray[np.bool_], move: str) -> Float64:
        count = len(scored)
        if not _is_numbers(part, (count,)):
            self.refuse(f"{_shown(part)} as {what}", f"a numpy array of numbers for {count} responses", move)
        numbers = np.asarray(part, dtype=np.float64)
        if (bad := ~np.isfinite(numbers) & scored).any():
            at = int(bad.argmax())
            self.refuse(
                f"{what} with {numbers[at]} at response {at}, which has a reward",
                "finite numbers",
                "Look for a division by 0 or a logarithm in it",
            )
        return numbers


class AdvantageHook(_Hook):
    """An advantage: returns one array per group, finite, 0 for responses without a vote."""

    called = "advantage(rewards_PG, voters_PG), with parts_PG where it has a third argument"

    def __call__(
        self, rewards_PG: Sequence[Float64], voters_PG: Sequence[NDArray[np.bool_]], *parts_PG: Any
    ) -> list[Float64]:
        """Compute the advantages of a step's groups.

        Raises:
            HookError: the function raised, or returned no list of finite arrays [responses].
        """
        parts = [[{name: values.copy() for name, values in group.items()} for group in part] for part in parts_PG]
        result = self.call([r.copy() for r in rewards_PG], [v.copy() for v in voters_PG], *parts)
        groups = len(rewards_PG)
        listed = isinstance(result, list | tuple) or (isinstance(result, np.ndarray) and result.ndim == 2)
        if not listed or len(result) != groups:
            several = f"{len(result)} array{'s' * (len(result) != 1)}" if listed else _shown(result)
            self.refuse(
                several,
                f"a list of arrays, one for each of {groups} groups",
                "Loop over zip(rewards_PG, voters_PG) and append one array for each group",
            )
        return [self._numbers(part, number, voters_PG[number]) for number, part in enumerate(result)]

    def _numbers(self, part: Any, number: int, voters_G: NDArray[np.bool_]) -> Float64:
        if not _is_numbers(part, voters_G.shape):
            self.refuse(
                f"{_shown(part)} for group {number}",
                f"a numpy array of numbers for its {len(voters_G)} responses",
                "One number is needed for each response, 0 where voters_G is False",
            )
        numbers = np.asarray(part, dtype=np.float64)
        if (bad := voters_G & ~(np.abs(numbers) <= _LARGEST)).any():
            at = int(bad.argmax())
            self.refuse(
                f"{numbers[at]} for response {at} of group {number}",
                "finite numbers, which float32 can hold",
                "Look for a division by 0 (equal rewards have std 0), or a mean over responses without a vote, whose "
                "rewards may be nan: take it over rewards_G[voters_G]",
            )
        if (bad := ~voters_G & (numbers != 0)).any():  # nan is not 0
            at = int(bad.argmax())
            self.refuse(
                f"{numbers[at]} for response {at} of group {number}, which has no vote",
                "0 there",
                "Take statistics over rewards_G[voters_G], and end with np.where(voters_G, advantages, 0.0)",
            )
        return numbers


class LossHook(_Hook):
    """A loss: returns the loss of every token, with a gradient, and flags by name.

    Types, shapes and devices are compared in every call. Values and gradients are read in the first call alone, since
    reading them waits for the device.
    """

    called = "loss(inputs), with a dapo.algorithms.losses.LossInputs"

    def __init__(self, function: Callable[..., Any], setting: str, name: str, needs: frozenset[str]) -> None:
        """``needs``: of its ``Objective``."""
        super().__init__(function, setting, name)
        self.needs = needs
        self.names: set[str] | None = None  # of its flags, from the first call
        self.looked = False  # at values and gradients

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the loss of some tokens.

        Raises:
            HookError: the function raised, changed its inputs, or returned no loss [tokens] with flags [tokens].
        """
        look = not self.looked and _is_sound(inputs)
        given = self._with_own_gradient(inputs) if look else inputs
        versions = {name: tensor._version for name, tensor in _tensors(given)}
        result = self.call(given)
        for name, tensor in _tensors(given):
            if tensor._version != versions[name]:
                raise HookError(
                    f"{self.setting}: {self.name} changed inputs.{name} in place, which the run still reads. Compute a "
                    f"new tensor instead, or begin with inputs.{name}.clone()"
                )
        loss, flags = self._read(result, given)
        if look:
            self._look(loss, given)
        return loss, flags

    def hint(self, error: BaseException, *arguments: Any) -> str:
        own = self.name.partition(":")[2]
        if isinstance(error, KeyError) and error.args and error.args[0] not in arguments[0].extra:
            held = ", ".join(arguments[0].extra) or "nothing"
            return (
                f" (inputs.extra holds {held}: dapo.Objective({own}, reads={{'NAME': 'response'}}) names what it reads)"
            )
        missing = [name for name in ("entropy", "reference_logprobs") if getattr(arguments[0], name) is None]
        if "NoneType" not in str(error) or not missing:
            return ""
        named = {"entropy": "entropy", "reference_logprobs": "reference"}
        words = ", ".join(f"inputs.{name} is None unless needs has {named[name]!r}" for name in missing)
        return f" ({words}: dapo.Objective({own}, needs=frozenset({{...}})))"

    def _read(self, result: Any, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compare type, shape, dtype and device: nothing here waits for a device."""
        tokens = len(inputs.logprobs)
        what = f"(L, flags) with L of every token, unreduced, a tensor of shape [{tokens}]"
        if not isinstance(result, tuple) or len(result) != 2:
            self.refuse(_shown(result), what, "End with `return loss, {}`")
        loss, flags = result
        if not isinstance(loss, Tensor):
            self.refuse(f"{_shown(loss)} as L", what, "Compute it with torch from inputs.logprobs: it needs a gradient")
        if loss.shape != inputs.logprobs.shape:
            self.refuse(f"{_shown(loss)} as L", what, self._reshaping(loss, inputs))
        if not loss.is_floating_point() or torch.finfo(loss.dtype).eps > torch.finfo(inputs.logprobs.dtype).eps:
            wanted = str(inputs.logprobs.dtype).removeprefix("torch.")
            self.refuse(f"{_shown(loss)} as L", f"{wanted}", f"Compute in {wanted}, the type of inputs.logprobs")
        if loss.device != inputs.logprobs.device:
            self.refuse(
                f"L on {loss.device}", f"L on {inputs.logprobs.device}", "Make new tensors with torch.zeros_like(...)"
            )
        if inputs.logprobs.requires_grad and torch.is_grad_enabled() and not loss.requires_grad:
            self.refuse(
                "L with no gradient",
                "a loss that depends on inputs.logprobs",
                "Look for detach(), item(), numpy() or torch.no_grad() around inputs.logprobs",
            )
        self._read_flags(flags, inputs)
        return loss, flags

    def _reshaping(self, loss: Tensor, inputs: LossInputs) -> str:
        if loss.numel() == 1:
            return (
                "Leave out its mean() or sum(): dapo puts the weights of algorithm.loss.reduction on every token and "
                "sums them itself"
            )
        if loss.shape[:1] == (inputs.num_rows,):
            return "It has one number a response: give each token its response's with loss_R[inputs.rows]"
        return "Keep every token; where inputs.loss_mask is False any finite number will do, for it gets no weight"

    def _read_flags(self, flags: Any, inputs: LossInputs) -> None:
        what = f"flags by name, bool tensors of shape [{len(inputs.logprobs)}]"
        if not isinstance(flags, Mapping):
            self.refuse(f"{_shown(flags)} as flags", what, "End with `return loss, {}` if there are none")
        for name, flag in flags.items():
            if not isinstance(name, str) or name_problem(name):
                why = name_problem(name) if isinstance(name, str) else "is not text"
                self.refuse(f"a flag named {_shown(name)}, which {why}", what, "It becomes the metric custom/NAME")
            if not isinstance(flag, Tensor) or flag.dtype != torch.bool or flag.shape != inputs.logprobs.shape:
                move = "A flag marks tokens, such as inputs.logprobs > -0.1; its share of the loss tokens is recorded"
                self.refuse(f"{_shown(flag)} as the flag {name!r}", what, move)
        if self.names is not None and self.names != set(flags):
            self.refuse(
                f"the flags {_names(flags)}, and {_names(self.names)} before",
                "the same flags in every call",
                "Give torch.zeros_like(inputs.loss_mask) where one does not apply",
            )
        self.names = set(flags)

    def _with_own_gradient(self, inputs: LossInputs) -> LossInputs:
        """Return inputs whose gradients can be asked for without running the model's backward pass.

        The log-probabilities are copied, with the same gradient. An entropy without a gradient gets one of its own,
        which shows whether the loss wanted it.
        """
        if not (inputs.logprobs.requires_grad and torch.is_grad_enabled()):
            return inputs
        entropy = inputs.entropy
        if entropy is not None and "entropy" not in self.needs:
            entropy = entropy.detach().clone().requires_grad_()
        return replace(inputs, logprobs=inputs.logprobs.clone(), entropy=entropy)

    def _look(self, loss: Tensor, inputs: LossInputs) -> None:
        """Read values and gradients, once."""
        at_loss = torch.where(inputs.loss_mask, loss, 0.0)
        if (at := _first_bad(at_loss)) is not None:
            self.refuse(
                f"L of {float(loss.detach()[at])} at token {at}, whose inputs are finite",
                "finite numbers",
                "Bound what goes into exp(), and look for log(0) or a division by 0",
            )
        if not (inputs.logprobs.requires_grad and torch.is_grad_enabled()):
            return  # a pass for metrics: gradients are looked at in the first pass that has some
        wanted = [inputs.logprobs]
        if inputs.entropy is not None and inputs.entropy.requires_grad:
            wanted.append(inputs.entropy)
        try:
            by_logprobs, *by_entropy = torch.autograd.grad(at_loss.sum(), wanted, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if of_the_machine(error) is not None:
                raise
            self.refuse(
                f"L with no gradient ({_brief(error)})",
                "a loss whose gradient the learner can compute",
                "Leave backward() to the learner: it frees what the gradient is computed from",
            )
        if by_entropy and by_entropy[0] is not None and "entropy" not in self.needs:
            name = self.name.partition(":")[2]
            self.refuse(
                "L that depends on inputs.entropy, which has no gradient in this run",
                "an entropy that the objective names among its needs",
                f"Write dapo.Objective({name}, needs=frozenset({{'entropy'}})) for its gradient, or "
                "inputs.entropy.detach() for its number",
            )
        if by_logprobs is None and (not by_entropy or by_entropy[0] is None):
            self.refuse(
                "L with a gradient that does not come from inputs.logprobs",
                "a loss that depends on inputs.logprobs",
                "Compute the ratio as (inputs.logprobs - inputs.old_logprobs).exp()",
            )
        if by_logprobs is not None and (at := _first_bad(by_logprobs)) is not None:
            self.refuse(
                f"L whose gradient at token {at} is {float(by_logprobs[at])}",
                "a finite gradient by inputs.logprobs",
                "sqrt(0), 0 ** 0.5, log(0) and norm(0) are finite and their gradients are not. Put torch.where around "
                "what goes into them, not around what comes out",
            )
        self.looked = True


class ExtraHook(_Hook):
    """A maker of extra arrays: returns one mapping from names to arrays for each response."""

    called = "extra(rows, seeds), with all responses of an optimiser step and a seed for each"

    def __call__(self, rows: Sequence[StepRow], seeds: Sequence[int]) -> list[Extra]:
        """Make the extra arrays of one optimiser step.

        Raises:
            HookError: the function raised, or returned no list of mappings whose arrays span the tokens.
        """
        result = self.call(rows, seeds)
        move = "Return [{'NAME': array with one entry a token} for row in rows]"
        if not isinstance(result, list | tuple) or len(result) != len(rows):
            count = f"{len(result)} of them" if isinstance(result, list | tuple) else _shown(result)
            self.refuse(count, f"a list of mappings, one for each of {len(rows)} responses", move)
        for row, extra in zip(rows, result, strict=True):
            if not isinstance(extra, Mapping):
                self.refuse(_shown(extra), "a mapping from names to numpy arrays", move)
            if problem := extra_problem(extra, prompt=len(row.prompt_ids), response=len(row.token_ids)):
                raise HookError(f"{self.setting}: {self.name}: {problem}. {move}")
        return list(result)


def _shown(value: Any) -> str:
    """Return type and beginning of a value for a message; arrays by shape and dtype. Never raises."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')} (Tensor)"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)} and dtype {value.dtype}"
    if value is None:
        return "None (no `return` was reached)"
    if inspect.isgenerator(value):
        return "a generator"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = reprlib.repr(value)[:80]
    except Exception:
        text = "(cannot be shown)"
    kind = "the text" if isinstance(value, str) and type(value) is str else type(value).__name__
    return f"{kind} {text}"


def _is_numbers(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an array of real numbers of that shape, or a list that becomes one."""
    if isinstance(value, list) and all(isinstance(v, int | float | np.number) for v in value):
        value = np.array(value)
    return isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind in "fiu"


def _is_sound(inputs: LossInputs) -> bool:
    """Whether loss tokens exist and have finite inputs: a model's nan is not the loss's fault."""
    mask = inputs.loss_mask
    parts = (inputs.logprobs, inputs.old_logprobs, inputs.advantages)
    return bool(mask.any()) and all(bool(torch.isfinite(part.detach()[mask]).all()) for part in parts)


def _first_bad(values: Tensor) -> int | None:
    bad = ~torch.isfinite(values.detach())
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def _tensors(inputs: LossInputs) -> list[tuple[str, Tensor]]:
    found = [(name, getattr(inputs, name)) for name in LossInputs.__slots__]
    found += [(f"extra[{name!r}]", value) for name, value in inputs.extra.items()]
    return [(name, value) for name, value in found if isinstance(value, Tensor)]


def _other_verdicts() -> str:
    return ", ".join(f"Verdict.{verdict.name}" for verdict in Verdict if verdict is not Verdict.KEPT)


def _names(names: Any) -> str:
    return ", ".join(sorted(map(repr, names))) or "(none)"


def _brief(error: BaseException) -> str:
    try:
        return " ".join(str(error)[:2000].split())[:300]
    except Exception:
        return "(its message cannot be shown)"
