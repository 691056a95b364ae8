"""Pages point to what is there. `make site` asks the same of the site that is made of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from each import each
from pages import ROOT, all_pages, anchors, links_of, navigation


@each("page", all_pages())
def test_links_and_anchors_exist(page):
    for link in links_of(page):
        assert link.file.exists(), f"{page.name} points to {link.target}"
        if link.anchor:
            assert link.anchor in anchors(link.file), f"{page.name} points to {link.target}#{link.anchor}"


def test_a_dead_link_and_a_dead_anchor_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One & two\n\n[a](gone.md) [b](#one--two) ![c](c.png) `[d](code.md)` [e](https://x.y)\n\n"
        "```\n# no\n[f](g)\n```\n"
    )
    assert [(link.target, link.file.exists()) for link in links_of(page)] == [
        ("gone.md", False),
        ("", True),
        ("c.png", False),
    ]
    assert anchors(page) == {"one--two"}


def test_the_navigation_of_the_site_names_pages_that_exist_once_each():
    pages = navigation()
    assert len(pages) == len(set(pages))
    assert [page.name for page in pages if not page.exists()] == []
    assert len(pages) > 30


def test_pages_are_written_as_both_readers_of_them_understand():
    """A list or a table behind a line of text is one for GitHub, and a paragraph for the site."""
    for page in all_pages():
        before, fenced = "", False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            fenced ^= line.startswith("```")
            where = f"{page.name}:{number}"
            if not fenced and before.strip():
                if re.match(r"([-*]|\d+\.) ", line):
                    assert re.match(r"([-*]|\d+\.) |  ", before), f"{where}: a list needs an empty line before it"
                if line.startswith("| "):
                    assert before.startswith("|"), f"{where}: a table needs an empty line before it"
            before = line


def test_the_page_install_lists_every_extra():
    table = (ROOT / "docs/install.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    shown = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert shown == extras.keys() - {"dev"}


def test_the_site_asks_no_network():
    for file in (ROOT / "website/theme").rglob("*"):
        if file.suffix in {".css", ".js"}:
            assert not re.search(r"https?://|@import", file.read_text()), file.name
    assert "font: false" in (ROOT / "mkdocs.yml").read_text()
    licence = Path(ROOT / "website/theme/assets/javascripts/iframe-worker.LICENSE").read_text()
    assert "Permission is hereby granted" in licence
