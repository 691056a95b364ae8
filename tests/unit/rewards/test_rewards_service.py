"""Reward ``service``: a judge behind a stand-in server that is slow, fails and goes away."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from each import each
from scoring import completion, prompt, score_all

from dapo.config.schema import Reward
from dapo.errors import RewardError
from dapo.http import Client, HttpError
from dapo.rewards import service
from dapo.rewards.compose import CompositeScorer, build_scorer
from dapo.types.batch import Score

DROP = -1  # a status: the connection is closed without an answer


class Judge:
    """A service whose behaviour a test gives: (number of the request, path, body, headers) -> status and answer."""

    def __init__(self, behave: Callable[[int, str, Any, dict[str, str]], tuple[int, Any]]) -> None:
        self.behave, self.bodies, self.lock = behave, list[Any](), threading.Lock()
        self.under_way = self.most_under_way = 0
        self.url = ""

    def questions(self) -> list[str]:
        return [each["response"] for body in self.bodies for each in body["questions"]]


@contextmanager
def judge(behave: Callable[[int, str, Any, dict[str, str]], tuple[int, Any]]) -> Iterator[Judge]:
    made = Judge(behave)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with made.lock:
                number = len(made.bodies)
                made.bodies.append(body)
                made.under_way += 1
                made.most_under_way = max(made.most_under_way, made.under_way)
            try:
                status, answer = made.behave(number, self.path, body, dict(self.headers))
            finally:
                with made.lock:
                    made.under_way -= 1
            if status == DROP:
                self.close_connection = True
                return
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:  # a client that went away
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def score_of(text: str) -> float:
    return len(text) % 10 / 10


def good(body: Any) -> tuple[int, Any]:
    return 200, {"scores": [score_of(each["response"]) for each in body["questions"]]}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_SHORTEST", 0.005)
    monkeypatch.setattr(service, "_LONGEST", 0.05)


@contextmanager
def scorer_of(**settings: Any) -> Iterator[CompositeScorer]:
    made = build_scorer([Reward(kind="service", **settings)])
    try:
        yield made
    finally:
        made.close()


def ask(texts: list[str], **settings: Any) -> list[Score]:
    with scorer_of(**settings) as scorer:
        return score_all(scorer, texts)


def test_questions_go_in_batches_and_equal_ones_once() -> None:
    with judge(lambda n, path, body, headers: good(body)) as service_:
        texts = ["x" * (n % 25) for n in range(100)]
        scores = ask(texts, url=service_.url + "/score", batch=8, concurrency=3)
    assert [score.values for score in scores] == [{"accuracy": score_of(text)} for text in texts]
    assert sorted(service_.questions()) == sorted(set(texts))
    assert max(len(body["questions"]) for body in service_.bodies) <= 8
    assert service_.bodies[0]["reward"] == "accuracy"
    assert service_.bodies[0]["questions"][0] | {"response": ""} == {
        "problem": "question",
        "prompt": "question",
        "response": "",
        "answer": "42",
    }


def test_a_slow_service_that_fails_loses_no_response_and_holds_up_nobody() -> None:
    chance, lock = random.Random(3), threading.Lock()
    gate = threading.Event()

    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        gate.wait(20)
        time.sleep(0.02)
        with lock:
            failure = chance.random() < 0.3
            kind = chance.choice([503, 500, DROP, 429, 200])
        if failure:
            return kind, b"not a score"
        return good(body)

    with judge(behave) as service_, scorer_of(url=service_.url, batch=4, concurrency=8) as scorer:
        assert not scorer.quick, "so that a verdict may lag behind generation"
        texts = [f"{n:03}" + "x" * (n % 7) for n in range(300)]
        for index, text in enumerate(texts):
            scorer.submit((0, index), prompt(), completion(text))
            assert scorer.poll(0) == [], "while the judge has not answered, the driver goes on"
        gate.set()
        found: dict[Any, Score] = {}
        while len(found) < len(texts):
            found.update(scorer.poll(20))
        assert [found[0, n].values.get("accuracy") for n in range(300)] == [score_of(text) for text in texts]
        assert scorer.stats()["unscored"] == 0
        assert 1 < service_.most_under_way <= 8


def test_one_question_that_breaks_the_service_costs_itself_alone() -> None:
    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if any(each["response"] == "poison" for each in body["questions"]):
            return 500, b"broken"
        return good(body)

    with judge(behave) as service_:
        scores = ask(["a", "poison", "bbb"], url=service_.url, retries=1, concurrency=1)
    assert [score.scored for score in scores] == [True, False, True]
    assert scores[1].reason is not None
    assert scores[1].reason.startswith("service: 500")


def test_an_outage_is_waited_for_and_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (score,) = ask(["a"], url=f"http://127.0.0.1:{port}", outage_limit=0.2, timeout=1.0)
    assert score.reason is not None
    assert score.reason.startswith("service: away for")
    with judge(lambda n, path, body, headers: (503, b"") if n < 12 else good(body)) as service_:
        (score,) = ask(["abc"], url=service_.url, outage_limit=60.0, retries=0)
    assert score.values == {"accuracy": 0.3}


def test_one_outage_is_waited_for_once_however_many_questions_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is of the service: behind it nobody waits for another ``outage_limit``."""
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(service.ServicePool, "_pause", clock.pause)
    with judge(lambda n, path, body, headers: (503, b"")) as service_:
        scores = ask([f"{n}" for n in range(40)], url=service_.url, batch=1, concurrency=1, outage_limit=10.0)
        assert all(score.reason and score.reason.startswith("service: away for") for score in scores)
        assert len(service_.bodies) == 11 + 39, "the outage, and one try for each question behind it"


