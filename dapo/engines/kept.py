"""Keys and values that outlive a turn: what an environment replies to is not computed again.

A request that asks for it (``SampleRequest.keep``) leaves its keys and values here when it ends. They wait beside the
cache, so that a waiting response decodes in the slot meanwhile. A request with the same key goes on behind the tokens
that both have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dapo.engines.requests import sequence_of
from dapo.engines.traffic import send
from dapo.models.routing import Routes
from dapo.types.batch import IntArray, Key, SampleRequest


class Kept(NamedTuple):
    """Keys and values computed for a response."""

    tokens: IntArray  # prompt and response, up to the newest token, which no step has computed yet
    kv: Tensor  # [layers, 2 (key, value), kv heads, tokens, head_dim]
    whole: bool = True  # these are all that was kept


class KeptSlots:
    """The responses whose keys and values wait for a continuation.

    Args:
        room: bytes of all of them; beyond, the one that was kept first goes first.
    """

    def __init__(self, room: int) -> None:
        self.room, self.held = room, 0
        self._kept: dict[Key, Kept] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, key: Key, tokens: IntArray, kv: Tensor) -> None:
        """Hold what was computed of ``key``, if there is memory for it."""
        self.drop([key])
        if kv.nbytes > self.room:
            return
        self._kept[key] = Kept(tokens, kv)
        self.held += kv.nbytes
        while self.held > self.room:
            self.drop([next(iter(self._kept))])

    def take(self, request: SampleRequest) -> Kept | None:
        """Give out what ``request`` can go on behind: all that was kept of its key and is its own beginning."""
        if request.key not in self._kept:
            return None
        tokens, kv, _ = self._kept[request.key]
        self.drop([request.key])
        asked = sequence_of(request)[:-1]  # the last token is computed in any case: its logits are not here
        both = min(len(tokens), len(asked))
        differs = np.flatnonzero(tokens[:both] != asked[:both])
        common = int(differs[0]) if len(differs) else both
        return Kept(tokens[:common], kv[:, :, :, :common], common == len(tokens)) if common else None

    def drop(self, keys: Iterable[Key] | None = None) -> None:
        """Let go of the named ones (default: all). Keys unknown here are ignored."""
        for key in list(self._kept) if keys is None else keys:
            if (gone := self._kept.pop(key, None)) is not None:
                self.held -= gone.kv.nbytes


class Past:
    """Keys and values behind which a pass computes ``length`` more tokens of each row, right-padded.

    A row's tokens stand side by side in ``kv``, the old ones first: as a pass over all of them would leave them.
    """

    def __init__(self, kept: Sequence[Tensor], length: int) -> None:
        first, self.lengths = kept[0], [kv.shape[3] for kv in kept]
        layers, kinds, heads, _, d = first.shape
        self.columns = max(self.lengths) + length
        # Zeros, not empty: a masked column has weight 0, and 0 x garbage could be nan.
        self.kv = first.new_zeros((layers, kinds, len(kept), heads, self.columns, d))  # as in ``Prefilled``
        for row, kv in enumerate(kept):
            self.kv[:, :, row, :, : self.lengths[row]] = kv
        at = np.array(self.lengths)[:, None] + np.arange(length)
        self._at = at
        self.positions = send(at, first.device)  # [rows, length] of the new tokens

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put the new tokens' keys and values [rows, kv heads, length, head_dim] of a layer behind the old ones."""
        at = self.positions[:, None, :, None].expand_as(keys)
        for place, new in zip(self.kv[layer], (keys, values), strict=True):
            place.scatter_(2, at, new.to(place.dtype))

    def behind(self, routes: Routes) -> Routes:
        """Put the new tokens' routes [rows, length, ...] where their keys are; those of old tokens are not known."""
        whole = np.zeros((len(routes), self.columns, *routes.shape[2:]), dtype=routes.dtype)
        whole[np.arange(len(routes))[:, None], self._at] = routes
        return whole

    def visible(self, window: int | None = None) -> Tensor:
        """Say which columns each new token sees: bool [rows, 1, length, columns], the last ``window`` ones alone."""
        columns, own = torch.arange(self.columns, device=self.kv.device), self.positions[:, None, :, None]
        seen = columns <= own
        return seen if window is None else seen & (columns > own - window)
