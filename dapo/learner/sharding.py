"""A policy whose parameters are cut over ranks (FSDP2): each rank holds a slice of every tensor.

Gradients are sums over ranks, never means: the driver's weights per token already hold every denominator. What is
gathered for a pass belongs to the weights of that moment, so it is let go before they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from dapo.errors import ModelError
from dapo.models.adapter import active
from dapo.models.loaded import LoadedModel
from dapo.models.policy import Policy

T = TypeVar("T")

LARGE = 2**26
"""Numbers in an embedding or a head that make it a group of its own, gathered only while it computes."""
KEPT_WHOLE = 3_000_000_000
"""Parameters up to which ``reshard_after_forward: auto`` keeps a gathered layer until the optimiser step: bfloat16
weights and float32 gradients of so many are 18 GB on every rank."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How ranks share a model."""

    ranks: int = 1
    replicas: int = 1  # copies of the model; each is cut over ranks / replicas
    reshard: bool | None = None  # free a layer between its forward and its backward pass; None: by the model's size
    cpu_offload: bool = False  # parameters, gradients and moments live in the processor's memory
    context_parallel: int = 1  # neighbouring ranks of one replica that share each row

    def mesh(self, device: torch.device) -> DeviceMesh:
        """Return the mesh of all ranks of the process group. Ranks of one replica are neighbours."""
        from torch.distributed.device_mesh import init_device_mesh

        if self.replicas == 1:
            return init_device_mesh(device.type, (self.ranks,), mesh_dim_names=("shard",))
        shape = (self.replicas, self.ranks // self.replicas)
        return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


class Sharding:
    """A model cut over the ranks of a mesh, in place; its parameters become DTensors.

    Args:
        loaded: The model, whole or with parameters on the meta device. Those that are trained are float32 (or
            float64): a model that computes in bfloat16 casts what it gathers, and slices, gradients and their sum stay
            float32.
        mesh: One dimension, or two: replicas and shards.
        shape: See there.
        large: Numbers that make an embedding or a head of its own large.

    Raises:
        ModelError: ranks would hold no experts.
    """

    def __init__(self, loaded: LoadedModel, mesh: DeviceMesh, shape: Shape, *, large: int = LARGE) -> None:
        check_experts(loaded, shape)
        self.policy = Policy(loaded)
        self.mesh = mesh
        self.rank, self.shards = mesh.get_rank(), shape.ranks // shape.replicas
        parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
        self.reshard = parameters > KEPT_WHOLE if shape.reshard is None else shape.reshard
        offload: OffloadPolicy = OffloadPolicy()
        if shape.cpu_offload:
            offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
        options: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": _precision(loaded.dtype),
            "offload_policy": offload,
        }
        apart = _large(self.policy, large)
        for module in [*loaded.decoder.layers, *apart]:
            fully_shard(module, reshard_after_forward=self.reshard, **options)
        self._apart = [module for module in apart if isinstance(module, FSDPModule)]
        # The head is found a second time, as the model's own module.
        theirs = {parameter for module in apart for parameter in module.parameters()}
        self._root: FSDPModule = fully_shard(self.policy, reshard_after_forward=False, ignored_params=theirs, **options)
        for module in self._groups():
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # or gloo refuses the factor, and a mean is taken instead

    def before_backward(self, *, last: bool) -> None:
        """Before each pass with a gradient; ``last`` of the optimiser step.

        Where layers stay gathered, gradients add up here and are summed over ranks once.
        """
        self._root.set_is_last_backward(last)
        if not self.reshard:
            self._root.set_requires_gradient_sync(last)
            self._root.set_reshard_after_backward(last)

    def release(self) -> None:
        """Let go of everything gathered. A forward pass alone leaves the root group whole, which would stay old."""
        for module in self._groups():
            module.reshard()

    def inside(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the root's forward pass, where modules below it can be called; every rank does."""

        def gathered() -> T:
            for module in self._apart:  # the model's own forward pass calls the head past its group
                module.unshard()
            return work()

        try:
            found: T = self.policy(gathered)
            return found
        finally:
            self.release()

    def _groups(self) -> Iterator[FSDPModule]:
        return (module for module in self.policy.modules() if isinstance(module, FSDPModule))


def check_experts(loaded: LoadedModel, shape: Shape) -> None:
    """Refuse a mixture of experts that leaves ranks without any: the others would hold theirs, and may not fit.

    Raises:
        ModelError: with the numbers of ranks and replicas that are possible.
    """
    counts = {len(p) for p in loaded.model.parameters() if p.dim() == 3}
    shards = shape.ranks // shape.replicas
    if all(_reaches_all(count, shards) for count in counts):
        return
    fewest = min(count for count in counts if not _reaches_all(count, shards))

    def fits(parts: int) -> bool:
        return all(_reaches_all(count, parts) for count in counts)

    replicas = [n for n in range(1, shape.ranks + 1) if shape.ranks % n == 0 and fits(shape.ranks // n)]
    ranks = [n for n in range(1, shards) if fits(n)][-3:]
    raise ModelError(
        f"{shards} ranks share {loaded.name}, and its layers of {fewest} experts leave ranks without any, while others "
        f"hold {-(-fewest // shards)}: experts are not divided. Set learner.replicas to "
        f"{' or '.join(map(str, replicas))}, or learner.ranks / learner.replicas to {' or '.join(map(str, ranks))}"
    )


def _reaches_all(rows: int, parts: int) -> bool:
    """Whether FSDP2, which gives each rank equally many rows as far as they go, has some for the last."""
    return -(-rows // parts) * (parts - 1) < rows


def _precision(dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Return the policy of types; inputs are ids and a context object, which no policy need cast."""
    if dtype in (torch.float32, torch.float64):
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def _large(policy: Policy, large: int) -> list[nn.Module]:
    """Embedding and head where they are large. Tied ones are one tensor, which only the root can hold."""
    embedding, output = policy.model.get_input_embeddings(), policy.output
    head = active(output.head)
    if active(embedding).weight is head.weight:
        return []
    sizes: list[tuple[nn.Module, int]] = [
        (embedding, active(embedding).weight.numel()),
        (output, head.weight.numel()),
    ]
    return [module for module, size in sizes if size >= large]
