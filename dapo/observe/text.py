"""Text that a model or a data file made, on its way to a terminal or a file: untrusted, and made harmless here."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_WORD = 60
"""Characters of a word, or a path, that is not cut."""


def clean(text: str, *, newlines: bool = True) -> str:
    """Text without anything that could steer a terminal or hide other text.

    Control characters become their visible pictures (ESC is ␛), other invisible ones (bidirectional overrides,
    lone surrogates, private use) become U+FFFD. Tabs become spaces; newlines stay unless ``newlines`` is False.
    """
    return "".join(_harmless(character, newlines) for character in text.replace("\r\n", "\n"))


def _harmless(character: str, newlines: bool) -> str:
    if character.isprintable():
        return character
    if character == "\n":
        return "\n" if newlines else " "
    if character == "\t":
        return "    " if newlines else " "
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    # Zs, Zl, Zp: unusual blanks and separators
    return " " if unicodedata.category(character).startswith("Z") else "\ufffd"


def utf8(text: str) -> str:
    """Text that can be encoded: lone surrogates (possible in JSON data) become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters: the middle is left out, since beginnings and ends say most."""
    if len(text) <= limit:
        return text
    head = (limit - 3) * 2 // 3
    return f"{text[:head]} … {text[len(text) - (limit - 3 - head) :]}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last values as a row of at most ``width`` bars, scaled between their least and greatest."""
    # Bounded, so that neither a difference nor a sum overflows: a diverged run logs such numbers.
    finite = [max(-1e300, min(1e300, value)) for value in values if math.isfinite(value)]
    shown = _thin(finite, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return _BARS[3] * len(shown)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)


def _thin(values: list[float], width: int) -> list[float]:
    """Return the whole history in ``width`` means of equal spans."""
    if len(values) <= width:
        return values
    edges = [len(values) * i // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def interval(low: float | None, high: float | None) -> str:
    """Two shares as one text in percent, ``34.6–48.2``; "" where either is unknown."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{100 * low:.1f}–{100 * high:.1f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage; a dash where it was not measured."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}%"


def number(value: float | None) -> str:
    """Return a number in three figures; a dash where it was not measured."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def duration(seconds: float) -> str:
    """Seconds for people: 9s, 1:05, 2:03:09."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def seconds_said(seconds: float) -> str:
    """9 s, 3 min 5 s, 2 h 3 min: in a sentence, 3:05 could be either."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s" if whole else "less than a second"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
    return f"{minutes} min {left} s" if left else f"{minutes} min"


def span(seconds: float | None) -> str:
    """Return an estimated duration, which is known, for people.

    >>> span(0.04), span(15.8), span(600), span(4 * 3600), span(9 * 86400)
    ('0.04 s', '16 s', '10 min', '4.0 h', '9 days')
    """
    assert seconds is not None
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:,.0f} days"


def big(count: float) -> str:
    """451,489 as it is; from ten million on in words."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} billion"
    return f"{count / 1e6:.1f} million" if count >= 1e7 else f"{count:,.0f}"


def brief(text: str, limit: int) -> str:
    """At most ``limit`` characters; what is left out is whole words in the middle, unless one is very long."""
    short = shorten(text, limit)
    if short == text:
        return text
    head, _, tail = short.partition(" … ")
    if " " in head[-_WORD:]:
        head = head.rpartition(" ")[0]
    if " " in tail[:_WORD]:
        tail = tail.partition(" ")[2]
    return f"{head} … {tail}"


def first_sentence(text: str) -> str:
    """Return the first of several sentences; a full stop in a number or a name ends none."""
    return sentence(re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip(), maxsplit=1)[0])


def sentence(text: str) -> str:
    """With a capital and a full stop; "" stays."""
    text = text.strip()
    return text and text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
