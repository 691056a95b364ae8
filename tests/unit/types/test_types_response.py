"""A response grows: what an engine makes is joined to what is there, replies are appended, and the rest is cut off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dapo.errors import EngineError
from dapo.types.batch import MODEL, Key, Response, Turn
from dapo.types.enums import FinishReason

KEY = Key("train", 3, 0)
TURN = Turn(0, 2, MODEL, "a b")


def made(*token_ids: int, version: int = 4, **known: object) -> Response:
    """Token t has the log-probability -t / 10 and the entry 10 t of the extra array ``own``."""
    ids = np.array(token_ids, np.int64)
    numbers = (-ids / 10).astype(np.float32), np.full(len(ids), version, np.int32)
    return Response(ids, *numbers, extra={"own": ids * 10}, **known)  # type: ignore[arg-type]


def lists(response: Response) -> tuple[list[int], list[int], list[int], list[int], list[bool] | None]:
    tenths = np.rint(response.logprobs * -10).astype(int).tolist()
    own = None if response.generated is None else response.generated.tolist()
    return response.token_ids.tolist(), tenths, response.versions.tolist(), response.extra["own"].tolist(), own


def test_an_answer_of_an_engine_continues_the_tokens_and_turns_before_it():
    before = made(7, 2, turns=(TURN,), key=Key("train", 9, 9))
    after = made(5, version=6, finish=FinishReason.STOP, text="c", key=KEY, tick=8, engine=1)
    whole = after.behind(before)
    assert lists(whole) == ([7, 2, 5], [7, 2, 5], [4, 4, 6], [70, 20, 50], None)
    assert whole.turns == (TURN,)
    assert (whole.finish, whole.text, whole.key, whole.tick, whole.engine) == (FinishReason.STOP, "c", KEY, 8, 1)
    assert after.behind(None) is after is after.behind(Response.empty(KEY))


def test_tokens_of_others_count_in_no_length_and_carry_the_version_before_them():
    answered = made(7, 2).with_given(np.array([9, 9, 9]), version=5)
    assert lists(answered) == (
        [7, 2, 9, 9, 9], [7, 2, 0, 0, 0], [4] * 5, [70, 20, 0, 0, 0], [True, True, False, False, False],
    )  # fmt: skip
    assert (len(answered), answered.model_tokens) == (5, 2)
    whole = made(5, version=6).behind(answered)
    assert whole.sampled.tolist() == [True, True, False, False, False, True]
    opening = Response.empty(KEY).with_given(np.array([9]), version=5)
    assert (opening.versions.tolist(), opening.model_tokens) == ([5], 0)
    assert lists(made(7).behind(opening)) == (
        [9, 7],
        [0, 7],
        [5, 4],
        [0, 70],
        [False, True],
    )  # arrays come with an engine


def test_a_cut_leaves_the_first_tokens_and_the_prompts_part_of_an_array():
    routed = replace(made(7, 2, 5), extra={"routes": np.arange(5)})  # of two prompt tokens and three of the response
    short = routed.with_given(np.array([9])).cut(2)
    assert (short.token_ids.tolist(), short.sampled.tolist()) == ([7, 2], [True, True])
    assert short.extra["routes"].tolist() == [0, 1, 2, 3]
    assert routed.cut(3) is routed


def test_what_goes_on_has_no_finish_and_no_text():
    assert made(7, finish=FinishReason.LENGTH, text="a").unfinished().finish is None
    assert made(7, finish=FinishReason.LENGTH, text="a").unfinished().text == ""


def test_arrays_that_some_tokens_lack_are_refused():
    with pytest.raises(EngineError, match=r"sample=0.*same arrays for every token"):
        replace(made(5, key=KEY), extra={}).behind(made(7))
