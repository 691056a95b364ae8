"""The core dependencies, as pyproject.toml names them. Needs the standard library alone."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
SCHEMA = ("pydantic", "ruamel.yaml")  # what the recipe's schema imports
_MODULES = {"ruamel-yaml": "ruamel.yaml"}  # where the module is not called as its package


def core_dependencies() -> dict[str, str]:
    """Module of each core dependency by the name of its package, from pyproject.toml."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in project["dependencies"]]
    return {name: _MODULES.get(name.replace(".", "-"), name.replace("-", "_")) for name in names}
