"""Schedule, plan, sync check, evaluation: the small parts of the loop."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedEngine, ScriptedScorer, make_algorithm

from dapo.algorithms.algorithm import Passes, trained_metrics
from dapo.errors import EngineError
from dapo.loop import sync_check
from dapo.loop.evaluation import Evaluator
from dapo.loop.sampling.account import wasted_seconds
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.schedule import Schedule
from dapo.loop.sync_check import SyncCheck
from dapo.types.batch import Group, Prompt, Response, SamplingParams, Score, StepBatch, TensorSum
from dapo.types.enums import FinishReason
from dapo.types.protocols import Done
from dapo.types.seeds import EVALUATION, TRAINING, derive_seed


def make_group(gid, lengths, accuracies, truncated=()):
    completions = [
        Response(
            np.arange(n),
            np.full(n, -0.5, np.float32),
            np.zeros(n, np.int32),
            FinishReason.LENGTH if i in truncated else FinishReason.STOP,
        )
        for i, n in enumerate(lengths)
    ]
    scores = [Score(reason="timeout") if a is None else Score({"accuracy": a}, a) for a in accuracies]
    return Group(gid, Prompt("p", "p", np.array([7]), "p", "", "s"), completions, scores)


def shaped(algorithm, groups):
    for group in groups:
        algorithm.shape_group(group)
    algorithm.assign_advantages(groups)
    return groups


def test_schedule_warms_up_in_its_unit_and_decays_to_its_end():
    rollout = Schedule(peak=1.0, unit="rollout", warmup=4)
    assert [rollout.at(step, 99) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    optimizer = Schedule(peak=2.0, unit="optimizer", warmup=2)
    assert [optimizer.at(99, step) for step in range(3)] == [1.0, 2.0, 2.0]
    linear = Schedule(peak=1.0, kind="linear", warmup=2, total=6, final_ratio=0.1)
    assert [round(linear.at(step, 0), 6) for step in (2, 4, 6, 9)] == [1.0, 0.55, 0.1, 0.1]
    cosine = Schedule(peak=1.0, kind="cosine", total=4)
    assert [round(cosine.at(step, 0), 6) for step in (0, 1, 2, 4)] == [1.0, round(0.5 + math.sqrt(0.125), 6), 0.5, 0.0]
    assert Schedule(peak=3.0).at(0, 0) == 3.0


def test_minibatches_are_whole_groups_and_weights_sum_to_one_in_each():
    algorithm = make_algorithm()
    groups = shaped(algorithm, [make_group(i, [2, 3], [0.0, 1.0]) for i in range(5)])

    def minibatches(size, groups):
        step = make_algorithm(passes=Passes(size)).plan(
            StepBatch(1, groups, groups), {}, version=0, rate=lambda n: 0.1 * n
        )
        assert step.learning_rates == [0.1 * n for n in range(len(step.minibatches))]
        return [sorted({row.group for row in rows}) for rows in step.minibatches]

    assert minibatches(2, groups) == [[0, 1], [2, 3], [4]]
    assert minibatches(None, groups) == [[0, 1, 2, 3, 4]]
    assert minibatches(2, []) == minibatches(None, []) == []
    rows = algorithm.rows(groups[:2])
    assert [row.group for row in rows] == [0, 0, 1, 1]
    assert sum(row.loss_weights().sum() for row in rows) == pytest.approx(1.0)
    np.testing.assert_allclose(rows[0].loss_weights(), np.float32(0.1))
    assert [row.advantage for row in rows[:2]] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-5)
    for row, completion in zip(rows[:2], groups[0].completions_G, strict=True):
        np.testing.assert_array_equal(row.sampler_logprobs, completion.logprobs)
        np.testing.assert_array_equal(row.versions, completion.versions)
        assert row.token_ids.dtype == row.prompt_ids.dtype == np.int32


def test_each_row_has_the_weight_that_the_reduction_gives_it():
    algorithm = make_algorithm()
    groups = shaped(algorithm, [make_group(i, [2, 3], [0.0, 1.0]) for i in range(2)])
    apart = replace(algorithm, loss_weights=lambda masks, _: np.arange(1.0, len(masks) + 1))
    assert [row.loss_weight for row in apart.rows(groups)] == [1.0, 2.0, 3.0, 4.0]
    assert algorithm.rows([]) == []


def test_unscored_and_filtered_responses_carry_no_loss_and_are_not_counted():
    algorithm = make_algorithm()
    group = make_group(0, [2, 3, 4, 5], [0.0, 1.0, None, 1.0], truncated=(3,))
    rows = algorithm.rows(shaped(algorithm, [group]))
    assert [row.loss_mask.all() for row in rows] == [True, True, False, False]
    np.testing.assert_allclose(np.concatenate([row.loss_weights() for row in rows]), [0.2] * 5 + [0.0] * 9)
    assert [row.advantage for row in rows[2:]] == [0.0, 0.0]
    voting = make_algorithm(overlong_filtering=False, truncated_vote=True)
    rows = voting.rows(shaped(voting, [group]))
    assert [row.loss_mask.all() for row in rows] == [True, True, False, True]


@pytest.mark.parametrize(
    ("filtering", "vote", "voters", "with_loss"),
    [(True, False, 0.5, 0.5), (True, True, 0.75, 0.5), (False, True, 0.75, 0.75), (False, False, 0.5, 0.5)],
)
def test_who_votes_and_who_carries_loss_are_two_numbers(filtering, vote, voters, with_loss):
    """Two scored, one unscored, one cut off, in each of two groups."""
    algorithm = make_algorithm(overlong_filtering=filtering, truncated_vote=vote)
    groups = [make_group(n, [2, 3, 4, 5], [0.0, 1.0, None, 1.0], truncated=(3,)) for n in range(2)]
    rows = algorithm.rows(shaped(algorithm, groups))
    tokens_R = [int(row.loss_mask.sum()) for row in rows]
    found = trained_metrics(groups, tokens_R, 28.0)
    assert (found["response/voters"], found["response/with_loss"]) == (voters, with_loss)
    assert found["sampling/trained_tokens"] == sum(tokens_R) == (20 if with_loss > 0.5 else 10)


def test_a_group_with_one_voter_has_no_loss():
    algorithm = make_algorithm()
    group = make_group(0, [2, 3], [1.0, None])
    rows = algorithm.rows(shaped(algorithm, [group]))
    assert not any(row.loss_mask.any() or row.loss_weights().any() for row in rows)


class FixedLearner:
    """Its log-probabilities are ``value``, or what ``value`` gives of each call's number."""

    def __init__(self, value, sums=None):
        self.value, self.sums, self.calls = value, sums or {}, 0

    def logprobs(self, rows):
        self.calls += 1
        value = self.value(self.calls) if callable(self.value) else self.value
        return Done([np.full(len(row.token_ids), value, np.float32) for row in rows])

    def rounding(self, rows):
        return None

    def checksums(self, dtypes):
        return {name: self.sums[name, dtype] for name, dtype in dtypes.items() if (name, dtype) in self.sums}


