"""Every response of an evaluation stands in a file, from which its numbers can be counted again."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from evaluated import evaluation

from dapo.algorithms.statistics import majority_correct, mean_interval, pass_at_k
from dapo.api.run import Run
from dapo.config import recipe_from_dict
from dapo.errors import RecipeError
from dapo.loop.evaluation_metrics import result_of
from dapo.observe.callbacks import Callbacks
from dapo.observe.console import Console
from dapo.observe.recorder import RunRecorder
from dapo.observe.run_folder import RunFolder
from dapo.observe.status import StatusWriter
from dapo.types.batch import Group, Key, Prompt, Response, Score
from dapo.types.enums import FinishReason

PROBLEMS, SAMPLES = 60, 4


def group(dice, problem):
    prompt = Prompt(f"id{problem}", "?", np.array([1]), f"problem {problem}", "3", "held")
    responses, scores = zip(*(response(dice, problem, sample) for sample in range(-1, SAMPLES)), strict=True)
    return Group(problem, prompt, list(responses), list(scores))


def response(dice, problem, sample):
    n = int(dice.integers(1, 30))
    tokens = np.zeros(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.int32)
    finish = FinishReason.LENGTH if dice.random() < 0.2 else FinishReason.STOP
    answer = str(dice.integers(2, 5))
    score = Score({"accuracy": float(answer == "3"), "format": 0.5}, 1.0, answer=answer)
    if dice.random() < 0.1:
        score = Score({"format": 0.5}, reason="timeout: 3 s")
    return Response(*tokens, finish, "text", key=Key("evaluate", problem, sample)), score


@pytest.fixture
def recorded(tmp_path):
    """The folder, and what an evaluation said after step 20."""
    dice = np.random.default_rng(5)
    result = result_of({"held": [group(dice, p) for p in range(PROBLEMS)]}, SAMPLES, greedy=True)
    console = Console("quiet")
    console.start("r", 30)
    (tmp_path / "recipe.resolved.yaml").write_text("{}")
    recipe = recipe_from_dict({"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}).recipe
    recorder = RunRecorder(RunFolder(tmp_path), console, recipe)
    recorder.open(Callbacks(), StatusWriter(tmp_path / "status.json", 30))
    recorder.evaluation(20, result)
    recorder.step(20, result.metrics, [])
    recorder.close()
    return tmp_path, result.metrics


@pytest.mark.parametrize(("step", "told"), [(0, True), (10, False)])
def test_an_evaluation_before_training_that_foretells_starving_is_warned_of(tmp_path, capsys, step, told):
    given = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}, "rewards": [{"kind": "math"}]}
    console = Console("quiet")
    console.start("r", 30)
    recorder = RunRecorder(RunFolder(tmp_path), console, recipe_from_dict(given).recipe)
    recorder.open(Callbacks(), StatusWriter(tmp_path / "status.json", 30))
    recorder.evaluation(step, result_of(evaluation([[0.0] * 4] * 60, cut=160), 4, greedy=False))
    recorder.close()
    assert ("warning: step 0: 0 of 240 held-out responses are right" in capsys.readouterr().err) == told


def test_the_numbers_of_all_problems_can_be_counted_again(recorded):
    folder, said = recorded
    rows = Run(folder).evaluation(20)
    assert len(rows) == PROBLEMS * (SAMPLES + 1)
    sampled, greedy = [r for r in rows if r["sample"] >= 0], [r for r in rows if r["sample"] < 0]
    known = defaultdict(list)
    for row in sampled:
        if row["accuracy"] is not None:
            known[row["problem"]].append(row)
    found = mean_interval([[row["accuracy"] for row in own] for own in known.values()], bounds=(0.0, 1.0))
    right = [(len(own), sum(row["accuracy"] == 1 for row in own)) for own in known.values()]
    votes = [majority_correct([r["read"] for r in own], [r["accuracy"] == 1 for r in own]) for own in known.values()]
    again = {
        "accuracy": found.mean,
        "accuracy_low": found.low,
        "accuracy_high": found.high,
        "pass@4": np.mean([pass_at_k(n, c, 4) for n, c in right if n >= 4]),
        "maj@4": np.mean(votes),
        "length_mean": np.mean([row["length"] for row in sampled]),
        "truncated_share": np.mean([row["finish"] == "length" for row in sampled]),
        "greedy_accuracy": np.mean([row["accuracy"] for row in greedy if row["accuracy"] is not None]),
        "unscored": sum(row["accuracy"] is None for row in rows),
    }
    for key, value in again.items():
        assert value == pytest.approx(said[f"validation/held/{key}"]), key
    assert {row["unscored"] for row in rows if row["accuracy"] is None} == {"timeout: 3 s"}
    assert rows[0]["prompt_id"] == "id0"
    assert dict(rows[0]["rewards"])["format"] == 0.5
    assert (rows[0]["set"], rows[0]["answer"]) == ("held", "3")


def test_a_resume_from_before_it_removes_the_file(recorded):
    folder, _ = recorded
    assert len(Run(folder).evaluation()) == PROBLEMS * (SAMPLES + 1)
    RunFolder(folder).cut_back(19)
    with pytest.raises(RecipeError, match="holds no evaluations"):
        Run(folder).evaluation()
