"""What travels between driver and worker: only what a judge reads, many questions in a message, verdicts in company."""

from __future__ import annotations

import json
import pickle
import socket
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scoring import completion, prompt, score_all

from dapo.config.schema import Reward
from dapo.processes.wire import Inbox
from dapo.rewards import worker
from dapo.rewards.compose import build_scorer
from dapo.rewards.judges import Judge
from dapo.rewards.question import Questions, read_question


@pytest.mark.parametrize("kind", ["math", "exact", "regex"])
def test_judges_of_text_are_sent_two_texts(kind: Any) -> None:
    question = Questions().make(kind, prompt("42", note="x"), completion("=42"))
    assert question == ("42", "=42")
    about, response = read_question(question)
    assert (about.answer, response.text) == ("42", "=42")
    assert (len(about.token_ids), len(response)) == (0, 0)


def test_a_task_reads_the_record_and_a_function_everything() -> None:
    ours, response = prompt("42", note=[1, 2]), completion("=42")
    questions = Questions()
    for kind in ("task", "function"):
        about, answer = read_question(questions.make(kind, ours, response))  # type: ignore[arg-type]
        assert (about.id, about.extra["note"], answer.text) == (ours.id, [1, 2], "=42")
        assert len(answer) == (4 if kind == "function" else 0)
    first, second = (read_question(questions.make("function", ours, response))[0] for _ in range(2))
    first.extra["note"].append(3)
    assert second.extra["note"] == ours.extra["note"] == [1, 2], "its own for every response"


def test_a_prompt_travels_once_in_a_message_that_names_it_often() -> None:
    questions, ours = Questions(), prompt("x" * 100_000)
    asked = [questions.make("function", ours, completion(str(n))) for n in range(16)]
    assert len(pickle.dumps(asked)) < 110_000
    other = questions.make("function", prompt("y"), completion("1"))
    assert read_question(other)[0].answer == "y"


def test_many_questions_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen a message, and what is left over goes when somebody asks."""
    scorer = build_scorer([Reward(kind="exact", pattern=r"=(\d+)$")])
    scorer._hasty.clear()  # as if the pattern took long
    try:
        scorer.start()
        assert scorer._pool is not None
        sizes, (process,) = [], scorer._pool._workers
        send = process.send
        monkeypatch.setattr(process, "send", lambda body: sizes.append(len(body[0])) or send(body))
        scores = score_all(scorer, [f"={n}" for n in range(40)])
    finally:
        scorer.close()
    assert [score.values["accuracy"] for score in scores] == [float(n == 42) for n in range(40)]
    assert sizes == [16, 16, 8]


class Wire:
    """Both ends of a connection; what was sent, frame by frame."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.answers = worker._Answers(theirs)
        self._inbox = Inbox()

    def read(self) -> list[list[str]]:
        try:
            self._inbox.feed(self.ours.recv(1 << 20))
        except BlockingIOError:
            return []
        return [[f"{m['type']} {m['item']}" for m in json.loads(body)] for body in self._inbox.frames()]


def test_a_verdict_goes_out_with_the_word_that_the_next_begins() -> None:
    """Before anything that could cost the process: its judging, the work of a function, the reading of a long text."""
    wire, seen = Wire(), list[Any]()

    def looked(*_: Any) -> tuple[float, None]:
        seen.append(wire.read())
        return 1.0, None

    quick = Judge("accuracy", lambda _, response: response.text, looked)
    function = Judge("accuracy", None, looked)
    slow_to_read = Judge("accuracy", lambda _, response: seen.append(wire.read()) or response.text, looked)
    long = "x" * (worker._LONG + 1)
    asked = [
        (quick, ("", "a")),
        (quick, ("", "b")),
        (function, ("", "c")),
        (quick, ("", "d")),
        (slow_to_read, ("", long)),
    ]
    for item, (judge, question) in enumerate(asked):
        worker._judge(wire.answers, judge, item, question, set())
    wire.answers.send()
    assert seen == [
        [["began 0"]],
        [["done 0", "began 1"]],
        [["done 1"]],  # the function begins without a word
        [["done 2", "began 3"]],
        [["done 3"]],
        [["began 4"]],
    ]
    assert wire.read() == [["done 4"]]


def test_what_a_judge_called_hopeless_before_is_not_begun() -> None:
    wire = Wire()
    judge = Judge("accuracy", lambda _, response: response.text, lambda *_: pytest.fail("it was judged"))
    about, _ = read_question(("42", "a"))
    worker._judge(wire.answers, judge, 0, ("42", "a"), {judge.digest(about, "a")})
    wire.answers.send()
    assert wire.read() == [["done 0"]]


def test_unchanged_arrays_reach_a_function() -> None:
    response = completion("x")
    _, read = read_question(Questions().make("function", prompt(), response))
    for name in ("token_ids", "logprobs", "versions"):
        np.testing.assert_array_equal(getattr(read, name), getattr(response, name))


def test_a_function_gets_wide_ids_whatever_process_its_engine_is_in():
    response = replace(completion("=42"), token_ids=np.array([2**30, 7], np.int32))
    _, read = read_question(Questions().make("function", prompt(), response))
    assert read.token_ids.dtype == np.int64
    assert (read.token_ids * 4).tolist() == [2**32, 28]
