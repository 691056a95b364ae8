"""AdamW: gradient clipping, float32 masters of low-precision weights, no step on a gradient that is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dapo.learner import eight_bits

if TYPE_CHECKING:  # the schema needs pydantic, and who brings settings of its own does not
    from dapo.config import schema


class Optimizer:
    """One AdamW over all trainable parameters, with moments in float32 or in 8 bits (``dapo.learner.eight_bits``).

    Weight decay applies to every parameter, biases and norms included, as in torch's default and in the published
    DAPO runs. bfloat16 and float16 models are updated through float32 master copies (an update of 1e-6 would vanish in
    8 bits), and their gradients add up in float32; float32 and float64 models are updated in place without copies.

    Args:
        parameters: of the model, by name.
        settings: The recipe's ``learner`` section.
        starts: Float32 numbers that copies begin with, by parameter; others begin with the parameter's own. The tensors
            are the optimizer's then.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        settings: schema.LearnerSection,
        starts: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.parameters = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        self.max_grad_norm = settings.max_grad_norm
        self.masters = {
            name: _master(parameter, (starts or {}).get(name)) for name, parameter in self.parameters.items()
        }
        self._copied = [
            (parameter, self.masters[name])
            for name, parameter in self.parameters.items()
            if self.masters[name] is not parameter
        ]
        self._eight_bits = settings.optimizer == "adamw_8bit"
        self.adamw = (eight_bits.make_adamw if self._eight_bits else _make_adamw)(list(self.masters.values()), settings)

    def accumulate(self) -> None:
        """Call after every backward pass: adds low-precision gradients to the masters' float32 ones."""
        for parameter, master in self._copied:
            if parameter.grad is not None:
                gradient = parameter.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def step(self, learning_rate: float) -> tuple[float, bool]:
        """Clip, update and clear the gradients.

        Returns:
            The gradient's norm before clipping, and whether the weights moved: they do not when it is not finite.
        """
        gradients = [master.grad for master in self.masters.values() if master.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        size = float(norm)
        finite = math.isfinite(size)
        if finite:
            if self.max_grad_norm is not None and size > self.max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(list(self.masters.values()), self.max_grad_norm, norm)
            if self._eight_bits:
                eight_bits.step(self.adamw, learning_rate)
            else:
                self.adamw.param_groups[0]["lr"] = learning_rate
                self.adamw.step()
            with torch.no_grad():
                for parameter, master in self._copied:
                    parameter.copy_(master)
        self.adamw.zero_grad(set_to_none=True)
        return size, finite

    def copies(self) -> dict[str, Tensor]:
        """Return the float32 copies of low-precision parameters, by parameter name."""
        return {name: master for name, master in self.masters.items() if master is not self.parameters[name]}

    def state(self) -> dict[str, Tensor]:
        """Return moments, step counts and float32 copies as flat named tensors."""
        tensors: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            kept = self.adamw.state.get(master, {})
            parts = eight_bits.parts(master, kept) if self._eight_bits else kept
            tensors |= {f"{key}/{name}": value for key, value in parts.items()}
        return tensors | {f"master/{name}": master for name, master in self.copies().items()}

    def unfilled(self, name: str) -> dict[str, Tensor]:
        """Return unfilled tensors for a parameter's moments and step count, named as ``state`` names them."""
        master = self.masters[name]
        found = (eight_bits.unfilled if self._eight_bits else _unfilled)(master)
        return {f"{key}/{name}": value for key, value in found.items()}

    def load(self, moments: Mapping[str, Tensor]) -> None:
        """Take over moments and step counts, named as ``state`` names them. The tensors are the optimizer's then."""
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in moments.items():
            kind, _, name = key.partition("/")
            found.setdefault(name, {})[kind] = value
        self.adamw.state.clear()
        for name, master in self.masters.items():
            if name in found:
                kept = found[name]
                self.adamw.state[master] = eight_bits.joined(master, kept) if self._eight_bits else kept


def _make_adamw(parameters: Sequence[Tensor], settings: schema.LearnerSection) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _unfilled(master: Tensor) -> dict[str, Tensor]:
    """Return what ``Optimizer.unfilled`` does, for moments in float32."""
    return {
        "step": torch.empty((), device=master.device),
        "exp_avg": torch.empty_like(master),
        "exp_avg_sq": torch.empty_like(master),
    }


def _master(parameter: Tensor, start: Tensor | None) -> Tensor:
    """Return the tensor that AdamW updates: the parameter itself, or a float32 copy of a low-precision one."""
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    begun = parameter if start is None else start
    return begun.detach().to(parameter.device, torch.float32, copy=start is None)
