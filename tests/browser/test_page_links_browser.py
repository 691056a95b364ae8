"""The report in a real browser: what leads where, and what is compared with what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from page_samples import STEPS, Seen, sample_bundle, sample_run

pytestmark = pytest.mark.browser
Show = Callable[..., Seen]


def test_recipes_are_compared_by_whole_values(show: Show) -> None:
    long = "x" * 90
    runs = [sample_run(f"run {i}", family=f"f{i}") for i in range(2)]
    differences = [[("data.instruction", '""', f"{long}{i}"), ("rewards.1.name", "none", '"a"')] for i in range(2)]
    differences[0].append(("rewards.1.weight", "none", "4.0"))
    for run, difference in zip(runs, differences, strict=True):
        assert run["recipe"] is not None
        run["recipe"]["difference"] = difference
    table = show(sample_bundle(*runs)).page.locator("#recipe table", has_text="How the runs differ")
    rows = [[cell.inner_text() for cell in row.locator("th, td").all()] for row in table.locator("tbody tr").all()]
    assert [row[0] for row in rows] == ["data.instruction", "rewards.1.weight"]
    assert [cell[-1] for cell in rows[0][1:]] == ["0", "1"]
    assert rows[1][1:] == ["4.0", "(default)"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_warning_leads_to_the_chart_of_its_own_run(show: Show, turned: bool) -> None:
    runs = [sample_run(f"run {i}", family=f"f{i}") for i in range(2)]
    runs[0]["advice"] = []
    runs[1]["advice"][0]["keys"] = ["groups/kept_share"]
    seen = show(sample_bundle(*(reversed(runs) if turned else runs)))
    seen.page.locator("#warnings .one .look button").click()
    title = seen.js("() => document.activeElement.closest('figure').querySelector('.title').textContent")
    assert title.endswith("run 1")


def test_the_navigation_marks_the_section_chosen(show: Show) -> None:
    page = show().page
    for name in ("Rollouts", "More numbers", "Time", "Recipe", "Charts"):
        page.locator("#top nav").get_by_role("link", name=name).click()
        page.wait_for_timeout(150)
        assert page.locator("#top nav a[aria-current]").all_inner_texts() == [name]
    page.mouse.wheel(0, 1)  # the reader goes on: what is in sight counts again
    page.wait_for_timeout(150)
    assert page.locator("#top nav a[aria-current]").all_inner_texts() == ["Charts"]


def test_legends_say_which_step_they_are_of(show: Show) -> None:
    run = sample_run()
    values = run["curves"]["values"]
    values["validation/greedy_accuracy"][-1] = None
    values["train/clip_low"] = [None] + [0.0] * STEPS
    values["train/clip_high_probability"] = [0.25 if step in (3, 4, 15) else None for step in range(STEPS + 1)]
    seen = show(sample_bundle(run))
    legend = seen.chart("validation/accuracy").locator(".legend").inner_text()
    assert "80.0% (75.0% to 85.0%)" in legend
    assert "at step 20" not in legend
    assert "70.0% at step 10" in legend
    for name in ("clip", "clip-probability"):
        seen.page.locator(f'[data-fold="{name}"] .foldhead').click()
    assert "0.0% throughout" in seen.chart("clip").locator(".legend").inner_text()
    (row,) = seen.js("""() => window.dapoPage.charts().find(one => one.spec.id === 'clip-probability').rows
        .map(row => [row.spans, row.values.map(v => v === null ? 'gap' : v === undefined ? 'goes on' : v)])""")
    assert row[0] is False
    assert row[1][5:15] == ["gap"] * 10  # no line leads over eleven steps


def test_escape_closes_a_definition(show: Show) -> None:
    seen = show()
    meaning = seen.chart("entropy").locator("details.meaning")
    meaning.locator("summary").click()
    assert "igher is better" not in meaning.inner_text()
    seen.page.keyboard.press("Escape")
    assert seen.chart("entropy").locator("details.meaning[open]").count() == 0
