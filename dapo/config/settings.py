"""The index of every setting: path, meaning, default, and what it accepts in words.

Error messages, the generated reference and the check of a resume all read this one index, so they cannot disagree.
Items of a list are written ``N``: ``rewards.N.weight``.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from dapo.config.schema import Recipe
from dapo.config.section import OWN, OneOf, Resume, Rule, Section, kinds_of

REQUIRED = object()
"""Default of a setting that has none."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a recipe."""

    path: str  # dotted; items of a list as N
    expected: str  # what it accepts, in words
    default: Any  # REQUIRED when it has none
    doc: str  # its docstring in the schema, on one line
    choices: tuple[str, ...]  # the words it accepts, if it accepts words
    text: bool  # it accepts any text, and nothing else but null
    section: bool  # it holds further settings
    resume: Rule  # whether a resumed run may change it; of a list of sections: whether items may come and go
    kinds: tuple[str, ...] = ()  # of a section with kinds, and of a setting in one: the kinds that have it

    @property
    def name(self) -> str:
        return self.path.rsplit(".", 1)[-1]


@cache
def settings() -> dict[str, Setting]:
    """Every key by path, sections included, in the order of the schema."""
    return {s.path: s for s in _walk(Recipe, "")}


def lookup(path: str) -> Setting | None:
    """Return the setting of a concrete path such as ``rewards.0.weight``."""
    return settings().get(generic(path))


def generic(path: str) -> str:
    """``rewards.0.weight`` -> ``rewards.N.weight``."""
    return ".".join("N" if part.isdigit() else part for part in path.split("."))


def value_of(recipe: Recipe, path: str) -> Any:
    """Return the value at a concrete path.

    Raises:
        AttributeError, LookupError: there is no such key.
    """
    value: Any = recipe
    for part in path.split("."):
        value = getattr(value, part) if isinstance(value, Section) else value[int(part) if part.isdigit() else part]
    return value


