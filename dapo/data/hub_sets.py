"""Data sets of the Hugging Face hub, through the library ``datasets`` (extra ``data``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dapo.errors import DataError, DataUnreachable
from dapo.hub import offline, unreachable
from dapo.links import install

HUB_PREFIX = "hub:"


def missing_for_hub(path: str) -> str | None:
    """Return why a data path cannot be read on this machine: it names the hub, and a package is missing."""
    if path.startswith(HUB_PREFIX):
        try:
            import datasets  # noqa: F401
        except ImportError:
            return f"{path} needs the package datasets: {install('data')}"
    return None


def read_hub(name: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of ``owner/name`` or ``owner/name:subset``, each with its place.

    Raises:
        DataError: the extra is missing, the hub cannot be reached, or it has no such data.
    """
    if missing := missing_for_hub(f"{HUB_PREFIX}{name}"):
        raise DataUnreachable(missing)
    import datasets

    repository, _, subset = name.partition(":")
    if why := unreachable():
        raise DataUnreachable(f"hub:{name}: {why}; {_local_way(repository)}")
    try:
        rows = datasets.load_dataset(repository, subset or None, split=split)
    except Exception as error:  # the hub client raises many kinds: network, access, unknown split
        raise (DataUnreachable if offline() else DataError)(
            f"hub:{name}, split {split!r} could not be loaded: {type(error).__name__}: {error}; "
            f"{_local_way(repository)}"
        ) from error
    for number, row in enumerate(rows, start=1):
        yield f"hub:{name}[{split}], row {number}", dict(row)


def _local_way(repository: str) -> str:
    return (
        f"without a network give a file or folder as `path`: `hf download {repository} --repo-type dataset --local-dir "
        "FOLDER` fetches one elsewhere. A copy in the cache is used with HF_HUB_OFFLINE=1"
    )
