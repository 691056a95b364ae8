"""Values of records: what may be a problem or an answer, and what a verifier can be handed."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

_DEEPEST = 64  # objects within objects of one column
_NOTHING = re.compile(r"[+-]?(nan|inf|infinity)|null|none|n/a|<na>|nat", re.IGNORECASE)


def plain_text(value: Any) -> str:
    """Return a field as text. Whole floats lose their ``.0``: sets that store 27.0 mean 27.

    Raises:
        ValueError: neither text nor a finite number.
    """
    if isinstance(value, bool) or value is None:
        raise ValueError(f"expected text or a number, found {value!r}")
    if isinstance(value, (float, Decimal)) and not math.isfinite(value):
        raise ValueError(f"expected text or a finite number, found {value} (a number too large for a float reads so)")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value.quantize(Decimal(1)) if value == value.to_integral_value() else value.normalize(), "f")
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    raise ValueError(f"expected text or a number, found {type(value).__name__}")


def answer_text(value: Any, read: Callable[[Any], str] = plain_text) -> str:
    """Return a gold answer as text, a list of several right answers as a JSON list of their texts.

    Args:
        value: the field.
        read: makes one answer a text.

    Raises:
        ValueError: neither an answer nor a list of answers.
    """
    if not isinstance(value, (list, tuple)):
        return read(value)
    texts = [text for one in value if not is_missing(one) and (text := read(one))]
    return json.dumps(texts, ensure_ascii=False) if len(texts) > 1 else "".join(texts)


def is_missing(value: Any) -> bool:
    """Null, empty, or NaN, which is how tables of numbers write null."""
    return value is None or value == "" or (isinstance(value, (float, Decimal)) and math.isnan(value))


def reads_as_nothing(answer: str) -> bool:
    """Return whether a gold answer such as ``nan`` is most often a missing value that was printed on the way."""
    return _NOTHING.fullmatch(answer) is not None


def check_text(text: str) -> None:
    """Refuse text that is no Unicode text.

    Raises:
        ValueError: it holds half of a surrogate pair, which no tokenizer and no file can take.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = ascii(text[error.start])
        raise ValueError(
            f"half of a surrogate pair, {found} at character {error.start}: the text was cut within a character; "
            "write it again, or put U+FFFD there"
        ) from error


def as_json(value: Any, depth: int = 0) -> Any:
    """Return a column as plain JSON types; dates as ISO text, anything else as Python prints it.

    Raises:
        ValueError: text that is no Unicode text, or objects too deep within each other.
    """
    if depth > _DEEPEST:
        raise ValueError(f"objects more than {_DEEPEST} deep within each other")
    if isinstance(value, str):
        check_text(value)
        return value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        out = {str(key): as_json(item, depth + 1) for key, item in value.items()}
        for key in out:
            check_text(key)
        return out
    if isinstance(value, (list, tuple)):
        return [as_json(item, depth + 1) for item in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)
