"""Pictures of the docs name their commit and command, and show words that today's code still writes."""

from __future__ import annotations

import json
import re
import sys

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import architecture_picture
import pictures

RECORD = json.loads((ROOT / "docs/images/pictures.json").read_text())


def gone(words: list[str], written: set[str]) -> list[str]:
    return [word for word in words if word not in written]


def test_each_picture_names_a_clean_commit_and_a_command():
    assert sorted(RECORD) == sorted(path.name for path in (ROOT / "docs/images").glob("*.png"))
    for name, made in RECORD.items():
        assert re.fullmatch(r"[0-9a-f]{7,40}(, [0-9a-f]{7,40})*", made["commit"]), name
        assert made["command"].startswith(("make ", "python benchmarks/")), name


@pytest.mark.parametrize("name", [name for name, made in RECORD.items() if made["command"] == "make pictures"])
def test_words_on_a_picture_are_still_written_by_the_program(name):
    assert gone(RECORD[name]["words"], pictures.texts()) == [], f"`make pictures` makes {name} again"


def test_a_tab_that_is_gone_is_seen():
    assert gone(["Rollouts", "Timeline"], pictures.texts()) == ["Timeline"]


def test_the_picture_of_the_architecture_names_packages_that_exist():
    named = [part for _, _, text in architecture_picture.BOXES.values() for part in re.findall(r"[\w/]+/", text)]
    assert len(named) > 7
    assert [folder for folder in named if not (ROOT / "dapo" / folder).is_dir()] == []
