"""The local server over runs that change: nothing read twice, and no file that is cut, gone or growing upsets it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from serving import Reply, Served, made, serving, until

from dapo.observe import run_files
from dapo.report import runs_list, serve, shelf
from dapo.report.runs_list import RunsFolder, fingerprint


def test_an_unchanged_run_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path / "run", steps=4)
    reads: list[str] = []
    read = shelf.read_run
    monkeypatch.setattr(shelf, "read_run", lambda path, **how: reads.append(path.name) or read(path, **how))
    with serving(tmp_path) as served:
        first = served.ask("/api/bundle?run=run")
        for _ in range(3):
            again = served.ask("/api/bundle?run=run", If_None_Match=first.headers["etag"])
            assert (again.status, again.body) == (304, b"")
            assert served.ask("/api/runs").status == 200
        assert len(reads) == 1  # the list makes do with what the page's question has read
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 5, "reward/accuracy": 0.5}) + "\n")
        news = until(lambda: served.ask("/api/bundle?run=run", If_None_Match=first.headers["etag"]), 200)
        assert news.json["runs"][0]["status"]["step"] == 5
        assert len(reads) == 2


def test_a_tag_changes_with_each_file_and_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapo.report.runs_list.SILENCE_SECONDS", 1e12)  # time stands still
    run = made(tmp_path / "run", steps=2, how="killed")
    seen = {fingerprint(run)}
    for name in ("metrics.jsonl", "samples.jsonl", "spans.jsonl", "status.json", "log.txt", "recipe.resolved.yaml"):
        with (run / name).open("a") as file:
            file.write("\n")
        seen.add(fingerprint(run))
    (run / "rollouts" / "step_000009.parquet").touch()
    seen.add(fingerprint(run))
    (run / "lock").write_text("pid 1")
    assert fingerprint(run) in seen  # a lock that nobody holds changes nothing
    holder = os.posix_spawn(
        "/usr/bin/env",
        ["env", "python3", "-c", HOLD, str(run / "lock"), str(tmp_path / "held")],
        os.environ,
    )
    try:
        while not (tmp_path / "held").exists():
            time.sleep(0.02)
        seen.add(fingerprint(run))
        assert len(seen) == 9
    finally:
        os.kill(holder, 9)
        os.waitpid(holder, 0)


HOLD = """
import fcntl, pathlib, sys, time
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
pathlib.Path(sys.argv[2]).touch()
time.sleep(3600)
"""


@pytest.mark.whole
def test_answers_are_packed_where_the_asker_can_unpack(server: Served) -> None:
    plain, packed = server.ask("/api/bundle?run=good"), server.ask("/api/bundle?run=good", Accept_Encoding="br, gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


@pytest.mark.whole
def test_a_slow_answer_holds_up_no_other(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    whole = serve.bundle_of

    def slow(*given: Any, **how: Any) -> Any:
        made_by.append(threading.get_ident())
        started.set()
        assert go_on.wait(120)
        return whole(*given, **how)

    made_by: list[int] = []
    monkeypatch.setattr(serve, "bundle_of", slow)
    with serving(runs) as served:
        waiting: list[Reply] = []
        asks = [threading.Thread(target=lambda: waiting.append(served.ask("/api/bundle?run=good"))) for _ in range(3)]
        for ask in asks:
            ask.start()
        assert started.wait(120)
        assert served.ask("/api/runs").status == 200
        assert served.ask("/api/groups?run=good&step=1").status == 200
        assert served.ask("/api/bundle?run=nobody").status == 404
        go_on.set()
        for ask in asks:
            ask.join(120)
        assert [reply.status for reply in waiting] == [200, 200, 200]
        assert len({reply.headers["etag"] for reply in waiting}) == 1
        assert len(made_by) == 1  # the others waited for it


TARGETS = (
    "/api/runs",
    "/api/bundle?run=run",
    "/api/groups?run=run&step=2",
    "/api/prompts?run=run",
    "/api/trace?run=run",
)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "samples.jsonl", "spans.jsonl"])
def test_a_file_cut_at_any_byte_is_answered(tmp_path: Path, name: str) -> None:
    run = made(tmp_path / "run", steps=2, groups=2, size=2, prompts=2)
    content = (run / name).read_bytes()
    whole = shelf.Shelf(RunsFolder.at(tmp_path))
    with serving(tmp_path) as served:
        step = max(1, len(content) // 60)
        for length in {*range(0, len(content), step), *range(max(0, len(content) - 40), len(content))}:
            (run / name).write_bytes(content[:length])
            for target in TARGETS[:2]:
                reply = served.ask(target)
                assert reply.status == 200, (length, reply.body)
            if name == "metrics.jsonl":
                assert whole.lines()[0][0].step == max(0, content[:length].count(b"\n") - 1) or length == 0


@pytest.mark.whole
@pytest.mark.parametrize("name", ["rollouts/step_000002.parquet", "tokens/step_000002.parquet", "prompts.parquet"])
def test_a_table_cut_at_any_byte_is_answered(tmp_path: Path, name: str) -> None:
    run = made(tmp_path / "run", steps=2, groups=2, size=2, prompts=2)
    content = (run / name).read_bytes() if (run / name).exists() else b""
    if not content:
        made(tmp_path / "other" / "run", steps=2, groups=2, size=2, prompts=2, parts="tokens rollouts prompts")
        content = (tmp_path / "other" / "run" / name).read_bytes()
        (run / name).parent.mkdir(exist_ok=True)
    with serving(tmp_path) as served:
        for length in [*range(0, len(content), max(1, len(content) // 25)), len(content) - 1]:
            (run / name).write_bytes(content[:length])
            targets = (*TARGETS[1:4], "/api/group?run=run&step=2&group=2000")
            statuses = {target: served.ask(target).status for target in targets}
            assert set(statuses.values()) <= {200, 503}, (length, statuses)
            assert statuses["/api/bundle?run=run"] == 200


@pytest.mark.whole
@pytest.mark.parametrize("target", [*TARGETS, "/run/run"])
def test_a_run_may_go_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """It goes at the moment when the first, the second, ... of its files is opened; each time the server is new."""
    pattern, runs = made(tmp_path / "pattern", steps=2, groups=2, size=2), tmp_path / "runs"
    opened, check = 0, run_files._check_kind

    def going(path: Path, mode: int) -> None:
        nonlocal opened
        if (opened := opened + 1) == last:
            shutil.rmtree(runs / "run")
        check(path, mode)

    monkeypatch.setattr(run_files, "_check_kind", going)
    for last in range(1, 100):
        runs.mkdir(exist_ok=True)
        shutil.copytree(pattern, runs / "run", dirs_exist_ok=True)
        opened = 0
        with serving(runs) as served:
            assert served.ask(target).status in (200, 404, 503), f"gone at file {last}"
            if opened < last:  # it needs no more files
                break
            assert served.ask("/api/bundle?run=run").status == 404
    assert last > (1 if target.startswith("/api") else 0)


@pytest.mark.whole
@pytest.mark.parametrize(("written", "status"), [(True, 503), (False, 500)])
def test_files_that_do_not_fit_together_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool, status: int
) -> None:
    run = made(tmp_path / "run", steps=2)

    def find(*_: Any, **__: Any) -> Any:
        if written:
            (run / "log.txt").write_text("more")
        raise KeyError("a prompt that was in the index a moment ago")

    monkeypatch.setattr(serve.browse, "prompts", find)
    with serving(tmp_path) as served:
        assert served.ask("/api/prompts?run=run").status == status


@pytest.mark.whole
def test_a_run_that_grows_is_followed(tmp_path: Path) -> None:
    run = made(tmp_path / "run", steps=300, how="running", parts="status")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"")
    written = threading.Event()

    def write() -> None:
        with (run / "metrics.jsonl").open("ab", buffering=0) as file:
            for line in lines:
                for start in range(0, len(line), 500):  # in pieces, so that readers see half lines
                    file.write(line[start : start + 500])
                time.sleep(0.002)
        written.set()

    with serving(tmp_path) as served:
        writer = threading.Thread(target=write)
        writer.start()
        steps = [served.ask("/api/bundle?run=run").json["runs"][0]["status"]["step"]]
        while not written.is_set():
            reply = served.ask("/api/bundle?run=run")
            assert reply.status == 200
            steps.append(reply.json["runs"][0]["status"]["step"])
        writer.join(120)
        for _ in range(2400):
            if steps[-1] == 300:
                break
            time.sleep(0.05)
            steps.append(served.ask("/api/bundle?run=run").json["runs"][0]["status"]["step"])
    assert steps == sorted(steps)
    assert steps[-1] == 300
    assert served.thread.is_alive() is False


def test_a_run_begun_again_is_read_anew(tmp_path: Path) -> None:
    """A resume cuts metrics.jsonl back; what is appended then belongs to other steps."""
    run = made(tmp_path / "run", steps=6, parts="status")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    kept = shelf.Shelf(RunsFolder.at(tmp_path))
    assert len(kept.run("run").rows) == 7
    (run / ".new").write_bytes(b"".join(lines[:3]))
    (run / ".new").replace(run / "metrics.jsonl")
    assert [row["step"] for row in kept.run("run").rows] == [0, 1, 2]
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(lines[3])
    assert [row["step"] for row in kept.run("run").rows] == [0, 1, 2, 3]


@pytest.mark.whole
def test_a_silent_run_is_told_anew_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page says how old the last update is, and a run on another machine counts as running for a while only."""
    now = 1_800_000_000.0
    monkeypatch.setattr("dapo.report.runs_list.time.time", lambda: now)
    going, ended = made(tmp_path / "going", steps=2, how="running"), made(tmp_path / "ended", steps=2)
    before = fingerprint(going), fingerprint(ended)
    now += runs_list.SILENCE_SECONDS
    assert fingerprint(going) != before[0]
    assert fingerprint(ended) == before[1]
