"""For every test: one thread, repeatable random examples, and shapes checked on each call of a loss."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import inspect
import os
import shutil
import tempfile
from collections.abc import Generator

import hypothesis
import jaxtyping
import pytest
import torch
from beartype import BeartypeConf, beartype

from dapo.algorithms import losses

torch.set_num_threads(1)

# base models are made in a cache of this process and of those that it starts, never in the user's
os.environ["DAPO_CACHE"] = tempfile.mkdtemp(prefix="dapo-test-cache-")
_OWNER = os.getpid()


@atexit.register
def _remove_cache() -> None:
    if os.getpid() == _OWNER:  # not in a fork
        shutil.rmtree(os.environ["DAPO_CACHE"], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and tests out of garbage collection, which would look through all of them each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# the same examples in every run: a red test stays red until its cause is mended
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.register_profile("brief", hypothesis.settings.get_profile("repeatable"), max_examples=6)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))  # brief: `make mutation`


checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float


def check_shapes(module: object) -> None:
    """Hold a module's functions and dataclasses to their jaxtyping annotations, which production never evaluates."""
    names = vars(module)
    names.update(Bool=jaxtyping.Bool, Float=jaxtyping.Float, Int64=jaxtyping.Int64, Tensor=torch.Tensor)
    for name, value in list(names.items()):
        own = getattr(value, "__module__", None) == module.__name__
        if own and (inspect.isfunction(value) or dataclasses.is_dataclass(value)):
            names[name] = jaxtyping.jaxtyped(typechecker=checked)(value)


check_shapes(losses)
