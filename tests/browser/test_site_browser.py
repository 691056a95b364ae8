"""The site, opened from a disk at two widths: quiet, within its window, and found by its search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "build/site"
CUT = "[...document.querySelectorAll('article pre > code')].filter((c) => c.scrollWidth > c.clientWidth + 2)"
BROKEN = r"""[...document.querySelectorAll('article td code:not(.long)')]
  .filter((c) => !/\s/.test(c.textContent) && new Set([...c.getClientRects()].map((r) => r.top)).size > 1)
  .map((c) => c.textContent)"""
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    found = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")
    if not found:
        pytest.skip("there is no site in build/site: `make site` builds it")
    return found


@pytest.fixture(params=[1400, 420])
def tab(request: Any, browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": request.param, "height": 1000})
    tab = context.new_page()
    said: list[str] = []
    tab.on("pageerror", lambda error: said.append(f"{tab.url}: {error}"))
    tab.on("console", lambda message: said.append(f"{tab.url}: {message.text}") if message.type == "error" else None)
    tab.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    yield tab
    assert said == []
    context.close()


def test_every_page_is_quiet_and_fits_its_window(tab, pages):
    for page in pages:
        tab.goto(page.as_uri())
        wider = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wider <= 0, f"{page.name} is {wider} pixels wider than its window"
        assert tab.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), page.name
        assert tab.locator("article h1").count() == 1, page.name


def test_the_search_finds_a_setting_without_a_server(browser, pages):
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    tab = context.new_page()
    tab.goto((SITE / "index.html").as_uri())
    tab.click(".md-search__input")
    tab.type(".md-search__input", "sync_check_tolerance")
    tab.wait_for_selector('.md-search-result__link[href*="sync_check_tolerance"]', timeout=120_000)
    assert "configuration.html" in tab.inner_html(".md-search-result__list")
    context.close()


def test_the_first_command_is_in_sight_and_no_code_is_cut(browser, pages):
    for width, height in ((1280, 720), (420, 800)):
        context = browser.new_context(viewport={"width": width, "height": height})
        tab = context.new_page()
        tab.goto((SITE / "index.html").as_uri())
        box = tab.locator("article pre").first.bounding_box()
        assert box["y"] + box["height"] <= height
        for page in pages:
            tab.goto(page.as_uri())
            assert tab.evaluate(f"{CUT}.length") == 0, page.name
            assert tab.evaluate(BROKEN) == [], page.name
        context.close()


def test_the_page_of_a_wrong_address_stands_alone(tab):
    page = SITE / "404.html"
    if not page.exists():
        pytest.skip("there is no site in build/site: `make site` builds it")
    tab.goto(page.as_uri())
    tab.click("#start")
    assert tab.url == (SITE / "index.html").as_uri()
    assert tab.locator("article h1").count() == 1
