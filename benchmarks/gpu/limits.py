"""What the card can do at best, measured: the numbers that all others are held against."""

from __future__ import annotations

import torch

from benchmarks.gpu.room import Room
from benchmarks.gpu.timing import median_seconds

BANDWIDTH, PEAK = "bandwidth of a copy, bytes read and written", "bfloat16 matrix peak"
_HEAT = 0.3  # seconds


def card_limits(room: Room) -> None:
    """A large copy, and a large product of random numbers (zeros run faster than data does)."""
    room.rate(BANDWIDTH, _bandwidth(room), "B/s", main=True)
    room.rate(PEAK, _product(room, torch.bfloat16, room.sized(8192, 256)), "FLOP/s", main=True)
    room.rate("float32 matrix peak", _product(room, torch.float32, room.sized(4096, 256)), "FLOP/s")


def _bandwidth(room: Room) -> float:
    count = room.sized(2**31, 2**22)  # 4 GiB of bfloat16, many times any cache
    if room.on_card:
        count = min(count, torch.cuda.mem_get_info()[0] // 16)  # a slice of a card
    source = torch.ones(count, device=room.device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), room.device, 10, heat=_HEAT)


def _product(room: Room, dtype: torch.dtype, size: int) -> float:
    generator = torch.Generator(room.device).manual_seed(0)
    a, b = (torch.randn(size, size, device=room.device, dtype=dtype, generator=generator) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: a @ b, room.device, 20, warm=5, heat=_HEAT)