def make_check(learner, prompts=3, sums=None, fail=lambda g, i: False, **options):
    engine = ScriptedEngine(lambda g, i: 5, fail=fail)  # its log-probabilities are all -1
    engine.shares_weights = False
    engine.checksums = lambda: sums
    asked = [Prompt("p", "p", np.array([1]), "p", "", "s")] * prompts
    return SyncCheck(
        Rollouts(engine, None, lambda ids: [""] * len(ids)), learner, asked, SamplingParams(10), seed=1, **options
    )


def test_sync_check_names_engine_gap_and_remedy():
    good = make_check(FixedLearner(-1.01))(7)
    assert good["train/sync_gap"] == pytest.approx(0.01, abs=1e-6)
    assert good["train/sync_gap_max"] == pytest.approx(0.01, abs=1e-6)
    assert good["train/sync_accepted"] == 0.05
    with pytest.raises(EngineError, match=r"step 7.*15 tokens.*ScriptedEngine.*differ.* 1\b.*rollout.engine"):
        make_check(FixedLearner(0.0))(7)
    with pytest.raises(EngineError):
        make_check(FixedLearner(math.nan))(7)


def test_sync_check_accepts_what_is_healthy_for_this_engine_and_no_more():
    """A float32 engine is 1e-6 off: then 2e-5 is too much. A coarse one is 0.01 off, and 0.02 is fine."""
    check = make_check(FixedLearner(lambda call: -1 - (1e-6 if call < 4 else 3e-5)))
    assert [check(step)["train/sync_accepted"] for step in range(3)] == [0.05, sync_check.LEAST, sync_check.LEAST]
    with pytest.raises(EngineError, match=r"step 3 .*accepted 1e-05; before, a healthy check differed by 9.5e-07"):
        check(3)
    coarse = make_check(FixedLearner(lambda call: -1 - 0.01 * (2 if call == 3 else 1 if call < 4 else 5)))
    assert coarse(0)["train/sync_gap"] == pytest.approx(0.01, rel=1e-4)
    assert coarse(1)["train/sync_accepted"] == pytest.approx(0.03, rel=1e-4)
    assert coarse(2)["train/sync_gap"] == pytest.approx(0.02, rel=1e-4)
    # three times the mean of 0.01, 0.01 and 0.02, and four standard errors of 15 tokens and of the 45 before
    assert coarse.accepted(15) == pytest.approx(0.04 + 4 * math.sqrt(2e-4 / 9 * (1 / 15 + 1 / 45)), rel=1e-4)
    with pytest.raises(EngineError):
        coarse(3)
    drifting = make_check(FixedLearner(lambda call: -1 - 0.001 * 1.05**call))
    for step in range(60):  # to 0.019 in steps of a twentieth: no alarm
        drifting(step)
    fixed = make_check(FixedLearner(lambda call: -1 - 1e-6 * 9**call), tolerance=0.5)
    for step in range(5):
        assert fixed(step)["train/sync_accepted"] == 0.5


