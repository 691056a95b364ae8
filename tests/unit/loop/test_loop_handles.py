"""A learner whose handles are really pending: it keeps the contract, and the trainer waits for what it needs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from later import LaterLearner
from learner_contract import CHECKS
from learner_subject import Subject
from scripted_learner import ScriptedLearner
from scripted_run import STEPS, make_run

from dapo.types.batch import LearnStep


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_of_a_learner(check, tmp_path):
    def diverging():
        learner = LaterLearner(ScriptedLearner(max_skipped_steps=1))
        learner._learner.diverge = True
        return learner

    check(
        Subject(lambda: LaterLearner(ScriptedLearner()), lambda: LaterLearner(ScriptedLearner(50)), diverging), tmp_path
    )


def test_a_pending_handle_says_so_and_goes_on_after_a_time_limit():
    learner = LaterLearner(ScriptedLearner(), held=True)
    handle = learner.learn(LearnStep([], [], 0))
    assert not handle.done()
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    handle.gate.set()
    assert handle.result(timeout=600).traces == []
    assert handle.done()


def test_a_run_over_pending_handles_is_the_same_run(tmp_path):
    """While a handle is pending the trainer asks nothing that depends on it: the same calls, rows and weights."""
    whole = make_run(tmp_path / "whole")
    assert whole()
    later = make_run(tmp_path / "later")
    later.method.learner = slow = LaterLearner(later.learner, held=True)
    opened, finished = [], threading.Event()

    def open_one_by_one():
        """Each gate opens only after its handle was given out: none is done when the trainer gets it."""
        while not finished.wait(0.001):
            for handle in slow.pending[len(opened) :]:
                handle.gate.set()
                opened.append(handle)

    opener = threading.Thread(target=open_one_by_one)
    opener.start()
    try:
        assert later()
    finally:
        finished.set()
        opener.join()
    assert len(opened) >= STEPS
    assert later.log.entries == whole.log.entries
    assert [later.recorder.row(step) for step in range(1, STEPS + 1)] == [
        whole.recorder.row(step) for step in range(1, STEPS + 1)
    ]
    np.testing.assert_array_equal(later.learner.scores, whole.learner.scores)
