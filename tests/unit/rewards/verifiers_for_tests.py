"""Reward functions that behave badly, each in its own way. Imported by worker processes of the tests."""

from __future__ import annotations

import os
import re
import sys
import time


def right(prompt, completion):
    return completion.text == prompt.answer


def obey(prompt, completion):
    """Do what the response says: one function, so that one batch mixes every kind of misbehaviour."""
    return ORDERS[completion.text](prompt, completion)


def hang(prompt, completion):
    while True:
        time.sleep(0.01)


def hang_in_c(prompt, completion):
    """Holds the interpreter lock for ever: no thread of the worker can run."""
    return re.match(r"(a+)+$", "a" * 64 + "b")


def crash(prompt, completion):
    os._exit(7)


def segfault(prompt, completion):
    import ctypes

    ctypes.string_at(0)


def fail(prompt, completion):
    raise ValueError("no\nsuch answer")


def leave(prompt, completion):
    sys.exit(3)


def noisy(prompt, completion):
    for _ in range(100):
        print("\x00 noise " * 1000)
        print("\x00 noise " * 1000, file=sys.stderr)
    os.write(1, b"more noise")
    sys.stdout.flush()
    return 1.0


def mutate(prompt, completion):
    """Changes whatever it was given; a later call must not see it."""
    if "seen" in prompt.extra or len(prompt.extra["list"]) != 1:
        return "saw an earlier call's change"
    prompt.extra["seen"] = True
    prompt.extra["list"].append(2)
    completion.token_ids[:] = 0
    return 1.0


class Hostile:
    def __float__(self):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")

    def __reduce__(self):
        raise RuntimeError("cannot be pickled")


ORDERS = {
    "one": lambda p, c: 1,
    "true": lambda p, c: True,
    "half": lambda p, c: 0.5,
    "numpy": lambda p, c: __import__("numpy").float32(1.0),
    "dict": lambda p, c: {"accuracy": 1.0, "format": 0.25},
    "nan": lambda p, c: float("nan"),
    "inf": lambda p, c: float("inf"),
    "none": lambda p, c: None,
    "text": lambda p, c: "1.0",
    "seven": lambda p, c: 7,
    "minus": lambda p, c: -0.5,
    "huge text": lambda p, c: "x" * 50_000_000,
    "huge number": lambda p, c: 10**10_000,
    "huge dict": lambda p, c: {str(i): i for i in range(100_000)},
    "no accuracy": lambda p, c: {"format": 1.0},
    "odd key": lambda p, c: {"accuracy": 1.0, 3: 1.0},
    "function": lambda p, c: lambda: 1,
    "hostile": lambda p, c: Hostile(),
    "hang": hang,
    "hang in c": hang_in_c,
    "crash": crash,
    "segfault": segfault,
    "fail": fail,
    "leave": leave,
    "noisy": noisy,
    "mutate": mutate,
}
