"""Pages are named by an address where the program speaks: an installed package has no docs/."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from dapo import links
from dapo.cli.main import main
from dapo.links import OWNER, PAGES, REPOSITORY, SITE, addressed, install

ROOT = Path(__file__).parents[2]


def test_a_page_becomes_its_address():
    assert addressed("see docs/engines.md, section 2") == f"see {SITE}/engines.md, section 2"
    assert addressed("(docs/algorithm.md#3-advantages)") == f"({SITE}/algorithm.md#3-advantages)"
    for own in ("my/docs/engines.md", "docs/engines.txt", "docs/problems.md"):
        assert addressed(own) == own


def test_every_page_that_the_code_names_has_an_address_and_is_there():
    files = [*(ROOT / "dapo").rglob("*.py"), *(ROOT / "dapo").rglob("*.yaml")]
    named = {page for file in files for page in re.findall(r"docs/([a-z_0-9]+)\.md", file.read_text())}
    assert len(named) > 10
    assert named <= set(PAGES)
    assert [page for page in PAGES if not (ROOT / "docs" / f"{page}.md").is_file()] == []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["explain", "algorithm.clip.high"], ["train", "quickstart", "--lr"]]
)
def test_no_command_names_a_file_that_an_installation_lacks(arguments, capsys):
    main(arguments)
    said = "".join(capsys.readouterr())
    assert "docs/" not in said.replace(SITE, "")
    assert "README.md" not in said


def test_every_file_names_the_same_repository():
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"]["urls"]
    assert urls["Homepage"] == REPOSITORY
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    for name in ("README.md", "CITATION.cff", "docs/index.md"):
        named = re.findall(r"https://github\.com/[^/\s)]+/dapo\b", (ROOT / name).read_text())
        assert named
        assert {*named} == {REPOSITORY}
    pictures = re.findall(r"https://raw\.githubusercontent\.com/([^/]+)/", (ROOT / "README.md").read_text())
    assert {*pictures} == {OWNER}


def test_an_extra_is_installed_by_the_packages_that_it_consists_of(monkeypatch):
    assert re.fullmatch(r"pip install 'peft>=[\d.]+'", install("lora"))
    assert install("report").count("'") == 8

    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(links, "requires", absent)
    assert install("lora") == "pip install '.[lora]'"
