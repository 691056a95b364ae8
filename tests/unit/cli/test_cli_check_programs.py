"""``dapo check`` of rewards that run programs or ask a service."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dapo.cli.check_rewards import Trial, try_rewards
from dapo.config import recipe_from_dict
from dapo.data import prepare
from dapo.models.tiny import make_word_tokenizer
from dapo.sandbox.runs import SandboxError
from dapo.sandbox.select import SandboxSettings, try_sandbox

RECORD = {"problem": "Write add.", "tests": ["assert add(1, 2) == 3"], "solution": "def add(a, b): return a + b"}


def tried(tmp_path: Path, records: list[dict[str, Any]], **sections: Any) -> Trial:
    file = tmp_path / "set.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    source = {"path": str(file), "fields": {"problem": "problem", "answer": sections.pop("answer", "")}}
    settings = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [source]}} | sections
    recipe = recipe_from_dict(settings).recipe
    tokenizer = make_word_tokenizer()
    return try_rewards(recipe, prepare(recipe.data, tokenizer), tokenizer)


def need_a_sandbox() -> None:
    try:
        try_sandbox(SandboxSettings())
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.mark.whole
def test_gold_solutions_are_right_and_an_early_exit_is_not(tmp_path: Path) -> None:
    need_a_sandbox()
    rewards = [{"kind": "code", "timeout": 20.0}]
    trial = tried(tmp_path, [RECORD], rewards=rewards)
    text = "\n".join(trial.lines)
    assert trial.lines[0].startswith("sandbox: full")
    assert "mixed groups: some responses, not all" in text
    assert "right ('```python\\nGOLD\\n```') accuracy 1; tests_passed 1" in text
    assert not trial.refusals
    fenced = RECORD | {"solution": f"We add them.\n\n```python\n{RECORD['solution']}\n```\n"}
    trial = tried(tmp_path, [RECORD, fenced | {"problem": "Write a sum."}], rewards=rewards)
    assert not trial.refusals
    assert not any("wrong" in each for each in trial.doubts)
    wrong = RECORD | {"solution": "def add(a, b): return 0"}
    trial = tried(tmp_path, [wrong], rewards=rewards)
    assert any("calls all 1 gold answers wrong" in each for each in trial.refusals)
    trial = tried(tmp_path, [{key: RECORD[key] for key in ("problem", "tests")}], rewards=rewards)
    assert any("no record has a column `solution`" in each for each in trial.doubts)
    trial = tried(tmp_path, [RECORD | {"tests": []}], rewards=rewards)
    assert any("the column 'tests' holds no list of tests" in each for each in trial.refusals)


@pytest.mark.parametrize("useful", [True, False])
def test_a_judge_that_cannot_tell_right_from_wrong_is_a_doubt(tmp_path: Path, useful: bool) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["questions"]
            scores = [0.7 if useful and each["response"] == each["answer"] else 0.4 for each in asked]
            data = json.dumps({"scores": scores}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        reward = {"kind": "service", "url": f"http://127.0.0.1:{server.server_port}"}
        trial = tried(tmp_path, [{"problem": "1+1", "answer": "2"}], answer="answer", rewards=[reward])
    finally:
        server.shutdown()
        server.server_close()
    assert any("mixed groups: scores of accuracy differ" in each for each in trial.brief)
    assert not trial.refusals
    assert any("cannot tell them apart" in each for each in trial.doubts) is not useful


@pytest.mark.parametrize("beside", [False, True])
def test_a_judge_that_is_not_there_is_refused_without_waiting_for_its_outage(tmp_path: Path, beside: bool) -> None:
    """Its default outage limit is ten minutes, and a test has five."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    reward = {"kind": "service", "url": f"http://127.0.0.1:{port}", "retries": 100}
    rewards = [{"kind": "exact"}, reward | {"name": "style"}] if beside else [reward]
    trial = tried(tmp_path, [{"problem": "1+1", "answer": "2"}], answer="answer", rewards=rewards)
    (said,) = trial.refusals
    assert "refused" in said
    assert str(port) in said


def test_a_judge_that_is_out_of_order_is_asked_each_question_once(tmp_path: Path) -> None:
    """A run asks again until the outage limit; a check has nothing to wait for."""
    asked: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        reward = {"kind": "service", "url": f"http://127.0.0.1:{server.server_port}", "outage_limit": 20, "retries": 9}
        trial = tried(tmp_path, [{"problem": "1+1", "answer": "2"}], answer="answer", rewards=[reward])
    finally:
        server.shutdown()
        server.server_close()
    assert "503" in "".join(trial.refusals)
    assert asked
    assert len(asked) == len(set(asked))


def test_a_judge_that_says_nothing_is_a_doubt_without_waiting_for_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dapo.cli.check_rewards.SERVICE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and nobody answers
        reward = {"kind": "service", "url": f"http://127.0.0.1:{silent.getsockname()[1]}", "timeout": 5}
        trial = tried(tmp_path, [{"problem": "1+1", "answer": "2"}], answer="answer", rewards=[reward])
    assert not trial.refusals
    (said,) = trial.doubts
    assert "gave no answer within 0.3 s" in said
    assert "within 5 s" not in said  # what the request itself waited for
