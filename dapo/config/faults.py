"""From what is wrong with a recipe to one message: key, value, what was expected, the nearest right name, the line."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dapo.config.peer_names import apart_hint, peer_hint
from dapo.config.secrets import redact
from dapo.config.section import Section
from dapo.config.settings import REQUIRED, generic, kinds_at, lookup, options_of, settings, value_at
from dapo.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a recipe."""

    path: str  # the key, or "" for the recipe as a whole
    message: str  # what was expected and the next move
    value: Any = REQUIRED  # what was given; REQUIRED: nothing


Broken = Iterator[tuple[str, str]]
"""The key of each rule that a recipe breaks, and a sentence: what is expected, and the next move."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of settings, to name the place in a message."""

    name: str = "the recipe"  # the file, for the headline
    lines: Mapping[str, int] | None = None  # line of each key in that file
    overrides: frozenset[str] = frozenset()  # keys set on the command line

    def place(self, path: str) -> str:
        """ "override", "line 12", or "" when the value is a default or from the preset."""
        lines = self.lines or {}
        section = path.rpartition(".")[0]
        if any(path == key or path.startswith(f"{key}.") for key in self.overrides):
            return "override"
        if path in lines:
            return f"line {lines[path]}"
        return f"in the section of line {lines[section]}" if section in lines else ""


_LONGEST = 1500  # characters of one problem, which may quote what was given


def refuse(problems: Sequence[Problem], origin: Origin) -> RecipeError:
    """One error that lists every problem."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"{visible(origin.name)} was refused: {count}"]
    for problem in problems:
        head = visible(problem.path, 120)
        if problem.path and problem.value is not REQUIRED:
            head += f": {brief(redact(problem.value, problem.path))}"
        place = origin.place(problem.path) if problem.path else ""
        head += f"   ({place})" if place and head else ""
        said = problem.message if len(problem.message) <= _LONGEST else problem.message[: _LONGEST - 3] + "..."
        lines += ["", f"  {head}", f"    {said}"] if head else ["", f"  {said}"]
    return RecipeError("\n".join(lines))


def brief(value: Any) -> str:
    """``written``, shortened."""
    text = written(value)
    return text if len(text) <= 60 else text[:57] + "..."


def written(value: Any) -> str:
    """Return a value in a recipe's notation; characters that could steer a terminal are escaped."""
    if isinstance(value, (list, tuple)):
        value = list(value)
    elif isinstance(value, Section):
        value = value.model_dump(mode="json")
    try:
        return visible(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):  # keys that are no names, a mapping within itself
        return visible(str(value))


def visible(text: str, most: int | None = None) -> str:
    """Return an untrusted text for a message: unprintable characters escaped, at most ``most`` characters of it."""
    if most is not None and len(text) > most:
        text = text[: most - 3] + "..."
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def from_pydantic(error: ValidationError, given: Mapping[str, Any]) -> list[Problem]:
    """Return one problem per key of the settings ``given``. (A union reports once per member; they are joined.)"""
    found: dict[str, Problem] = {}
    unknown = 0
    for entry in error.errors(include_url=False):
        path = _path(entry["loc"])
        if entry["type"] == "union_tag_invalid" or (entry["type"] == "union_tag_not_found" and _is_dict(entry)):
            path += ".kind"  # of a section with kinds
        if entry["type"] == "extra_forbidden":
            for key, value in _leaves(path, entry["input"]):
                kind = value_at(given, f"{key.rpartition('.')[0]}.kind", None)
                unknown += 1
                why = unknown_key(key, kind) if unknown <= _MOST_SUGGESTIONS else "no such key"
                found.setdefault(key, Problem(key, why, value))
        elif entry["type"] == "missing" and (setting := lookup(path)) and path.endswith(f"{entry['loc'][-1]}"):
            such_as = f", such as {_SUCH_AS[path]}" if path in _SUCH_AS else ""
            found.setdefault(
                path, Problem(path, f"missing, and it has no default: {setting.expected}{such_as}. {setting.doc}")
            )
        else:
            value = value_at(given, path, entry["input"])
            found.setdefault(path, Problem(path, _wrong_value(path, value, entry["msg"]), value))
    return list(found.values())


