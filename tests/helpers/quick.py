"""Parametrized tests of which `make test` runs a few, and `make test-whole` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], few: Collection[Any]) -> list[Any]:
    """Return parameters for ``parametrize``: those in ``few`` as they are, the others marked ``whole``."""
    values = list(values)
    assert all(value in values for value in few), "a quick one is no parameter"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=() if value in few else pytest.mark.whole
        )
        for value in values
    ]
