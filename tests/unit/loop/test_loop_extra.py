"""Extra arrays of a response: from the engine over prefixes and checkpoints to a row, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from learner_rows import make_algorithm, make_groups, make_rows

from dapo.checkpoint.tree import load_tree, save_tree
from dapo.errors import EngineError, HookError
from dapo.loop.sampling.rollouts import Rollouts
from dapo.types.batch import Key, Response, SampleRequest, SamplingParams
from dapo.types.codec import from_tree, to_tree
from dapo.types.enums import FinishReason

PROMPT = np.arange(3)
KEY = Key("train", 5, 0)


def routes(first: int, count: int) -> np.ndarray:
    """Two experts for each token, by its place in prompt and response."""
    places = np.arange(first, first + count, dtype=np.int16)
    return np.stack([places, places + 100], axis=1)


def event(tokens: int, finish: FinishReason | None, **extra: np.ndarray) -> Response:
    numbers = np.zeros(tokens, np.float32)
    return Response(np.arange(tokens), numbers, np.zeros(tokens, np.int32), finish, extra=extra, key=KEY)


class OneAnswer:
    """An engine that ends or gives back each request with the event it is told."""

    def __init__(self) -> None:
        self.next: Response | None = None

    def submit(self, requests):
        self.requests = requests

    def poll(self, timeout=None):
        return [self.next]

    def abort(self, keys):
        return [self.next]


@pytest.fixture
def rollouts():
    engine = OneAnswer()
    return engine, Rollouts(engine, None, lambda many: ["" for _ in many])


def ask(rollouts, prefix=None):
    rollouts.submit([SampleRequest(KEY, PROMPT, SamplingParams(16), 1, prefix)])


def test_arrays_of_an_engine_are_joined_over_a_checkpoint(rollouts, tmp_path):
    """The prompt's part of `routes` comes with the first tokens; `bits` are of the response alone."""
    engine, mailbox = rollouts
    ask(mailbox)
    engine.next = event(2, None, routes=routes(0, 5), bits=np.array([True, False]))
    (part,) = mailbox.recall("train")
    save_tree({"partial": to_tree(part)}, tmp_path, "state")
    carried = from_tree(Response, load_tree(tmp_path, "state")["partial"])
    assert carried.extra["routes"].dtype == np.int16

    ask(mailbox, carried)
    engine.next = event(3, FinishReason.STOP, routes=routes(5, 3), bits=np.array([True, True, True]))
    mailbox.pump()
    (whole,) = mailbox.ended("train")
    assert len(whole) == 5
    save_tree({"completion": to_tree(whole)}, tmp_path, "whole")
    back = from_tree(Response, load_tree(tmp_path, "whole")["completion"])
    np.testing.assert_array_equal(back.extra["routes"], routes(0, 8))
    np.testing.assert_array_equal(back.extra["bits"], [True, False, True, True, True])


def test_a_poll_that_returns_what_did_not_end_is_refused(rollouts):
    engine, mailbox = rollouts
    ask(mailbox)
    engine.next = event(2, None)
    with pytest.raises(EngineError, match=r"without a finish"):
        mailbox.pump()


def test_a_part_without_new_tokens_keeps_what_was_there(rollouts):
    engine, mailbox = rollouts
    ask(mailbox)
    engine.next = event(2, None, bits=np.array([True, False]))
    (part,) = mailbox.recall("train")
    ask(mailbox, part)
    engine.next = event(0, None)
    (again,) = mailbox.recall("train")
    assert again.extra["bits"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"bits": np.zeros(4)}, r"extra 'bits' has the shape \[4\], expected a first axis of 2 .* or 5"),
        ({"bits": np.zeros((0, 2))}, r"shape \[0, 2\]"),
        ({"bits": [True, False]}, "extra 'bits' is list, expected a numpy array"),
    ],
)
def test_an_engines_array_of_another_length_is_refused(rollouts, extra, expected):
    engine, mailbox = rollouts
    ask(mailbox)
    engine.next = event(2, FinishReason.STOP, **extra)
    mailbox.pump()
    with pytest.raises(EngineError, match=expected):
        mailbox.ended("train")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, r"extra arrays \[\] for some tokens of a response and \['bits'\] for others"),
        ({"bits": np.zeros(1)}, "float64"),
        ({"bits": np.zeros((1, 2), bool)}, r"bool \[2\]"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(rollouts, extra, expected):
    engine, mailbox = rollouts
    ask(mailbox)
    engine.next = event(2, None, bits=np.array([True, False]))
    (part,) = mailbox.recall("train")
    ask(mailbox, part)
    engine.next = event(1, FinishReason.STOP, **extra)
    mailbox.pump()
    with pytest.raises(EngineError, match=expected):
        mailbox.ended("train")


def test_rows_have_what_engine_and_objective_give():
    from dataclasses import replace

    groups = make_groups(0, 2, 3)
    for group in groups:
        group.completions_G = [replace(c, extra={"bits": np.ones(len(c), bool)}) for c in group.completions_G]
    algorithm = make_algorithm()
    algorithm = replace(algorithm, extra=lambda rows: [{"place": np.arange(len(r.token_ids)) + r.sample} for r in rows])
    for group in groups:
        algorithm.shape_group(group)
    algorithm.assign_advantages(groups)
    for row in algorithm.rows(groups):
        assert row.extra["bits"].all()
        assert row.extra["place"].tolist() == [n + row.sample for n in range(len(row.token_ids))]


def test_a_row_refuses_an_array_that_does_not_span_its_tokens():
    from dataclasses import replace

    row = make_rows(0, 1, 1, length=lambda random: 4)[0]
    prompt = len(row.prompt_ids)
    for fits in (4, prompt + 4):
        assert len(replace(row, extra={"bits": np.zeros(fits)}).extra["bits"]) == fits
    with pytest.raises(HookError, match=rf"response 0 of group 0: extra 'bits' .* of 4 .* or {prompt + 4} "):
        replace(row, extra={"bits": np.zeros(5 + prompt)})
