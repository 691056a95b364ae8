"""Fused decoding for the Llama family: the same mathematics as the model's own forward, with few operations.

Query, key and value matrices are one matrix, as are gate and up; both are copies, made again by :meth:`refresh`
after every weight change. All other weights are read in place from the model. Rotary embedding is one complex
product: the rows of the query and key matrices are permuted so that the two numbers of a pair lie side by side,
which leaves every query-key product as it is.

In float32, RMSNorm before a fused matrix W costs two operations instead of six: x / |(x, c)| with c^2 = width * eps
is the norm without its gain, and W takes the gain times sqrt(width) into its columns. The residual stream carries c as
one column more. (In bfloat16 that would round W once more, so the norm stays as it is.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dapo.engines.cache import DecodeBatch
from dapo.engines.graphs import StepGraphs
from dapo.engines.kept import Past
from dapo.engines.pools import CacheShape, Prefilled
from dapo.engines.traffic import send
from dapo.models.adapter import weight_of
from dapo.models.attention import causal_attention
from dapo.models.checksum import same_bits
from dapo.models.loaded import LoadedModel

ARCHITECTURES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}  # those whose frequencies do not depend on the length

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, query [rows, heads, d] scaled and rotated, keys and values [rows, 2 x kv heads, d]) -> [rows, heads x d]"""


def why_not(model: Any) -> str | None:
    """Return the reason why :class:`FusedDecoder` cannot decode ``model``; None when it can be tried."""
    config: Any = model.config
    if type(model).__name__ not in ARCHITECTURES:
        return f"architecture {type(model).__name__} is not one of {', '.join(sorted(ARCHITECTURES))}"
    if config.hidden_act not in ("silu", "swish"):
        return f"activation {config.hidden_act} is not silu"
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    if set(layer_types) != {"full_attention"} or (
        type(model).__name__ == "MistralForCausalLM" and config.sliding_window is not None
    ):
        return "some layers see only a window"
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in _ROPE_TYPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"rotary embedding {rope} is not supported"
    projection = getattr(model.model.layers[0].self_attn, "q_proj", None)
    if not isinstance(getattr(projection, "base_layer", projection), nn.Linear):  # below an adapter
        return "its projections are not plain linear layers"
    return None


class Rotations(NamedTuple):
    """Rotations of a step's tokens, complex."""

    queries: Tensor  # [rows, 1, d/2], scaled by 1/sqrt(d)
    keys: Tensor  # [rows, 1, d/2]
    both: Tensor | None  # [rows, heads + kv heads, d/2]: those, then these; None where they turn apart


