"""When a run ends before its last step, and which checkpoint it keeps for its metric."""

import math
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_run import make_run

from dapo.config.check_stopping import is_highest
from dapo.errors import CheckpointError, RecipeError
from dapo.loop.best import Best, go_on
from dapo.loop.stopping import Deadline
from dapo.observe.sentences import time_said
from dapo.types.codec import to_tree
from dapo.types.evidence import ClusterLost, DataEnded, NoGain, OutOfTime

ACCURACY = "validation/accuracy"
HELD_OUT = {"data": {"validation": [{"task": "signed_sum", "name": "held_out", "seed": 2, "size": 4}]}}
VALUES = [0.1, 0.3, 0.2, 0.5, 0.5, 0.4, 0.3, 0.6]  # of steps 0, 1, 2...


class Values:
    """An evaluator whose accuracy after each step is known."""

    def __init__(self, run, values):
        self.run, self.values = run, values

    def evaluate(self):
        value = self.values[self.run.trainer.counters.training_steps]
        return SimpleNamespace(metrics={ACCURACY: value}, reasons={}, silent=[], responses=[])


def valued_run(folder, values=VALUES, steps=6, resume=False, evaluate_every=1, save_every=1, **more):
    sections = {"checkpoint": more.pop("checkpoint", {}), "trainer": more.pop("trainer", {}), **HELD_OUT}
    run = make_run(
        folder,
        steps=steps,
        resume=resume,
        evaluate_every=evaluate_every,
        save_every=save_every,
        sections=sections,
        **more,
    )
    run.method.evaluator = Values(run, values)
    return run


def kept(run):
    best = run.trainer.checkpoints.best()
    return run.trainer.checkpoints.steps(), best and (best["step"], best["value"], best["metric"])


BEST = {"checkpoint": {"best": ACCURACY}}


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path):
    run = valued_run(tmp_path, **BEST)
    assert run()
    assert kept(run) == ([3, 5, 6], (3, 0.5, ACCURACY))  # the first of two equal ones
    assert run.trainer.checkpoints.best_step() == 3
    assert kept(valued_run(tmp_path / "without"))[1] is None


def test_an_improvement_is_saved_where_no_checkpoint_is_due(tmp_path):
    run = valued_run(tmp_path, save_every=0, **BEST)
    assert run()
    assert run.recorder.checkpoints == [1, 3, 6]
    assert kept(run) == ([3, 6], (3, 0.5, ACCURACY))


def test_a_better_one_later_takes_the_place(tmp_path):
    run = valued_run(tmp_path, steps=7, **BEST)
    assert run()
    assert kept(run) == ([6, 7], (7, 0.6, ACCURACY))


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_resumed_run_keeps_the_same_best_one(tmp_path, at):
    whole, part = valued_run(tmp_path / "whole", **BEST), valued_run(tmp_path / "part", steps=at, **BEST)
    assert whole()
    assert part()
    resumed = valued_run(tmp_path / "part", resume=True, **BEST)
    assert resumed()
    assert kept(resumed) == kept(whole)
    assert resumed.trainer.saver.best == whole.trainer.saver.best


