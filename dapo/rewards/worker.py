"""A worker process: runs rewards on items it is sent. Started by ``dapo.rewards.pool``; imports no torch.

Talks over one socket in the frames of ``dapo.processes.wire``:

    driver -> worker   the rewards, then batches: (a list of (item id, reward, ``question.Question``), new digests that
                       are hopeless, whether functions are called once before)
    worker -> driver   the messages of ``dapo.rewards.messages``, some in a frame: loading, ready or failed; then began
                       and done for every item, and warming before and after a function's first call
"""

from __future__ import annotations

import os
import pickle
import socket
import time
from dataclasses import replace
from typing import Any

from dapo.processes.wire import answer_frame, receive
from dapo.rewards.compared_text import read_golds
from dapo.rewards.judges import Judge, Verifier, ask, make_judge
from dapo.rewards.question import Question, read_question
from dapo.system import end_with_parent_if_asked

_LONG = 1 << 16  # characters of a response that is not read while a verdict waits to be sent


def main(descriptor: int) -> None:
    """Serve items until the driver closes the connection. The guard ends this process when the driver dies."""
    os.set_inheritable(descriptor, False)  # processes that user code starts must not hold it open
    end_with_parent_if_asked()
    connection = socket.socket(fileno=descriptor)
    verifiers: list[Verifier] = _next(connection)
    answers = _Answers(connection)
    judges: list[Judge] = []
    try:
        for verifier in verifiers:
            what = verifier.function or f"kind {verifier.kind}"
            answers.send({"type": "loading", "name": f"{verifier.name} ({what})"[:400]})
            judges.append(make_judge(verifier))
    except BaseException as error:
        answers.send({"type": "failed", "error": str(error)[:2000]})
        return
    answers.send({"type": "ready"})
    hopeless: set[str] = set()
    cold = {index for index, judge in enumerate(judges) if judge.read is None}
    while True:
        items, more, warms = _next(connection)
        hopeless.update(more)
        for item, index, question in items:
            if warms and index in cold:
                _warm(answers, judges[index], question)
            cold.discard(index)
            _judge(answers, judges[index], item, question, hopeless)
        answers.send()


class _Answers:
    """Messages on their way: a verdict goes out with the word that the next one begins, or at the end of a batch."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._waiting = connection, list[dict[str, Any]]()

    def keep(self, message: dict[str, Any]) -> None:
        self._waiting.append(message)

    def send(self, *messages: dict[str, Any]) -> None:
        """Send kept answers, and these."""
        self._waiting += messages
        if self._waiting:
            self._connection.sendall(answer_frame(self._waiting))
            self._waiting.clear()


def _judge(answers: _Answers, judge: Judge, item: int, question: Question, hopeless: set[str]) -> None:
    def began(digest: str) -> None:
        answers.send({"type": "began", "item": item, "digest": digest})

    if judge.read is None or len(question[1]) > _LONG:  # it may cost the process: what is known goes out before
        answers.send()
    prompt, completion = read_question(question)
    outcome, answer = ask(judge, prompt, completion, hopeless=hopeless, begin=began)
    answers.keep({"type": "done", "item": item, "outcome": outcome, "answer": answer, "time": time.monotonic()})


def _warm(answers: _Answers, judge: Judge, question: Question) -> None:
    """Call a function once with a made-up response, so that what it imports at first is charged to no response.

    The response is the gold answer in a box: most functions then get as far as with a real one.
    """
    answers.send({"type": "warming", "done": False})
    prompt, completion = read_question(question)
    gold = next(iter(read_golds(prompt.answer)), "")
    members = completion if isinstance(completion, list) else [completion]
    made = [replace(each, text=f"Answer: \\boxed{{{gold}}}", answer=None, turns=()) for each in members]
    ask(judge, prompt, made if isinstance(completion, list) else made[0])
    answers.send({"type": "warming", "done": True})


def _next(connection: socket.socket) -> Any:
    """Return the next message. The end of the connection means that the driver no longer needs the worker: leave at
    once."""
    try:
        return pickle.loads(receive(connection))
    except BaseException:
        os._exit(0)
