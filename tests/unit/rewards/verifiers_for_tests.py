"""Reward functions that behave badly, each in its own way. Imported by worker processes of the tests."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path


def right(prompt, completion):
    return completion.text == prompt.answer


def numbered(prompt, completion):
    return {"accuracy": 1.0, completion.text: 1.0}


def obey(prompt, completion):
    """Do what the response says: one function, so that one batch mixes every kind of misbehaviour."""
    return ORDERS[completion.text](prompt, completion)


def hang(prompt, completion):
    while True:
        time.sleep(0.01)


def hang_in_c(prompt, completion):
    """Holds the interpreter lock for ever: no thread of the worker can run."""
    return re.match(r"(a+)+$", "a" * 64 + "b")


def gate(prompt, completion):
    """Waits until somebody opens the pipe at its other end."""
    with open(prompt.extra["gate"]) as pipe:
        pipe.read()
    return 1.0


def crash(prompt, completion):
    os._exit(7)


def killed(prompt, completion):
    """Killed as from outside: always, or once where the prompt names a file that says it was."""
    mark = Path(prompt.extra["mark"]) if "mark" in prompt.extra else None
    if mark is None or not mark.exists():
        if mark is not None:
            mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


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


def connection() -> int:
    """The descriptor over which the worker talks to the driver."""
    return int(sys.argv[1])


def raw(body, length=None):
    """Write a frame, with a length that may lie, past everything that would check it."""
    os.write(connection(), struct.pack("!Q", len(body) if length is None else length) + body)


def huge_header(prompt, completion):
    raw(b"x", 2 << 30)
    return 1.0


def half_a_message(prompt, completion):
    """Swallows the worker's own answer, and its connection stays open."""
    raw(b"{", 1 << 19)
    return 1.0


class Pwned:
    def __reduce__(self):
        return (exec, ("import os; os.environ['PWNED_DRIVER'] = '1'",))


def evil_pickle(prompt, completion):
    raw(pickle.dumps((Pwned(), 1, 2)))
    return 1.0


def forged(**message):
    def forge(prompt, completion):
        raw(json.dumps([message]).encode())
        return 1.0

    return forge


def brackets(prompt, completion):
    raw(b"[" * (1 << 19))
    return 1.0


def flood(prompt, completion):
    """Never stops sending what is no message."""
    while True:
        os.write(connection(), bytes(1 << 16))


def future(prompt, completion):
    """Claims that it ended in a thousand years, so that a later item would have until then; then hangs."""
    time.monotonic = lambda: 3e10
    return 1.0


def memory(prompt, completion):
    """Takes 2 GiB, page by page."""
    kept = [bytearray(1 << 20) for _ in range(2048)]
    return float(len(kept))


SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


def child(folder, **options):
    """Start a process that outlives its parent if nobody minds, and note its id."""
    process = subprocess.Popen(SLEEPER, **options)
    (folder / str(process.pid)).touch()


def orphan(folder):
    """A daemon: twice forked, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        child(folder)
        os._exit(0)
    os.wait()


ORDERS = {
    "one": lambda p, c: 1,
    "zero": lambda p, c: 0,
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
    "gate": gate,
    "crash": crash,
    "killed": killed,
    "segfault": segfault,
    "fail": fail,
    "leave": leave,
    "noisy": noisy,
    "mutate": mutate,
    "slash": lambda p, c: {"accuracy": 1.0, "len/mean": 2.0},
    "empty key": lambda p, c: {"accuracy": 1.0, "": 2.0},
    "blank key": lambda p, c: {"accuracy": 1.0, " ": 2.0},
    "newline key": lambda p, c: {"accuracy": 1.0, "a\nb": 2.0},
    "raw": lambda p, c: {"accuracy": 1.0, "raw": 2.0},
    "shaped": lambda p, c: {"accuracy": 1.0, "shaped_mean": 2.0},
    "kept": lambda p, c: {"accuracy": 1.0, "format_kept": 2.0},
    "placeholder": lambda p, c: {"accuracy": 1.0, "<name>": 2.0},
    "surrogate key": lambda p, c: {"accuracy": 1.0, "\ud800": 2.0},
    "escape key": lambda p, c: {"accuracy": 1.0, "\x1b[2J": 2.0},
    "long key": lambda p, c: {"accuracy": 1.0, "k" * 500: 2.0},
    "beyond": lambda p, c: {"accuracy": 1.0, "size": 1e300},
    "surrogate error": lambda p, c: {}["\ud800"],
    "huge header": huge_header,
    "half a message": half_a_message,
    "evil pickle": evil_pickle,
    "not json": forged(),
    "brackets": brackets,
    "other item": forged(type="done", item=-1, outcome={"accuracy": 1.0}, answer=None, time=0.0),
    "no failure": forged(type="failed", error="no"),
    "flood": flood,
    "future": future,
    "memory": memory,
}


def grade_or_hang(text):
    while text == "hang":
        time.sleep(0.05)
    return 1.0


def grade(reply: str) -> float:
    return float("0.75" in reply)
