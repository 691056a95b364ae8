"""The learner's part of a checkpoint, and the export to a Hugging Face folder."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapo.errors import CheckpointError
from dapo.learner.tensor_files import TensorFiles, write_tensors
from dapo.models import adapter
from dapo.models.adapter import published
from dapo.models.loaded import LoadedModel
from dapo.models.quiet import quiet_transformers
from dapo.models.weights import PART, model_tensors
from dapo.types.batch import SavedFile
from dapo.types.model import check_fingerprint

WEIGHTS, OPTIMIZER_FILE, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
REFERENCE_FILE = "reference.safetensors"  # of a reference that was refreshed; others are the model of the run's start
MODEL, OPTIMIZER, REFERENCE = "model/", "optimizer/", "reference/"
"""How names of tensors begin, by what they belong to."""
SHARDS = "shards"
"""Key of the state of a checkpoint that ranks wrote: the number of their files."""
_MOST_SHARDS = 99_999


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a checkpoint, by name, before they are written."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    texts: Mapping[str, str]

    def copied(self) -> Contents:
        """With tensors of its own, in the processor's memory: whatever is trained meanwhile does not change them."""
        return Contents(
            {
                name: {key: tensor.detach().to("cpu", copy=True) for key, tensor in own.items()}
                for name, own in self.tensors.items()
            },
            self.texts,
        )

    def write(self, folder: Path) -> list[SavedFile]:
        """To the disk. The caller makes the folder appear atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [write_tensors(folder / name, own) for name, own in self.tensors.items()]
        for name, text in self.texts.items():
            with (folder / name).open("wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            files.append(SavedFile(name, len(text.encode()), zlib.crc32(text.encode())))
        return files


def contents(
    loaded: LoadedModel,
    optimizer: Mapping[str, Tensor],
    counters: Mapping[str, Any],
    reference: Mapping[str, Tensor] | None = None,
) -> Contents:
    """Weights, optimiser tensors and counters, as they are while nobody trains.

    ``reference``: of a reference that is refreshed: what it is now.
    """
    tensors = {weights_file(loaded): trained(loaded), OPTIMIZER_FILE: optimizer}
    if reference is not None:
        tensors[REFERENCE_FILE] = reference
    state: dict[str, Any] = {"fingerprint": loaded.fingerprint, "counters": dict(counters)}
    texts = {}
    if loaded.adapter:
        state["base"] = adapter.base_sums(loaded.model)
        texts[adapter.CONFIG] = adapter.adapter_config(loaded.model)
    return Contents(tensors, {STATE: json.dumps(state, indent=1), **texts})


def load(folder: Path, loaded: LoadedModel) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Restore the weights in place and return the optimiser's tensors and the counters.

    Raises:
        CheckpointError: A file is missing or damaged, or the checkpoint belongs to another model; nothing is changed.
    """
    state = read_state(folder)
    with open_tensors(folder, state, loaded) as files:
        weights, optimizer = named(files, MODEL), named(files, OPTIMIZER)
    if SHARDS in state and loaded.dtype not in (torch.float32, torch.float64):
        names = parameter_names(loaded)
        optimizer |= {f"master/{names[name]}": weight for name, weight in weights.items() if name in names}
    check_fingerprint(state["fingerprint"], loaded.fingerprint, folder)
    present = trained(loaded)
    if loaded.adapter:
        check_adapter(folder, state, loaded, adapter.base_sums(loaded.model))
    saved, own = ({name: tuple(tensor.shape) for name, tensor in side.items()} for side in (weights, present))
    check_names(saved, own, folder, loaded.name)
    with torch.no_grad():
        for name, tensor in present.items():
            tensor.copy_(weights[name])
    return optimizer, state["counters"]


def weights_file(loaded: LoadedModel) -> str:
    """Of a checkpoint of one process."""
    return adapter.TENSORS if loaded.adapter else WEIGHTS


def parameter_names(loaded: LoadedModel) -> dict[str, str]:
    """The optimiser's name of each parameter that is trained, by its name in a checkpoint."""
    names = [name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad]
    return {adapter.file_name(name) if loaded.adapter else name: name for name in names}


def trained(loaded: LoadedModel) -> Mapping[str, Tensor]:
    """The very tensors that a checkpoint holds: of a frozen model the adapter's alone."""
    return adapter.adapter_tensors(loaded.model) if loaded.adapter else model_tensors(loaded.model)


def check_adapter(folder: Path, state: Mapping[str, Any], loaded: LoadedModel, base: Mapping[str, int]) -> None:
    """Raise CheckpointError for an adapter that means nothing here.

    Args:
        folder: the checkpoint.
        state: from ``read_state``.
        loaded: the model that is to take it over.
        base: ``adapter.base_sums`` of that model.
    """
    _check_scaling(folder, loaded)
    _check_base(folder, state, loaded, base)


