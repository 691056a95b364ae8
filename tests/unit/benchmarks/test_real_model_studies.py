"""Studies on the real model: the table's arithmetic by hand, and that the table names what there is."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dapo.config.load import load_recipe

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
STUDY = {
    "arms": ["a", "b"],
    "differences": [["a", "b"]],
    "claims": ["accuracy at equal tokens"],
    "beside": ["given up"],
}


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_model_report

    return real_model_report


@pytest.fixture
def script(report):
    import real_model

    return real_model


def run(arm, seed, tokens, accuracy, right=((2, 0, 1, 0), (0, 0, 3, 0))):
    evaluations = [
        {"step": 4 * n, "tokens": t, "seconds": t, "accuracy": a, "right": list(r)}
        for n, (t, a, r) in enumerate(zip(tokens, accuracy, right, strict=True))
    ]
    steps = {"entropy": [0.4, 0.2, None, 0.1], "tokens": tokens}
    kinds = ["sums", "differences", "sums", "sums"]
    return {
        "arm": arm,
        "seed": seed,
        "commit": arm * 8,
        "state": "finished",
        "kinds": kinds,
        "settings": {"trainer.steps": 4},
        "evaluations": evaluations,
        "steps": steps,
    }


def test_an_interval_is_students_at_99_percent_and_needs_four_seeds(report):
    wide = report.interval([1.0, 2.0, 3.0, 6.0])  # deviation sqrt(14 / 3), over sqrt(4), times 5.841: 6.309
    assert (wide["mean"], round(wide["low"], 3), round(wide["high"], 3), wide["shown"]) == (3.0, -3.309, 9.309, False)
    assert report.interval([-2.0, -2.1, -1.9, -2.0])["shown"]  # half of it: 0.238
    assert not report.interval([2.0, 2.0, 2.0])["shown"]
    assert report.interval([2.0])["low"] is None


def test_arms_are_compared_where_the_least_one_came_to_and_a_seed_without_an_arm_is_left_out(report):
    runs = [
        run("a", 1, [0, 100], [0.2, 0.6]),
        run("b", 1, [0, 200], [0.2, 0.4]),  # 0.3 at 100 tokens
        run("a", 2, [0, 100], [0.1, 0.5]),
        run("b", 2, [0, 50], [0.1, 0.4]),  # a: 0.3 at 50 tokens
        run("a", 3, [0, 100], [0.0, 1.0]),
    ]
    found = report.compare(STUDY, runs)
    assert found["seeds"] == [1, 2] == found["mixed"]
    (difference,) = found["differences"]
    claim = difference["claims"]["accuracy at equal tokens"]
    assert claim["seeds"] == pytest.approx([0.3, -0.1])
    assert claim["mean"] == pytest.approx(0.1)
    assert found["arms"]["a"]["given up"] == [1.0, 1.0]


def test_pages_mark_what_claims_show_and_no_other_measure_and_name_their_pictures(report, script, tmp_path):
    study = STUDY | {"claims": ["accuracy at equal tokens"], "beside": ["accuracy"], "note": "Planned late."}
    runs = [run(arm, n, [0, 100], [0.2, end + n / 1000]) for n in range(4) for arm, end in (("a", 0.7), ("b", 0.4))]
    for one in runs[2:]:  # the others have no entropy in step 3
        one["steps"]["entropy"] = [0.4, 0.2, 0.3, 0.1]
    found = {"a-b study": {"first": report.compare(study, runs)}}
    about = {"trial": None, "machine": script.describe_machine(), "arms": {"a": {"x": 1e6}, "b": {"x": "off"}}}
    report.write({**about, "runs": 8, "planned": 8, "studies": found}, runs, tmp_path, "name")
    text = (tmp_path / "name.md").read_text()
    assert "| a less b | **+30.0** [+30.0, +30.0] | +30.0 [+30.0, +30.0] |" in text
    assert "| a | 0.400 | 0.100 |" in text
    assert "Planned late." in text
    assert "| a | `x=1e+06` |" in text
    assert "](name_a_b_study.png)" in text
    assert (tmp_path / "name_a_b_study.png").stat().st_size > 0


def test_means_and_counts_of_a_run(report):
    one, budgets = run("a", 1, [0, 100], [0.2, 0.6]), {"step": 4}
    assert report.mean_of("entropy", 1, 2).of(one, budgets) == pytest.approx(0.3)
    assert report.mean_of("entropy", None, None).of(one, budgets) == pytest.approx(0.7 / 3)  # step 3 has none
    assert report.mean_of("entropy", None, None).of(one, {"step": 1}) == 0.4
    assert [report.given_up(kind).of(one, budgets) for kind in (None, "sums", "differences")] == [1, 1, 0]


def test_shown_twice_needs_the_same_sign(report):
    def listed(mean, shown):
        return {"differences": [{"arms": ["a", "b"], "claims": {"x": {"mean": mean, "shown": shown}}}]}

    assert report.shown_twice(listed(1.0, True), listed(2.0, True)) == ["x of a less b"]
    assert report.shown_twice(listed(1.0, True), listed(-2.0, True)) == []
    assert report.shown_twice(listed(1.0, True), listed(2.0, False)) == []


def test_the_table_names_recipes_and_measures(script, report, tmp_path):
    table = yaml.safe_load(script.TABLE.read_text())
    assert not set(table["seeds"]["first"]) & set(table["seeds"]["again"])
    for name, study in table["studies"].items():
        assert {*study["claims"], *study["beside"]} <= set(report.MEASURES)
        assert {arm for pair in study["differences"] for arm in pair} <= set(study["arms"])
        jobs = script.jobs_of(table, name, "first", tmp_path, None)
        arms = len(study["arms"])
        assert [len({job.seed for job in jobs[n : n + arms]}) for n in range(0, len(jobs), arms)] == [1] * (
            len(jobs) // arms
        )
        for job in jobs[:arms]:
            recipe = load_recipe("sums_smollm2", job.overrides()).recipe
            assert recipe.trainer.steps == job.settings["trainer.steps"]


def test_a_run_of_other_settings_is_refused(script, tmp_path):
    job = script.Job("bound 0.2", 1, {"trainer.steps": 24}, tmp_path)
    assert job.finished() is None
    job.file.write_text('{"settings": {"trainer.steps": 12}}')
    with pytest.raises(SystemExit, match="other settings"):
        job.finished()


def test_runs_of_the_published_file_are_not_made_again(script, report, monkeypatch, tmp_path):
    first, second = run("a", 1, [0, 100], [0.2, 0.6]), run("b", 1, [0, 200], [0.2, 0.4])
    counts = {"runs": 2, "planned": 4}
    written = {"trial": None, "machine": script.describe_machine(), "arms": {}, **counts, "studies": {}}
    report.write(written, [first, second], tmp_path, script.NAME)
    work = tmp_path / "work"
    script.unpack(tmp_path / "real_model.json", work)
    jobs = [script.Job(one["arm"], 1, one["settings"], work) for one in (first, second)]
    assert [job.finished() for job in jobs] == [first, second]
    made = []
    monkeypatch.setattr(script, "make_ours", lambda job, options: made.append(job.name))
    script.make_all(jobs, None, float("inf"))
    assert made == []


def test_a_process_waits_for_the_run_that_another_makes(script, monkeypatch, tmp_path):
    jobs = [script.Job("a", seed, {}, tmp_path) for seed in (1, 2)]
    monkeypatch.setattr(script, "git_state", lambda folder: ("", False))
    begun, go_on = threading.Event(), threading.Event()

    def make(job, options):
        begun.set()
        assert job.seed == 2 or go_on.wait(30)
        return {**run("a", job.seed, [0, 1], [0.0, 1.0]), "settings": {}, "made by": threading.current_thread().name}

    monkeypatch.setattr(script, "make_ours", make)
    options, ended = SimpleNamespace(trial=None), []
    first = threading.Thread(target=script.make_all, args=(jobs[:1], options, float("inf")), name="first")

    def another():
        script.make_all(jobs, options, float("inf"))
        ended.append([job.finished()["made by"] for job in jobs])

    second = threading.Thread(target=another, name="second")
    first.start()
    assert begun.wait(30)
    second.start()
    while not jobs[1].finished():
        second.join(0.01)
    assert not ended
    assert not jobs[0].finished()
    go_on.set()
    first.join(30), second.join(30)
    assert ended == [["first", "second"]]
