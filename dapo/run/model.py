"""The model and the tokenizer that a recipe names: checked, described, or loaded; a built-in one is made first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from dapo.config.schema import Model, Recipe
from dapo.learner.determinism import reserve_workspace
from dapo.models.builtin import check_builtin_name, ensure_builtin_model, find_builtin_model, is_builtin
from dapo.models.cached import cache_folder
from dapo.models.facts import read_facts
from dapo.models.gguf_file import check_gguf, dequantised, is_gguf
from dapo.models.load import check_configuration, check_files, find_device, load_model
from dapo.models.loaded import LoadedModel
from dapo.models.tiny import make_tiny_model, make_word_tokenizer
from dapo.models.tokenizer import load_tokenizer
from dapo.observe.console import Console
from dapo.types.model import ModelFacts
from dapo.types.seeds import ADAPTER, derive_seed

WARMUP_PERCENT = 100


def make_model(recipe: Recipe, console: Console, facts: ModelFacts | None = None) -> LoadedModel:
    """Load (for a built-in one: first make) the model, and say what a person should know about it.

    ``facts``: from ``make_facts``, which has found or made a built-in one and said so.
    """
    model = recipe.model
    disable_progress_bar()  # transformers' own bars would run across the console
    torch.set_num_threads(recipe.run.threads)
    torch.set_float32_matmul_precision(model.matmul_precision)
    if recipe.learner.deterministic:
        reserve_workspace()
    loaded = load_model(
        model_path(model.path, recipe, console) if facts is None else facts.name,
        dtype=getattr(torch, model.dtype),
        device=model.device,
        trust_remote_code=model.trust_remote_code,
        attention_mode=model.attention,
        fp32_head=model.fp32_head,
        activation_checkpointing=model.activation_checkpointing,
        lora=model.lora,
        seed=adapter_seed(recipe),
    )
    if recipe.data.chat_template is not None:  # an export ships what was trained with
        loaded.tokenizer.chat_template = recipe.data.chat_template
    for note in loaded.notes:
        console.say(note)
    return loaded


def adapter_seed(recipe: Recipe) -> int:
    """Return the seed of an adapter's random start, the same for one process and for ranks."""
    return derive_seed(recipe.run.seed, ADAPTER)


def make_facts(recipe: Recipe, console: Console) -> ModelFacts:
    """Return the facts of the recipe's model, without its weights (a built-in model is made first).

    Raises:
        ModelError: as loading would, as far as configuration and tokenizer go.
    """
    model = recipe.model
    path = model_path(model.path, recipe, console)
    return read_facts(path, model.dtype, trust_remote_code=model.trust_remote_code)


def tokenizer_and_facts(recipe: Recipe, say: Callable[[str], None]) -> tuple[Any, ModelFacts]:
    """Return the tokenizer and the facts of the recipe's model, without its weights; a built-in one is not made.

    Raises:
        ModelError: neither a folder nor a hub name that can be reached.
    """
    check_model_path(recipe.model.path, weights=False)
    recipe = with_folder(recipe, say)
    model = recipe.model
    tokenizer = make_tokenizer(model, recipe.data.chat_template)
    if not is_builtin(model.path):
        return tokenizer, facts_without_weights(model, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_model(folder, heads=2)
        return tokenizer, replace(read_facts(folder, model.dtype, tokenizer=tokenizer), name=model.path)


def facts_without_weights(model: Model, tokenizer: Any) -> ModelFacts:
    """As ``make_facts``, of a model that is no built-in one, with the tokenizer at hand."""
    return read_facts(model.path, model.dtype, trust_remote_code=model.trust_remote_code, tokenizer=tokenizer)


def with_folder(recipe: Recipe, say: Callable[[str], None]) -> Recipe:
    """Return the recipe with the folder of its dequantised weights in place of a GGUF file; any other as it is.

    Args:
        recipe: as it was given.
        say: hears where the folder is, and what making it costs.

    Raises:
        ModelError: the file cannot be read.
        NotInstalled: the package gguf is missing.
    """
    if not is_gguf(recipe.model.path):
        return recipe
    folder = dequantised(recipe.model.path, _models_cache(recipe), say)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": str(folder)})})


def check_model(model: Model) -> None:
    """Refuse a device, a built-in name or a model folder before anything is made, read or warmed up.

    Raises:
        ModelError: as loading would.
    """
    find_device(model.device)
    check_model_path(model.path)


def check_model_path(path: str, *, weights: bool = True) -> None:
    """Refuse a built-in name that there is not, or a folder that cannot be loaded.

    Args:
        path: the recipe's ``model.path``.
        weights: False: configuration and tokenizer are enough.

    Raises:
        ModelError: with the next move.
    """
    if is_builtin(path):
        check_builtin_name(path)
    elif is_gguf(path):
        check_gguf(path)
    elif weights:
        check_files(path)
    else:
        check_configuration(path)


def make_tokenizer(model: Model, chat_template: str | None = None) -> Any:
    """Return the tokenizer alone: problems become prompts, and data is refused, before weights are read or made.

    Args:
        model: whose it is.
        chat_template: of the recipe, in place of its own.

    Raises:
        ModelError: no tokenizer can be loaded.
    """
    if is_builtin(model.path):
        tokenizer = make_word_tokenizer()  # as it is saved beside the model once that is made
    else:
        tokenizer = load_tokenizer(model.path, model.trust_remote_code, notes=[])
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def model_path(name: str, recipe: Recipe, console: Console) -> str:
    """Return the folder of a built-in model, made once in the user's cache; any other name is returned as it is.

    The path is absolute: engines that are started again read it, whatever the working directory is then.
    """
    if not is_builtin(name):
        return name
    cache, seed = _models_cache(recipe), recipe.model.builtin_seed
    found = find_builtin_model(name, cache, seed=seed)
    if found is not None:
        console.say(f"the warmed-up base model is {found}")
        return str(found.absolute())
    with console.progress(f"making the base model {name} (a short supervised warm-up)", WARMUP_PERCENT) as advance:
        told = 0

        def progress(done: int, total: int, metrics: dict[str, float]) -> None:
            nonlocal told
            percent = WARMUP_PERCENT * done // total
            advance(percent - told)
            told = percent

        return str(ensure_builtin_model(name, cache, seed=seed, progress=progress).absolute())


def _models_cache(recipe: Recipe) -> Path:
    """Return where models that are made here are kept: the user's cache, or beside the runs.

    Machines of a Ray cluster share the folder of the runs and perhaps no home; a home may be read-only.
    """
    beside, cache = Path(recipe.run.dir) / ".models", cache_folder()
    if recipe.launch.backend == "ray":
        return beside
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return beside
    return cache if os.access(cache, os.W_OK) else beside
