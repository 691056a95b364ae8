"""`dapo view` as a person meets it: a real browser, a real server, a run that grows meanwhile."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_samples import Seen

from dapo.report.runs_list import RunsFolder
from dapo.report.serve import make_app, make_server

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror='window.broken=1'>&\"'\u202e"


def _make_run() -> Callable[..., Path]:
    where = Path(__file__).parents[1] / "unit" / "report" / "made_folders.py"
    spec = importlib.util.spec_from_file_location("made_runs", where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[..., Path] = module.make_run
    return made


make_run = _make_run()


class Server:
    """The server of a folder, which can be stopped and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.start()

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self.server = make_server(make_app(RunsFolder.at(self.folder)))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(20)

    def __call__(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class Watched(Seen):
    """A page that asks a server."""

    def well(self, server: Server) -> None:
        """No error, and nothing asked of anyone else."""
        assert self.errors == []
        assert {url.split("/")[2] for url in self.requests if url.startswith("http")} <= {f"127.0.0.1:{server.port}"}
        assert not [url for url in self.requests if not url.startswith(("http://127.0.0.1", "data:", "blob:"))]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    make_run(folder / "good", parts="status spans tokens samples rollouts prompts log")
    make_run(folder / "sweep" / "seed 2", seed=2)
    make_run(folder / "unfilled", how="unfilled")
    make_run(folder / "crashed", how="crashed", steps=3)
    make_run(folder / HOSTILE, steps=2)
    return folder


@pytest.fixture
def server(runs: Path) -> Iterator[Server]:
    served = Server(runs)
    yield served
    served.stop()


@pytest.fixture
def seen(browser: Any) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    yield Watched(context.new_page())
    context.close()


def row(page: Any, name: str) -> Any:
    return page.locator("table.runs tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def wait_for(page: Any, expression: str) -> None:
    """Until a JavaScript expression is true. (The page's policy forbids the way in which Playwright would wait.)"""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"not within a minute: {expression}")


def names(page: Any) -> list[str]:
    return [str(node.get_attribute("data-run")) for node in page.locator("table.runs tbody tr").all()]


def test_the_list_shows_every_run_with_its_curve(seen: Watched, server: Server) -> None:
    page = seen.page
    page.goto(server("/"))
    page.wait_for_selector("table.runs tbody tr")
    assert set(names(page)) == {"good", "sweep/seed 2", "unfilled", "crashed", HOSTILE}
    assert page.get_by_text("5 runs", exact=True).is_visible()
    good = row(page, "good")
    assert good.locator(".state").inner_text() == "finished"
    assert good.locator(".c-progress").inner_text() == "12 / 12"
    assert "80.0%" in good.locator(".c-accuracy").inner_text()
    assert row(page, "unfilled").locator(".state").inner_text() == "batch not filled"
    curve = good.locator("svg.curve")
    assert curve.get_attribute("aria-label") == ("Held-out accuracy from 20.0% to 80.0%; training accuracy now 78.0%")
    dots = [(float(d.get_attribute("cx")), float(d.get_attribute("cy"))) for d in curve.locator("circle").all()]
    # evaluated in steps 0, 4, 8, 12 of 12, from 0.2 to 0.8: 168 x 44 pixels with an edge of 4
    assert [x for x, _ in dots] == pytest.approx([4, 57.3, 110.7, 164], abs=0.1)
    assert [y for _, y in dots] == pytest.approx([40 - 36 * a for a in (0.2, 0.4, 0.6, 0.8)], abs=0.1)
    assert curve.locator("path").count() == 1
    assert page.evaluate("window.broken") is None
    seen.well(server)


def test_search_and_sort_and_compare(seen: Watched, server: Server) -> None:
    page = seen.page
    page.goto(server("/"))
    page.wait_for_selector("table.runs tbody tr")
    page.get_by_label("Sort by").select_option("name")
    assert names(page) == [HOSTILE, "crashed", "good", "sweep/seed 2", "unfilled"]
    page.get_by_role("button", name="Held-out accuracy").click()
    assert page.locator("th[aria-sort=descending]").inner_text() == "Held-out accuracy"
    assert names(page)[0] == "sweep/seed 2"  # 0.81 against 0.80
    page.get_by_label("Search").fill("seed FINISHED")
    assert names(page) == ["sweep/seed 2"]
    assert page.get_by_text("1 of 5 runs").is_visible()
    page.get_by_label("Search").fill("nothing like it")
    assert page.get_by_text("No run matches the search.").is_visible()
    page.get_by_label("Search").fill("")
    page.get_by_label("Compare good", exact=True).check()
    page.get_by_label("Compare sweep/seed 2").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_selector("html[data-ready=true]")
    assert page.evaluate("dapoPage.bundle.runs.length") == 2
    assert set(page.evaluate("dapoPage.bundle.runs.map((run) => run.folder)")) == {"good", "sweep/seed 2"}
    page.go_back()
    page.wait_for_selector("table.runs tbody tr")
    assert page.get_by_label("Compare good", exact=True).is_checked()
    seen.well(server)


def test_a_run_opens_and_its_groups_are_fetched(seen: Watched, server: Server) -> None:
    page = seen.page
    page.goto(server("/"))
    page.get_by_role("link", name="sweep/seed 2").click()
    page.wait_for_selector("html[data-ready=true]")
    assert page.url == server("/run/sweep/seed%202")
    assert page.evaluate("dapoPage.bundle.runs[0].status.step") == 12
    assert page.locator(".uplot").count() > 3
    answer = page.evaluate("dapoPage.source.group(dapoPage.run, 3, 3000)")
    assert [response["accuracy"] for response in answer["responses"]] == [1, 0, 1, 0]
    found = page.evaluate("dapoPage.source.groups({run: dapoPage.run, step: 3, verdict: 'all_wrong', limit: 500})")
    assert found["total"] == 2
    assert page.evaluate("dapoPage.source.group(dapoPage.run, 3, 9)") is None
    with page.expect_download() as download:
        page.get_by_role("link", name="trace.json").click()
    assert json.loads(Path(download.value.path()).read_text())["traceEvents"]
    page.get_by_role("link", name="All runs").click()
    page.wait_for_selector("table.runs tbody tr")
    seen.well(server)


def test_the_way_past_the_header_comes_before_the_server_s_links(seen: Watched, server: Server) -> None:
    seen.page.goto(server("/run/good"))
    seen.page.locator("#outcome .lead").wait_for()
    first = []
    for _ in range(2):
        seen.page.keyboard.press("Tab")
        first.append(seen.page.evaluate("() => document.activeElement.textContent"))
    assert first == ["Skip to the outcome", "All runs"]


def test_more_than_one_answer_holds_is_fetched_in_parts(seen: Watched, server: Server, runs: Path) -> None:
    make_run(runs / "many", steps=100, prompts=450, parts="status rollouts prompts")
    page = seen.page
    page.goto(server("/run/many"))
    page.wait_for_selector("html[data-ready=true]")
    found = page.evaluate("dapoPage.source.prompts({run: dapoPage.run, limit: 500})")
    assert found["total"] == 450
    assert len({prompt["id"] for prompt in found["prompts"]}) == 450
    part = page.evaluate("dapoPage.source.prompts({run: dapoPage.run, offset: 400, limit: 500})")
    assert len(part["prompts"]) == 50
    seen.well(server)


def test_a_hostile_name_is_text(seen: Watched, server: Server) -> None:
    page = seen.page
    page.goto(server("/"))
    page.locator("table.runs tbody a", has_text="onerror").click()
    page.wait_for_selector("html[data-ready=true]")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.evaluate("dapoPage.bundle.runs[0].folder") == HOSTILE
    seen.well(server)


def test_a_page_follows_a_run_that_grows(seen: Watched, server: Server, runs: Path) -> None:
    run = make_run(runs / "growing", steps=20, how="running", wanted=20)
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:5]))
    page = seen.page
    page.goto(server("/run/growing"))
    page.wait_for_selector("html[data-ready=true]")
    assert page.evaluate("dapoPage.bundle.runs[0].status.step") == 4
    page.evaluate("window.sameDocument = true; window.scrollTo(0, 700)")
    at = page.evaluate("scrollY")
    assert at > 300
    with (run / "metrics.jsonl").open("ab") as file:
        for line in lines[5:12]:
            file.write(line)
        file.write(lines[12][:40])  # half a line
    wait_for(page, "dapoPage.bundle.runs[0].status.step === 11")
    assert page.evaluate("window.sameDocument") is True
    assert page.evaluate("scrollY") == at
    assert "11" in page.locator("body").inner_text()
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(lines[12][40:])
    wait_for(page, "dapoPage.bundle.runs[0].status.step === 12")
    seen.well(server)


