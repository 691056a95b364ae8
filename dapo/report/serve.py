"""The local server of ``dapo view``: the pages of ``dapo report`` for runs that go on.

::

    /                      all runs below the folder      /api/runs       their lines
    /run/NAME              a run                          /api/bundle     what its page shows      ?run=NAME...
    /compare?run=A&run=B   several                        /api/groups     groups of a step...      ?run=NAME&step=...
                                                          /api/group      one, whole               &step= &group=
                                                          /api/prompts    prompts                  &text= ...
                                                          /api/prompt     one, with its history    &id=
                                                          /api/trace      trace.json, to be saved

It reads, and nothing else; ``guard`` says who may ask. No file is served by a path: a request names a run, and
``runs_list`` finds it or not. Each answer is made in a thread, so a slow one holds up no other.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from typing import Any

import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dapo.errors import DataError, RecipeError
from dapo.report import browse
from dapo.report.access import guards
from dapo.report.bundle import bundle_of
from dapo.report.page import Live, document, page_html
from dapo.report.page_data import GroupView, PageData, PromptView
from dapo.report.reader import RunContents
from dapo.report.rollout_index import index_of, opened
from dapo.report.runs_list import BadName, NoSuchRun, RunsFolder, address_of, brief_name
from dapo.report.shelf import JsonPayload, RunChanged, Shelf, folder_name, pack
from dapo.report.trace import trace_of

MOST_RUNS = 20
"""Runs in one comparison."""
LONGEST_TEXT = 500
"""Characters of a filter."""
LARGEST = 2**31 - 1
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_log = logging.getLogger(__name__)


class BadQuestion(ValueError):
    """A query that cannot be answered. The message is fit to be shown."""


def make_app(folder: RunsFolder, hosts: Iterable[str] = (), any_address: bool = False, version: str = "") -> ASGIApp:
    """Return the server's application.

    Args:
        folder: the runs to show.
        hosts, any_address: what the Host header may name beside the loopback, see ``guards``.
        version: of dapo, for the foot of the list.
    """
    pages = Pages(folder, version)
    routes = [
        Route("/", _safe(pages.runs_page)),
        Route("/run/{name:path}", _safe(pages.run_page)),
        Route("/compare", _safe(pages.compare_page)),
        Route("/api/runs", _safe(pages.runs)),
        Route("/api/bundle", _safe(pages.bundle)),
        Route("/api/groups", _safe(pages.groups)),
        Route("/api/group", _safe(pages.group)),
        Route("/api/prompts", _safe(pages.prompts)),
        Route("/api/prompt", _safe(pages.prompt)),
        Route("/api/trace", _safe(pages.trace)),
    ]
    app = Starlette(routes=routes, middleware=guards(hosts, any_address), exception_handlers={HTTPException: _no_page})
    app.router.redirect_slashes = False
    return app


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Return the HTTP server around ``app``; give ``run`` or ``serve`` listening sockets. It logs no requests."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http="h11",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
        )
    )


class Pages:
    """An answer for each route."""

    def __init__(self, folder: RunsFolder, version: str) -> None:
        self.folder = folder
        self.version = version
        self.shelf = Shelf(folder)

    # ------------------------------------------------------------------------------------------------------ pages

    def runs_page(self, request: Request) -> Response:
        """Answer with the list; if one run is served, with its page."""
        if self.folder.only is not None:
            return RedirectResponse(address_of(self.folder.only), status_code=302)
        return _page(_runs_html(folder_name(self.folder)))

    def run_page(self, request: Request) -> Response:
        """Answer with the page of a run."""
        name = request.path_params["name"]
        self.folder.path_of(name)
        return _page(page_html(live=Live(run=name, api="/api/", alone=self.folder.only is not None)))

    def compare_page(self, request: Request) -> Response:
        """Answer with the page of several runs."""
        names = self._names(request.query_params)
        return _page(page_html(live=Live(run=", ".join(names), api="/api/")))

    # -------------------------------------------------------------------------------------------------------- api

    def runs(self, request: Request) -> Response:
        """``{folder, version, runs: RunLine[], waiting, led_out, cut}``; ``waiting``: runs yet to be read."""
        found = self.folder.find()
        lines, waiting = self.shelf.lines()
        content = {
            "folder": folder_name(self.folder),
            "version": self.version,
            "runs": list(map(asdict, lines)),
            "waiting": waiting,
            "led_out": found.led_out,
            "cut": found.cut,
        }
        return _send(request, pack(lambda: content))

    def bundle(self, request: Request) -> Response:
        """Answer with a ``PageData``."""
        names = self._names(request.query_params)

        def make() -> PageData:
            bundle = bundle_of([self.shelf.run(name) for name in names], live=True)
            for view, name in zip(bundle["runs"], names, strict=True):
                view["folder"] = name  # where the served folder lies is nobody's business
            return bundle

        return _send(request, self.shelf.answer(("bundle", *names), names, make))

    def groups(self, request: Request) -> Response:
        """Answer with ``{groups: GroupView[], total}``, without responses."""
        ask = request.query_params
        step = _number(ask, "step")
        filters: dict[str, Any] = {
            "verdict": _text(ask, "verdict"),
            "disposition": _text(ask, "disposition"),
            "source": _text(ask, "source"),
            "text": _text(ask, "text"),
            "prompt_id": _text(ask, "prompt"),
            "has_tokens": _flag(ask, "tokens"),
            **_page_of(ask),
        }

        def find(run: RunContents) -> dict[str, Any]:
            if step is not None and step not in browse.steps_of(run):
                return {"groups": [], "total": 0}
            found, total = browse.groups(run, step, **filters)
            return {"groups": found, "total": total}

        return self._about_run(request, (step, *filters.values()), find)

    def group(self, request: Request) -> Response:
        """Answer with a ``GroupView``, whole, or null."""
        step, group = _needed(request, "step"), _needed(request, "group", 2**63 - 1)

        def find(run: RunContents) -> GroupView | None:
            if step not in browse.steps_of(run):
                return None
            with opened(run, step) as (_, summary):
                known = summary.find(group) is not None
            return browse.group(run, step, group) if known else None

        return self._about_run(request, (step, group), find)

    def prompts(self, request: Request) -> Response:
        """``{prompts: PromptView[], total}``."""
        text, part = _text(request.query_params, "text"), _page_of(request.query_params)

        def find(run: RunContents) -> dict[str, Any]:
            found, total = browse.prompts(run, text, **part)
            return {"prompts": found, "total": total}

        return self._about_run(request, (text, *part.values()), find)

    def prompt(self, request: Request) -> Response:
        """Answer with a ``PromptView``, or null."""
        wanted = _text(request.query_params, "id")
        if wanted is None:
            raise BadQuestion("id is missing: the prompt's, as in a group's prompt_id")

        def find(run: RunContents) -> PromptView | None:
            return browse.prompt(run, wanted) if wanted in index_of(run).by_prompt else None

        return self._about_run(request, (wanted,), find)

    def trace(self, request: Request) -> Response:
        """trace.json for Perfetto, of one run or several, as a download."""
        names = self._names(request.query_params)
        answer = self.shelf.answer(
            ("trace", *names), names, lambda: trace_of([(name, self.shelf.run(name)) for name in names])
        )
        response = _send(request, answer)
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", names[0].rpartition("/")[2])[:100]
        response.headers["content-disposition"] = f'attachment; filename="{plain}.trace.json"'
        return response

    def _about_run(self, request: Request, question: tuple[Any, ...], find: Callable[[RunContents], Any]) -> Response:
        name = self._name(request.query_params)
        key = (request.url.path, name, *question)
        return _send(request, self.shelf.answer(key, [name], lambda: find(self.shelf.run(name))))

    def _names(self, ask: QueryParams) -> list[str]:
        """Return the runs that a query names, each once. Raises if there is none, or too many."""
        names = list(dict.fromkeys(ask.getlist("run")))
        if not 1 <= len(names) <= MOST_RUNS:
            raise BadQuestion(f"the query names {len(names)} runs; expected 1 to {MOST_RUNS}, each as run=NAME")
        for name in names:
            self.folder.path_of(name)
        return names

    def _name(self, ask: QueryParams) -> str:
        names = self._names(ask)
        if len(names) != 1:
            raise BadQuestion(f"the query names {len(names)} runs; expected one, as run=NAME")
        return names[0]


# ------------------------------------------------------------------------------------------------------------ queries


def _number(ask: QueryParams, name: str, least: int = 0, most: int = LARGEST) -> int | None:
    """Return a whole number of the query; None if it is absent or empty."""
    given = ask.get(name, "")
    if given == "":
        return None
    if not re.fullmatch(r"[0-9]{1,19}", given) or not least <= int(given) <= most:
        raise BadQuestion(f"{name} is {brief_name(given)}, expected a whole number from {least} to {most}")
    return int(given)


def _page_of(ask: QueryParams) -> dict[str, int]:
    return {"limit": _number(ask, "limit", 1, browse.MOST) or 50, "offset": _number(ask, "offset") or 0}


def _needed(request: Request, name: str, most: int = LARGEST) -> int:
    value = _number(request.query_params, name, 0, most)
    if value is None:
        raise BadQuestion(f"{name} is missing: a whole number")
    return value


def _text(ask: QueryParams, name: str) -> str | None:
    """Return a text of the query; None if it is absent or empty."""
    given = ask.get(name, "")
    if len(given) > LONGEST_TEXT:
        raise BadQuestion(f"{name} has {len(given)} characters, expected at most {LONGEST_TEXT}")
    return given or None


def _flag(ask: QueryParams, name: str) -> bool | None:
    given = ask.get(name, "")
    if given not in ("", "true", "false", "1", "0"):
        raise BadQuestion(f"{name} is {brief_name(given)}, expected true or false")
    return None if given == "" else given in ("true", "1")


# ------------------------------------------------------------------------------------------------------------ answers


def _send(request: Request, answer: JsonPayload) -> Response:
    """Return the answer; or 304 if the client has it already."""
    tag = f'W/"{answer.tag}"'
    headers = {"etag": tag, "vary": "accept-encoding", "server-timing": f"cpu;dur={answer.seconds * 1000:.0f}"}
    if tag in [given.strip() for given in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    body = answer.body
    if answer.packed is not None and "gzip" in request.headers.get("accept-encoding", "").lower():
        body, headers["content-encoding"] = answer.packed, "gzip"
    return Response(body, media_type="application/json", headers=headers)


def _page(text: str) -> Response:
    """Return a page, with its own policy as a header too, where it can also forbid being framed."""
    found = _POLICY.search(text)
    assert found is not None, "the page names no policy"
    policy = html.unescape(found[1]) + "; frame-ancestors 'none'"
    return HTMLResponse(text, headers={"content-security-policy": policy})


@cache
def _runs_html(folder: str) -> str:
    return document(
        f"{folder} · dapo",
        (
            '<a class="skip" href="#runs">Skip to the runs</a>\n'
            '<header id="top"></header>\n<main id="runs" tabindex="-1"></main>\n<footer id="foot"></footer>\n'
            "<noscript><p>This page draws curves with JavaScript, which is switched off here.</p></noscript>"
        ),
        ("base.css", "live.css", "runs.css"),
        (("vendor/htm.min.js",), ("dom.js", "text.js", "format.js", "theme.js", "live.js", "runs.js")),
        {},
        connect="'self'",
    )


def _refuse(request: Request, status: int, why: str) -> Response:
    """In words to a person who followed a link (a browser asks for HTML then), in JSON to all others."""
    if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"error": why}, status_code=status)
    said = html.escape(f"{why[:1].upper()}{why[1:]}.")
    text = document("dapo", f'<main><h1>{said}</h1><p><a href="/">All runs</a></p></main>', ("base.css",), (), {})
    response = _page(text)
    response.status_code = status
    return response


def _safe(answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Turn what may go wrong into a plain answer, without tracebacks and without paths of this machine."""

    def endpoint(request: Request) -> Response:
        try:
            return answer(request)
        except (BadQuestion, BadName) as error:
            return _refuse(request, 400, str(error))
        except NoSuchRun as error:
            return _refuse(request, 404, str(error))
        except (RunChanged, RecipeError, DataError, OSError, pa.ArrowException) as error:
            _log.info("%s: %s", request.url.path, error)
            why = "a file of the run cannot be read just now: it is being written, or damaged"
            response = _refuse(request, 503, why)
            response.headers["retry-after"] = "1"
            return response
        except Exception:
            _log.exception("no answer to %s", request.url.path)
            return _refuse(request, 500, "an error of the server; its terminal says more")

    return endpoint


def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return _refuse(request, error.status_code, "there is no such page; the list of runs is at /")
    response = _refuse(request, 405, "this server only shows; ask with GET or HEAD")
    response.headers.update(error.headers or {})
    return response
