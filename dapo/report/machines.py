"""machine.jsonl in words: what differs between two runs that should have been equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dapo.observe.text import number, utf8
from dapo.report.page_data import MachineView

LONGEST = 200
"""Characters of a value: the file may be anyone's."""
MOST = 50
"""Sessions that are shown, the last ones."""
_COMMIT = 12


def machine_of(record: Any) -> MachineView | None:
    """Return a line of the file as a view; None if it is malformed."""
    if not isinstance(record, dict) or type(record.get("step")) is not int or not 0 <= record["step"] < 2**31:
        return None
    began = record.get("time")
    return {
        "step": record["step"],
        "time": float(began) if isinstance(began, int | float) and 0 < began < 1e11 else None,
        "facts": [(what, utf8(value)[:LONGEST]) for what, value in _facts(record) if value],
    }


def without_repeats(machines: Iterable[MachineView]) -> list[MachineView]:
    """Sessions whose facts differ from those of the session before."""
    found: list[MachineView] = []
    for machine in machines:
        if not found or found[-1]["facts"] != machine["facts"]:
            found.append(machine)
    return found[-MOST:]


def in_one_line(machine: MachineView) -> str:
    """For a terminal."""
    return "; ".join(value if what in _ALONE else f"{what} {value}" for what, value in machine["facts"])


_ALONE = ("processor", "packages")


def _facts(record: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    versions = record.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    cores = record.get("cores")
    yield "processor", _text(record, "cpu") + (f", {cores} cores" if type(cores) is int else "")
    devices = record.get("accelerators")
    devices = [device for device in devices if isinstance(device, str)] if isinstance(devices, list) else []
    yield "accelerator", "; ".join(devices) or "none"
    memory = record.get("memory_gib")
    yield "memory", f"{number(memory)} GiB" if isinstance(memory, int | float) and 0 < memory < 1e9 else ""
    yield "threads", _text(record, "threads")
    yield "system", _text(record, "system")
    yield "engine", _text(record, "engine")
    yield "hosts", _hosts(record.get("hosts"))
    yield "packages", ", ".join(f"{name} {value}" for name, value in versions.items() if isinstance(value, str))
    commit, dirty = _text(record, "commit"), record.get("dirty")
    changed = ", with changes that are not committed" if dirty is True else ""
    yield "commit", f"{commit[:_COMMIT]}{changed}" if commit else ""


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def _hosts(found: Any) -> str:
    """``node-1: rank-0, engine-0; node-2: rank-1``."""
    machines: dict[str, list[str]] = {}
    for name, machine in found.items() if isinstance(found, dict) else ():
        if isinstance(name, str) and isinstance(machine, str):
            machines.setdefault(machine, []).append(name)
    return "; ".join(f"{machine}: {', '.join(names)}" for machine, names in machines.items())
