"""Engines as hosts of a pool: made where they live, from a description that travels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from dapo.config.schema import Rollout
from dapo.models.load import load_model
from dapo.rollout.embedded import EmbeddedEngine
from dapo.rollout.generate import GenerateEngine
from dapo.rollout.host import EngineHost
from dapo.rollout.stops import StopStrings
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine

SERVER_SECONDS = 1.0
"""A turn of a server is that long at most: it decodes by itself, and new requests wait for the end of a turn."""


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """What an engine is made of."""

    rollout: Rollout  # the recipe's section
    facts: ModelFacts
    path: str  # of the model
    dtype: str
    device: str  # as this host sees it
    longest: int  # tokens of the longest sequence that will be asked for
    slots: int | None = None
    threads: int = 1
    matmul_precision: str = "highest"
    trust_remote_code: bool = False
    fp32_head: bool = False
    strings: StopStrings | None = None  # for vLLM; the others have the model's tokenizer


def engine_host(order: EngineOrder) -> EngineHost:
    """An engine in a process of its own, with weights of its own.

    Raises:
        ModelError: the model cannot be loaded.
        EngineError: the engine cannot run it.
    """
    torch.set_num_threads(order.threads)
    torch.set_float32_matmul_precision(order.matmul_precision)
    return EngineHost(_make, order)


def _make(order: EngineOrder) -> Engine:
    if order.rollout.engine == "vllm":
        from dapo.rollout.vllm import VllmEngine

        return VllmEngine(
            order.facts,
            cuda=order.device != "cpu",
            longest=order.longest,
            slots=order.slots,
            settings=order.rollout.vllm,
            trust_remote_code=order.trust_remote_code,
            fp32_head=order.fp32_head,
            strings=order.strings,
        )
    disable_progress_bar()
    loaded = load_model(
        order.path,
        dtype=order.dtype,
        device=order.device,
        trust_remote_code=order.trust_remote_code,
        attention_mode="padded",  # packing is the learner's
        fp32_head=order.fp32_head,
    )
    if order.rollout.engine == "generate":
        return GenerateEngine(loaded, slots=order.slots, shares_weights=False)
    return EmbeddedEngine(
        loaded,
        slots=order.slots,
        shares_weights=False,
        longest=order.longest,
        cuda_graphs=order.rollout.embedded.cuda_graphs,
        recompute_cache=order.rollout.recompute_cache,
    )


@dataclass(frozen=True, slots=True)
class ServerOrder:
    """A vLLM server that runs somewhere."""

    url: str
    weights: Path  # that trainer and servers both see
    vocabulary: int
    longest: int
    config: object  # of the model
    slots: int | None
    patience: float
    api_key: str | None
    own_folder: bool
    strings: StopStrings | None = None


def server_host(order: ServerOrder) -> EngineHost:
    """Its client, which lives in a thread of the driver.

    Raises:
        EngineError: the server cannot be reached, or cannot serve this run.
    """
    from dapo.rollout.vllm_server import ServerEngine

    make = partial(
        ServerEngine,
        order.url,
        order.weights,
        vocabulary=order.vocabulary,
        longest=order.longest,
        config=order.config,  # type: ignore[arg-type]
        slots=order.slots,
        patience=order.patience,
        api_key=order.api_key,
        own_folder=order.own_folder,
        deletes=False,
        strings=order.strings,
    )
    return EngineHost(make, seconds=SERVER_SECONDS)
