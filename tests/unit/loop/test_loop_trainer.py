"""The trainer over a scripted learner and engine: what happens when, what is saved, and nothing is trained twice."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial

import pytest
from quick import quick
from scripted import random_world
from scripted_run import STEPS, make_run

from dapo.errors import (
    AccuracyUnknown,
    CallbackError,
    CheckpointError,
    EngineError,
    LearnerError,
    RewardError,
    SamplingStopped,
)
from dapo.metrics.stats import Sum
from dapo.types.batch import LearnStep
from dapo.types.evidence import DataEnded
from dapo.types.protocols import Done

PUBLISH = ["learner publish", "publish", "learner checksums", "check", "learner logprobs"]
TRAIN = ["collect", "sleep", "shape", "learner learn", *PUBLISH]

length, accuracy = random_world(5)
WORLD = {"length": length, "accuracy": accuracy}  # rejected, carried and older groups


def weights(run):
    return run.learner.scores.tolist(), run.learner.moments.tolist()


def flat(run):
    return [group for groups in run.trained for group in groups]


@pytest.fixture
def whole(tmp_path):
    """The run that nothing disturbs."""
    run = make_run(tmp_path / "whole", **WORLD)
    assert run()
    return run


# ---------------------------------------------------------------- the order of a step


def test_a_step_is_collect_sleep_shape_learn_publish_check_evaluate_record_save(tmp_path):
    run = make_run(tmp_path)
    assert run()
    assert run.log.calls(0) == [*PUBLISH, "evaluate", "record"]
    assert run.log.calls(1) == run.log.calls(3) == [*TRAIN, "record"]
    assert run.log.calls(2) == run.log.calls(4) == [*TRAIN, "evaluate", "record", "learner save"]
    assert (run.saved, run.recorder.evaluations, sorted(run.recorder.rows)) == ([2, 4], [0, 2, 4], [0, 1, 2, 3, 4])
    assert run.recorder.stops == run.recorder.warned == run.recorder.said == []


def test_the_last_step_is_evaluated_and_saved_whatever_is_due(tmp_path):
    run = make_run(tmp_path, evaluate_every=3, save_every=0)
    assert run()
    assert (run.recorder.evaluations, run.saved) == ([0, 3, 4], [4])
    run = make_run(tmp_path / "none", evaluate_every=0, save_every=3)
    assert run()
    assert (run.recorder.evaluations, run.saved, sorted(run.recorder.rows)) == ([], [3, 4], [1, 2, 3, 4])


def test_what_the_learner_is_told(tmp_path):
    """Minibatches of whole groups, a rate for each by the schedule, the version that is trained."""
    run = make_run(tmp_path)
    run()
    assert run.trained == [[4 * n + k for k in range(4)] for n in range(STEPS)]
    for number, step in enumerate(run.learner.steps):
        assert isinstance(step, LearnStep)
        assert (step.version, step.ratio_against) == (number, "sampler")
        assert [sorted({row.group for row in rows}) for rows in step.minibatches] == [
            [4 * number, 4 * number + 1],
            [4 * number + 2, 4 * number + 3],
        ]
        assert all(row.traced for rows in step.minibatches for row in rows)
        assert len(run.recorder.traces[number + 1]) == 8
    expected = [0.1 / 3, 0.1 / 3, 0.2 / 3, 0.2 / 3, 0.1, 0.1, 0.1, 0.1]
    assert run.rates == pytest.approx(expected, rel=1e-12)
    counters = {key: run.recorder.rows[4][f"counters/{key}"] for key in ("training_steps", "optimizer_steps")}
    assert counters == {"training_steps": 4, "optimizer_steps": 8}
    tokens = sum(int(row.loss_mask.sum()) for step in run.learner.steps for rows in step.minibatches for row in rows)
    assert run.recorder.rows[4]["counters/trained_tokens"] == tokens > 0


def test_the_gap_is_that_of_older_weights_and_of_nothing_else(tmp_path):
    """The engine computes with what was published: tokens of the present version agree, carried ones do not."""
    run = make_run(tmp_path, minibatch=None, **WORLD)
    run()
    older = [row["train/gap_mean_older"] for row in run.recorder.rows.values() if "train/gap_mean_older" in row]
    assert older
    assert all(1e-6 < gap < 0.1 for gap in older)
    for step in range(1, STEPS + 1):
        row = run.recorder.rows[step]
        assert row["train/gap_max_current"] == row["train/sync_gap_max"] == 0.0
        assert row["train/sync_tensors"] == 1


def test_a_metric_that_nobody_defined_fails_a_test(tmp_path):
    """Not a run: there it is written, and warned of."""
    run = make_run(tmp_path)
    learn = run.learner.learn

    def with_news(step):
        learned = learn(step).result()
        return Done(replace(learned, stats={**learned.stats, "train/brand_new": Sum(1.0)}))

    run.learner.learn = with_news
    with pytest.raises(AssertionError, match="train/brand_new"):
        run()


# ---------------------------------------------------------------- an engine is lost


def resumed(folder, before, late=None, **options):
    """Continue from the newest checkpoint; no step is recorded twice, no group trained twice.

    ``late``: the step whose evaluation was lost, and is made up.
    """
    run = make_run(folder, resume=True, **(WORLD | options))
    first = run.trainer.counters.training_steps
    begins = first == 0 and run.trainer.evaluated_at < 0  # the evaluation of its start was left
    assert run()
    expected = range(first + (not begins), STEPS + 1)
    assert sorted(run.recorder.rows) == sorted({*expected, *([] if late is None else [late])})
    assert run.recorder.extra == {}
    together = [*before.trained[:first], *run.trained]
    groups = [group for step in together for group in step]
    assert len(groups) == len(set(groups)) == 4 * STEPS
    return run


@pytest.mark.parametrize("step", [1, 2, 3])
def test_lost_while_collecting_what_was_kept_is_saved(tmp_path, step):
    run = make_run(tmp_path, lost=[("poll", "generate", step)], **WORLD)
    with pytest.raises(EngineError, match="lost"):
        run()
    assert run.log.calls(step)[-2:] == ["stopped", "learner save"]
    assert (len(run.trained), run.saved[-1]) == (step - 1, step - 1)
    assert sorted(run.recorder.rows) == list(range(step))
    assert [at for at, _ in run.recorder.stops] == [step]
    held = {group.id for group in run.method.collector.kept} | set(run.method.collector.open)
    again = resumed(tmp_path, run)
    assert held <= {group.id for groups in again.recorder.finished.values() for group in groups}


@pytest.mark.parametrize(
    ("lost", "last"),
    [
        (("publish", "publish", 2), "publish"),
        (("poll", "publish", 2), "check"),
        (("poll", "evaluate", 2), "evaluate"),
    ],
)
def test_lost_behind_the_learner_the_step_is_recorded_and_saved(tmp_path, whole, lost, last):
    """The weights moved: the step counts, and a resume goes on behind it, to the bit."""
    run = make_run(tmp_path / "lost", lost=[lost], **WORLD)
    with pytest.raises(EngineError, match="lost"):
        run()
    assert run.log.calls(2)[-3:] == [last, "record", "learner save"]
    assert (run.saved, sorted(run.recorder.rows), len(run.trained)) == ([2], [0, 1, 2], 2)
    assert run.recorder.evaluations == [0]
    assert "validation/accuracy" not in run.recorder.rows[2]
    assert run.recorder.row(2).items() <= whole.recorder.row(2).items()
    again = resumed(tmp_path / "lost", run, late=2)
    assert again.recorder.evaluations[0] == 2
    assert "train/loss" not in again.recorder.rows[2], "a line of its own"
    assert again.recorder.rows[2]["validation/accuracy"] == whole.recorder.rows[2]["validation/accuracy"]
    assert [again.recorder.row(step) for step in (3, 4)] == [whole.recorder.row(step) for step in (3, 4)]
    assert weights(again) == weights(whole)


def test_stale_weights_are_an_engine_that_is_lost_in_the_sync_check(tmp_path, whole):
    run = make_run(tmp_path / "stale", stale=3, **WORLD)
    with pytest.raises(EngineError, match=r"sync check after step 3 failed: 1 of 1 tensors .*scores\.weight"):
        run()
    assert (run.saved[-1], sorted(run.recorder.rows)) == (3, [0, 1, 2, 3])
    assert weights(resumed(tmp_path / "stale", run)) == weights(whole)


@pytest.mark.parametrize("lost", [("publish", "publish", 0), ("poll", "publish", 0), ("poll", "evaluate", 0)])
def test_lost_before_the_first_step_nothing_is_saved(tmp_path, lost):
    run = make_run(tmp_path, lost=[lost], **WORLD)
    with pytest.raises(EngineError):
        run()
    assert (run.saved, run.recorder.rows, run.trained) == ([], {}, [])


@pytest.mark.parametrize("place", [("publish", "publish", 2), ("poll", "publish", 2)])
def test_lost_while_loading_a_checkpoint_it_can_be_loaded_again(tmp_path, whole, place):
    make_run(tmp_path / "part", steps=2, **WORLD)()
    with pytest.raises(EngineError):
        make_run(tmp_path / "part", resume=True, lost=[place], **WORLD)
    run = make_run(tmp_path / "part", resume=True, **WORLD)
    assert run()
    assert weights(run) == weights(whole)


def test_a_set_without_a_score_is_refused_at_the_start_and_told_later(tmp_path):
    run = make_run(tmp_path, held_out=lambda g, i: "timeout")
    with pytest.raises(AccuracyUnknown):
        run()
    assert (run.saved, sorted(run.recorder.rows), run.trained) == ([], [0], [])
    silent = set()
    run = make_run(
        tmp_path,
        held_out=lambda g, i: "timeout" if silent else float(i == 0),
        hooks={("learner learn", 2): lambda: silent.add("now")},
    )
    assert run()
    assert [warning.partition(":")[0] for warning in run.recorder.warned] == ["step 2", "step 4"]


# ---------------------------------------------------------------- anything else fails before the learner has the step


def break_at(run, what, step, calls=3):
    """Let a part of ``run`` raise at its ``calls``-th call in ``step``."""
    collector, algorithm = run.method.collector, run.method.algorithm
    places = {
        "a score": (collector.rollouts.scorer, "poll", RewardError("the verifier is gone")),
        "a prompt stream": (collector.selector.stream, "take", OSError("the data are gone")),
        "memory": (collector.rollouts.texts, "decode", MemoryError("no memory left")),
        "a keep rule": (algorithm, "judge", ZeroDivisionError("a hook")),
        "a shaping rule": (algorithm, "shape", ZeroDivisionError("a hook")),
        "an advantage": (algorithm, "advantages", ZeroDivisionError("a hook")),
        "sleep": (run.engine, "sleep", EngineError("lost")),
    }
    place, name, error = places[what]
    works, seen = getattr(place, name), []

    def fails(*args, **options):
        if run.trainer.phases.step == step:
            seen.append(name)
            if len(seen) >= calls:
                raise error
        return works(*args, **options)

    object.__setattr__(place, name, fails)
    return type(error)


@pytest.mark.parametrize(
    ("what", "calls"),
    [
        ("a score", 1),
        ("a score", 6),
        ("a prompt stream", 1),
        ("memory", 2),
        ("a keep rule", 3),
        ("a shaping rule", 2),
        ("an advantage", 1),
        ("sleep", 1),
    ],
)
def test_whatever_fails_in_a_step_the_steps_before_are_saved_and_a_resume_is_the_run_without_it(what, calls, tmp_path):
    options = WORLD | {"steps": 6, "save_every": 0, "lag": 3}
    whole = make_run(tmp_path / "whole", **options)
    assert whole()
    run = make_run(tmp_path / "failed", **options)
    with pytest.raises(break_at(run, what, 4, calls)):
        run()
    assert (run.saved, sorted(run.recorder.rows)) == ([3], [0, 1, 2, 3])
    again = make_run(tmp_path / "failed", resume=True, **options)
    assert again()
    assert run.trained + again.trained == whole.trained
    assert weights(again) == weights(whole)
    assert [again.recorder.row(step) for step in (4, 5, 6)] == [whole.recorder.row(step) for step in (4, 5, 6)]


@pytest.mark.parametrize("error", [SystemExit(5), KeyboardInterrupt(), CallbackError("mine"), GeneratorExit()])
@pytest.mark.parametrize("place", ["a step's event", "an evaluation's event", "a checkpoint's event", "preparing"])
def test_whatever_leaves_the_loop_saves_first(place, error, tmp_path):
    """A callback that exits, for example; the resume is the run that nothing left."""
    options = WORLD | {"steps": 6, "save_every": 3 if place == "a checkpoint's event" else 0, "evaluate_every": 1}
    whole = make_run(tmp_path / "whole", **options)
    assert whole()
    run = make_run(tmp_path / "left", **options)
    recorder, at = run.recorder, 4 if place == "preparing" else 3
    holder, name = {
        "a step's event": (recorder, "step"),
        "an evaluation's event": (recorder, "evaluation"),
        "a checkpoint's event": (recorder, "saved"),
        "preparing": (run.method, "prepare"),
    }[place]
    works = getattr(holder, name)

    def leaves(step, *rest, **options):
        done = works(step, *rest, **options)
        if step == at:
            raise error
        return done

    setattr(holder, name, leaves)
    ended = RuntimeError if isinstance(error, GeneratorExit) else type(error)  # that is no end by the run's caller
    with pytest.raises(ended):
        run()
    assert run.saved[-1] == 3
    assert sorted(recorder.rows) == [0, 1, 2, 3]
    again = make_run(tmp_path / "left", resume=True, **options)
    assert again()
    assert weights(again) == weights(whole)
    assert [again.recorder.row(step) for step in (4, 5, 6)] == [whole.recorder.row(step) for step in (4, 5, 6)]


def test_a_state_that_cannot_be_saved_either_does_not_hide_what_failed(tmp_path, caplog):
    run = make_run(tmp_path, **WORLD | {"save_every": 0})
    break_at(run, "a score", 3, 1)

    def full(folder):
        raise OSError("no room")

    run.learner.save = full
    with pytest.raises(RewardError, match="the verifier is gone"):
        run()
    assert "no room" in caplog.text


@pytest.mark.parametrize("step", [2, 3])
def test_an_evaluation_that_fails_in_any_way_costs_no_step(step, tmp_path, whole):
    run = make_run(tmp_path / "failed", **WORLD | {"evaluate_every": 1, "save_every": 0})
    evaluate = run.method.evaluator.evaluate

    def fails():
        if run.trainer.phases.step == step:
            raise ZeroDivisionError("a metric of mine")
        return evaluate()

    run.method.evaluator.evaluate = fails
    with pytest.raises(ZeroDivisionError):
        run()
    assert (run.saved, sorted(run.recorder.rows)) == ([step], list(range(step + 1)))
    assert weights(make_resumed(tmp_path / "failed")) == weights(whole)


def make_resumed(folder):
    run = make_run(folder, resume=True, **WORLD)
    assert run()
    return run


# ---------------------------------------------------------------- the learner fails


def test_a_learner_that_gives_up_leaves_the_last_checkpoint(tmp_path, whole):
    run = make_run(tmp_path / "failed", **WORLD)
    run.learner.max_skipped_steps = 0
    run.log.hooks["learner learn", 3] = lambda: setattr(run.learner, "diverge", True)
    with pytest.raises(LearnerError, match="not finite"):
        run()
    assert (run.saved, sorted(run.recorder.rows)) == ([2], [0, 1, 2])
    assert run.trainer.counters.training_steps == 2
    assert "learner publish" not in run.log.calls(3)
    again = resumed(tmp_path / "failed", run)
    assert weights(again) == weights(whole)
    assert again.rates == whole.rates[4:]


def test_skipped_steps_are_counted_and_the_run_goes_on(tmp_path):
    run = make_run(tmp_path)
    run.log.hooks["learner learn", 2] = lambda: setattr(run.learner, "diverge", True)
    run.log.hooks["learner learn", 3] = lambda: setattr(run.learner, "diverge", False)
    assert run()
    assert [run.recorder.rows[step]["train/skipped_steps"] for step in range(1, 5)] == [0, 2, 0, 0]
    assert run.recorder.row(2)["train/grad_norm"] == "nan"


# ---------------------------------------------------------------- the end of the data, retired prompts


@pytest.mark.parametrize(("evaluate_every", "evaluations"), [(2, [0, 2, 3]), (3, [0, 3]), (0, [])])
def test_the_end_of_the_data_ends_the_run_and_the_last_step_is_evaluated_once(tmp_path, evaluate_every, evaluations):
    run = make_run(tmp_path, end=12, steps=9, evaluate_every=evaluate_every)
    assert run()
    assert run.trainer.stopping.early == DataEnded(3, retired=False)
    assert run.recorder.said == ["the data has ended after 3 training steps"]
    assert (run.recorder.evaluations, run.saved[-1]) == (evaluations, 3)
    assert flat(run) == list(range(12))
    if evaluate_every == 2:  # not due at step 3: its line comes a second time, with the evaluation alone
        assert set(run.recorder.extra[3]) >= {"validation/accuracy"}
        assert "train/loss" not in run.recorder.extra[3]
    assert not run.recorder.stops


@pytest.mark.parametrize("error", [SystemExit(5), KeyboardInterrupt(), ZeroDivisionError("a metric of mine")])
def test_what_leaves_the_last_evaluation_of_a_run_without_more_data_costs_no_step(error, tmp_path):
    run = make_run(tmp_path, end=12, steps=9, evaluate_every=2, save_every=0)
    evaluate = run.method.evaluator.evaluate

    def leaves():
        if run.trainer.phases.step == 3:  # not due: it is the last one
            raise error
        return evaluate()

    run.method.evaluator.evaluate = leaves
    with pytest.raises(type(error)):
        run()
    assert (run.saved, sorted(run.recorder.rows)) == ([3], [0, 1, 2, 3])


def test_data_that_end_within_a_batch_stop_the_run_with_everything_saved(tmp_path):
    run = make_run(tmp_path, end=10, steps=9)
    with pytest.raises(SamplingStopped):
        run()
    assert (run.saved[-1], flat(run)) == (2, list(range(8)))
    assert run.recorder.stops == [(3, [8, 9])]
    again = make_run(tmp_path, end=10, steps=9, resume=True, cap={"then": "train_partial"})
    assert again()
    assert again.trained == [[8, 9]]
    assert again.trainer.stopping.early == DataEnded(3, retired=False)


def test_prompts_that_are_all_solved_end_the_run_too(tmp_path):
    """Four prompts: learnt from twice, then always right, and retired."""
    solved = {"accuracy": lambda g, i: float(g >= 8 or i == 0), "selection": {"retire": {"at": 1.0, "review": 0.0}}}
    run = make_run(tmp_path, distinct=4, steps=99, **solved)
    assert run()
    assert run.trained == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert run.trainer.stopping.early == DataEnded(2, retired=True, rejected=8)
    assert run.recorder.evaluations == [0, 2]
    ((step, judged),) = run.recorder.stops
    assert step == 3
    assert set(judged) >= {8, 9, 10, 11}


# ---------------------------------------------------------------- poor batches


def test_poor_batches_are_told_at_the_first_second_fourth_in_a_row(tmp_path):
    """Eight poor steps, a good one, a poor one."""
    poor = {1, 2, 3, 4, 5, 6, 7, 8, 10}
    now = []
    run = make_run(
        tmp_path,
        steps=10,
        accuracy=lambda g, i: float(i == 0 and (now[-1] not in poor or g % 2 == 0)),
        cap={"groups": 1, "then": "train_partial"},
        evaluate_every=0,
    )
    now.append(1)
    run.log.hooks |= {("learner learn", step): partial(now.append, step + 1) for step in range(1, 10)}
    assert run()
    said = [warning.split(". ")[0] for warning in run.recorder.warned]
    assert said == [
        "step 1: the batch has 2 groups to learn from",
        "step 2: the batch has 2 groups to learn from, 2 steps in a row",
        "step 4: the batch has 2 groups to learn from, 4 steps in a row",
        "step 8: the batch has 2 groups to learn from, 8 steps in a row",
        "step 10: the batch has 2 groups to learn from",
    ]
    assert [len(groups) for groups in run.trained] == [2] * 8 + [4, 2]


def test_a_batch_with_nothing_to_learn_from_moves_no_weight(tmp_path):
    run = make_run(tmp_path, steps=2, accuracy=lambda g, i: 0.0, cap={"groups": 2, "then": "fill"}, evaluate_every=0)
    before = weights(run)
    assert run()
    assert weights(run)[0] == before[0]
    assert [run.recorder.rows[step]["groups/filled"] for step in (1, 2)] == [4, 4]
    assert [warning.split(". ")[0] for warning in run.recorder.warned] == [
        "step 1: the batch has 0 groups to learn from",
        "step 2: the batch has 0 groups to learn from, 2 steps in a row",
    ]


# ---------------------------------------------------------------- signals


DURING = [*dict.fromkeys(TRAIN), "evaluate", "record", "learner save"]


ASKED = (
    "Ctrl-C: stopping and saving; a batch that is being learnt is finished first. Press it again to leave at once, "
    "without a checkpoint."
)


@pytest.mark.parametrize("during", quick(DURING, DURING[:2] + DURING[-3:]))
def test_ctrl_c_finishes_what_the_learner_does_and_leaves_the_rest(tmp_path, whole, during):
    hooks = {(during, 2): partial(signal.raise_signal, signal.SIGINT)}
    run = make_run(tmp_path / "part", hooks=hooks, **WORLD)
    assert run() is False
    assert run.trainer.stopping.by == "Ctrl-C"
    assert run.log.calls(3) == []
    assert run.recorder.warned[0] == ASKED
    if during == "collect":  # this batch is collected by the resumed run, and no step is recorded that is not learnt
        assert run.log.calls(2) == ["collect", "learner save"]
        assert (run.saved, sorted(run.recorder.rows)) == ([1], [0, 1])
    else:
        assert (run.saved, sorted(run.recorder.rows)) == ([2], [0, 1, 2])
    evaluated = during in ("record", "learner save")
    assert (2 in run.recorder.evaluations) is evaluated
    rest = resumed(tmp_path / "part", run, late=None if evaluated or during == "collect" else 2)
    assert (2 in rest.recorder.evaluations) is not evaluated
    assert weights(rest) == weights(whole)


def test_sigterm_before_the_first_step_saves_what_there_is(tmp_path, whole):
    run = make_run(tmp_path / "part", hooks={("evaluate", 0): partial(signal.raise_signal, signal.SIGTERM)}, **WORLD)
    assert run() is False
    assert (run.trainer.stopping.by, run.saved, run.trained) == ("SIGTERM", [0], [])


def test_a_second_ctrl_c_leaves_at_once_and_the_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    run = make_run(tmp_path, hooks={("learner learn", 3): twice})
    with pytest.raises(KeyboardInterrupt):
        run()
    assert signal.getsignal(signal.SIGINT) is before
    assert run.recorder.warned[1] == f"left at once; the last checkpoint is step 2 in {tmp_path}"
    assert (run.saved, sorted(run.recorder.rows)) == ([2], [0, 1, 2])


# ---------------------------------------------------------------- resume


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_resume_continues_counters_rates_and_bits(tmp_path, whole, at):
    part = make_run(tmp_path / "part", steps=at, evaluate_every=0, **WORLD)
    part()
    run = resumed(tmp_path / "part", part)
    assert [*part.trained, *run.trained] == whole.trained
    assert [*part.rates, *run.rates] == whole.rates
    assert [run.recorder.row(step) for step in range(at + 1, STEPS + 1)] == [
        whole.recorder.row(step) for step in range(at + 1, STEPS + 1)
    ]
    assert weights(run) == weights(whole)
    calls = [call for call, _ in run.log.entries]
    assert calls[:7] == ["learner load", *PUBLISH, "collect"]  # the engine gets the weights before the first batch


def test_a_finished_run_that_is_resumed_has_nothing_to_do(tmp_path):
    make_run(tmp_path)()
    run = make_run(tmp_path, resume=True)
    assert run()
    assert (run.trained, run.recorder.rows, run.saved) == ([], {}, [2, 4])


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    make_run(tmp_path)()
    run = make_run(tmp_path)
    run.trainer.fingerprint = {"model": "another"}
    with pytest.raises(CheckpointError, match="model 'scripted' there, 'another' here"):
        run.trainer.load(run.trainer.checkpoints.path())
    assert run.learner.calls == []


def test_a_batch_that_cannot_be_filled_saves_the_boundary_and_is_taken_up_again(tmp_path):
    """Half of the groups are wrong, and the cap allows no more than a batch: what was kept trains after the resume."""
    half = {"accuracy": lambda g, i: float(i == 0 and (g < 4 or g % 2 == 0)), "evaluate_every": 0}
    run = make_run(tmp_path, cap={"groups": 1}, **half)
    with pytest.raises(SamplingStopped, match="kept=2, wanted=4"):
        run()
    assert (run.saved, flat(run), sorted(run.recorder.rows)) == ([1], [0, 1, 2, 3], [1])
    assert [(step, sorted(judged)) for step, judged in run.recorder.stops] == [(2, [4, 5, 6, 7])]
    again = make_run(tmp_path, resume=True, cap={"groups": 4}, **half)
    assert again()
    assert again.trained[0][:2] == [4, 6]
    assert all(group % 2 == 0 for group in flat(again))
    assert len(set(flat(again))) == len(flat(again)) == 12
    dispatched = [row["total/groups/dispatched"] for row in again.recorder.rows.values()]
    assert dispatched == sorted(dispatched)
    assert dispatched[0] > 8  # the four that were judged before the stop are counted still
