"""The local server over a real port: the list, the pages, and what they ask for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served, made, named, serving

from dapo.cli import view
from dapo.errors import RecipeError
from dapo.report import shelf
from dapo.report.runs_list import RunsFolder


def test_the_list_has_a_line_for_each_run_with_its_curves(server: Served) -> None:
    reply = server.ask("/api/runs").json
    lines = {line["name"]: line for line in reply["runs"]}
    assert reply["folder"] == "runs"
    assert set(lines) == {"good", "sweep/seed 2 #%", "unfilled", "crashed"}  # not the hidden one, nor plain folders
    good = lines["good"]
    # made_folders: accuracy is 0.2 + 0.6 x step / 12 in step 0, 4, 8, 12, and the training accuracy lies 0.02 below
    assert good["accuracy"] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert good["accuracy_steps"] == [0, 4, 8, 12]
    assert good["reward"] == pytest.approx([0.18 + 0.05 * step for step in range(1, 13)])
    assert good["reward_steps"] == list(range(1, 13))
    assert (good["state"], good["step"], good["steps"]) == ("finished", 12, 12)
    assert (good["model"], good["preset"]) == ("a/b", "dapo")
    assert good["updated"] == 1_800_000_012.0
    assert {name: line["state"] for name, line in lines.items() if name != "good"} == {
        "sweep/seed 2 #%": "finished",
        "unfilled": "unfilled",
        "crashed": "failed",
    }
    assert lines["unfilled"]["advice"] >= lines["unfilled"]["bad"] >= 1
    assert good["bad"] == 0


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for name, steps in (("a", 2), ("b", 5), ("c", 3)):  # a made run ends `steps` seconds after all of them began
        made(tmp_path / name, steps=steps)
    with serving(tmp_path) as served:
        assert [line["name"] for line in served.ask("/api/runs").json["runs"]] == ["b", "c", "a"]


def test_a_long_run_has_a_short_curve(tmp_path: Path) -> None:
    made(tmp_path / "long", steps=500, parts="status")
    line = shelf.Shelf(RunsFolder.at(tmp_path)).lines()[0][0]
    assert len(line.reward) == shelf.POINTS
    # stretches of ten steps: the first is the mean of steps 1 to 10
    assert line.reward[0] == pytest.approx(0.18 + 0.6 * 5.5 / 500)
    assert line.reward_steps[:2] == [10, 20]
    assert line.reward_steps[-1] == 500


def test_one_run_may_be_served_alone(runs: Path) -> None:
    with serving(runs / "good") as served:
        assert [line["name"] for line in served.ask("/api/runs").json["runs"]] == ["good"]
        assert served.ask("/").headers["location"] == "/run/good"
        assert served.ask("/run/good").status == 200
        assert served.ask("/run/unfilled").status == 404
        assert served.ask("/api/bundle?run=unfilled").status == 404


def test_a_folder_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"does not exist, expected a folder of runs"):
        RunsFolder.at(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="is a file"):
        RunsFolder.at(tmp_path / "file")


def test_an_empty_folder_has_an_empty_list(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        reply = served.ask("/api/runs")
        assert (reply.status, reply.json["runs"], reply.json["led_out"], reply.json["cut"]) == (200, [], 0, False)


def test_a_very_large_folder_is_not_walked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapo.report.runs_list.MOST_FOLDERS", 10)
    for n in range(30):
        (tmp_path / f"folder{n}").mkdir()
    assert RunsFolder.at(tmp_path).find().cut


def test_pages_carry_no_data_and_their_policy_as_a_header(server: Served) -> None:
    for target in ("/", "/run/good", "/run/sweep/seed%202%20%23%25", "/compare?run=good&run=unfilled"):
        reply = server.ask(target)
        assert reply.status == 200
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy.replace("'unsafe-hashes'", "")
        assert not re.search(rb"<script[^>]+src=|<link[^>]+href=\"(?!data:)", reply.body)
        assert b"a/b" not in reply.body.split(b"<script>")[0]  # the model's name is data


def test_every_answer_has_the_safety_headers(server: Served) -> None:
    for target, method in (("/", "GET"), ("/api/runs", "GET"), ("/nothing", "GET"), ("/api/runs", "POST")):
        headers = server.ask(target, method).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert not [name for name in headers if name.startswith("access-control-")]
        assert "server" not in headers


def test_the_bundle_tells_of_the_runs_asked_for(server: Served) -> None:
    bundle = server.ask(f"/api/bundle?run=good&{named('sweep/seed 2 #%')}").json
    assert bundle["live"] is True
    assert [run["status"]["step"] for run in bundle["runs"]] == [12, 12]
    assert [run["seed"] for run in bundle["runs"]] == [1, 2]
    assert bundle["runs"][0]["curves"]["values"]["reward/accuracy"][-1] == pytest.approx(0.78)
    assert bundle["bands"]  # two seeds of one recipe


def test_groups_prompts_and_a_trace_are_had_on_demand(server: Served) -> None:
    found = server.ask("/api/groups?run=good&step=3&limit=2").json
    assert (found["total"], len(found["groups"])) == (6, 2)
    assert {group["step"] for group in found["groups"]} == {3}
    whole = server.ask("/api/group?run=good&step=3&group=3000").json
    assert (whole["group"], len(whole["responses"])) == (3000, 4)
    assert [r["accuracy"] for r in whole["responses"]] == [1.0, 0.0, 1.0, 0.0]
    wrong = server.ask("/api/groups?run=good&step=3&verdict=all_wrong").json
    assert {group["verdict"] for group in wrong["groups"]} == {"all_wrong"}
    assert server.ask("/api/group?run=good&step=3&group=77").json is None

    prompts = server.ask("/api/prompts?run=good&limit=200").json
    assert prompts["total"] == 8
    one = server.ask(f"/api/prompt?run=good&id={prompts['prompts'][0]['id']}").json
    assert len(one["visits"]) == 9  # 72 groups over eight prompts
    assert server.ask("/api/prompt?run=good&id=nobody").json is None

    trace = server.ask("/api/trace?run=good")
    assert trace.headers["content-disposition"] == 'attachment; filename="good.trace.json"'
    assert any(event.get("name") == "generate" for event in trace.json["traceEvents"])


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>\"'&;\u202e\u2028"
    made(tmp_path / name, steps=1)
    made(tmp_path / "two\r\nlines: x", steps=1)
    with serving(tmp_path) as served:
        assert [line["name"] for line in served.ask("/api/runs").json["runs"]] == [name]
        page = served.ask("/run/" + urllib.parse.quote(name))
        assert page.status == 200
        assert b"<img" not in page.body.split(b"<script>")[0]
        trace = served.ask(f"/api/trace?{named(name)}")
        assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]+"', trace.headers["content-disposition"])


def test_a_list_that_takes_long_comes_in_parts_the_newest_first(tmp_path: Path) -> None:
    for n in range(4):
        run = made(tmp_path / f"run{n}", steps=2, parts="status")
        os.utime(run / "metrics.jsonl", (n, n))
    kept = shelf.Shelf(RunsFolder.at(tmp_path))
    seen = [kept.lines(patience=0.0) for _ in range(2)]
    assert [([line.name for line in lines], waiting) for lines, waiting in seen] == [(["run3"], 3)] * 2
    lines, waiting = kept.lines()
    assert (len(lines), waiting) == (4, 0)
    assert kept.lines(patience=0.0)[1] == 0  # what was read once is known


def test_memory_holds_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "KEPT_ROWS", 25)
    kept = shelf.Shelf(RunsFolder.at(tmp_path))
    for n in range(4):
        made(tmp_path / f"run{n}", steps=9, parts="status")  # ten rows
        kept.run(f"run{n}")
    assert [name for name, _ in kept._runs] == ["run2", "run3"]
    assert len(kept.run("run0").rows) == 10


# ------------------------------------------------------------------------------------------------------------ command


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`dapo view` in a process of its own, and the address that it prints."""
    environment = {key: value for key, value in os.environ.items() if key != "SSH_CONNECTION"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dapo", "view", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield process, said
    finally:
        process.kill()
        process.wait()


@pytest.mark.whole
def test_the_command_serves_until_ctrl_c(runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command(str(runs), "--port", str(port)) as (process, said):
            address = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
            assert address is not None
            assert port < int(address[1]) < port + view.PORTS_TRIED  # the next free one
            assert f"port {port} is taken" in said
            assert f"ssh -L {address[1]}:127.0.0.1:{address[1]}" in said
            with urllib.request.urlopen(f"{address[0]}api/runs") as reply:
                content = json.load(reply)
                assert len(content["runs"]) + content["waiting"] == 4
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
            assert process.stdout is not None
            assert process.stdout.read().strip() == "ended"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_the_command_stays_on_the_loopback(runs: Path, host: str) -> None:
    with pytest.raises(RecipeError, match=r"no password.*ssh -L.*--expose"):
        view.view(runs, 0, host, False, False)


def test_what_cannot_be_listened_on_is_said(runs: Path) -> None:
    with pytest.raises(RecipeError, match=r"--host 127\.0\.0\.999 cannot be used"):
        view.view(runs, 0, "127.0.0.999", False, True)
    with pytest.raises(RecipeError, match=r"203\.0\.113\.7 port 6006 cannot be used"):
        view.listen("203.0.113.7", 6006)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(view.listen("127.0.0.1", 0)).getsockname()[1]
        monkey = stack.enter_context(pytest.MonkeyPatch.context())
        monkey.setattr(view, "PORTS_TRIED", 1)
        with pytest.raises(RecipeError, match=f"the ports {first} to {first} .* choose another with --port"):
            view.listen("127.0.0.1", first)


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 6006, "http://127.0.0.1:6006/"),
        ("localhost", 80, "http://localhost:80/"),
        ("::1", 6006, "http://[::1]:6006/"),
        ("0.0.0.0", 6006, "http://127.0.0.1:6006/"),
    ],
)
def test_the_address_for_a_browser(host: str, port: int, address: str) -> None:
    assert view.address_for(host, port) == address


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "0.0.0.0", "::", "fd00::1", "192.168.1.7", "node-1"]
)
def test_the_printed_address_is_answered(runs: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Also where it is not the loopback's usual one."""
    listener, codes = socket.socket(), list[int]()
    listener.bind(("127.0.0.1", 0))

    class Asked:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def serve(self, sockets: list[socket.socket]) -> None:
            port = sockets[0].getsockname()[1]
            said = view.address_for(host, port).removeprefix("http://").rstrip("/").encode()
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/nothing",
                "query_string": b"",
                "headers": [(b"host", said)],
            }

            async def send(message: Any) -> None:
                codes.extend([message["status"]] if "status" in message else [])

            async def receive() -> Any:
                return {"type": "http.request"}

            await self.app(scope, receive, send)

    monkeypatch.setattr("dapo.report.serve.make_server", Asked)
    monkeypatch.setattr(view, "listen", lambda *_: listener)
    assert view.view(runs, 0, host, False, True) == 0
    assert codes == [404]  # no such page; 400 is what other hosts get
