"""Evaluation where verifiers fail, are slow, or lose scores."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scripted import ScriptedEngine
from small_recipe import small_recipe

from dapo.checkpoint.store import CheckpointStore
from dapo.config.schema import Reward
from dapo.errors import EngineError, RewardError
from dapo.loop.evaluation import Evaluator
from dapo.loop.evaluation_metrics import accuracy_of
from dapo.loop.reinforcement import Reinforcement
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.trainer import Trainer
from dapo.metrics.phases import Phases
from dapo.observe.evaluations import held_out_of
from dapo.observe.held_out import differences
from dapo.observe.log import logging_to
from dapo.observe.sentences import notice_said, stop_said
from dapo.rewards.compose import build_scorer
from dapo.types.batch import Prompt, SamplingParams, Score
from dapo.types.evaluation import GREEDY, EvaluationProgress
from dapo.types.evidence import SilentEvidence


class TableScorer:
    """Scores by (problem, sample) of the first set; one at a time, like a slow verifier."""

    def __init__(self, score):
        self.score, self.waiting = score, []

    def submit(self, key, prompt, completion):
        self.waiting.append(key)

    def poll(self, timeout=None):
        if not self.waiting or timeout == 0:
            return []
        key = self.waiting.pop(0)
        score = self.score(key.group, key.sample)
        return [] if score is None else [(key, score)]

    def close(self):
        pass


def prompts(count, source="held_out"):
    return [Prompt(f"id{i}", f"p{i}", np.array([1]), f"problem {i}", "7", source) for i in range(count)]


def evaluator(score, problems=2, samples=2, greedy=True, sets=("set",), engine=None, watch=None):
    return Evaluator(
        rollouts=Rollouts(
            engine or ScriptedEngine(lambda g, i: 2 + i, capacity=3),
            TableScorer(score) if callable(score) else score,
            lambda ids: ["7"] * len(ids),
        ),
        prompts={name: prompts(problems) for name in sets},
        sampling=SamplingParams(10),
        samples=samples,
        greedy=greedy,
        seed=0,
        watch=watch,
    )


def right(value):
    return Score({"accuracy": value}, value)


def picky(problem, sample):
    """Problem 0 is right, problem 1 wrong; a second reward fails on whatever is wrong."""
    if problem == 0:
        return Score({"accuracy": 1.0, "picky": 1.0}, 1.1)
    return Score({"accuracy": 0.0}, reason="exception: ValueError: no (reward 'picky')")


def test_another_reward_that_fails_does_not_change_the_accuracy(tmp_path):
    warned = []
    with logging_to(tmp_path / "log.txt", warned.append):
        subject = evaluator(picky)
        m = subject.evaluate().metrics
        assert (m["validation/accuracy"], m["validation/greedy_accuracy"], m["validation/pass@2"]) == (0.5, 0.5, 0.5)
        assert (m["validation/unscored"], m["validation/failed_rewards"], m["validation/responses"]) == (0, 3, 6)
        assert m["validation/accuracy_unscored_wrong"] == 0.5
        subject.evaluate()
    assert len(warned) == 1  # told once, not at every evaluation
    assert "'picky'" in warned[0]
    assert "another reward than the accuracy failed" in warned[0]


def test_the_composed_rewards_of_a_recipe_keep_the_accuracy_of_a_response_that_another_cannot_score():
    """The recipe that printed 100.0 % for 50 %: a second reward that fails on every wrong answer."""
    scorer = build_scorer(
        [
            Reward(name="accuracy", kind="exact"),
            Reward(name="picky", kind="function", function="evaluation_rewards:picky"),
        ],
        workers=1,
    )
    try:
        subject = evaluator(scorer, problems=4)
        engine = subject.rollouts.engine
        subject.rollouts = Rollouts(engine, scorer, lambda ids: ["7" if len(row) % 2 else "8" for row in ids])
        result = subject.evaluate()
    finally:
        scorer.close()
    pairs = [pair for group in result.sets["set"] for pair in group.pairs()]
    wrong = [score for response, score in pairs if response.text == "8"]
    assert all("picky" in score.reason and score.accuracy == 0.0 for score in wrong)
    assert 0 < len(wrong) < len(pairs)
    sampled = [score.accuracy for group in result.sets["set"] for score in group.scores_G[:-1]]
    assert result.metrics["validation/accuracy"] == pytest.approx(np.mean(sampled))
    assert result.metrics["validation/failed_rewards"] == len(wrong)


def test_what_has_no_accuracy_is_left_out_counted_and_bounded():
    """Problem 0: right, unscored. Problem 1: unscored, wrong. Problem 2: nothing known."""
    table = {
        (0, 0): right(1.0),
        (0, 1): Score(reason="timeout"),
        (1, 0): Score(reason="exception: KeyError: 'level'"),
        (1, 1): right(0.0),
        (2, 0): Score(reason="exception: KeyError: 'level'"),
        (2, 1): Score(reason="exception: KeyError: 'level'"),
    }
    result = evaluator(lambda p, s: table[p, s], problems=3, greedy=False).evaluate()
    m = result.metrics
    assert m["validation/accuracy"] == 0.5  # of the two problems with an answer that is known
    assert m["validation/accuracy_unscored_wrong"] == pytest.approx((0.5 + 0 + 0) / 3)
    assert (m["validation/unscored"], m["validation/responses"], m["validation/problems"]) == (4, 6, 3)
    assert (m["validation/set/unscored_timeout"], m["validation/set/unscored_exception"]) == (1, 3)
    assert math.isnan(m["validation/pass@2"])  # no problem has two scored responses
    assert result.reasons == {"set": "exception: KeyError: 'level'"}
    assert result.silent == []


def test_an_accuracy_out_of_range_is_no_set_of_its_own():
    """Its reason begins with the word accuracy, which ends the key of a set's accuracy."""
    result = evaluator(lambda p, s: Score(reason="accuracy: 3 is not in [0, 1]") if s else right(1.0)).evaluate()
    assert [key for key in result.metrics if key.endswith("/accuracy")] == [
        "validation/accuracy",
        "validation/set/accuracy",
    ]
    assert result.metrics["validation/unscored_accuracy"] == 4


