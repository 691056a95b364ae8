"""YAML configurations: nested or dotted keys, ``defaults:`` of files that lie beside them, ``${a.b}`` of each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dapo.config.files import check_plain, parse_yaml
from dapo.config.load import merge
from dapo.errors import RecipeError
from dapo.importing.given import MOST_SETTINGS, Source, leaves
from dapo.importing.text import read_source

_DEEPEST = 8  # files that name each other as defaults
_REFERENCE = re.compile(r"\$\{([\w.-]+)\}")
_PRODUCT = re.compile(r"\$\{(mul|div|sum|sub):([^{}]+),([^{}]+)\}")


def read_yaml(text: str, name: str, folder: Path | None) -> Source:
    """A source from YAML.

    Raises:
        RecipeError: it is not YAML, or far too much of it.
    """
    given, lines = parse_yaml(text, name)
    if problems := list(check_plain(given)):
        raise RecipeError(f"{name}: `{problems[0].path}`: {problems[0].message}")
    source = Source(name, "YAML")
    whole = _with_defaults(given, source, folder, 0)
    flat = dict(leaves(whole))
    if len(flat) > MOST_SETTINGS:
        raise RecipeError(f"{name} has {len(flat):,} settings; a configuration has at most {MOST_SETTINGS:,}")
    for key, value in flat.items():
        value, missing = _resolve(value, flat, 0)
        if missing:
            source.unresolved.append((f"{key} = {value}", f"`{missing}` is not in the file"))
        else:
            source.add(key, value, f"line {lines[key]}" if key in lines else "from its defaults")
    return source


def _with_defaults(given: dict[str, Any], source: Source, folder: Path | None, depth: int) -> dict[str, Any]:
    below: dict[str, Any] = {}
    own = {key: value for key, value in given.items() if key != "defaults"}
    names = given.get("defaults")
    for entry in names if isinstance(names, list) else [names]:
        if not isinstance(entry, str) or entry == "_self_":
            if entry is not None and entry != "_self_":
                source.unresolved.append((f"defaults: {entry}", "a group of settings that is not in the file"))
            continue
        path = _beside(entry, folder)
        if path is None or depth >= _DEEPEST:
            source.unresolved.append(
                (f"defaults: {entry}", "not found beside the file; the usual defaults of the trainer are taken")
            )
            continue
        read, _ = parse_yaml(read_source(path), str(path))
        below = merge(below, _with_defaults(read, source, path.parent, depth + 1))
    return merge(below, own)


def _beside(entry: str, folder: Path | None) -> Path | None:
    if folder is None or len(entry) > 500:
        return None
    for name in (entry, f"{entry}.yaml"):
        try:
            if (folder / name).is_file():
                return folder / name
        except (OSError, ValueError):
            continue
    return None


def _resolve(value: Any, flat: dict[str, Any], depth: int) -> tuple[Any, str]:
    """A value with ``${a.b}`` and ``${mul:a,b}`` put in, and the first name that could not be."""
    if isinstance(value, list):
        parts = [_resolve(part, flat, depth) for part in value[:MOST_SETTINGS]]
        return [part for part, _ in parts], next((missing for _, missing in parts if missing), "")
    if not isinstance(value, str) or "${" not in value:
        return value, ""
    if depth > _DEEPEST or len(value) > 2_000:
        return value, value[:60]
    if whole := _REFERENCE.fullmatch(value):
        return _resolve(flat[whole[1]], flat, depth + 1) if whole[1] in flat else (value, whole[1])
    for match in _REFERENCE.finditer(value):
        part, missing = _resolve(flat.get(match[1]), flat, depth + 1) if match[1] in flat else (None, match[1])
        if missing or isinstance(part, list):
            return value, missing or match[1]
        value = value.replace(match[0], str(part))
    if product := _PRODUCT.fullmatch(value.strip()):
        try:
            left, right = float(product[2]), float(product[3])
            result = {"mul": left * right, "div": left / right if right else 0.0, "sum": left + right}.get(
                product[1], left - right
            )
        except ValueError:
            return value, value
        return int(result) if result.is_integer() else result, ""
    return (value, value) if "${" in value else (value, "")
