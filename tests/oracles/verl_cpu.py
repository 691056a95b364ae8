"""A platform for verl that is a CPU: it has none of its own, and takes others (``VERL_USE_EXTERNAL_MODULES``)."""

from __future__ import annotations

from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class Module:
    """``torch.cpu``, with the counters of memory that a worker logs and a cache that there is not."""

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = staticmethod(lambda *_: 0)
    get_device_name = staticmethod(lambda *_: "CPU")
    mem_get_info = staticmethod(lambda *_: (0, 0))
    empty_cache = reset_peak_memory_stats = staticmethod(lambda *_: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """The rest of the protocol is of devices."""


class Cpu(PlatformBase):
    device_name, vendor_name, device_module = "cpu", "none", Module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "NO_DEVICES"

    def ray_noset_envvars(self) -> list[str]:
        return []


rest = dict.fromkeys(Cpu.__abstractmethods__, nothing)
PlatformRegistry.register(platform="cpu")(type("CpuPlatform", (Cpu,), rest))
