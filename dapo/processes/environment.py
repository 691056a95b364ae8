"""What hosts on other machines have of the driver's: where modules are found, and variables that libraries read."""

from __future__ import annotations

import os
import sys

_PASSED_ON = ("NCCL_", "GLOO_", "TORCH", "PYTORCH_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "VLLM_", "OMP_", "MKL_")
"""Variables of the driver's environment that hosts on other machines are given, by their first letters."""


def own_paths() -> list[str]:
    """Where the driver finds modules that are not installed with its Python: what hosts elsewhere find there too."""
    own = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    found = []
    for path in sys.path:
        real = os.path.realpath(path or os.curdir)
        if not any(real == prefix or real.startswith(prefix + os.sep) for prefix in own):
            found.append(os.path.abspath(path or os.curdir))
    return list(dict.fromkeys(found))


def passed_on() -> dict[str, str]:
    """Of an actor: so that it finds this package, and libraries behave as the driver's."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    return {**passed, "PYTHONPATH": os.pathsep.join(own_paths())}
