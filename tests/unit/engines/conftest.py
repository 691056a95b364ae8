"""Tiny random models and requests for the engines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine_requests import VOCABULARY, prompt, request
from transformers import AutoConfig, AutoModelForCausalLM

from dapo.models.loaded import LoadedModel
from dapo.types.batch import Response


def build(architecture: str = "llama", *, dtype: torch.dtype = torch.float32, **config: Any) -> LoadedModel:
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **(settings | config)))
        for name, parameter in model.named_parameters():  # norms and biases start at one and zero: make them matter
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    model = model.to(dtype).eval()
    return LoadedModel(model, None, (1,), 0, torch.device("cpu"), dtype, packed=False, name=architecture)


_SHARED: dict[str, LoadedModel] = {}


def shared(architecture: str = "llama", **config: Any) -> LoadedModel:
    name = f"{architecture} {config}"
    if name not in _SHARED:
        _SHARED[name] = build(architecture, **config)
    return _SHARED[name]


@pytest.fixture
def model() -> Callable[..., LoadedModel]:
    """Makes a model by architecture and configuration; do not change its weights."""
    return shared


@pytest.fixture
def fresh() -> Callable[..., LoadedModel]:
    """Like ``model``, but the caller's own."""
    return build


def drain(engine: Any) -> dict[tuple[int, int], Response]:
    events: dict[tuple[int, int], Response] = {}
    while got := engine.poll():
        events.update({event.key: event for event in got})
    return events


def forced_logprobs(loaded: LoadedModel, prompt_ids: Any, tokens: Any, temperature: float = 1.0) -> torch.Tensor:
    """[tokens, vocabulary]: the model's own log-probabilities before each response token, by one full forward pass."""
    ids = torch.tensor(np.concatenate([prompt_ids, tokens]))[None]
    with torch.no_grad():
        logits = loaded.model(ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


@pytest.fixture
def help() -> SimpleNamespace:
    return SimpleNamespace(
        prompt=prompt, request=request, drain=drain, forced_logprobs=forced_logprobs, vocabulary=VOCABULARY
    )
