"""The matrix of tiny runs: its cases are runs that the recipe allows, and its comparison sees what they wrote."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dapo.config.load import load_recipe
from dapo.learner.tensor_files import write_tensors
from dapo.report.page import packed

ROOT = Path(__file__).resolve().parents[3]
BENCHMARKS = ROOT / "benchmarks"
ROW = {"step": 1, "train/loss": 0.25}


@pytest.fixture
def golden(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import golden

    return golden


@pytest.fixture
def matrix(golden):
    import golden_matrix

    return golden_matrix


@pytest.fixture
def cases(golden):
    import golden_cases

    return golden_cases


def test_the_recipe_takes_every_case_and_no_two_are_the_same_run(matrix, tmp_path):
    """A setting that is renamed without its line in the table fails here, before any run."""
    (tmp_path / "model").mkdir()
    inputs = matrix.Inputs(tmp_path / "model", matrix.make_examples(tmp_path))
    seen = {}
    for case in matrix.CASES:
        (verb, file, *settings), (again, *resume) = matrix.commands(case, "head", tmp_path, inputs)
        loaded = load_recipe(ROOT / file, settings, sft=verb == "sft")
        assert verb == again == ("sft" if case in matrix.SUPERVISED else "train")
        assert resume[:2] == ["--resume", str(tmp_path / "run")]
        assert seen.setdefault((verb, loaded.recipe.model_dump_json()), case) == case


def test_a_setting_has_another_spelling_for_the_base(cases):
    assert cases.spelled(["a=1"], "base") == cases.spelled(["a=1"], "head") == ["a=1"]
    both = {"head": ["new=1"], "base": ["old=1"]}
    assert (cases.spelled(both, "head"), cases.spelled(both, "base")) == (["new=1"], ["old=1"])


def test_names_that_changed_on_purpose_are_compared_under_the_new_one(golden):
    renamed = golden.Renamed({"train/old": "train/loss", "train/gone": None}, frozenset({"train/new"}))
    base = [{"step": 1, "train/old": 0.25, "train/gone": 7.0}]
    assert golden.compare_rows(base, [ROW | {"train/new": 3.0}], renamed) == []
    (found,) = golden.compare_rows(base, [ROW | {"train/loss": 0.5}], renamed)
    assert (found.name, found.where, found.base, found.here) == ("train/loss", "step 1", "0.25", "0.5")


def weights_of(folder, **tensors):
    (folder / "checkpoints/step_000004/learner").mkdir(parents=True)
    save_file(tensors, folder / "checkpoints/step_000004/learner/model.safetensors")
    return folder


def test_one_bit_of_bfloat16_weights_is_found(golden, tmp_path):
    base = weights_of(tmp_path / "a", w=torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    other = weights_of(tmp_path / "b", w=torch.tensor([1.0078125, 2.0], dtype=torch.bfloat16))
    assert golden.compare_weights(base, base) == []
    (found,) = golden.compare_weights(base, other)
    assert (found.where, found.base, found.here, found.count) == ("step_000004, largest", "1.0", "1.0078125", 1)


def test_slices_of_ranks_are_joined_and_the_optimizer_is_left_out(golden, tmp_path):
    for name, value in (("a", 1.0), ("b", 1.5)):
        learner = tmp_path / name / "checkpoints/step_000004/learner"
        learner.mkdir(parents=True)
        for rank, part in enumerate(([value], [2.0])):
            state = {"model/w": torch.tensor(part), "optimizer/exp_avg/w": torch.tensor([value])}
            write_tensors(learner / f"rank-{rank:05d}-of-00002.safetensors", state)
    assert golden.compare_weights(tmp_path / "a", tmp_path / "a") == []
    (found,) = golden.compare_weights(tmp_path / "a", tmp_path / "b")
    assert (found.name, found.base, found.here) == ("weights: w", "1.0", "1.5")


def test_the_table_has_case_place_key_and_both_values(matrix, golden):
    one = golden.Difference("train/loss", 3, 4, 0.1, "step 2", "0.25", "0.5" * 20)
    lines = matrix.table({"sapo": [one], "many": [one] * 40}).splitlines()
    assert lines[1].split() == ["sapo", "step", "2", "train/loss", "0.25", f"{'0.5' * 9}…", "3", "of", "4"]
    assert len(lines) == 1 + 1 + matrix.LINES + 1
    assert "and 28 more keys" in lines[-1]


PROGRAM = """
import os, sys, time
print(os.environ["PYTHONPATH"], *sys.argv[1:], flush=True)
if sys.argv[1] == "hang":
    time.sleep(3600)
