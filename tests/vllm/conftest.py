"""Tiny models that vLLM's CPU kernels know (heads of 32), and an engine over one of them."""

from __future__ import annotations

import pytest
from vllm_parts import Published, start

from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Llama, 80 words, tied; in its own attention, so that it can be asked for the truth."""
    return load_model(str(make_tiny_model(tmp_path_factory.mktemp("plain"), "llama", heads=2)), device="cpu")


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Qwen3 with a vocabulary of 1024 and a tied head, which the CPU build packs."""
    folder = tmp_path_factory.mktemp("wide")
    return load_model(str(make_tiny_model(folder, "qwen3", heads=2, kv_heads=1, vocabulary=1024)), device="cpu")


@pytest.fixture(scope="module")
def started(plain):
    engine = start(plain)
    engine.load(Published(plain.model).ticket(0))
    yield engine
    engine.close()


@pytest.fixture
def engine(started):
    yield started
    started.abort()