def test_counts_over_sets_are_sums_and_a_set_without_a_score_is_named():
    result = evaluator(lambda p, s: Score(reason="crash"), sets=("one", "two")).evaluate()
    assert result.silent == ["one", "two"]
    assert (result.metrics["validation/unscored"], result.metrics["validation/problems"]) == (12, 4)
    assert math.isnan(result.metrics["validation/accuracy"])
    assert result.metrics["validation/accuracy_unscored_wrong"] == 0


@pytest.mark.parametrize("given", [0, 3])
def test_a_lost_score_ends_the_evaluation(given):
    """It polled for ever."""
    left = [right(1.0)] * given

    def score(problem, sample):
        return left.pop() if left else None

    with pytest.raises(RewardError, match=rf"scores of {6 - given} of the evaluation's 6 responses .*'problem "):
        evaluator(score).evaluate()


class GroupScorer(TableScorer):
    """1 for the last response of those that it is asked about at once."""

    by_group = True

    def __init__(self):
        super().__init__(lambda problem, sample: right(float(sample == self.asked[problem][-1])))
        self.asked = {}

    def submit_group(self, keys, prompt, completions):
        assert prompt.problem == f"problem {keys[0].group}"
        assert keys[0].group not in self.asked
        self.asked[keys[0].group] = [key.sample for key in keys]
        self.waiting += keys


def test_rewards_that_see_a_group_are_asked_once_a_problem_about_what_the_engine_finished():
    engine = ScriptedEngine(lambda g, i: 3 - i, capacity=3, fail=lambda g, i: (g, i) == (1, 1))
    scorer = GroupScorer()
    result = evaluator(scorer, samples=2, greedy=True, engine=engine).evaluate()
    assert scorer.asked == {0: [0, 1, GREEDY], 1: [0, GREEDY]}
    assert result.metrics["validation/greedy_accuracy"] == 1.0
    assert result.metrics["validation/accuracy"] == 0.0
    assert result.metrics["validation/unscored_engine"] == 1


def test_a_response_that_the_engine_lost_is_unscored_with_the_engines_reason():
    engine = ScriptedEngine(lambda g, i: 2, fail=lambda g, i: i == 1)
    result = evaluator(lambda p, s: right(1.0), engine=engine).evaluate()
    assert result.metrics["validation/accuracy"] == 1.0
    assert result.metrics["validation/unscored_engine"] == 2
    assert result.reasons["set"].startswith("engine: ")


def test_progress_counts_what_is_answered_and_scored_over_all_sets():
    seen: list[EvaluationProgress] = []
    evaluator(lambda p, s: right(1.0), sets=("one", "two"), watch=seen.append).evaluate()
    assert {progress.total for progress in seen} == {12}
    assert (seen[-1].answered, seen[-1].scored) == (12, 12)
    assert [p.scored for p in seen] == sorted(p.scored for p in seen)
    assert {p.scored for p in seen} >= set(range(1, 13))  # a slow verifier is seen at work, response by response
    assert all(p.scored <= p.answered for p in seen)


