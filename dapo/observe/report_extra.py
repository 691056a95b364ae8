"""The extra ``report``: what `dapo view`, curve.png and plots in a terminal need. Nothing that trains imports it."""

from __future__ import annotations

from importlib.util import find_spec

from dapo.errors import RecipeError
from dapo.links import install

INSTALL = install("report")
PLOTS = ("matplotlib", "plotext")
PICTURES = ("matplotlib",)
PAGES = ("starlette", "uvicorn")


def missing(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ``packages`` that are not installed here."""
    return tuple(name for name in packages if find_spec(name) is None)


def check_installed(what: str, packages: tuple[str, ...]) -> None:
    """Refuse ``what``, a command, before it does anything.

    Raises:
        RecipeError: one of ``packages`` is not installed.
    """
    if absent := missing(packages):
        raise RecipeError(f"`{what}` needs {' and '.join(absent)}, not installed here: {INSTALL}")
