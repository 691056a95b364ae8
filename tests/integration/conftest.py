"""For whole runs: drawing a curve takes as long as several steps, and tests of summary and report look at pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dapo.observe import summary
from dapo.report import write


@pytest.fixture(scope="module", autouse=True)
def _without_pictures() -> Iterator[None]:
    """Leave out curve.png and a report's pictures in this process; those that ``warm`` forks draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "write_curve", lambda run: None)
        patch.setattr(write, "draw", lambda *_: [])
        yield
