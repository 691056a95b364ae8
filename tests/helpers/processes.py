"""Looking at processes that others may end at any moment."""

from __future__ import annotations

from pathlib import Path


def alive(process: int) -> bool:
    """Whether it still runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between the file's opening and reading
        return False
