"""An episode that is cut into rows weighs what it weighs in one row, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from each import each
from episode_rows import as_episode, by_turns
from learner_rows import make_algorithm, rows_of

from dapo.errors import HookError
from dapo.types.batch import MODEL, Group, Prompt, Response, Score, Turn
from dapo.types.enums import FinishReason
from dapo.types.row_parts import cut_row, joined_logprobs, parts_of, token_rows

LENGTHS = [2, 3, 1, 4, 4, 1, 2, 2]
PLACES = [list(range(length)) for length in LENGTHS]  # of the loss tokens in the fixture of eight rows of four
GOLDEN = {
    "token_mean": 1.542105,
    "prompt_mean": 1.578889,
    "sequence_mean": 1.568750,
    "sequence_sum": 3.662500,
    "constant": 0.915625,
    "micro_batch_mean": 1.602500,
}
OPTIONS = {
    "constant": {"constant_length": 4},
    "micro_batch_mean": {"micro_batches": [[0, 1], [2, 3], [4, 5], [6, 7]]},
}


def golden_groups():
    """The responses of the golden numbers, cut behind every token; token t of row r has the id 4 r + t + 10."""
    groups = []
    for gid in range(2):
        asked = Prompt(f"p{gid}", "", np.array([3, 4, 5]), "", "", "s")
        made = []
        for row in range(4 * gid, 4 * gid + 4):
            count = LENGTHS[row]
            ids = 4 * row + np.arange(count) + 10
            plain = Response(ids, np.zeros(count, np.float32), np.zeros(count, np.int32), FinishReason.STOP)
            made.append(as_episode(plain, list(range(1, count)), [2] * (count - 1)))
        groups.append(Group(gid, asked, made, [Score({"accuracy": 1.0}, float(n)) for n in range(4)]))
    return groups


@each("reduction", GOLDEN)
def test_the_parts_of_an_episode_sum_to_the_golden_numbers(reduction):
    """L of row r, token t is 0.1 (4 r + t + 1): the ids tell which token a part holds."""
    rows = rows_of(
        [by_turns(group) for group in golden_groups()], make_algorithm(reduction, **OPTIONS.get(reduction, {}))
    )
    assert len(rows) == sum(LENGTHS)
    assert [row.part for row in rows[:5]] == [0, 1, 0, 1, 2]
    total = sum(float((row.loss_weights() * 0.1 * (row.token_ids - 9)).sum()) for row in rows)
    assert total == pytest.approx(GOLDEN[reduction], abs=1e-6)


def test_a_row_begins_with_each_turn_that_has_a_prompt():
    turns = (
        Turn(0, 2, "user", ""),
        Turn(2, 4, MODEL, "", prompt_ids=np.array([1, 2])),
        Turn(4, 5, "user", ""),
        Turn(5, 7, MODEL, ""),
        Turn(7, 8, "user", ""),
        Turn(8, 9, MODEL, "", prompt_ids=np.array([1, 7])),
        Turn(9, 9, MODEL, "", prompt_ids=np.array([1, 8])),
        Turn(9, 11, "user", ""),
    )
    assert [(part.first, part.stop, part.prompt_ids.tolist()) for part in parts_of(turns)] == [
        (2, 7, [1, 2]),
        (8, 9, [1, 7]),
    ]
    assert parts_of(()) == parts_of((Turn(0, 2, MODEL, ""),)) == []


def test_parts_hold_their_stretch_of_every_array_and_the_weight_of_the_whole():
    group = golden_groups()[1]
    (row,) = rows_of([replace(group, completions_G=group.completions_G[:1], scores_G=group.scores_G[:1])])
    row = replace(
        row,
        reference_logprobs=np.arange(len(row.token_ids), dtype=np.float32),
        extra={"scale": np.arange(len(row.token_ids))},
        loss_weight=0.5,
        advantage=2.0,
    )
    parts = cut_row(row, by_turns(group).completions_G[0].turns)
    assert [part.token_ids.tolist() for part in parts] == [[26], [27], [28], [29]]
    assert [part.reference_logprobs.tolist() for part in parts] == [[0], [3], [6], [9]]
    assert [part.extra["scale"].tolist() for part in parts] == [[0], [3], [6], [9]]
    assert {(part.loss_weight, part.advantage, part.group, part.sample) for part in parts} == {(0.5, 2.0, 1, 0)}
    assert parts[2].prompt_ids.tolist() == [3, 4, 5, 26, 9, 9, 27, 9, 9]
    wide = replace(row, extra={"wide": np.zeros(len(row.prompt_ids) + len(row.token_ids))})
    with pytest.raises(HookError, match=r"'wide' of response 0 of group 1 spans its prompt.*rows: append"):
        cut_row(wide, by_turns(group).completions_G[0].turns)


def test_log_probabilities_of_parts_come_back_as_those_of_the_response():
    group = by_turns(golden_groups()[0])
    asked = [(group, 1), (group, 2)]
    rows = [row for group, index in asked for row in token_rows(group, index)]
    assert [row.token_ids.tolist() for row in rows] == [[14], [15], [16], [18]]
    found = joined_logprobs(asked, [np.float32([-n - 1]) for n in range(4)])
    assert found[0, 1].tolist() == [-1, 0, 0, -2, 0, 0, -3]
    assert found[0, 2].tolist() == [-4]