def _is_dict(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry["input"], dict)


def _path(loc: Iterable[str | int]) -> str:
    """Return the key of a pydantic location: names of union members and positions inside a value are left out."""
    path = ""
    for part in loc:
        if part in kinds_at(path):
            continue
        longer = f"{path}.{part}" if path else str(part)
        setting = lookup(path)
        inside_a_value = setting is not None and not setting.section
        if inside_a_value:
            return path
        path = longer
    return path


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return the single settings of a pasted block, so that a peer's block is answered key by key."""
    if not isinstance(value, dict) or not value:
        return [(path, value)]
    return [leaf for k, v in value.items() for leaf in _leaves(f"{path}.{k}", v)]


def _wrong_value(path: str, value: Any, message: str) -> str:
    setting = lookup(path)
    if setting is None:
        return message
    text = f"expected {setting.expected}"
    if value is None:
        return text + "; leave the key out to get the default" if setting.default is not REQUIRED else text
    if setting.section:
        return text + _hint_for_section(path, value)
    if isinstance(value, str) and setting.choices:
        near = difflib.get_close_matches(value.lower().replace("-", "_"), setting.choices, 1, 0.5)
        text += f"; did you mean `{near[0]}`?" if near else ""
    elif isinstance(value, str):
        text += _hint_for_text(setting.expected, value)
    elif isinstance(value, float) and value.is_integer() and "whole number" in setting.expected:
        text += f"; write {int(value)}"
    elif isinstance(value, bool) and setting.choices:
        text += "; true and false are not among them"
    return text


_MOST_SUGGESTIONS = 10  # unknown keys that are looked up; each takes 25 ms, and more are a file of something else
_SUCH_AS = {
    "model": "{path: ./my-model}",
    "data": "{train: [{path: train.jsonl}]}",
    "data.train": "[{path: train.jsonl}]",
    "data.validation": "[{path: test.jsonl}]",
    "sft.train": "[{path: examples.jsonl}]",
    "sft.validation": "[{path: held_out.jsonl}]",
    "logging.trackers": "[wandb]",
    "rewards": "[{name: accuracy, kind: math}]",
}


def _hint_for_section(path: str, value: Any) -> str:
    """Return how a section looks if only its first key was given, or one section where a list is expected."""
    if value == []:
        return " with at least one in it, such as " + _SUCH_AS[path] if path in _SUCH_AS else ""
    if path in _SUCH_AS:
        return f", such as {_SUCH_AS[path]}"
    if isinstance(value, (dict, list)):
        return ""
    inside = [s.name for s in settings().values() if s.path.rpartition(".")[0] in (path, f"{path}.N")]
    return f"; its keys: {', '.join(inside)}"


def _hint_for_text(expected: str, value: str) -> str:
    if expected.startswith("a list of texts"):
        return f"; write {json.dumps([value], ensure_ascii=False)}"
    if "true or false" in expected and value.lower() in ("on", "yes", "off", "no"):
        return f"; write {'true' if value.lower() in ('on', 'yes') else 'false'}"
    try:
        finite = math.isfinite(float(value))
    except ValueError:
        return ""
    if not finite:
        return "; it must be finite"
    return f"; write it without quotes: {value}" if "number" in expected else ""