def test_a_mark_of_steps_that_are_done_again_goes(tmp_path):
    run = valued_run(tmp_path, steps=3, save_every=1, **BEST)
    assert run()
    for file in sorted((tmp_path / "step_000003").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (tmp_path / "step_000003").rmdir()  # somebody deletes the damaged newest one
    again = valued_run(tmp_path, [0.1, 0.3, 0.2, 0.25, 0.2, 0.2, 0.2], resume=True, **BEST)
    assert again()
    assert again.trainer.saver.best.step == 1
    assert kept(again) == ([5, 6], None)  # the first step's was gone by then
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is marked as the best: set checkpoint.best.*5, 6"):
        again.trainer.checkpoints.best_step()


def test_a_resume_whose_recipe_names_no_metric_keeps_the_newest_alone(tmp_path):
    assert valued_run(tmp_path, steps=3, **BEST)()
    again = valued_run(tmp_path, resume=True)
    assert again()
    assert kept(again) == ([5, 6], None)


def test_of_a_run_whose_data_end_the_last_step_counts_as_well(tmp_path):
    run = valued_run(tmp_path, [0.1, 0.2, 0.3, 0.9], steps=9, end=12, evaluate_every=2, save_every=2, **BEST)
    assert run()
    assert run.trainer.stopping.early == DataEnded(3, retired=False)
    assert kept(run) == ([2, 3], (3, 0.9, ACCURACY))


def early(patience, **more):
    return {"trainer": {"early_stop": {"metric": ACCURACY, "patience": patience, **more}}}


def test_a_run_without_gain_ends_and_says_so(tmp_path):
    run = valued_run(tmp_path, steps=9, **early(2))
    assert run()  # it is at its end
    assert run.trainer.counters.training_steps == 5
    said = f"{ACCURACY} was not better 2 times in a row (best: 0.5, at step 3; trainer.early_stop.patience = 2)"
    assert (run.recorder.said, run.trainer.stopping.by) == ([said], "")
    assert run.trainer.stopping.early == NoGain(ACCURACY, times=2, patience=2, best=0.5, best_step=3)
    assert run.saved[-1] == 5
    again = valued_run(tmp_path, steps=9, resume=True, **early(2))
    assert again()
    assert (again.trainer.counters.training_steps, again.trained) == (5, [])
    further = valued_run(tmp_path, steps=7, resume=True, **early(4))
    assert further()
    assert (further.trainer.counters.training_steps, further.trainer.stopping.early) == (7, None)


def test_patience_counts_evaluations_and_the_start_is_the_first_value(tmp_path):
    run = valued_run(tmp_path, [0.9] + [0.5] * 9, steps=9, evaluate_every=2, **early(2))
    assert run()
    assert run.trainer.counters.training_steps == 4
    run = valued_run(tmp_path / "small", [0.5, 0.51, 0.52, 0.53, 0.54], steps=4, **early(2, min_change=0.1))
    assert run()
    assert run.trainer.counters.training_steps == 2


def test_the_step_that_ends_a_run_early_is_evaluated_too(tmp_path):
    run = valued_run(
        tmp_path,
        steps=9,
        evaluate_every=5,
        trainer={"early_stop": {"metric": "train/learning_rate", "best_is": "lowest", "patience": 1}},
    )
    assert run()
    assert (run.trainer.counters.training_steps, run.recorder.evaluations) == (2, [0, 2])


def test_better_is_what_the_glossary_says_and_nan_says_nothing():
    assert is_highest(ACCURACY, "auto")
    assert not is_highest("train/merge_error", "auto")
    assert not is_highest(ACCURACY, "lowest")
    best = Best("x", highest=False)
    seen = [best.seen(n, {"x": value}) for n, value in enumerate([2.0, math.nan, 3.0, 1.0, math.inf])]
    assert seen == [True, False, False, True, False]
    assert (best.step, best.value, best.since) == (3, 1.0, 0)
    assert not best.seen(9, {})
    other = Best("y", highest=True)
    go_on(other, to_tree(best))
    assert other.step == -1


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"checkpoint": {"best": "validation/acuracy"}},
            r"best: \"validation/acuracy\"\n +is no metric; did you mean `validation/accuracy`\? `dapo explain",
        ),
        (
            {"trainer": {"early_stop": {"metric": "validation/held_out/acuracy"}}},
            r"is no metric; did you mean `validation/held_out/accuracy`\?",
        ),
        ({"checkpoint": {"best": "validation/held_out/pass@k", "best_is": "highest"}}, r"`validation/held_out/pass@4`"),
        (
            {"checkpoint": {"best": "validation/held_uot/accuracy"}},
            r"names no held-out set of this run; did you mean `validation/held_out/accuracy`\? its sets: held_out",
        ),
        ({"checkpoint": {"best": "nothing like it"}}, r"is no metric; `dapo explain validation/accuracy`"),
        ({"trainer": {"early_stop": {"metric": "step"}}}, r"early_stop.best_is=highest or lowest"),
        ({"checkpoint": {"best": ACCURACY}, "data": {}}, r"needs held-out problems"),
        ({"checkpoint": {"best": "validation/loss"}}, r"is measured by `dapo sft` alone"),
        ({"trainer": {"early_stop": {"metric": "validation/held/loss"}}}, r"is measured by `dapo sft` alone"),
        ({"checkpoint": {"dir": " "}}, r"expected the path of a folder"),
    ],
)
def test_what_no_step_will_have_is_refused(tmp_path, sections, said):
    with pytest.raises(RecipeError, match=said):
        make_run(tmp_path, sections={**HELD_OUT, **sections})


