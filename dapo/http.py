"""POST JSON over HTTP with the standard library. Redirects are not followed: they would carry a key elsewhere."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any, NoReturn

_CHUNK = 1 << 16
_SAID = 300  # characters of an error's body that a message shows


class HttpError(Exception):
    """A question without an answer.

    Attributes:
        status: of the answer that was an error; None: nothing answered in time.
        wait: seconds that the service asked to wait for; None: it did not say.
    """

    def __init__(self, message: str, status: int | None = None, wait: float | None = None) -> None:
        """See the class."""
        super().__init__(message)
        self.status, self.wait = status, wait


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.OpenerDirector()
for _handler in (
    urllib.request.ProxyHandler,
    urllib.request.HTTPHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor,
    _NoRedirects,
):
    _opener.add_handler(_handler())


def post(url: str, body: Any, timeout: float, key: str | None = None, *, limit: int = 16 << 20) -> bytes:
    """Return the body of the answer to a POST of JSON.

    Args:
        url: http or https.
        body: what is sent, as JSON.
        timeout: seconds until all of the answer has come.
        key: sent as a bearer token. It is in no message of an error.
        limit: bytes of an answer.

    Raises:
        HttpError: there is no answer, it is an error, or it is too long.
    """
    until = time.monotonic() + timeout
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        with _opener.open(request, timeout=timeout) as answer:
            data = bytearray()
            while part := answer.read1(_CHUNK):
                data += part
                if len(data) > limit:
                    raise HttpError(f"an answer of more than {limit} bytes", answer.status)
                if time.monotonic() > until:
                    raise HttpError(f"no whole answer within {timeout:g} s")
            return bytes(data)
    except urllib.error.HTTPError as error:
        with error:
            _refuse(error, key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        text = str(reason) or type(reason).__name__
        raise HttpError(_without(text, key)) from None


def read_key(variable: str, setting: str, service: str) -> str:
    """Return a service's key.

    Args:
        variable: the environment variable that holds it.
        setting: that names the variable.
        service: whose key it is, in words.

    Raises:
        ValueError: it is not set, or cannot be sent. The message does not show it.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(
            f"the environment variable {variable} ({setting}) is not set; set it to the key of {service} where the run "
            "starts"
        )
    if not (key.isascii() and key.isprintable()):
        raise ValueError(
            f"the environment variable {variable} ({setting}) holds characters that a header cannot; expected the key "
            f"of {service} in one line of ASCII"
        )
    return key


def _refuse(error: urllib.error.HTTPError, key: str | None) -> NoReturn:
    try:
        said = error.read(_CHUNK).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        said = ""
    wait = error.headers.get("Retry-After", "") if error.headers is not None else ""
    said = " ".join(said.split())[:_SAID]
    seconds = float(wait) if wait.isascii() and wait.isdigit() else None
    raise HttpError(_without(f"{error.code} {error.reason} {said}".strip(), key), error.code, seconds) from None


def _without(text: str, key: str | None) -> str:
    """Return a message without the key, which a service may repeat."""
    return text.replace(key, "<key>") if key else text
