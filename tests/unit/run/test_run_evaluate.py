"""``dapo evaluate`` in one process: what stands on stdout, the step, every answer, and two models compared."""

from __future__ import annotations

import json

import pytest

from dapo.cli.evaluate_recipe import evaluation_recipe, recipe_against
from dapo.errors import DataError, RewardError
from dapo.models.tiny import make_tiny_model
from dapo.observe.answer_lines import read_answers
from dapo.run.evaluate import Subject, evaluate

MORE = ["rewards.0.kind=regex", "rollout.max_response_tokens=12", "rollout.slots=16"]
OPTIONS = {"validation.samples": 2, "validation.limit": 4}


def recipe(model, pattern="'^.{0,20}$'", data=("task:signed_sum",)):
    return evaluation_recipe(str(model), list(data), OPTIONS, [*MORE, f"rewards.0.pattern={pattern}"])[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [make_tiny_model(folder / f"m{seed}", "llama", seed=seed) for seed in (0, 1)]


def test_json_is_alone_on_stdout_and_each_number_stands_once(models, capsys):
    assert evaluate(recipe(models[0]), as_json=True) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    (of_set,) = found["sets"].values()
    assert found["step"] is None
    assert "mean" not in found  # of one set it would be the same numbers again
    assert of_set["problems"] == 4
    assert of_set["responses"] == 12  # two sampled and a greedy one each
    assert "training" not in err  # the recipe's training data are placeholders
    assert "validation" in err


def test_a_person_gets_a_table(models, capsys):
    evaluate(recipe(models[0]))
    out = capsys.readouterr().out
    for word in ("2 samples a problem", "accuracy", "95 % interval", "response length", "problems"):
        assert word in out
    assert "{" not in out
    assert "step 0" not in out
    assert "training " not in out


def test_accuracy_by_a_column_of_the_data(models, tmp_path, capsys):
    """Every answer is right by the pattern; without columns of few values there is no further row."""
    data = tmp_path / "mine.jsonl"
    rows = [{"problem": f"{n} + 1 =", "answer": str(n + 1), "level": 1 + n % 2, "id": n} for n in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded, _ = evaluation_recipe(str(models[0]), [str(data)], {}, [*MORE, "rewards.0.pattern='^'"])
    evaluate(loaded, as_json=True)
    found = json.loads(capsys.readouterr().out)["sets"]["mine"]
    assert {key: value for key, value in found.items() if " where " in key} == {
        "accuracy where level = 1": 1.0,
        "accuracy where level = 2": 1.0,
    }
    evaluate(loaded)
    assert "accuracy where level = 2" in capsys.readouterr().out


def test_columns_of_the_data_are_shown_as_they_are_and_none_replaces_another(models, tmp_path, capsys):
    """Names in brackets are no markup; two values whose shortened names are equal both have their number."""
    data, long = tmp_path / "mine.jsonl", "c" * 50
    values = ["[/b] " + "v" * 20 + end for end in "xy"]
    columns = [{long: values[n % 2], "t": "[red]"[n % 2 :]} for n in range(8)]
    rows = [{"problem": f"{n} + 1 =", "answer": str(n + 1), **own} for n, own in enumerate(columns)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded, _ = evaluation_recipe(str(models[0]), [str(data)], {}, [*MORE, "rewards.0.pattern='^'"])
    evaluate(loaded, as_json=True)
    found = json.loads(capsys.readouterr().out)["sets"]["mine"]
    assert {f"accuracy where {long} = {value}" for value in values} <= set(found)
    evaluate(loaded)
    assert "accuracy where t = [red]" in capsys.readouterr().out


@pytest.mark.whole
def test_every_answer_is_kept_and_a_later_model_is_compared_with_them(models, tmp_path, capsys):
    kept = tmp_path / "answers.jsonl"
    evaluate(recipe(models[0]), out=kept, as_json=True)
    first = json.loads(capsys.readouterr().out)
    model, step, sets = read_answers(kept)
    (groups,) = sets.values()
    assert (model, step, [len(group.pairs()) for group in groups]) == (str(models[0]), None, [3] * 4)
    with pytest.raises(DataError, match="exists already"):
        evaluate(recipe(models[0]), out=kept)
    evaluate(recipe(models[0]), against=kept, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["against"]["sets"] == first["sets"]  # read back, the numbers are the same
    (difference,) = found["difference"]["sets"].values()
    assert (difference["difference"], difference["problems"]) == (0, 4)
    assert difference["low"] == pytest.approx(-difference["high"])
    assert difference["high"] > 0


@pytest.mark.whole
def test_two_models_are_asked_the_same(models, capsys):
    loaded = recipe(models[0], data=["task:signed_sum"])
    against = Subject(*recipe_against(loaded.recipe, str(models[1])))
    assert against.loaded.recipe.data == loaded.recipe.data
    assert against.loaded.recipe.validation == loaded.recipe.validation
    evaluate(loaded, against=against)
    out = capsys.readouterr().out
    assert "problems in both" in out
    assert str(models[1].name) in out
    assert "chance" in out


def test_a_file_that_holds_no_answers_is_refused_before_anything_is_loaded(models, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="no file of answers"):
        evaluate(recipe(models[0]), against=tmp_path / "x.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no file of answers"):
        evaluate(recipe(models[0]), against=tmp_path / "empty.jsonl")


@pytest.mark.whole
def test_a_verifier_that_fails_on_everything_is_an_error_with_its_reason(models, tmp_path, monkeypatch, capsys):
    (tmp_path / "never_scores.py").write_text("def score(prompt, completion):\n    raise ValueError('no')\n")
    monkeypatch.chdir(tmp_path)
    own = [*MORE, "rewards.0.kind=function", "rewards.0.function=never_scores:score"]
    loaded, _ = evaluation_recipe(str(models[0]), ["task:signed_sum"], OPTIONS, own)
    with pytest.raises(RewardError, match="not one response could be scored"):
        evaluate(loaded)
    out = capsys.readouterr().out
    assert "12 of 12" in out
    assert "most were unscored because of exception" in out
