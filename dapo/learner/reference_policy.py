"""The reference that KL is measured against: the values that the trained parameters had at the start, or at a refresh.

The reference differs from the policy in trained parameters only, so only these are kept. For a pass under the reference
both sets of values change places, in place: one module, sharded and packed as it is, serves both, and the policy comes
back to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dapo.models.adapter import switched_off
from dapo.models.loaded import LoadedModel

if TYPE_CHECKING:  # the schema needs pydantic, and who brings settings of its own does not
    from dapo.config import schema


class Reference:
    """Frozen values of the policy's trained parameters; of an adapter that is never refreshed there are none to keep,
    since the model without it is the reference.

    Args:
        loaded: The policy, with the weights that the reference shall have.
        settings: The recipe's ``algorithm.reference``.
    """

    def __init__(self, loaded: LoadedModel, settings: schema.ReferenceSection) -> None:
        self._model: nn.Module = loaded.model
        self.refreshed = settings.refresh_every is not None
        self._off = loaded.adapter and not self.refreshed
        self._frozen = {
            name: _copy(parameter, settings.offload)
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and not self._off
        }

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model compute as the reference; no gradient may be computed meanwhile."""
        if self._off:
            with switched_off(self._model):
                yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def refresh(self) -> None:
        """From now on the reference is the present policy."""
        for name, parameter in self._trained().items():
            self._frozen[name].copy_(parameter)

    def state(self) -> dict[str, Tensor]:
        """Return the values by parameter name, for a checkpoint."""
        return self._frozen

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        for name, frozen in self._frozen.items():
            frozen.copy_(tensors[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._trained().items():
            frozen = self._frozen[name]
            before = parameter.detach().clone()
            parameter.copy_(frozen)
            frozen.copy_(before)

    def _trained(self) -> dict[str, nn.Parameter]:
        own = dict(self._model.named_parameters())
        return {name: own[name] for name in self._frozen}


def _copy(parameter: Tensor, offload: bool) -> Tensor:
    values = parameter.detach()
    return values.to("cpu", copy=True) if offload else values.clone()
