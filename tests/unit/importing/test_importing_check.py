"""Public configurations, imported, go through `dapo check` as far as that goes without their weights and data."""

from __future__ import annotations

import pytest
from quick import quick

from dapo.cli.main import main
from dapo.importing.convert import import_text
from dapo.models.tiny import make_tiny_model
from tests.unit.importing.test_importing_systems import CASES, NO_DATA

HERE = [
    *NO_DATA[1:],
    "rollout.engine=embedded",
    "model.device=cpu",
    "model.dtype=float32",
    "data.train.0.size=40",
    "trainer.steps=100",
]
"""What a reader would change to look at it on a machine without the model and a card."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Small, and able to read as many tokens as the configurations ask for."""
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, "llama", seed=0, max_position_embeddings=65536)
    return folder


@pytest.mark.parametrize("case", quick(CASES, ["verl"]))
def test_an_imported_configuration_passes_the_check(case: str, model, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    name, text, expected = CASES[case]
    (tmp_path / "mine.yaml").write_text(import_text(text, name).text)
    code = main(["check", "mine.yaml", f"model.path={model}", *HERE])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    shown = " ".join(said.out.split())
    assert f"{expected['prompts']} prompts x {expected['responses'] // expected['prompts']} responses" in shown
    assert f"at most {expected['responses'] * expected['limit']:,} response tokens" in shown
    assert f"optimiser steps: {expected['updates']} per training step" in shown
