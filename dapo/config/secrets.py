"""Find and hide secrets of a recipe: tokens, passwords, credentials in addresses.

Whatever is written, printed or sent of a recipe goes through here first: the files of a run, the console, messages,
trackers. The run itself gets the true values. A resumed run names those that have to be given again.

One rule decides what is a secret:

1. a value under a key that holds secrets (``hf_token``, ``password``), and everything below such a key;
2. the credentials of an address, and its keys (``http://user:password@host?api_key=key``);
3. a token by its exact form, as its service makes it: prefix, alphabet and length;
4. in lines of shell and commands, the values of variables, options and headers with such names, and of logins.

A path is never one: neither a value under a key that names files (``path``, ``dir``, ``tokenizer``), whatever its
form, nor one that begins as a path does (``~/``, ``./``), nor a part of a longer path. A hidden path could be neither
resumed nor exported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dapo.config.secret_text import (
    HIDDEN,
    is_secret_name,
    is_shown,
    redact_address,
    redact_shell,
    redact_text,
    redact_words,
)

_HARMLESS = re.compile(r"(data|sft)\.((train|validation)\.(\d+\.)?)?fields\.")
"""Mappings of names to names: a column may well be called ``token``."""
_PLACE = re.compile(
    r"(^|[-_.])(adapter|dir|directory|file|filename|folder|model|name|path|tokenizer)s?$", re.IGNORECASE
)
"""Keys whose values name files, folders and models."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHELL = re.compile(r"slurm\.(setup|options|container)(\.|$)|environment\.run(\.|$)")
"""Settings that hold lines of shell, commands, or options with variables."""


def redact(value: Any, path: str = "") -> Any:
    """``value`` of the setting ``path`` ("" for a whole recipe), with every secret in it as ``<hidden-secret>``.

    No setting of ours has a secret's name, but those that are passed on in ``engine_args`` and ``options`` may.
    """
    return _redact(value, path.split(".") if path else [])


def _redact(value: Any, parts: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _redact(v, [*parts, str(k)]) for k, v in value.items()}
    if isinstance(value, list | tuple):
        words = redact_words(list(value)) if all(isinstance(v, str) for v in value) else value
        return [_redact(v, parts) for v in words]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    path = ".".join(parts)
    if not _HARMLESS.match(path) and _holds_secrets(parts, value):
        return HIDDEN
    if not isinstance(value, str):
        return value
    if parts and _PLACE.search(parts[-1]):
        return redact_address(value) if _SCHEME.match(value) else value
    return redact_shell(value) if _SHELL.match(path) else redact_text(value)


def _holds_secrets(parts: list[str], value: Any) -> bool:
    """Whether a key, or one above it, holds secrets. A number is a password, perhaps, and never a token."""
    names = [part for part in parts if is_secret_name(part)]
    if isinstance(value, str):
        return bool(names) and not is_shown(value)
    return any("token" not in name.lower() for name in names)


def redact_override(override: str) -> str:
    """``key=value`` as it was typed, its value hidden where it is or holds a secret."""
    key, equals, value = override.partition("=")
    name = key.strip().lstrip("+").removeprefix("--")
    shown = redact(value, name)
    # An inline mapping (`{token: ...}`) is not taken apart here: nothing of one is shown that has a secret's name.
    if shown == value and "{" in value:
        names = re.findall(r"[{,]\s*[\"']?([\w.-]+)[\"']?\s*:", value)
        shown = HIDDEN if any(map(is_secret_name, names)) else value
    return f"{key}{equals}{shown}"


def secrets_of(value: Any) -> Iterator[tuple[str, str]]:
    """Path and text of every value that ``redact`` changes."""
    for (path, held), (_, shown) in zip(_leaves(value), _leaves(redact(value)), strict=True):
        if shown != held:
            yield path, str(held)


def hidden_in(value: Any) -> Iterator[str]:
    """Paths of the values that were hidden when the recipe was written, and so have to be given again."""
    for path, held in _leaves(value):
        if isinstance(held, str) and HIDDEN in held and not (is_place(path) and not _SCHEME.match(held)):
            yield path


def is_place(path: str) -> bool:
    """Whether a key names a file, a folder or a model."""
    return _PLACE.search(_without_numbers(path)) is not None


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of every text and number in a tree."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for n, below in enumerate(value):
            yield from _leaves(below, f"{path}.{n}" if path else str(n))
    elif isinstance(value, str | int | float):
        yield path, value


def _without_numbers(path: str) -> str:
    """Return the key without list positions: its name is what counts."""
    parts = path.split(".")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)
