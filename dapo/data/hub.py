"""Data sets of the Hugging Face hub, through the library ``datasets`` (extra ``data``)."""

from __future__ import annotations

import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from dapo.errors import DataError

HUB_PREFIX = "hub:"
_PATIENCE = 8.0  # seconds for the hub's first answer; the client itself tries for more than half a minute
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def read_hub(name: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of ``owner/name`` or ``owner/name:subset``, each with its place.

    Raises:
        DataError: the extra is missing, the hub cannot be reached, or it has no such data.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"hub:{name} needs the extra `data`: pip install 'dapo-rl[data]'") from error
    repository, _, subset = name.partition(":")
    if not any(os.environ.get(variable, "").lower() in ("1", "true", "yes", "on") for variable in _OFFLINE):
        _check_network(name, repository)
    try:
        rows = datasets.load_dataset(repository, subset or None, split=split)
    except Exception as error:  # the hub client raises many kinds: network, access, unknown split
        raise DataError(
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


def _check_network(name: str, repository: str) -> None:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    found = [f"no answer within {_PATIENCE:g} s"]

    def ask() -> None:
        found[0] = _unreachable(endpoint) or ""

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name has no time limit of its own
    asking.start()
    asking.join(_PATIENCE)
    if found[0]:
        raise DataError(f"hub:{name}: {endpoint} cannot be reached ({found[0]}); {_local_way(repository)}")


def _unreachable(endpoint: str) -> str | None:
    """Why there is no way to the hub; None for any answer at all. Proxies of the environment are used."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_PATIENCE).close()
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as error:
        # certificates are the hub client's business, which may know authorities that Python does not
        return None if isinstance(error.reason, ssl.SSLError) else str(error.reason)
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return None
