"""What the checks of a transport ask. A file of its own: every host imports it, and nothing more than it needs."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from dapo.errors import EngineError


class Stubborn(Exception):
    """Cannot be pickled, and says so only when it is."""

    def __reduce__(self):
        raise TypeError("no")


class Desk:
    """What the checks ask."""

    def __init__(self, name: str = "desk", broken: str = "") -> None:
        if broken:
            raise EngineError(broken)
        self.name, self.log = name, []

    def note(self, word: str) -> list[str]:
        self.log.append(word)
        return list(self.log)

    def echo(self, *values: Any) -> Any:
        return values

    def total(self, values: Any, more: int = 0) -> float:
        return float(np.sum(values)) + more

    def process(self) -> int:
        return os.getpid()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def fail(self, how: str) -> None:
        raise {"plain": EngineError("the desk is full"), "stubborn": Stubborn("a word of it")}[how]

    def bad_answer(self) -> Any:
        return threading.Lock()

    def meet(self, mine: str, other: str) -> str:
        """Put something down, and wait for what the other one puts down: both have to be at work."""
        with open(mine, "w") as out:  # a named pipe: opened when the other reads
            out.write(self.name)
        with open(other) as found:
            return found.read()

    def await_other(self, mine: str, other: str) -> str:
        with open(other) as found:
            read = found.read()
        with open(mine, "w") as out:
            out.write(self.name)
        return read

    def die(self, by: int) -> None:
        os.kill(os.getpid(), by)

    def leave(self, code: int) -> None:
        os._exit(code)

    def print(self, text: str) -> None:
        print(text)
