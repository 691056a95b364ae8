"""Made run folders, and a server over some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import made_folders
import pytest
from serving import Served, make_runs


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