def test_a_service_that_answers_again_has_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(service.ServicePool, "_pause", clock.pause)
    with judge(lambda n, path, body, headers: good(body) if n % 9 == 8 else (503, b"")) as service_:
        scores = ask([f"{n}" for n in range(10)], url=service_.url, batch=1, concurrency=1, outage_limit=10.0)
    assert all(score.scored for score in scores)


class Clock:
    """A clock that only pauses move, by a second each."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def pause(self, *_: Any) -> None:
        self.now += 1.0


def test_a_hanging_service_is_an_outage() -> None:
    again = threading.Event()

    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if number:
            again.set()
        else:
            again.wait(10)  # without a limit of its own, the first request would be answered then
        return good(body)

    with judge(behave) as service_:
        (score,) = ask(["abc"], url=service_.url, timeout=0.2)
    assert score.scored
    assert len(service_.bodies) > 1


@each(
    ("answer", "said"),
    [
        ({"scores": []}, "expected {scores"),
        ({"scores": ["1.0"]}, "not a number"),
        ({"scores": [float("nan")]}, "not a number"),
        ({"scores": [True, True]}, "expected {scores"),
        ({"scores": [{"other": 1.0}]}, "without 'accuracy'"),
        ({"scores": [{"error": "too long"}]}, "service: too long"),
        ({"scores": [1.5]}, "accuracy: 1.5 is not in"),
        ({"scores": [None]}, "not a number"),
        (b"[" * 100_000, "no JSON"),
        ([], "expected {scores"),
    ],
)
def test_an_answer_of_another_form_is_no_score(answer: Any, said: str) -> None:
    with judge(lambda n, path, body, headers: (200, answer)) as service_:
        (score,) = ask(["a"], url=service_.url, retries=1)
    assert not score.scored
    assert score.reason is not None
    assert said in score.reason


def test_more_numbers_than_one() -> None:
    with judge(lambda n, path, body, headers: (200, {"scores": [{"accuracy": 0.5, "style": 2}]})) as service_:
        (score,) = ask(["a"], url=service_.url)
    assert score.values == {"accuracy": 0.5, "style": 2.0}


def test_a_refusal_is_not_repeated_and_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "a-secret-key")
    seen = []

    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        seen.append(headers["Authorization"])
        return 401, headers["Authorization"].encode()

    with judge(behave) as service_:
        (score,) = ask(["a"], url=service_.url, api_key_variable="JUDGE_KEY")
    assert seen == ["Bearer a-secret-key"]
    assert score.reason is not None
    assert score.reason.startswith("service: 401")
    assert "a-secret" not in score.reason


@pytest.mark.parametrize(
    ("api", "base", "path"),
    [
        ("openai", "/v1?api-version=3&api_key=S3cr3t", "/v1/chat/completions?api-version=3&api_key=S3cr3t"),
        ("openai", "/v1/chat/completions/?key=S3cr3t", "/v1/chat/completions?key=S3cr3t"),
        ("openai", "?key=S3cr3t", "/v1/chat/completions?key=S3cr3t"),
        ("classify", "/v1/?key=S3cr3t", "/classify?key=S3cr3t"),
        ("dapo", "/score?key=S3cr3t", "/score?key=S3cr3t"),
    ],
)
def test_a_query_stays_behind_the_path_and_is_in_no_reason(api: Any, base: str, path: str) -> None:
    paths = []

    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        paths.append(path)
        return 404, f"nothing at {path}".encode()

    more = {} if api == "dapo" else {"model": "m"}
    with judge(behave) as service_:
        (score,) = ask(["a"], url=service_.url + base, api=api, **more)
    assert paths == [path]
    assert score.reason is not None
    assert score.reason.startswith("service: 404")
    assert "S3cr3t" not in score.reason


def test_a_service_that_cannot_be_reached_shows_no_query() -> None:
    for address in ("http://no host/x?key=S3cr3t", "http://127.0.0.1:99999/x?key=S3cr3t", "http://[::1/x?key=S3cr3t"):
        client = Client()

        async def post(client: Client = client, address: str = address) -> None:
            try:
                await client.post(address, {}, 5.0)
            finally:
                await client.close()

        with pytest.raises(HttpError) as caught:
            asyncio.run(post())
        assert "S3cr3t" not in str(caught.value)


def test_a_key_that_is_not_set_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(RewardError, match="JUDGE_KEY"):
        build_scorer([Reward(kind="service", url="http://127.0.0.1:1", api_key_variable="JUDGE_KEY")])


def test_a_key_with_the_end_of_its_line_is_sent_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "a-secret-key\n")
    seen = []

    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        seen.append(headers["Authorization"])
        return good(body)

    with judge(behave) as service_:
        (score,) = ask(["abc"], url=service_.url, api_key_variable="JUDGE_KEY")
    assert score.scored
    assert seen == ["Bearer a-secret-key"]


@pytest.mark.parametrize("key", ["a-secret\nkey", "a-secret-schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(RewardError, match="JUDGE_KEY") as caught:
        build_scorer([Reward(kind="service", url="http://127.0.0.1:1", api_key_variable="JUDGE_KEY")])
    assert "a-secret" not in str(caught.value)


@each(
    ("reply", "score"),
    [
        ("Score: 0.5", 0.5),
        ("So it is.\n**Score:** 0.75.", 0.75),
        ("Score: 0.1\nNo. Score: **1**", 1.0),
        ("score 5e-1", 0.5),
        ("Score: 1", 1.0),
        ("Score: 1/10", None),
        ("Score: 10 / 10", None),
        ("Score: 50%", None),
        ("Score: 1,5", None),
        ("Score: 1 out of 10", None),
        ("Score: 0.3, as I said. Score: 1/10", None),
        ("Score: 0.5, 3 reasons", 0.5),
        ("Score: .5", 0.5),
    ],
)
def test_a_score_in_words_is_read_whole_or_not_at_all(reply: str, score: float | None) -> None:
    answer = {"choices": [{"message": {"content": reply}}]}
    with judge(lambda n, path, body, headers: (200, answer)) as service_:
        (found,) = ask(["a"], url=service_.url, api="openai", model="big", template="{response}", retries=0)
    assert found.values.get("accuracy") == score


@pytest.mark.parametrize(
    "reply", ["Score:" + " " * 400_000, "Score: " * 60_000, "Score: 1" + " " * 400_000 + "x", "*" * 400_000]
)
def test_a_long_reply_is_read_at_once(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern whose time grows with the square of the blanks needs minutes for these."""
    monkeypatch.setattr(service, "_READING", 60.0)
    answer = {"choices": [{"message": {"content": reply}}]}
    with judge(lambda n, path, body, headers: (200, answer)) as service_:
        (found,) = ask(["a"], url=service_.url, api="openai", model="big", template="{response}", retries=0)
    assert found.reason is None or "no score by" in found.reason


