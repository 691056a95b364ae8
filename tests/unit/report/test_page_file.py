"""The page as a file: its policy, its data, the libraries in it. Without a browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from typing import Any

import pytest
import vendored
from hypothesis import given
from hypothesis import strategies as st

from dapo.errors import DataError
from dapo.report.page import Live, packed, page_html

EMPTY: Any = {"version": "0", "made": 0.0, "live": False, "runs": [], "bands": {}, "glossary": {}}


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def scripts(text: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", text, re.S)


def policy(text: str) -> dict[str, list[str]]:
    found = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert found
    return {part.split()[0]: part.split()[1:] for part in found[1].split("; ")}


def test_the_policy_names_each_script_and_style_by_its_hash() -> None:
    text = page_html(EMPTY)
    rules = policy(text)
    for kind, blocks in (("script-src", scripts(text)), ("style-src", re.findall(r"<style>(.*?)</style>", text, re.S))):
        digests = [base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
        assert rules[kind] == [f"'sha256-{digest}'" for digest in digests]
    assert len(scripts(text)) == 2
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == ["'none'"]
    assert "unsafe" not in " ".join(" ".join(rule) for rule in rules.values())


def test_a_live_page_may_ask_its_own_server_and_no_other() -> None:
    text = page_html(live=Live(run="runs/<a>", api="/api/"))
    assert policy(text)["connect-src"] == ["'self'"]
    block = re.search(r'id="live">([^<]*)<', text)
    assert block
    assert unpacked(block[1]) == {"run": "runs/<a>", "api": "/api/", "alone": False}
    assert "<title>runs/&lt;a&gt; · dapo</title>" in text
    assert 'id="bundle"' not in text
    assert "function liveSource" in text
    assert "function liveSource" not in page_html(EMPTY)


def test_one_of_bundle_and_live_is_given() -> None:
    with pytest.raises(DataError, match="either a bundle"):
        page_html()
    with pytest.raises(DataError, match="either a bundle"):
        page_html(EMPTY, Live(run="a", api="/"))


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.none(), st.lists, max_leaves=8))
def test_what_is_packed_is_unpacked_and_holds_no_markup(value: Any) -> None:
    text = packed(value)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", text)
    assert unpacked(text) == value


def test_halves_of_surrogate_pairs_survive() -> None:
    assert unpacked(packed({"a": "\ud800 \udc00"})) == {"a": "\ud800 \udc00"}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_in_words(number: float) -> None:
    with pytest.raises(DataError, match="write None for it"):
        packed({"a": [number]})


def test_the_page_names_no_address_that_a_browser_would_fetch() -> None:
    text = page_html(EMPTY)
    assert not re.search(r"""(src|href)=["'](https?:)?//""", text)
    assert "sourceMappingURL" not in text
    assert "@import" not in text


def test_the_libraries_are_those_that_were_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    assert vendored.main(["--check"]) == 0
    named = {here for library in vendored.LIBRARIES for _, here, _ in library.files}
    assert {path.name for path in vendored.FOLDER.iterdir()} == named | {"README.md"}
    readme = (vendored.FOLDER / "README.md").read_text(encoding="utf-8")
    for library in vendored.LIBRARIES:
        assert f"| `{library.package}` | {library.version} | {library.licence} |" in readme
    with pytest.raises(DataError, match="expected"):
        vendored.expect(b"another", vendored.LIBRARIES[0].sha256, "uplot")


def test_pointers_to_source_maps_are_dropped() -> None:
    assert vendored.without_source_map(b"a()\n//# sourceMappingURL=a.js.map") == b"a()\n"
    assert vendored.without_source_map(b"b{}\n/*# sourceMappingURL=b.css.map */") == b"b{}\n"
