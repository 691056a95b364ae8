"""For whole runs: drawing a curve takes as long as several steps, and tests of the summary look at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dapo.observe import summary


@pytest.fixture(scope="module", autouse=True)
def _without_pictures() -> Iterator[None]:
    """Leave out curve.png in this process; those that ``warm`` forks draw it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "write_curve", lambda run: None)
        yield