# ---------------------------------------------------------------- a limit of time


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_run_ends_before_its_time_is_over(tmp_path):
    clock = Clock()
    deadline = Deadline(1.0, clock)
    run = make_run(tmp_path, steps=9, evaluate_every=0, save_every=2, deadline=deadline)
    for _ in run.trainer.each_step():
        clock.now += 600.0
    # 3,600 s: behind five steps 600 are left, which is one more step, and no time to save
    assert (run.trainer.counters.training_steps, run.recorder.checkpoints) == (5, [2, 4, 5])
    assert run.trainer.stopping.by == "trainer.max_hours"
    assert run.trainer.stopping.cause == OutOfTime(hours=1.0, passed=3000.0, longest=600.0)
    assert run.recorder.said[0].startswith("trainer.max_hours = 1: 600 s are left, and a step took up to 600 s")


def test_a_lost_cluster_ends_a_run_behind_the_step_at_hand_saved(tmp_path):
    """Told by another thread, in the middle of a step; a first reason to stop stays."""
    run = make_run(tmp_path, steps=9, evaluate_every=0, save_every=4)
    lost = ClusterLost("head", "a:1")
    for done in run.trainer.each_step():
        if done.step == 3:
            thread = threading.Thread(target=run.trainer.stopping.lose, args=(lost,))
            thread.start()
            thread.join()
    assert (run.trainer.counters.training_steps, run.recorder.checkpoints) == (3, [3])
    assert not run.trainer.finished
    assert (run.trainer.stopping.by, run.trainer.stopping.cause) == ("the loss of its cluster", lost)
    said = (
        "the head of the Ray cluster at a:1 (its gcs_server) is gone: finishing this step with what was started there"
    )
    assert run.recorder.warned == [f"{said}, then saving"]
    asked = make_run(tmp_path / "asked", steps=9)
    asked.trainer.stopping.stop("its caller")
    asked.trainer.stopping.lose(lost)
    assert (asked.trainer.stopping.by, asked.trainer.stopping.cause) == ("its caller", None)


def test_a_time_that_no_step_fits_into_says_so():
    clock = Clock()
    deadline = Deadline(0.01, clock)  # 36 s
    deadline.start()
    clock.now = 40.0
    assert time_said(deadline.passed(None)) == (
        "trainer.max_hours = 0.01 left no time for a single step: what comes before the first one (loading, the "
        "evaluation before training) took 40 s. Give more: a resume needs that time again"
    )
    deadline = Deadline(0.01, clock)
    deadline.start()
    clock.now += 1.5
    assert deadline.passed(None) is None
    clock.now += 50.0
    said = "trainer.max_hours = 0.01 is over by 16 s, as a step took up to 50 s. Give more"
    assert time_said(deadline.passed(None)) == said


@pytest.mark.parametrize(("at", "finished"), [(2, False), (3, True)])
def test_what_asks_for_a_stop_in_the_last_step_stops_nothing(tmp_path, at, finished):
    run = make_run(tmp_path, steps=3, evaluate_every=0)
    for done in run.trainer.each_step():
        if done.step == at:
            run.trainer.stopping.stop("Ctrl-C")
    assert (run.trainer.counters.training_steps, run.trainer.finished) == (at, finished)


def test_whoever_leaves_behind_the_last_step_leaves_a_finished_run(tmp_path):
    run = make_run(tmp_path, steps=3, evaluate_every=0)
    for done in (steps := run.trainer.each_step()):
        if done.step == 3:
            break
    steps.close()
    assert (run.trainer.stopping.by, run.trainer.finished, run.recorder.checkpoints[-1]) == ("its caller", True, 3)


@given(
    limit=st.floats(1, 1e5),
    before=st.floats(0, 1e4),
    save=st.floats(0, 100) | st.none(),
    steps=st.lists(st.floats(0.1, 1e3), min_size=1, max_size=60),
)
def test_no_step_is_begun_that_might_end_too_late_and_none_is_given_up_early(limit, before, save, steps):
    clock = Clock()
    deadline = Deadline(limit / 3600, clock)
    clock.now = before
    deadline.start()
    done = []
    for seconds in steps:
        left = limit - clock.now
        longest = max(done[-20:], default=0.0)
        room = left - longest - (longest if save is None else save)
        why = deadline.passed(save)
        if abs(room) > 1e-6 * limit:
            assert bool(why) == (room < 0)
        if why:
            break
        clock.now += seconds
        done.append(seconds)


def test_no_limit_is_no_limit():
    clock = Clock()
    deadline = Deadline(None, clock)
    clock.now = 1e9
    assert deadline.passed(None) is None
