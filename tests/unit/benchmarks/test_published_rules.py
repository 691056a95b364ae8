"""The published rules that the benchmark compares with do what their projects say, and nothing friendlier or worse."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dapo.algorithms.algorithm import Algorithm
from dapo.algorithms.keep import judge_group
from dapo.types.batch import Prompt, Response, SamplingParams, Score, content_id
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.seeds import TRAINING, derive_seed

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def rules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import published_rules

    return published_rules


class OneAtATimeEngine:
    """Ends one response a poll, the last submitted first; response i of group g has g + i + 1 tokens."""

    def __init__(self):
        self.queue, self.rounds, self.requests = [], [], []

    def submit(self, requests):
        assert not self.queue, "a new round before the old one has ended"
        self.queue += requests
        self.requests += requests
        self.rounds.append(len(requests))

    def poll(self, timeout=None):
        request = self.queue.pop()
        tokens = np.arange(sum(request.key[-2:]) + 1)
        return [
            Response(
                tokens,
                np.zeros(len(tokens), np.float32),
                np.zeros(len(tokens), np.int32),
                finish=FinishReason.STOP,
                key=request.key,
            )
        ]


class ListScorer:
    """Group g is mixed when ``keeps[g]``, else all wrong. Scores come in two halves, and only after the barrier."""

    def __init__(self, keeps, engine):
        self.keeps, self.engine, self.pending = keeps, engine, []

    def submit(self, key, prompt, completion):
        assert not self.engine.queue, "scored before the longest response had ended"
        assert completion.text == " ".join(map(str, range(sum(key[-2:])))), "the stop token is no part of the text"
        assert prompt.text == f"problem {key.group}"
        self.pending.append(key)

    def poll(self, timeout=None):
        half = self.pending[: len(self.pending) // 2 + 1]
        self.pending = self.pending[len(half) :]
        return [(key, Score({"accuracy": value}, value)) for key in half for value in [self._accuracy(*key[-2:])]]

    def _accuracy(self, group, index):
        return float(self.keeps[group] and index == 0)


class Stream:
    def __init__(self, end):
        self.position, self.end = 0, end

    def take(self, n):
        first, self.position = self.position, min(self.end, self.position + n)
        texts = [f"problem {i}" for i in range(first, self.position)]
        return [Prompt(content_id(text), text, np.array([1]), text, "", "list") for text in texts]


def make_rounds(rules, keeps):
    engine = OneAtATimeEngine()
    return rules.Rounds(
        engine=engine,
        scorer=ListScorer(keeps, engine),
        stream=Stream(len(keeps)),
        algorithm=Algorithm(
            judge=partial(judge_group, metric_is_accuracy=True), shape=None, advantages=None, loss_weights=None
        ),
        sampling=SamplingParams(max_tokens=1000),
        group_size=2,
        run_seed=7,
        decode=lambda ids: [" ".join(map(str, row)) for row in ids],
    )


def keeps_of(*kept_per_round, prompts=4):
    """Rounds of ``prompts`` groups of which the last so many are kept."""
    return [i >= prompts - kept for kept in kept_per_round for i in range(prompts)]


def trained_ids(batch):
    return [group.id for group in batch.groups_P]


def test_rounds_of_p_go_on_until_p_are_kept_and_throw_the_surplus_away(rules):
    rounds = make_rounds(rules, keeps_of(3, 3, 4, 0))
    rule = rules.RoundsUntilFull(rounds, prompts_per_step=4, round_prompts=4)
    batch = rule.collect(1)
    assert rounds.engine.rounds == [8, 8]  # one group was missing, a whole round came
    assert trained_ids(batch) == [1, 2, 3, 5]
    assert [group.id for group in batch.finished] == list(range(8))
    assert {g.id for g in batch.finished if g.disposition is Disposition.DISCARDED} == {0, 4, 6, 7}
    assert trained_ids(rule.collect(2)) == [8, 9, 10, 11]  # 6 and 7 were kept and are gone
    assert rounds.engine.rounds == [8, 8, 8]


def test_rounds_of_3p_generate_three_times_the_batch_at_once(rules):
    rounds = make_rounds(rules, [True] * 12)
    batch = rules.RoundsUntilFull(rounds, prompts_per_step=4, round_prompts=12).collect(1)
    assert rounds.engine.rounds == [24]
    assert trained_ids(batch) == [0, 1, 2, 3]
    assert len(batch.finished) == 12


def test_rounds_stop_at_their_limit(rules):
    rounds = make_rounds(rules, keeps_of(1, 1, 1, 1))
    with pytest.raises(RuntimeError, match="3 groups kept after 3 rounds, 4 needed"):
        rules.RoundsUntilFull(rounds, prompts_per_step=4, round_prompts=4, max_rounds=3).collect(1)
    assert len(rounds.engine.rounds) == 3


@pytest.mark.parametrize(
    ("kept", "limit", "extra", "signal"),
    [
        ((4,), 3, 0, 4),
        ((2, 2), 3, 1, 4),
        ((1, 1, 2), 3, 2, 4),
        ((1, 1, 1, 1), 3, 3, 1),  # four were kept, the last of them never looked at: the first round trains
        ((0, 4), 1, 1, 0),  # a perfect resample is thrown away
        ((3, 0, 0, 0), 3, 3, 3),
    ],
)
def test_limited_resampling(rules, kept, limit, extra, signal):
    rounds = make_rounds(rules, keeps_of(*kept))
    batch = rules.LimitedResampling(rounds, prompts_per_step=4, max_resample_times=limit).collect(1)
    assert len(rounds.engine.rounds) == 1 + extra
    assert len(batch.groups_P) == 4
    assert sum(group.verdict is Verdict.KEPT for group in batch.groups_P) == signal
    assert len(batch.finished) == 4 * (1 + extra)
    if signal < 4:
        assert trained_ids(batch) == [0, 1, 2, 3]
        assert sum(group.disposition is Disposition.FILLED for group in batch.groups_P) == 4 - signal


def test_requests_have_the_random_numbers_of_the_collector(rules):
    rounds = make_rounds(rules, [True] * 4)
    rules.RoundsUntilFull(rounds, prompts_per_step=2, round_prompts=2).collect(1)
    rules.RoundsUntilFull(rounds, prompts_per_step=2, round_prompts=2).collect(2)
    keys = [("train", g, i) for g in range(4) for i in range(2)]
    assert [request.key for request in rounds.engine.requests] == keys
    assert [request.seed for request in rounds.engine.requests] == [derive_seed(7, TRAINING, *key[-2:]) for key in keys]
    assert [request.priority for request in rounds.engine.requests] == [key[-2] for key in keys]


def test_responses_stand_in_their_place(rules):
    (group,) = make_rounds(rules, [True]).generate(1, step=3)
    assert group.lengths().tolist() == [1, 2]
    assert group.accuracies().tolist() == [1.0, 0.0]
    assert group.born == 3


def test_the_end_of_the_data_is_told(rules):
    rounds = make_rounds(rules, [False] * 6)
    with pytest.raises(RuntimeError, match="2 prompts left for a round of 4"):
        rules.RoundsUntilFull(rounds, prompts_per_step=4, round_prompts=4).collect(1)
