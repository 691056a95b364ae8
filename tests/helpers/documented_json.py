"""Keys that docs/cli.md documents of the objects that commands print with ``--json``."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/cli.md"


def documented_keys(title: str) -> dict[str, list[str]]:
    """Return the keys of the table whose first column has this title, each with those named in its row's text."""
    rows = PAGE.read_text().split(f"| {title} |")[1].split("\n\n")[0].splitlines()[2:]
    found: dict[str, list[str]] = {}
    for row in rows:
        keys, meaning = row.strip("|").split("|")
        for key in re.findall(r"`(\w+)`", keys):
            found[key] = re.findall(r"`(\w+)`", meaning)
    return found
