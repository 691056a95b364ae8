"""What one meets first: recipes by short name, `dapo recipes`, `init`, `explain`, help, completion."""

import contextlib
import json
import re

import pytest
from test_cli_check_memory import facts_with

from dapo.cli import init
from dapo.cli.main import main
from dapo.config import load_recipe
from dapo.config.explain import explain
from dapo.config.settings import settings
from dapo.config.shipped import FOLDER, recipe_names, what_it_is
from dapo.errors import RecipeError
from dapo.links import SITE
from dapo.metrics.glossary import lookup
from dapo.metrics.printed import EVALUATION, STEP, SUPERVISED_STEP, SUPERVISED_VIEW, VIEW
from dapo.observe.live_view import RunState
from dapo.observe.terminal_lines import step_line
from dapo.rewards.math import accuracy


def said(capsys, *arguments, code=0):
    assert main(list(arguments)) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def test_a_short_name_is_the_shipped_recipe_and_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = load_recipe("quickstart", ["trainer.steps=3"])
    assert shipped.recipe == load_recipe(FOLDER / "quickstart.yaml", ["trainer.steps=3"]).recipe
    (tmp_path / "own_data").write_text("model: {path: a/b}\ndata: {train: [{task: signed_sum}]}\n")
    assert load_recipe("own_data").recipe.model.path == "a/b"
    (tmp_path / "quickstart").mkdir()  # a folder is no recipe
    assert load_recipe("quickstart").recipe.run.name == "quickstart"


def test_a_wrong_name_is_answered_with_the_right_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="did you mean quickstart, which comes with the package"):
        load_recipe("quickstrat")
    with pytest.raises(RecipeError, match=r"with the package come .*own_data.*quickstart"):
        load_recipe("zzz")


def test_recipes_are_listed_shown_and_copied(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = said(capsys, "recipes").splitlines()
    assert [line.split()[0] for line in listed[: len(recipe_names())]] == recipe_names()
    assert all(len(what_it_is(name)) > 20 for name in recipe_names())
    assert said(capsys, "recipes", "--show", "quickstart") == (FOLDER / "quickstart.yaml").read_text()
    said(capsys, "recipes", "--copy", "own_data")
    assert {p.name for p in tmp_path.iterdir()} == {"own_data.yaml", "own_data.jsonl", "own_data_test.jsonl"}
    assert load_recipe("own_data.yaml").recipe.data.train[0].path == str(tmp_path / "own_data.jsonl")
    assert "exists already" in said(capsys, "recipes", "--copy", "own_data", code=2)
    assert "there are" in said(capsys, "recipes", "--show", "nothing", code=2)


@pytest.fixture
def problems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"task": f"{n} +2 =", "result": str(n + 2), "level": 1} for n in range(12)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_init_writes_a_commented_recipe_for_model_and_data(problems, capsys, monkeypatch):
    columns = ["--problem", "task", "--answer", "result"]
    out = said(
        capsys, "init", "first", "--model", "a/b", "--data", "train.jsonl", "--validation", "train.jsonl", *columns
    )
    assert "0 +2 =" in out
    assert "math" in out
    text = (problems / "first.yaml").read_text()
    recipe = load_recipe("first.yaml").recipe
    assert recipe.run.name == "first"
    assert recipe.model.path == "a/b"
    assert recipe.data.train[0].fields == {"problem": "task", "answer": "result"}
    assert recipe.data.validation[0].path == str(problems / "train.jsonl")
    assert recipe.rewards[0].kind == "math"
    assert {line.index("  # ") for line in text.splitlines() if re.search(r"\S.*\d  +# ", line)} <= {32}
    assert "exists already" in said(
        capsys, "init", "first", "--model", "a/b", "--data", "train.jsonl", *columns, code=2
    )


