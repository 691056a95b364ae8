"""A worker process: runs verifiers on items it is sent. Started by ``dapo.rewards.pool``; imports no torch.

Talks over one connection. Everything is a pickled tuple:

    driver -> worker   setup, then batches: a list of (item id, verifier, pickled (prompt, completion))
    worker -> driver   ("ready", "") or ("failed", message), then (item id, outcome, time) for every item

An outcome is a dict of numbers, or a string that begins with the kind of failure. Only plain types travel back, so
nothing that user code returns can break the connection.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from dapo.contracts.types import Completion, Prompt
from dapo.rewards.function import describe_error, load_function, read_values

Outcome = dict[str, float] | str


@dataclass(frozen=True, slots=True)
class Verifier:
    """A verifier by its description, which is what travels to a worker."""

    kind: Literal["math", "task", "function"]
    name: str
    function: str = ""


def load_verifier(verifier: Verifier) -> Callable[[Prompt, Completion], Any]:
    """The callable a description stands for, with its imports done.

    Raises:
        RewardError: the user's function cannot be loaded.
    """
    if verifier.kind == "math":
        from dapo.rewards import math

        math.warm_up()
        return lambda prompt, completion: math.accuracy(completion.text, prompt.answer)
    if verifier.kind == "task":
        from dapo.rewards.task import task

        return task
    return load_function(verifier.function)


def run_item(function: Callable[[Prompt, Completion], Any], name: str, blob: bytes) -> Outcome:
    """One verdict. Whatever the function does short of ending the process becomes an outcome."""
    try:
        prompt, completion = pickle.loads(
            blob
        )  # a copy of its own for every item: nothing it changes is seen by others
        result = function(prompt, completion)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of user code too
        return f"exception: {describe_error(error)}"
    try:
        return read_values(result, name)
    except Exception as error:
        return str(error)[:400] if isinstance(error, ValueError) else f"exception: {describe_error(error)}"


def main(descriptor: int, lifeline: int) -> None:
    """Serve items until the driver closes the connection or dies."""
    for inherited in (descriptor, lifeline):
        os.set_inheritable(inherited, False)  # processes that user code starts must not hold them open
    _end_with_driver(lifeline)
    connection = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    verifiers: list[Verifier] = inbox.get()
    try:
        functions = [load_verifier(verifier) for verifier in verifiers]
    except BaseException as error:
        connection.send(("failed", str(error)[:2000]))
        return
    connection.send(("ready", ""))
    while True:
        for item, index, blob in inbox.get():
            outcome = run_item(functions[index], verifiers[index].name, blob)
            connection.send((item, outcome, time.monotonic()))


def _receive(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Move messages to the inbox. The end of the connection means that the driver is gone: leave at once."""
    while True:
        try:
            inbox.put(connection.recv())
        except BaseException:
            os._exit(0)


def _end_with_driver(lifeline: int) -> None:
    """Have the kernel end this process when the driver dies.

    The driver alone holds the other end of the pipe ``lifeline``, and nothing is ever written to it; when that end
    closes, the kernel raises SIGIO here, whose default action is to terminate. Unlike ``_receive``, that works while
    user code holds the interpreter lock.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