def unknown_key(path: str, kind: Any = None) -> str:
    """Say what to write instead: an option of this kind, a peer's name, the nearest names.

    Args:
        path: the key.
        kind: of its section as it was given; None: the default, or the section has no kinds.
    """
    if (setting := lookup(path)) is not None:
        if setting.kinds:
            return no_option(path, kind)
        nested = (
            "".join(f"{part}: {{" for part in path.split(".")[:-1]) + f"{setting.name}: ..." + "}" * path.count(".")
        )
        return f"a key of YAML names one section; write `{nested}` (on the command line `{path}=...`)"
    near = nearest(path)
    section, _, name = path.rpartition(".")
    if isinstance(kind, str) and ":" in kind and lookup(f"{section}.options") and not near:
        return f"no such key; an option of your function is in `options`: `{section}.options.{name}=...`"
    hint = peer_hint(path)
    if hint:
        return hint
    if near:
        return f"no such key; did you mean {' or '.join(f'`{n}`' for n in near)}?"
    if apart := apart_hint(path):
        return apart
    if tight := re.search(r"(\w+):(\S.*)", path):
        return f"no such key; YAML wants a space after the colon: `{tight[1]}: {tight[2]}`"
    inside: dict[str, list[str]] = {}
    for setting in settings().values():
        inside.setdefault(setting.path.rpartition(".")[0], []).append(setting.name)
    section = wanted = path.rpartition(".")[0]
    while section and generic(section) not in inside and generic(section) not in settings():
        section = section.rpartition(".")[0]
    if generic(section) not in inside:
        return f"no such key: `{section}` is a setting, and has no keys of its own"
    where = "here" if section == wanted else f"in `{section}`" if section else "in a recipe"
    return f"no such key; {where} may stand: {', '.join(inside[generic(section)])}"


def no_option(path: str, kind: Any) -> str:
    """Return the sentence about an option of another kind."""
    section, _, name = path.rpartition(".")
    kind = kind if isinstance(kind, str) else kinds_at(section)[0]
    setting = lookup(path)
    of = ", ".join(f"`{k}`" for k in setting.kinds) if setting is not None else ""
    there = options_of(section, kind)
    have = f"its options: {', '.join(there)}" if there else "it has no options"
    return f"`{name}` is an option of {section}.kind {of}, and the kind is `{visible(kind, 60)}` ({have}); take it out"


_LONG = 6  # letters from which two names are alike by more than chance
_COMMON = {
    "name",
    "path",
    "dir",
    "kind",
    "mode",
    "type",
    "format",
    "enabled",
    "size",
    "every",
    "keep",
    "dtype",
    "limit",
}
"""Names that mean something else in every section."""


def nearest(path: str, count: int = 3) -> list[str]:
    """Return settings with similar names: a slip in the same section, then the name in another one. [] for none.

    A wrong name is worse than none, so common names need a word of their sections in common.
    """
    path = generic(path)
    section, _, name = path.rpartition(".")
    everywhere = [s for s in settings().values() if not s.section]
    here = {s.name: s.path for s in settings().values() if s.path.rpartition(".")[0] == section}
    found = [here[n] for n in difflib.get_close_matches(name, here, 1, 0.8) if _alike(name, n)]
    found = found or [p for n, p in here.items() if len(name) > 1 and n.startswith(name)]
    same = [s.path for s in everywhere if s.name == name and _in_common(section, s.path, name)]
    found += [p for p in same if p not in found]
    if not found and len(name) >= _LONG:
        names = difflib.get_close_matches(name, {s.name for s in everywhere} - {name}, 1, 0.85)
        found = [s.path for s in everywhere if s.name in names]
    if not found:
        found = difflib.get_close_matches(path, [s.path for s in everywhere if _alike(name, s.name)], 1, 0.92)
    return found[:count]


def _alike(given: str, name: str) -> bool:
    return given[:1] == name[:1] or len(given) >= _LONG


def _in_common(section: str, path: str, name: str) -> bool:
    """Whether a name in ``section`` may be meant for ``path``: it is not common, or bare, or the sections are alike."""
    ours = re.split(r"[._]", path.rpartition(".")[0])
    theirs = re.split(r"[._]", section)
    return not section or name not in _COMMON or any(difflib.get_close_matches(word, ours, 1, 0.8) for word in theirs)
