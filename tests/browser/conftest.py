"""A browser for the tests of pages.

Without Playwright or a Chromium these tests are skipped, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM
from page_samples import Seen, sample_bundle

from dapo.report.page import page_html
from dapo.report.page_data import PageData


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    tools = pytest.importorskip("playwright.sync_api", reason="the tests of pages need Playwright (extra dev)")
    if CHROMIUM is None:
        pytest.skip("the tests of pages need a Chromium; install one, or set CHROMIUM to its path")
    with tools.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Seen]]:
    """Opens a bundle as a file. At the end every page must have been quiet: no error, no request but for the file."""
    contexts: list[Any] = []
    pages: list[Seen] = []

    def open_page(
        bundle: PageData | None = None,
        link: str = "",
        scheme: str = "light",
        width: int = 1400,
        text: str | None = None,
    ) -> Seen:
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(text or page_html(bundle or sample_bundle()), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        seen = Seen(context.new_page())
        pages.append(seen)
        seen.page.goto(path.as_uri() + link)
        seen.page.wait_for_selector("html[data-ready=true]")
        return seen

    yield open_page
    for seen in pages:
        assert seen.errors == []
        assert [url for url in seen.requests if not url.startswith(("file:", "data:"))] == []
    for context in contexts:
        context.close()
