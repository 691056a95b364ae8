"""YAML configurations: nested or dotted keys, ``defaults:`` of files that lie beside them, ``${a.b}`` of each other."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapo.config.load import merge
from dapo.config.yaml_files import check_plain, parse_yaml
from dapo.errors import RecipeError
from dapo.importing.contents import LONGEST_VALUE, MOST_SETTINGS, SourceFile, leaves
from dapo.importing.named_files import OWN_DEFAULTS, SourceFiles

_REFERENCE = re.compile(r"\$\{([\w.-]+)\}")
_RELATIVE = re.compile(r"\$\{(\.+)(\w[\w.-]*)\}")
_PRODUCT = re.compile(r"\$\{(mul|div|sum|sub):([^{},]+),([^{},]+)\}")


def read_yaml(text: str, name: str, folder: Path | None, files: SourceFiles) -> SourceFile:
    """Read a source from YAML.

    Args:
        text: the YAML.
        name: for messages.
        folder: where the files lie that ``defaults:`` names; None: none is read.
        files: what reads them.

    Raises:
        RecipeError: it is not YAML, far too much of it, or files that name each other.
    """
    given, lines = parse_yaml(text, name)
    source = SourceFile(name, "YAML")
    chain = () if folder is None else ((folder / Path(name).name).resolve(),)
    whole = _with_defaults(given, source, folder, files, chain)
    if problems := list(check_plain(whole)):
        raise RecipeError(f"{name}: `{problems[0].path}`: {problems[0].message}")
    flat = dict(leaves(whole))
    if len(flat) > MOST_SETTINGS:
        raise RecipeError(f"{name} has {len(flat):,} settings; a configuration has at most {MOST_SETTINGS:,}")
    references = References(flat)
    for key in flat:
        value, why = references.value_of(key)
        if why:
            source.not_read(key, f"{key} = {str(flat[key])[:200]}", why)
        else:
            source.add(key, value, f"line {lines[key]}" if key in lines else "from its defaults")
    return source


def _with_defaults(
    given: dict[str, Any], source: SourceFile, folder: Path | None, files: SourceFiles, chain: tuple[Path, ...]
) -> dict[str, Any]:
    below: dict[str, Any] = {}
    own = {key: value for key, value in given.items() if key != "defaults"}
    names = given.get("defaults")
    entries = [entry for entry in (names if isinstance(names, list) else [names]) if entry not in (None, "_self_")]
    for entry in entries if len(entries) < MOST_SETTINGS else []:
        if not isinstance(entry, str):
            source.unresolved.append((f"defaults: {str(entry)[:200]}", "a group of settings that is not in the file"))
            continue
        path, why = files.find(entry.removesuffix("@_global_"), (folder,))
        if path is None:
            _without(source, entry[:200], why)
            continue
        if path.resolve() in chain:
            raise RecipeError(
                f"{source.name} names itself through its defaults: {' > '.join(p.name for p in chain)} > {entry}"
            )
        below = merge(below, _base(path, source, files, (*chain, path.resolve())))
    return merge(_kept(below, own), own)


def _kept(below: Any, own: Any) -> Any:
    """Return what is left of a base: NeMo RL's ``_override_: true`` replaces a whole section of it."""
    if not (isinstance(below, Mapping) and isinstance(own, Mapping)):
        return below
    return {} if own.get("_override_") else {key: _kept(value, own.get(key)) for key, value in below.items()}


def _base(path: Path, source: SourceFile, files: SourceFiles, chain: tuple[Path, ...]) -> dict[str, Any]:
    real = path.resolve()
    if real not in files.merged:
        read, _ = parse_yaml(files.text(path), str(path))
        files.merged[real] = _with_defaults(read, source, path.parent, files, chain)
    return files.merged[real]


def _without(source: SourceFile, entry: str, why: str) -> None:
    whose = OWN_DEFAULTS.get(Path(entry).stem)
    if whose:
        source.unresolved.append((f"defaults: {entry}", f"{why}; {whose}'s usual defaults are taken"))
        return
    source.cautions.append(
        f"its base {entry} was not read ({why}), so the trainer's general defaults stand for what it sets"
    )
    source.unresolved.append((f"defaults: {entry}", f"{why}; the usual defaults of the trainer are taken"))


class References:
    """Put ``${a.b}`` and ``${mul:a,b}`` into values; each key is resolved once."""

    def __init__(self, flat: Mapping[str, Any]) -> None:
        """``flat``: dotted keys and values as the file has them."""
        self._flat = flat
        self._known: dict[str, tuple[Any, str]] = {}

    def value_of(self, key: str) -> tuple[Any, str]:
        """Return a key's value with the references put in, and why that failed (empty: it did not)."""
        if key not in self._known:
            self._known[key] = None, f"`{key}` names itself"  # until it is known
            value, why = self._resolve(_absolute(self._flat[key], key))
            self._known[key] = value, why
        return self._known[key]

    def _resolve(self, value: Any) -> tuple[Any, str]:
        if isinstance(value, list):
            parts = [self._resolve(part) for part in value]
            return [part for part, _ in parts], next((why for _, why in parts if why), "")
        if isinstance(value, Mapping):
            fields = {name: self._resolve(part) for name, part in value.items()}
            return {k: part for k, (part, _) in fields.items()}, next((why for _, why in fields.values() if why), "")
        if not isinstance(value, str) or "${" not in value:
            return value, ""
        if whole := _REFERENCE.fullmatch(value):
            return self._named(whole[1])
        for name in dict.fromkeys(_REFERENCE.findall(value)):
            part, why = self._named(name)
            if why or isinstance(part, list | Mapping):
                return None, why or f"`{name}` is no single value"
            value = value.replace(f"${{{name}}}", str(part))
            if len(value) > LONGEST_VALUE:
                return None, f"it stands for more than {LONGEST_VALUE:,} characters"
        return _calculated(value) if "${" in value else (value, "")

    def _named(self, name: str) -> tuple[Any, str]:
        return self.value_of(name) if name in self._flat else (None, f"`{name[:60]}` is not in the file")


def _absolute(value: Any, key: str) -> Any:
    """Return a value in which ``${.b}`` and ``${..b}``, seen from its key, have their whole names."""
    if not isinstance(value, str):
        return value
    above = key.split(".")
    return _RELATIVE.sub(lambda found: f"${{{'.'.join([*above[: -len(found[1])], found[2]])}}}", value)


def _calculated(text: str) -> tuple[Any, str]:
    """Return the number of a ``${mul:a,b}`` whose two sides are numbers."""
    product = _PRODUCT.fullmatch(text.strip())
    try:
        left, right = (float(product[2]), float(product[3])) if product else (math.nan, math.nan)
    except ValueError:
        left = right = math.nan
    result = {"mul": left * right, "div": left / right if right else math.nan, "sum": left + right, "sub": left - right}
    number = result[product[1]] if product else math.nan
    if not math.isfinite(number):
        return None, f"`{text[:60]}` is not in the file"
    return int(number) if number.is_integer() else number, ""
