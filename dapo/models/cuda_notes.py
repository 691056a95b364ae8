"""Notes for users whose model on CUDA packs rows without the variable-length kernel."""

from __future__ import annotations

from typing import Any

import torch

from dapo.models.loaded import LoadedModel


def notes_on_cuda(loaded: LoadedModel) -> list[str]:
    """In sentences; [] on a CPU, and for what the kernel computes: windows, grouped heads and shared prompts."""
    if loaded.device.type != "cuda":
        return []
    if loaded.dtype == torch.float32:
        return _of_float32()
    reason = _without_kernel(loaded.model.config.get_text_config()) if loaded.packed else None
    if reason is None:
        return []
    return [
        f"the variable-length attention kernel of CUDA knows no {reason}: packed rows are computed one by one, with "
        "all their scores in memory; model.activation_checkpointing=full and a smaller learner.microbatch_tokens "
        "bound it"
    ]


def _of_float32() -> list[str]:
    notes = [
        "a float32 model has no variable-length attention kernel on CUDA: its rows are computed one by one, and matrix "
        "products without tensor cores. model.dtype=bfloat16 is many times faster"
    ]
    if torch.get_float32_matmul_precision() != "highest":
        notes.append(
            f"model.matmul_precision: {torch.get_float32_matmul_precision()} is TF32 on CUDA: the engine's "
            "log-probabilities differ from the learner's by some 0.002 to 0.004 nats in the mean (at highest: 1e-7). "
            "algorithm.old_logprobs=learner has the gap corrected"
        )
    return notes


def _without_kernel(config: Any) -> str | None:
    """Return the feature of the model's attention that the kernel lacks."""
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "soft cap of scores"
    values, keys = getattr(config, "v_head_dim", None), getattr(config, "qk_head_dim", None)
    return "values of another size than keys" if values is not None and keys not in (None, values) else None
