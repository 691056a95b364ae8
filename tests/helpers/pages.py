"""The pages of the project: their links and anchors, and the blocks of code on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(```+)(\w*)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")


def all_pages() -> list[Path]:
    return [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@dataclass(frozen=True)
class Link:
    page: Path
    target: str
    anchor: str

    @property
    def file(self) -> Path:
        return self.page.parent / self.target if self.target else self.page


def links(page: Path) -> list[Link]:
    """Links of a page to files of the repository, pictures too; not those to other sites, nor what code looks like."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    found = [match[1].partition("#") for match in LINK.finditer(text)]
    return [Link(page, target, anchor) for target, _, anchor in found if ":" not in target]


def anchors(page: Path) -> set[str]:
    """What can stand behind ``#``: headings in small letters, without marks, a dash for each space."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)|[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", heading) for heading in plain}
