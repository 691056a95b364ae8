"""Commands that continue or export a run, as they can be typed: from what its folder holds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dapo.config.yaml_files import RESOLVED, parse_yaml
from dapo.errors import DapoError
from dapo.observe.jsonl import write_atomically
from dapo.observe.run_files import read_regular
from dapo.observe.text import clean, shorten

GIVEN = "given.json"
"""In the folder of a run that a Python program started: the parts and arguments that it gave beside the recipe."""
_MOST_BYTES = 64 * 1024  # of that file
_LONGEST = 160  # characters of an argument


def resume_said(run: Path, change: str = "", program: str = "dapo", supervised: bool | None = None) -> str:
    """Return what continues a run, as it can be typed: a command, or the call of a run that a Python program started.

    Args:
        run: its folder.
        change: a setting to change, as KEY=VALUE.
        program: how dapo is called from a terminal.
        supervised: whether the run is; None: its recipe is read.
    """
    arguments = arguments_given(run)
    if arguments is None:
        command = "sft" if (_is_supervised(run) if supervised is None else supervised) else "train"
        return f"{program} {command} --resume {typed(run)} {change}".rstrip()
    if change:
        key, _, value = change.partition("=")
        arguments.append(f"**{{{key}: {value}}}" if key == "KEY" else f'**{{"{key}": "{value}"}}')
    folder = json.dumps(clean(str(run), newlines=False), ensure_ascii=False)
    return f"dapo.resume({', '.join([folder, *arguments])})"


def record_given(run: Path, arguments: Sequence[str], parts: dict[str, str]) -> None:
    """Write the arguments that ``dapo.resume`` needs, and the names of parts, to the folder of a new run."""
    write_atomically(run / GIVEN, json.dumps({**parts, "resume": list(arguments)}) + "\n")


def arguments_given(run: Path) -> list[str] | None:
    """Return the arguments that ``dapo.resume`` needs, such as ``rewards=[mine]``; None: no Python program started it.

    A folder may be anyone's, so the texts are made harmless.
    """
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(run / GIVEN, _MOST_BYTES))
        arguments = found.get("resume") if isinstance(found, dict) else None
        if isinstance(arguments, list) and all(isinstance(one, str) for one in arguments):
            return [shorten(clean(one, newlines=False).replace("`", ""), _LONGEST) for one in arguments]
    return None


def _is_supervised(run: Path) -> bool:
    try:
        recipe, _ = parse_yaml((run / RESOLVED).read_text("utf-8"), RESOLVED)
        section = recipe.get("run")
    except (OSError, ValueError, DapoError):  # no run yet, or a damaged one: the command will say so
        return False
    return isinstance(section, dict) and section.get("stage") == "sft"


def export_said(run: Path, step: int) -> str:
    """Return ``dapo export`` of a checkpoint."""
    return f"dapo export {typed(run)} MODEL_FOLDER --step {step}"


def typed(path: Path) -> str:
    """Return a path as a shell takes it, and as a terminal may show it."""
    return shlex.quote(clean(str(path), newlines=False))