class Uneven(FixedLearner):
    """One token of five is ``far`` off, the others are exact; ``rounding``: what its precision costs a token."""

    def __init__(self, far, rounding=None):
        super().__init__(-1.0)
        self.far, self.rounded, self.asked = far, rounding, 0

    def logprobs(self, rows):
        found = super().logprobs(rows)
        far = self.far(self.calls) if callable(self.far) else self.far
        for row in found.result():
            row[2] -= far
        return found

    def rounding(self, rows):
        self.asked += 1
        return None if self.rounded is None else np.full(sum(len(row.token_ids) for row in rows), self.rounded)


def test_sync_check_knows_how_few_tokens_stand_behind_a_mean():
    """The gaps of a healthy engine are uneven: a mean of 38 tokens was 3.1 times the one before, and nothing wrong."""
    check = make_check(Uneven(lambda call: 0.004 if call == 1 else 0.0123))
    check(0)
    assert check.healthy.gap == pytest.approx(0.0008, rel=1e-3)
    error = math.sqrt((0.004**2 / 5 - 0.0008**2) * (1 / 15 + 1 / 15))
    assert check(1)["train/sync_accepted"] == pytest.approx(0.0024 + 4 * error, rel=1e-3)  # the gap is 0.00246


def test_sync_check_accepts_what_the_model_rounds_by_itself_and_no_more():
    """The model's own pass is 0.03 nats off in the run's precision: an engine may be off three times as far."""
    healthy = make_check(Uneven(0.4, rounding=0.03))
    assert healthy(0)["train/sync_gap"] == pytest.approx(0.08, rel=1e-3)
    assert make_check(Uneven(0.1, rounding=0.03))(0)["train/sync_accepted"] == 0.05
    for far, rounding in (
        (0.4, math.nan),
        (0.4, math.inf),
        (0.46, 0.03),
        (0.4, 0.02),
        (0.4, None),
        (1.6, 0.2),
        (math.nan, 0.2),
    ):
        with pytest.raises(EngineError, match="sync check after step 0"):
            make_check(Uneven(far, rounding))(0)
    assert make_check(Uneven(1.4, rounding=0.2))(0)["train/sync_accepted"] == 0.3  # as far as it goes
    later = make_check(Uneven(lambda call: 1e-4 if call == 1 else 0.2, rounding=0.02))
    later(0)
    assert later(1)["train/sync_accepted"] == pytest.approx(0.06)
    with pytest.raises(EngineError, match=r"accepted 0.03"):
        make_check(Uneven(0.4, rounding=0.2), tolerance=0.03)(0)  # the recipe has said what to accept


