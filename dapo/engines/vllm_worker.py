"""Code that runs inside vLLM's workers, dapo's own and a user's server: the class for ``--worker-extension-cls``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dapo.engines.vllm_sums import MIXTRAL, name_in, weight_sums
from dapo.models.weight_files import read_weights


class Lease(NamedTuple):
    """Which trainer a server serves."""

    name: str
    who: str
    end: float  # of the worker's monotonic clock


class WeightWorker:
    """Methods that vLLM mixes into each of its workers (``worker_extension_cls``), here and in a user's server."""

    model_runner: Any
    dapo_lease = Lease("", "", 0.0)

    def load_published(self, weights_path: str | None = None, tensors: Iterable[tuple[str, Tensor]] = ()) -> None:
        """Take new weights, from a folder or as tensors under their checkpoint names.

        Raises:
            FileNotFoundError: before anything is touched; a reload that fails half-way leaves a model that cannot run.
        """
        incoming = read_weights(Path(weights_path)) if weights_path is not None else iter(tensors)
        model = self.model_runner.get_model()
        self.model_runner.reload_weights(weights_iterator=as_in(model, incoming))
        repack_output_head(model)

    def weight_sums(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Return the checksums of this worker's weights: ``vllm_sums.weight_sums``."""
        return weight_sums(self.model_runner.get_model(), shapes)

    def model_facts(self) -> dict[str, Any]:
        """Return the model's configuration: its numbers, words and flags."""
        config: dict[str, Any] = json.loads(json.dumps(self.model_runner.model_config.hf_config.to_dict(), default=str))
        return config

    def claim_server(self, name: str, who: str, seconds: float) -> dict[str, Any]:
        """Take or renew the lease of a trainer on this server, unless another one holds it.

        Args:
            name: Of the trainer.
            who: It in words: its run, process and machine.
            seconds: For which no other trainer may have the server.

        Returns:
            ``name`` and ``who`` of the holder, and for how many ``seconds`` yet.
        """
        lease, now = self.dapo_lease, time.monotonic()
        if lease.name in ("", name) or lease.end <= now:
            self.dapo_lease = lease = Lease(name, who, now + seconds)
        return {"name": lease.name, "who": lease.who, "seconds": lease.end - now}

    def release_server(self, name: str) -> None:
        """Let the next trainer in."""
        if self.dapo_lease.name == name:
            self.dapo_lease = Lease("", "", 0.0)


def as_in(model: Any, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield published tensors as vLLM's ``model`` reads them.

    It takes all experts of a layer as one tensor, but for Mixtral, where it reads the files' names of single matrices.
    """
    for published, tensor in tensors:
        name = name_in(model, published)
        place, _, last = name.rpartition(".")
        if not place.endswith(f"{MIXTRAL}.experts"):
            yield name, tensor
            continue
        parts = {"w2": tensor}
        if last == "gate_up_proj":
            parts = dict(zip(("w1", "w3"), tensor.chunk(2, dim=1), strict=True))
        for part, matrices in parts.items():
            for expert, matrix in enumerate(matrices):
                yield f"{place}.{expert}.{part}.weight", matrix


def repack_output_head(model: Any) -> None:
    """Pack a tied output head again (vLLM 0.32, CPU build).

    There each matrix is packed for the kernel once, and a reload packs again what it loads. A head tied to the
    embedding is loaded under the embedding's name, so its packed copy would keep the old weights.
    """
    for module in model.modules():
        if hasattr(module, "cpu_linear") and type(module).__name__ in ("ParallelLMHead", "VocabParallelEmbedding"):
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
