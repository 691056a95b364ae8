"""Thousands of drawn worlds on the scripted engine, by both clocks: every step ends, and every group has one end.

A world is a function of its number: sizes of batch, group and engine, lengths, accuracies, late scores, settings of
dynamic sampling, and whether learning is overlapped, for a number of turns or until it ends.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from scripted import ScriptedEngine, ScriptedScorer, make_collector, random_world, ticket

from dapo.errors import EngineError, RewardError, RunStuck, SamplingStopped
from dapo.loop.overlap import Overlap
from dapo.loop.sampling.groups import Scores
from dapo.metrics.phases import Phases

STEPS = 3
WORLDS = 2000
MOST = 4000
"""Pumps of a step, many times what the longest step of a world takes."""


class LateScorer(ScriptedScorer):
    """Answers ``delay(group, sample)`` looks after it was asked; a look that waits goes on to the next answer."""

    def __init__(self, accuracy, delay):
        super().__init__(accuracy)
        self.delay, self.due, self.looks = delay, {}, 0

    def submit(self, key, prompt, completion):
        super().submit(key, prompt, completion)
        self.due[key] = self.looks + self.delay(*key[-2:])

    def poll(self, timeout=None):
        self.looks += 1
        if timeout is None and self.pending:
            self.looks = max(self.looks, min(self.due[key] for key in self.pending))
        ready = {key for key in self.pending if self.due[key] <= self.looks}
        held_back = [key for key in self.pending if key not in ready]
        self.pending = [key for key in self.pending if key in ready]
        found = super().poll(timeout)
        self.pending = held_back
        return found


class LateGroupScorer(LateScorer):
    """Is asked about whole groups; scores of one group come at different times."""

    by_group = True

    def __init__(self, accuracy, delay, size):
        super().__init__(accuracy, delay)
        self.size = size

    def submit_group(self, keys, prompt, completions):
        assert [key.sample for key in keys] == list(range(self.size)), "a group that is not whole"
        assert len({key[:2] for key in keys}) == 1
        assert all(completion.finish is not None for completion in completions)
        for key, completion in zip(keys, completions, strict=True):
            super().submit(key, prompt, completion)

    def submit(self, key, prompt, completion):
        raise AssertionError("a response was asked about alone")


class Server(ScriptedEngine):
    """Works alone, as a server does: its responses are heard of some looks after they ended."""

    def __init__(self, length, capacity, latency):
        super().__init__(length, capacity)
        self.latency, self.looks, self.unheard = latency, 0, []

    def busy_seconds(self):
        return 0.0

    def poll(self, timeout=None):
        while True:
            self.looks += 1
            self.unheard += [(self.looks + self.latency, event) for event in super().poll(0.0)]
            heard = [event for at, event in self.unheard if at <= self.looks]
            self.unheard = [(at, event) for at, event in self.unheard if at > self.looks]
            if heard or timeout is not None or not (self.unheard or self.active or self.queue):
                return sorted(heard, key=lambda event: (event.tick, event.key))

    def abort(self, keys=None):
        named = {event.key for _, event in self.unheard} | self.present if keys is None else set(keys)
        ended = [event for _, event in self.unheard if event.key in named]
        self.unheard = [(at, event) for at, event in self.unheard if event.key not in named]
        return sorted([*ended, *super().abort(named)], key=lambda event: event.key)


class Working:
    """A learner's handle that is done after so many looks."""

    def __init__(self, looks):
        self.left = looks

    def done(self):
        self.left -= 1
        return self.left < 0

    def result(self, timeout=None):
        if timeout is not None and self.left > 0:
            raise TimeoutError
        return "learnt"


def drawn_world(number):
    """Return the collector of a world, its turns of generation beside learning, and how long learning takes."""
    chance = random.Random(number)
    length, accuracy = random_world(number, mean_length=chance.choice([1, 3, 12]), kept=chance.uniform(0.05, 1.0))
    limit = chance.choice([1, 4, 8, 1000])
    by_clock, overlaps = chance.random() < 0.7, chance.random() < 0.8
    mode = chance.choice(["filter", "filter", "filter", "mask", "replace", "off"])
    cap = {"groups": chance.choice([2.0, 6.0, 40.0]), "then": chance.choice(["stop", "fill", "train_partial"])}
    patience = chance.choice([0, 0, 1, 5, 40])
    delays = random.Random(number + 1)
    latency = {}
    capacity, own_length = chance.randint(1, 24), chance.choice([length, lambda g, i: 3])
    server = Server(own_length, capacity, chance.randint(0, 9)) if by_clock and chance.random() < 0.3 else None
    collector = make_collector(
        length=own_length,
        accuracy=accuracy,
        engine=server,
        prompts=chance.randint(1, 5),
        group=chance.choice([1, 2, 4]) if mode == "off" else chance.choice([2, 4]),
        capacity=capacity,
        limit=limit,
        lag=chance.choice([0, 1, 5, 16, 100]),
        end=chance.choice([None, None, 7, 30]),
        distinct=chance.choice([None, 8]),
        overlaps=overlaps,
        turn=0.0 if by_clock and overlaps else None,
        mode=mode,
        surplus=chance.choice(["carry", "carry", "discard"]),
        unfinished=chance.choice(["carry", "carry", "drain", "discard"]),
        lookahead=chance.choice([0.0, 0.5, 1.5, 4.0]),
        oversample=chance.choice([None, None, 2.0]) if mode == "filter" else None,
        cap=cap if mode == "filter" else {"groups": 40.0, "then": cap["then"]},
        max_age=chance.choice([0, 1, 2, 4]) if not overlaps else chance.choice([1, 2, 4]),
        on_max_age=chance.choice(["wait", "wait", "drop"]),
    )
    late = lambda g, i: latency.setdefault((g, i), delays.randint(0, patience) if patience else 0)  # noqa: E731
    collector.rollouts.by_group = number % 3 == 0
    groups = LateGroupScorer(accuracy, late, collector.group_size)
    collector.rollouts.scorer = groups if collector.rollouts.by_group else LateScorer(accuracy, late)
    turns = None if by_clock else chance.randint(0, 6)
    return collector, overlaps, turns, chance


