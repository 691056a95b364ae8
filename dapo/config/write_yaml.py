"""Writing a recipe as YAML that every reader of YAML takes for the same: of 1.1 (PyYAML and most others) and of 1.2.

The two differ in what plain text is. ``off``, ``yes``, ``017``, ``1:30`` and ``1_000`` are texts in one and truth
values or numbers in the other; ``1e-08`` is a number in 1.2 and a text in 1.1. So such texts are quoted, and floats
written with a point and a sign: ``1.0e-08``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import implicit_resolvers

from dapo.config.secret_text import HIDDEN, redact_comments, redact_text
from dapo.config.secrets import is_place, secrets_of

_NOT_PLAIN = [pattern for _, _, pattern, _ in implicit_resolvers]
"""What the one or the other version takes for something else than text."""
_TRUTH = re.compile(r"[yYnN]|~|null|true|false|yes|no|on|off|none", re.IGNORECASE)
_UNUSUAL = re.compile(r"[^\x20-\x7e\xa1-\u1fff\u2010-\u2027\u2030-\ud7ff\uf900-\ufdff\ufe10-\ufefe\uff00-\uffef]")
"""Characters that one version takes for the end of a line, or refuses unless they are escaped."""

_SURE = 8  # characters from which a secret is not found by chance in other words


class _Representer(SafeRepresenter):
    def represent_str(self, data: str) -> ScalarNode:
        style = None
        if _UNUSUAL.search(data) or len(data) > 200:
            style = '"'
        elif _TRUTH.fullmatch(data) or any(pattern.match(data) for pattern in _NOT_PLAIN):
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def represent_float(self, data: float) -> ScalarNode:
        mantissa, e, exponent = repr(data).partition("e")
        text = repr(data)
        if e:
            sign, digits = (exponent[0], exponent[1:]) if exponent[0] in "+-" else ("+", exponent)
            text = f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{digits}"
        return self.represent_scalar("tag:yaml.org,2002:float", text)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Representer.add_representer(str, _Representer.represent_str)
_Representer.add_representer(float, _Representer.represent_float)


def to_yaml(value: Any) -> str:
    """Plain values as YAML in their own order, without aliases."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.width = 2**20  # folded lines read otherwise in places
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


def without_secrets(text: str, given: Any) -> str:
    """Return the text of a recipe file as it was, comments included, with a word in place of each secret."""
    secrets = dict(secrets_of(given))
    if not secrets and redact_comments(text) == text:
        return text
    values = list(_scalars(YAML(typ="safe", pure=True).compose(text), ""))
    hidden = {start for path, start, _ in values if path in secrets}  # of an anchor, too, whose alias is secret
    parts, end = [], 0
    for path, start, stop in sorted(values, key=lambda value: value[1]):
        if start < end:
            continue  # an alias, whose value stands where its anchor is
        parts.append(redact_comments(text[end:start]))
        if start in hidden:
            anchor = re.match(r"[&!]\S+\s+", text[start:stop])
            parts.append(f"{anchor[0] if anchor else ''}'{HIDDEN}'")
        else:
            parts.append(text[start:stop] if is_place(path) else redact_text(text[start:stop]))
        end = stop
    text = "".join([*parts, redact_comments(text[end:])])
    for secret in secrets.values():  # where it stands once more, in a comment
        text = text.replace(secret, HIDDEN) if len(secret) >= _SURE else text
    return text


def _scalars(node: Node | None, path: str) -> Iterator[tuple[str, int, int]]:
    """Path of each value, and where it begins and ends in the text."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield from _scalars(value, f"{path}.{key.value}" if path else str(key.value))
    elif isinstance(node, SequenceNode):
        for n, value in enumerate(node.value):
            yield from _scalars(value, f"{path}.{n}" if path else str(n))
    elif node is not None:
        yield path, node.start_mark.index, node.end_mark.index
