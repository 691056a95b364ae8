"""Find and hide secrets of a recipe: tokens, passwords, credentials in addresses.

Whatever is written, printed or sent of a recipe goes through here first: the files of a run, the console, messages,
trackers. The run itself gets the true values. A resumed run names those that have to be given again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "<hidden-secret>"
"""Stands where a secret was."""

_HARMLESS = "fields"
"""The one mapping of names to names: a column may well be called ``token``."""
_NAME = re.compile(
    r"(^|[-_.])((access|auth|bearer|hf|hub|id|refresh|session)?[-_]?token|pass(word|wd|phrase)?|pwd|secrets?|credentials?"
    r"|authorization|(api|access|account|auth|encryption|private|secret|signing)[-_]?key)$",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"(?<=://)[^/?#\s@]+(?:@[^/?#\s@]+)*@")
_TOKEN = re.compile(
    r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)|\b(?<=Bearer )\S{8,}"
)

_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)=(?![\"']?[$`])[\"']?[^\s\"';&|,]+")
"""A variable of a shell that is set to a text, and not to another variable or what a command prints."""
_SHELL = ("setup", "options")
"""Settings, of the section ``slurm``, that hold lines of shell or options with variables."""


def redact(value: Any, path: str = "") -> Any:
    """``value`` of the setting ``path`` ("" for a whole recipe), with every secret in it as ``<hidden-secret>``.

    Hidden are texts whose key names a token, a password or a key (no setting of ours does, but those that are passed
    on in ``engine_args`` and ``options`` may), the credentials of an address (``http://user:password@host``), and
    whatever has the form of a known token.
    """
    return _redact(value, path.split(".") if path else [])


def _redact(value: Any, parts: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _redact(v, [*parts, str(k)]) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(v, parts) for v in value]
    if not isinstance(value, str):
        return value
    named = parts and _HARMLESS not in parts and _NAME.search(parts[-1])
    if parts[:1] == ["slurm"] and parts[1:2] and parts[1] in _SHELL:
        value = _ASSIGNED.sub(lambda set_: f"{set_[1]}={HIDDEN}" if _NAME.search(set_[1]) else set_[0], value)
    return HIDDEN if named and value else redact_text(value)


def redact_text(text: str) -> str:
    """Return a text without the credentials of addresses, and without parts that look like a known token."""
    return _TOKEN.sub(HIDDEN, _ADDRESS.sub(f"{HIDDEN}@", text))


def redact_override(override: str) -> str:
    """``key=value`` as it was typed, its value hidden where it is a secret."""
    key, equals, value = override.partition("=")
    shown = redact(value, key.strip())
    # An inline mapping (`{token: ...}`) is not taken apart here: nothing of one is shown that has a secret's name.
    if shown == value and "{" in value:
        names = re.findall(r"[{,]\s*[\"']?([\w.-]+)[\"']?\s*:", value)
        shown = HIDDEN if any(map(_NAME.search, names)) else value
    return f"{key}{equals}{shown}"


def secrets_of(value: Any) -> Iterator[tuple[str, str]]:
    """Path and text of every value that ``redact`` changes."""
    for path, text in _texts(value):
        if redact(text, _without_numbers(path)) != text:
            yield path, text


def hidden_in(value: Any) -> Iterator[str]:
    """Paths of the values that were hidden when the recipe was written, and so have to be given again."""
    return (path for path, text in _texts(value) if HIDDEN in text)


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and text of every text in a tree."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _texts(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for n, below in enumerate(value):
            yield from _texts(below, f"{path}.{n}" if path else str(n))
    elif isinstance(value, str):
        yield path, value


def _without_numbers(path: str) -> str:
    """Return the key without list positions: its name is what counts."""
    parts = path.split(".")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)
