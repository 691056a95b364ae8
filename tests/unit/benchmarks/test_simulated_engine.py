"""The simulated fleet against brute force: one decode step after the other, and every response advanced on its own."""

from __future__ import annotations

import random
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from engine_contract import CHECKS, Subject

from dapo.errors import EngineError
from dapo.types.batch import Partial, SampleRequest, SamplingParams, Ticket
from dapo.types.enums import FinishReason, Verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import sampling_simulation as sampling
import simulated_engine as sim
import simulated_world as world
from simulation_report import plot, report

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    """A response of the benchmark is units of 64 tokens that nobody drew; it has one version, and no stop tokens."""
    lengths = np.full(64, 1000)
    subject = Subject(
        lambda slots: sim.SimulatedEngine(lambda group: lengths, engines=1, slots=slots),
        lambda number: Ticket(number, "shared", "", ()),
    )
    subject.bad = {"empty prompt": subject.request(5, prompt_ids=())}
    subject.stops = subject.keeps = subject.counts = False
    check(subject)


FINE = 1e-6  # seconds per tick: fine enough to read ends in seconds off the clock
SPEED = sim.Speed(step_seconds=0.01, row_seconds=0.003, prefill_seconds=0.0005)


def request(key, prefix=0, limit=10**6):
    arrays = Partial(np.zeros(prefix, np.int64), np.zeros(prefix, np.float32), np.zeros(prefix, np.int32))
    sampling = SamplingParams(max_tokens=limit)
    return SampleRequest(key, np.zeros(1, np.int64), sampling, 0, arrays if prefix else None, key[0])


def drain(engine):
    """Everything that ends from now on: [(seconds, key, event)]."""
    out = []
    while events := engine.poll():
        out += [(event.tick * engine.tick, event.key, event) for event in events]
    return out


def step_by_step(lengths, engines, slots):
    """One decode step at a time, of the engine whose step ends first. Lengths in units; [(seconds, key)] of ends."""
    waiting = sorted(lengths)
    running = [{} for _ in range(engines)]
    began = [0.0] * engines
    for key in list(waiting[: engines * slots]):
        min(running, key=len)[key] = lengths[key] * sim.UNIT
        waiting.remove(key)
    ended = []
    while any(running):
        ends = [
            began[i] + SPEED.step_seconds + SPEED.row_seconds * len(r) if r else np.inf for i, r in enumerate(running)
        ]
        i = int(np.argmin(ends))
        began[i] = ends[i]
        for key in sorted(running[i]):
            running[i][key] -= 1
            if running[i][key] == 0:
                ended.append((ends[i], key))
                del running[i][key]
        while waiting and len(running[i]) < slots:
            key = waiting.pop(0)
            running[i][key] = lengths[key] * sim.UNIT
    return ended


@dataclass
class Response:
    left: float
    engine: int


class OneByOne:
    """The same assumptions without heaps: at every event each response of each engine is advanced on its own."""

    def __init__(self, engines, slots):
        self.slots, self.time = slots, 0.0
        self.running, self.waiting, self.stall = {}, [], [0.0] * engines
        self.ended, self.left = [], {}

    def rows(self, engine):
        return sum(r.engine == engine for r in self.running.values())

    def submit(self, key, left, prefix):
        self.waiting.append((key, left, prefix))
        self.waiting.sort(key=lambda entry: entry[0])
        self.seat()

    def seat(self):
        while self.waiting:
            rows, engine = min((self.rows(i), i) for i in range(len(self.stall)))
            if rows == self.slots:
                return
            key, left, prefix = self.waiting.pop(0)
            self.running[key] = Response(left, engine)
            self.stall[engine] += prefix * sim.UNIT * SPEED.prefill_seconds

    def run(self, until):
        while True:
            pace = {k: SPEED.unit_seconds(self.rows(r.engine)) for k, r in self.running.items()}
            ends = {k: self.stall[r.engine] + r.left * pace[k] for k, r in self.running.items()}
            key = min(ends, key=lambda k: (ends[k], k), default=None)
            over = key is None or self.time + ends[key] > until + 1e-9  # an end at the very end of a tick belongs to it
            step = (until - self.time if np.isfinite(until) else 0.0) if over else ends[key]
            for k, r in self.running.items():
                r.left -= max(0.0, step - self.stall[r.engine]) / pace[k]
            self.stall = [max(0.0, s - step) for s in self.stall]
            self.time += step
            if over:
                return
            del self.running[key]
            self.ended.append((self.time, key))
            self.seat()

    def abort(self):
        self.left = {key: r.left for key, r in self.running.items()} | {k: left for k, left, _ in self.waiting}
        self.running, self.waiting = {}, []


