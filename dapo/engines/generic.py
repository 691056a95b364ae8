"""Decoding with the unmodified transformers model, for every architecture whose attention can be routed.

The model calls the attention function of ``dapo.models.attention``, which hands each layer's queries, keys and values
to a context: :class:`_PrefillContext` keeps them, :class:`SlotContext` writes them into the slot cache and attends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dapo.engines.cache import DecodeBatch
from dapo.engines.kept import Past
from dapo.engines.pools import CacheShape, Prefilled
from dapo.engines.traffic import send
from dapo.errors import EngineError
from dapo.models import attention
from dapo.models.loaded import LoadedModel

# Keyword arguments of transformers' attention calls that change what is computed and that no context here knows.
_UNSUPPORTED = {"softcap": "a soft cap of its scores", "s_aux": "attention sinks"}


def _refuse_unknown(options: dict[str, Any]) -> None:
    for name, words in _UNSUPPORTED.items():
        if options.get(name) is not None:
            raise EngineError(f"the model's attention has {words} ({name}), which the slot cache does not compute")


class _PrefillContext:
    """Plain causal attention over right-padded rows, behind a past; keeps each layer's keys and values."""

    def __init__(self, past: Past | None = None) -> None:
        self._past = past
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, **options: Any
    ) -> Tensor:
        _refuse_unknown(options)
        layer: Any = module.layer_idx
        window, length = options.get("sliding_window"), query.shape[2]
        mask = None
        if self._past is not None:
            self._past.write(layer, key, value)
            key, value = self._past.kv[layer]
            mask = self._past.visible(window)
        self.keys[layer], self.values[layer] = key, value
        if mask is None and window is not None and window < length:
            back = torch.arange(length, device=query.device)[:, None] - torch.arange(length, device=query.device)
            mask = (back >= 0) & (back < window)
        return attention.causal_attention(query, key, value, scaling, mask).transpose(1, 2)

    def stacked(self, layers: int) -> Tensor:
        """Return the keys and values of all layers [layers, 2, rows, kv heads, tokens, d].

        Raises:
            EngineError: the slot cache cannot hold them.
        """
        if self._past is not None:
            return self._past.kv
        order = sorted(self.keys)
        if order != list(range(layers)):
            raise EngineError(
                f"{len(order)} of its {layers} layers have attention over keys and values; the others keep a state of "
                "another kind (linear attention, a convolution), for which the slot cache has no place"
            )
        sizes = sorted({(*self.keys[i].shape[1::2], *self.values[i].shape[1::2]) for i in order})
        if len(sizes) > 1 or sizes[0][:2] != sizes[0][2:]:
            said = "; ".join(f"{k} keys of {d} numbers and {v} values of {e}" for k, d, v, e in sizes)
            raise EngineError(f"the slot cache needs equal keys and values in every layer; a token has {said}")
        return torch.stack([torch.stack([self.keys[i], self.values[i]]) for i in order])


class SlotContext:
    """One decode step: writes this step's keys and values into the slot cache and attends over it."""

    def __init__(self, batch: DecodeBatch) -> None:
        self._batch = batch

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, **options: Any
    ) -> Tensor:
        _refuse_unknown(options)
        layer: Any = module.layer_idx
        kv = torch.cat([key[:, :, 0], value[:, :, 0]], dim=1)
        out = self._batch.attend(layer, query[:, :, 0] * scaling, kv, options.get("sliding_window"))
        return out.view(query.shape[0], 1, query.shape[1], -1)


@contextmanager
def sampling_mode(model: Any, implementation: str | None = None) -> Iterator[None]:
    """``model`` in evaluation mode, and with another attention implementation (None: its present one), for a while."""
    before, training = model.config._attn_implementation, model.training
    if implementation not in (None, before):
        model.set_attn_implementation(implementation)
    if training:
        model.eval()
    try:
        yield
    finally:
        if implementation not in (None, before):
            model.set_attn_implementation(before)
        if training:
            model.train()


class GenericDecoder:
    """Runs the transformers model itself, one token per row and step, over the slot cache."""

    name = "generic"

    def __init__(self, loaded: LoadedModel) -> None:
        attention.register()
        self._loaded = loaded
        self._model: Any = loaded.model
        probe = self.prefill(torch.zeros((1, 1), dtype=torch.int64, device=loaded.device), [1])
        layers, _, _, kv_heads, _, d = probe.kv.shape
        self.shape = CacheShape(layers, kv_heads, d, probe.kv.dtype, loaded.device)

    def refresh(self) -> None:
        """Nothing here is derived from weights."""

    def stale(self) -> list[str]:
        """Nothing can be."""
        return []

    def _logits(self, context: attention.AttentionContext, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """[rows, vocabulary] at index ``last`` [rows] of ``tokens`` [rows, length]."""
        with sampling_mode(self._model, attention.NAME):
            out = self._loaded.decoder(
                input_ids=tokens, position_ids=positions, use_cache=False, attention_context=context
            )
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        return self._loaded.head(out.last_hidden_state[rows, last]).float()

    def prefill(self, tokens: Tensor, lengths: Sequence[int], past: Past | None = None) -> Prefilled:
        """Keys, values and next-token logits of ``tokens`` [sequences, length], right-padded, behind ``past``."""
        context = _PrefillContext(past)
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if past is not None:
            positions = past.positions
        last = send(np.array(lengths) - 1, tokens.device)
        logits = self._logits(context, tokens, positions, last)
        return Prefilled(context.stacked(self._model.config.get_text_config().num_hidden_layers), logits)

    def decode(self, tokens: Tensor, batch: DecodeBatch) -> Tensor:
        """Logits [rows, vocabulary] of the token after ``tokens`` [rows], which enter the cache."""
        first = torch.zeros_like(tokens)
        return self._logits(SlotContext(batch), tokens[:, None], batch.positions[:, None], first)
