"""All callbacks of a run as one that cannot fail: trackers, and those of the user's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dapo.errors import CallbackError, RecipeError, first_line
from dapo.types.batch import Group, Metrics
from dapo.types.evaluation import EvaluationResult
from dapo.types.events import (
    Callback,
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    StartEvent,
    StepEvent,
    sealed,
)

State = dict[str, Any]
METHODS = ("start", "step", "evaluation", "checkpoint", "end")


@dataclass(slots=True)
class _Listener:
    name: str
    callback: Callback
    started: bool = False
    refused: bool = False  # its state could not be saved, which was said


class Callbacks:
    """Sends each event to every callback.

    One that raises is named once and left out from then on, unless it asks for the run to end with it. A failure in its
    ``start`` is reported with ``install`` where a package is missing.
    """

    def __init__(self, callbacks: Sequence[Callback] = (), warn: Callable[[str], None] = print) -> None:
        self._warn = warn
        self._listeners: list[_Listener] = []
        for callback in callbacks:
            name = callback.name or type(callback).__name__
            taken = {listener.name for listener in self._listeners}
            unique = next(n for i in range(1, 10_000) if (n := name if i == 1 else f"{name}-{i}") not in taken)
            self._listeners.append(_Listener(unique, callback))
        self._step = 0
        self._failed: CallbackError | None = None  # that ends the run when the checkpoint at hand is written

    def start(self, event: StartEvent, states: State | None = None) -> None:
        """Begin the run; ``states`` is what ``state`` gave to the checkpoint that is resumed.

        Raises:
            RecipeError: a callback's state could not be saved in a checkpoint.
        """
        self._step = event.first_step
        for listener in list(self._listeners):
            state = (states or {}).get(listener.name, {})
            own = replace(event, state=state if isinstance(state, dict) else {})
            self._guard(listener, listener.callback.start, own, starting=True)
            if listener in self._listeners:
                listener.started = True
                _refuse_unsavable(listener)

    def step(self, step: int, metrics: Metrics, finished: Sequence[Group]) -> None:
        """Call back after a recorded step."""
        self._step = step
        if self._listeners:
            self._send("step", StepEvent(step, sealed(metrics), sealed(finished) if self._texts else ()))

    def evaluation(self, step: int, result: EvaluationResult) -> None:
        """Call back after the held-out problems were answered."""
        if self._listeners:
            self._send(
                "evaluation", EvaluationEvent(step, sealed(result.metrics), sealed(result.sets) if self._texts else {})
            )

    def checkpoint(self, step: int, folder: Path) -> None:
        """Tell callbacks of a checkpoint that was written.

        Raises:
            CallbackError: the state of a callback that wants the run to end with it is not in there.
        """
        self._send("checkpoint", CheckpointEvent(step, folder))
        if self._failed is not None:
            raise self._failed

    def end(self, finished: bool, why: str = "") -> None:
        """Tell callbacks that the run ended, if it began for them. A second call does nothing."""
        listeners, event = [one for one in self._listeners if one.started], EndEvent(self._step, finished, why)
        for listener in listeners:
            try:
                listener.callback.end(event)
            except (Exception, GeneratorExit) as error:  # the run has ended anyway
                self._warn(f"{listener.name} failed at the end of the run ({type(error).__name__}: {error})")
        self._listeners = []

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Report an end by an exception; the caller reports any other end."""
        try:
            yield
        except BaseException as error:
            self.end(False, f"{type(error).__name__}: {error}")
            raise

    def state(self) -> State:
        """Return the state of each callback by name, for the checkpoint.

        A state that cannot be saved costs no checkpoint: it is left out and named once. If its callback wants the run
        to end with it, ``checkpoint`` raises after the save.
        """
        states: State = {}
        for listener in list(self._listeners):
            try:
                states[listener.name] = self._guard(listener, listener.callback.state)
            except CallbackError as error:
                self._failed = error
        for listener in self._listeners:
            if (why := _unsavable(states.get(listener.name))) is not None:
                del states[listener.name]
                self._leave_out(listener, why)
        return {name: state for name, state in states.items() if state}

    def _leave_out(self, listener: _Listener, why: str) -> None:
        told = f"the callback {listener.name}: state() returned {why}; the checkpoint is written without it"
        if listener.callback.on_error == "stop":
            self._failed = CallbackError(f"{told}, and the run ends, as its on_error asks")
        elif not listener.refused:
            self._warn(f"{told}, and a resume begins this callback without its state")
        listener.refused = True

    @property
    def _texts(self) -> bool:
        return any(listener.callback.needs_texts for listener in self._listeners)

    def _send(self, method: str, event: Event) -> None:
        for listener in list(self._listeners):
            self._guard(listener, getattr(listener.callback, method), event)

    def _guard(self, listener: _Listener, call: Callable[..., Any], *given: Event, starting: bool = False) -> Any:
        try:
            return call(*given)
        # Whatever it raises, training goes on, unless its author wants otherwise. A GeneratorExit would pass for the
        # end of the steps by their caller.
        except (Exception, GeneratorExit) as error:
            self._listeners.remove(listener)
            told = f"{type(error).__name__}: {error}"
            if listener.callback.on_error == "stop":
                raise CallbackError(
                    f"the callback {listener.name} failed ({told}), and wants the run to end then"
                ) from error
            if starting and isinstance(error, ImportError):
                install = getattr(listener.callback, "install", "")
                why, move = _missing(listener.name, error, install)
                self._warn(f"{listener.name} {why}; training goes on without it. {move}".rstrip())
            elif starting:
                self._warn(f"{listener.name} could not start ({told}); training goes on without it.")
            else:
                self._warn(f"{listener.name} failed ({told}) and is left out from now on; training goes on.")


