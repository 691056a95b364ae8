"""Word numbers: how many of a thing, how often in a row."""

from __future__ import annotations


def counted(count: float, thing: str, things: str = "") -> str:
    """Return ``1 step``, ``2 steps``, ``1,000 steps``; ``things``: of a word whose plural has more than an s."""
    return f"{count:,.0f} {thing if count == 1 else things or thing + 's'}"


def in_a_row(times: int) -> str:
    """Return ``once``, ``3 times in a row``."""
    return "once" if times == 1 else f"{times:,} times in a row"


def divisors(*numbers: int) -> str:
    """Return ``1, 2, 4``: what divides each of the numbers."""
    return ", ".join(str(size) for size in range(1, min(numbers) + 1) if not any(n % size for n in numbers))
