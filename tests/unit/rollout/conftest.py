"""Tiny random models and requests for the engines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dapo.contracts.types import Partial, SampleEvent, SampleRequest, SamplingParams
from dapo.models.loaded import LoadedModel

VOCABULARY = 40


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


def prompt(group: int, length: int | None = None) -> np.ndarray:
    random = np.random.default_rng(group)
    return random.integers(2, VOCABULARY, length or int(random.integers(1, 12)))


def request(
    group: int, index: int = 0, *, seed: int | None = None, prefix: Partial | None = None, prompt_ids: Any = None,
    **sampling: Any,
) -> SampleRequest:  # fmt: skip
    params = SamplingParams(**({"max_tokens": 12, "stop_token_ids": (1,)} | sampling))
    tokens = prompt(group) if prompt_ids is None else np.asarray(prompt_ids)
    return SampleRequest((group, index), tokens, params, 1000 * group + index if seed is None else seed, prefix)


def drain(engine: Any) -> dict[tuple[int, int], SampleEvent]:
    events: dict[tuple[int, int], SampleEvent] = {}
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
