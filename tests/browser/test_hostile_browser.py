"""Text of models and data that tries to break out of the page: it runs nothing and is shown as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_samples import Seen, sample_bundle, sample_group, sample_run, sample_tokens

from dapo.report.page import ASSETS, page_html

Show = Callable[..., Seen]
PAYLOADS = [
    "<script>window.broken=1</script>",
    "</script><script>window.broken=2</script>",
    "<img src=x onerror=window.broken=3>",
    "\"><svg onload=window.broken=4>' onfocus='window.broken=5' autofocus='",
    "javascript:window.broken=6",
    "<!--<script>",
    "]]>{{constructor.constructor('window.broken=7')()}}${window.broken=8}",
    "</style><style>body{display:none}</style>",
    "<iframe srcdoc='<script>parent.broken=9</script>'></iframe><base href=//evil.example/>",
    "&lt;b&gt; &#60;script&#62;",
]
HOSTILE = " ".join(PAYLOADS)
CONTROLS = (
    "rtl \u202eevil\u202c ansi \x1b[31mred\x1b[0m nul \x00 lone \ud800 end \udc00 bom \ufeff ls \u2028 emoji \U0001f600"
)


def poison(value: Any, text: str) -> Any:
    """Every string that comes from a run is replaced by something hostile."""
    if isinstance(value, str):
        return text
    if isinstance(value, dict):
        return {key: poison(part, text) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [poison(part, text) for part in value]
    return value


def hostile_run(text: str) -> Any:
    run: Any = sample_run()
    keep = {"state": run["status"]["state"]}
    run["status"] = (
        poison({**run["status"], "title": "t", "said": "s", "log": ["l"]}, text) | keep | {"state": "failed"}
    )
    for key in ("sentences", "tiles", "recipe", "notes", "time", "machines"):
        run[key] = poison(run[key] or ["note"], text)
    for tile in run["tiles"]:
        tile.update(tone="bad", key="train/entropy")
    run["advice"] = [poison(one, text) | {"severity": "bad", "keys": [text, "train/entropy"]} for one in run["advice"]]
    values = run["curves"]["values"]
    length = len(run["curves"]["steps"])
    for key in (f"validation/{text}/accuracy", f"reward/{text.replace('/', '|')}", f"custom/{text.replace('/', '|')}"):
        values[key] = [0.5] * length
    values["__proto__"] = [1.0] * length
    values["constructor"] = [1.0] * length
    group: Any = sample_group(1, 0)
    for name in ("problem", "prompt", "answer", "source", "why", "prompt_id"):
        group[name] = text
    group["disposition"] = text
    for response in group["responses"]:
        response["text"] = text
        response["finish"] = text
        response["unscored"] = text
        response["rewards"] = {"__proto__": 0.25, "constructor": 0.5, "toString": 0.75, text: 1.0}
        response["tokens"] = sample_tokens([text, " ", "\n", "\x00"])
    run["rollouts"]["groups"] = [group]
    run["rollouts"]["prompts"] = poison(run["rollouts"]["prompts"][:2], text)
    run["rollouts"]["held_out"] = poison(run["rollouts"]["held_out"][:2], text)
    run["name"] = run["label"] = run["family"] = run["folder"] = text
    return run


def walk(seen: Seen) -> None:
    """Open everything that can be opened."""
    page = seen.page
    for name in ("Groups", "Prompts over time", "Held out: before and after"):
        page.get_by_role("tab", name=name).click()
        page.wait_for_timeout(100)
        rows = page.locator("[role=tabpanel]:not([hidden]) .tabulator-row")
        if rows.count():
            rows.first.click()
            page.wait_for_timeout(100)
    page.get_by_role("tab", name="Groups").click()
    seen.js("() => document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for button in page.locator(".chart").get_by_role("button", name="Table").all():
        button.click()
    for mode in ("sampler", "clip", "version"):
        seen.choose("Colour tokens by", mode, within=".group:not([hidden])")
        page.locator(".tok").first.hover()


@pytest.mark.browser
@pytest.mark.parametrize("text", [HOSTILE, CONTROLS, PAYLOADS[1]], ids=["all", "controls", "script"])
def test_hostile_text_runs_nothing_and_is_shown(show: Show, text: str) -> None:
    seen = show(sample_bundle(hostile_run(text)))
    walk(seen)
    page = seen.page
    assert seen.js("() => window.broken") is None
    assert seen.js("() => ({}).polluted === undefined && Object.keys(Object.prototype).length === 0")
    assert page.locator("body iframe, body base, body img, main script, main style, object, embed").count() == 0
    with_handlers = seen.js("""() => [...document.querySelectorAll('*')]
        .filter(n => [...n.attributes].some(a => a.name.startsWith('on'))).length""")
    assert with_handlers == 0
    links = seen.js(
        "() => [...document.querySelectorAll('[href],[src]')].map(n => n.getAttribute('href') || n.getAttribute('src'))"
    )
    assert all(link.startswith("#") or link == "data:," for link in links)
    if text is not CONTROLS:
        seen.choose("Colour tokens by", "", within=".group:not([hidden])")
        assert page.locator(".response pre.text").first.text_content() == text
        assert page.locator("#outcome .said").text_content() == text


@pytest.mark.browser
def test_characters_that_do_not_show_are_named(show: Show) -> None:
    seen = show(sample_bundle(hostile_run(CONTROLS)), link="#x=1")
    seen.page.locator(".tabulator-row").first.click()
    shown = seen.page.locator(".response pre.text").first.text_content()
    assert shown == (
        "rtl ⟨RLO⟩evil⟨PDF⟩ ansi ␛[31mred␛[0m nul ␀ lone ⟨U+D800⟩ end ⟨U+DC00⟩ bom ⟨BOM⟩ ls ⟨LS⟩ emoji \U0001f600"
    )
    everything = seen.js("() => document.body.innerText")
    assert "\u202e" not in everything
    assert "\x1b" not in everything


@pytest.mark.browser
def test_names_of_rewards_that_are_names_of_javascript_stay_names(show: Show) -> None:
    seen = show(sample_bundle(hostile_run("plain")))
    seen.page.locator(".tabulator-row").first.click()
    seen.page.locator(".response").first.wait_for()
    pairs = seen.js("""() => [...document.querySelectorAll('.response:first-child dl > div')]
        .map(pair => [...pair.children].map(part => part.textContent))""")
    for pair in (["__proto__", "0.25"], ["constructor", "0.5"], ["toString", "0.75"]):
        assert pair in pairs


@pytest.mark.browser
def test_a_very_long_line_is_cut_and_whole_when_asked(show: Show) -> None:
    seen = show(sample_bundle(hostile_run("x" * 100_000 + "END")), width=390)
    seen.page.locator(".tabulator-row").first.click()
    block = seen.page.locator(".response pre.text").first
    assert len(block.text_content()) < 20_100
    assert seen.js("() => document.documentElement.scrollWidth - innerWidth") <= 0
    block.get_by_role("button").click()
    assert block.text_content().endswith("xEND")


@pytest.mark.browser
def test_the_policy_blocks_what_was_not_written_here(show: Show) -> None:
    seen = show()
    seen.js("""() => { const s = document.createElement('script'); s.textContent = 'window.broken = 1';
        document.body.append(s);
        document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.broken=2">'); }""")
    seen.page.wait_for_timeout(200)
    assert seen.js("() => window.broken") is None
    blocked = seen.js("() => fetch('https://example.com/').then(() => false, () => true)")
    assert blocked
    assert any("Content Security Policy" in text for text in seen.errors)
    seen.errors.clear()  # they were wanted
    seen.requests[:] = [url for url in seen.requests if url.startswith("file:")]


@pytest.mark.browser
def test_a_planted_inline_script_does_not_run(show: Show) -> None:
    text = page_html(sample_bundle()).replace("</body>", "<script>window.broken = 1</script></body>")
    seen = show(text=text)
    assert seen.js("() => window.broken") is None
    assert any("Content Security Policy" in text for text in seen.errors)
    seen.errors.clear()


def test_the_pages_own_scripts_parse_no_markup_and_evaluate_nothing() -> None:
    scripts = list(Path(ASSETS).glob("*.js"))
    assert len(scripts) >= 15
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser"
        r"|createContextualFragment|srcdoc|setTimeout\(\s*['\"]"
    )
    for path in scripts:
        assert not forbidden.search(path.read_text(encoding="utf-8")), path.name
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path.name


def test_the_file_holds_no_text_of_the_run_in_the_clear() -> None:
    text = page_html(sample_bundle(hostile_run("needle-in-a-response</script>")))
    body = text[text.index("<body>") :]
    assert "needle-in-a-response" not in body
    head = text[: text.index("<style>")]
    assert "needle-in-a-response&lt;/script&gt; · dapo" in head
