"""Words that depend on a number or a fact, and are said on more than one floor."""

from __future__ import annotations

from dapo.contracts.evidence import ClusterLost


def counted(count: float, thing: str, things: str = "") -> str:
    """``1 step``, ``2 steps``, ``1,000 steps``; ``things``: of a word whose plural has more than an s."""
    return f"{count:,.0f} {thing if count == 1 else things or thing + 's'}"


def in_a_row(times: int) -> str:
    """``once``, ``3 times in a row``."""
    return "once" if times == 1 else f"{times:,} times in a row"


def lost_said(lost: ClusterLost) -> str:
    """How a cluster was lost."""
    how = "does not answer" if lost.silent else "is gone"
    if lost.part == "head":
        return f"the head of the Ray cluster at {lost.address} (its gcs_server) {how}"
    return f"this machine's raylet, its part of the Ray cluster at {lost.address}, {how}"