def test_verifiers_work_while_the_engine_does():
    """The first responses are handed over before the last ones have ended."""
    order = []

    class Watched(TableScorer):
        def submit(self, key, prompt, completion):
            order.append(key)
            super().submit(key, prompt, completion)

    engine = ScriptedEngine(lambda g, i: 2 + i, capacity=1)
    own = engine.poll
    engine.poll = lambda timeout=None: order.append("poll") or own()
    evaluator(Watched(lambda p, s: right(1.0)), engine=engine).evaluate()
    last_poll = len(order) - 1 - order[::-1].index("poll")
    assert sum(entry != "poll" for entry in order[:last_poll]) >= 4


def test_lost_requests_of_the_engine_are_an_error():
    engine = ScriptedEngine(lambda g, i: 2)
    engine.poll = lambda timeout=None: []
    with pytest.raises(EngineError, match="lost 6 of the evaluation's 6 requests"):
        evaluator(lambda p, s: right(1.0), engine=engine).evaluate()


def compared(first, second):
    """The first model's accuracy minus the second's on the only set, and the number of their common problems."""
    ((estimate, problems),) = differences(held_out_of(second), held_out_of(first)).values()
    return estimate, problems


def test_two_models_are_compared_on_the_problems_that_both_could_be_scored_on():
    first = evaluator(lambda p, s: right(1.0) if p else Score(reason="crash"), problems=4).evaluate().sets
    second = evaluator(lambda p, s: right(float(p == 3)), problems=3).evaluate().sets
    estimate, problems = compared(first, second)
    assert (estimate.mean, problems) == (1.0, 2)  # problems 1 and 2
    assert estimate.low < 1.0
    same, _ = compared(first, first)
    assert (same.mean, -same.low) == (0.0, same.high)
    assert accuracy_of(first["set"]).mean == 1.0


def test_problems_of_equal_content_are_told_apart_by_their_place():
    groups = evaluator(lambda p, s: right(float(p == 0)), problems=2).evaluate().sets["set"]
    alike = {"set": [replace(group, prompt=prompts(1)[0]) for group in groups]}
    estimate, problems = compared(alike, alike)
    assert (estimate.mean, problems) == (0.0, 2)


class FirstStep(Trainer):
    """As far as the evaluation before training."""

    def __init__(self, subject, recorded, folder):
        recorder = SimpleNamespace(
            step=lambda step, metrics, *_: recorded.append(("step", step)),
            evaluation=lambda step, result: recorded.append(("evaluation", step)),
            notice=lambda step, notice: recorded.append(("notice", step, notice)),
            stillness=lambda stillness: None,
        )
        learner = SimpleNamespace(publish=lambda version: None)
        phases = Phases()
        method = Reinforcement(
            collector=SimpleNamespace(
                aside=nullcontext,
                rollouts=SimpleNamespace(busy_seconds=lambda: 0.0),
                engine=SimpleNamespace(load=lambda ticket, in_flight: None),
            ),
            learner=learner,
            algorithm=None,
            evaluator=subject,
            check_sync=lambda version: {},
            recorder=recorder,
            phases=phases,
        )
        super().__init__(
            method,
            schedule=None,
            checkpoints=CheckpointStore(folder),
            recorder=recorder,
            recipe=small_recipe(trainer={"steps": 1}, validation={"every": 1}),
            fingerprint={},
            phases=phases,
        )


def test_a_held_out_set_of_which_nothing_can_be_scored_stops_the_run_before_training(tmp_path):
    recorded = []
    subject = evaluator(lambda p, s: Score(reason="exception: KeyError: 'level'"), sets=("easy", "hard"))
    with pytest.raises(RewardError) as stopped:
        next(FirstStep(subject, recorded, tmp_path).each_step())
    reason = "exception: KeyError: 'level'"
    assert stopped.value.evidence == SilentEvidence({"easy": reason, "hard": reason}, engine=False)
    assert re.match(
        r".*not one response.*easy: exception: KeyError: 'level'; hard: .*rewards.txt",
        stop_said(stopped.value.evidence, Path("RUN")),
    )
    assert recorded == [("evaluation", 0), ("step", 0)]  # the evidence is written first


def test_a_set_that_falls_silent_later_is_told_and_training_goes_on(tmp_path):
    recorded = []
    trainer = FirstStep(evaluator(lambda p, s: Score(reason="crash")), recorded, tmp_path)
    trainer.evaluate(5)
    assert recorded[1] == ("notice", 5, SilentEvidence({"set": "crash"}, engine=False))
    assert notice_said(*recorded[1][1:]).startswith("step 5: the held-out accuracy is unknown")
    trainer.method.evaluator = evaluator(lambda p, s: right(1.0))
    trainer.evaluate(6)
    assert recorded[2:] == [("evaluation", 6)]
