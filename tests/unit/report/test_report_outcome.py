"""How a run stands, its outcome in sentences and its tiles: for runs that end well, badly, early, and not at all."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rows import UNFILLED, rows, run_of, unfilled_run

import dapo
from dapo.observe.run_folder import RunFolder
from dapo.observe.sentences import unfilled_said
from dapo.observe.text import big, brief, seconds_said, sentence, shorten
from dapo.report.outcome import sentences_of, status_of, tiles_of
from dapo.report.reader import read_run
from dapo.report.rules import advice_of
from dapo.report.status import outcome_of
from dapo.types.evidence import ClusterLost, DataEnded, NoGain, OutOfTime, Shares


def words(run):
    return " ".join(sentences_of(run))


# ------------------------------------------------------------------ status


def test_a_finished_run_names_the_next_commands():
    status = status_of(run_of(rows(60)))
    assert (status["state"], status["title"], status["step"], status["steps"]) == ("finished", "finished", 60, 60)
    assert status["said"].startswith("All 60 steps are done. Next: `dapo evaluate runs/it --samples 16`")
    assert (status["started"], status["updated"], status["log"]) == (1e9, 1e9 + 60, [])


def test_a_supervised_run_goes_on_with_its_own_command():
    data = Path(dapo.__file__).parent / "recipes" / "own_data.jsonl"
    run = run_of(rows(1), "run.stage=sft", f"sft.train=[{{path: {data}}}]", state="interrupted")
    assert "The run was stopped by hand after 1 of 60 steps. `dapo sft --resume runs/it` goes on" in words_of(run)
    assert "`dapo train --resume runs/it`" in words_of(run_of(rows(1), state="interrupted"))


def words_of(run):
    return status_of(run)["said"]


def test_a_run_of_one_step_is_spoken_of_in_the_singular():
    run = run_of(rows(1), "trainer.steps=1")
    assert words_of(run).startswith("The only step is done. Next:")
    assert "The run is going on: 1 of 60 steps is done. A step takes 0.260 s" in words_of(
        run_of(rows(1), state="running", held=True)
    )
    assert "1 steps" not in words(run)


def test_a_run_that_says_it_runs_and_holds_nothing_was_killed():
    run = run_of(rows(33), state="running", held=False, log_tail=["a", "b"])
    status = status_of(run)
    assert (status["state"], status["log"]) == ("killed", ["a", "b"])
    assert "`dapo train --resume runs/it` goes on from its beginning" in status["said"]
    assert status_of(run_of(rows(33), state="running", held=True))["state"] == "running"


def test_a_run_on_another_machine_runs_while_it_shows_life():
    run = run_of(rows(33), state="running", held=False)
    run.status = replace(run.status, host="far-away")
    assert status_of(run, now=1e9 + 60 + 599)["state"] == "running"
    assert status_of(run, now=1e9 + 60 + 601)["state"] == "killed"


def test_a_running_run_says_how_long_it_takes_and_when_it_is_silent():
    run = run_of(rows(20), state="running", held=True)
    assert "20 of 60 steps are done. A step takes 0.260 s: about 10 s left." in status_of(run, now=1e9 + 61)["said"]
    assert "last update" not in status_of(run, now=1e9 + 61)["said"]
    assert "Its last update was 1 min 40 s ago." in status_of(run, now=1e9 + 160)["said"]
    starting = status_of(run_of([], state="running", held=True), now=1e9 + 61)
    assert starting["title"] == "starting"
    assert "loading its model" in starting["said"]


def test_a_run_that_could_not_fill_its_batch_says_what_was_met_and_why():
    status = status_of(unfilled_run(log_tail=["x"]))
    assert status["title"] == "could not fill its batch"
    assert status["said"] == (
        "The run stopped because step 55 of 60 could not fill its batch. The cap of 4 x 32 dispatched groups was met "
        "with 31 of 32 groups kept; 154 were judged, since some had been sent out in earlier steps. 80% of the groups "
        "are all correct: many problems are solved. `dapo train --resume runs/it "
        "algorithm.dynamic_sampling.cap.then=train_partial` trains on the groups that there are. Other problems or "
        "another rollout.group_size need a new run."
    )
    assert (
        "`dapo train --resume runs/it KEY=VALUE` goes on with changed settings."
        in status_of(unfilled_run(kept=0))["said"]
    )
    fewer = unfilled_run(shares=replace(UNFILLED.shares, judged=128))
    assert "with 31 of 32 groups kept. 80% of the groups" in status_of(fewer)["said"]
    ended = unfilled_run(met="data", limit=None, shares=replace(UNFILLED.shares, data_ended=True))
    assert "The data ended with 31 of 32 groups kept. Data.epochs ran out." in status_of(ended)["said"]


def test_a_run_of_before_evidence_was_recorded_says_what_it_said():
    run = run_of(rows(54), state="unfilled", said="words of another version.\nLikely cause: this one.")
    assert status_of(run)["said"].startswith(
        "The run stopped because step 55 of 60 could not fill its batch. Words of another version.\n"
        "Likely cause: this one. What was judged is in stopped/*.parquet. `dapo train "
        "--resume runs/it KEY=VALUE` goes on with changed settings."
    )
    assert unfilled_said(outcome_of(run))[1:] == ("", "")


def test_a_run_that_was_copied_is_told_where_it_lies(tmp_path):
    log = ["/first/my home/stopped/*.parquet, not /first/my homes", "`dapo train --resume '/first/my home' KEY=VALUE`"]
    shares = Shares(all_wrong=1.0, judged=100)
    run = unfilled_run(folder=RunFolder(tmp_path / "new home"), log_tail=["x", *log], shares=shares)
    run.status = replace(run.status, folder="/first/my home")
    _, cause, further = unfilled_said(outcome_of(run))
    assert f"Look at its rollouts ({tmp_path}/new home/stopped/*.parquet), at the prompt's" in cause
    assert further.startswith(f"`dapo train --resume '{tmp_path}/new home' KEY=VALUE` goes on")
    assert status_of(run)["log"] == [
        "x",
        f"{tmp_path}/new home/stopped/*.parquet, not /first/my homes",
        f"`dapo train --resume '{tmp_path}/new home' KEY=VALUE`",
    ]


def test_the_seconds_of_a_run_are_those_of_its_steps():
    assert status_of(run_of(rows(60)))["seconds"] == pytest.approx(60 * 0.26)
    assert status_of(run_of(rows(60, time__step=None)))["seconds"] is None
    assert status_of(run_of(rows(60, time__step=1e308)))["seconds"] is None  # JSON has no infinity


def test_a_failed_run_names_its_error_on_one_line():
    status = status_of(run_of(rows(25), state="failed", said="ValueError: a\nb \x1b[31m" + "x" * 5000))
    assert status["said"].startswith("The run ended with an error in step 26 of 60: ValueError: a b ␛[31mxxx")
    assert "\x1b" not in status["said"]
    assert len(status["said"]) < 700


def test_a_run_that_was_interrupted_or_ended_early_says_so():
    said = status_of(run_of(rows(25), state="interrupted", said="stopped by Ctrl-C after step 25, and saved"))["said"]
    assert said.startswith("The run was stopped by hand after 25 of 60 steps. Stopped by Ctrl-C after step 25, and sav")
    early = status_of(run_of(rows(25), said="the data has ended after 25 training steps"))
    assert early["said"].startswith(
        "The run ended after 25 of 60 steps: the data has ended after 25 training steps. Next"
    )
    assert "ended after 25 of 60 steps" in words(run_of(rows(25), said="the data has ended"))


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (DataEnded(25, retired=False), "the data has ended after 25 training steps"),
        (DataEnded(25, retired=True), "every prompt is retired after 25 training steps"),
        (
            DataEnded(0, retired=False, rejected=15),
            "the data has ended after 0 training steps; none of the last 15 groups could be trained on",
        ),
        (
            NoGain("validation/\x1b[31m", 2, 2, 0.5, 15),
            "validation/␛[31m was not better 2 times in a row (best: 0.5, at step 15; trainer.early_stop.patience = 2)",
        ),
    ],
)
def test_an_early_end_is_read_as_data_and_not_from_what_the_run_said(ending, said):
    run = run_of(rows(25), said="other words", evidence=ending)
    assert f"The run ended after 25 of 60 steps: {said}." in words(run)
    assert status_of(run)["said"].startswith(f"The run ended after 25 of 60 steps: {said}. Next: `dapo evaluate")


def test_a_run_whose_time_was_over_was_not_stopped_by_hand():
    run = run_of(rows(25), state="interrupted", said="other words", evidence=OutOfTime(1.0, 3000.0, 700.0))
    status = status_of(run)
    assert status["title"] == "out of time"
    said = "trainer.max_hours = 1: 600 s are left, and a step took up to 700 s. `dapo train"
    assert said in status["said"]
    assert "The run was stopped by its limit of time after 25 of 60 steps." in words(run)


def test_a_run_whose_cluster_was_lost_was_not_stopped_by_hand():
    run = run_of(rows(25), state="interrupted", said="other words", evidence=ClusterLost("head", "a:1\x1b[31m"))
    status = status_of(run)
    assert status["title"] == "lost its cluster"
    assert "The head of the Ray cluster at a:1␛[31m (its gcs_server) is gone. `dapo train" in status["said"]
    assert "The run was stopped as its cluster was lost after 25 of 60 steps." in words(run)


def test_a_run_without_a_status_is_inferred(tmp_path):
    def state(last, **more):
        return status_of(run_of(rows(last), status=None, folder=RunFolder(tmp_path), **more))["state"]

    assert state(60) == "finished"
    assert state(59) == "unknown"
    assert state(59, held=True) == "running"
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "step_000050.parquet").touch()
    assert state(59) == "unknown"  # it went on after that stop
    (tmp_path / "stopped" / "step_000060.parquet").touch()
    assert state(59) == "unfilled"


def test_a_resume_begins_at_the_newest_checkpoint(tmp_path):
    for name in ("step_000020", "step_000100", ".step_000110.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    run = run_of(rows(25), state="failed", said="E", folder=RunFolder(tmp_path))
    assert status_of(run)["said"].endswith("goes on from its checkpoint of step 100.")


def test_a_folder_with_blanks_can_be_typed(tmp_path):
    run = run_of(rows(60), folder=RunFolder(tmp_path / "two words"))
    assert f"dapo evaluate '{tmp_path}/two words' --samples 16" in status_of(run)["said"]


@pytest.mark.parametrize("odd", [-1.0, 1e12])
def test_a_time_that_makes_no_sense_is_none(odd):
    run = run_of(rows(60))
    run.status = replace(run.status, started=odd)
    assert status_of(run)["started"] is None


# ------------------------------------------------------------------ sentences


def test_a_good_run_in_words():
    assert sentences_of(run_of(rows(60))) == [
        "Held-out accuracy rose from 42.0% (38.0–46.0) to 90.0% (86.0–94.0) in 60 steps, more than chance explains "
        "(5.7 points).",
        "It rose little after step 40 (90.0%); greedy accuracy went from 47.0% to 95.0%, pass@4 rose (50.0% to 98.0%).",
        "1.60 tokens were generated for each with loss (480,000 for 300,000); 60 steps took 16 s, 44% learning and "
        "37% generating.",
        "No warning sign was found.",
    ]


def ends(first, last, half=0.04, at_40=None):
    """Held-out accuracy at step 0, at step 60, and in between."""

    def accuracy(step):
        return first if step == 0 else last if step == 60 else first + (last - first) / 2 if at_40 is None else at_40

    return {
        "validation__accuracy": accuracy,
        "validation__accuracy_low": lambda step: accuracy(step) - half,
        "validation__accuracy_high": lambda step: accuracy(step) + half,
    }


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (0.40, 0.46, "rose from 40.0% (36.0–44.0) to 46.0% (42.0–50.0) in 60 steps, more than chance explains (5.7"),
        (0.40, 0.45, "went from 40.0% (36.0–44.0) to 45.0% (41.0–49.0) in 60 steps: within chance (a change below 5.7"),
        (0.40, 0.34, "fell from 40.0% (36.0–44.0) to 34.0% (30.0–38.0) in 60 steps, more than chance"),
        (0.40, 0.40, "went from 40.0% (36.0–44.0) to 40.0% (36.0–44.0) in 60 steps: within chance"),
    ],
)
def test_a_change_is_told_from_chance(first, last, said):
    assert said in words(run_of(rows(60, **ends(first, last))))


@pytest.mark.parametrize(
    ("at_40", "said"),
    [
        (0.70, "It was still rising at the end (70.0% at step 40): more steps may help;"),
        (0.79, "It rose little after step 40 (79.0%);"),
        (0.95, "It was best at step 10 (95.0%) and fell from there;"),
    ],
)
def test_the_end_of_the_curve_in_words(at_40, said):
    assert said in words(run_of(rows(60, **ends(0.4, 0.8, at_40=at_40))))


def test_variety_that_shrinks_is_said():
    assert "pass@4 fell (95.0% to 60.0%)" in words(
        run_of(rows(60, validation__pass_at_4=lambda step: 0.95 if step == 0 else 0.6))
    )


def test_without_validation_training_accuracy_is_told():
    none = rows(60, **{f"validation__{key}": None for key in ("accuracy", "accuracy_low", "accuracy_high")})
    assert sentences_of(run_of(none))[0] == (
        "Nothing was evaluated, so there is no held-out accuracy; accuracy on training prompts went from 40.4% to "
        "85.0%."
    )


def test_a_recipe_without_validation_data_is_told_as_that():
    run = run_of(rows(60, **{f"validation__{key}": None for key in ("accuracy", "accuracy_low", "accuracy_high")}))
    run.recipe = run.recipe.model_copy(deep=True)  # the tests share one
    run.recipe.data.validation.clear()
    assert sentences_of(run)[0].startswith("The recipe names no validation data, so there is no held-out accuracy; ")
    run.recipe = None
    assert sentences_of(run)[0].startswith("It has no held-out accuracy; ")


def test_zero_steps_and_only_the_first_evaluation():
    assert sentences_of(run_of([], state="failed", said="OSError: no space")) == [
        "The run ended with an error in step 1 of 60: OSError: no space.",
        "Nothing was evaluated, so there is no held-out accuracy; no step was trained.",
    ]
    assert sentences_of(run_of(rows(0), state="running", held=True)) == [
        "The run is going on: 0 of 60 steps are done.",
        "Held-out accuracy was 42.0% (38.0–46.0) before training, and was not measured again; no step was trained.",
    ]


def test_a_crash_at_step_3_is_said_first():
    said = sentences_of(run_of(rows(3), state="failed", said="IndexError: list index out of range"))
    assert said[0] == "The run ended with an error in step 4 of 60: IndexError: list index out of range."
    assert said[1].startswith("Held-out accuracy was 42.0% (38.0–46.0) before training, and was not measured again")
    assert "3 steps took 1 s" in said[2]


def test_a_batch_that_could_not_be_filled_is_said_first():
    assert sentences_of(unfilled_run())[0] == (
        "The run stopped because step 55 of 60 could not fill its batch. The cap of 4 x 32 dispatched groups was met "
        "with 31 of 32 groups kept; 154 were judged, since some had been sent out in earlier steps."
    )


def test_the_worst_warning_is_told_and_the_others_counted():
    made = rows(60, train__entropy=lambda step: 0.01 if step > 40 else 0.2, response__truncated_share=0.3)
    assert sentences_of(run_of(made))[-1] == "What stands out: the entropy collapsed (1 further warning below)."


def test_notes_are_no_warning():
    assert sentences_of(run_of(rows(60, groups__all_correct_share=0.55)))[-1] == (
        "No warning sign was found; a note below says: most problems are solved."
    )


def test_a_verifier_that_fails_on_everything_is_told_once_and_whole(tmp_path):
    reason = "KeyError: 'level' (prompt.extra has 'answer', 'question' and 'difficulty_of_the_problem')"
    said = (
        f"the verifier fails on everything: none of 64 responses could be scored.\nReasons: {reason!r} x 64.\n"
        f"Fix the reward function ({tmp_path}/rewards.txt has what it printed); {tmp_path}/log.txt has the first "
        f"failure of each kind. Then continue with `dapo train --resume {tmp_path}`."
    )
    run = run_of(rows(4), state="failed", said=said, folder=RunFolder(tmp_path))
    status = status_of(run)
    assert status["title"] == "ended by an error"
    assert said.partition("\n")[0][4:] in status["said"]
    assert f"{tmp_path}/rewards.txt has what" in status["said"]
    first = sentences_of(run)[0]
    assert first == (
        "The run ended with an error in step 5 of 60: The verifier fails on everything: none of 64 responses could be "
        "scored."
    )
    assert not [a for a in advice_of(run) if "batch" in a["title"]]


def test_words_are_left_out_whole():
    text = " ".join(f"word{n}" for n in range(100))
    short = brief(text, 80)
    assert len(short) <= 80
    assert set(short.replace(" … ", " ").split()) <= set(text.split())
    assert brief("x" * 200, 50) == shorten("x" * 200, 50)
    assert brief("a few words", 50) == "a few words"


# ------------------------------------------------------------------ tiles


def test_tiles_of_a_good_run():
    tiles = {tile["label"]: tile for tile in tiles_of(run_of(rows(60)))}
    assert list(tiles) == [
        "held-out accuracy",
        "greedy accuracy",
        "pass@4",
        "training accuracy",
        "groups kept",
        "entropy, nats",
        "generated per token with loss",
        "time in steps",
        "response length",
    ]
    assert tiles["held-out accuracy"] == {
        "label": "held-out accuracy",
        "value": "42.0% → 90.0%",
        "detail": "95% interval 86.0–94.0, step 60, 128 problems",
        "key": "validation/accuracy",
        "tone": "good",
    }
    assert tiles["training accuracy"]["value"] == "40.4% → 85.0%"
    assert tiles["training accuracy"]["detail"] == "means of the first and last 5 steps"
    assert tiles["generated per token with loss"]["value"] == "1.60"
    assert tiles["time in steps"]["value"] == "16 s"


def test_runs_of_one_recipe_and_different_length_begin_alike():
    def begins(steps):
        made = rows(steps, reward__accuracy=lambda step: step / 1000)
        return next(t for t in tiles_of(run_of(made)) if t["label"] == "training accuracy")["value"].split(" → ")[0]

    assert begins(20) == begins(60) == begins(300) == "0.3%"


def test_phases_that_read_as_nothing_are_left_out():
    made = rows(0, time__evaluate=1.0)
    made[0] |= {"time/evaluate": 0.99, "time/other": 0.001, "time/publish": 0.001}
    (tile,) = [t for t in tiles_of(run_of(made)) if t["label"] == "time in steps"]
    assert tile["detail"] == "evaluating 100%"


def test_a_fall_is_bad_and_a_change_within_chance_has_no_tone():
    tones = [tiles_of(run_of(rows(60, **ends(0.4, last))))[0]["tone"] for last in (0.46, 0.45, 0.34)]
    assert tones == ["good", "", "bad"]


def test_tiles_of_a_run_without_anything():
    (tile,) = tiles_of(run_of([], state="running"))
    assert (tile["label"], tile["value"], tile["detail"], tile["tone"]) == (
        "training steps",
        "0 of 60",
        "killed",
        "bad",
    )


# ------------------------------------------------------------------ whatever a file holds


KEYS = sorted({key for row in rows(10) for key in row if key != "step"})
numbers = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**62), 2**62))


@given(
    st.lists(st.dictionaries(st.sampled_from(KEYS), numbers, max_size=15), max_size=14),
    st.sampled_from(["running", "finished", "interrupted", "unfilled", "failed", None]),
    st.text(max_size=40),
    st.booleans(),
)
def test_every_run_has_words(contents, state, said, held):
    status = {"status": None} if state is None else {"state": state}
    run = run_of([{"step": step, **row} for step, row in enumerate(contents)], said=said, held=held, **status)
    sentences = sentences_of(run)
    assert 1 <= len(sentences) <= 5
    assert all(re.search(r"[.!?)…]$|␛", text.strip()) for text in sentences), sentences
    assert status_of(run)["said"]
    assert len(tiles_of(run)) <= 9


def test_a_folder_made_by_the_writers_is_told(tmp_path, make_run):
    for how, title in (
        ("crashed", "ended by an error"),
        ("killed", "killed"),
        ("unfilled", "could not fill its batch"),
    ):
        run = read_run(make_run(tmp_path / how, how=how))
        status = status_of(run)
        assert status["title"] == title
        assert f"--resume {tmp_path / how}" in status["said"]
        assert 2 <= len(sentences_of(run)) <= 5


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "less than a second"),
        (59.4, "59 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (3600, "1 h"),
        (7384, "2 h 3 min"),
    ],
)
def test_seconds_in_words(seconds, said):
    assert seconds_said(seconds) == said


def test_numbers_and_sentences_in_words():
    assert [big(n) for n in (451_489, 12_340_000, 2.5e9)] == ["451,489", "12.3 million", "2.50 billion"]
    assert [sentence(t) for t in ("", " a b ", "A?")] == ["", "A b.", "A?"]


def test_a_sum_beyond_the_greatest_float_is_told_as_a_number():
    greatest = {"train/optimizer_steps": 1.7e308, "train/skipped_steps": 1.7e308, "train/empty_steps": 0.0}
    run = run_of([{"step": step, **greatest} for step in range(3)])
    assert any("optimiser steps" in advice["said"] for advice in advice_of(run))
