"""Parts that end in every way there is. Their child imports no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from benchmarks.gpu.plan import Part
from benchmarks.gpu.room import Skipped


def find_device(wanted):
    return ("cpu", "") if wanted == "cpu" or "NO_PAPER" in os.environ else ("cuda", "Card of Paper 3000")


def why_no_card():
    return "no paper"


def tidy(device):
    return True


def good(room, value="1"):
    room.note("given", float(value), "m")
    room.expect("within", float(value), at_most=10.0)


def reads(room):
    room.note("read", room.found("good", "given") * 2)


def bad(room):
    room.expect("too large", 3.0, at_most=2.0)
    room.expect("not a number", float("nan"), at_most=2.0)
    room.note("after it", 1)


def raises(room):
    room.note("before it", 1)
    raise RuntimeError("the kernel\ndoes not like | this")


def process(room):
    room.note("process", os.getpid())


def skips(room):
    raise Skipped("no such thing here")


def killed(room):
    room.note("last words", 1)
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(room):
    room.note("before the end", subprocess.Popen(["sleep", "1000"]).pid)
    time.sleep(1000)


def _part(name, seconds=30.0, target=None, **options):
    return Part(name, "check", seconds, f"shows {name}", f"parts_for_tests:{target or name}", **options)


PLAN = (
    _part("good", arguments=(("value", "7"),)),
    _part("bad"),
    _part("raises"),
    _part("killed"),
    _part("reads"),
    _part("spoils", target="process", spoils=True),
    _part("afterwards", target="process"),
    _part("needs", needs=("no_such_module",)),
    _part("skips"),
    _part("hangs", seconds=8.0),
    _part("late", seconds=1.0),
)