def random_lengths(seed, groups=7, size=4):
    """Lengths in units, all different, so that hardly anything ends at the same moment."""
    drawn = iter(1 + np.random.default_rng(seed).permutation(4 * groups * size))
    return {(g, i): int(next(drawn)) for g in range(groups) for i in range(size)}


def make_engine(lengths, engines, slots, tick=FINE):
    size = 1 + max(i for _, i in lengths)
    table = {g: np.array([lengths[g, i] for i in range(size)]) for g in {g for g, _ in lengths}}
    return sim.SimulatedEngine(table.__getitem__, engines=engines, slots=slots, speed=SPEED, tick=tick)


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("slots", [1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_every_response_ends_at_the_step_it_would_end_at(engines, slots, seed):
    lengths = random_lengths(seed)
    engine = make_engine(lengths, engines, slots)
    engine.submit([request(key) for key in sorted(lengths)])
    ours, theirs = drain(engine), sorted(step_by_step(lengths, engines, slots))
    at = {key: seconds for seconds, key in theirs}
    assert [seconds for seconds, _, _ in ours] == pytest.approx([at[key] for _, key, _ in ours], abs=1e-5)
    assert [seconds for seconds, _, _ in ours] == pytest.approx([seconds for seconds, _ in theirs], abs=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_late_requests_aborts_and_prefixes_change_the_pace_at_once(seed):
    """Requests come, are taken back and come again at random times; ends and order are those of the brute force."""
    chance = random.Random(seed)
    lengths = random_lengths(seed, groups=12)
    engines, slots = chance.randint(1, 4), chance.randint(1, 6)
    engine, brute = make_engine(lengths, engines, slots), OneByOne(engines, slots)
    ours, prefix, todo = [], dict.fromkeys(lengths, 0), list(range(12))
    while todo:
        for group in [todo.pop(0) for _ in range(min(len(todo), chance.randint(1, 4)))]:
            engine.submit([request((group, i)) for i in range(4)])
            for i in range(4):
                brute.submit((group, i), lengths[group, i], 0)
        for _ in range(chance.randint(0, 6)):
            ours += [(event.tick * FINE, event.key) for event in engine.poll()]
        brute.run(engine.time)
        if chance.random() < 0.6:
            parts = engine.abort()
            brute.abort()
            assert {event.key for event in parts} == set(brute.left)
            for event in parts:
                prefix[event.key] += len(event.token_ids)
            engine.submit([request(event.key, prefix[event.key]) for event in parts])
            for event in parts:
                brute.submit(event.key, brute.left[event.key], prefix[event.key])
    ours += [(seconds, key) for seconds, key, _ in drain(engine)]
    brute.run(np.inf)
    at = {key: seconds for seconds, key in brute.ended}
    assert len(ours) == len(brute.ended) == len(at) == len(lengths)
    assert [seconds for seconds, _ in ours] == pytest.approx([at[key] for _, key in ours], abs=1e-4)
    assert [seconds for seconds, _ in ours] == pytest.approx([seconds for seconds, _ in brute.ended], abs=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_a_response_keeps_its_length_however_often_it_is_taken_back(seed):
    chance, lengths = random.Random(seed), random_lengths(seed)
    engine = make_engine(lengths, 2, 5, tick=0.5)
    engine.submit([request(key) for key in sorted(lengths)])
    made, done = dict.fromkeys(lengths, 0), set()
    while len(done) < len(lengths):
        for event in engine.poll():
            made[event.key] += len(event.token_ids)
            assert event.finish is FinishReason.STOP
            done.add(event.key)
        some = None if chance.random() < 0.5 else chance.sample(sorted(lengths), 9)
        parts = engine.abort(some)
        assert all(event.finish is FinishReason.ABORTED and (some is None or event.key in some) for event in parts)
        for event in parts:
            made[event.key] += len(event.token_ids)
        engine.submit([request(event.key, made[event.key]) for event in parts])
    assert made == lengths
    assert engine.stats()["generated_tokens"] == pytest.approx(sum(lengths.values()), abs=1e-6)


def test_the_limit_ends_a_response_for_length():
    engine = make_engine({(0, 0): 20, (0, 1): 5}, 1, 2)
    engine.submit([request((0, 0), limit=8), request((0, 1), limit=8)])
    ended = {key: event for _, key, event in drain(engine)}
    assert (len(ended[0, 0].token_ids), ended[0, 0].finish) == (8, FinishReason.LENGTH)
    assert (len(ended[0, 1].token_ids), ended[0, 1].finish) == (5, FinishReason.STOP)


@pytest.mark.parametrize("seed", range(4))
def test_slots_are_never_exceeded_never_idle_under_a_queue_and_full_speed_is_never_beaten(seed):
    chance, lengths = random.Random(seed), random_lengths(seed, groups=20)
    engine = make_engine(lengths, 3, 4, tick=0.25)
    todo, held = list(range(20)), []
    while todo or not engine.idle:
        if todo and chance.random() < 0.7:
            group = todo.pop(0)
            engine.submit([request((group, i)) for i in range(4)])
        events = engine.poll()
        held.append([len(machine.rows) for machine in engine._machines])
        if engine._queue:
            assert sum(held[-1]) == engine.capacity
        stats = engine.stats()
        assert stats["generated_tokens"] <= engine.time * engine.best * (1 + 1e-9)
        assert stats["busy_slot_steps"] <= stats["slot_steps"] * (1 + 1e-9)
        assert [event.tick for event in events] == [engine.clock] * len(events)
    assert np.max(held) == 4
    assert engine.stats()["generated_tokens"] == pytest.approx(sum(lengths.values()))


def test_tokens_carry_the_version_that_was_published_and_publishing_needs_an_empty_engine():
    engine = make_engine({(0, 0): 40}, 1, 1, tick=1.0)
    engine.submit([request((0, 0))])
    with pytest.raises(EngineError, match="abort"):
        engine.load(Ticket(1, "shared", "", ()))
    (part,) = engine.abort()
    engine.load(Ticket(3, "shared", "", ()))
    engine.submit([replace(request((0, 0)), prefix=None)])
    ((_, _, event),) = drain(engine)
    assert set(event.versions) == {3}
    assert len(part.token_ids) == 0


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8])
def test_the_world_has_the_shares_and_lengths_it_is_asked_for(acceptance):
    pairs = [world.group_accuracy(5, acceptance, group) for group in range(4000)]
    assert np.mean([a != b for a, b in pairs]) == pytest.approx(acceptance, abs=0.025)
    lengths = world.log_normal_lengths(5, 16, mean=3500.0, cap=20480)
    drawn = np.concatenate([lengths(group) for group in range(4000)])
    assert drawn.mean() * sim.UNIT == pytest.approx(3500, rel=0.04)
    assert drawn.max() == 20480 // sim.UNIT
    again = world.log_normal_lengths(5, 16, mean=3500.0, cap=20480)
    assert (again(3999) == lengths(3999)).all()


def test_lengths_of_a_real_run_keep_its_shape():
    lengths = world.resampled_lengths(1, 8, [0, 3, 0, 1], mean=1000.0, cap=4096)  # 2, 2, 2 or 4 tokens: mean 2.5
    drawn = np.concatenate([lengths(group) for group in range(2000)]) * sim.UNIT
    assert drawn.mean() == pytest.approx(1000 + sim.UNIT / 2, rel=0.02)  # rounded up to whole units
    assert np.mean(drawn > 1200) == pytest.approx(0.25, abs=0.02)


def test_the_verifier_answers_after_its_latency():
    engine = make_engine({(0, 0): 3}, 1, 1, tick=0.25)
    scorer = world.SimulatedScorer(engine, 1, 0.5, latency=4)
    engine.submit([request((0, 0))])
    assert len(engine.poll()) == 1
    ended = engine.clock
    scorer.submit((0, 0), None, None)
    assert scorer.poll(0) == []
    ((key, _),) = scorer.poll(None)
    assert (key, engine.clock) == ((0, 0), ended + 4)


CASES = [sampling.Case(2, 0.5, rule) for rule in sampling.RULES]
CASES += [sampling.Case(2, 0.5, "ours", lookahead=lookahead) for lookahead in (0.0, 1.0)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_schedule_beats_the_bound_or_trains_what_it_did_not_generate(case):
    lengths = sampling.make_lengths("log-normal")
    engine = sim.SimulatedEngine(lengths, engines=2, slots=sampling.SLOTS)
    collector = sampling.make_collector(case, engine, prompts=6)
    trained, finished = set(), {}
    for step in range(1, 5):
        batch = collector.collect(step)
        engine.load(Ticket(step, "shared", "", ()))
        kept = [group.id for group in batch.groups_P if group.verdict is Verdict.KEPT]
        assert len(batch.groups_P) == 6
        assert not trained & set(kept)
        trained |= set(kept)
        finished |= {group.id: int(group.lengths().sum()) for group in batch.finished}
    for group in trained:
        even, odd = world.group_accuracy(sampling.SEED, case.acceptance, group)
        assert even != odd
    assert all(units == lengths(group).sum() for group, units in finished.items())
    assert engine.stats()["generated_tokens"] >= sum(finished.values()) - 1e-6
    assert engine.time * engine.best >= engine.stats()["generated_tokens"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_seeds_give_equal_figures(case):
    first, second = (sampling.simulate(case, warm_up=2, steps=12, prompts=4) for _ in range(2))
    assert first == second
    assert first["relative"] > 1.0
    assert first["slot_use"] <= 1.0


def test_verls_rule_starts_two_groups_for_each_rejected_one_and_never_more_than_p_at_once():
    engine = sim.SimulatedEngine(sampling.make_lengths("log-normal"), engines=8, slots=32)
    rule = sampling.make_collector(sampling.Case(8, 0.5, "verl 0.9 streaming"), engine, prompts=8)
    submit, open_groups, most = engine.submit, {}, []
    poll, scored = rule.rounds.scorer.poll, []

    def watched_poll(timeout):
        scores = poll(timeout)
        scored.extend(group for (group, _), _ in scores)
        return scores

    rule.rounds.scorer.poll = watched_poll

    def watched(requests):
        judged = {group for group in scored if scored.count(group) == 16}
        assert sum(world.group_accuracy(sampling.SEED, 0.5, group) == (0.0, 1.0) for group in judged) < 8
        for request in requests:
            open_groups[request.key[-2]] = open_groups.get(request.key[-2], 0) + 1
        submit(requests)
        most.append(len({key[-2] for machine in engine._machines for key in machine.rows}))

    engine.submit = watched
    batch = rule.collect(1)
    rejected = sum(group.verdict is not Verdict.KEPT for group in batch.finished)
    assert max(most) <= 8
    assert 8 < len(batch.finished) <= 8 + 2 * rejected
    assert set(open_groups) == {group.id for group in batch.finished}  # what was under way was waited for
    assert [group.id for group in batch.groups_P] == sorted(
        group.id for group in batch.finished if group.verdict is Verdict.KEPT
    )[:8]


@pytest.mark.parametrize("acceptance", [0.9, 0.75, 0.6, 0.3])
def test_verls_rule_starts_waves_of_known_sizes_when_all_responses_are_equally_long(acceptance):
    engine = sim.SimulatedEngine(lambda group: np.full(16, 10), engines=8, slots=32)
    rule = sampling.make_collector(sampling.Case(8, acceptance, "verl 0.9 streaming"), engine, prompts=8)
    batch = rule.collect(1)
    started, kept, owed = 0, 0, 8
    while kept < 8:
        wave = min(owed, 8)
        verdicts = [world.group_accuracy(sampling.SEED, acceptance, started + i) == (0.0, 1.0) for i in range(wave)]
        started, kept, owed = started + wave, kept + sum(verdicts), owed - wave + 2 * (wave - sum(verdicts))
    assert len(batch.finished) == started
    assert len(batch.groups_P) == 8


def test_the_report_has_a_row_for_every_case_and_the_figure_is_drawn(tmp_path):
    rows = []
    for engines in (2, 4):
        for case in CASES:
            figures = sampling.simulate(replace(case, engines=engines), warm_up=0, steps=1, prompts=2)
            rows.append({**asdict(case), "engines": engines, "name": case.name, "prompts": 2, **figures})
    text = report(rows)
    assert all(text.count(f"| {case.name} |") == 3 for case in CASES)
    plot(rows, tmp_path / "figure.png", trade_off_fleet=4)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
