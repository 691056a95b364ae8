"""A CUDA device's work and memory, as the phases of a step ask for them."""

from __future__ import annotations

import gc

import torch

from dapo.metrics.stats import Stats, stat


def give_back() -> None:
    """Return this process's cached device memory to the driver, where other processes can take it.

    torch keeps what tensors leave, and an engine that wakes empties only its own process's cache.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def reserved() -> Stats:
    """Return ``memory/reserved_cuda_mib`` of this process; {} where it has no CUDA device."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    return stat("memory/reserved_cuda_mib", torch.cuda.memory_reserved() / 2**20)


class CudaMeter:
    """A ``Meter`` (``dapo.metrics.phases``) of a CUDA device of this process. It resets torch's own peak."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)

    def settle(self) -> None:
        """Wait until the device has done what it was given."""
        torch.cuda.synchronize(self._device)

    def peak(self) -> int:
        """Most bytes that tensors held since this was last asked."""
        held = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return int(held)


def meter_of(device: torch.device | None) -> CudaMeter | None:
    """None where there is nothing to wait for: no device of this process, or a CPU."""
    return CudaMeter(device) if device is not None and device.type == "cuda" else None
