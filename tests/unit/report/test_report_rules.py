"""Each rule where it speaks and just below its bound, where it does not; none on a run in good health."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluated import evaluation, of_counts
from hypothesis import given
from hypothesis import strategies as st
from made_rows import ROOT, rows, run_of, unfilled_run
from rule_cases import CASES, at, falling, late, many, waiting
from warnings_page import table, with_table

from dapo.config.schema import Recipe
from dapo.metrics.glossary import GLOSSARY, lookup
from dapo.observe.evaluations import write_evaluation
from dapo.observe.prompts import write_prompts
from dapo.observe.run_folder import RunFolder
from dapo.observe.samples import Sample
from dapo.observe.why import filling_line
from dapo.report.outcome import sentences_of, tiles_of
from dapo.report.rules import RULES, Facts, advice_of
from dapo.report.rules.course import RANK
from dapo.report.rules.learning import _is_other
from dapo.types.batch import Prompt, content_id
from dapo.types.evidence import CollectProgress, Shares


def found(made: list[dict[str, Any]], *overrides: str, **more: Any) -> dict[str, str]:
    return {advice["rule"]: advice["severity"] for advice in advice_of(run_of(made, *overrides, **more))}


@pytest.mark.parametrize(("rule", "speaks", "severity", "silent", "overrides"), CASES)
def test_a_rule_speaks_at_its_bound_and_not_below(rule, speaks, severity, silent, overrides):
    assert found(rows(**speaks), *overrides).get(rule) == severity
    assert rule not in found(rows(**silent), *overrides)


def test_every_rule_is_tested():
    assert {rule.name for rule in RULES} == {case[0] for case in CASES} | {
        "batch_unfilled",
        "batch_starves",
        "hopeless_start",
        "given_up",
        "part_fell",
        "passes",
    }


def test_passes_over_the_training_problems_are_counted_from_the_run_s_prompts(tmp_path):
    """60 steps of 32 prompts are 101 passes over 19 problems, and 96 over 20."""
    for prompts, speaks in ((19, True), (20, False)):
        folder = RunFolder(tmp_path / str(prompts))
        folder.path.mkdir()
        write_prompts(
            folder.prompts,
            [Prompt(f"{n:016x}", "", np.array([1]), f"{n} + 1", str(n + 1), "s") for n in range(prompts)],
        )
        notes = [a for a in advice_of(run_of(rows(60), folder=folder)) if a["rule"] == "passes"]
        assert [a["severity"] for a in notes] == ["note"] * speaks
    folder.prompts.write_bytes(b"PAR1")
    assert advice_of(run_of(rows(60), folder=folder)) == []


def starving(kept=0, judged=32, step=1, **more):
    shares = Shares(kept=kept / judged, all_wrong=1 - kept / judged, judged=judged, truncated=0.7, answered=0.0)
    return CollectProgress(step, kept, 8, judged, shares, cap_groups=160.0, **more)


def in_its_first_step(folder, filling=None, right=None, state="running", made=None):
    """A run before its first line of a step, and its evaluation before training."""
    if right is not None:
        folder.evaluations.mkdir(parents=True)
        write_evaluation(folder.evaluation_file(0), 0, evaluation(right, cut=len(right)))
    run = run_of(made or [{"step": 0, "validation/accuracy": 0.0, "time/evaluate": 300.0}], state=state, folder=folder)
    if filling is not None:
        run.status = replace(run.status, filling=json.loads(json.dumps(asdict(filling))))
    return advice_of(run)


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_a_run_that_starves_in_its_first_step_says_so_in_the_words_of_the_console(tmp_path, state):
    right = [[0.0] * 4] * 60
    (advice,) = in_its_first_step(RunFolder(tmp_path), starving(), right, state)
    assert (advice["rule"], advice["severity"], advice["first_step"]) == ("batch_starves", "bad", 1)
    assert advice["said"] == filling_line(starving())
    assert "time_beside" not in advice["rule"]  # an evaluation before the first step is not too many of them


def test_a_batch_that_fills_or_is_done_does_not_starve(tmp_path):
    assert in_its_first_step(RunFolder(tmp_path), starving(kept=8)) == []
    assert in_its_first_step(RunFolder(tmp_path), starving(step=60), made=rows(60)) == []  # of a step with a line
    (advice,) = in_its_first_step(RunFolder(tmp_path), starving(step=61), made=rows(60))
    assert (advice["rule"], advice["last_step"]) == ("batch_starves", 61)


def test_before_a_group_is_judged_the_evaluation_foretells_what_comes(tmp_path):
    (advice,) = in_its_first_step(RunFolder(tmp_path), None, [[0.0] * 4] * 60)
    assert (advice["rule"], advice["severity"]) == ("hopeless_start", "warn")
    assert advice["said"].startswith("0 of 240 held-out responses are right before training.")
    assert in_its_first_step(RunFolder(tmp_path / "able"), None, [[1.0, 0.0]] * 60) == []
    folder = RunFolder(tmp_path / "later")
    assert in_its_first_step(folder, None, [[0.0] * 4] * 60, made=rows(60)) == []  # its steps say more


def evaluated(folder, rights, columns=()):
    """A run with an evaluation every ten steps; ``rights``: by evaluation, right responses of 4 to each problem."""
    folder.evaluations.mkdir(parents=True)
    for n, right in enumerate(rights):
        write_evaluation(folder.evaluation_file(10 * n), 10 * n, evaluation(of_counts(right, 4), columns=columns))
    accuracy = [sum(right) / 4 / len(right) for right in rights]
    passed = [sum(count > 0 for count in right) / len(right) for right in rights]

    def of_step(values, beside=0.0):
        return lambda step: values[step // 10] + beside

    made = rows(
        10 * len(rights) - 10,
        validation__accuracy=of_step(accuracy),
        validation__accuracy_low=of_step(accuracy, -0.1),
        validation__accuracy_high=of_step(accuracy, 0.1),
        validation__pass_at_4=of_step(passed),
    )
    texts = [
        Sample(0, "held_out", content_id(f"problem {n}"), f"<{n}>", "", "", 1.0, 3, False, False, None, f"text {n}")
        for n in range(2)
    ]
    return run_of(made, folder=folder, samples=texts)


def test_problems_given_up_are_listed_though_pass_at_4_holds(tmp_path):
    """Of 40 problems 6 are lost and 6 are won: accuracy rises, and pass@4 is the same."""
    before = [4] * 6 + [0] * 6 + [2] * 28
    run = evaluated(RunFolder(tmp_path), [before, before, [4, 0, 0, 4, 2, 1, 4, 0] + [3] * 32, [0] * 6 + [4] * 34])
    assert "pass@4 held (85.0% to 85.0%)" in " ".join(sentences_of(run))
    (advice,) = [a for a in advice_of(run) if a["rule"] == "given_up"]
    assert (advice["severity"], advice["first_step"]) == ("warn", 30)
    assert advice["said"].startswith(
        "Of 40 held-out problems 6 had right responses up to step 0 and none since step 30, 6 of them by more than "
        "chance explains; 6 were won. Lost most: 'text 0' (4 of 4 right, then 0 of 4); 'text 1' (4 of 4 right, then 0 "
        "of 4); problem 2 of held_out, answer '2' (4 of 4 right, then 0 of 4). Won most: problem 6 of held_out"
    )


def test_a_change_of_pass_at_k_is_compared_by_the_problems_pass_at_k(tmp_path):
    """8 problems won and 4 lost of 100: 4 points, and chance explains 1.96 x sqrt(13) / 102 = 6.9."""
    run = evaluated(RunFolder(tmp_path), [[0] * 8 + [1] * 4 + [4] * 88, [1] * 8 + [0] * 4 + [4] * 88])
    assert "pass@4 held (92.0% to 96.0%)" in " ".join(sentences_of(run)).replace("Pass", "pass")


def test_many_problems_that_were_each_lost_by_chance_are_given_up_together(tmp_path):
    """20 problems solved 1 time in 4 and then never, and 4 the other way: 16 is more than 1.96 x sqrt(24) = 9.6."""
    for n, (lost, won, said) in enumerate(((20, 4, True), (20, 9, True), (20, 10, False))):
        before, after = [1] * lost + [0] * won + [4] * 70, [0] * lost + [1] * won + [4] * 70
        run = evaluated(RunFolder(tmp_path / str(n)), [before, after])
        assert ("given_up" in {a["rule"] for a in advice_of(run)}) == said, (lost, won)


def test_what_chance_explains_is_not_given_up(tmp_path):
    before = [2, 0, 3, 1] * 10  # 3 of 4 and then none: 1 in 14
    assert "given_up" not in {a["rule"] for a in advice_of(evaluated(RunFolder(tmp_path), [before, [0, 2, 0, 3] * 10]))}


OPERATIONS = [{"operation": name} for name in ("add", "divide", "subtract", "times") for _ in range(32)]


def test_a_policy_that_gives_up_one_operation_of_the_data_is_told_so(tmp_path):
    """Accuracy over all problems rises, as it did where two of seven operations went from 26 % to 0."""
    before, after = [2, 1, 1, 1] * 32, [4] * 32 + [0] * 32 + [4] * 64
    run = evaluated(RunFolder(tmp_path / "lost"), [before, [2] * 128, after], OPERATIONS)
    (advice,) = [a for a in advice_of(run) if a["rule"] == "part_fell"]
    assert (advice["severity"], advice["first_step"], advice["last_step"]) == ("warn", 0, 20)
    assert "where operation = divide, from 31.2% to 0.0% (32 problems of held_out; by" in advice["said"]
    assert advice["said"].count("where") == 1
    for name, columns in (("whole", OPERATIONS), ("none", ())):
        run = evaluated(RunFolder(tmp_path / name), [before, before if columns else after], columns)
        assert "part_fell" not in {a["rule"] for a in advice_of(run)}


def test_a_small_sure_fall_on_a_value_is_a_note(tmp_path):
    """One response of 4 to one problem in seven: 3.6 points of 448 problems."""
    columns = [{"level": n % 2} for n in range(896)]
    after = [3 if n % 14 == 0 else 4 for n in range(896)]
    found = advice_of(evaluated(RunFolder(tmp_path), [[4] * 896, after], columns))
    (advice,) = [one for one in found if one["rule"] == "part_fell"]
    assert advice["severity"] == "note"
    assert "level = 0, from 100.0% to 96.4%" in advice["said"]


def test_a_change_of_the_same_problems_is_compared_in_pairs(tmp_path):
    """8 of 100 problems are won, the others stay: an interval of 10 points to either side would hide that."""
    before = [4] * 40 + [0] * 60
    run = evaluated(RunFolder(tmp_path), [before, [4] * 48 + [0] * 52])
    # d = 1 for 8 of 100, two problems added: n' = 102, s' = sqrt((8 + 1) / 102 - (8 / 102)^2) = 0.2867
    # the interval begins at 0.0784 - 1.96 x 0.2867 / sqrt(102) = 0.0228, so chance explains 8 - 2.3 points
    (said,) = [s for s in sentences_of(run) if s.startswith("Held-out accuracy rose")]
    assert said.endswith("in 10 steps, more than chance explains (5.7 points).")
    (tile,) = [t for t in tiles_of(run) if t["label"] == "held-out accuracy"]
    assert tile["tone"] == "good"
    shutil.rmtree(tmp_path)
    assert "within chance (a change below 14.1 points says nothing)" in " ".join(sentences_of(run))


def test_a_run_of_an_agent_has_a_note_that_it_may_not_repeat_itself():
    agent = (
        "environment.kind=agent",
        "environment.run=my_agent:solve",
        "rewards=[{name: accuracy, kind: environment}]",
    )
    (advice,) = advice_of(run_of(rows(environment__not_repeatable=0), *agent))
    assert (advice["rule"], advice["severity"]) == ("not_repeatable", "note")
    assert found(rows(environment__not_repeatable=at({9}, 1, 0)), *agent) == {"not_repeatable": "warn"}


def test_small_held_out_sets_are_named():
    sizes = {"validation__problems": 107, "validation__a/problems": 7, "validation__b/problems": 100}
    (advice,) = advice_of(run_of(rows(**sizes)))
    assert advice["said"] == "Of the held-out sets, a has 7 problems: an accuracy on so few is mostly chance."
    assert advice["keys"] == ["validation/a/problems", "validation/b/problems"]


@pytest.mark.parametrize("steps", [1, 2, 5, 6, 10, 60, 300])
def test_no_rule_speaks_on_a_run_in_good_health(steps):
    assert found(rows(steps)) == {}


def test_a_batch_that_could_not_be_filled_is_told_in_the_words_of_the_run():
    run = unfilled_run()
    (advice,) = [a for a in advice_of(run) if a["rule"] == "batch_unfilled"]
    assert (advice["severity"], advice["first_step"]) == ("bad", 55)
    assert advice["said"] == (
        "80% of the groups are all correct: many problems are solved. Add harder problems; while others are left, "
        "algorithm.dynamic_sampling.selection.retire.at=1 passes over solved ones."
    )
    assert "For example" not in advice["said"]  # it quotes a response
    assert advice["move"].startswith("`dapo train --resume runs/it KEY=VALUE`")  # where it lies now
    assert "batch_unfilled" not in found(rows(54), state="interrupted")


def test_a_batch_that_fills_slowly_is_told_why():
    changes = {
        "sampling__acceptance_rate": 0.1,
        "groups__kept": 10,
        "groups__all_correct": 0,
        "groups__all_wrong": 90,
        "reward__accuracy": 0.01,
        "reward__raw": 0.01,
    }
    (advice,) = [a for a in advice_of(run_of(rows(**changes))) if a["rule"] == "batch_hard_to_fill"]
    assert "10% of the judged groups are kept" in advice["said"]
    assert "90% of the groups are all wrong" in advice["said"]
    assert "rollout.group_size (now 16)" in advice["said"]


def _processes(**learner):
    process = {"machine": "m", "process": 1, "alive": True, "restarts": 0, "last_turn": None, "turn_seconds": None}
    rank = process | {"name": "rank-0", "role": "learner", "memory_mib": None} | learner
    return [rank, process | {"name": "engine-0", "role": "engine", "memory_mib": None, "restarts": 3}]


def test_a_learner_that_was_started_again_is_told_with_lost_engines():
    assert "processes_lost" not in found(rows(), processes=_processes())
    (advice,) = advice_of(run_of(rows(), processes=_processes(restarts=2)))
    assert (advice["rule"], advice["severity"]) == ("processes_lost", "warn")
    assert advice["title"] == "The learner was started again 2 times"
    lost = rows(cluster__engine_losses=at({7}, 1, 0), cluster__resubmitted=at({7}, 1, 0))
    (advice,) = advice_of(run_of(lost, processes=_processes(restarts=1)))
    assert advice["title"] == "Engines were lost once and the learner was started again once"
    assert advice["said"].startswith("It happened in 1 of 60 steps, and the run made 1 response again that they")


@pytest.mark.parametrize(("mode", "rule"), [("filter", "batch_hard_to_fill"), ("off", "few_groups_teach")])
def test_few_kept_groups_are_told_once(mode, rule):
    low = rows(sampling__acceptance_rate=0.2)
    assert found(low, f"algorithm.dynamic_sampling.mode={mode}") == {rule: "warn"}


def test_a_teacher_alone_needs_no_mixed_groups():
    alone = ("preset=distillation", "algorithm.teacher.path=a/b", "rewards.0.weight=0")
    assert found(rows(sampling__acceptance_rate=0.2), *alone) == {}


def test_a_rule_names_the_steps_where_it_holds():
    (advice,) = advice_of(run_of(rows(train__clip_high=at({30, 31, 32, 33}, 0.06, 0.0))))
    assert (advice["rule"], advice["first_step"], advice["last_step"]) == ("clip_share", 30, 33)
    assert "6.0% high" in advice["said"]


def test_a_fall_tells_learning_by_heart_from_undoing():
    by_heart = rows(**falling(0.6), reward__accuracy=late(0.95, 0.5), reward__raw=late(0.95, 0.5))
    undone = rows(**falling(0.6), reward__accuracy=late(0.3, 0.5), reward__raw=late(0.3, 0.5))
    said = [next(a for a in advice_of(run_of(m)) if a["rule"] == "validation_fell") for m in (by_heart, undone)]
    assert "by heart" in said[0]["said"]
    assert "gamed" in said[0]["move"]
    assert "undo" in said[1]["said"]
    assert "learner.learning_rate" in said[1]["move"]
    assert said[0]["first_step"] == 10  # the first of the best evaluations


def test_the_best_of_many_evaluations_is_partly_luck():
    assert found(rows(100, **many(0.83, 7))) == {"validation_fell": "warn"}  # 7 points, of 5.7
    assert found(rows(100, **many(0.83, 8))) == {}  # and of 8.5
    assert found(rows(100, **many(0.81, 8))) == {"validation_fell": "warn"}


def kept_checkpoints(folder: Path, *steps: int) -> RunFolder:
    for step in steps:
        (folder / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    return RunFolder(folder)


def move_of(rule: str, made: list[dict[str, Any]], *overrides: str, **more: Any) -> str:
    (advice,) = [a for a in advice_of(run_of(made, *overrides, **more)) if a["rule"] == rule]
    return advice["move"]


def test_a_checkpoint_is_advised_only_where_it_exists(tmp_path):
    fallen = rows(**falling(0.6), reward__accuracy=late(0.3, 0.5), reward__raw=late(0.3, 0.5))  # best at 10 to 30
    both = kept_checkpoints(tmp_path / "both", 0, 20, 25, 60)
    assert f"`dapo export {tmp_path}/both MODEL_FOLDER --step 20`" in move_of("validation_fell", fallen, folder=both)
    late_alone = kept_checkpoints(tmp_path / "late", 0, 35, 60)  # 35: as near to 40, which is bad, as to 30
    said = move_of("validation_fell", fallen, folder=late_alone)
    assert said.startswith(
        "No checkpoint from before the fall is kept (checkpoint.best=validation/accuracy keeps the best one). "
        "Start again"
    )
    assert "export" not in said


def test_where_the_first_evaluation_was_the_best_there_is_nothing_to_go_back_to(tmp_path):
    worse = rows(
        validation__accuracy=lambda step: 0.5 if step == 0 else 0.2,
        reward__accuracy=late(0.3, 0.5),
        reward__raw=late(0.3, 0.5),
    )
    run = run_of(worse, folder=kept_checkpoints(tmp_path, 0, 40, 60))
    (advice,) = [a for a in advice_of(run) if a["rule"] == "validation_fell"]
    assert advice["said"].endswith("the updates make the model worse than it began.")
    assert advice["move"].startswith("No step was better than the model before training. Start again, and lower")


def test_the_way_back_from_a_collapse_is_a_checkpoint_that_exists(tmp_path):
    made = rows(train__entropy=late(0.02, 0.2))  # since step 41
    assert "step 40 (`dapo export" in move_of("entropy_collapse", made, folder=kept_checkpoints(tmp_path, 20, 40, 60))
    assert "No checkpoint from before the fall is kept" in move_of("entropy_collapse", made)
    assert "rollout.temperature" not in move_of("entropy_collapse", made)
    assert "rollout.temperature" in move_of("entropy_collapse", made, "rollout.temperature=0.9")


@pytest.mark.parametrize(
    ("rule", "changes", "setting"),
    [
        ("batch_hard_to_fill", {"sampling__acceptance_rate": 0.2}, "algorithm.dynamic_sampling.cap.then=train_partial"),
        ("data_too_easy", {"groups__all_correct_share": 0.55}, "algorithm.dynamic_sampling.selection.retire.at=1"),
        ("data_too_hard", {"groups__all_wrong_share": 0.55}, "algorithm.dynamic_sampling.selection.greso.target=0.25"),
        ("truncated", {"response__truncated_share": 0.3}, "algorithm.truncated_vote=true"),
    ],
)
def test_what_is_set_already_is_not_advised(rule, changes, setting):
    assert setting in move_of(rule, rows(**changes))
    there = move_of(rule, rows(**changes), setting)
    assert there
    assert setting not in there


def test_the_reward_that_pays_is_named():
    made = rows(
        reward__raw=late(4, 1),
        reward__accuracy=late(0.0, 0.5),
        reward__tidy=late(1.0, 0.1),
        reward__slow=late(0.2, 0.1),
    )
    (advice,) = [a for a in advice_of(run_of(made)) if a["rule"] == "reward_without_accuracy"]
    assert "`tidy` went from 0.100 to 1.00" in advice["said"]
    assert advice["keys"] == ["reward/raw", "reward/accuracy", "reward/tidy", "reward/slow"]


def test_unscored_responses_are_told_by_reason():
    made = rows(**{"reward__unscored": 90, "reward__unscored__timeout": 60, "reward__unscored__crash\x1b[2J": 30})
    (advice,) = [a for a in advice_of(run_of(made)) if a["rule"] == "verifier_failures"]
    assert "timeout 3,600 times, crash␛[2J 1,800 times" in advice["said"]


def test_clipping_of_whole_responses_is_no_sign():
    gspo = ("algorithm.loss.ratio=sequence", "algorithm.clip.low=3e-4", "algorithm.clip.high=4e-4")
    assert "clip_share" not in found(rows(train__clip_high=0.2), *gspo)


@pytest.mark.parametrize(("kind", "clips"), [("clip", True), ("clip_cov", True), ("cispo", False), ("sapo", False)])
def test_only_losses_with_a_clip_take_gradients_away(kind, clips):
    assert ("clip_share" in found(rows(train__clip_high=0.2), f"algorithm.loss.kind={kind}")) == clips


@pytest.mark.parametrize("cut", ["rollout.top_p=0.9", "rollout.top_k=5"])
def test_the_mass_that_a_cut_leaves_out_is_no_gap(cut):
    learner = "algorithm.old_logprobs=learner"
    assert "sampler_gap" in found(rows(train__gap_mean_current=0.11), learner)
    assert "sampler_gap" not in found(rows(train__gap_mean_current=0.11), learner, cut)


def test_the_end_of_the_data_is_no_hard_batch():
    ended = rows(50, sampling__cap_reached=at({50}, 1, 0))  # of 60 steps
    assert "batch_hard_to_fill" not in found(ended, state="finished")
    assert "batch_hard_to_fill" in found(rows(50, sampling__cap_reached=at({49}, 1, 0)), state="finished")


def test_the_worst_comes_first():
    made = rows(train__entropy=late(0.02, 0.2), sampling__refills=70, response__truncated_share=0.3)
    severities = [advice["severity"] for advice in advice_of(run_of(made))]
    assert severities == ["bad", "warn", "note"]


def test_a_recipe_that_cannot_be_read_silences_only_what_needs_it():
    assert "many_refills" not in found(rows(sampling__refills=90), recipe=None)
    assert found(rows(train__clip_high=0.2), recipe=None) == {"clip_share": "bad"}


KEYS = sorted({key for row in rows(10) for key in row if key != "step"} | {"train/sync_gap", "reward/other"})
numbers = st.one_of(
    st.none(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), st.floats(-1, 1)
)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), numbers, max_size=12), max_size=25), st.booleans())
def test_whatever_a_file_holds_the_rules_answer(contents, keep):
    made = [{"step": step, **row} for step, row in enumerate(contents)]
    if keep:  # a few keys in each row, so that windows fill
        made = [row | {key: contents[0].get(key, 0.5) for key in KEYS[:20]} for row in made]
    run = run_of(made)
    for advice in advice_of(run):
        assert advice["said"].strip().endswith((".", "%", ")"))
        assert 0 <= advice["first_step"] <= advice["last_step"] <= max(1, run.last_step + 1)


def test_the_beginning_and_end_of_a_run_are_a_fifth_of_it():
    facts = Facts(run_of(rows(60, reward__raw=lambda step: float(step))))
    assert facts.late_steps("reward/raw") == (49, 60)
    assert facts.change("reward/raw") == (pytest.approx(6.5), pytest.approx(54.5))  # means of 1..12 and of 49..60
    short = Facts(run_of(rows(5, reward__raw=lambda step: float(step))))
    assert short.change("reward/raw") is None  # 3 at either end would overlap
    assert short.late("reward/raw") == pytest.approx(4.0)  # mean of 3, 4, 5
    assert Facts(run_of(rows(500, reward__raw=1.0))).late_steps("reward/raw") == (481, 500)


# ------------------------------------------------------------------ the words are true


def settings() -> set[str]:
    """Paths of all settings, and of sections."""
    from pydantic import BaseModel

    paths: set[str] = set()

    def walk(model: type[BaseModel], path: str) -> None:
        for name, field in model.model_fields.items():
            here = f"{path}{name}"
            paths.add(here)
            inner = field.annotation
            models = [inner, *getattr(inner, "__args__", ())]
            for kind in models:
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    walk(kind, f"{here}.0." if inner is not kind and "list" in str(inner) else f"{here}.")

    walk(Recipe, "")
    return {re.sub(r"\.\d+\.", ".N.", path) for path in paths}


NAMED = re.compile(
    r"\b(?:rollout|algorithm|learner|model|data|validation|trainer|checkpoint|run|rewards|logging)\.[a-z0-9_.]+"
)


def test_every_setting_that_is_named_exists():
    known, texts = settings(), [f"{rule.trigger} {rule.move} {rule.matters}" for rule in RULES]
    texts += [a["move"] for case in CASES for a in advice_of(run_of(rows(**case[1]), *case[4]))]
    named = {name.rstrip(".") for text in texts for name in NAMED.findall(text.replace("validation/", ""))}
    assert len(named) > 30
    assert {re.sub(r"\.\d+\.", ".N.", name) for name in named} - known == set()


def test_every_metric_that_is_named_is_in_the_glossary():
    keys = {key for case in CASES for a in advice_of(run_of(rows(**case[1]), *case[4])) for key in a["keys"]}
    assert len(keys) > 30
    assert [key for key in sorted(keys) if lookup(key) is None] == []


def test_the_table_of_the_docs_is_that_of_the_rules():
    page = (ROOT / "docs" / "warnings.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "python tests/helpers/warnings_page.py"
    assert table().count("\n") == len(RULES) + 2
    with pytest.raises(ValueError, match="no lines"):
        with_table("# nothing")


def test_rules_have_names_of_their_own_and_severities_an_order():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert [s for s, _ in sorted(RANK.items(), key=lambda item: item[1])] == ["bad", "warn", "note"]


def test_unscored_held_out_responses_of_step_0_are_seen_with_reason_and_bound():
    """A run that is evaluated once, before training: the other rules look at trained steps only."""
    made = rows(
        steps=3,
        validation__unscored=24,
        validation__responses=40,
        validation__accuracy=1.0,
        validation__accuracy_unscored_wrong=0.4375,
        validation__unscored_exception=24,
    )
    (advice,) = [a for a in advice_of(run_of(made)) if a["rule"] == "held_out_unscored"]
    assert advice["severity"] == "bad"
    assert advice["said"] == (
        "24 of 40 held-out responses (60.0%) have no accuracy: exception 24 times. Were they all wrong, the accuracy "
        "at step 0 would be 43.8%, not 100.0%."
    )
    assert (advice["first_step"], advice["last_step"]) == (0, 0)


def test_an_accuracy_that_no_evaluation_could_tell_is_no_missing_evaluation():
    made = rows(steps=20, validation__unscored=40, validation__responses=40)
    for row in made:
        row |= {key: None for key in row if key.startswith("validation/acc")}
    run = run_of(made)
    assert [a["severity"] for a in advice_of(run) if a["rule"] == "held_out_unscored"] == ["bad"]
    assert any("No response of its 3 evaluations could be scored" in text for text in sentences_of(run))


def test_what_a_step_measures_of_rewards_is_no_reward_of_the_recipe():
    """Only keys that the glossary has as reward/<name> are; a new number of ours is not taken for one."""
    own = [key for key in GLOSSARY if key.startswith("reward/") and "<" not in key]
    assert {"reward/clamped", "reward/raw_max", "reward/shaped_std", "reward/unscored"} <= set(own)
    assert not any(_is_other(key) for key in [*own, "reward/concise_kept", "reward/unscored/timeout"])
    assert _is_other("reward/concise")


@pytest.mark.parametrize(
    ("engines", "learner", "more", "overrides", "title", "move"),
    [
        (0.6, 0.1, {}, ["rollout.max_staleness=2"], "Engines wait for the learner", "learner.ranks"),
        (0.1, 0.6, {}, ["rollout.max_staleness=2"], "The learner waits for engines", "rollout.engines"),
        (0.6, 0.5, {}, ["rollout.max_staleness=1"], "wait for each other", "rollout.max_staleness=2"),
        (0.6, 0.5, {}, ["rollout.max_staleness=2"], "wait for each other", "lookahead"),
        (0.6, 0.5, {"time__score": 5.0}, ["rollout.max_staleness=2"], "wait for the verifiers", "run.reward_workers"),
    ],
)
def test_who_waits_for_whom_is_said_with_the_number_to_change(engines, learner, more, overrides, title, move):
    found = {
        advice["rule"]: advice for advice in advice_of(run_of(rows(**waiting(engines, learner), **more), *overrides))
    }
    assert title in found["who_waits"]["title"]
    assert move in found["who_waits"]["move"]


def test_with_turns_nobody_is_told_to_wait_less():
    """Engines and learner then wait for each other by design."""
    assert "who_waits" not in {advice["rule"] for advice in advice_of(run_of(rows(**waiting(0.6, 0.6))))}
