"""The site, opened from a disk at two widths: quiet, within its window, and found by its search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "build/site"
BROKEN_LINES = """[...document.querySelectorAll('article pre > code')].filter(
  (c) => getComputedStyle(c).whiteSpace !== 'pre' || getComputedStyle(c).overflowX !== 'auto')"""
BROKEN = r"""[...document.querySelectorAll('article td code')]
  .filter((c) => !/\s/.test(c.textContent) && new Set([...c.getClientRects()].map((r) => r.top)).size > 1)
  .map((c) => c.textContent)"""
SEARCHES = {
    "train on one GPU": "gpu",
    "single GPU": "gpu",
    "8 GPUs": "scaling",
    "multi-GPU": "scaling",
    "multiple GPUs": "scaling",
    "FSDP": "scaling",
    "multi node": "ray slurm",
    "vLLM": "engines vllm_server",
    "LoRA": "adapters",
    "merge adapter": "adapters",
    "long responses": "howto_long_rows",
    "tool": "howto_tools",
    "agent": "agents",
    "multi-turn": "environments",
    "resume": "run_folder",
    "continue training": "run_folder",
    "checkpoint": "run_folder",
    "early stopping": "run_folder",
    "crash": "failures",
    "NaN": "failures warnings",
    "compare runs": "reading_a_run cli",
    "compare two runs": "reading_a_run cli",
    "learning rate": "howto_sizes",
    "OOM": "howto_memory",
    "out of memory": "howto_memory",
    "CUDA out of memory": "howto_memory",
    "quantization": "howto_memory",
    "KL penalty": "losses",
    "GRPO": "algorithm",
    "dynamic sampling": "dynamic_sampling",
    "eval": "tutorial cli",
    "evaluate": "tutorial cli",
    "reward function": "own_reward",
    "judge": "howto_judges",
    "dataset": "data own_data",
    "system prompt": "data",
    "publish model hub": "publish",
    "push to hub": "publish",
    "upload": "publish",
    "huggingface": "publish",
    "license": "publish",
    "model card": "publish",
    "seed": "exactness",
    "install": "install",
    "pip install": "install",
    "Docker": "install",
    "macOS": "install",
    "cuda": "install gpu",
    "offline": "install",
    "wandb": "python",
    "tensorboard": "python",
    "mlflow": "python",
    "sft": "base_to_trained",
    "fine-tune": "tutorial base_to_trained",
    "slurm": "slurm",
    "MoE": "howto_experts",
}
"""What people type, and the pages of which one is to be among the first three."""
FIRST_THREE = """async ([worker, index, searches]) => {
  let answer;
  window.postMessage = (message) => answer(message);  // the worker's code runs in this page and answers it
  const ask = (message) => new Promise((done) => {
    answer = done;
    window.dispatchEvent(new MessageEvent('message', {data: message}));
  });
  window.eval(worker);
  await ask({type: 0, data: {...index, options: {suggest: true}}});
  const found = {};
  for (const search of searches) {
    const items = (await ask({type: 2, data: search})).data.items;
    found[search] = items.slice(0, 3).map((of_page) => of_page[0].location.replace(/[.]html.*/, ''));
  }
  return found;
}"""
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


def test_the_right_page_is_among_the_first_three_that_a_search_finds(browser, pages):
    """The site's own search code is asked, with the index that the site ships."""
    (worker,) = (SITE / "assets/javascripts/workers").glob("search.*.js")
    index = json.loads((SITE / "search/search_index.json").read_text())
    tab = browser.new_page()
    found = tab.evaluate(FIRST_THREE, [worker.read_text(), index, list(SEARCHES)])
    tab.close()
    faults = {
        search: f"{found[search]}, not {wanted}"
        for search, wanted in SEARCHES.items()
        if not {*wanted.split()} & {*found[search]}
    }
    assert faults == {}
    assert not [entry["location"] for entry in index["docs"] if entry["location"].startswith("repository/benchmarks")]


def test_the_first_command_is_in_sight_and_code_is_not_broken(browser, pages):
    for width, height in ((1280, 720), (420, 800)):
        context = browser.new_context(viewport={"width": width, "height": height})
        tab = context.new_page()
        tab.goto((SITE / "index.html").as_uri())
        box = tab.locator("article pre").first.bounding_box()
        assert box["y"] + box["height"] <= height
        for page in pages:
            tab.goto(page.as_uri())
            assert tab.evaluate(f"{BROKEN_LINES}.length") == 0, page.name
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