def bounded(collector):
    """Fail where a step takes more pumps than any world needs."""
    pump, counted = collector.pump, Counter()

    def counting(timeout=None):
        counted[collector.step] += 1
        assert counted[collector.step] <= MOST, f"step {collector.step} does not end: {collector.awaited()}"
        return pump(timeout)

    collector.pump = counting


def play(number):
    """Run a world; return the batches' groups by step."""
    collector, overlaps, turns, chance = drawn_world(number)
    bounded(collector)
    overlap = Overlap(collector, Phases(), turns) if overlaps else None
    trained, dispatched, recorded = [], 0, []
    for step in range(1, STEPS + 1):
        if overlap is not None:
            overlap.check()
        batch = collector.collect(step)
        dispatched += batch.metrics["groups/dispatched"]
        if not batch.groups_P and collector.exhausted:
            break
        trained.append(batch.groups_P)
        recorded.append((batch.finished, [(group.id, group.disposition) for group in batch.finished]))
        ages = [step - group.born for group in batch.groups_P if group.disposition != "copied"]
        assert max(ages, default=0) <= collector.settings.max_age, f"step {step} trains groups of ages {ages}"
        if overlap is not None and step < STEPS:
            overlap.result(Working(chance.choice([0, 1, 3, 30])), step + 1)
        if overlap is None:
            collector.engine.sleep()
        collector.engine.load(ticket(step), "keep" if overlap is not None else "abort")
    account_closes(collector)
    for finished, then in recorded:  # a step is recorded after the next one began
        assert [(group.id, group.disposition) for group in finished] == then, "what became of a group changed later"
    return trained


def account_closes(collector):
    """Every group that began has one end, or is held."""
    collector.hold()
    totals, present = collector.account.totals, collector.account.count
    ends = {name: totals[f"groups/{name}"] + present[f"groups/{name}"] for name in ("trained", "discarded", "expired")}
    filled = totals["groups/filled"] + present["groups/filled"]
    held = len(collector.kept) + len(collector.open)
    began = totals["groups/dispatched"] + present["groups/dispatched"]
    assert sum(ends.values()) + filled + held == began, (ends, filled, held, began)


def outcome(number):
    """Return what became of a world in a word."""
    try:
        trained = play(number)
    except SamplingStopped:
        return "unfilled"
    own = [group.id for groups in trained for group in groups]
    assert len(own) == len(set(own)), "a group trained twice"
    return "trained" if trained else "no data"


def outcomes(numbers):
    found = Counter()
    for number in numbers:
        try:
            found[outcome(number)] += 1
        except Exception as error:
            error.add_note(f"in world {number}")
            raise
    return found


@pytest.mark.parametrize("part", range(4))
def test_every_step_of_every_world_ends(part):
    found = outcomes(range(part, WORLDS, 4))
    assert found["trained"] > WORLDS / 4 / 2, found  # the draws try what they are for


# ---------------------------------------------------------------- planted faults, each of which is seen


def test_scores_that_wait_for_a_step_of_an_idle_engine_are_an_error(monkeypatch):
    """Without the rule that no engine step decides where a clock does, worlds stand still; none of them spins."""
    due = Scores.due

    def by_engine_steps(self, until, missing):
        early = [one for one in self._ended if until is None or one[0] <= until]
        late = [one for one in self._ended if one not in early]
        self._ended.clear()
        self._ended.extend(early)
        yield from due(self, until, missing)
        self._ended.extend(late)

    monkeypatch.setattr(Scores, "due", by_engine_steps)
    stuck = 0
    for number in range(300):
        try:
            outcome(number)
        except RunStuck as error:
            stuck += 1
            found = error.evidence.awaited
            assert found.scored
            assert (found.decoding, found.replies, found.scores) == (0, 0, 0)
    assert stuck > 30


class Forgetful(LateScorer):
    """Loses the response 0 of group 1."""

    def submit(self, key, prompt, completion):
        if key[-2:] != (1, 0):
            super().submit(key, prompt, completion)


@pytest.mark.parametrize("turn", [0.0, None])
def test_a_score_that_never_comes_is_an_error(monkeypatch, turn):
    monkeypatch.setattr("dapo.loop.sampling.collector.PATIENCE", 0.0)
    one_right = {"length": lambda g, i: 3, "accuracy": lambda g, i: float(i == 0)}
    collector = make_collector(**one_right, overlaps=turn is not None, turn=turn, unfinished="drain")
    collector.rollouts.scorer = Forgetful(one_right["accuracy"], lambda g, i: 2)
    bounded(collector)
    with pytest.raises(RewardError, match="never came back"):
        collector.collect(1)


def test_a_response_that_the_engine_forgets_is_an_error(monkeypatch):
    """With a time limit an empty answer of an engine says nothing; once nothing moved for long it is asked without."""
    monkeypatch.setattr("dapo.loop.sampling.collector.PATIENCE", 0.0)
    one_right = {"length": lambda g, i: 3, "accuracy": lambda g, i: float(i == 0)}
    collector = make_collector(**one_right, overlaps=True, turn=0.0, unfinished="drain")
    submit = collector.engine.submit
    collector.engine.submit = lambda requests: submit([r for r in requests if r.key[-2:] != (1, 0)])
    bounded(collector)
    with pytest.raises(EngineError, match="never came back, among them 0 of group 1"):
        collector.collect(1)