def test_the_list_follows_runs_that_come_grow_and_go(seen: Watched, server: Server, runs: Path) -> None:
    page = seen.page
    page.goto(server("/"))
    page.wait_for_selector("table.runs tbody tr")
    page.get_by_label("Compare good", exact=True).focus()
    page.evaluate("window.sameDocument = true")
    make_run(runs / "new", steps=3)
    row(page, "new").wait_for(timeout=30_000)
    with (runs / "new" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "validation/accuracy": 0.33}) + "\n")
    wait_for(page, "document.querySelector('[data-run=new] .c-accuracy').textContent.includes('33.0')")
    shutil.rmtree(runs / "new")
    row(page, "new").wait_for(state="detached", timeout=30_000)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Compare good"
    assert page.evaluate("window.sameDocument") is True
    seen.well(server)


@pytest.mark.parametrize("path", ["/", "/run/good"])
def test_a_server_that_goes_is_said_and_found_again(seen: Watched, server: Server, path: str) -> None:
    page = seen.page
    page.goto(server(path))
    page.wait_for_selector("table.runs tbody tr" if path == "/" else "html[data-ready=true]")
    server.stop()
    notice = page.get_by_text("No connection since")
    notice.wait_for(timeout=30_000)
    assert notice.locator("xpath=ancestor-or-self::*[@role='status']").count() == 1  # a screen reader says it
    if path != "/":
        assert page.evaluate("dapoPage.source.group(dapoPage.run, 3, 3000).catch((error) => error.message)") == (
            "no connection to the server"
        )
    server.start()
    notice.wait_for(state="detached", timeout=40_000)
    assert page.locator(".trouble:visible").count() == 0
    # a browser itself writes a line for each request that finds no server; nothing else may stand there
    assert [error for error in seen.errors if "net::ERR_" not in error] == []


