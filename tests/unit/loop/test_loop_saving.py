"""When a checkpoint is due: by steps, by the clock, or both. The clock is the test's."""

from __future__ import annotations

import pytest

from dapo.config.schema import Checkpoint
from dapo.loop import saving
from dapo.loop.saving import Saver
from dapo.metrics.phases import Phases


class Store:
    """Checkpoints that are whole when they are asked for."""

    def __init__(self):
        self.steps, self.whole = [], True

    def begin(self, step, write, record):
        self.steps.append(step)
        return Writing(self, step)


class Writing:
    def __init__(self, store, step):
        self.store, self.step = store, step

    def done(self):
        return self.store.whole

    def finish(self):
        return f"step_{self.step}"


class Recorder:
    def __init__(self):
        self.told = []

    def saved(self, step, folder):
        self.told.append(step)

    def span(self, span):
        pass


@pytest.fixture
def clock(monkeypatch):
    """Seconds, as the test sets them."""
    now = [1000.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    return now


def saved_steps(clock, settings, seconds_each, steps=12):
    """Which of so many steps are saved when each takes so long."""
    store, recorder = Store(), Recorder()
    saver = Saver(store, recorder, Phases())
    for step in range(1, steps + 1):
        clock[0] += seconds_each
        saver.step_done(step, settings, None)
    assert recorder.told == store.steps
    return store.steps


@pytest.mark.parametrize(
    ("every", "seconds", "each", "steps"),
    [
        (0, None, 100, []),
        (5, None, 100, [5, 10]),
        (0, 300, 100, [3, 6, 9, 12]),
        (0, 250, 100, [3, 6, 9, 12]),  # at the first end of a step from then on
        (0, 300, 299, [2, 4, 6, 8, 10, 12]),
        (0, 10, 100, list(range(1, 13))),  # never twice for one step
        (5, 300, 100, [3, 5, 8, 10]),  # the clock counts from the last checkpoint, whichever asked for it
        (5, 10_000, 100, [5, 10]),
    ],
)
def test_checkpoints_come_by_steps_and_by_the_clock(clock, every, seconds, each, steps):
    assert saved_steps(clock, Checkpoint(every=every, seconds=seconds), each) == steps


def test_seconds_count_from_the_beginning_of_the_last_checkpoint_also_where_it_is_still_written(clock):
    store, recorder = Store(), Recorder()
    saver = Saver(store, recorder, Phases())
    settings = Checkpoint(every=0, seconds=300, asynchronous=True)
    store.whole = False
    for step in range(1, 6):
        clock[0] += 100
        saver.step_done(step, settings, None)
    assert (store.steps, recorder.told) == ([3], [])  # begun, and nobody waits for it
    store.whole = True
    clock[0] += 100
    saver.step_done(6, settings, None)  # the next one is due: one at a time
    assert (store.steps, recorder.told) == ([3, 6], [3])
    saver.finish()
    assert recorder.told == [3, 6]