def value_at(given: Any, path: str, otherwise: Any = None) -> Any:
    """Return the value at a dotted path of nested settings."""
    for part in path.split("."):
        try:
            given = given[int(part)] if isinstance(given, list) else given[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return otherwise
    return given


def kinds_at(path: str) -> tuple[str, ...]:
    """Return the kinds of the section at ``path``; () where it has none."""
    found = lookup(path)
    return found.kinds if found is not None and found.section else ()


def options_of(path: str, kind: str) -> list[str]:
    """Return the names of the settings that ``kind`` has in the section at ``path``, its own name left out.

    A section below it belongs to every kind.
    """
    tag = OWN if ":" in kind else kind
    inside = (s for s in settings().values() if s.path.rpartition(".")[0] == generic(path))
    return [s.name for s in inside if (s.section or tag in s.kinds) and s.name != "kind"]


def _walk(section: type[Section], prefix: str) -> Iterator[Setting]:
    for name, field in section.model_fields.items():
        yield from _field(prefix + name, field, section.resume_rule)


def _field(path: str, field: FieldInfo, rule: Rule) -> Iterator[Setting]:
    rule = next((mark.rule for mark in field.metadata if isinstance(mark, Resume)), rule)
    if any(isinstance(mark, OneOf) for mark in field.metadata):
        yield from _kinds(path, field, rule)
        return
    below, many = _section_of(field.annotation)
    yield Setting(
        path=path,
        expected=_section_words(field.annotation, many) if below else _describe(field.annotation, field.metadata),
        default=_default(field),
        doc=" ".join((field.description or "").split()),
        choices=_choices(field.annotation),
        text=_members(field.annotation) == [str],
        section=below is not None,
        resume=rule,
    )
    if below:
        yield from _walk(below, f"{path}.N." if many else f"{path}.")


def _kinds(path: str, field: FieldInfo, rule: Rule) -> Iterator[Setting]:
    """Yield a section with kinds, its key ``kind``, and each option once with the kinds that have it."""
    kinds = kinds_of(field.annotation)
    every = tuple(kinds)
    doc = " ".join((field.description or "").split())
    words = "a section (keys and values), or a kind"
    yield Setting(path, words, _default(field), doc, every, False, True, rule, every)
    yield Setting(
        path=f"{path}.kind",
        expected=_choice_words(kind for kind in kinds if kind != OWN) + (f" or `{OWN}`" if OWN in kinds else ""),
        default=every[0],
        doc=". ".join(f"`{kind}`: {' '.join((section.__doc__ or '').split())}" for kind, section in kinds.items()),
        choices=every,
        text=False,
        section=False,
        resume=rule,
        kinds=every,
    )
    for name in dict.fromkeys(name for section in kinds.values() for name in section.model_fields if name != "kind"):
        having = {kind: section for kind, section in kinds.items() if name in section.model_fields}
        of = "" if len(having) == len(kinds) else f"For {', '.join(f'`{kind}`' for kind in having)}: "
        first = next(iter(having.values()))
        for setting in _field(f"{path}.{name}", first.model_fields[name], first.resume_rule):
            if setting.path == f"{path}.{name}" and not setting.section:
                setting = replace(setting, doc=of + setting.doc, kinds=tuple(having))
            yield setting


def _default(field: FieldInfo) -> Any:
    return REQUIRED if field.is_required() else field.get_default(call_default_factory=True)


def _section_words(annotation: Any, many: bool) -> str:
    if many:
        return "a list of sections"
    return "a section (keys and values)" + (" or null" if type(None) in get_args(annotation) else "")


def _section_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """Return the section a field holds (or null), and whether it holds a list of them."""
    (annotation, *others) = _members(annotation)
    if others:
        return None, False
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    if get_origin(annotation) is list and isinstance(item := get_args(annotation)[0], type):
        return (item, True) if issubclass(item, Section) else (None, True)
    return None, False


def _members(annotation: Any) -> list[Any]:
    """Return the members of a union except None; the annotation itself when it is none."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [a for a in get_args(annotation) if a is not type(None)]
    return [annotation]


def _choices(annotation: Any) -> tuple[str, ...]:
    found = [a for m in _members(annotation) if get_origin(m) is Literal for a in get_args(m)]
    return tuple(a for a in found if isinstance(a, str))


def _describe(annotation: Any, metadata: list[Any]) -> str:
    parts = [_describe_one(member, metadata) for member in _members(annotation)]
    if len(_members(annotation)) < len(get_args(annotation)) and type(None) in get_args(annotation):
        parts.append("null")
    return " or ".join(parts)


def _choice_words(choices: Iterable[Any]) -> str:
    return "one of " + ", ".join(f"`{choice}`" for choice in choices)


_RANGE = {"Gt": " above", "Ge": " from", "Lt": ", below", "Le": " to"}  # by the marks of annotated_types
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _describe_one(member: Any, metadata: list[Any]) -> str:
    origin, args = get_origin(member), get_args(member)
    if origin is Annotated:
        inner = [x for m in args[1:] for x in (m.metadata if isinstance(m, FieldInfo) else [m])]
        return _describe_one(args[0], inner)
    if origin is Literal:
        return _choice_words(args) if len(args) > 1 else f"`{args[0]}` (the only possible value)"
    if origin is tuple:
        return f"a list of {len(args)} numbers"
    if origin is list:
        return "a list of " + {int: "whole numbers", str: "texts"}.get(args[0], "values")
    if origin is dict:
        return "a mapping from names to " + {str: "names"}.get(args[1], "values")
    patterns = [m.pattern for m in metadata if getattr(m, "pattern", None)]
    if any(pattern.startswith("^https?") for pattern in patterns):
        return "an address (`http://...` or `https://...`, no user or password in it: `api_key_variable` names a key)"
    if patterns:
        return "`package.module:function`" if ":" in patterns[0] else "a name"
    return _WORDS[member] + _bounds(member, metadata)


def _bounds(member: Any, metadata: list[Any]) -> str:
    """Return the range of a number in words; a whole number above 0 is one from 1."""
    found = {name: getattr(mark, name.lower()) for mark in metadata if (name := type(mark).__name__) in _RANGE}
    if member is int and "Gt" in found:
        found = {"Ge": found.pop("Gt") + 1, **found}
    words = _RANGE if "Ge" in found else _RANGE | {"Le": ", at most"}
    return "".join(f"{words[name]} {_bound(bound)}" for name, bound in found.items())


def _bound(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
