"""Access rules of the local server: an ASGI layer around all of its routes.

The pages show what a model wrote and how it was trained, and any other site that is open in the same browser can send
requests to this machine. So: reading only (GET, HEAD); a Host header that names this machine, or a site whose own name
is pointed at 127.0.0.1 could read the answers (DNS rebinding); no answer to a script of another site; and headers that
keep pages from being framed, cached, or guessed to be of another type.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST_TARGET = 8192
"""Characters of path and query. Twenty names of runs fit; a longer one is no question of our pages."""

DATA_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content security policy of whatever is not a page."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

LOOPBACK_NAMES = frozenset({"localhost", "localhost.", "ip6-localhost"})


class Guard:
    """Refuses what ``refusal`` names, and puts the safety headers on every answer.

    Args:
        app: what answers the rest.
        names: further host names (lower case) that the Host header may carry.
        any_address: let any IP address in the Host header pass. A site of a stranger is asked for by its name, so
            addresses alone open no door; needed where the server listens on more than the loopback.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), any_address: bool = False) -> None:
        self.app = app
        self.names = LOOPBACK_NAMES | {name.lower() for name in names}
        self.any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                extra.append((b"content-security-policy", DATA_POLICY.encode()))
                message = {**message, "headers": [*message["headers"], *(p for p in extra if p[0] not in present)]}
            await send(message)

        refused = self.refusal(scope)
        if refused is None:
            await self.app(scope, receive, send_guarded)
            return
        status, why = refused
        headers = [(b"content-type", b"application/json")]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        body = b"" if scope["method"] == "HEAD" else json.dumps({"error": why}).encode()
        headers.append((b"content-length", str(len(body)).encode()))
        await send_guarded({"type": "http.response.start", "status": status, "headers": headers})
        await send_guarded({"type": "http.response.body", "body": body})

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason why a request is not answered; None where it may pass."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this server only shows; ask with GET or HEAD"
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > LONGEST_TARGET:
            return 414, f"the address is longer than {LONGEST_TARGET} characters"
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self.is_this_machine(hosts[0]):
            return 421, (
                "the Host header does not name this machine; open the page as http://localhost:PORT/ "
                "(through a tunnel too)"
            )
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"].startswith(("/api/", "/metrics")):
            # A person who follows a link to a page comes from elsewhere, rightly; nobody asks for data from elsewhere.
            if headers.get(b"sec-fetch-site", "none").lower() not in ("same-origin", "none"):
                return 403, "data is given to this server's own pages, not to other sites"
            origin = headers.get(b"origin")
            if origin is not None and urlsplit_host(origin) != hosts[0].strip().lower():
                return 403, "data is given to this server's own pages, not to other sites"
        return None

    def is_this_machine(self, host: str) -> bool:
        """Whether a Host header (a name or an address, with a port or without) names this machine."""
        name = host_name(host)
        if name is None:
            return False
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


def host_name(host: str) -> str | None:
    """Return the name or address in a Host header, lower case, without port and brackets; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        parts.port  # noqa: B018  (raises where the port is no number)
    except ValueError:
        return None
    if parts.hostname is None or parts.netloc != host.strip() or "@" in parts.netloc:
        return None
    return parts.hostname


def urlsplit_host(origin: str) -> str | None:
    """Host and port of an Origin header, lower case; None for ``null`` and what is no http address."""
    try:
        parts = urlsplit(origin.strip())
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None
