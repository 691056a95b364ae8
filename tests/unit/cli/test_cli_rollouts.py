"""``dapo rollouts`` where there is nothing to write: the reason decides what to do next."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from run_folder_for_tests import make_prompts, make_run

from dapo.cli.main import main
from dapo.observe.rollouts import write_rollouts
from dapo.observe.status import StatusWriter
from dapo.types.batch import Group, Response, Score, Turn
from dapo.types.enums import FinishReason
from dapo.types.evidence import CollectProgress, Shares

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
WRONG, RIGHT, UNSCORED = Score({"accuracy": 0.0}, 0.0), Score({"accuracy": 1.0}, 1.0), Score(reason="crash")


def run_with(folder: Path, *responses: tuple[Score, FinishReason], known: bool = True) -> Path:
    """A run that recorded these responses to one problem, which its table of prompts holds or not."""
    (prompt,) = make_prompts(1)
    run = make_run(folder, prompts=[prompt] if known else [])
    made = [
        Response(np.array([n]), np.zeros(1, np.float32), np.zeros(1, np.int32), finish, f"answer {n}")
        for n, (_, finish) in enumerate(responses)
    ]
    group = Group(0, prompt, made, [score for score, _ in responses])
    write_rollouts(run / "rollouts" / "step_000001.parquet", 1, [group])
    return run


@pytest.mark.parametrize(
    ("responses", "known", "move"),
    [
        ([(WRONG, STOP), (UNSCORED, STOP)], True, "Look at them, as none was right: `dapo rollouts"),
        ([(UNSCORED, STOP), (UNSCORED, STOP)], True, "as every one is without a score: `dapo rollouts"),
        ([(WRONG, STOP), (RIGHT, LENGTH)], True, "1 right one was cut off at a limit: train with a larger"),
        ([(WRONG, STOP), (RIGHT, STOP)], False, "/rollouts holds them, with the conversations that they answer"),
    ],
)
def test_nothing_right_names_the_next_move(tmp_path, capsys, responses, known, move) -> None:
    run = run_with(tmp_path / "a run", *responses, known=known)
    assert main(["rollouts", str(run), "--correct"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no response to write: 0 of 2 recorded responses")
    assert move in err
    if "report" in err:
        assert f"`dapo report '{run}'`" in err


def test_what_is_right_is_written_whatever_else_there_is(tmp_path, capsys) -> None:
    run = run_with(tmp_path / "r", (RIGHT, LENGTH), (RIGHT, STOP), (UNSCORED, STOP), (WRONG, STOP))
    assert main(["rollouts", str(run), "--correct"]) == 0
    assert capsys.readouterr().out == '{"prompt": "problem 0", "response": "answer 1"}\n'


def test_an_episode_is_a_conversation_with_a_message_for_each_turn(tmp_path, capsys) -> None:
    (prompt,) = make_prompts(1)
    run = make_run(tmp_path / "r", prompts=[prompt], settings={"environment": {"kind": "my_game:guess"}})
    turns = (
        Turn(0, 1, "user", ""),
        Turn(1, 2, "assistant", "3"),
        Turn(2, 3, "tool", "no"),
        Turn(3, 4, "assistant", "4"),
    )
    made = Response(
        np.arange(4), np.zeros(4, np.float32), np.zeros(4, np.int32), STOP, "3\n4", turns=turns, ended="done"
    )
    write_rollouts(run / "rollouts" / "step_000001.parquet", 1, [Group(0, prompt, [made], [RIGHT])])
    assert main(["rollouts", str(run), "--correct", "--format", "messages"]) == 0
    said = [("user", "problem 0"), ("assistant", "3"), ("tool", "no"), ("assistant", "4")]
    assert json.loads(capsys.readouterr().out) == {"messages": [{"role": role, "content": text} for role, text in said]}
    assert main(["rollouts", str(run), "--correct"]) == 2
    assert "write them as conversations: --format messages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ({"logging": {"rollouts": "none"}}, None, "of these steps; logging.rollouts is none"),
        ({}, None, "of these steps; rollouts/ is empty"),
        ({}, 3, "of these steps; rollouts/ is empty"),
        ({}, 0, "they are written when a step ends, and its first step is not done. step 1: 0 of 4 groups kept, 0% of"),
    ],
)
def test_a_run_without_rollouts_says_why(tmp_path, capsys, settings, status, said) -> None:
    run = make_run(tmp_path / "r", prompts=make_prompts(1), settings=settings)
    if status is not None:
        shares = Shares(all_wrong=1.0, judged=40, answered=0.0)
        writer = StatusWriter(run / "status.json", steps=9, clock=itertools.count(1000.0, 2.0).__next__)
        writer.step(status)
        writer.doing("", CollectProgress(status + 1, 0, 4, 40, shares, cap_groups=80.0))
    assert main(["rollouts", str(run)]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert said in err
    if status == 0:
        assert "cap.groups ends the search at 80" in err
        assert "in 0% of the responses: it cannot read them" in err
