"""Make an engine from a picklable specification, in this process or in another one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers.utils.logging import disable_progress_bar

from dapo.config.schema import Model, Rollout
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.generate import GenerateEngine
from dapo.engines.host import EngineHost
from dapo.engines.stops import StopStrings
from dapo.models.decode import DecodeSpec
from dapo.models.load import load_model
from dapo.models.loaded import LoadedModel
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine

SERVER_SECONDS = 1.0
"""The longest turn of a server, in seconds: it decodes by itself, and new requests wait for the end of a turn."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How the driver reaches one vLLM server."""

    url: str
    work: str  # what this trainer works on, for another one that finds the server taken
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything that one engine is made of. Example: ``EngineSpec(rollout, model, facts, longest=512, slots=64)``."""

    rollout: Rollout  # the recipe's section
    model: Model  # the recipe's section, whose device is the one that the engine's process sees
    facts: ModelFacts  # of the model, which lies at ``facts.name``
    longest: int  # tokens of the longest sequence that will be requested
    slots: int | None = None  # responses that decode at once; None: the engine chooses
    threads: int = 1  # of torch, in a process of the engine's own
    strings: StopStrings | None = None  # for vLLM; the other engines have the model's tokenizer
    reserve: int = 0  # bytes that a learner holds on the same device
    server: ServerAccess | None = None  # for vllm_server
    adapter: bool = False  # the learner sends the adapter of ``model.lora`` by itself
    record_routes: bool = False  # give the experts of each token
    keeps: bool = False  # an environment answers between two parts of a response
    decode: DecodeSpec | None = None  # in a process of its own: how it makes the texts of responses


def make_engine(spec: EngineSpec, loaded: LoadedModel | None = None, *, shares_weights: bool = False) -> Engine:
    """Make the engine in this process.

    Args:
        spec: what it is made of.
        loaded: the model of an ``embedded`` or ``generate`` engine; None: the engine loads one.
        shares_weights: the learner of this process trains that very model.

    Raises:
        EngineError: the engine does not start, or cannot run the model.
        ModelError: the model cannot be loaded.
    """
    rollout, model, facts = spec.rollout, spec.model, spec.facts
    if rollout.engine == "vllm":
        from dapo.engines.vllm import VllmEngine

        return VllmEngine(
            facts,
            cuda=model.device != "cpu",
            longest=spec.longest,
            slots=spec.slots,
            settings=rollout.vllm,
            trust_remote_code=model.trust_remote_code,
            fp32_head=model.fp32_head,
            strings=spec.strings,
            adapter_rank=model.lora.rank if spec.adapter else None,
            record_routes=spec.record_routes,
        )
    if rollout.engine == "vllm_server":
        from dapo.engines.vllm_server import ServerEngine

        assert spec.server is not None
        return ServerEngine(
            spec.server.url,
            spec.server.work,
            vocabulary=facts.vocabulary,
            longest=spec.longest,
            config=facts.config,
            slots=spec.slots,
            patience=rollout.server.patience,
            api_key=spec.server.api_key,
            strings=spec.strings,
        )
    if loaded is None:
        loaded = load_model(
            facts.name,
            dtype=model.dtype,
            device=model.device,
            trust_remote_code=model.trust_remote_code,
            attention_mode="padded",  # packing is the learner's
            fp32_head=model.fp32_head,
        )
    if rollout.engine == "generate":
        return GenerateEngine(loaded, slots=spec.slots, shares_weights=shares_weights)
    return EmbeddedEngine(
        loaded,
        slots=spec.slots,
        longest=spec.longest,
        reserve=spec.reserve,
        shares_weights=shares_weights,
        cuda_graphs=rollout.embedded.cuda_graphs,
        recompute_cache=rollout.embedded.recompute_cache,
        record_routes=spec.record_routes,
        keeps=spec.keeps,
    )


def engine_host(spec: EngineSpec) -> EngineHost:
    """Make a pool's engine in its own process, or a server's client in a thread of the driver.

    Raises: as ``make_engine``.
    """
    if spec.server is not None:
        return EngineHost(make_engine, spec, seconds=SERVER_SECONDS)
    torch.set_num_threads(spec.threads)
    torch.set_float32_matmul_precision(spec.model.matmul_precision)
    disable_progress_bar()
    return EngineHost(make_engine, spec, decode=None if spec.decode is None else spec.decode.make())
