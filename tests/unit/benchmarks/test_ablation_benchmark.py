"""The ablation benchmark: its rows, its arithmetic by hand, and that runs in one process know nothing of each other."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dapo.config import recipe_from_dict
from dapo.models.tiny import make_tiny_model

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def ablation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import ablation

    return ablation


@pytest.fixture
def report(ablation):
    import ablation_report

    return ablation_report


def curve(accuracy, tokens, cpu, *, entropy=0.5, length=10.0):
    """A run of 20 steps, evaluated three times."""
    return {
        "points": {
            "step": [0, 10, 20],
            "tokens": tokens,
            "cpu": cpu,
            "accuracy": accuracy,
            "pass": [0.1, 0.2, 0.9],
            "length": [30.0, 20.0, length],
            "truncated": [0.5, 0.2, 0.1],
        },
        "steps": {
            "entropy": [9.0] * 15 + [entropy] * 5,
            "clip_high": [0.01] * 20,
            "kept": [0.5, None] * 10,
            "finished_length": [20.0] * 20,
            "trained_length": [18.0] * 20,
            "age": [0.0] * 20,
        },
        "cpu_seconds": 3.0,
        "commit": "abc",
    }


# ---------------------------------------------------------------------- rows


def algorithm(settings, ablation):
    recipe = ablation.recipe_of(ablation.TASKS["rare"], settings, 1, "builtin/signed-sum", "runs").recipe
    return recipe.algorithm


def test_a_step_of_the_ladder_switches_on_one_part_and_nothing_else(ablation):
    rows = {row: algorithm(settings, ablation).model_dump() for row, settings in ablation.TABLES["parts"].items()}
    ladder = list(rows)[:6]
    assert (ladder[0], ladder[-1]) == ("GRPO", "DAPO")
    for before, after in itertools.pairwise(ladder):
        changed = [key for key in rows[before] if rows[before][key] != rows[after][key]]
        assert len(changed) == 1, f"{before} -> {after}: {changed}"
    for row in list(rows)[6:]:
        assert len([key for key in rows[row] if rows[row][key] != rows["DAPO"][key]]) == 1, row
    assert len({str(row) for row in rows.values()}) == len(rows) == 10


def test_the_whole_is_the_preset_dapo_and_the_start_is_the_preset_grpo_with_rewards_of_one_and_minus_one(ablation):
    def preset(name):
        given = {
            "preset": name,
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum"}]},
            "algorithm": {"overlong_punishment": {"cache_length": 12}},
        }
        return recipe_from_dict(given).recipe.algorithm

    rows = ablation.TABLES["parts"]
    assert algorithm(rows["DAPO"], ablation) == preset("dapo")
    found, grpo = algorithm(rows["GRPO"], ablation), preset("grpo")
    assert found.clip == grpo.clip
    assert found.loss == grpo.loss
    assert found.dynamic_sampling.mode == grpo.dynamic_sampling.mode == "off"
    assert found.overlong_filtering is grpo.overlong_filtering is False
    assert found.overlong_punishment.enabled is grpo.overlong_punishment.enabled is False
    assert found.reward_scaling.enabled
    assert found.advantage == preset("dapo").advantage


def test_every_row_is_a_valid_recipe_with_a_file_of_its_own(ablation):
    names = set()
    for table, task in (("parts", "rambles"), ("variants", "mixed")):
        for row, settings in ablation.TABLES[table].items():
            recipe = ablation.recipe_of(ablation.TASKS[task], settings, 7, "builtin/signed-sum", "runs").recipe
            names.add(ablation.file_name(task, row, 7, recipe))
            assert len(recipe.data.validation) == len(recipe.data.train) == len(ablation.TASKS[task].sources)
    assert len(names) == 10 + 13


def test_a_file_is_one_of_settings_and_not_of_places(ablation, tmp_path):
    def name(task="rare", seed=1, model="here/base", folder="/a", **settings):
        path = tmp_path / model
        path.mkdir(parents=True, exist_ok=True)
        recipe = ablation.recipe_of(ablation.TASKS[task], settings, 1, str(path), folder).recipe
        return ablation.file_name(task, "DAPO", seed, recipe)

    assert name() == name(model="there/base", folder="/b")
    files = [name(), name(seed=2), name(**{"clip.high": 0.3}), name(task="rambles")]
    assert len({file.rpartition("-")[2] for file in files}) == 4


# ---------------------------------------------------------------------- what is kept of a run


def test_processor_seconds_of_evaluation_are_taken_off(ablation):
    rows = [
        {"step": 0, "time/step": 3.0, "time/evaluate": 3.0},
        {"step": 1, "time/step": 1.0},
        {"step": 2, "time/step": 4.0, "time/evaluate": 3.0},
    ]
    # of the first 8 processor seconds three quarters were the evaluation of the start, of the second 6 likewise
    assert ablation.learning_seconds(rows, [8.0, 6.0]) == pytest.approx({0: 0.0, 1: 2.0, 2: 3.5})
    rows[0]["validation/accuracy"], rows[2]["validation/accuracy"] = 0.25, 0.5
    rows[2] |= {"counters/generated_tokens": 900, "validation/pass@8": 0.75, "train/entropy": 0.1}
    kept = ablation.curve_of(rows, [8.0, 6.0])
    assert kept["points"]["step"] == [0, 2]
    assert kept["points"]["tokens"] == [0.0, 900]
    assert kept["points"]["accuracy"] == [0.25, 0.5]
    assert kept["points"]["cpu"] == pytest.approx([0.0, 3.5])
    assert kept["steps"]["entropy"] == [None, 0.1]
    assert ablation.curve_of(rows, None)["points"]["cpu"] is None


def test_runs_of_one_process_do_not_know_of_each_other(ablation, tmp_path, monkeypatch):
    make_tiny_model(tmp_path / "base", hidden=16, layers=1, heads=1, ffn=16, seed=3)
    small = dataclasses.replace(ablation.TASKS["rare"], prompts=2, minibatch=1, held_out=1, response=16, cache=8)
    monkeypatch.setitem(ablation.TASKS, "rare", small)
    settings = {"dynamic_sampling.mode": "off", "overlong_filtering": False}

    def run(number, row, settings):
        for shake in (random.seed, np.random.seed, torch.manual_seed):
            shake(number)
        job = ablation.Job("rare", row, settings, 5, str(tmp_path / "base"), 2, tmp_path, "", "", False, float("inf"))
        folder = tmp_path / str(number)
        found = ablation.train(job, str(folder))
        weights = (folder / "run" / "checkpoints").rglob("*.safetensors")
        return found["points"]["tokens"], found["points"]["length"], found["steps"], [f.read_bytes() for f in weights]

    first = run(1, "one", settings)
    other = run(2, "other", settings | {"clip.high": 0.01, "loss.reduction": "sequence_mean"})
    again = run(3, "one", settings)
    assert len(first[3]) >= 1
    assert first == again
    assert first[3] != other[3]


def test_a_finished_run_is_taken_from_its_file_unless_its_code_is_another(ablation, tmp_path):
    job = ablation.Job("rare", "DAPO", {}, 1, "base", 4, tmp_path / "one.json", "now", "c", False, 0.0)
    assert ablation.finished(job) is None
    assert ablation.run_all([job], 1, tmp_path) == []  # its time is over: nothing is begun
    job.file.write_text('{"code": "before"}')
    assert ablation.finished(job) is None
    assert ablation.finished(dataclasses.replace(job, keep=True)) == {"code": "before"}
    assert ablation.finished(dataclasses.replace(job, code="before")) == {"code": "before"}


# ---------------------------------------------------------------------- statistics


def test_an_interval_by_hand_and_what_it_shows(report):
    # four seeds, mean 2, standard error 0.5: t of 3 degrees is 3.18 at 95 % and 5.84 at 99 %
    spread = np.sqrt(0.75)
    found = report.effect(np.array([2 - spread, 2 - spread, 2 + spread, 2 + spread]))
    assert found["mean"] == pytest.approx(2.0)
    assert (found["low"], found["high"]) == pytest.approx((2 - 3.18 * 0.5, 2 + 3.18 * 0.5))
    assert not found["shown"]  # 5.84 x 0.5 is above 2, though the 95 % interval is clear of zero
    assert found["low"] > 0
    assert report.effect(np.array([2.9, 2.9, 3.1, 3.1]))["shown"]
    assert report.effect(np.array([-2.9, -2.9, -3.1, -3.1]))["shown"]
    assert not report.effect(np.array([3.0]))["shown"]
    assert not report.effect(np.array([2.99, 3.0, 3.01]))["shown"]  # too few
    assert report.effect(np.array([1.0, np.nan]))["mean"] is None


def test_accuracies_are_compared_at_what_the_least_reached(report):
    quick = curve([0.0, 0.4, 0.8], [0, 100, 200], [0.0, 1.0, 2.0])
    greedy = curve([0.0, 0.6, 1.0], [0, 400, 800], [0.0, 4.0, 8.0])
    budgets = report.budgets_of({"quick": quick, "greedy": greedy})
    assert budgets == {"steps": 20, "tokens": 200, "time": 2.0}
    found = report.measures(greedy, budgets)
    assert found["steps"] == 1.0
    assert found["tokens"] == pytest.approx(0.3)  # half way to its first evaluation
    assert found["time"] == pytest.approx(0.3)
    assert (found["pass"], found["truncated"], found["length"]) == (0.9, 0.1, 10.0)
    assert found["entropy"] == pytest.approx(0.5)  # of the last quarter
    assert found["kept"] == pytest.approx(0.5)
    assert found["length_bias"] == pytest.approx(0.9)
    elsewhere = curve([0.0, 0.5, 0.9], [0, 100, 200], None)
    budgets = report.budgets_of({"quick": quick, "elsewhere": elsewhere})
    assert budgets["time"] == 2.0
    assert np.isnan(report.measures(elsewhere, budgets)["time"])


def test_effects_are_paired_by_seed_and_of_complete_seeds(report, ablation):
    """Seeds that differ much from each other and little within each: only paired differences see it."""
    rows = {}
    for n, row in enumerate(ablation.TABLES["parts"]):
        rows[row] = {
            seed: curve([0, 0, seed / 10 + n / 100], [0, 1, 2], [0.0, 1.0, 2.0], entropy=n) for seed in (1, 2, 3, 4, 5)
        }
    del rows["GRPO"][5]
    whole = report.complete(rows)
    assert {tuple(seeds) for seeds in whole.values()} == {(1, 2, 3, 4)}
    effects = report.part_effects(report.measure_all(whole))
    for part in effects:
        one = effects[part]["ladder"]["steps"]
        assert one["mean"] == pytest.approx(0.01)
        assert one["high"] - one["low"] < 1e-6
        assert one["shown"]
        assert effects[part]["ladder"]["entropy"]["mean"] == pytest.approx(1.0)
    # DAPO is the sixth row, and the seventh to tenth are DAPO less one part
    less = [effects[part]["less"]["steps"]["mean"] for part in effects]
    assert less == pytest.approx([-0.01, -0.02, -0.03, -0.04, 0.01])


def test_results_figures_and_the_pages_table_are_written(report, ablation, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- ablation -->\nold\n<!-- end of ablation -->\nafter\n")
    rows = {
        row: {seed: curve([0.1, 0.2, 0.3 + n / 50 + seed / 1000], [0, 1, 2], [0, 1, 2]) for seed in (1, 2, 3, 4)}
        for n, row in enumerate(ablation.TABLES["parts"])
    }
    machine = {"packages": {}, "python": "", "cpu": "", "command": "c", "commit": "", "date": "", "cpu_hours": 1.0}
    report.write_results("parts", {"rare": rows, "mixed": {row: {} for row in rows}}, machine, tmp_path, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "a first part" in text  # four seeds of eight
    # the whole lies four points below its row in these made-up curves, and two above the row before it on the ladder
    table = (tmp_path / "ablation.md").read_text()
    assert "| clip-higher, less | **-4.0** [-4.0, -4.0] |" in table
    assert "| clip-higher, ladder | **+2.0** [+2.0, +2.0] |" in table
    assert "| clip-higher | **costs** |" in text
    assert "](../benchmarks/results/ablation.png)" in text
    assert "](ablation_clip_higher.png)" in table
    written = {file.name for file in tmp_path.iterdir()}
    assert {"ablation.json", "ablation.md", "ablation.png", "ablation_clip_higher.png"} <= written
    assert len([name for name in written if name.endswith(".png")]) == 6
    assert "mixed" not in (tmp_path / "ablation.json").read_text()
    with pytest.raises(ValueError, match="no place"):
        report.with_blocks("nothing", {"ablation": "x"})


def test_variants_are_compared_with_the_whole_where_they_have_the_seconds(report, ablation, tmp_path):
    rows = {
        row: {seed: curve([0.1, 0.2, 0.3 + (row == "GSPO") / 50], [0, 1, 2], [0, 1, 2]) for seed in (1, 2, 3, 4)}
        for row in ("DAPO", "GSPO")
    }
    rows["S = 2"] = {seed: curve([0.1, 0.2, 0.3], [0, 1, 2], None, length=9.0) for seed in (1, 2, 3, 4)}
    machine = {"packages": {}, "python": "", "cpu": "", "command": "c", "commit": "", "date": "", "cpu_hours": 1.0}
    report.write_results("variants", dict.fromkeys(report.TASKS, rows), machine, tmp_path, None)
    table = (tmp_path / "ablation_variants.md").read_text()
    assert "4 seeds: 1, 2, 3, 4." in table
    assert "| GSPO | **+2.0** [+2.0, +2.0] |" in table
    same = "+0.0 [+0.0, +0.0]"
    assert f"| S = 2 | {same} | {same} |  |" in table
    assert "**-1.0** [-1.0, -1.0]" in table
    assert (tmp_path / "ablation_variants.png").stat().st_size > 10_000