def test_sync_check_measures_rounding_only_where_a_gap_asks_for_it():
    learner = Uneven(0.01, rounding=0.03)
    check = make_check(learner)
    for step in range(5):
        check(step)
    assert learner.asked == 0


def test_sync_check_looks_at_single_tokens():
    """One token of 15 is far off; the mean alone would pass."""

    class OneWrong(FixedLearner):
        def logprobs(self, rows):
            found = super().logprobs(rows)
            found.result()[0][2] -= 0.7
            return found

    with pytest.raises(EngineError, match=r"0.7 at most \(accepted 0.6\)"):
        make_check(OneWrong(-1.0), tolerance=0.03)(1)  # 0.7 / 15 = 0.047
    with pytest.raises(EngineError, match=r"0.04667 nats in the mean \(accepted 0.04\)"):
        make_check(OneWrong(-1.0), tolerance=0.04)(1)
    assert make_check(OneWrong(-1.0), tolerance=0.05)(1)["train/sync_gap_max"] == pytest.approx(0.7, rel=1e-5)


def test_sync_check_of_near_ties_bounds_the_mean_alone():
    """A token that went to other experts is off by 0.7 nats, 0.047 in the mean of 15."""

    class Elsewhere(FixedLearner):
        def logprobs(self, rows):
            found = super().logprobs(rows)
            found.result()[0][2] -= 0.7
            return found

    check = make_check(Elsewhere(-1.0), tolerance=0.047, near_ties=True)
    assert check(1)["train/sync_gap_max"] == pytest.approx(0.7, rel=1e-5)
    with pytest.raises(EngineError, match=r"0.04667 nats in the mean \(accepted 0.04\)"):
        make_check(Elsewhere(-1.0), tolerance=0.04, near_ties=True)(1)
    with pytest.raises(EngineError, match="nan nats"):
        make_check(FixedLearner(math.nan), near_ties=True)(7)


def test_sync_check_compares_tensors_before_it_samples():
    expected = {("a", "float32"): 1, ("b", "bfloat16"): 2}
    learner = FixedLearner(-1.0, expected)
    found = {"a": TensorSum("float32", 1), "b": TensorSum("bfloat16", 2)}
    assert make_check(learner, sums=found)(3)["train/sync_tensors"] == 2
    with pytest.raises(EngineError, match=r"after step 3 failed: 1 of 2 tensors of ScriptedEngine .*\(b\)"):
        make_check(learner, sums=found | {"b": TensorSum("bfloat16", 3)})(3)
    with pytest.raises(EngineError, match=r"1 tensors, which the model lacks.*\(layer.9\)"):
        make_check(learner, sums=found | {"layer.9": TensorSum("float32", 1)})(3)
    assert make_check(learner)(3)["train/sync_tensors"] == 0  # a server


def test_sync_check_asks_an_engine_that_shares_the_weights_for_its_tensors_only():
    check = make_check(FixedLearner(0.0))
    check._rollouts.engine.shares_weights = True
    assert check(1) == {}
    check = make_check(FixedLearner(0.0), sums={"a": TensorSum("float32", 1)})
    check._rollouts.engine.shares_weights = True
    with pytest.raises(EngineError, match="lacks"):
        check(1)


def test_sync_check_speaks_of_responses_that_failed():
    """Weights that are not finite give no tokens to compare: another case than old weights."""
    with pytest.raises(EngineError, match=r"step 7 failed: 2 of 4 .*scripted.*weights finite\?"):
        make_check(FixedLearner(-1.0), prompts=4, fail=lambda g, i: g % 2 == 0)(7)