def test_a_pattern_that_backtracks_and_a_parser_that_hangs_cost_their_reply_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "_READING", 0.3)

    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        text = body["messages"][0]["content"]
        return 200, {"choices": [{"message": {"content": text}}]}

    chat: dict[str, Any] = {"api": "openai", "model": "big", "template": "{response}", "retries": 0}
    with judge(behave) as service_:
        bad, good_ = ask(["a" * 60, "a1"], url=service_.url, pattern="(?:a|aa)+(1)$", **chat)
        assert good_.values == {"accuracy": 1.0}
        assert bad.reason is not None
        assert bad.reason.startswith("timeout: the pattern")
        bad, good_ = ask(["hang", "yes"], url=service_.url, parser="verifiers_for_tests:grade_or_hang", **chat)
        assert good_.values == {"accuracy": 1.0}
        assert bad.reason is not None
        assert bad.reason.startswith("timeout: the parser")


def test_the_driver_goes_on_while_a_reply_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def read(self: Any, answer: Any, members: list[None]) -> list[Any]:
        reading.set()
        assert go_on.wait(20)
        return [0.5] * len(members)

    monkeypatch.setattr(service._Own, "read", read)
    with judge(lambda n, path, body, headers: good(body)) as service_, scorer_of(url=service_.url) as scorer:
        scorer.submit((0, 0), prompt(), completion("a"))
        assert reading.wait(20)
        scorer.submit((0, 1), prompt(), completion("b"))  # and another question is sent
        assert scorer.poll(0) == []
        while len(service_.bodies) < 2:
            time.sleep(0.01)
        go_on.set()
        found: dict[Any, Score] = {}
        while len(found) < 2:
            found.update(scorer.poll(20))
    assert all(score.values == {"accuracy": 0.5} for score in found.values())


