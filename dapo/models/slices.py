"""A rank's slice of a tensor that is cut over ranks: FSDP2 cuts along the first dimension, in the ranks' order."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's slice of a DTensor, the tensor itself of any other; writing to it writes to the model."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def own_rows(tensor: Tensor) -> tuple[int, int]:
    """First row of this rank's slice of a DTensor, and how many it has."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return int(offset[0]), int(shape[0])


def own_slice(whole: Tensor, like: Tensor) -> Tensor:
    """Return the part of ``whole`` that belongs into this rank's slice of ``like``."""
    if not isinstance(like, DTensor):
        return whole
    first, rows = own_rows(like)
    return whole[first : first + rows]
