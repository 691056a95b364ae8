"""Names that people give and that become part of a metric's key: of rewards, of their numbers, of data sets."""

from __future__ import annotations

MAX_NAME = 80  # characters


def name_problem(name: str) -> str | None:
    """Return why a text cannot be a part of ``area/name``; None if it can."""
    if not name.strip():
        return "is empty"
    if name != name.strip():
        return "begins or ends with a blank"
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters, more than {MAX_NAME}"
    if "/" in name:
        return "has a slash, which separates the parts of a metric's key"
    if "<" in name or ">" in name:
        return "has an angle bracket, which marks a placeholder in a metric's key"
    if not name.isprintable():
        return "has a character that cannot be printed"
    return None


def reward_name_problem(name: str) -> str | None:
    """``name_problem``, and whether ``reward/NAME`` or ``reward/NAME_kept`` would be another metric; None: neither."""
    from dapo.metrics.glossary import GLOSSARY  # takes numpy along, which a recipe that is not there has no need of

    wrong = name_problem(name)
    if wrong is not None:
        return wrong
    if name.endswith("_kept"):
        return "ends in `_kept`, as the metrics over kept groups do"
    if name != "accuracy" and any(f"reward/{name}{suffix}" in GLOSSARY for suffix in ("", "_kept")):
        return f"is taken: `reward/{name}` is a metric of its own"
    return None
