"""The ablation benchmark: its rows, its arithmetic by hand, and that runs in one process know nothing of each other."""

from __future__ import annotations

import dataclasses
import itertools
import json
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
    rows = {row: algorithm(settings, ablation).model_dump() for row, settings in ablation.TABLES["parts"].rows.items()}
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

    rows = ablation.TABLES["parts"].rows
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
        for row, settings in ablation.TABLES[table].rows.items():
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


@pytest.mark.whole
def test_runs_of_one_process_do_not_know_of_each_other(ablation, tmp_path, monkeypatch):
    make_tiny_model(tmp_path / "base", hidden=16, layers=1, heads=1, ffn=16, seed=3)
    small = dataclasses.replace(ablation.TASKS["rare"], prompts=2, minibatch=1, held_out=1, response=16, cache=8)
    monkeypatch.setitem(ablation.EVERY_TASK, "rare", small)
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
    for n, row in enumerate(ablation.TABLES["parts"].rows):
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


@pytest.mark.whole
def test_results_figures_and_the_pages_table_are_written(report, ablation, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- ablation -->\nearlier\n<!-- end of ablation -->\nafter\n")
    rows = {
        row: {seed: curve([0.1, 0.2, 0.3 + n / 50 + seed / 1000], [0, 1, 2], [0, 1, 2]) for seed in (1, 2, 3, 4)}
        for n, row in enumerate(ablation.TABLES["parts"].rows)
    }
    machine = {"packages": {}, "python": "", "cpu": "", "command": "c", "commit": "k", "date": "", "cpu_hours": 1.0}
    repeated = tmp_path / "ablation.json"  # as if other seeds had given the same
    monkeypatch.setattr(report, "published", lambda name: json.loads(repeated.read_text()))
    report.write_results("parts", {"rare": rows, "mixed": {row: {} for row in rows}}, machine, tmp_path, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "earlier" not in text
    assert "4 seeds a task of commit k, and 4 seeds a task of commit k" in text
    # the whole lies four points below its row in these made-up curves, and two above the row before it on the ladder
    table = (tmp_path / "ablation.md").read_text()
    assert "| clip-higher, less | **-4.0** [-4.0, -4.0] |" in table
    assert "| clip-higher, ladder | **+2.0** [+2.0, +2.0] |" in table
    assert "| clip-higher | **costs** |" in text
    assert "](ablation_clip_higher.png)" in table
    written = {file.name for file in tmp_path.iterdir()}
    assert {"ablation.json", "ablation.md", "ablation.png", "ablation_clip_higher.png"} <= written
    assert len([name for name in written if name.endswith(".png")]) == 6
    assert "mixed" not in (tmp_path / "ablation.json").read_text()
    with pytest.raises(ValueError, match="no place"):
        report.with_blocks("nothing", {"ablation": "x"})


def test_the_page_calls_shown_what_both_tables_show_with_one_sign(report):
    def table(*means):
        def value(mean):
            return {"mean": mean, "low": mean - 1, "high": mean + 1, "shown": abs(mean) > 1}

        parts = zip(report.PARTS, means, strict=True)
        effects = {part: {"less": {"steps": value(mean), "tokens": value(0.0)}} for part, mean in parts}
        return {"machine": {"commit": "k"}, "tasks": {"rare": {"seeds": [1, 2, 3, 4], "effects": effects}}}

    text = report.page_blocks(table(3, 3, -3, 0.5, 3), table(2, -2, -0.5, 0.5, 0.5))["ablation"]
    cells = [line.split(" | ")[1].removesuffix(" |") for line in text.splitlines()[4:]]
    assert cells == [
        "**helps** (steps), not shown (tokens)",
        "not shown",  # the opposite
        "costs *once* (steps), not shown (tokens)",
        "not shown",
        "helps *once* (steps), not shown (tokens)",
    ]


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


# ---------------------------------------------------------------------- parts where they act


@pytest.fixture
def focused(ablation):
    import ablation_focused

    return ablation_focused


def test_each_focused_row_is_a_valid_recipe_that_differs_in_what_its_table_is_about(ablation, focused):
    """A row that changed two things would say nothing about either."""
    varied = {
        "clip_higher": {"algorithm.clip.high"},
        "coin": {"algorithm.clip.high"},
        "passes": {"learner.epochs_per_rollout", "learner.minibatch_prompts"},
        "token_level": {
            "algorithm.loss.reduction.kind",
            "algorithm.overlong_filtering",
            "algorithm.overlong_punishment.enabled",
        },
    }

    def settings_of(task, row):
        loaded = ablation.recipe_of(task, row, 1, "builtin/signed-sum", "runs")
        flat = {}

        def walk(found, path):
            for key, value in found.items():
                walk(value, f"{path}{key}.") if isinstance(value, dict) else flat.update({path + key: str(value)})

        walk(loaded.recipe.model_dump(mode="json"), "")
        return flat

    for name, table in focused.FOCUSED.items():
        for task in table.tasks.values():
            rows = [settings_of(task, row) for row in table.rows.values()]
            changed = {key for one in rows for other in rows for key in one if one[key] != other.get(key)}
            assert changed == varied[name], (name, task.title)
        for pair in table.pairs:
            assert set(pair) <= set(table.rows), name


def test_seeds_of_the_tables_are_apart_and_none_is_one_of_the_trials(ablation):
    tables = [table for name, table in ablation.TABLES.items() if name != "variants"]  # has those of parts
    seen = [set(seeds) for table in tables for seeds in (table.seeds, table.again)]
    assert len(set.union(*seen)) == sum(map(len, seen))
    assert min(set.union(*seen)) > 100


def test_demonstrations_of_the_rare_worker_by_hand(ablation):
    from ablation_bases import AnyOrder, RarelyWorks, any_order, rarely_works, worked

    from dapo.data.signed_sum import SignedSum

    never = random.Random(1)
    assert worked(4, (7, -8), 0.0, never) == ["+7", "=11", "-8", "=3"]
    assert worked(4, (7, -8), 1.0, never) == ["+7", "=11", "-8", "=19"]
    assert worked(4, (-8,), 0.0, never) == ["-8", "=12"]  # there is no word for -4
    problem = SignedSum((4, 7, -8))
    base = RarelyWorks(1, examples=100, worked_first=0.5, worked_later=0.0, misread=0.0, known=1.0)
    assert rarely_works(base, 49, problem, never) == ["+7", "=11", "-8", "=3"]
    assert rarely_works(base, 50, problem, never) == ["=3"]
    orders = {" ".join(any_order(AnyOrder(1, misread=0.0), 0, problem, random.Random(n))) for n in range(20)}
    assert orders == {"+7 =11 -8 =3", "-8 =12 +7 =19"}


def test_the_scorers_see_working_and_a_coin_sees_nothing(ablation):
    from types import SimpleNamespace

    from ablation_scorers import Coin, Worked

    from dapo.types.batch import Key

    context = SimpleNamespace(recipe=SimpleNamespace(run=SimpleNamespace(seed=3)))
    prompt = SimpleNamespace(answer="3")

    def judged(scorer, text, sample=0, group=0):
        scorer.submit(Key("train", group, sample), prompt, SimpleNamespace(text=text))
        ((_, score),) = scorer.poll()
        return score

    values = {text: judged(Worked(context), text) for text in ("+7 =11 -8 =3", "=3", "=4", "", "+7 =11 -8")}
    assert [score.values["worked"] for score in values.values()] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert [score.reward for score in values.values()] == [1.0, 1.0, 0.0, 0.0, 0.0]
    tossed = [judged(Coin(context), "=3", sample, group).reward for group in range(100) for sample in range(8)]
    again = [judged(Coin(context), "=4", sample, group).reward for group in range(100) for sample in range(8)]
    assert tossed == again
    assert set(tossed) == {0.0, 1.0}
    assert abs(np.mean(tossed) - 0.5) < 0.06  # 3.4 standard errors
    other = Coin(SimpleNamespace(recipe=SimpleNamespace(run=SimpleNamespace(seed=4))))
    assert [judged(other, "=3", sample).reward for sample in range(64)] != tossed[:64]
    assert judged(other, "=4").accuracy == 0.0


def test_focused_measures_are_paired_within_a_base_model_and_then_taken_together(ablation, focused, tmp_path):
    import ablation_focused_report as focused_report

    def run(early, tokens=1000):
        return {
            "points": {
                "step": [0, 20],
                "tokens": [0, tokens],
                "accuracy": [0.0, 0.5],
                "length": [3.0, 9.0],
                "cpu": [0.0, 2.0],
            },
            "steps": {
                "training_accuracy": [early] * 8 + [0.9] * 12,
                "worked": [0.1] * 20,
                "clip_high": [0.02] * 8 + [None] * 12,
                "entropy": [0.4] * 20,
                "finished_length": [3.0] * 20,
            },
        }

    def rows(shift):
        return {
            row: {
                seed: run(shift + seed / 100 + (0.02 + seed * 1e-4) * (row == "0.28")) for seed in (301, 302, 303, 304)
            }
            for row in focused.CLIP_HIGHER.rows
        }

    found = {"rarely-works-1": rows(-2.9), "rarely-works-2": rows(-2.7)}
    machine = {"packages": {}, "python": "", "cpu": "", "command": "c", "commit": "k", "date": "", "cpu_hours": 1.0}
    page = tmp_path / "page.md"
    page.write_text("<!-- clip_higher -->\n<!-- end of clip_higher -->\n")
    focused_report.write_focused("clip_higher", focused.CLIP_HIGHER, found, machine, tmp_path, page)
    table = (tmp_path / "focused_clip_higher.md").read_text()
    assert "## All base models" in table
    assert "8 pairs of base model and seed." in table
    # base models and seeds differ by 20 points and 1, the rows of a seed by 2 + 3.0 on average
    assert table.count("| 0.28 less 0.2 | **+5.0** [") == 3
    assert "| 10 less 0.2 | +0.0 [+0.0, +0.0] |" in table
    assert (tmp_path / "focused_clip_higher.png").stat().st_size > 10_000
    said = page.read_text()
    assert "8 pairs, commit k" in said
    assert "| 0.28 less 0.2 | **+5.0** [" in said
    assert "| 0.28 | " in said
    focused_report.write_focused(
        "clip_higher", focused.CLIP_HIGHER, {"rarely-works-1": {"0.2": {}}}, machine, tmp_path, page
    )
    assert page.read_text() == said  # no seed is complete: nothing is written


def test_no_table_writes_over_the_files_of_another(ablation, report):
    written = ["ablation.md", "ablation_variants.md", *report.FIGURES.values()]
    written += [f"focused_{name}.{kind}" for name in ablation.FOCUSED for kind in ("md", "png")]
    assert len(set(written)) == len(written)


def test_accuracy_at_a_share_of_the_least_tokens_by_hand(focused):
    one = curve([0.0, 0.4, 0.8], [0, 100, 200], [0.0, 1.0, 2.0])
    assert focused.at_tokens(0.5)(one, 100.0) == pytest.approx(0.2)
    assert focused.at_tokens(1.0)(one, 150.0) == pytest.approx(0.6)
    assert focused.at_step("accuracy", 10)(one, 0.0) == 0.4
    assert focused.over_steps("kept", 1, 4)(one, 0.0) == 0.5  # steps that recorded nothing do not count


# ---------------------------------------------------------------------- commits


def test_results_are_published_from_committed_code_alone(ablation, tmp_path, monkeypatch):
    import subprocess

    import machine

    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=tmp_path, check=True)

    for name in ("HERE", "RESULTS"):
        below = "benchmarks" if name == "HERE" else "benchmarks/results"
        monkeypatch.setattr(machine, name, tmp_path / below)
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "dapo").mkdir()
    published = tmp_path / "benchmarks/results/x.json"
    with pytest.raises(SystemExit, match="no git checkout"):
        machine.refuse_changes(published)
    git("init", "-q")
    (tmp_path / "dapo/a.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    machine._commit_at_first.cache_clear()  # as a process that is started now
    machine.refuse_changes(published)
    commit = machine.describe_machine()["commit"]
    assert len(commit) >= 7
    assert "dirty" not in commit
    published.write_text("results do not count")
    machine.refuse_changes(published)
    (tmp_path / "dapo/b.py").write_text("a new file does")
    with pytest.raises(SystemExit, match=r"dapo/b.py.*commit them"):
        machine.refuse_changes(published)
    machine.refuse_changes(tmp_path / "elsewhere.json")
    assert machine.describe_machine()["commit"] == commit + "-dirty"


def test_a_repetition_is_held_against_what_the_first_seeds_showed(focused):
    import ablation_focused_report as focused_report

    def report(**means):
        shown = {key: {"mean": m, "low": m - 1, "high": m + 1, "shown": abs(m) > 2} for key, m in means.items()}
        return {"tasks": {"coin": {"differences": {"0.28 less 0.2": shown}}}}

    first = report(entropy=3.0, start=-4.0, clip_high=5.0, length=-6.0, accuracy=1.0)
    again = report(entropy=2.5, start=-1.0, clip_high=-0.5, length=7.0, accuracy=9.0)
    said = "\n".join(focused_report.shown_again(focused.COIN, first, again))
    assert "1 of 4 differences" in said
    verdicts = [line.rsplit("|", 2)[1].strip() for line in said.splitlines()[6:]]
    assert verdicts == ["shown again", "same sign, not shown", "the sign is another", "the opposite is shown"]
    assert "accuracy" not in said  # the first seeds did not show it


def test_a_repetition_of_the_parts_names_task_part_and_measure_and_leaves_out_rows_that_it_has_not(report):
    def effects(**shown):
        return {
            key: {"mean": shown.get(key, 0.01), "low": 0.0, "high": 0.02, "shown": key in shown}
            for key in report.COLUMNS
        }

    first = {"tasks": {
        "rare": {"effects": {"dynamic sampling": {"ladder": effects(steps=0.05), "less": effects(steps=0.05)}}},
        "mixed": {"effects": {"clip-higher": {"ladder": effects(length=-3.0), "less": effects()}}},
    }}  # fmt: skip
    again = {"tasks": {"rare": {"effects": {"dynamic sampling": {"less": effects(steps=0.04)}}}}}
    lines = report.beside_the_first(*map(report.differences_by_name, (first, again)), report.COLUMNS)
    assert lines[2] == "1 of 1 differences that the first seeds showed are shown again."
    (row,) = lines[6:]
    assert row == (
        "| Rare success: dynamic sampling, less | at equal steps, % | **+5.0** [+0.0, +2.0] | **+4.0** [+0.0, +2.0] "
        "| shown again |"
    )