def test_nothing_is_asked_while_nobody_looks(seen: Watched, server: Server) -> None:
    page = seen.page
    page.goto(server("/"))
    page.wait_for_selector("table.runs tbody tr")
    # a headless page is never hidden, so it is told to be
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
        "window.away = true; document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_timeout(300)  # what was under way may end
    before = len(seen.requests)
    page.wait_for_timeout(5000)
    assert len(seen.requests) == before
    with page.expect_request("**/api/runs", timeout=5000):
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


@pytest.mark.parametrize("width", [390, 1400])
def test_the_list_fits_its_window(browser: Any, server: Server, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(server("/"))
    page.wait_for_selector("table.runs tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for box in page.locator("table.runs tbody a, table.runs .state").all():
        edges = box.bounding_box()
        assert edges["x"] >= 0
        assert edges["x"] + edges["width"] <= width
    page.close()


def test_the_list_works_by_keyboard(seen: Watched, server: Server) -> None:
    page = seen.page
    page.goto(server("/"))
    page.wait_for_selector("table.runs tbody tr")
    page.get_by_label("Sort by").select_option("name")
    page.keyboard.press("Tab")
    for _ in range(40):
        if page.evaluate("document.activeElement.getAttribute('aria-label')") == "Compare good":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.get_by_label("Compare good", exact=True).is_checked()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready=true]")
    assert page.url == server("/run/good")
    seen.well(server)


def test_one_run_served_alone_has_no_way_to_a_list(seen: Watched, runs: Path) -> None:
    served = Server(runs / "good")
    try:
        seen.page.goto(served("/"))
        seen.page.wait_for_selector("html[data-ready=true]")
        assert seen.page.get_by_role("link", name="All runs").count() == 0
        assert seen.page.get_by_role("link", name="trace.json").count() == 1
        seen.page.goto(served("/run/nope"))
        assert "No run 'nope'" in seen.page.locator("h1").inner_text()
        assert seen.page.get_by_role("link", name="All runs").count() == 1
    finally:
        served.stop()
