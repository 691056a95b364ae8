"""The engine of ``cluster.py``, in a file of its own: processes of engines import it."""

from __future__ import annotations

import torch

from dapo.engines.embedded import EmbeddedEngine
from dapo.models.load import load_model

SLOTS = 256


def embedded(folder: str) -> EmbeddedEngine:
    """With weights of its own."""
    torch.set_num_threads(1)
    return EmbeddedEngine(load_model(folder, attention_mode="padded"), slots=SLOTS, shares_weights=False)
