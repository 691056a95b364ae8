"""Seconds of work on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str) -> float:
    """Wall-clock seconds of one call, the device's work included."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], device: str, repeats: int, warm: int = 2, heat: float = 0.0) -> float:
    """Median over ``repeats`` calls, after ``warm`` that do not count, and on a card after ``heat`` seconds of them: a
    card that had nothing to do takes a while to raise its clocks."""
    for _ in range(warm):
        work()
    until = time.perf_counter() + (heat if device != "cpu" else 0.0)
    while time.perf_counter() < until:
        seconds(work, device)
    return statistics.median(seconds(work, device) for _ in range(repeats))


def peak_bytes(device: str) -> int:
    """Most bytes that tensors held since ``reset_peak``; 0 on a CPU, which does not count them."""
    return torch.cuda.max_memory_allocated() if device != "cpu" else 0


def reset_peak(device: str) -> None:
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
