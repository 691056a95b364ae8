"""A run in which nothing happens says so; one that can never go on ends, saved; no signal is lost on its way."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest
from scripted import make_collector
from scripted_run import make_run

from dapo.errors import RunStuck, Terminated
from dapo.loop.interrupt import Interrupt, outside_of_steps
from dapo.loop.sampling.groups import Scores
from dapo.loop.stillness import LONG, StillnessWatch
from dapo.metrics.phases import Phases
from dapo.observe.sentences import stop_said
from dapo.observe.why import stillness_line
from dapo.types.evidence import Awaited, Stillness

ONE_RIGHT = {"length": lambda g, i: 3, "accuracy": lambda g, i: float(i == 0)}

# ---------------------------------------------------------------- stillness


class Watched:
    def __init__(self, awaited=None):
        self.now, self.reports, self.phases = 1000.0, [], Phases()
        self.awaited = awaited or Awaited(scores=3)
        self.watch = StillnessWatch(
            self.phases, lambda: self.awaited, self.reports.append, lambda: self.now, lambda: self.now + 1e9
        )

    def look(self, after):
        self.now += after
        self.watch.look()


def test_it_is_reported_after_a_minute_and_again_when_it_ends():
    subject = Watched()
    subject.phases.step = 7
    subject.look(0.0)
    subject.look(LONG - 1)
    assert subject.reports == []
    with subject.phases("score"):
        subject.look(1.0)
        subject.look(30.0)
    assert subject.reports == [
        Stillness(7, "score", LONG, 1e9 + 1000.0, Awaited(scores=3)),
        Stillness(7, "score", LONG + 30.0, 1e9 + 1000.0, Awaited(scores=3)),
    ]
    subject.awaited = Awaited(scores=2, happened=1)
    subject.look(5.0)
    subject.look(5.0)
    assert subject.reports[2:] == [None]


def test_any_event_and_a_new_step_are_no_stillness():
    subject = Watched()
    for happened in range(5):
        subject.awaited = Awaited(scores=3, happened=happened)  # one answers, another is asked
        subject.look(LONG - 1)
    for step in range(5):
        subject.phases.step = step
        subject.look(LONG - 1)
    assert subject.reports == []


def test_time_that_the_caller_of_a_run_takes_is_no_stillness():
    subject = Watched()
    subject.look(0.0)
    with subject.watch.resting():
        subject.look(10 * LONG)
    subject.look(LONG - 1)
    assert subject.reports == []
    subject.look(1.0)
    with subject.watch.resting():
        assert subject.reports[1:] == [None]  # what was said does not stay while the caller goes on


def test_a_method_that_samples_nothing_has_only_steps():
    watched = Watched()
    watched.watch._awaited = lambda: None
    watched.look(0.0)
    watched.look(LONG)
    assert [report.awaited for report in watched.reports] == [None]


def test_the_line_says_since_when_and_what_is_waited_for():
    def line(phase, **owed):
        return stillness_line(Stillness(3, phase, 125.0, 0.0, Awaited(**owed)))

    assert "nothing happened for 2 min 5 s (since " in line("score", scores=12)
    assert line("score", scores=12).endswith("verifiers owe 12 scores")
    assert line("generate", decoding=1, replies=2).endswith("the engine owes 1 response, environments owe 2 replies")
    assert line("judge", scored=96, effect_at=32, clock=30).endswith(
        "96 scores that arrived take effect from engine step 32 on; the engine is at 30"
    )
    assert line("learn").endswith("it is learning")
    assert stillness_line(Stillness(3, "a phase of a later version", 60.0, 0.0, None))


def test_what_is_owed_is_counted_while_it_is_owed():
    collector = make_collector(**ONE_RIGHT, prompts=2, capacity=4, overlaps=True, turn=0.0)
    collector.rollouts.scorer.slow = {0}
    collector.begin(1)
    assert collector.awaited() == Awaited()
    collector.pump(0.0)
    assert (collector.awaited().decoding, collector.awaited().clock) == (4, 1)
    for _ in range(6):
        collector.pump(0.0)
    held = collector.awaited()
    assert held.scores == 2  # of group 0
    assert held.happened > 0
    collector.rollouts.scorer.slow = set()
    collector.hold()
    assert collector.awaited().effect_at is None  # no engine step decides


# ---------------------------------------------------------------- a run that cannot go on


def test_a_run_that_cannot_go_on_is_saved_and_goes_on_where_its_scores_can_be_asked_for_again(tmp_path, monkeypatch):
    """A planted fault withholds the scores of step 3; without it the resumed run ends as one that never had it."""
    due, faulty = Scores.due, [False]

    def withheld(self, until, missing):
        if not faulty[0]:
            yield from due(self, until, missing)

    monkeypatch.setattr(Scores, "due", withheld)
    options = {**ONE_RIGHT, "turn": 0.0, "steps": 5, "lookahead": 0.0, "save_every": 0}
    run = make_run(tmp_path, hooks={("learner learn", 2): lambda: faulty.__setitem__(0, True)}, **options)
    with pytest.raises(RunStuck) as raised:
        run()
    evidence = raised.value.evidence
    assert (evidence.step, evidence.kept, evidence.groups) == (3, 0, 4)
    assert evidence.awaited.scored == 8
    assert "step 3 cannot go on. 0 of 4 groups are kept" in stop_said(evidence, tmp_path)
    assert run.saved == [2]
    faulty[0] = False
    again = make_run(tmp_path, resume=True, **options)
    assert again()
    assert again.trainer.counters.training_steps == 5
    assert run.trained + again.trained == [[4 * n + i for i in range(4)] for n in range(5)]


# ---------------------------------------------------------------- signals


class Destructor:
    """Runs when the object goes, as those of libraries do, for long enough that a signal meets it."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)
        for _ in range(1000):  # the handler runs in here, and Python drops what it raises
            pass


def in_a_destructor(*numbers):
    """Get signals, the last one in a destructor, and wait for what follows."""
    for number in numbers[:-1]:
        os.kill(os.getpid(), number)
    subject = Destructor(numbers[-1])
    del subject
    waits()


def waits():
    """Wait for a signal, for as long as a machine under load may need to deliver it."""
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        time.sleep(0.01)


def test_a_signal_in_a_destructor_ends_a_run_that_is_not_in_a_step():
    with pytest.raises(Terminated), outside_of_steps():
        in_a_destructor(signal.SIGTERM)


def test_a_second_signal_in_a_destructor_leaves_at_once():
    said = []
    interrupt = Interrupt(said.append, lambda: said.append("again"))
    with pytest.raises(KeyboardInterrupt), interrupt:
        in_a_destructor(signal.SIGTERM, signal.SIGTERM)
    assert said[:2] == ["SIGTERM", "again"]


@pytest.fixture
def heard():
    """Give both signals their usual handlers: a shell starts what runs behind it without that of Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_whose_exception_a_library_swallows_is_a_request_before_the_first_step(number, name, heard):
    with outside_of_steps():
        with suppress(BaseException):
            os.kill(os.getpid(), number)
            waits()
        said = []
        with outside_of_steps():  # of a run within a run
            pass
        with Interrupt(said.append, lambda: None) as interrupt:
            assert interrupt.requested
    assert said == [name]
    with Interrupt(said.append, lambda: None) as interrupt:
        assert not interrupt.requested  # of a run before, in the same process
