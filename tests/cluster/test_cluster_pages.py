"""The pages about several processes, from top to bottom: their commands start ranks and engines of their own."""

from __future__ import annotations

import pytest
from page_session import Session
from small_run import dapo, write_recipe

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("page", ["scaling", "overlap"])
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch):
    recipe = write_recipe(tmp_path)
    dapo("train", recipe, "trainer.steps=1", "validation.every=0", f"run.dir={tmp_path}/runs", "run.name=first")
    (tmp_path / "reader").mkdir()
    monkeypatch.chdir(tmp_path / "reader")
    session = Session(page, tmp_path / "reader", tmp_path)
    session.go_through()
    assert session.ran == {"scaling": ["train", "train", "train"], "overlap": ["train"]}[page]
