"""The rollout browser in a real browser: filters, search, links, the keyboard, tokens, prompts, held-out answers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from page_samples import Seen, sample_bundle, sample_group, sample_run

pytestmark = pytest.mark.browser
Show = Callable[..., Seen]
PANEL = "#rollouts [role=tabpanel]:not([hidden])"


def wait_count(seen: Seen, text: str) -> None:
    seen.page.wait_for_function(
        "text => document.querySelector('#rollouts [role=tabpanel]:not([hidden]) .note').textContent.startsWith(text)",
        arg=text,
    )


def wait_group(seen: Seen, step: int, group: int) -> None:
    seen.page.locator(PANEL).get_by_role("heading", name=f"Step {step}, group {group}", exact=True).wait_for()


def test_filters_narrow_the_list(show: Show) -> None:
    seen = show()
    wait_count(seen, "160 of 160 groups")
    seen.choose("Verdict", "all_correct")
    wait_count(seen, "40 of 40 groups")
    assert all("all correct" in row for row in seen.rows())
    seen.choose("Source", "products")
    wait_count(seen, "0 of 0 groups")  # every all-correct group is an odd one
    assert "Nothing fits" in seen.page.locator(PANEL).inner_text()
    seen.page.locator(PANEL).get_by_role("button", name="Clear").click()
    wait_count(seen, "160 of 160 groups")
    seen.page.locator(PANEL).get_by_label("Step", exact=True).fill("3")
    wait_count(seen, "8 of 8 groups")
    seen.page.locator(PANEL).get_by_label("with tokens").check()
    wait_count(seen, "2 of 2 groups")
    seen.choose("What became of it", "discarded")
    wait_count(seen, "0 of 0 groups")


def test_search_finds_text_of_responses(show: Show) -> None:
    seen = show()
    seen.page.locator(PANEL).get_by_label("Search").fill("ANSWER 179 OF")  # group + step, only in the last group
    wait_count(seen, "1 of 1 group")
    assert seen.rows()[0].split()[:2] == ["20", "159"]


def test_a_filter_opens_its_first_hit_and_next_walks_the_list(show: Show) -> None:
    seen = show()
    wait_group(seen, 20, 152)  # of the last step, recorded token by token
    seen.choose("Verdict", "all_wrong")
    wait_group(seen, 1, 2)
    seen.page.get_by_role("button", name="Next →").click()
    wait_group(seen, 1, 6)
    seen.page.locator(PANEL).get_by_label("Search").fill("no such text anywhere")
    wait_count(seen, "0 of 0 groups. The open group is not in this list.")
    assert seen.page.get_by_role("button", name="Next →").is_disabled()


def test_the_neighbours_of_a_group_further_down_than_the_list_open(show: Show) -> None:
    """The list holds the first 500 of 640 groups, the open one is of the last step."""
    run = sample_run()
    run["rollouts"]["groups"] = [sample_group(step, step * 32 + i) for step in range(1, 21) for i in range(32)]
    seen = show(sample_bundle(run), link="#run=sample&step=20&group=641")
    wait_group(seen, 20, 641)
    wait_count(seen, "500 of 640 groups. The open group is further down.")
    for button, step, group in (
        ("Next →", 20, 642),
        ("← Previous", 20, 641),
        ("← Previous", 20, 640),
        ("← Previous", 19, 639),
    ):
        seen.page.get_by_role("button", name=button).click()
        wait_group(seen, step, group)


def test_a_colour_that_no_token_has_is_explained(show: Show) -> None:
    run = sample_run()
    for group in run["rollouts"]["groups"]:
        for response in group["responses"]:
            if response["tokens"]:
                response["tokens"]["ratio"] = [1.0 for _ in response["tokens"]["pieces"]]
    seen = show(sample_bundle(run), link="#run=sample&step=2&group=8")
    wait_group(seen, 2, 8)
    seen.choose("Colour tokens by", "ratio", within=".group")
    assert "0.95–1.05" in seen.page.locator(".group .controls .note").inner_text()
    seen.choose("Colour tokens by", "entropy", within=".group")
    assert seen.page.locator(".group .controls .note").count() == 0


def test_equal_responses_are_one_card(show: Show) -> None:
    run = sample_run()
    for group in run["rollouts"]["groups"]:
        group["responses"][2] = {**group["responses"][0], "sample": 2}
    seen = show(sample_bundle(run), link="#run=sample&step=2&group=8")
    wait_group(seen, 2, 8)
    cards = seen.page.locator(f"{PANEL} .group .response")
    assert [card.get_attribute("data-samples") for card in cards.all()] == ["0 2", "1", "3"]
    assert "2 equal" in cards.first.inner_text()
    seen.page.locator(f"{PANEL} .strip button").nth(2).click()
    assert seen.js("() => document.activeElement.dataset.samples") == "0 2"


def test_the_open_group_is_in_sight_in_its_list(show: Show) -> None:
    seen = show(link="#run=sample&step=20&group=158")
    wait_group(seen, 20, 158)
    seen.page.wait_for_selector("#rollouts .tabulator-row.chosen")
    row, holder = (
        seen.page.locator(f"#rollouts {name}").first.bounding_box()
        for name in (".tabulator-row.chosen", ".tabulator-tableholder")
    )
    assert row
    assert holder
    assert holder["y"] <= row["y"] <= holder["y"] + holder["height"]


def test_a_group_shows_its_responses_side_by_side(show: Show) -> None:
    seen = show(link="#run=sample&step=2&group=8")
    wait_group(seen, 2, 8)
    panel = seen.page.locator(f"{PANEL} .group")
    text = panel.inner_text()
    for part in ("Kept: its responses differ.", "prompt 0: 8 + 2 =", "2 of 4 scored"):
        assert part in text
    cards = panel.locator(".response")
    assert [card.get_attribute("data-samples") for card in cards.all()] == ["0", "1", "2", "3"]
    first = cards.first.inner_text()
    assert "✓ correct" in first
    assert "+1" in first
    assert "answer 10 of\nsample 0" in first
    assert "✗ wrong" in cards.nth(3).inner_text()
    places = seen.js("() => [...document.querySelectorAll('.response')].map(one => [one.offsetTop, one.offsetLeft])")
    assert places[0][0] == places[1][0]
    assert places[0][1] < places[1][1]
    seen.choose("Order", "advantage", within=".group:not([hidden])")
    panel.get_by_role("button", name=re.compile("Response 3: wrong, reward 0.25, advantage −1")).click()
    assert seen.js("() => document.activeElement.dataset.samples") == "3"


def test_an_episode_shows_its_turns_with_replies_shaded(show: Show) -> None:
    run = sample_run()
    group = next(one for one in run["rollouts"]["groups"] if (one["step"], one["group"]) == (2, 8))
    first = group["responses"][0]
    first["turns"] = [
        {"who": "assistant", "text": "seven", "reward": 0.5, "calls": ["add"], "facts": {"tries": 2}},
        {"who": "tool", "text": "<b>no</b>", "reward": 0.0, "calls": [], "facts": {}},
    ]
    first["ended"] = "turns"
    first["tokens"]["given"] = [1, 2]
    seen = show(sample_bundle(run), link="#run=sample&step=2&group=8")
    wait_group(seen, 2, 8)
    card = seen.page.locator(f"{PANEL} .group .response").first
    assert [turn.inner_text() for turn in card.locator(".turn").all()] == [
        "assistant calls add reward 0.5 tries 2\nseven",
        "tool\n<b>no</b>",
    ]
    assert card.locator(".turn.reply").count() == 1
    assert "ended by the limit of turns" in card.inner_text()
    seen.choose("Colour tokens by", "learner", within=".group")
    shaded = card.locator(".tok.t-given")
    assert [span.get_attribute("data-i") for span in shaded.all()] == ["1", "2"]
    shaded.first.hover()
    read = seen.page.locator(f"{PANEL} .readout").inner_text()
    assert "not sampled, no loss" in read
    assert "learner" not in read
    assert "put in by the program" in seen.page.locator(f"{PANEL} .tokenlegend").inner_text()


def test_links_lead_to_a_group_and_back(show: Show) -> None:
    seen = show(link="#run=sample&step=5&group=33")
    wait_group(seen, 5, 33)
    seen.page.get_by_role("button", name="Next →").click()
    wait_group(seen, 5, 34)
    assert seen.js("() => location.hash") == "#run=sample&step=5&group=34"
    seen.page.go_back()
    wait_group(seen, 5, 33)


def test_a_link_to_what_is_not_there_says_so(show: Show) -> None:
    seen = show(link="#run=sample&step=5&group=99999")
    seen.page.locator(PANEL).get_by_text("is not in this page").wait_for()
    assert "Group 99,999 of step 5 is not in this page" in seen.page.locator(PANEL).inner_text()


def test_the_problem_is_shown_and_the_template_on_demand(show: Show) -> None:
    seen = show(link="#run=sample&step=1&group=2")
    wait_group(seen, 1, 2)
    row = seen.page.locator(f"{PANEL} .tabulator-row[aria-selected=true]")
    assert "prompt 2: 2 + 1 =" in row.inner_text()
    assert "<|user|>" not in seen.page.locator(PANEL).inner_text()
    seen.page.locator(f"{PANEL} .template summary").click()
    assert "<|user|>prompt 2: 2 + 1 =<|end|>" in seen.page.locator(f"{PANEL} .template").inner_text()


def test_the_list_is_one_stop_of_the_keyboard(show: Show) -> None:
    """And what scrolls holds something that Tab reaches, as long as the list has not the focus."""
    seen = show()
    wait_count(seen, "160 of 160 groups")
    rows = f"{PANEL} .tabulator-row[tabindex='0']"
    assert seen.page.locator(rows).count() > 0
    assert seen.js("() => document.querySelectorAll('.tabulator-tableholder[tabindex]').length") == 0
    seen.page.locator(f"{PANEL} .controls button", has_text="Clear").focus()
    stops = []
    for _ in range(3):
        seen.page.keyboard.press("Tab")
        stops.append(seen.js("() => document.activeElement.className"))
    assert [stop.startswith("tabulator") for stop in stops] == [True, False, False]
    seen.page.keyboard.press("Shift+Tab")
    seen.page.keyboard.press("Shift+Tab")
    assert seen.js("() => document.activeElement.getAttribute('role')") == "grid"
    assert seen.page.locator(rows).count() == 0
    seen.page.keyboard.press("Shift+Tab")
    assert seen.js("() => document.activeElement.textContent") == "Clear"


def test_the_keyboard_walks_the_list_and_opens(show: Show) -> None:
    seen = show()
    wait_count(seen, "160 of 160 groups")
    seen.page.locator(f"{PANEL} .tabulator").focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        seen.page.keyboard.press(key)
        seen.page.wait_for_timeout(60)
    seen.page.keyboard.press("Enter")
    wait_group(seen, 1, 2)
    assert seen.page.locator(f"{PANEL} .tabulator-row[aria-selected=true]").inner_text().split()[:2] == ["1", "2"]
    seen.page.keyboard.press("End")
    seen.page.wait_for_timeout(200)
    seen.page.keyboard.press("Enter")
    wait_group(seen, 20, 159)  # far below: the list draws only what is in sight
    assert seen.page.locator(f"{PANEL} .tabulator-row").count() < 100


def test_tokens_are_coloured_and_read_out(show: Show) -> None:
    seen = show(link="#run=sample&step=2&group=8")
    wait_group(seen, 2, 8)
    modes = seen.page.locator(".group").get_by_label("Colour tokens by").locator("option").all_inner_texts()
    assert modes == [
        "nothing (plain text)",
        "log-probability (sampler)",
        "log-probability (learner)",
        "gap (learner − sampler)",
        "ratio",
        "clip",
        "entropy",
        "version of the weights",
    ]
    seen.choose("Colour tokens by", "clip", within=".group:not([hidden])")
    block = seen.page.locator(".response").first.locator(".tokens")
    # "answer 10 of\nsample 0" split at blanks, and the end: clip 0 1 2 3
    classes = [token.get_attribute("class").split()[1:] for token in block.locator(".tok").all()]
    assert classes == [[], ["t-low"], ["t-high"], ["t-dual"], []]
    assert block.inner_text() == "answer·10·of↵\nsample·0<eos>"
    block.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        seen.page.keyboard.press(key)
    read = seen.page.locator(".group .readout").inner_text()
    for part in (
        "Response 0",
        "token 3 of 5",
        "sampler −0.1100 (p 89.6%)",
        "learner −0.1200",
        "ratio 1.2",
        "entropy 0.4",
        "clip high",
        "weights 3",
    ):
        assert part in read.replace("\n", " "), part
    block.locator(".tok").nth(1).hover()
    assert "token 2 of 5" in seen.page.locator(".group .readout").inner_text()
    seen.choose("Colour tokens by", "ratio", within=".group:not([hidden])")
    classes = [token.get_attribute("class").split()[1:] for token in block.locator(".tok").all()]
    assert classes == [[], ["t-p1"], ["t-p1"], ["t-p2"], ["t-p2"]]  # ratios 1, 1.1, 1.2, 1.3, 1.4
    legend = seen.page.locator(".tokenlegend").inner_text()
    assert "1.05–1.25" in legend


def test_a_group_without_tokens_offers_no_colours(show: Show) -> None:
    seen = show(link="#run=sample&step=2&group=11")
    wait_group(seen, 2, 11)
    assert seen.page.locator(".group").get_by_label("Colour tokens by").count() == 0


def test_a_prompt_shows_its_history_and_leads_to_its_groups(show: Show) -> None:
    seen = show(link="#run=sample&step=2&group=8")
    wait_group(seen, 2, 8)
    seen.page.get_by_role("button", name="id0 and its history").click()
    panel = seen.page.locator(f"{PANEL} .group")
    panel.get_by_role("heading", name="Prompt id0").wait_for()
    assert panel.locator("tbody tr").count() == 20
    assert "2/4" in panel.locator("tbody tr").first.inner_text()
    assert panel.locator("svg.dots circle").count() == 20
    panel.get_by_role("button", name="Open group 24").click()
    wait_group(seen, 4, 24)
    assert show(link="#run=sample&prompt=id3").page.get_by_role("heading", name="Prompt id3").is_visible()


def test_held_out_answers_stand_before_beside_after(show: Show) -> None:
    seen = show()
    seen.page.get_by_role("tab", name="Held out: before and after").click()
    panel = seen.page.locator(PANEL)
    # before: odd ones right; after: the first six right
    assert panel.locator(".note").inner_text() == (
        "8 problems: 3 wrong, then right; 1 right, then wrong; 3 right and 1 wrong both times."
    )
    seen.choose("Change", "lost")
    (card,) = panel.locator(".heldout").all()
    assert "before 7" in card.locator(".side").first.inner_text()
    assert "after 7" in card.locator(".side").nth(1).inner_text()


def test_runs_are_browsed_one_at_a_time(show: Show) -> None:
    other = sample_run("other", family="g")
    other["rollouts"]["groups"] = [sample_group(1, 5)]
    seen = show(sample_bundle(sample_run(family="f"), other), link="#run=other&step=1&group=5")
    wait_group(seen, 1, 5)
    wait_count(seen, "1 of 1 group")
    seen.choose("Run", "sample", within="#rollouts .tabline")
    wait_count(seen, "160 of 160 groups")
    assert "1 of 1 group" not in seen.page.locator("#rollouts").inner_text()
