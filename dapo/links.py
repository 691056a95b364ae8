"""Address of the documentation. Code names a page as ``docs/NAME.md``; what users read names its address.

An installed package has no docs/ folder, so texts pass through ``addressed`` where they leave the program.
"""

from __future__ import annotations

import re

OWNER = "OWNER"
"""The account that publishes the project: a placeholder until there is one, set here alone."""
REPOSITORY = f"https://github.com/{OWNER}/dapo"
SITE = f"{REPOSITORY}/blob/main/docs"

PAGES = [
    "adapters",
    "algorithm",
    "base_to_trained",
    "cli",
    "configuration",
    "data_and_rewards",
    "dynamic_sampling",
    "engines",
    "extending",
    "gpu",
    "import",
    "log",
    "metrics",
    "overlap",
    "peers",
    "python",
    "reading_a_run",
    "scaling",
    "tutorial",
    "viewing",
]
"""Pages that the code names. A path of the user's that ends in ``docs/OTHER.md`` stays as it is."""

_PAGE = re.compile(rf"(?<![\w/])docs/({'|'.join(PAGES)})\.md(#[\w-]+)?")


def addressed(text: str) -> str:
    """Return a text with the address of every page that it names as ``docs/NAME.md``."""
    return _PAGE.sub(lambda found: f"{SITE}/{found[1]}.md{found[2] or ''}", text)
