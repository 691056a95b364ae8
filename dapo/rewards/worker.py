"""A worker process: runs rewards on items it is sent. Started by ``dapo.rewards.pool``; imports no torch.

Talks over one socket in the frames of ``dapo.rewards.wire``:

    driver -> worker   the rewards, then batches: (a list of (item id, reward, pickled (prompt, completion)), new
                       digests that are hopeless)
    worker -> driver   the messages of ``dapo.rewards.messages``: loading, ready or failed; then began and done for
                       every item
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import threading
import time
from functools import partial
from typing import Any

from dapo.rewards.judges import Judge, Verifier, ask, make_judge
from dapo.rewards.wire import answer_frame, receive


def main(descriptor: int) -> None:
    """Serve items until the driver closes the connection. The guard ends this process when the driver dies."""
    os.set_inheritable(descriptor, False)  # processes that user code starts must not hold it open
    connection = socket.socket(fileno=descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    verifiers: list[Verifier] = inbox.get()
    judges: list[Judge] = []
    try:
        for verifier in verifiers:
            what = verifier.function or f"kind {verifier.kind}"
            _send(connection, {"type": "loading", "name": f"{verifier.name} ({what})"[:400]})
            judges.append(make_judge(verifier))
    except BaseException as error:
        _send(connection, {"type": "failed", "error": str(error)[:2000]})
        return
    _send(connection, {"type": "ready"})
    hopeless: set[str] = set()
    while True:
        items, more = inbox.get()
        hopeless.update(more)
        for item, index, blob in items:
            _send(connection, _judge(connection, judges[index], item, blob, hopeless))


def _judge(connection: socket.socket, judge: Judge, item: int, blob: bytes, hopeless: set[str]) -> dict[str, Any]:
    prompt, completion = pickle.loads(blob)  # its own copy for every item: nothing it changes is seen by others
    begin = partial(_began, connection, item)
    outcome, answer = ask(judge, prompt, completion, hopeless=hopeless, begin=begin)
    return {"type": "done", "item": item, "outcome": outcome, "answer": answer, "time": time.monotonic()}


def _began(connection: socket.socket, item: int, digest: str) -> None:
    _send(connection, {"type": "began", "item": item, "digest": digest})


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(answer_frame(message))


def _receive(connection: socket.socket, inbox: queue.SimpleQueue[Any]) -> None:
    """Move messages to the inbox. The end of the connection means that the driver has done with us: leave at once."""
    while True:
        try:
            inbox.put(pickle.loads(receive(connection)))
        except BaseException:
            os._exit(0)
