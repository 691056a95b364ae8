"""Tensors that have a CUDA device and shapes, and no memory: what runs on them asks no card for anything.

An operator that meets tensors of two devices raises, and so does whatever reads a value (``item``, ``if tensor``, an
index by a mask), which on a card waits for it. It needs torch's build for CUDA, and no card.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch._subclasses import FakeTensorMode

from dapo.models.loaded import LoadedModel

NEEDS_CUDA_BUILD = pytest.mark.skipif(
    torch.version.cuda is None, reason="this torch is built for CPUs alone: it does not know CUDA's devices"
)
CARD = torch.device("cuda:0")


@contextmanager
def fake_card() -> Iterator[None]:
    """Arrays and tensors that are sent to a device within are without memory."""
    mode, from_numpy = FakeTensorMode(allow_non_fake_inputs=True), torch.from_numpy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "from_numpy", lambda array: mode.from_tensor(from_numpy(array)))
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)  # torch has no fake one
        patch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**33, 2**34))
        with mode:
            yield


def move(loaded: LoadedModel) -> LoadedModel:
    """The model on that card; within ``fake_card``."""
    for module in loaded.model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=CARD)
            setattr(module, name, torch.nn.Parameter(empty))
        for name, tensor in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(tensor.shape, dtype=tensor.dtype, device=CARD))
    loaded.model.tie_weights()
    loaded.device = CARD
    return loaded
