"""The text of an imported recipe: settings in the schema's order, each with its origin, and what has no place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dapo.config.faults import visible
from dapo.config.secret_text import redact_text
from dapo.config.secrets import redact
from dapo.config.settings import settings
from dapo.importing.reading import Apart, Listed, Reading

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "y", "n", "nan", "inf"}
_WIDTH = 46
ARGUMENTS = {"model.path": "model.path=NAME_OR_FOLDER", "data.train": "data.train.0.path=FILE"}
"""How a command gives what the source does not hold."""


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted settings as sections within sections."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        here = result
        for section in sections:
            here = here.setdefault(section, {})
        here[last] = value
    return result


def recipe_text(r: Reading, missing: Sequence[str], *, whole: bool) -> str:
    """Return the recipe with a comment on every line that sets something; ``whole``: list what is off, too."""
    keys = [key for key in settings() if key in r.lines and key not in missing]
    lines = [
        *(f"# CAUTION: {_said(caution)}" for caution in r.cautions),
        f"# Made by `dapo import` of {_said(r.source.name)}, a configuration of {r.title} ({r.source.form}).",
        "# Look at it with `dapo check`. What is not here, or means something else, is listed at the end.",
        *([f"# It also read {_said(', '.join(r.source.files))}."] if r.source.files else []),
        "preset: dapo                                  # what no line below sets",
    ]
    for key in missing:
        why = r.lines[key].comment if key in r.lines else f"{r.source.name} does not say it"
        lines.append(f"# {key}: FILL IN. {_said(why)}; or give {ARGUMENTS[key]} with the command")
    open_sections: list[str] = []
    for key in keys:
        *sections, last = key.split(".")
        shared = 0
        while shared < min(len(sections), len(open_sections)) and sections[shared] == open_sections[shared]:
            shared += 1
        if not sections or not shared:
            lines.append("")
        lines += [f"{'  ' * depth}{sections[depth]}:" for depth in range(shared, len(sections))]
        open_sections = sections
        lines += _setting(r, key, last, "  " * len(sections))
    lines += ["", *_ending(r, whole)]
    return "\n".join(lines) + "\n"


def _setting(r: Reading, key: str, name: str, indent: str) -> list[str]:
    line = r.lines[key]
    value, comment = redact(line.value, key), _said(line.comment)
    if line.fill_in:
        value, comment = "FILL_IN", f"FILL IN: {comment}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        fields = [", ".join(f"{field}: {_scalar(inside)}" for field, inside in item.items()) for item in value]
        items = [f"{indent}  - {{{inside}}}" for inside in fields]
        return [f"{indent}{name}:", *(f"{item:<{_WIDTH - 1}} # {comment}" for item in items)]
    text = f"{indent}{name}: {_scalar(value)}"
    return [f"{text:<{_WIDTH - 1}} # {comment}" if comment else text]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _said(text: str) -> str:
    """Return a source's text on one line of a comment, which it can neither end nor use to steer a terminal."""
    return visible(redact_text(" ".join(text.split())), 400)


def _ending(r: Reading, whole: bool) -> list[str]:
    lines: list[str] = []
    if r.said:
        lines += ["# What means something else here:", *(f"# - {_said(text)}" for text in r.said)]
    for kind in Listed:
        entries = [entry for entry in r.apart if entry.kind is kind]
        if entries and kind is Listed.IDLE and not whole:
            lines += ["#", f"# {len(entries)} more settings: {kind.value} (`dapo import --verbose` lists them)."]
        elif entries:
            lines += ["#" if lines else "", f"# {kind.value[0].upper()}{kind.value[1:]}:", *map(_entry, entries)]
    return [line for line in lines if line]


def _entry(entry: Apart) -> str:
    key, equals, value = entry.what.partition(" = ")
    what = f"{key}{equals}{redact(value, key.strip()) if equals else ''}"
    return f"# - {_said(what)[:160]}: {_said(entry.reason)}"