def _check_scaling(folder: Path, loaded: LoadedModel) -> None:
    """Raise CheckpointError for an adapter whose product was multiplied by something else."""
    try:
        saved = adapter.scaling_settings((folder / adapter.CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is not a complete learner checkpoint ({error}); resume from another one"
        ) from error
    here = adapter.scaling_settings(adapter.adapter_config(loaded.model))
    if saved != here:
        raise CheckpointError(
            f"{folder} holds an adapter with {saved}, and the recipe's model.lora gives {here}: resume with the "
            "settings that the run began with"
        )


def _check_base(folder: Path, state: Mapping[str, Any], loaded: LoadedModel, here: Mapping[str, int]) -> None:
    """Raise CheckpointError for an adapter of other frozen weights: by itself it means nothing."""
    other = sorted(name for name, value in state.get("base", here).items() if here.get(name, value) != value)
    if other:
        raise CheckpointError(
            f"{folder} holds an adapter of other weights than {loaded.name!r} has now ({', '.join(other)} differ): put "
            "the model back that the run began with"
        )


def load_reference(folder: Path, loaded: LoadedModel) -> dict[str, Tensor]:
    """Read the reference of a run that refreshes it.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    with open_tensors(folder, read_state(folder), loaded) as files:
        found = named(files, REFERENCE)
    if not found:
        raise no_reference(folder, "none was saved")
    return found


def open_tensors(folder: Path, state: Mapping[str, Any], loaded: LoadedModel) -> TensorFiles:
    """Open the tensors of a checkpoint under names that begin with ``MODEL``, ``OPTIMIZER`` or ``REFERENCE``.

    Args:
        folder: the checkpoint, of one process or of any number of ranks.
        state: from ``read_state``.
        loaded: the model, which says where one process keeps the weights.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    if SHARDS in state:
        files = [(folder / rank_file(rank, state[SHARDS]), "") for rank in range(state[SHARDS])]
    else:
        files = [(folder / weights_file(loaded), MODEL), (folder / OPTIMIZER_FILE, OPTIMIZER)]
        if (folder / REFERENCE_FILE).exists():
            files.append((folder / REFERENCE_FILE, REFERENCE))
    try:
        return TensorFiles(files)
    except OSError as error:
        raise incomplete(folder, error) from error


def named(files: TensorFiles, prefix: str) -> dict[str, Tensor]:
    """Read all tensors whose name begins with ``prefix``, which is left out of their names."""
    return {name.removeprefix(prefix): files.whole(name) for name in files.shapes if name.startswith(prefix)}


def rank_file(rank: int, shards: int) -> str:
    """Return the name of the file that a rank writes."""
    return PART.format(rank=rank, ranks=shards)


def no_reference(folder: Path, error: object) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds no reference ({error}), and algorithm.reference.refresh_every needs the one that this "
        "run had: resume with the setting that the checkpoint was saved with"
    )


def read_state(folder: Path) -> dict[str, Any]:
    """Read fingerprint and counters of a learner's checkpoint, and how many files of ranks it has (``SHARDS``).

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        state: Any = json.loads((folder / STATE).read_text(encoding="utf-8"))
        parts = ("counters", "fingerprint")
        if not isinstance(state, dict) or not all(isinstance(state.get(part), dict) for part in parts):
            raise ValueError(f"{STATE} does not hold fingerprint and counters")
        shards = state.get(SHARDS, 1)
        if type(shards) is not int or not 1 <= shards <= _MOST_SHARDS:
            raise ValueError(f"{STATE} gives {SHARDS} as {shards!r}, expected a number from 1 to {_MOST_SHARDS}")
    except (OSError, ValueError, RecursionError) as error:
        raise incomplete(folder, error) from error
    return state


def incomplete(folder: Path, error: object) -> CheckpointError:
    return CheckpointError(f"{folder} is not a complete learner checkpoint ({error}); resume from another one")


def check_names(
    saved: Mapping[str, tuple[int, ...]], present: Mapping[str, tuple[int, ...]], folder: Path, model: str
) -> None:
    """Raise CheckpointError where the tensors of a checkpoint, by name and shape, are not those of the model."""
    unequal = sorted(set(saved) ^ set(present)) or [name for name in present if saved[name] != present[name]]
    if unequal:
        raise CheckpointError(
            f"{folder} and the model {model!r} differ in {len(unequal)} tensors "
            f"({', '.join(unequal[:3])}); resume with the model that the run began with"
        )


def export(folder: Path, loaded: LoadedModel) -> None:
    """Model, tokenizer and generation settings as an ordinary Hugging Face folder; an adapter is merged."""
    merged = {"state_dict": dict(published(loaded.model, aliases=True))} if loaded.adapter else {}
    with quiet_transformers():
        loaded.model.save_pretrained(folder, **merged)
    loaded.tokenizer.save_pretrained(folder)
    for tensors in folder.glob("*.safetensors"):  # safetensors makes its files the owner's alone
        shutil.copymode(folder / "config.json", tensors)


def export_adapter(folder: Path, loaded: LoadedModel) -> None:
    """The adapter and the tokenizer as a folder that PEFT loads on top of the model that was trained."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / adapter.CONFIG).write_text(adapter.adapter_config(loaded.model), encoding="utf-8")
    write_tensors(folder / adapter.TENSORS, adapter.adapter_tensors(loaded.model))
    loaded.tokenizer.save_pretrained(folder)
