"""Models and processes that tests of a learner share."""

from __future__ import annotations

import pytest
from rank_stage import open_stages

from dapo.models.tiny import make_tiny_model


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """Make the tiny models that the test file lists in ``MODELS``."""
    folder = tmp_path_factory.mktemp(request.module.__name__)
    for name, options in request.module.MODELS.items():
        make_tiny_model(folder / name, **options)
    return folder


@pytest.fixture(scope="module")
def stages(folder):
    """Return a set of so many ranks, started when a test first asks for it."""
    with open_stages(folder) as stage:
        yield stage
