"""The routers of a mixture of experts: the experts that each token goes to, recorded and repeated.

A *route* of a token is what all routers chose for it: numbers of experts [routers, k], counted from 1; 0 is an
unrecorded choice. Two computations of one model may choose otherwise where two experts are nearly tied, and then
differ by far more than rounding. A router that repeats a choice still weighs the experts by its own scores, so it has
its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dapo.errors import ModelError
from dapo.models.packing import PackedBatch
from dapo.types.batch import IntArray

Routes = NDArray[np.uint8] | NDArray[np.int16]
"""[tokens, routers, k]; see the text of this module."""

EXTRA = "routes"
"""The name under which an engine gives the routes of a response, see ``dapo.types.extra``."""


@dataclass(slots=True)
class RoutedPass:
    """Expert choices of one pass, and of the forward computation that its backward pass repeats.

    Args:
        wanted: [tokens, routers, k] choices to repeat; None: all are free.
        made: [tokens, k] by router, as they were made.
        otherwise: by router, bool [tokens]: the choice that was repeated is not the one that the router would have
            made. False where it was free.
    """

    wanted: Tensor | None = None
    made: dict[int, Tensor] = field(default_factory=dict)
    otherwise: dict[int, Tensor] = field(default_factory=dict)

    def choice(self, router: int) -> Tensor | None:
        """Return what a router has to repeat [tokens, k]: in a second computation what it chose in the first."""
        if router in self.made:
            return self.made[router]
        return None if self.wanted is None else self.wanted[:, router]

    def routes(self) -> Tensor:
        """Return the choices of all routers [tokens, routers, k]."""
        return torch.stack([self.made[router] for router in sorted(self.made)], 1)

    def changed(self) -> Tensor:
        """Return what ``otherwise`` says of all routers, bool [tokens, routers]."""
        return torch.stack([self.otherwise[router] for router in sorted(self.otherwise)], 1)


class Routing:
    """The routers of one model, whose choices can be given from now on.

    Args:
        model: of transformers.
        routers: modules of it, in the order in which they compute.
    """

    def __init__(self, model: nn.Module, routers: Sequence[Any]) -> None:
        self.name = type(model).__name__
        self.count, self.experts, self.k = len(routers), int(routers[0].num_experts), int(routers[0].top_k)
        self.dtype = torch.uint8 if self.experts < 2**8 else torch.int16
        self._now: RoutedPass | None = None
        for number, router in enumerate(routers):
            router.forward = partial(self._forward, number, router.forward)

    @contextmanager
    def following(self, wanted: Tensor | None = None) -> Iterator[RoutedPass]:
        """Record what the routers choose in one pass, after ``wanted`` where it names a choice."""
        before, self._now = self._now, RoutedPass(wanted)
        try:
            yield self._now
        finally:
            self._now = before

    def none(self, tokens: int) -> Routes:
        """Return routes in which no choice is recorded."""
        if self.dtype is torch.uint8:
            return np.zeros((tokens, self.count, self.k), np.uint8)
        return np.zeros((tokens, self.count, self.k), np.int16)

    def _forward(self, number: int, own: Callable[..., Any], *args: Any, **options: Any) -> Any:
        now = self._now
        if now is None:
            return own(*args, **options)
        with _Choosing(now.choice(number), self.experts, self.k) as choosing:
            made = own(*args, **options)
        if number not in now.made:
            if now.wanted is not None and choosing.times != 1:
                raise ModelError(
                    f"a router of {self.name} chose {choosing.times} times where it should once: what it chose cannot "
                    "be repeated; set learner.router_replay=off"
                )
            now.made[number] = (made[-1].detach() + 1).to(self.dtype)
            if now.wanted is not None:
                now.otherwise[number] = choosing.otherwise(now.wanted[:, number])
        return made


class _Choosing(TorchFunctionMode):
    """While a router computes, its choice of experts is a given one [tokens, k] where that is recorded.

    A free choice (None) takes the same operations, so that a backward pass that computes it again finds its tensors.
    """

    def __init__(self, choice: Tensor | None, experts: int, k: int) -> None:
        super().__init__()
        self._choice, self._sizes = choice, (experts, k)
        self.times = 0
        self._free: Tensor | None = None  # what it would have chosen

    def otherwise(self, choice: Tensor) -> Tensor:
        """Return for which tokens it would have chosen other experts than ``choice`` [tokens, k]; bool [tokens]."""
        assert self._free is not None
        free, given = (self._free + 1).sort(-1)[0], choice.to(self._free.dtype).sort(-1)[0]
        return (free != given).any(-1) & (given > 0).all(-1)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        # Other choices of a router, such as that of groups of experts, are among fewer.
        if function not in (torch.topk, Tensor.topk) or args[0].dim() != 2:
            return found
        index = found.indices
        if (args[0].shape[-1], index.shape[-1]) != self._sizes:
            return found
        self.times += 1
        self._free = index.detach()
        choice = torch.zeros_like(index, dtype=torch.uint8) if self._choice is None else self._choice
        given = choice.to(index.dtype)
        index = torch.where(given > 0, given - 1, index)
        return torch.return_types.topk((args[0].gather(-1, index), index))  # type: ignore[attr-defined]


def find_routing(model: nn.Module) -> Routing | None:
    """Return the routers of a model; None: it has none whose choices are understood."""
    routers: list[Any] = [module for module in model.modules() if _is_router(module)]
    kinds = {(router.num_experts, router.top_k) for router in routers}
    return Routing(model, routers) if len(kinds) == 1 else None


def _is_router(module: nn.Module) -> bool:
    """Whether it is one of those that return their logits, the experts' weights and the experts."""
    known = type(module).__name__.lower().endswith(("topkrouter", "tokenchoicerouter"))
    return known and all(isinstance(getattr(module, name, None), int) for name in ("num_experts", "top_k"))


# ---------------------------------------------------------------------- rows


def places_of(batch: PackedBatch) -> list[IntArray]:
    """Return where the inputs of each row lie in a batch, flat: its prompt, and its response without the last token."""
    found, end = [], 0
    for row, length in zip(batch.rows, batch.lengths, strict=True):
        predictors = batch.sources.rows[end : end + length]
        end += length
        prompt = np.arange(1 - len(row.prompt_ids), 1) + predictors[:1]  # it ends where the first token is predicted
        found.append(np.concatenate([prompt, predictors[1:]]) if length else predictors)
    return found


def cut_out(whole: NDArray[Any], part: slice) -> NDArray[Any]:
    """Return a stretch of a batch's tokens, from an array of all of them; beyond the last one there are zeros."""
    own = whole[part]
    return np.concatenate([own, np.zeros((part.stop - part.start - len(own), *own.shape[1:]), own.dtype)])


def lay_out(batch: PackedBatch, rows: Sequence[Routes | None], nothing: Routes) -> Routes:
    """Return the routes of a batch's tokens from those of its rows.

    Args:
        batch: packed or padded.
        rows: [prompt + response - 1, routers, k] of each of ``batch.rows``; None: not known.
        nothing: [tokens of the batch, routers, k] of zeros, which is filled. Rows that share a prompt need not all know
            its routes.
    """
    for routes, places in zip(rows, places_of(batch), strict=True):
        if routes is not None:
            own = routes[: len(places)]
            known = (own != 0).all(axis=(1, 2))
            nothing[places[known]] = own[known]
    return nothing