def test_init_chooses_the_reward_by_the_answers(problems, capsys):
    rows = [{"question": f"the colour of {n}?", "answer": "blue"} for n in range(9)]
    (problems / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said(capsys, "init", "words", "--model", "a/b", "--data", "words.jsonl")
    reward = load_recipe("words.yaml").recipe.rewards[0]
    assert reward.kind == "exact"
    assert re.search(reward.pattern, "so\nAnswer: blue \n")[1] == "blue"
    said(capsys, "init", "own", "--model", "a/b", "--data", "words.jsonl", "--reward", "mine:score")
    assert load_recipe("own.yaml").recipe.rewards[0].function == "mine:score"


def test_init_refuses_with_the_next_move_and_writes_nothing(problems, capsys):
    assert "--data" in said(capsys, "init", "x", "--model", "a/b", code=2)
    unknown = said(capsys, "init", "x", "--model", "a/b", "--data", "train.jsonl", code=2)
    assert "task, result, level" in unknown
    assert "--problem COLUMN" in unknown
    wrong = ["--problem", "task", "--answer", "reslt"]
    assert "'reslt'" in said(capsys, "init", "x", "--model", "a/b", "--data", "train.jsonl", *wrong, code=2)
    right = ["--data", "train.jsonl", "--problem", "task", "--answer", "result"]
    assert "--reward" in said(capsys, "init", "x", "--model", "a/b", *right, "--reward", "f", code=2)
    assert "no model folder" in said(capsys, "init", "x", "--model", "./nowhere", *right, code=2)
    dash = said(capsys, "init", "-", "--model", "a/b", *right, code=2)
    assert "NAME (run.name)" in dash
    flags = ["--device", "none", "--validation", "train.jsonl"]
    refused = said(capsys, "init", "deep/x", "--model", "a/b/c/d", *right, *flags, code=2)
    for typed in ("--model (model.path)", "--device (model.device)"):
        assert typed in refused
    for text in (dash, refused):
        assert "draft" not in text
        assert "line " not in text
    assert "NAME (run.name)" in said(capsys, "init", "n" * 250, "--model", "a/b", *right, code=2)
    assert "shorter NAME" in said(capsys, "init", "n" * 300, "--model", "a/b", *right, code=2)
    assert [p.name for p in problems.iterdir()] == ["train.jsonl"]


def test_a_gpu_gets_other_settings(problems, monkeypatch):
    machine = init._Machine(True, "a GPU", facts_with(500_000_000, positions=2048), elsewhere=True)
    monkeypatch.setattr(init, "_machine", lambda wanted: machine)
    init.write_recipe(init.Wanted("g", "a/b", "train.jsonl", problem="task", answer="result"), problems / "g.yaml")
    recipe = load_recipe("g.yaml").recipe
    assert recipe.model.dtype == "bfloat16"
    assert recipe.data.max_prompt_tokens + recipe.rollout.max_response_tokens <= 2048


def test_dapo_alone_prints_the_help(capsys):
    shown = said(capsys)
    assert shown == said(capsys, "--help")
    assert "Train a model by a recipe" in shown


def test_every_key_can_be_explained():
    for path in settings():
        lines = explain(path)
        assert lines[0].startswith(path)
        assert any("docs/configuration.md" in line for line in lines)


def test_explain_knows_the_paper_the_peers_metrics_and_last_parts(capsys):
    out = said(capsys, "explain", "algorithm.clip.high")
    assert re.search(r"default +0\.28", out)
    assert "2503.14476, section 3.1" in out
    assert "epsilon_high (ms-swift, TRL)" in out
    assert f"{SITE}/losses.md" in out
    assert "algorithm.clip.high" in said(capsys, "explain", "epsilon_high")
    assert "Kept groups" in said(capsys, "explain", "sampling/acceptance_rate")
    assert "rollout.group_size" in said(capsys, "explain", "group_size").splitlines()[0]
    both = said(capsys, "explain", "learning_rate").splitlines()
    assert [line for line in both if line.endswith(".learning_rate")] == ["learner.learning_rate", "sft.learning_rate"]
    assert "rewards.N.weight" in said(capsys, "explain", "rewards.0.weight")
    assert "the nearest are algorithm.clip.high" in said(capsys, "explain", "algorithm.clip.hihg", code=2)
    assert said(capsys, "explain", "trunc", code=2).count("truncated") == 1
    assert "the nearest are kept" in said(capsys, "explain", "keept", code=2)
    assert "the nearest are sampling/acceptance_rate" in said(capsys, "explain", "sampling/acceptance", code=2)
    assert said(capsys, "explain", "acceptance_rate").startswith("sampling/acceptance_rate\n")
    assert said(capsys, "explain", "pass@4").startswith("validation/pass@<k>\n")
    assert "that is known. The name of a section, such as rollout," in said(capsys, "explain", "nonsense", code=2)


@pytest.mark.parametrize("table", [STEP, SUPERVISED_STEP, EVALUATION, VIEW, SUPERVISED_VIEW])
def test_explain_knows_the_metric_of_every_word_that_a_run_prints(table):
    for word, metric in table.items():
        assert {metric, f"  {lookup(metric).meaning}"} <= set(explain(word))


@pytest.mark.parametrize(("word", "metric"), STEP.items())
def test_explain_knows_each_word_of_a_step_line(word, metric, capsys):
    state = RunState(name="r", total_steps=1, step=1, began=0.0, metrics={metric: 0.75})
    assert re.search(rf"\b{word} (?:75|0\.75)|(?:75|0\.75)0? {word}", step_line(state)), step_line(state)
    out = said(capsys, "explain", word)
    assert metric in out.splitlines()[0]
    assert "\n  unit " in out


def test_explain_shows_the_keys_it_knows_before_those_it_does_not(capsys):
    assert main(["explain", "algorithm.clip.high", "algorithm.clip.hihg", "nonsense", "rollout.group_size"]) == 2
    found = capsys.readouterr()
    shown = [line for line in found.out.splitlines() if line and not line.startswith(" ")]
    assert shown == ["algorithm.clip.high", "rollout.group_size"]
    assert "`algorithm.clip.hihg` is no setting" in found.err
    assert "the nearest are algorithm.clip.high" in found.err
    assert "`nonsense` is no setting" in found.err


def test_help_names_pages_and_completion_offers_names_and_keys(capsys, monkeypatch):
    assert f"{SITE}/configuration.md" in said(capsys, "train", "--help")
    assert "--install-completion" in said(capsys, "--help")
    for line, expected in (("dapo train quick", "quickstart"), ("dapo train quickstart trainer.st", "trainer.steps=")):
        monkeypatch.setenv("_DAPO_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        with contextlib.suppress(SystemExit):
            main([])
        assert expected in capsys.readouterr().out.split()


def test_init_for_the_built_in_model_asks_in_words_that_it_knows(problems, capsys):
    """docs/own_data.md's command: its tokenizer knows no sentence, and its answers end with a total."""
    rows = [{"question": f"{n} +2 -1 =", "target": str(n + 1)} for n in range(1, 10)]
    (problems / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said(capsys, "init", "sums", "--model", "builtin/signed-sum", "--data", "train.jsonl")
    recipe = load_recipe("sums.yaml").recipe
    assert recipe.data.instruction is None
    assert recipe.rewards[0].kind == "exact"
    assert re.search(recipe.rewards[0].pattern, "+7 =11 -8 =3")[1] == "3"
    assert recipe.rollout.max_response_tokens == 32
    assert "unknown to the tokenizer" not in said(capsys, "check", "sums.yaml")


def test_unknown_tokens_are_a_doubt_of_check(problems, capsys):
    columns = ["--problem", "task", "--answer", "result"]
    said(capsys, "init", "sums", "--model", "builtin/signed-sum", "--data", "train.jsonl", "--reward", "math", *columns)
    told = said(capsys, "check", "sums.yaml", "data.instruction=Put your final answer in a box.")
    assert re.search(r"train: \d+\.\d % of the prompts' tokens are unknown to the tokenizer \(<unk>\)", told)
    assert "12 of 12 gold answers, written as '\\boxed{GOLD}', hold tokens that are unknown" in told
    assert told.splitlines()[0].startswith("sums.yaml: good, with 3 doubts")


FORMS_OF_MATH = {r"\boxed{...}": r"so \boxed{42}", "`Answer: ...`": "so\nAnswer: 42", "`#### ...`": "so\n#### 42"}


def test_kind_math_is_described_by_what_it_reads(problems, capsys):
    """Every text that describes it names the marks that count, and no other; a number alone is none."""
    columns = ["--problem", "task", "--answer", "result"]
    said(capsys, "init", "sums", "--model", "a/b", "--data", "train.jsonl", *columns)
    (comment,) = (line for line in (problems / "sums.yaml").read_text().splitlines() if "kind: math" in line)
    explained = " ".join(said(capsys, "explain", "rewards.N.kind").split())
    for form, text in FORMS_OF_MATH.items():
        assert accuracy(text, "42") == 1.0
        assert form.strip("`").split("...")[0] in comment, comment
        assert form in explained, explained
    for text in ("42", "The answer is 42", "so 42."):
        assert accuracy(text, "42") == 0.0
    assert "number" not in comment