def _missing(name: str, error: ImportError, install: str) -> tuple[str, str]:
    """Return which module a tracker lacks, its own or one that it imports, and the next move."""
    module = error.name or ""
    if not isinstance(error, ModuleNotFoundError) or not module:
        return f"cannot be imported ({error})", install
    if module.partition(".")[0] == name:
        return f"is not installed ({error})", install
    return f"needs the module {module}, which is not installed", f"Install that module, or {name} again."


def _refuse_unsavable(listener: _Listener) -> None:
    """Look at a callback's first state before training; one that cannot give it yet is asked at the first checkpoint.

    Raises:
        RecipeError: no checkpoint could hold it.
    """
    try:
        state = listener.callback.state()
    except Exception:
        return
    if (why := _unsavable(state)) is not None:
        raise RecipeError(
            f"the callback {listener.name}: state() returned {why}. Return a dict of what JSON can hold (text, "
            "numbers, lists, dicts, None) and arrays; a set becomes sorted(...), an object its fields"
        )


def _unsavable(state: object) -> str | None:
    """Return why a checkpoint cannot hold a state; None: it can."""
    if state is None:
        return None
    if not isinstance(state, dict):
        return f"a {type(state).__name__}, expected a dict"
    try:
        text = json.dumps(state, default=_array, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"something that no checkpoint can hold ({first_line(error)})"
    return "the key '__array__', which checkpoints use themselves" if '"__array__":' in text else None


def _array(value: object) -> None:
    """Accept arrays of numbers or text, which are saved beside the JSON."""
    if not (isinstance(value, np.ndarray) and value.dtype.kind in "biufcSU"):
        raise TypeError(f"an object of type {type(value).__name__}")


class _Function(Callback):
    """A plain function as a callback: it gets every event."""

    def __init__(self, function: Callable[[Event], object]) -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def _call(self, event: Any) -> None:
        self._function(event)

    start = step = evaluation = checkpoint = end = _call


def as_callback(given: object) -> Callback:
    """Return a callback made of an object, a class that takes no arguments, or a function of one event.

    Raises:
        RecipeError: it is nothing of that.
    """
    if isinstance(given, type):
        given = given()
    if isinstance(given, Callback):
        return given
    if any(callable(getattr(given, method, None)) for method in METHODS):
        raise RecipeError(
            f"the callback {type(given).__name__} has the methods of one, and is no dapo.Callback: write "
            f"`class {type(given).__name__}(dapo.Callback)`"
        )
    if callable(given):
        return _Function(given)
    raise RecipeError(
        f"{type(given).__name__} is no callback: give an object of a class derived from dapo.Callback, or a function "
        "of one argument, the event"
    )
