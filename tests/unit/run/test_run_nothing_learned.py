"""A run whose every optimiser step was skipped says so at its end, and its exit code is that of a failure."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dapo.cli.main import main
from dapo.learner.optimizer import Optimizer
from dapo.models.tiny import make_tiny_model
from dapo.observe.sentences import nothing_learned

ROW = {"train/optimizer_steps": 2, "train/skipped_steps": 0, "train/empty_steps": 0}


@pytest.mark.parametrize(
    ("rows", "nothing"),
    [
        ([], False),
        ([ROW], False),
        ([{"step": 0}, ROW | {"train/skipped_steps": 2}], True),
        ([ROW | {"train/skipped_steps": 2}, ROW | {"train/skipped_steps": 1}], False),
        ([ROW | {"train/skipped_steps": 1, "train/empty_steps": 1}], True),
        ([ROW | {"train/empty_steps": 2}], False),  # no loss at all, by the recipe's own rules
    ],
)
def test_when_nothing_was_learned(rows: list[dict[str, int]], nothing: bool) -> None:
    assert (nothing_learned(rows) is not None) == nothing  # type: ignore[arg-type]


def test_the_end_of_such_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tiny_model(tmp_path / "model", hidden=16, layers=1, heads=2, ffn=16)
    small = [
        "quickstart", "model.path=./model", "trainer.steps=2", "validation.every=0", "run.name=x", "data.validation=[]",
        "rollout.prompts_per_step=4", "rollout.group_size=2", "rollout.max_response_tokens=13",
        "learner.minibatch_prompts=2", "algorithm.dynamic_sampling.mode=off", "algorithm.overlong_filtering=false",
    ]  # fmt: skip
    monkeypatch.setattr(Optimizer, "step", lambda self, rate: (math.nan, False))
    assert main(["train", *small]) == 1
    said = capsys.readouterr().err
    assert "nothing was learned: 4 of 4 optimiser steps were skipped" in said
    status = json.loads((tmp_path / "runs/x/status.json").read_text())
    assert status["state"] == "failed"
    assert "nothing was learned" in status["said"]
