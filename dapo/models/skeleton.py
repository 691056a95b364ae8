"""A model without its weights: modules and buffers are there, parameters have a shape and no memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dapo.errors import ModelError, first_line, raise_for_machine


def model_without_weights(name: str, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Return the model of a folder or hub name with its parameters on the meta device, and every buffer as it is
    computed.

    Raises:
        ModelError: its configuration cannot be used.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        with _parameters_on_meta():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    except ModelError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and others for a bad folder
        raise_for_machine(error, f"reading {name!r}")
        raise ModelError(
            f"model.path: {name} cannot be loaded: {first_line(error)}; give the folder of a Hugging Face causal "
            "language model, or a hub name that can be reached from here"
        ) from error
    with suppress(OSError):  # without the file it is what the configuration says, as in loading
        model.generation_config = GenerationConfig.from_pretrained(name)
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules made here have parameters without memory. Buffers are real: rotations are asked of them."""

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.is_meta:
            return None  # as it is: a tied one stays the same object
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(without_memory)
    try:
        yield
    finally:
        hook.remove()