sys.exit(int(sys.argv[1]))
"""


def test_commands_run_by_the_package_of_their_tree_one_after_the_other(matrix, tmp_path):
    (tmp_path / "dapo").mkdir()
    (tmp_path / "dapo/__init__.py").touch()
    (tmp_path / "dapo/__main__.py").write_text(PROGRAM)
    output = tmp_path / "output.txt"

    def stop(process):
        while output.read_text().count("hang") < 2:
            time.sleep(0.01)
        os.kill(process, signal.SIGTERM)

    runner = matrix.Runner(tmp_path, modules=["there_is_no_such_module"])
    try:
        assert [runner.run([str(code), "x"], output) for code in (3, 0)] == [3, 0]
        assert runner.run(["hang"], output, limit=0.5) is None
        assert runner.run(["hang"], output, begun=stop) == -signal.SIGTERM
        assert runner.run(["4"], output) == 4
    finally:
        runner.close()
    assert output.read_text().splitlines() == [f"{tmp_path} {words}" for words in ("3 x", "0 x", "hang", "hang", "4")]


def test_a_base_run_is_kept_for_its_overrides_and_inputs(matrix, tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "WORK", tmp_path)
    made = []

    def run_case(runner, case, side, folder, inputs):
        folder.mkdir(parents=True, exist_ok=True)
        made.append((case, side))
        return "it failed" if case == "gspo" else None

    monkeypatch.setattr(matrix, "run_case", run_case)
    (tmp_path / "model").mkdir()
    inputs = matrix.Inputs(tmp_path / "model", matrix.make_examples(tmp_path))
    runs = matrix.BaseRuns("abc", inputs)
    assert not runs.kept("sapo")
    assert runs.make(None, "sapo") is None
    assert runs.make(None, "gspo") == "it failed"
    assert made == [("sapo", "base"), ("gspo", "base")]
    assert (runs.kept("sapo"), runs.kept("gspo"), runs.kept("sft")) == (True, False, False)
    monkeypatch.setitem(matrix.CASES, "sapo", {"head": ["preset=sapo"], "base": ["preset=grpo"]})
    assert not runs.kept("sapo")
    monkeypatch.undo()
    monkeypatch.setattr(matrix, "WORK", tmp_path)
    (tmp_path / "model/weights").write_text("others")
    assert not matrix.BaseRuns("abc", inputs).kept("sapo")


def test_examples_are_sums(matrix, tmp_path):
    folder = matrix.make_examples(tmp_path)
    lines = [json.loads(line) for line in (folder / "examples.jsonl").read_text().splitlines()]
    assert len({line["prompt"] for line in lines}) == 48
    for line in lines:
        a, b, c = (int(word) for word in line["prompt"].removesuffix(" =").split())
        assert line["response"] == f"+{b} ={a + b} +{c} ={a + b + c}"


BUNDLE = {
    "made": 1.0,
    "runs": [
        {
            "folder": "FOLDER/run",
            "sentences": ["2 steps took 1 s, 38% generating and 26% learning.", "Accuracy rose; see FOLDER/run"],
            "tiles": [{"key": "time/step", "value": "0.5 s"}, {"key": "", "value": "41 %"}],
            "curves": {"steps": [1, 2], "values": {"train/loss": [0.5, 0.25], "time/step": [1.0, 2.0]}},
        }
    ],
}
DATA = (
    "run  step 2 of 2\n\n           tokens  seconds\n  trained     284    0.137  in the batches\n\n  1 +1 =  0 of 4\n"
)


def looks_of(folder, bundle=BUNDLE, data=DATA, check="FOLDER/r.yaml: good, about 20 s; memory 1.5 GiB\n"):
    (folder / "report").mkdir(parents=True)
    block = packed(json.loads(json.dumps(bundle).replace("FOLDER", str(folder))))
    (folder / "report/report.html").write_text(f'<script type="application/octet-stream" id="bundle">{block}</script>')
    (folder / "data.txt").write_text(data)
    (folder / "check.txt").write_text(check.replace("FOLDER", str(folder)))
    return folder


def test_looks_are_equal_but_for_the_clock_and_the_folder(golden, tmp_path):
    from golden_looks import compare_looks

    base = looks_of(tmp_path / "a")
    later = json.loads(json.dumps(BUNDLE))
    later["made"], later["runs"][0]["tiles"][0]["value"] = 2.0, "0.7 s"
    later["runs"][0]["sentences"][0] = "2 steps took 2 min, 40% learning and 30% generating."
    later["runs"][0]["curves"]["values"]["time/step"] = [3.0, 4.0]
    check = "FOLDER/r.yaml: good, about 35 s; memory 1.5 GiB\n"
    here = looks_of(tmp_path / "b", later, DATA.replace("0.137", "0.21 "), check)
    assert compare_looks(base, here, golden.Renamed()) == []


@pytest.mark.parametrize(
    ("change", "name", "values"),
    [
        ({"bundle": ("0.25", "0.26")}, "report: runs.curves.values.train/loss", ("0.25", "0.26")),
        ({"bundle": ("41 %", "42 %")}, "report: runs.tiles.value", ("'41 %'", "'42 %'")),
        (
            {"bundle": ("Accuracy rose", "Accuracy fell")},
            "report: runs.sentences",
            ("'Accuracy rose'", "'Accuracy fell'"),
        ),
        ({"data": ("284", "285")}, "dapo data", None),
        ({"data": ("0 of 4", "1 of 4")}, "dapo data", ("'1 +1 = 0 of 4'", "'1 +1 = 1 of 4'")),
        ({"check": ("1.5 GiB", "1.6 GiB")}, "dapo check", ("'memory 1.5 GiB'", "'memory 1.6 GiB'")),
    ],
)
def test_a_change_of_what_is_shown_is_found(golden, tmp_path, change, name, values):
    from golden_looks import compare_looks

    check = "memory 1.5 GiB\n"
    ((part, (old, new)),) = change.items()
    changed = {
        "bundle": json.loads(json.dumps(BUNDLE).replace(old, new)) if part == "bundle" else BUNDLE,
        "data": DATA.replace(old, new) if part == "data" else DATA,
        "check": check.replace(old, new) if part == "check" else check,
    }
    sides = looks_of(tmp_path / "a", check=check), looks_of(tmp_path / "b", **changed)
    (found,) = compare_looks(*sides, golden.Renamed())
    assert found.name == name
    assert values is None or (found.base, found.here) == values
    assert compare_looks(*sides, golden.Renamed(new=frozenset({name}))) == []
