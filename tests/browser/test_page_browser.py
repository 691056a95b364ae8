"""The report in a real browser: the outcome, charts with the right numbers, colours, width, keyboard."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from page_samples import STEPS, Seen, sample_bundle, sample_run, training_accuracy

pytestmark = pytest.mark.browser
Show = Callable[..., Seen]

ROWS = """name => {
  const chart = window.dapoPage.charts().find(one => one.spec.id === name);
  const drawn = chart && chart.drawing.data.length;
  return chart && chart.rows.map(({label, values, low, high, colour, dash, marker}) =>
    ({label, values, low, high, colour, dash: dash.join(), marker, drawn}));
}"""


def test_the_first_screen_says_what_happened(show: Show) -> None:
    page = show().page
    assert page.title() == "sample · dapo"
    assert page.locator("h1").inner_text() == "sample"
    assert page.locator("#top .badge").inner_text().endswith("finished")
    lead = page.locator("#outcome .lead")
    assert lead.inner_text() == "It learned: held-out accuracy rose from 40 % to 80 %."
    box = lead.bounding_box()
    assert box is not None
    assert box["y"] < 900
    tiles = page.locator("#outcome .tile")
    assert tiles.count() == 2
    assert tiles.first.inner_text().replace("\xa0", " ").split("\n")[-2:] == [
        "40.0 % -> 80.0 %",
        "95 % interval 75 to 85",
    ]


def test_charts_hold_the_numbers_of_the_run(show: Show) -> None:
    seen = show()
    (raw, kept) = seen.js(ROWS, "training-accuracy")
    assert raw["values"] == [None] + [pytest.approx(training_accuracy(step)) for step in range(1, STEPS + 1)]
    assert kept["values"][1:] == [0.5] * STEPS
    assert raw["drawn"] == 1 + 3 * 2  # x, then low, high and value of each line
    (sampled, greedy) = seen.js(ROWS, "validation/accuracy")
    assert [sampled[name][10] for name in ("low", "values", "high")] == [pytest.approx(v) for v in (0.55, 0.6, 0.65)]
    assert greedy["values"][20] == pytest.approx(0.9)
    legend = seen.chart("validation/accuracy").locator(".legend").inner_text()
    assert "80.0% (75.0% to 85.0%)" in legend
    painted = seen.js("""() => { const c = document.querySelector('#charts canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n += 1; return n; }""")
    assert painted > 1000


def test_a_stack_draws_running_sums_and_names_single_values(show: Show) -> None:
    seen = show()
    drawn = seen.js(
        "() => window.dapoPage.charts().find(one => one.spec.id === 'acceptance').drawing.data.map(c => c[10])"
    )
    assert [drawn[3], drawn[6], drawn[9]] == [pytest.approx(v) for v in (0.6, 0.8, 1.0)]
    assert [row["values"][10] for row in seen.js(ROWS, "acceptance")] == [pytest.approx(v) for v in (0.6, 0.2, 0.2)]


def test_charts_without_data_are_not_shown(show: Show) -> None:
    seen = show()
    assert seen.chart("entropy").count() == 1
    for absent in ("gap", "penalty", "memoryless", "unscored"):
        assert seen.chart(absent).count() == 0
    seen.page.locator('[data-fold="clip"] .foldhead').click()
    labels = [row["label"] for row in seen.js(ROWS, "clip")]
    assert labels == ["low", "high"]  # dual is zero throughout: nothing to see


def test_a_chart_is_also_a_table_and_a_sentence(show: Show) -> None:
    seen = show()
    chart = seen.chart("entropy")
    spoken = chart.locator("[role=img]").get_attribute("aria-label")
    assert "first 0.48 at step 1, last 0.1 at step 20, least 0.1, greatest 0.48" in spoken
    chart.get_by_role("button", name="Table").click()
    rows = chart.locator("table tbody tr")
    assert rows.count() == STEPS
    assert rows.nth(4).inner_text().split() == ["5", "0.4"]
    assert chart.locator(".plot").is_hidden()
    chart.get_by_role("button", name="Table").click()
    assert chart.locator(".plot").is_visible()


def test_a_chart_explains_its_numbers_from_the_glossary(show: Show) -> None:
    chart = show().chart("entropy")
    meaning = chart.locator("details.meaning")
    meaning.locator("summary").focus()
    meaning.locator("summary").press("Enter")
    assert "Mean entropy of the policy" in meaning.inner_text()


def test_six_charts_are_drawn_and_all_others_are_folded_to_a_value(show: Show) -> None:
    seen = show()
    drawn = [one.get_attribute("data-chart") for one in seen.page.locator("#charts figure").all()]
    assert drawn == ["validation/accuracy", "training-accuracy", "acceptance", "entropy"]
    assert seen.page.locator("#numbers figure").count() == 0
    memory = seen.page.locator('[data-fold="memory"]')
    assert memory.inner_text().split("\n") == ["Memory", "520 MiB"]
    assert memory.locator("svg path").get_attribute("d").count("L") == STEPS - 1
    memory.get_by_role("button").click()
    assert seen.chart("memory").is_visible()
    memory.locator(".foldhead").click()
    assert seen.chart("memory").count() == 0
    ids = [one.get_attribute("data-fold") for one in seen.page.locator(".fold").all()]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(drawn)


def test_a_run_of_several_processes_has_a_row_for_each(show: Show) -> None:
    def process(name: str, role: str, alive: bool = True, restarts: int = 0) -> Any:
        return {
            "name": name, "role": role, "machine": "node<1>", "process": 7, "alive": alive, "restarts": restarts,
            "last_turn": 1.8e9 + 57, "turn_seconds": 1.5, "memory_mib": 512.0,
        }  # fmt: skip

    assert show().page.locator("#cluster").is_hidden()
    run = sample_run(processes=[process("driver", "driver"), process("engine-0", "engine", alive=False, restarts=20)])
    run["curves"]["values"]["cluster/engine_losses"] = [None, *([1.0] * STEPS)]
    page = show(sample_bundle(run), width=420).page
    rows = [row.split("\t") for row in page.locator("#cluster tbody tr").all_inner_texts()]
    assert rows[1] == ["engine-0", "engine", "node<1>", "✗ not at work", "20", "1.5 s", "3 s before", "512 MiB"]
    said = page.locator("#cluster .facts").inner_text()
    assert "1 not at work, engines were lost 20 times in the run (steps 1, 2, 3, 4, 5, 6, 7, 8 and later)." in said
    assert page.locator('#top nav a[href="#cluster"]').is_visible()


def test_only_a_run_that_learned_has_the_colour_of_success(show: Show) -> None:
    assert show().page.locator("#top .badge.good, .progress.good").count() == 2
    flat = [{**tile, "tone": ""} for tile in sample_run()["tiles"]]
    page = show(sample_bundle(sample_run(tiles=flat))).page
    assert page.locator('#top .badge[data-state="finished"]').count() == 1
    assert page.locator(".badge.good, .progress.good, .tile.good").count() == 0


def test_compared_recipes_have_a_sentence_each_and_a_table_without_broken_words(show: Show) -> None:
    def line(name: str, run: str, said: str, tone: str) -> Any:
        return {"family": run, "name": name, "runs": [run], "said": said, "tone": tone}

    runs = [sample_run(f"a-run-with-a-long-name-{i}", shift=i / 100, family=f"f{i}") for i in range(4)]
    said = [
        line("learner.learning_rate=1e-05", "f0", "held-out accuracy 80.5% <b>", ""),
        line("x=2", "f1", "+3", "good"),
    ]
    for width in (1280, 420):
        page = show(sample_bundle(*runs, families=said), width=width).page
        items = page.locator("#outcome .families li")
        assert items.all_inner_texts() == ["learner.learning_rate=1e-05: held-out accuracy 80.5% <b>", "x=2: +3"]
        assert items.nth(1).get_attribute("class") == "good"
        heights = page.locator(".compare tbody tr").evaluate_all("rows => rows.map(row => row.offsetHeight)")
        assert max(heights) < 50
        second = page.locator(".compare tbody tr").first.locator("td").nth(1).bounding_box()
        assert second["x"] + second["width"] <= width  # in view without a scroll
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        plots = page.evaluate(
            "[...document.querySelectorAll('#charts figure')].map(one =>"
            " [one.querySelector('.legend').offsetHeight, one.querySelector('.plot').offsetHeight])"
        )
        assert all(legend <= plot for legend, plot in plots)


def test_arrow_keys_read_a_chart(show: Show) -> None:
    seen = show()
    chart = seen.chart("entropy")
    chart.locator(".plot").focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        seen.page.keyboard.press(key)
    assert chart.locator("[aria-live]").inner_text() == "Step 2: entropy 0.46"
    assert "0.46" in chart.locator(".legend").inner_text()


def test_a_stretch_of_steps_is_zoomed_in_all_charts(show: Show) -> None:
    seen = show()
    box = seen.page.locator("#charts").get_by_label("Steps from")
    box.fill("5")
    box.press("Enter")
    seen.page.locator("#charts").get_by_label("to", exact=True).fill("12")
    seen.page.locator("#charts").get_by_label("to", exact=True).press("Enter")
    scales = seen.js("() => window.dapoPage.charts().map(one => [one.drawing.scales.x.min, one.drawing.scales.x.max])")
    assert len(scales) == 4
    assert {tuple(scale) for scale in scales} == {(5, 12)}
    seen.page.locator("#charts").get_by_role("button", name="All steps").click()
    assert seen.js("() => window.dapoPage.charts()[0].drawing.scales.x.max") == STEPS


def test_a_line_can_be_hidden(show: Show) -> None:
    seen = show()
    button = seen.chart("training-accuracy").locator(".legend button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    data = "() => window.dapoPage.charts().find(one => one.spec.id === 'training-accuracy').drawing.data[3]"
    assert set(seen.js(data)) == {None}
    button.click()
    assert seen.js(data)[20] == pytest.approx(0.7)


def test_a_warning_says_what_to_do_and_leads_to_its_charts(show: Show) -> None:
    seen = show()
    card = seen.page.locator("#warnings .one")
    assert "Raise algorithm.clip.high." in card.inner_text()
    assert seen.page.locator('#top nav a[href="#warnings"] .count').inner_text().strip() == "1"
    card.get_by_role("button", name="Tokens clipped").click()
    assert seen.js("() => document.activeElement.closest('figure').dataset.chart") == "clip"


def test_several_runs_differ_in_colour_dash_and_mark(show: Show) -> None:
    runs = [sample_run(f"run {i}", shift=i / 100, family=f"f{i}") for i in range(3)]
    seen = show(sample_bundle(*runs))
    rows = seen.js(ROWS, "entropy")
    assert [row["label"] for row in rows] == ["run 0", "run 1", "run 2"]
    assert [row["values"][1] for row in rows] == [pytest.approx(v) for v in (0.48, 0.49, 0.5)]
    for what in ("colour", "dash", "marker"):
        assert len({row[what] for row in rows}) == 3
    seen.page.locator('[data-fold="training-accuracy"] .foldhead').click()
    two = seen.js(ROWS, "training-accuracy")
    assert len({(row["colour"], row["dash"]) for row in two}) == 6
    assert [row["label"] for row in seen.js(ROWS, "first/training-accuracy")] == ["run 0", "run 1", "run 2"]
    assert seen.page.locator("#outcome .compare thead th").count() == 1 + 3
    assert seen.page.locator('[data-fold="acceptance@2"]').count() == 1
    different = seen.page.locator("#recipe table", has_text="How the runs differ")
    assert different.count() == 0  # their recipes are the same


def test_seeds_are_a_band_or_single_runs(show: Show) -> None:
    runs = [sample_run(f"seed {i}", seed=i, shift=i / 10) for i in range(3)]
    steps = list(range(1, STEPS + 1))
    entropy = [0.5 - 0.02 * step for step in steps]
    band = {"steps": steps, "mean": [v + 0.1 for v in entropy], "low": entropy, "high": [v + 0.2 for v in entropy]}
    seen = show(sample_bundle(*runs, bands={"family": {"train/entropy": band}}))
    (row,) = seen.js(ROWS, "entropy")
    assert seen.js("() => window.dapoPage.entities.map(one => one.label)") == ["seed 0 and 2 other seeds"]
    assert (row["low"][1], row["values"][1], row["high"][1]) == tuple(pytest.approx(v) for v in (0.48, 0.58, 0.68))
    assert "mean of the seeds" in seen.chart("entropy").locator(".note").inner_text()
    seen.choose("Seeds", "single", within="#charts")
    assert [one["values"][1] for one in seen.js(ROWS, "entropy")] == [pytest.approx(v) for v in (0.48, 0.58, 0.68)]


@pytest.mark.parametrize("state", ["failed", "killed", "unfilled", "interrupted"])
def test_a_run_that_did_not_end_well_says_so_first(show: Show, state: str) -> None:
    status = {
        **sample_run()["status"],
        "state": state,
        "title": "stopped at step 3",
        "said": "Out of memory. Lower the batch.",
        "log": ["step 3", "RuntimeError: out of memory"],
        "step": 3,
    }
    page = show(sample_bundle(sample_run(status=status))).page
    banner = page.locator("#outcome .banner")
    assert "Out of memory. Lower the batch." in banner.inner_text()
    assert "RuntimeError: out of memory" in (banner.locator("pre").text_content() or "")
    assert banner.locator("pre").is_visible() == (state in ("failed", "killed"))
    box = banner.bounding_box()
    assert box is not None
    assert box["y"] < 300
    assert page.locator(f'#top .badge[data-state="{state}"]').count() == 1


def test_a_run_with_nothing_in_it_is_a_page_too(show: Show) -> None:
    empty: dict[str, Any] = {
        "curves": {"steps": [], "values": {}, "low": {}, "high": {}, "thinned": {"kept": 0, "of": 0, "how": ""}},
        "time": {"phases": [], "busy": [], "ages": [], "note": ""},
        "rollouts": {
            "steps": [],
            "groups": [],
            "prompts": [],
            "held_out": [],
            "thinned": {"kept": 0, "of": 0, "how": ""},
        },
        "recipe": None,
        "tiles": [],
        "advice": [],
        "sentences": ["It stopped before its first step."],
        "seed": None,
    }
    page = show(sample_bundle(sample_run(**empty))).page
    assert "It stopped before its first step." in page.locator("#outcome").inner_text()
    assert page.locator("#charts .empty").is_visible()
    assert page.locator("#time .empty").is_visible()
    assert show(sample_bundle() | {"runs": []}).page.locator("#outcome").is_visible()


@pytest.mark.parametrize("width", [390, 700, 1100, 1800])
def test_no_width_scrolls_sideways(show: Show, width: int) -> None:
    seen = show(sample_bundle(sample_run("a" * 120)), width=width)
    for panel in ("Groups", "Prompts over time", "Held out: before and after"):
        seen.page.get_by_role("tab", name=panel).click()
        assert seen.js("() => document.documentElement.scrollWidth - innerWidth") <= 0


def _luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_legible(show: Show, scheme: str) -> None:
    seen = show(scheme=scheme)
    colours = seen.js("""() => { const probe = document.createElement('i'); document.body.append(probe);
        const of = name => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
        const names = ['paper', 'surface', 'sunk', 'ink', 'muted', 'accent', 'good', 'warn', 'bad', 'live',
            'accent-soft', 'good-soft', 'warn-soft', 'bad-soft', 'live-soft',
            'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8'].map(name => `--${name}`);
        return Object.fromEntries(names.map(name => [name, of(name)])); }""")
    for text in ("--ink", "--muted", "--accent", "--good", "--warn", "--bad"):
        for ground in ("--paper", "--surface", "--sunk"):
            assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for tone in ("--good", "--warn", "--bad", "--accent", "--live"):
        assert _contrast(colours[tone], colours[f"{tone}-soft"]) >= 4.5, tone
    for line in range(1, 9):
        assert _contrast(colours[f"--c{line}"], colours["--surface"]) >= 3, line


def test_the_theme_follows_the_system_until_it_is_chosen(show: Show) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark, light = show(scheme="dark"), show(scheme="light")
    assert _luminance(dark.js(ground)) < 0.05 < 0.8 < _luminance(light.js(ground))
    light.page.get_by_role("radio", name="Dark").click()
    assert light.js(ground) == dark.js(ground)
    assert light.js("() => window.dapoPage.charts()[0].drawing.axes[0]._stroke") == dark.js(
        "() => window.dapoPage.charts()[0].drawing.axes[0]._stroke"
    )
    light.page.keyboard.press("ArrowLeft")
    assert light.page.get_by_role("radio", name="Light").get_attribute("aria-checked") == "true"


def test_the_page_has_landmarks_and_headings_in_order(show: Show) -> None:
    seen = show()
    page = seen.page
    for role in ("banner", "main", "contentinfo"):
        assert page.get_by_role(role).count() >= 1, role
    assert page.get_by_role("navigation", name="Sections").count() == 1
    levels = seen.js(
        "() => [...document.querySelectorAll('h1,h2,h3,h4,h5')].filter(h => h.offsetParent).map(h => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    nameless = seen.js("""() => {
        const controls = 'button, input, select, a, summary, [role=img], [tabindex="0"]';
        const named = n => n.getAttribute('aria-label') || n.getAttribute('aria-labelledby') || n.textContent.trim() ||
            (n.labels && n.labels.length) || n.title;
        return [...document.querySelectorAll(controls)].filter(n => n.offsetParent && !named(n)).map(n => n.outerHTML);
    }""")
    assert nameless == []
    ids = seen.js("() => [...document.querySelectorAll('[id]')].map(n => n.id)")
    assert len(ids) == len(set(ids))


def test_charts_of_zeros_fold_and_those_of_a_row_end_at_one_height(show: Show) -> None:
    run = sample_run()
    values = run["curves"]["values"]
    for key in ("train/gap_mean", "train/gap_kl"):
        values[key] = [None] + [0.0] * (len(run["curves"]["steps"]) - 1)
    seen = show(sample_bundle(run))
    seen.page.locator('[data-fold="gap-kl"] .foldhead').click()
    folded = seen.page.locator(".chart.flat")
    assert folded.count() == 2
    assert "0 throughout" in folded.first.locator(".legend").inner_text()
    assert not folded.first.locator(".plot").is_visible()
    ends = seen.js("""() => [...document.querySelectorAll('.grid')].map((grid) => {
        const rows = {};
        for (const chart of grid.querySelectorAll('.chart:not(.flat)')) {
            const top = Math.round(chart.getBoundingClientRect().top);
            (rows[top] = rows[top] || []).push(Math.round(chart.querySelector('.plot').getBoundingClientRect().bottom));
        }
        return Object.values(rows).map((row) => new Set(row).size);
    }).flat()""")
    assert set(ends) == {1}


def test_model_data_and_machines_stand_in_the_recipe(show: Show) -> None:
    page = show().page
    page.get_by_text("Machine and versions (2 of them, by resumes)").click()
    text = page.locator("#recipe").inner_text()
    for part in ("model.path", "train.jsonl", "From the start", "After step 7", "EPYC, 2 cores", "Xeon, 4 cores"):
        assert part in text, part


@pytest.mark.parametrize("width", [1400, 420])
def test_a_legend_breaks_between_words(show: Show, width: int) -> None:
    """Where a run ended early, its last value names its step, and the line is long."""
    runs = [sample_run(f"run {i}", family=f"f{i}") for i in range(3)]
    values = runs[2]["curves"]["values"]
    for key in values:
        values[key] = [v if i < 12 else None for i, v in enumerate(values[key])]
    seen = show(sample_bundle(*runs), width=width)
    narrow = seen.js("""() => [...document.querySelectorAll('.legend button > span')].filter((n) => n.offsetParent)
        .filter((n) => n.textContent.length > 3 && n.getBoundingClientRect().width < 24).map((n) => n.textContent)""")
    assert narrow == []


def test_the_keyboard_begins_with_a_way_past_the_header(show: Show) -> None:
    seen = show()
    seen.page.keyboard.press("Tab")
    assert seen.js("() => document.activeElement.textContent") == "Skip to the outcome"
    seen.page.keyboard.press("Tab")
    outline = seen.js("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_news_comes_in_place(show: Show) -> None:
    bundle = sample_bundle()
    seen = show(bundle)
    page = seen.page
    seen.choose("Verdict", "all_wrong")
    page.wait_for_function("() => document.querySelector('#rollouts .note').textContent.startsWith('40 of 40')")
    page.locator(".tabulator-row").nth(2).click()
    page.wait_for_function("() => document.querySelector('.grouphead h3').textContent === 'Step 2, group 10'")
    seen.js("() => { window.marked = window.dapoPage.charts()[1].root; scrollTo(0, 700); }")
    newer = copy.deepcopy(bundle)
    curves = newer["runs"][0]["curves"]
    curves["steps"].append(STEPS + 1)
    for key, values in curves["values"].items():
        values.append(0.123 if key == "train/entropy" else None)
    newer["runs"][0]["status"]["step"] = STEPS + 1
    newer["runs"][0]["sentences"][0] = "Now it says something else."
    scrolled = seen.js("() => scrollY")
    seen.js("bundle => window.dapoPage.update(bundle)", newer)
    assert page.locator("#outcome .lead").inner_text() == "Now it says something else."
    assert seen.js(ROWS, "entropy")[0]["values"][-1] == 0.123
    assert seen.js("() => window.marked === window.dapoPage.charts()[1].root && window.marked.isConnected")
    assert abs(seen.js("() => scrollY") - scrolled) < 40  # a legend above takes a line more: what is in sight stays
    assert page.locator(".grouphead h3").first.inner_text() == "Step 2, group 10"
    assert page.locator("[role=tabpanel]:not([hidden])").get_by_label("Verdict").input_value() == "all_wrong"


def test_where_the_time_went_is_a_bar_and_its_numbers(show: Show) -> None:
    time = {
        **sample_run()["time"],
        "busy": [("engines busy", 0.75)],
        "ages": [(0, 0.8), (1, 0.2)],
        "note": "None recorded.",
    }
    part = show(sample_bundle(sample_run(time=time))).page.locator("#time")
    widths = [part.locator(".timebar i").nth(i).bounding_box()["width"] for i in range(2)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=1)
    rows = [" ".join(row.split()) for row in part.locator("table").first.locator("tbody tr").all_inner_texts()]
    assert rows == ["learn 40 s 66.7% 2 s 2 s", "generate 20 s 33.3% 1 s 1 s"]
    text = part.inner_text()
    for said in ("trace.json, beside this page", "Of the time in all: engines busy 75.0%.", "80.0%", "None recorded."):
        assert said in text, said


def test_runs_with_other_steps_are_laid_onto_one_axis(show: Show) -> None:
    sparse = sample_run("sparse", family="other")
    sparse["curves"] = {
        "steps": [4, 8, 30],
        "values": {"train/entropy": [0.9, None, 0.7]},
        "low": {"train/entropy": [0.8, None, 0.6]},
        "high": {"train/entropy": [1.0, None, 0.8]},
        "thinned": {"kept": 3, "of": 3000, "how": "Each point is the mean of 1,000 steps."},
    }
    seen = show(sample_bundle(sample_run(family="one"), sparse))
    whole, thin = seen.js(ROWS, "entropy")
    assert seen.js("() => window.dapoPage.charts()[0].x") == [*range(STEPS + 1), 30]
    assert whole["values"][4] == pytest.approx(0.42)
    assert {step: value for step, value in enumerate(thin["values"]) if value is not None} == {4: 0.9, 21: 0.7}
    assert (thin["low"][4], thin["high"][4]) == (0.8, 1.0)
    assert "Each point is the mean" in seen.chart("entropy").locator(".note").inner_text()
    assert (
        "3 of 3000 points. Each point is the mean of 1,000 steps."
        in seen.page.locator("#charts .controls").inner_text()
    )
