"""What the tests of rewards share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifiers of this folder, by their module's name, in workers too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
