"""Addresses and commands that messages name: pages of the documentation, and how to install an extra.

Code names a page as ``docs/NAME.md``. An installed package has no docs/ folder, so texts pass through ``addressed``
where they leave the program. The package is on no index yet, so an extra is installed by the names of its packages.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

OWNER = "OWNER"
"""The account that publishes the project: a placeholder until there is one, set here alone."""
REPOSITORY = f"https://github.com/{OWNER}/dapo"
SITE = f"{REPOSITORY}/blob/main/docs"

PAGES = [
    "adapters",
    "agents",
    "algorithm",
    "base_to_trained",
    "cli",
    "configuration",
    "correction",
    "data",
    "distillation",
    "dynamic_sampling",
    "engines",
    "environments",
    "evidence",
    "extending",
    "failures",
    "hooks",
    "howto_code_rewards",
    "howto_environments",
    "howto_judges",
    "howto_memory",
    "howto_tools",
    "import",
    "losses",
    "metrics",
    "overlap",
    "peers",
    "publish",
    "python",
    "ray",
    "own_algorithm",
    "own_data",
    "own_reward",
    "reading_a_run",
    "rewards",
    "run_folder",
    "scaling",
    "settings_by_size",
    "slurm",
    "tutorial",
    "vllm_server",
    "warnings",
]
"""Pages that the code names. A path of the user's that ends in ``docs/OTHER.md`` stays as it is."""

_PAGE = re.compile(rf"(?<![\w/])docs/({'|'.join(PAGES)})\.md(#[\w-]+)?")


def addressed(text: str) -> str:
    """Return a text with the address of every page that it names as ``docs/NAME.md``."""
    return _PAGE.sub(lambda found: f"{SITE}/{found[1]}.md{found[2] or ''}", text)


def install(extra: str) -> str:
    """Return the command that installs an extra's packages, such as ``pip install 'peft>=0.18'``."""
    normal = re.compile(rf"""(\S+) *; *extra == ["']{extra.replace("_", "[-_]")}["']""")
    try:
        found = [match[1] for line in requires("dapo-rl") or () if (match := normal.fullmatch(line))]
    except PackageNotFoundError:  # a source tree that was not installed
        found = []
    return " ".join(["pip install", *(f"'{package}'" for package in found or [f".[{extra}]"])])
