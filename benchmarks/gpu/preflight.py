"""Is what this program needs of a card, its driver and torch's build there?"""

from __future__ import annotations

import inspect
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.gpu.child import installed
from benchmarks.gpu.room import Room
from benchmarks.gpu.shapes import PUBLISHED

_FIELDS = ("driver_version", "power.limit", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu")
_GIB = 2**30


def preflight(room: Room) -> None:
    """Versions, the card, bfloat16, attention kernels, free memory, vLLM."""
    for name in ("torch", "transformers", "vllm"):
        room.note(f"{name} version", _version(name))
    room.note("torch was built for CUDA", str(torch.version.cuda))
    room.note("float32 products may use TF32", torch.backends.cuda.matmul.allow_tf32)
    room.expect_true(
        "float32 products are exact until a recipe says otherwise", not torch.backends.cuda.matmul.allow_tf32
    )
    _attention(room)
    if room.on_card:
        _card(room)
    _bfloat16(room)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _card(room: Room) -> None:
    properties = torch.cuda.get_device_properties(0)
    room.note("card", properties.name)
    room.note("multiprocessors", properties.multi_processor_count)
    room.expect("compute capability", properties.major + properties.minor / 10, at_least=8.0)
    free, total = torch.cuda.mem_get_info(0)
    room.note("memory", total / _GIB, "GiB")
    room.expect("free memory, share of all", free / total, at_least=0.8)
    room.note("cards that torch sees", torch.cuda.device_count())
    for name, value in _asked(f"GPU-{properties.uuid}").items():
        room.note(f"nvidia-smi: {name}", value)
    room.expect_true("bfloat16 is the card's own", torch.cuda.is_bf16_supported(including_emulation=False))
    for shape in PUBLISHED.values():
        size = shape.head_size
        room.expect_true(f"{shape.name}: heads of {size} fit the kernels", size % 8 == 0 and size <= 256)


def _asked(card: str) -> dict[str, str]:
    """What nvidia-smi says of the card, where there is one; by name, as it numbers them its own way."""
    command = ["nvidia-smi", f"--id={card}", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=8, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"answer": f"none ({type(error).__name__})"}
    return dict(zip(_FIELDS, (value.strip() for value in said.strip().split(",")), strict=False))


def _attention(room: Room) -> None:
    """The variable-length kernel, which packed rows need in bfloat16, and the ones behind ordinary attention."""
    known = installed("torch.nn.attention.varlen")
    room.expect_true("torch has variable-length attention", known)
    if known:
        from torch.nn.attention.varlen import varlen_attn

        room.note("its arguments", ", ".join(inspect.signature(varlen_attn).parameters))
    for name in ("flash", "mem_efficient", "cudnn"):
        room.note(f"{name} attention enabled", getattr(torch.backends.cuda, f"{name}_sdp_enabled")())
    if known and room.on_card:
        _varlen(room)


def _varlen(room: Room) -> None:
    """One call with two sequences: queries end where their keys end, as packed rows assume."""
    from torch.nn.attention.varlen import varlen_attn

    generator = torch.Generator(room.device).manual_seed(0)
    q, k, v = (
        torch.randn(n, 4, 64, device=room.device, dtype=torch.bfloat16, generator=generator) for n in (5, 12, 12)
    )
    queries, keys = (torch.tensor(at, device=room.device, dtype=torch.int32) for at in ([0, 2, 5], [0, 5, 12]))
    found = varlen_attn(q, k, v, queries, keys, 3, 7, scale=0.125, window_size=(-1, 0))
    found = found if isinstance(found, torch.Tensor) else found[0]
    expected = []
    for (q0, q1), (k0, k1) in (((0, 2), (0, 5)), ((2, 5), (5, 12))):
        scores = torch.einsum("qhd,khd->hqk", q[q0:q1].double(), k[k0:k1].double()) * 0.125
        seen = torch.ones(q1 - q0, k1 - k0, device=room.device, dtype=torch.bool).tril((k1 - k0) - (q1 - q0))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        expected.append(torch.einsum("hqk,khd->qhd", weights, v[k0:k1].double()))
    wanted = torch.cat(expected)
    error = float((found.double() - wanted).norm() / wanted.norm())
    room.expect("variable-length kernel, causal from the end: relative error", error, at_most=0.01)


def _bfloat16(room: Room) -> None:
    """One product, held against float64."""
    generator = torch.Generator(room.device).manual_seed(0)
    a, b = (torch.randn(256, 256, device=room.device, dtype=torch.bfloat16, generator=generator) for _ in range(2))
    wanted = a.double() @ b.double()
    error = float(((a @ b).double() - wanted).norm() / wanted.norm())
    room.expect("bfloat16 product: relative error", error, at_most=0.01, at_least=1e-6)
