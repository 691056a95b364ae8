"""Keys of other trainers and their names in dapo, so that a foreign recipe is refused with the right name.

The full comparison, behaviour included, is docs/peers.md.
"""

from __future__ import annotations

from dapo.config.peer_key import PeerKey
from dapo.config.peers_algorithm import ALGORITHM
from dapo.config.peers_run import RUN

PEER_KEYS = ALGORITHM + RUN

_BY_KEY: dict[str, list[PeerKey]] = {}
for _entry in PEER_KEYS:
    _BY_KEY.setdefault(_entry.key, []).append(_entry)


def peer_entry(path: str, who: str | None = None) -> PeerKey | None:
    """Return the row of a path's longest ending that is a key of ``who`` (None: of any trainer)."""
    parts = path.lstrip("+-").replace("-", "_").split(".")
    endings = (".".join(parts[start:]) for start in range(len(parts)))
    rows = (row for ending in endings for row in _BY_KEY.get(ending, ()))
    return next((row for row in rows if who is None or who in row.who), None)


def peer_hint(path: str) -> str | None:
    """Return what a peer's key is called here, for a path that ends with it; None if no trainer has it."""
    entry = peer_entry(path)
    return entry.hint() if entry else None