def _pairs(heads: int, d: int, device: torch.device) -> Tensor:
    """Row order that puts i and i + d/2 of each head side by side [heads x d]."""
    within = torch.arange(d, device=device).view(2, d // 2).t().reshape(-1)
    return (torch.arange(heads, device=device)[:, None] * d + within).reshape(-1)


class _Layer:
    """One transformer layer with its fused matrices."""

    def __init__(self, layer: Any, order: Tensor, folded: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._folded = folded  # norm gains are part of the fused matrices
        self._order = order  # of the rows of query and key matrices
        self._projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._gates = (mlp.gate_proj, mlp.up_proj)
        self._head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self._o, self._down = attention.o_proj, mlp.down_proj
        self._norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self.head_dim = int(attention.head_dim)
        self.heads = self._projections[0].out_features // self.head_dim
        self.kv_heads = self._projections[1].out_features // self.head_dim
        self.eps: float = self._norms[0].variance_epsilon
        self.head_eps: float = 0.0 if self._head_norms[0] is None else self._head_norms[0].variance_epsilon
        self.qkv: Tensor | None = None
        self.qkv_bias: Tensor | None = None
        self.gates_bias: Tensor | None = None
        self.head_norms: list[Tensor | None] = [None, None]
        self.o, self.down = weight_of(self._o), weight_of(self._down)
        self.refresh()

    def refresh(self) -> None:
        q, k, v = self._projections
        nq, nk = self.heads * self.head_dim, self.kv_heads * self.head_dim
        order_q, order_k = self._order[:nq], self._order[:nk]
        qkv = torch.cat([weight_of(q)[order_q], weight_of(k)[order_k], weight_of(v)])
        gates = torch.cat([weight_of(gate) for gate in self._gates])
        self.norms = [norm.weight for norm in self._norms]
        if self._folded:
            qkv *= self.norms[0] * math.sqrt(qkv.shape[1])
            gates *= self.norms[1] * math.sqrt(gates.shape[1])
        if self.qkv is None:
            self.qkv, self.gates = qkv, gates
        else:  # in place: addresses stay, as a captured graph needs them to
            self.qkv.copy_(qkv)
            self.gates.copy_(gates)
        biases = [gate.bias for gate in self._gates]
        if q.bias is not None:
            self.qkv_bias = _at(self.qkv_bias, torch.cat([q.bias[order_q], k.bias[order_k], v.bias]))
        if biases[0] is not None:
            self.gates_bias = _at(self.gates_bias, torch.cat(biases))
        for index, norm in enumerate(self._head_norms):
            if norm is not None:
                self.head_norms[index] = _at(self.head_norms[index], norm.weight[self._order[: self.head_dim]])
        self.qkv_t, self.gates_t = self.qkv.t(), self.gates.t()
        self.o, self.down = _again(self.o, weight_of(self._o)), _again(self.down, weight_of(self._down))
        self.o_t, self.down_t = self.o.t(), self.down.t()
        self.o_bias, self.down_bias = self._o.bias, self._down.bias

    def tensors(self) -> dict[str, Tensor]:
        """Everything that this layer computes with, by attribute: what is derived and what is read in place."""
        found: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            for number, part in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(part, Tensor):
                    found[name if part is value else f"{name}.{number}"] = part
        return found

    def _norm(self, stream: Tensor, x: Tensor, which: int) -> Tensor:
        if self._folded:
            length: Tensor = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
            return x / length
        return F.rms_norm(x, x.shape[1:], self.norms[which], self.eps)

    def _rotated(self, by_head: Tensor, turns: Rotations) -> tuple[Tensor, Tensor]:
        """Return rotated queries [rows, heads, d], and keys with values [rows, 2 x kv heads, d], of ``by_head``."""
        d, nq = self.head_dim, self.heads
        q, k, kv = by_head[:, :nq], by_head[:, nq : nq + self.kv_heads], by_head[:, nq:]
        if self.head_norms[0] is not None:
            q = F.rms_norm(q, (d,), self.head_norms[0], self.head_eps)
            k.copy_(F.rms_norm(k, (d,), self.head_norms[1], self.head_eps))
        elif turns.both is not None:  # a launch each for queries and keys together, on a card
            both = torch.view_as_real(_complex(by_head[:, : nq + self.kv_heads]) * turns.both).flatten(-2)
            k.copy_(both[:, nq:])
            return both[:, :nq].to(by_head.dtype), kv
        return _rotate(q, turns.queries), _rotate_(k, turns.keys, kv)

    def forward(self, stream: Tensor, turns: Rotations, index: int, attend: Attend) -> None:
        """Add this layer's contribution to the residual stream [rows, width (+ 1 when folded)], in place."""
        x = stream[:, : self.qkv_t.shape[0]]
        h = self._norm(stream, x, 0)
        qkv = torch.mm(h, self.qkv_t) if self.qkv_bias is None else torch.addmm(self.qkv_bias, h, self.qkv_t)
        by_head = qkv.view(-1, self.heads + 2 * self.kv_heads, self.head_dim)
        out = attend(index, *self._rotated(by_head, turns))
        x.addmm_(out, self.o_t)
        if self.o_bias is not None:
            x.add_(self.o_bias)
        h = self._norm(stream, x, 1)
        both = torch.mm(h, self.gates_t) if self.gates_bias is None else torch.addmm(self.gates_bias, h, self.gates_t)
        gate, up = both.chunk(2, dim=-1)
        x.addmm_(F.silu(gate).mul_(up), self.down_t)
        if self.down_bias is not None:
            x.add_(self.down_bias)


def _at(before: Tensor | None, now: Tensor) -> Tensor:
    """``now``, at the address that it had before."""
    return now.detach() if before is None else before.copy_(now)


def _again(before: Tensor, now: Tensor) -> Tensor:
    """``now`` where it is read in place; a merged one goes to the address that it had."""
    return now if now is before or isinstance(now, nn.Parameter) else before.copy_(now)


def _complex(x: Tensor) -> Tensor:
    """[rows, heads, d] real -> [rows, heads, d/2] complex64 (a view when x is float32)."""
    return torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    return torch.view_as_real(_complex(x) * turn).flatten(-2).to(x.dtype)


def _rotate_(x: Tensor, turn: Tensor, result: Tensor) -> Tensor:
    """Rotate ``x`` in place; returns ``result``, the tensor that ``x`` is a part of."""
    if x.dtype == torch.float32:
        _complex(x).mul_(turn)
    else:
        x.copy_(torch.view_as_real(_complex(x) * turn).flatten(-2))
    return result


class FusedDecoder:
    """Decodes Llama, Mistral, Qwen2 and Qwen3 models from their weights; :func:`why_not` says which."""

    name = "fused"

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        model: Any = loaded.model
        self._model = model.model
        first = self._model.layers[0].self_attn
        heads, d = first.q_proj.out_features // first.head_dim, int(first.head_dim)
        self._scaling: float = first.scaling
        self._order = _pairs(heads, d, loaded.device)
        self._eps: float = self._model.norm.variance_epsilon
        self._folded = loaded.dtype == torch.float32
        self._layers = [_Layer(layer, self._order, self._folded) for layer in self._model.layers]
        kv_heads = self._layers[0].kv_heads
        self.shape = CacheShape(len(self._layers), kv_heads, d, loaded.dtype, loaded.device)
        self._rope = self._rope_table(256)
        self._graphs: StepGraphs | None = None

    def use_graphs(self, graphs: StepGraphs, longest: int | None) -> None:
        """Record steps as CUDA graphs from now on; no sequence is longer than ``longest`` (None: unknown)."""
        self._graphs = graphs
        self._reach(longest or 0)
        graphs.weights_at(self._addresses())

    def _addresses(self) -> tuple[int, ...]:
        """Return the addresses of all tensors, apart from the cache, that a step reads."""
        tensors = [tensor for layer in self._layers for tensor in layer.tensors().values()]
        tensors += [self._model.embed_tokens.weight, self._model.norm.weight]
        return tuple(tensor.data_ptr() for tensor in (*tensors, *self._rope))

    def refresh(self) -> None:
        """Make the fused matrices again, since the model's weights have changed."""
        for layer in self._layers:
            layer.refresh()
        if self._graphs is not None:
            self._graphs.weights_at(self._addresses())

    def stale(self) -> list[str]:
        """Tensors of the layers that differ from those of a layer made now; one layer in memory at a time.

        Every tensor attribute is looked at, so that one which a later change adds and ``refresh`` forgets is met too.
        """
        found = []
        for index, (layer, source) in enumerate(zip(self._layers, self._model.layers, strict=True)):
            now = _Layer(source, self._order, self._folded).tensors()
            have = layer.tensors()
            found += [f"layers.{index}.{name}" for name in now if not same_bits(have[name], now[name])]
        return found

    def _rope_table(self, positions: int) -> tuple[Tensor, Tensor]:
        """Rotation of queries (scaled by 1/sqrt(d)) and keys at each position: complex [positions, 1, d/2]."""
        at = torch.arange(positions, device=self._loaded.device)[None]
        cos, sin = self._model.rotary_emb(torch.empty(0, dtype=torch.float32, device=self._loaded.device), at)
        half = cos.shape[-1] // 2
        keys = torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None]
        return keys * self._scaling, keys

    def _reach(self, limit: int) -> None:
        """Make the rotations of positions below ``limit``."""
        if limit > len(self._rope[0]):
            self._rope = self._rope_table(max(limit, 2 * len(self._rope[0])))
            if self._graphs is not None:
                self._graphs.weights_at(self._addresses())

    def _turns(self, positions: Tensor) -> Rotations:
        queries, keys = (table.index_select(0, positions) for table in self._rope)
        layer = self._layers[0]
        if self._folded or layer.head_norms[0] is not None:  # float32 turns in place, and norms come between
            return Rotations(queries, keys, None)
        both = torch.cat([queries.expand(-1, layer.heads, -1), keys.expand(-1, layer.kv_heads, -1)], dim=1)
        return Rotations(queries, keys, both)

    def _forward(self, tokens: Tensor, turns: Rotations, attend: Attend) -> Tensor:
        x = F.embedding(tokens, self._model.embed_tokens.weight)
        stream, width = x, x.shape[1]
        if self._folded:
            stream = x.new_full((len(x), width + 1), math.sqrt(width * self._eps))
            stream[:, :width] = x
        for index, layer in enumerate(self._layers):
            layer.forward(stream, turns, index, attend)
        return stream[:, :width]

    def _logits(self, x: Tensor) -> Tensor:
        return self._loaded.head(F.rms_norm(x, x.shape[1:], self._model.norm.weight, self._eps)).float()

    def prefill(self, tokens: Tensor, lengths: Sequence[int], past: Past | None = None) -> Prefilled:
        """Keys, values and next-token logits of ``tokens`` [sequences, length], right-padded, behind ``past``."""
        rows, length = tokens.shape
        shape = self.shape
        size = (shape.layers, 2, rows, shape.kv_heads, length, shape.head_dim)
        kept = torch.empty(size, dtype=shape.dtype, device=shape.device) if past is None else past.kv
        mask = None if past is None else past.visible()

        def attend(layer: int, query: Tensor, kv: Tensor) -> Tensor:
            by_row = kv.view(rows, length, 2, shape.kv_heads, shape.head_dim).permute(2, 0, 3, 1, 4)
            if past is None:
                kept[layer] = by_row
            else:
                past.write(layer, by_row[0], by_row[1])
            q = query.view(rows, length, -1, shape.head_dim).transpose(1, 2)
            out = causal_attention(q, kept[layer, 0], kept[layer, 1], 1.0, mask)
            return out.transpose(1, 2).reshape(rows * length, -1)

        self._reach(kept.shape[4])
        positions = torch.arange(length, device=shape.device).repeat(rows)
        if past is not None:
            positions = past.positions.reshape(-1)
        x = self._forward(tokens.reshape(-1), self._turns(positions), attend)
        last = send(np.arange(rows) * length + np.array(lengths) - 1, shape.device)
        return Prefilled(kept, self._logits(x.index_select(0, last)))

    def decode(self, tokens: Tensor, batch: DecodeBatch) -> Tensor:
        """Logits [rows, vocabulary] of the token after ``tokens`` [rows], which enter the cache."""
        self._reach(batch.widest)

        def step(given: Tensor) -> Tensor:
            return self._forward(given, self._turns(batch.positions), batch.attend)

        return self._logits(step(tokens) if self._graphs is None else self._graphs.run(tokens, batch, step))
