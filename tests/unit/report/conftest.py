"""Made run folders, and a server over some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import made_folders
import pytest
from serving import Served, make_runs

from dapo.report import shelf


@pytest.fixture(autouse=True)
def _whole_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of runs is whole at the first answer, however slow the machine."""
    monkeypatch.setattr(shelf, "LIST_SECONDS", 600.0)


@pytest.fixture
def make_run() -> Callable[..., Path]:
    return made_folders.make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("served") / "runs")


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Served]:
    served = Served(runs)
    yield served
    served.stop()
