"""A run whose judge takes two seconds and fails often: what is lost, and whether generation waits.

    python benchmarks/judge.py --work FOLDER [--steps 6] [--write]

A stand-in server scores responses of the quickstart's task. It takes ``--latency`` seconds for a request, and
``--failures`` of the requests fail: by an error, a refusal for now, nonsense, or a connection that ends. An engine step
of this small model is slowed by ``--decode`` seconds, as a larger one takes. Runs differ in
``algorithm.dynamic_sampling.verdict_lag``; the first one has a judge that answers at once. With ``--write`` the table
goes to benchmarks/results/judge.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from machine import describe_machine, refuse_changes

from dapo.cli.main import main as dapo
from dapo.observe.metrics import read_metrics, series
from dapo.rollout.embedded import EmbeddedEngine
from dapo.types.batch import SampleEvent

RESULTS = Path(__file__).parent / "results"
LAGS = (0, 16, 128, 400)
FAILURES = ("500", "503", "nonsense", "connection")


class Judge(ThreadingHTTPServer):
    """Score responses: 1.0 for the right total, and the opposite for a share ``errs`` of the responses.

    ``away`` seconds after ``leaves`` seconds from the first request, it ends each connection without an answer.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, latency: float, failures: float, errs: float, leaves: float, away: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.latency, self.failures, self.errs = latency, failures, errs
        self.leaves, self.away, self.first = leaves, away, math.inf
        self.chance, self.lock = random.Random(1), threading.Lock()
        self.seen: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()  # questions that were answered

    def is_away(self) -> bool:
        now = time.monotonic()
        self.first = min(self.first, now)
        return self.leaves <= now - self.first < self.leaves + self.away

    def score(self, prompt: str, response: str, answer: str) -> float:
        right = response.rpartition("=")[2].strip() == answer
        drawn = int.from_bytes(hashlib.sha256(f"{prompt} {response}".encode()).digest()[:4]) / 2**32
        return float(right != (drawn < self.errs))

    def handle_error(self, *_: Any) -> None:  # a client that went away
        pass


class _Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        questions = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["questions"]
        judge = self.server
        with judge.lock:
            fails = judge.chance.random() < judge.failures
            what = judge.chance.choice(FAILURES) if fails else "answered"
            what = "connection" if judge.is_away() else what
            judge.seen[what] += 1
        time.sleep(judge.latency)
        if what == "connection":
            self.close_connection = True
            return
        scores = [judge.score(each["prompt"], each["response"], each["answer"]) for each in questions]
        if what == "answered":
            with judge.lock:
                judge.asked.update(f"{each['prompt']} {each['response']}" for each in questions)
        data = b"soon" if fails else json.dumps({"scores": scores}).encode()
        self.send_response(int(what) if what.isdigit() else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(
    latency: float = 0.0, failures: float = 0.0, errs: float = 0.0, leaves: float = 0.0, away: float = 0.0
) -> Iterator[Judge]:
    judge = Judge(latency, failures, errs, leaves, away)
    threading.Thread(target=judge.serve_forever, daemon=True).start()
    try:
        yield judge
    finally:
        judge.shutdown()
        judge.server_close()


def recipe(folder: Path, url: str, lag: int, steps: int) -> dict[str, object]:
    return {
        "run": {"dir": str(folder), "name": f"lag{lag}"},
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum", "seed": 1, "size": 4000}]},
        "rewards": [{"name": "accuracy", "kind": "service", "url": url, "batch": 16, "concurrency": 16}],
        "rollout": {"prompts_per_step": 4, "group_size": 8, "max_response_tokens": 16, "slots": 32},
        "algorithm": {
            "dynamic_sampling": {"verdict_lag": lag, "lookahead": 100, "max_age": 100, "cap": {"groups": 2000}},
            "overlong_punishment": {"enabled": False},
        },
        "trainer": {"steps": steps},
        "checkpoint": {"every": 0},
    }


def slow_engine(seconds: float) -> None:
    """Let each engine step take so much longer, without any work for the processor."""
    step = EmbeddedEngine._step

    def slowed(engine: EmbeddedEngine) -> list[SampleEvent]:
        time.sleep(seconds)
        return step(engine)

    EmbeddedEngine._step = slowed  # type: ignore[method-assign]


def one_run(folder: Path, latency: float, failures: float, lag: int, steps: int) -> dict[str, Any]:
    """Train, and return the table's row."""
    with serving(latency, failures) as judge:
        file = folder / f"lag{lag}.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(recipe(folder, f"http://127.0.0.1:{judge.server_port}/score", lag, steps)))
        dapo(["train", str(file)])
        seen, asked = dict(judge.seen), judge.asked
    metrics = read_metrics(folder / f"lag{lag}" / "metrics.jsonl")

    def total(key: str) -> float:
        return sum(float(value) for value in series(metrics, key)[1])

    return {
        "lag": lag,
        "latency": latency,
        "requests": sum(seen.values()),
        "failed": sum(count for what, count in seen.items() if what != "answered"),
        "responses": len(asked),
        "asked_twice": sum(count - 1 for count in asked.values()),
        "unscored": total("reward/unscored"),
        "engine_steps": total("sampling/decode_steps"),
        "waited": total("time/score"),
        "generated": total("time/generate"),
    }


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Return the committed page."""
    machine = describe_machine()
    lines = [
        "# A judge that is slow and fails",
        "",
        f"{machine['cpu']}, Python {machine['python']}, commit {machine['commit']}, {machine['date']}: "
        f"`{machine['command']}`.",
        f"{options.steps} training steps a run. A step of the engine takes {options.decode * 1000:.0f} ms and what the "
        "model needs. The machine had other work.",
        "",
        "| judge | `verdict_lag` | requests, of them failed | responses scored, unscored, asked twice | engine steps | "
        "of 100 engine steps: seconds of generation, of waiting for scores |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        share = 100 / row["engine_steps"]
        lines.append(
            f"| {row['latency']:g} s | {row['lag']} | {row['requests']}, {row['failed']} | "
            f"{row['responses']}, {row['unscored']:.0f}, {row['asked_twice']} | {row['engine_steps']:.0f} | "
            f"{row['generated'] * share:.1f}, {row['waited'] * share:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--latency", type=float, default=2.0)
    parser.add_argument("--failures", type=float, default=0.3)
    parser.add_argument("--decode", type=float, default=0.04)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        refuse_changes(RESULTS)
    work = options.work.resolve()
    slow_engine(options.decode)
    rows = [one_run(work / "quick", 0.0, 0.0, LAGS[0], options.steps)]
    rows += [one_run(work / "slow", options.latency, options.failures, lag, options.steps) for lag in LAGS]
    page = report(rows, options)
    if options.write:
        (RESULTS / "judge.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