def test_a_chat_model_as_judge() -> None:
    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        assert path == "/v1/chat/completions"
        assert body["model"] == "big"
        assert body["max_tokens"] == 8
        text = body["messages"][0]["content"]
        assert text.startswith("Q question A 42 R ")
        reply = {"R yes": "Score: 0.2, no: Score: 0.75", "R no": "I cannot say"}[text[-len("R yes") :].strip()]
        return 200, {"choices": [{"message": {"role": "assistant", "content": reply}}]}

    settings: dict[str, Any] = {
        "api": "openai",
        "model": "big",
        "template": "Q {problem} A {answer} R {response}",
        "options": {"max_tokens": 8},
        "retries": 0,
    }
    with judge(behave) as service_:
        yes, no = ask(["yes", "no"], url=service_.url + "/v1", **settings)
        assert yes.values == {"accuracy": 0.75}
        assert no.reason is not None
        assert "no score by" in no.reason
        settings["parser"] = "verifiers_for_tests:grade"
        yes, no = ask(["yes", "no"], url=service_.url, **settings)
    assert (yes.values, no.values) == ({"accuracy": 1.0}, {"accuracy": 0.0})


def test_a_reward_model_as_vllm_serves_it() -> None:
    def behave(number: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        assert path == "/classify"
        rows = [
            {"index": n, "label": "LABEL_0", "probs": [score_of(text.partition("|")[2])], "num_classes": 1}
            for n, text in enumerate(body["input"])
        ]
        return 200, {"data": rows[::-1]}

    with judge(behave) as service_:
        scores = ask(["abc", "a"], url=service_.url, api="classify", model="rm", template="{problem}|{response}")
    assert [score.values["accuracy"] for score in scores] == [0.3, 0.1]


@pytest.mark.whole
def test_beside_rewards_in_worker_processes() -> None:
    rewards = [
        Reward(kind="math"),
        Reward(name="style", kind="service", url="http://127.0.0.1:1", weight=0.5, outage_limit=0.0),
    ]
    with judge(lambda n, path, body, headers: (200, {"scores": [0.5 for _ in body["questions"]]})) as service_:
        scorer = build_scorer([rewards[0], rewards[1].model_copy(update={"url": service_.url})])
        try:
            right, wrong = score_all(scorer, [r"\boxed{42}", r"\boxed{41}"])
        finally:
            scorer.close()
    assert right.values == {"accuracy": 1.0, "style": 0.5}
    assert right.reward == 1.25
    assert wrong.reward == 0.25
    scorer = build_scorer(rewards)
    try:
        (lost,) = score_all(scorer, [r"\boxed{42}"])
    finally:
        scorer.close()
    assert lost.values == {"accuracy": 1.0}
    assert lost.reason is not None
    assert "style" in lost.reason


def test_a_mistake_of_ours_leaves_no_response_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service._Own, "read", lambda *_: 1 / 0)
    with judge(lambda n, path, body, headers: good(body)) as service_:
        (score,) = ask(["a"], url=service_.url)
    assert score.reason is not None
    assert "ZeroDivisionError" in score.reason
