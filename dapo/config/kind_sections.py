"""Sections with kinds while settings are laid on top of each other.

The options of a section belong to its kind. Where a layer above changes the kind, an option of the kind below that the
new one lacks is taken out, and returned: the caller refuses it or reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from dapo.config.settings import REQUIRED, kinds_at, lookup, options_of, settings, value_at


def spelled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings in which each kind that is written as a plain name is a section with the key ``kind``."""
    result = deepcopy(dict(given))
    for path in _sections():
        above, _, name = path.rpartition(".")
        section = value_at(result, above)
        if isinstance(section, dict) and name in section:
            section[name] = spelled_value(path, section[name])
    return result


def spelled_value(path: str, value: Any) -> Any:
    """Return ``{"kind": value}`` for a plain name at the path of a section with kinds; any other value as it is."""
    return {"kind": value} if isinstance(value, str) and kinds_at(path) else value


def take_out(
    below: Mapping[str, Any], above: Mapping[str, Any], *, defaults_only: bool = False
) -> tuple[dict[str, Any], list[tuple[str, Any, str]]]:
    """Take the options out of ``below`` that the kinds in ``above`` do not have.

    Args:
        below: nested settings, spelled.
        above: those that are laid on top, spelled.
        defaults_only: leave what is not at its default.

    Returns:
        What is left of ``below``; and of each option that was taken out its path, its value, and the new kind.
    """
    result, gone = deepcopy(dict(below)), []
    for path in _sections():
        old, new = value_at(result, path), value_at(above, path)
        if not isinstance(old, dict) or not isinstance(new, Mapping) or not isinstance(kind := new.get("kind"), str):
            continue
        allowed = {"kind", *options_of(path, kind)}
        for name in [name for name in old if name not in allowed]:
            setting = lookup(f"{path}.{name}")
            default = REQUIRED if setting is None else setting.default
            if not defaults_only or old[name] == default:
                gone.append((f"{path}.{name}", old.pop(name), kind))
    return result, gone


def _sections() -> list[str]:
    return [s.path for s in settings().values() if s.section and s.kinds]
