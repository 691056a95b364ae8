"""Access rules of the local server: which host names a request may carry, and the headers of every answer.

The pages show what a model wrote and how it was trained, and any site that is open in the same browser can send
requests to this machine. A Host header of another name is refused, or a site whose own name is pointed at 127.0.0.1
could read the answers (DNS rebinding). Scripts of other sites cannot read them either: no answer carries a CORS header,
and ``cross-origin-resource-policy`` keeps answers from being embedded.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""Of every answer that does not set them itself: a page has a policy of its own."""

LOOPBACK = ("localhost", "localhost.", "ip6-localhost", "127.0.0.1", "[::1]")


def guards(names: Iterable[str] = (), any_address: bool = False) -> list[Middleware]:
    """Return the layers around the server's routes, the outer one first.

    Args:
        names: further host names that the Host header may carry.
        any_address: let any IP address in the Host header pass; needed where the server listens on more than the
            loopback. A site of a stranger is asked for by its name, so addresses alone open no door.
    """
    rule = TrustedAddresses if any_address else TrustedHostMiddleware
    return [Middleware(SafetyHeaders), Middleware(rule, allowed_hosts=[*LOOPBACK, *names], www_redirect=False)]


class TrustedAddresses(TrustedHostMiddleware):
    """Trusts IP addresses beside the names."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = scope["type"] == "http" and is_address(Headers(scope=scope).get("host", ""))
        await (self.app if known else super().__call__)(scope, receive, send)


def is_address(host: str) -> bool:
    """Return whether a Host header has an IP address, with a port or without."""
    try:
        return bool(ipaddress.ip_address(urlsplit(f"//{host}").hostname or ""))
    except ValueError:
        return False


class SafetyHeaders:
    """Adds ``HEADERS`` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *(p for p in extra if p[0] not in present)]}
            await send(message)

        await self.app(scope, receive, send_guarded)
