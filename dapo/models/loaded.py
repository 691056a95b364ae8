"""A loaded model: the object that the learner and the embedded engine share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dapo.errors import ModelError
from dapo.models.adapter import active
from dapo.models.head import LOW, gradient_sink, low_precision_logits

if TYPE_CHECKING:
    from dapo.models.context import Unit
    from dapo.models.routing import Routing


def decoder_of(model: Any) -> Any:
    """Return the part of ``model`` that ends before its output head.

    ``get_decoder`` guesses, and returns the whole model where its guess fails (Llama 4); some models have none.

    Raises:
        ModelError: no part of the model is that.
    """
    head = model.get_output_embeddings()
    found = [getattr(model, "get_decoder", lambda: None)(), getattr(model, "base_model", None)]
    found.append(
        getattr(model, getattr(model, "base_model_prefix", "") or "model", None) or getattr(model, "model", None)
    )
    for part in found:
        if isinstance(part, nn.Module) and part is not model and all(module is not head for module in part.modules()):
            return part
    raise ModelError(
        f"{type(model).__name__} has no part that gives hidden states before its output head (get_decoder() gives "
        f"{type(found[0]).__name__}), and log-probabilities are computed from there: use another architecture"
    )


@dataclass(slots=True)
class LoadedModel:
    """A Hugging Face causal language model with its tokenizer, probed and ready."""

    model: Any  # transformers' *ForCausalLM, its attention routed through dapo.models.attention when packed
    tokenizer: Any
    stop_token_ids: tuple[int, ...]  # every end-of-sequence id of config, generation config and tokenizer
    pad_token_id: int
    device: torch.device
    dtype: torch.dtype
    packed: bool  # the probe found packed rows equal to the model's own attention
    fp32_head: bool = False
    name: str = ""  # as given in the recipe
    fingerprint: dict[str, Any] = field(default_factory=dict)  # architecture, sizes: what a checkpoint must match
    exact_positions: int | None = None  # longest sequence whose rotations do not depend on its neighbours; None: any
    adapter: bool = False  # an adapter is trained, and nothing else
    sends_adapter: bool = False  # engines get it by itself, not merged
    unit: Unit | None = None  # ranks that share each row; None: this process computes whole rows
    routing: Routing | None = None  # of a mixture of experts; None: no router that can be followed
    notes: tuple[str, ...] = ()  # what a person should know: why it is padded, which tokenizer was used
    _decoder: tuple[Any, Any] | None = field(default=None, init=False, repr=False, compare=False)  # of which model

    @property
    def decoder(self) -> Any:
        """The model without its output head: token ids -> last hidden states.

        Raises:
            ModelError: the architecture has no such part.
        """
        if self._decoder is None or self._decoder[0] is not self.model:  # the search goes through every module
            self._decoder = self.model, decoder_of(self.model)
        return self._decoder[1]

    def head(self, hidden: Tensor, sink: Tensor | None = None) -> Tensor:
        """Logits [.., vocabulary] of last hidden states [.., width], in float32 where the recipe asks for it.

        Includes what architectures do to logits behind the head: Cohere's and Granite's scale, Gemma's soft cap.

        Args:
            hidden: last hidden states.
            sink: from ``gradient_sink``, shared by calls whose gradients of the head's weight add up in float32.
        """
        head, config = self.model.get_output_embeddings(), self.model.config
        part = active(head)
        low = hidden.dtype in LOW
        plain = type(part) is nn.Linear and part.weight.dtype == hidden.dtype
        if low and plain and (self.fp32_head or sink is not None):
            sink = gradient_sink(part.weight) if sink is None else sink
            logits = low_precision_logits(hidden, part, sink, float32=self.fp32_head)
        elif low and self.fp32_head:
            bias = None if getattr(part, "bias", None) is None else part.bias.float()
            logits = torch.nn.functional.linear(hidden.float(), part.weight.float(), bias)
        else:
            logits = head(hidden)
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits
