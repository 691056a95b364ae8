"""Seeds for engines that draw with generators of their own."""

from __future__ import annotations

import hashlib

from dapo.contracts.types import SampleRequest


def generator_seed(request: SampleRequest) -> int:
    """A seed (63 bits) for the tokens that are still to be made, from the request's seed and the prefix's length.

    A generator that starts from the request's own seed again behind a prefix would draw the numbers that made the
    prefix: the continuation would depend on it in a way that no model asked for.
    """
    made = 0 if request.prefix is None else len(request.prefix)
    digest = hashlib.blake2b(f"{request.seed}/{made}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
