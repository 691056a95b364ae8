"""The layout of micro-batches, written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dapo.errors import LearnerError
from dapo.models.packed_attention import Segment
from dapo.models.packing import pack, pad
from dapo.types.batch import TokenRow

CPU = torch.device("cpu")


def row(group: int, prompt: list[int], tokens: list[int]) -> TokenRow:
    return TokenRow(group, np.array(prompt), np.array(tokens, dtype=np.int64))


ROWS = [row(7, [10, 11, 12], [1, 2, 3]), row(8, [20], [4, 5]), row(7, [10, 11, 12], [6])]


def test_packed_layout():
    batch = pack(ROWS, CPU)
    # group 7: prompt, response 1 2 (3 is never an input), response 6 needs no input; group 8: prompt, 4
    assert batch.input_ids.tolist() == [[10, 11, 12, 1, 2, 20, 4]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1]]
    assert batch.order == [0, 2, 1]
    assert batch.targets.tolist() == [1, 2, 3, 6, 4, 5]
    assert batch.sources.index.tolist() == [2, 3, 4, 2, 5, 6]
    assert batch.row_of_token.tolist() == [0, 0, 0, 1, 2, 2]
    assert batch.lengths == [3, 1, 2]
    assert batch.context.segments == [Segment(0, 3), Segment(3, 5, (0, 3)), Segment(5, 6), Segment(6, 7, (5, 6))]


def test_padded_layout():
    batch = pad(ROWS, CPU, pad_token_id=99)
    assert batch.input_ids.tolist() == [[10, 11, 12, 1, 2], [20, 4, 99, 99, 99], [10, 11, 12, 99, 99]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert batch.targets.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.sources.index.tolist() == [2, 3, 4, 5, 6, 12]


def test_rows_of_one_group_with_other_prompts_do_not_share():
    batch = pack([row(1, [10, 11], [1, 2]), row(1, [10, 12], [3, 4])], CPU)
    assert batch.input_ids.tolist() == [[10, 11, 1, 10, 12, 3]]


def test_equal_prompts_of_two_groups_stand_twice():
    assert pack([row(1, [10], [1]), row(2, [10], [1])], CPU).input_ids.tolist() == [[10, 10]]


def test_an_empty_response_has_no_tokens():
    batch = pack([row(1, [10], []), row(1, [10], [1])], CPU)
    assert batch.targets.tolist() == [1]
    assert batch.lengths == [0, 1]
    assert batch.row_of_token.tolist() == [1]


@pytest.mark.parametrize("layout", [lambda rows: pack(rows, CPU), lambda rows: pad(rows, CPU, 0)])
def test_an_empty_prompt_is_refused(layout):
    with pytest.raises(LearnerError, match="group 3 has an empty prompt"):
        layout([row(3, [], [1, 2])])
