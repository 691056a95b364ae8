"""The learner's part of a checkpoint, and the export to a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dapo.errors import CheckpointError
from dapo.models.loaded import LoadedModel

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def model_tensors(loaded: LoadedModel) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; of tensors that share memory (a tied head) only the first."""
    tensors: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in loaded.model.state_dict().items():
        if (identity := (tensor.data_ptr(), tensor.shape)) not in seen or tensor.numel() == 0:
            seen.add(identity)
            tensors[name] = tensor
    return tensors


def save(folder: Path, loaded: LoadedModel, optimizer: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
    """Write weights, optimiser tensors and counters. The caller makes the folder appear atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_contiguous(model_tensors(loaded)), folder / WEIGHTS)
    save_file(_contiguous(optimizer), folder / OPTIMIZER)
    state = {"fingerprint": loaded.fingerprint, "counters": dict(counters)}
    (folder / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")


def load(folder: Path, loaded: LoadedModel) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Restore the weights in place and return the optimiser's tensors and the counters.

    Raises:
        CheckpointError: A file is missing or damaged, or the checkpoint belongs to another model; nothing is changed.
    """
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
        optimizer = load_file(folder / OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} is not a complete learner checkpoint ({error}); resume from another one"
        ) from error
    _check_same_model(folder, state["fingerprint"], loaded.fingerprint)
    present = model_tensors(loaded)
    unequal = sorted(set(weights) ^ set(present)) or [
        name for name in present if weights[name].shape != present[name].shape
    ]
    if unequal:
        raise CheckpointError(
            f"{folder / WEIGHTS} and the model {loaded.name!r} differ in {len(unequal)} tensors "
            f"({', '.join(unequal[:3])}); resume with the model that the run began with"
        )
    with torch.no_grad():
        for name, tensor in present.items():
            tensor.copy_(weights[name])
    return optimizer, state["counters"]


def export(folder: Path, loaded: LoadedModel) -> None:
    """Model, tokenizer and generation settings as an ordinary Hugging Face folder."""
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


def _check_same_model(folder: Path, saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    # Through JSON, as the saved one went: tuples and numbers compare as they were written.
    present = json.loads(json.dumps(dict(present)))
    keys = sorted(set(saved) | set(present))
    unequal = [
        f"{key} {saved.get(key)!r} there, {present.get(key)!r} here"
        for key in keys
        if saved.get(key) != present.get(key)
    ]
    if unequal:
        raise CheckpointError(
            f"{folder} belongs to another model: {'; '.join(unequal)}. Set model.path (and model.dtype) to "
            "the run's own, or start a new run"
        )


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
