"""Parts of which one takes the card with it. Their child imports no torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from benchmarks.gpu.plan import Part


def tidy(device):
    return True


def find_device(wanted):
    return ("cpu", "") if Path(os.environ["ASHES"]).exists() else ("cuda", "Card of Paper 3000")


def why_no_card():
    return "burnt"


def good(room):
    room.note("on the card", room.on_card, main=True)


def burns(room):
    Path(os.environ["ASHES"]).touch()
    os.kill(os.getpid(), signal.SIGSEGV)


PLAN = tuple(
    Part(name, "check", 30.0, f"shows {name}", f"burning_for_tests:{target}")
    for name, target in (("good", "good"), ("burns", "burns"), ("behind", "good"), ("last", "good"))
)
