"""The process that runs parts, one after the other, and tells its parent of each row at once.

It ends when its parent does, after an error that leaves the card unusable, and after a part that leaves memory or state
behind: the parent then starts another one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import Part
from benchmarks.gpu.room import Room, Row, Skipped

UNUSABLE = 3  # exit code: the next part needs a process of its own
_RAN = ("passed", "failed", "error")
LEAST_SECONDS = 4.0  # a part is not begun with less


def run_parts(
    parts: Sequence[Part],
    device: str,
    ends: float,
    tell: Callable[[Row], None],
    before: Sequence[Row],
    tidy: Callable[[str], bool],
) -> None:
    """Run ``parts`` in their order until ``ends`` (``time.monotonic()``); ``tell`` hears of everything at once."""
    known = list(before)

    def write(part: Part, row: Row) -> None:
        known.append({"part": part.name, **row})
        if device != "cpu" or not row.get("rate"):
            tell({"event": "row", "part": part.name, **{key: value for key, value in row.items() if key != "rate"}})

    for part in parts:
        tell({"event": "start", "part": part.name})
        began = time.monotonic()
        room = Room(
            device, Path(), min(ends, began + part.limit(device != "cpu")), lambda row, p=part: write(p, row), known
        )
        status, said = _run(part, room)
        unusable = status in _RAN and (part.spoils or not tidy(device))
        row = {"event": "end", "part": part.name, "status": status, "said": said, "unusable": unusable}
        tell({**row, "seconds": round(time.monotonic() - began, 2)})
        if unusable:
            os._exit(UNUSABLE)  # an ordinary exit would ask the card once more


def _run(part: Part, room: Room) -> tuple[str, str]:
    """Status and what there is to say."""
    if part.card and not room.on_card:
        return "not shown", f"without a card: {part.card}"
    if missing := [name for name in part.needs if not installed(name)]:
        return "skipped", f"not installed here: {', '.join(missing)}"
    if room.left < LEAST_SECONDS:
        return "not reached", "the time was over"
    try:
        with tempfile.TemporaryDirectory(prefix="dapo-gpu-") as folder:
            room.folder = Path(folder)
            call(part, room)
    except Skipped as skipped:
        return "skipped", str(skipped)
    except Exception as error:  # whatever it is: the parts behind it are run all the same
        traceback.print_exc()
        return "error", f"{type(error).__name__}: {str(error).strip()[:600]}"
    return ("failed", "; ".join(room.failed)) if room.failed else ("passed", "")


def call(part: Part, room: Room) -> None:
    """The part's own function, as pytest calls it too."""
    module, _, name = part.target.partition(":")
    getattr(importlib.import_module(module), name)(room, **part.keywords)


def installed(module: str) -> bool:
    """Whether ``module`` could be imported; nothing is but its parent packages."""
    if module in sys.modules:
        return sys.modules[module] is not None
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(module) is not None
    return False


def tidy(device: str) -> bool:
    """Give memory back; False where the card does not answer any more."""
    gc.collect()
    if device == "cpu":
        return True
    import torch

    try:
        torch.cuda.synchronize()
        # each stream that products ran on keeps some 32 MiB, and every engine records its graphs on one of its own
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    except Exception:
        traceback.print_exc()
        return False
    return True


def warm(modules: Sequence[str]) -> None:
    """Import ``modules``. What goes wrong is the parts' to tell, each of its own."""
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def find_device(wanted: str) -> tuple[str, str]:
    """Device and the card's name ("" without one)."""
    import torch

    if wanted == "cpu" or not torch.cuda.is_available():
        return "cpu", ""
    return "cuda", torch.cuda.get_device_name()


def why_no_card() -> str:
    """What keeps torch from a card, in its own words: a build for CPUs, no driver, or one that is too old for it."""
    import torch

    try:
        torch.cuda.init()
    except Exception as error:  # torch's kinds differ by what is missing
        return f"torch {torch.__version__}: {str(error).strip().partition(chr(10))[0]}"
    return f"torch {torch.__version__} counts {torch.cuda.device_count()} devices"


def _end_with_parent() -> None:
    """The parent holds the other end of our standard input: when that closes, it is gone."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os._exit(1)


def main() -> None:
    """``python -m benchmarks.gpu.child REPORT_FD``; standard input's first line says what to do."""
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    began = time.monotonic()
    plan = importlib.import_module(order["plan"])
    wanted = [part for name in order["parts"] for part in plan.PLAN if part.name == name]
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as report:

        def tell(row: Row) -> None:
            report.write(json.dumps(row) + "\n")

        warm(getattr(plan, "WARM", ()))
        device, card = getattr(plan, "find_device", find_device)(order["device"])  # tests bring devices of their own
        why = "" if card or order["device"] == "cpu" else getattr(plan, "why_no_card", why_no_card)()
        tell({"event": "hello", "device": device, "card": card, "why": why})
        with open(sys.stdin.readline().strip(), "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        ends = began + order["seconds"][not card]
        run_parts(wanted, device, ends, tell, order["before"], getattr(plan, "tidy", tidy))


if __name__ == "__main__":
    main()
