"""What the loop tells a recorder: which rows are traced, and which phase each second belongs to."""

import numpy as np
import pytest
from scripted import ScriptedScorer, make_algorithm, make_collector
from test_loop_parts import make_group, shaped

from dapo.errors import RewardError
from dapo.loop.sampling.account import response_metrics, wasted_seconds
from dapo.loop.sampling.texts import Texts
from dapo.loop.sampling.turn_rows import present
from dapo.metrics.phases import Phases
from dapo.observe.tokens import select_for_tokens
from dapo.types.batch import MODEL, Response, Score, Turn
from dapo.types.enums import Disposition, Verdict


def test_rows_of_traced_groups_are_traced_and_know_their_sample():
    algorithm = make_algorithm()
    groups = shaped(algorithm, [make_group(n, [2, 3, 1], [0.0, 1.0, 1.0]) for n in (4, 7)])
    rows = algorithm.rows(groups, {7})
    assert [(row.group, row.sample, row.traced) for row in rows] == [
        *((4, 0, False), (4, 1, False), (4, 2, False)),
        *((7, 0, True), (7, 1, True), (7, 2, True)),
    ]
    assert not any(row.traced for row in algorithm.rows(groups))


def test_copies_are_not_recorded_token_by_token():
    """Mode ``replace``: a copy has the tokens of its original, under an id of its own."""
    collector = make_collector(
        length=lambda g, i: 2 + i, accuracy=lambda g, i: float(i == 0 and g % 2 == 0), mode="replace"
    )
    batch = collector.collect(1)
    copied = {g.id for g in batch.groups_P if g.disposition is Disposition.COPIED}
    assert copied
    chosen = {g.id for g in select_for_tokens(batch.finished, 99)}
    assert chosen & {g.id for g in batch.groups_P} == {g.id for g in batch.groups_P} - copied


class Ticking:
    """A clock that goes on by itself, one second at a time, where the world asks for it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def costs(self, seconds, function):
        def timed(*arguments, **named):
            self.now += seconds
            return function(*arguments, **named)

        return timed


def test_judging_is_a_phase_of_its_own_and_phases_still_add_up():
    """A text takes 10,000 s to read, scores 1 s to hand over and 10 s to wait for, verdicts 100 s: each lands in its
    own phase, once."""
    clock, spans = Ticking(), []
    collector = make_collector(length=lambda g, i: 1 + i, accuracy=lambda g, i: float(i), prompts=2, group=2)
    phases = collector.phases = collector.scores.phases = Phases(spans.append, clock)
    scorer: ScriptedScorer = collector.rollouts.scorer
    polls, read = [], []
    own = collector.rollouts.texts.decode
    collector.rollouts.texts = Texts(lambda rows: read.extend(rows) or clock.costs(10_000 * len(rows), own)(rows))
    scorer.submit = clock.costs(1, scorer.submit)
    scorer.poll = clock.costs(10, lambda timeout=None, own=scorer.poll: polls.append(1) or own(timeout))
    collector._judge = clock.costs(100, collector._judge)
    collector.engine.poll = clock.costs(1000, collector.engine.poll)
    batch = collector.collect(1)
    judged, handed = len(collector.account.groups) or len(batch.finished), len(scorer.keys)
    seconds = phases.take()
    assert seconds["time/judge"] == 100 * judged > 0
    assert seconds["time/score"] == handed + 10 * len(polls) + 10_000 * len(read)
    assert len(read) == handed > 0
    assert seconds["time/generate"] % 1000 == 0
    assert sum(v for k, v in seconds.items() if k != "time/step") == seconds["time/step"]
    waits = [s for s in spans if s.name == "score" and 10 <= s.seconds < 10_000]
    around = [s for s in spans if s.name == "judge"]
    assert all(any(j.start <= w.start and w.start + w.seconds <= j.start + j.seconds for j in around) for w in waits)


def test_seconds_that_trained_nothing_hold_the_judging():
    metrics = {"sampling/generated_tokens": 10} | {
        f"cost/{fate}_tokens": n for fate, n in (("rejected", 5), ("discarded", 0), ("expired", 1))
    }
    out = wasted_seconds(metrics, {"time/generate": 3.0, "time/score": 1.0, "time/judge": 2.0, "time/learn": 9.0})
    assert out["cost/rejected_seconds"] == pytest.approx(3.0)
    assert out["cost/expired_seconds"] == pytest.approx(0.6)


def test_a_score_that_never_comes_back_is_an_error_with_its_name():
    collector = make_collector(length=lambda g, i: 1, accuracy=lambda g, i: float(i))
    collector.rollouts.scorer.poll = lambda timeout=None: []
    with pytest.raises(RewardError, match=r"response 0 of group 0 never came back"):
        collector.collect(1)


def test_lists_of_finished_groups_choose_the_same_before_and_after_advantages():
    """The trainer asks which groups to trace before the update, the recorder writes them after it."""
    algorithm = make_algorithm()
    groups = [make_group(n, [2, 3], [0.0, 1.0]) for n in range(9)]
    for group in groups:
        group.disposition = Disposition.TRAINED if group.id % 2 else Disposition.DISCARDED
    before = [g.id for g in select_for_tokens(groups, 2)]
    shaped(algorithm, groups)
    assert [g.id for g in select_for_tokens(groups, 2)] == before == [1, 5, 4]
    assert np.isfinite(groups[1].advantages_G).all()


def test_rewards_of_all_finished_groups_and_of_the_kept_ones_by_hand():
    """An unscored response counts in none; the weighted sum is no reward by name."""
    kept, rejected = make_group(1, [2, 3], [0.0, 0.0]), make_group(2, [4, 1, 2], [0.0, 0.0, None])
    kept.verdict, rejected.verdict = Verdict.KEPT, Verdict.ALL_WRONG
    kept.scores_G = [Score({"accuracy": 1.0, "tidy": 0.5}, 2.0), Score({"accuracy": 0.0}, 1.0)]
    rejected.scores_G[:2] = [Score({"accuracy": 0.0}, -1.0)] * 2
    found = response_metrics([kept, rejected])
    expected = {
        "reward/raw": (2.0 + 1.0 - 1.0 - 1.0) / 4,
        "reward/raw_kept": 1.5,
        "reward/accuracy": 0.25,
        "reward/accuracy_kept": 0.5,
        "reward/tidy": 0.5,
        "reward/tidy_kept": 0.5,
        "response/length_mean": 12 / 5,
    }
    assert {key: found[key] for key in expected} == expected


def test_a_row_that_begins_later_in_its_episode_has_the_turns_from_there_on():
    turns = (Turn(0, 2, MODEL, "a"), Turn(2, 3, "tool", "b"), Turn(3, 5, MODEL, "c"), Turn(5, 6, "tool", "d"))
    generated = np.array([True, True, False, True, True, False])
    numbers = np.arange(6, dtype=np.float32)
    whole = Response(np.arange(6), numbers, np.arange(6), generated=generated, extra={"own": numbers}, turns=turns)
    row = present(whole, 3)
    assert [(turn.first, turn.stop, turn.text) for turn in row.turns] == [(0, 2, "c"), (2, 3, "d")]
    for values in (row.token_ids, row.logprobs, row.versions, row.extra["own"]):
        assert values.tolist() == [3, 4, 5]
    assert row.generated.tolist() == [True, True, False]
    assert present(whole, 6) is None
