"""Types of a recipe's sections for editors and type checkers, made from the schema.

``python tests/helpers/typed_settings.py > dapo/api/sections.pyi`` writes them. A test holds the file equal.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from dapo.config.schema import Recipe, TrackerSettings
from dapo.config.section import OWN, Hook, OneOf, Section, kinds_of

HEAD = '''"""Sections of a recipe as typed dictionaries: made by tests/helpers/typed_settings.py, not by hand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from dapo.algorithms.objective import Objective

Function: TypeAlias = str | Callable[..., Any] | Objective
Text: TypeAlias = str | PathLike[str]

class LoadedModel(Protocol):
    def parameters(self, recurse: bool = True) -> Iterator[Any]: ...
'''
OF_ARGUMENTS = ("rewards", "scorer", "environment", "validation")
"""Sections whose names are arguments of ``dapo.train``."""
COUNTED = ("learner.ranks", "rollout.engines")
"""Numbers that dapo counts where ``auto`` is given."""
_HOOK = get_args(Hook)[1]


def main() -> str:
    """Return the file."""
    made: dict[str, str] = {}
    top = {name: _type(field, name, made) for name, field in Recipe.model_fields.items()}
    top["model"] += " | Text | LoadedModel"
    common = {name: found for name, found in top.items() if name not in (*OF_ARGUMENTS, "run")}
    dictionaries = [
        _dictionary("CommonSettings", common),
        _dictionary("Settings", {"run": top["run"]}, "CommonSettings"),
        _dictionary("ResumeSettings", {"validation": top["validation"]}, "CommonSettings"),
    ]
    return "\n\n".join([HEAD.rstrip(), *made.values(), *dictionaries]) + "\n"


def _dictionary(name: str, fields: Mapping[str, str], base: str = "TypedDict") -> str:
    lines = [f"    {key}: {found}" for key, found in fields.items()]
    return "\n".join([f"class {name}({base}, total=False):", *lines])


def _section(section: type[Section], path: str, made: dict[str, str]) -> str:
    name = section.__name__.removesuffix("Section").removesuffix("Settings") + "Settings"
    if name not in made:
        fields = section.model_fields.items()
        found = {key: _type(field, f"{path}.{key}", made) for key, field in fields}
        made[name] = _dictionary(name, found)
    return name


def _type(field: Any, path: str, made: dict[str, str]) -> str:
    """Return the type of a setting as it is given: what a program may write, before anything is filled in."""
    if any(isinstance(mark, OneOf) for mark in field.metadata):
        kinds = kinds_of(field.annotation)
        names = ", ".join(_quoted(kind) for kind in kinds if kind != OWN)
        sections = [_section(section, path, made) for section in kinds.values()]
        return " | ".join([*sections, f"Literal[{names}]", *["Function"] * (OWN in kinds)])
    found = _written(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation, path, made)
    return f'{found} | Literal["auto"]' if path in COUNTED else found


def _written(annotation: Any, path: str, made: dict[str, str]) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        is_hook = _HOOK in inside or _HOOK.metadata[0] in inside
        return "Function" if is_hook else _written(inside[0], path, made)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_written(one, path, made) for one in inside))
    if origin is Literal:
        return f"Literal[{', '.join(map(_quoted, inside))}]"
    if origin is dict:
        return f"Mapping[{', '.join(_written(one, path, made) for one in inside)}]"
    if origin in (list, tuple):
        name = " | Function" * (inside[0] is TrackerSettings)  # which may be a name alone
        return f"Sequence[{_written(inside[0], path, made)}{name}]"
    if annotation is type(None):
        return "None"
    if annotation is Any:
        return "Any"
    if annotation is str:
        return "Text" if path.rpartition(".")[2] in ("path", "dir") else "str"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _section(annotation, path, made)
    return str(annotation.__name__)


def _quoted(word: Any) -> str:
    return f'"{word}"' if isinstance(word, str) else repr(word)


if __name__ == "__main__":
    print(main(), end="")
