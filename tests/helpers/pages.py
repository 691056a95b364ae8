"""The pages of the project: their links and anchors, and the blocks of code on them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from dapo import links

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(```+)(\w*)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
REPOSITORY = re.compile(
    rf"(?:{links.REPOSITORY}/(?:blob|tree)|https://raw\.githubusercontent\.com/{links.OWNER}/dapo)/main/"
)
"""Addresses of files of this repository, which pages that are read elsewhere use."""
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")


def all_pages() -> list[Path]:
    return [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("[B-Z]*.md")), ROOT / "examples/README.md"]


@dataclass(frozen=True)
class Link:
    page: Path
    target: str
    anchor: str

    @property
    def file(self) -> Path:
        if absolute := REPOSITORY.match(self.target):
            return ROOT / self.target[absolute.end() :]
        return self.page.parent / self.target if self.target else self.page


def links_of(page: Path) -> list[Link]:
    """Return a page's links and pictures that lead to files of the repository; links to other sites do not count."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    found = [match[1].partition("#") for match in LINK.finditer(text)]
    return [Link(page, to, anchor) for to, _, anchor in found if ":" not in to or REPOSITORY.match(to)]


def anchors(page: Path) -> set[str]:
    """What can stand behind ``#``: headings in small letters, without marks, a dash for each space."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)|[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", heading) for heading in plain}


NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\n\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what stands in it, and why no test runs it (None where one does)."""

    page: Path
    language: str
    body: str
    not_run: str | None

    @property
    def file(self) -> str | None:
        """The name in a first line such as ``# mine.py``: the reader is to save the block under it."""
        named = re.match(r"# ([\w.]+\.(?:py|yaml|sh))\b", self.body)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, match[2], match[3], reason[1] if (reason := NOT_RUN.search(text, 0, match.start())) else None)
        for match in FENCE.finditer(text)
    ]


def dapo_commands(text: str) -> list[list[str]]:
    """What stands behind ``dapo`` in each line of code that calls it, as a shell takes it apart."""
    joined = re.sub(r" *\\\n\s*", " ", text)
    lines = re.findall(r"^(?:    )?(?:(?:there|here)?\$ +)?(?:\.venv[\w-]*/bin/)?dapo ([a-z].*)$", joined, re.MULTILINE)
    return [list(_words(line)) for line in lines]


def _words(line: str) -> Iterator[str]:
    """Up to the end of the first command of a line."""
    shell = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    shell.whitespace_split = True
    for word in shell:
        if set(word) <= set(";&|"):
            return
        yield word


def code_of(page: Path) -> str:
    """All code of a page, fenced or indented, without its text."""
    text = page.read_text()
    indented = re.findall(r"^    .*$", FENCE.sub("", text), re.MULTILINE)
    return "\n".join([*(match[3] for match in FENCE.finditer(text) if match[2] in ("", "bash")), *indented])


def navigation() -> list[Path]:
    """The pages of docs/ that the site's navigation names, in its order; the notebook's is made by the site."""
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text())
    return [ROOT / "docs" / page for page in named(YAML(typ="safe").load(text)["nav"]) if is_of_docs(page)]


def named(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in named(part)]


def is_of_docs(page: str) -> bool:
    return not page.startswith("repository/") and page != "notebook.md"