def test_evaluation_statistics_by_hand():
    """Two problems, four samples: accuracies 1 1 0 1 and 0 0 0 0; one response is unscored."""
    table = {0: [1.0, 1.0, 0.0, 1.0, 1.0], 1: [0.0, 0.0, 0.0, 0.0, "crash"]}
    engine = ScriptedEngine(lambda g, i: 2 + i, capacity=3)
    evaluator = Evaluator(
        rollouts=Rollouts(engine, ScriptedScorer(lambda g, i: table[g][i]), lambda ids: [""] * len(ids)),
        prompts={"set": [Prompt(str(i), str(i), np.array([1]), str(i), "", "set") for i in range(2)]},
        sampling=SamplingParams(10),
        samples=4,
        greedy=True,
        seed=0,
    )
    result = evaluator.evaluate()
    m = result.metrics
    assert m["validation/accuracy"] == m["validation/set/accuracy"] == 0.375
    # Agresti-Coull over problems: n' = 5.8415, m' = 0.45720, s' = 0.46483 (by hand), reach 1.96 s' / sqrt(n')
    assert m["validation/set/accuracy_low"] == pytest.approx(0.08025, abs=1e-4)
    assert m["validation/set/accuracy_high"] == pytest.approx(0.83415, abs=1e-4)
    assert m["validation/set/pass@1"] == 0.375
    assert m["validation/set/pass@2"] == 0.5
    assert m["validation/set/pass@4"] == 0.5
    assert m["validation/set/greedy_accuracy"] == 1.0  # the other greedy response is unscored, not wrong
    assert m["validation/set/unscored"] == 1
    assert m["validation/set/length_mean"] == 3.5
    assert [[r.key.sample for r in group.completions_G] for group in result.sets["set"]] == [[0, 1, 2, 3, -1]] * 2


def test_evaluation_draws_every_response_with_its_own_numbers_and_the_same_ones_each_time():
    engine = ScriptedEngine(lambda g, i: 2)
    prompts = [Prompt(str(i), str(i), np.array([1]), str(i), "", "set") for i in range(3)]
    evaluator = Evaluator(
        rollouts=Rollouts(engine, ScriptedScorer(lambda g, i: 1.0), lambda ids: [""] * len(ids)),
        prompts={"one": prompts, "two": prompts},
        sampling=SamplingParams(10, temperature=0.7),
        samples=4,
        greedy=True,
        seed=5,
    )
    evaluator.evaluate()
    first, engine.requests = engine.requests, []
    evaluator.evaluate()
    assert len({r.seed for r in first}) == len({r.key for r in first}) == 2 * 3 * 5
    assert [(r.key, r.seed) for r in first] == [(r.key, r.seed) for r in engine.requests]
    assert sorted({r.sampling.temperature for r in first}) == [0.0, 0.7]
    assert {r.key.lane for r in first} == {"evaluate"}  # no response of training has such a key


def test_seeds_of_training_and_evaluation_are_apart():
    seeds = {derive_seed(1, domain, g, i) for domain in (TRAINING, EVALUATION) for g in range(50) for i in range(8)}
    assert len(seeds) == 800
    assert derive_seed(1, 2, 3) == derive_seed(1, 2, 3) != derive_seed(1, 3, 2)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seconds_of_work_that_trained_nothing_follow_its_tokens():
    metrics = {
        "sampling/generated_tokens": 200,
        "cost/rejected_tokens": 50,
        "cost/discarded_tokens": 20,
        "cost/expired_tokens": 0,
    }
    seconds = {"time/generate": 3.0, "time/score": 1.0, "time/learn": 9.0}
    assert wasted_seconds(metrics, seconds) == {
        "cost/rejected_seconds": 1.0,
        "cost/discarded_seconds": 0.4,
        "cost/expired_seconds": 0.0,
    }
    assert wasted_seconds({"sampling/generated_tokens": 0}, seconds) == {}
    assert wasted_seconds({"validation/accuracy": 0.5}, seconds) == {}
