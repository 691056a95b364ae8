"""Whether the Hugging Face hub answers, asked once before its client is, which tries for more than half a minute."""

from __future__ import annotations

import os
import ssl
import threading
import urllib.error
import urllib.request

_PATIENCE = 8.0  # seconds for the first answer
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def unreachable() -> str:
    """Why there is no way to it; "" for any answer at all, and where it is not to be asked (``HF_HUB_OFFLINE``).

    ``HF_ENDPOINT`` and the proxies of the environment are used.
    """
    if offline():
        return ""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    found = [f"no answer within {_PATIENCE:g} s"]

    def ask() -> None:
        found[0] = _why_not(endpoint)

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name has no time limit of its own
    asking.start()
    asking.join(_PATIENCE)
    return f"{endpoint} cannot be reached ({found[0]})" if found[0] else ""


def offline() -> bool:
    """Return whether the environment says that the hub is not to be asked."""
    return any(os.environ.get(variable, "").lower() in ("1", "true", "yes", "on") for variable in _OFFLINE)


def _why_not(endpoint: str) -> str:
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_PATIENCE).close()
    except urllib.error.HTTPError:
        return ""
    except urllib.error.URLError as error:
        # certificates are the hub client's business, which may know authorities that Python does not
        return "" if isinstance(error.reason, ssl.SSLError) else str(error.reason)
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""
