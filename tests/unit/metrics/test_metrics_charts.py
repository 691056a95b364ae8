"""The table of charts: its keys are the glossary's, and a run's charts follow from the metrics that it has."""

from __future__ import annotations

import re
from pathlib import Path

import dapo.report.page as page
from dapo.metrics.charts import charts_of, table
from dapo.metrics.glossary import GLOSSARY


def lines(chart):
    return [(series["key"], series["label"]) for series in chart["series"]]


def test_the_table_names_lines_of_the_glossary_and_colours_of_the_page():
    css = (Path(page.ASSETS) / "base.css").read_text()
    every = [series for entry in table() for series in entry["series"]]
    keys = {series[end] for series in every for end in ("key", "low", "high") if end in series}
    assert keys - GLOSSARY.keys() == set()
    assert {one[mark] for one in table() for mark in ("needs", "unless") if mark in one} - GLOSSARY.keys() == set()
    colours = {series["colour"] for series in every if "colour" in series}
    assert colours <= set(re.findall(r"(--\w+):", css))
    units = {entry["id"]: {GLOSSARY[series["key"]].unit for series in entry["series"]} - {"1"} for entry in table()}
    assert [name for name, found in units.items() if len(found) > 1] == []


def test_one_data_set_shares_the_charts_of_all_and_several_have_their_own():
    keys = [
        f"validation/{of}{name}" for of in ("", "a/", "b/c/") for name in ("accuracy", "pass@8", "pass@16", "pass@1")
    ]
    one = charts_of([key for key in keys if "b/c" not in key])
    assert [(chart["id"], chart["title"]) for chart in one] == [
        ("validation/accuracy", "Held-out accuracy"),
        ("validation/pass", "pass@k and maj@k"),
    ]
    assert lines(one[1]) == [("validation/pass@8", "pass@8"), ("validation/pass@16", "pass@16")]
    several = charts_of(keys)
    assert [chart["title"] for chart in several] == [
        *("Held-out accuracy · mean of the sets", "pass@k and maj@k · mean of the sets"),
        *("Held-out accuracy · a", "pass@k and maj@k · a", "Held-out accuracy · b/c", "pass@k and maj@k · b/c"),
    ]
    assert several[4]["series"][0]["low"] == "validation/b/c/accuracy_low"
    assert lines(several[5]) == [("validation/b/c/pass@8", "pass@8"), ("validation/b/c/pass@16", "pass@16")]


def test_names_of_a_run_make_charts_and_lines():
    found = charts_of(
        ["reward/format", "reward/format_kept", "source/x/accuracy", "source/y z/accuracy", "reward/unscored/timeout"]
    )
    assert [(chart["id"], lines(chart)) for chart in found] == [
        ("reward/format", [("reward/format", "raw"), ("reward/format_kept", "kept")]),
        ("unscored", [("reward/unscored", "all"), ("reward/unscored/timeout", "timeout")]),
        ("source-accuracy", [("source/x/accuracy", "x"), ("source/y z/accuracy", "y z")]),
    ]


def test_a_metric_without_an_entry_has_a_chart_of_its_own_by_its_unit():
    found = charts_of(["train/packed_tokens", "someone/else's", "train/ratio_max", "train/ratio_mean"])
    assert [(chart["id"], chart["section"], chart["unit"], lines(chart)) for chart in found] == [
        ("ratio", "health", "1", [("train/ratio_mean", "mean")]),  # its band is named, and no chart of its own
        ("other/train/packed_tokens", "other", "tokens", [("train/packed_tokens", "train/packed_tokens")]),
        ("other/someone/else's", "other", "1", [("someone/else's", "someone/else's")]),
    ]


def test_a_loss_stands_beside_its_held_out_one():
    assert [chart["id"] for chart in charts_of(["train/loss"])] == ["loss"]
    assert [chart["id"] for chart in charts_of(["train/loss", "validation/loss"])] == ["validation/loss"]
    assert charts_of([]) == []


def test_a_hostile_key_is_a_text_like_any_other():
    keys = ["validation/accuracy", f"validation/pass@{'9' * 5000}", "custom/<set>", "__proto__"]
    assert {series["key"] for chart in charts_of(keys) for series in chart["series"]} >= set(keys)


def test_the_longest_response_does_not_flatten_the_band_of_the_others():
    keys = ["response/length_p10", "response/length_p50", "response/length_p90", "response/length_mean"]
    charts = [[one["key"] for one in chart["series"]] for chart in charts_of([*keys, "response/length_max"])]
    assert ["response/length_p50", "response/length_mean"] in charts
    assert ["response/length_max"] in charts
