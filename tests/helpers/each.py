"""One test for all rows of a table, which lists every row that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def each(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each row as ``pytest.mark.parametrize`` does, but as one case.

    It costs a thousandth of a thousand cases, and one failure shows all rows that are wrong. All rows share the test's
    fixtures: a test that changes a folder or patches a module stays with ``parametrize``.

    Args:
        names: the parameters that a row gives, as for ``parametrize``.
        rows: values of one name, or tuples of values.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    alone = isinstance(names, str) and len(given) == 1
    table = [dict(zip(given, (row,) if alone else row, strict=True)) for row in rows]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        assert table, f"{test.__name__} has no rows"

        @functools.wraps(test)
        def every_row(*own: Any, **fixtures: Any) -> None:
            faults = []
            for row in table:
                try:
                    test(*own, **fixtures, **row)  # own: the object of a method
                except (Exception, pytest.fail.Exception) as error:
                    shown = ", ".join(f"{name}={value!r}" for name, value in row.items())
                    faults.append(f"{shown}: {type(error).__name__}: {error}")
            if faults:
                pytest.fail(f"{len(faults)} of {len(table)} rows\n" + "\n".join(faults), pytrace=False)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in given]
        every_row.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # pytest reads it
        return every_row

    return decorate
