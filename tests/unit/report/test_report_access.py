"""What the local server refuses: other methods, hosts, sites, names that lead elsewhere, questions without bounds."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import Served, made, named, serving

from dapo.report import serve
from dapo.report.runs_list import BadName, NoSuchRun, RunsFolder


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_it_only_reads(server: Served, method: str) -> None:
    target = "localhost:80" if method == "CONNECT" else "/api/runs"
    reply = server.ask(target, method)
    assert reply.status in ((400, 404) if method == "CONNECT" else (405,))
    if reply.status == 405:
        assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_head_is_get_without_the_body(server: Served) -> None:
    got, head = server.ask("/api/runs"), server.ask("/api/runs", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == got.headers["etag"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:6006", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:6006", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("192.168.1.7:6006", 400),
        ("0.0.0.0", 400),
        ("localhost:evil.example", 400),
        ("evil.example#localhost", 400),
        ("user@localhost", 400),
        ("localhost/x", 400),
        ("", 400),
    ],
)
def test_the_host_must_be_this_machine(server: Served, host: str, status: int) -> None:
    for target in ("/", "/api/runs"):
        assert server.ask(target, Host=host).status == status


def test_two_hosts_are_no_host(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_server_for_others_takes_addresses_and_its_own_name_only(runs: Path) -> None:
    with serving(runs, hosts=["Box.lan"], any_address=True) as served:
        for host in ("box.lan:6006", "10.0.0.7", "[fd00::1]:6006"):
            assert served.ask("/api/runs", Host=host).status == 200
        for host in ("evil.example", "10.0.0.7.evil", "evil.7", "[fd00::1", ""):
            assert served.ask("/api/runs", Host=host).status == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1"])
def test_data_go_to_our_own_pages_alone(server: Served, origin: str) -> None:
    headers = server.ask("/api/runs", Origin=origin, Sec_Fetch_Site="cross-site").headers
    assert not [name for name in headers if name.startswith("access-control-")]  # so no script of theirs may read it
    assert headers["cross-origin-resource-policy"] == "same-origin"  # nor may a page of theirs embed it


OUTSIDE = [
    "..",
    "../..",
    "../runs/good",
    "good/..",
    "good/../good",
    "./good",
    "good/",
    "good//",
    "//good",
    "/etc",
    "/etc/passwd",
    "good/rollouts",
    "note.txt",
    "no_run",
    ".hidden/run",
    ".",
    "good\\..\\..",
    "%2e%2e/%2e%2e",
    "~",
    "a/" * 40 + "good",
    "x" * 300,
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_lead_nowhere_else(server: Served, name: str) -> None:
    quoted = urllib.parse.quote(name, safe="")
    targets = [f"/api/{what}?run={quoted}" for what in ("bundle", "groups", "prompts", "trace")]
    targets += [f"/api/group?run={quoted}&step=1&group=1", f"/api/prompt?run={quoted}&id=x", f"/compare?run={quoted}"]
    targets += [f"/run/{quoted}", f"/run/{name}" if " " not in name else f"/run/{quoted}"]
    for target in targets:
        reply = server.ask(target)
        assert reply.status == 404, target
        assert set(reply.json) == {"error"}


@pytest.mark.parametrize("target", ["/run/%2e%2e%2f", "/run/%2e%2e/%2e%2e/etc", "/run/../../etc/passwd", "/../etc"])
def test_dots_in_a_path_lead_nowhere(server: Served, target: str) -> None:
    assert server.ask(target).status == 404


@pytest.mark.parametrize("name", ["", "good\0", "\0", "good\r\nx: y", "x" * 1001, "x" * 9000, "\udcff"])
def test_names_that_can_be_none_are_bad_questions(server: Served, name: str) -> None:
    quoted = urllib.parse.quote(name, safe="", errors="surrogateescape")
    expected = 404 if name == "\udcff" else 400  # a byte that is no UTF-8 arrives as a replacement character
    assert server.ask(f"/api/bundle?run={quoted}").status == expected


@given(st.text(max_size=30) | st.lists(st.sampled_from(["..", ".", "", "good", "sweep", "/", "~"])).map("/".join))
def test_no_name_leaves_the_folder(runs: Path, name: str) -> None:
    folder = RunsFolder.at(runs)
    try:
        path = folder.path_of(name)
    except (NoSuchRun, BadName):
        return
    assert path.resolve().is_relative_to(runs.resolve())
    assert (path / "recipe.resolved.yaml").is_file()


def test_links_are_followed_within_the_folder_only(tmp_path: Path) -> None:
    elsewhere = made(tmp_path / "elsewhere" / "secret", steps=2)
    runs = tmp_path / "runs"
    made(runs / "good", steps=2)
    (runs / "latest").symlink_to("good")
    (runs / "out").symlink_to(elsewhere)
    (runs / "up").symlink_to(elsewhere.parent)
    (runs / "round").symlink_to("round")
    odd = made(runs / "odd", steps=2)
    (odd / "log.txt").unlink()
    (odd / "log.txt").symlink_to(elsewhere / "log.txt")
    other = made(runs / "other", steps=2)
    (other / "rollouts" / "step_000001.parquet").unlink()
    (other / "rollouts" / "step_000001.parquet").symlink_to(elsewhere / "rollouts" / "step_000001.parquet")
    with serving(runs) as served:
        content = served.ask("/api/runs").json
        assert sorted(line["name"] for line in content["runs"]) == ["good", "odd", "other"]
        assert content["led_out"] == 2  # out, up
        asked = {n: served.ask(f"/api/bundle?{named(n)}").status for n in ("good", "latest", "out", "up/secret")}
        assert asked == {"good": 200, "latest": 200, "out": 404, "up/secret": 404}
        notes = served.ask("/api/bundle?run=odd").json["runs"][0]["notes"]
        assert notes == ["log.txt cannot be read: it is a link that leads out of the run."]
        assert served.ask("/api/groups?run=other&step=1").status == 503
        assert served.ask("/api/groups?run=other&step=2").status == 200
        assert served.ask("/run/round").status == 404


@pytest.mark.parametrize(
    "query",
    [
        "groups?run=good&limit=201",
        "groups?run=good&limit=0",
        "groups?run=good&limit=-1",
        "groups?run=good&limit=1e3",
        "groups?run=good&limit=99999999999999999999",
        "groups?run=good&offset=-5",
        "groups?run=good&step=2147483648",
        "groups?run=good&step=one",
        "groups?run=good&step=%D9%A3",
        "groups?run=good&tokens=maybe",
        "groups?run=good&text=" + "x" * 501,
        "group?run=good&step=1",
        "group?run=good&group=1",
        "prompt?run=good",
        "prompts?run=good&limit=1000",
        "groups",
        "bundle",
        "groups?run=good&run=unfilled",
        "bundle?" + "&".join(f"run={n}" for n in range(21)),
    ],
)
def test_questions_have_bounds(server: Served, query: str) -> None:
    reply = server.ask(f"/api/{query}")
    assert reply.status == 400
    assert re.search("expected|missing", reply.json["error"])


def test_what_is_not_there_says_so_without_a_path(server: Served, runs: Path) -> None:
    for target in ("/favicon.ico", "/api", "/api/", "/api/files", "/static/x", "/run", "/run/", "/note.txt", "/good"):
        reply = server.ask(target)
        assert reply.status in (400, 404)
        assert str(runs) not in reply.body.decode()
        assert reply.headers["content-type"] == "application/json"


def test_a_fault_of_ours_tells_no_paths(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("/home/someone/secret")

    monkeypatch.setattr(serve, "bundle_of", broken)
    with serving(runs) as served:
        reply = served.ask("/api/bundle?run=good")
        assert reply.status == 500
        assert "secret" not in reply.body.decode()
        assert "Traceback" not in reply.body.decode()
        assert served.ask("/api/runs").status == 200
