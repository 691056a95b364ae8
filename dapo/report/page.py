"""One self-contained HTML page from a ``PageData``: styles, scripts and data in one file that loads nothing.

The page's own files lie in ``assets``: styles, the scripts in ``SCRIPTS`` (joined in that order into one function, so
they see one another's names and the outside sees ``window.dapoPage`` alone), and the libraries in ``vendor``.

What the page shows beyond its first bundle it asks of a *source*, an object with

    bundle()                            -> Bundle
    groups({run, step, verdict, disposition, source, text, prompt, tokens, offset, limit})
                                        -> {groups: GroupView[], total}
    group(run, step, group)             -> GroupView, whole, or null
    prompts({run, text, offset, limit}) -> {prompts: PromptView[], total}
    prompt(run, id)                     -> PromptView, or null

all of them async. ``run`` is a RunView's ``label``; a filter that is null, undefined or "" does not filter. In lists
``responses`` and ``visits`` may be []. ``source_embedded.js`` answers from the bundle. ``live.js`` defines
``liveSource(live, page)``, where ``live`` is ``Live`` as an object and ``page.update(bundle)`` is called with news.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from dapo.errors import DataError
from dapo.report.page_data import PageData

ASSETS = Path(__file__).parent / "assets"
LIBRARIES = ("vendor/htm.min.js", "vendor/uplot.min.js", "vendor/tabulator.min.js")
STYLES = ("vendor/uplot.min.css", "vendor/tabulator.min.css", "base.css", "page.css", "rollouts.css")
SCRIPTS = (
    "dom.js",
    "text.js",
    "format.js",
    "theme.js",
    "source_embedded.js",
    "catalogue.js",
    "series.js",
    "marks.js",
    "chart.js",
    "charts.js",
    "outcome.js",
    "advice.js",
    "list.js",
    "tokens.js",
    "group.js",
    "rollouts.js",
    "prompts.js",
    "heldout.js",
    "time.js",
    "cluster.js",
    "recipe.js",
    "main.js",
)

_PAGE = Template("""\
<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="dapo">
<link rel="icon" href="data:,">
<title>$title</title>
$styles
</head>
<body>
$body
$data
$scripts
</body>
</html>
""")

_BODY = """\
<a class="skip" href="#outcome">Skip to the outcome</a>
<header id="top"></header>
<main id="main" tabindex="-1"><p class="loading" id="loading" role="status">Unpacking the run ...</p></main>
<footer id="foot"></footer>
<noscript><p class="loading">This page is drawn with JavaScript, which is switched off here.</p></noscript>"""


@dataclass(frozen=True, slots=True)
class Live:
    """A page that asks a server: ``run`` as the server names it, ``api`` the path that its questions begin with.

    ``alone``: the server has no other run, and no list.
    """

    run: str
    api: str
    alone: bool = False


def page_html(bundle: PageData | None = None, live: Live | None = None) -> str:
    """Return the page of a bundle (a file: it asks for nothing), or of a server (it fetches from its own origin alone).

    Raises:
        DataError: neither or both were given, or a number of the bundle is not finite.
    """
    if (bundle is None) == (live is None):
        raise DataError("page_html: give either a bundle (a file) or live (a page of the server), not both or none")
    if bundle is not None:
        names = ", ".join(run["label"] for run in bundle["runs"]) or "no run"
        return document(f"{names} · dapo", _BODY, STYLES, (LIBRARIES, SCRIPTS), {"bundle": packed(bundle)})
    assert live is not None
    scripts = (LIBRARIES, (*SCRIPTS[:-1], "live.js", SCRIPTS[-1]))
    return document(
        f"{live.run} · dapo", _BODY, (*STYLES, "live.css"), scripts, {"live": packed(asdict(live))}, connect="'self'"
    )


def document(
    title: str,
    body: str,
    styles: Sequence[str],
    scripts: Sequence[Sequence[str]],
    data: dict[str, str],
    connect: str = "'none'",
) -> str:
    """Return an HTML document whose policy lets run only the scripts named here.

    Args:
        title: plain text.
        body: markup written in this package; never text of a model or a data set.
        styles: files under ``assets``.
        scripts: each entry is a group of files under ``assets`` that becomes one script. The first group, libraries,
            stays as it is; each further one is wrapped into a function of its own, in strict mode.
        data: blocks of the page by id, each as ``packed`` makes it.
        connect: what the page may fetch from, as in a content security policy.
    """
    blocks = [_joined(group, wrap=index > 0) for index, group in enumerate(scripts)]
    sheets = ["\n".join(_asset(name) for name in styles)]
    policy = "; ".join(
        (
            "default-src 'none'",
            "script-src " + " ".join(_hash(block) for block in blocks),
            "style-src " + " ".join(_hash(sheet) for sheet in sheets),
            "img-src data:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return _PAGE.substitute(
        policy=policy,
        title=html.escape(_plain(title)),
        styles="\n".join(f"<style>{sheet}</style>" for sheet in sheets),
        body=body,
        data="\n".join(
            f'<script type="application/octet-stream" id="{html.escape(name)}">{content}</script>'
            for name, content in data.items()
        ),
        scripts="\n".join(f"<script>{block}</script>" for block in blocks),
    )


def packed(value: Any) -> str:
    """JSON, gzip, base64: letters, digits, ``+/=`` alone, so that no text in it can end the block that holds it.

    Raises:
        DataError: a number is not finite; JSON has no word for it, and the contract is None.
    """
    try:
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise DataError(f"the page's data hold a number that is not finite; write None for it ({error})") from error
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0)).decode("ascii")


def _plain(text: str) -> str:
    """Return a title in which characters that UTF-8 cannot hold, or that do not print, are replaced."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in whole)


def _hash(content: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii") + "'"


def _joined(names: Sequence[str], wrap: bool) -> str:
    text = "\n".join(_asset(name) for name in names)
    return f'(() => {{\n"use strict";\n{text}\n}})();\n' if wrap else text


@cache
def _asset(name: str) -> str:
    """Return a file of the page. A closing tag in it would end its element, so it is refused."""
    text = (ASSETS / name).read_text(encoding="utf-8").replace("\r\n", "\n")
    if "</script" in text.lower() or "</style" in text.lower() or "<!--" in text:
        raise DataError(f"{ASSETS / name} holds </script, </style or <!--, which would end its element in the page")
    return text
