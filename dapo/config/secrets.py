"""Find and hide secrets of a recipe: tokens, passwords, credentials in addresses.

Whatever is written, printed or sent of a recipe goes through here first: the files of a run, the console, messages,
trackers. The run itself gets the true values. A resumed run names those that have to be given again.

One rule decides what is a secret:

1. a value under a key that holds secrets (``hf_token``, ``password``), and everything below such a key;
2. the credentials of an address, and its keys (``http://user:password@host?api_key=key``);
3. a token by its exact form, as its service makes it: prefix, alphabet and length.

A path is never one: neither a value under a key that names files (``path``, ``dir``, ``tokenizer``), whatever its
form, nor a part of a longer path. A hidden path could be neither resumed nor exported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "<hidden-secret>"
"""Stands where a secret was."""

_HARMLESS = re.compile(r"(data|sft)\.((train|validation)\.(\d+\.)?)?fields\.")
"""Mappings of names to names: a column may well be called ``token``."""
_NAME = re.compile(
    r"(^|[-_.])(pass(word|wd|phrase)?|pwd|secrets?|credentials?|authorization"
    r"|(api|access|account|auth|encryption|private|secret|signing)[-_]?key)$",
    re.IGNORECASE,
)
_TOKEN_NAME = re.compile(r"(^|[-_.])(access|auth|bearer|hf|hub|id|refresh|session)?[-_]?token$", re.IGNORECASE)
_VOCABULARY = re.compile(
    r"(^|[-_.])(audio|bos|cls|end|eos|image|mask|next|pad|per|sep|special|start|stop|think|unk|video)[-_]?token$",
    re.IGNORECASE,
)
"""Tokens of a vocabulary, which are none of a service."""
_PLACE = re.compile(
    r"(^|[-_.])(adapter|dir|directory|file|filename|folder|model|name|path|tokenizer)s?$", re.IGNORECASE
)
"""Keys whose values name files, folders and models."""

_ADDRESS = re.compile(r"(?<=://)[^/?#\s@]+(?:@[^/?#\s@]+)*@")
_QUERY = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s\"'<>]+)")
"""A parameter of an address."""
_QUERY_NAME = re.compile(r"(^|[-_.])(key|sig|signature)$", re.IGNORECASE)
"""Of a parameter, beside the names of secrets."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TOKEN = re.compile(
    r"""(?<![\w/\\.])(?:
      (?:hf_|api_org_)[A-Za-z0-9]{34}                           # Hugging Face
    | sk-(?:[A-Za-z0-9]{32}|[A-Za-z0-9]{48})                    # OpenAI's older keys, and services like it
    | sk-(?:[a-z]+-)?[\w-]{20,}T3BlbkFJ[\w-]{20,}               # OpenAI
    | sk-ant-[a-z]+\d\d-[\w-]{93}AA                             # Anthropic
    | sk-or-v1-[0-9a-f]{64}                                     # OpenRouter
    | gh[pousr]_[A-Za-z0-9]{36} | github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}
    | glpat-[\w-]{20}                                           # GitLab
    | xox[abeprs]-(?:\d+-){1,3}[A-Za-z0-9]{24,64}               # Slack
    | (?:AKIA|ASIA)[0-9A-Z]{16}                                 # AWS
    | AIza[\w-]{35}                                             # Google
    )(?![\w/\\-]|\.\w)
    | (?<![A-Za-z0-9/\\.])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+(?![\w/\\])   # JSON web tokens
    | (?<=\bBearer[ ])[\w.~+/=-]{8,}                            # of a header
    """,
    re.VERBOSE,
)

_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)=(?![\"']?[$`])[\"']?[^\s\"';&|,]+")
"""A variable of a shell that is set to a text, and not to another variable or what a command prints."""
_SHELL = ("setup", "options")
"""Settings, of the section ``slurm``, that hold lines of shell or options with variables."""


def redact(value: Any, path: str = "") -> Any:
    """``value`` of the setting ``path`` ("" for a whole recipe), with every secret in it as ``<hidden-secret>``.

    No setting of ours has a secret's name, but those that are passed on in ``engine_args`` and ``options`` may.
    """
    return _redact(value, path.split(".") if path else [])


def _redact(value: Any, parts: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _redact(v, [*parts, str(k)]) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(v, parts) for v in value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    if not _HARMLESS.match(".".join(parts)) and _holds_secrets(parts, value) and value != "":
        return HIDDEN
    if not isinstance(value, str):
        return value
    if parts and _PLACE.search(parts[-1]):
        return _without_keys(_ADDRESS.sub(f"{HIDDEN}@", value, count=1)) if _SCHEME.match(value) else value
    if parts[:1] == ["slurm"] and parts[1:2] and parts[1] in _SHELL:
        value = _ASSIGNED.sub(lambda set_: f"{set_[1]}={HIDDEN}" if _is_secret_name(set_[1]) else set_[0], value)
    return redact_text(value)


def _holds_secrets(parts: list[str], value: Any) -> bool:
    """Whether a key, or one above it, holds secrets. A number is a password, perhaps, and never a token."""
    if isinstance(value, str):
        return any(map(_is_secret_name, parts))
    return any(map(_NAME.search, parts))


def _is_secret_name(name: str) -> bool:
    return bool(_NAME.search(name) or (_TOKEN_NAME.search(name) and not _VOCABULARY.search(name)))


def redact_text(text: str) -> str:
    """Return a text without the credentials and keys of addresses, and without tokens."""
    return _TOKEN.sub(HIDDEN, _without_keys(_ADDRESS.sub(f"{HIDDEN}@", text)))


def _without_keys(text: str) -> str:
    """Return a text without the values of parameters (``?api_key=...``) that a name tells to be secret."""

    def shown(found: re.Match[str]) -> str:
        secret = _is_secret_name(found[1]) or _QUERY_NAME.search(found[1])
        return f"{found[1]}={HIDDEN}" if secret else found[0]

    return _QUERY.sub(shown, text)


def redact_override(override: str) -> str:
    """``key=value`` as it was typed, its value hidden where it is or holds a secret."""
    key, equals, value = override.partition("=")
    name = key.strip().lstrip("+").removeprefix("--")
    shown = redact(value, name)
    # An inline mapping (`{token: ...}`) is not taken apart here: nothing of one is shown that has a secret's name.
    if shown == value and "{" in value:
        names = re.findall(r"[{,]\s*[\"']?([\w.-]+)[\"']?\s*:", value)
        shown = HIDDEN if any(map(_is_secret_name, names)) else value
    return f"{key}{equals}{shown}"


def secrets_of(value: Any) -> Iterator[tuple[str, str]]:
    """Path and text of every value that ``redact`` changes."""
    for path, held in _leaves(value):
        if redact(held, _without_numbers(path)) != held:
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
