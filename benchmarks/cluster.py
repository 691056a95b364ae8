"""What several processes cost: pools of engines, the driver of 1,024 engines, ranks, publishes.

    python benchmarks/cluster.py [--rounds 5] [--engines 1024] [--tokens 8000] [--only driver overhead learner publish]
                                 [--out results/cluster.md]

Parts that are not asked for stay as they are in the results.

*Pool overhead*: the quickstart's shape with random weights, 512 responses of drawn lengths, made by the embedded engine
alone, and by a pool of one: inline, in a process of its own, and on a Ray cluster of this machine (where ray is
installed), in turn; with turns of 8 and of 64 steps.

*Driver*: engines that answer at once, so that what is left is the driver: its processor time, whatever else the machine
does. Whatever travels is pickled and unpickled as for a process; packing and computing at the far end are not counted.
``together``: whenever the driver looks, every engine has answered. ``one by one``: it is woken for each answer by
itself, the worst case.

*Learner*, *publish*: ``cluster_parts.py`` says what is measured.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import importlib.util
import json
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cluster_parts
import numpy as np
from cluster_engine import embedded
from machine import describe_machine, refuse_changes

from dapo.engines.host import EngineHost, HostFacts, TurnResult
from dapo.engines.pool import EnginePool
from dapo.engines.requests import Gate
from dapo.models.tiny import make_tiny_model
from dapo.processes.local import ProcessTransport
from dapo.processes.ray_head import OwnCluster
from dapo.processes.transport import HostSpec
from dapo.types.batch import Key, Response, SampleRequest, SamplingParams, Ticket
from dapo.types.enums import FinishReason

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "helpers"))

from inline_transport import InlineTransport  # noqa: E402

GROUP, RESPONSES = 16, 512


def requests_of(lengths: np.ndarray) -> list[SampleRequest]:
    """Groups of ``GROUP`` responses with a prompt of 8 tokens, whose limits are the lengths."""
    prompt = np.arange(3, 11)
    return [
        SampleRequest(Key("train", n // GROUP, n % GROUP), prompt, SamplingParams(max_tokens=int(length)), n)
        for n, length in enumerate(lengths)
    ]


def seconds_of(engine: Any, requests: list[SampleRequest]) -> float:
    began = time.perf_counter()
    engine.submit(requests)
    left = len(requests)
    while left:
        left -= len(engine.poll())
    return time.perf_counter() - began


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of this machine; None without the package."""
    if importlib.util.find_spec("ray") is None:
        yield None
        return
    own = OwnCluster()
    from dapo.processes.ray import RayCluster  # not before: it asks whether the cluster has a token

    cluster = RayCluster(own)
    try:
        yield cluster
    finally:
        cluster.close()


def pool_overhead(rounds: int) -> list[dict[str, Any]]:
    """Seconds of each side over those of the engine alone, round by round."""
    lengths = np.random.default_rng(0).lognormal(np.log(11) - 0.125, 0.5, RESPONSES)
    requests = requests_of(np.clip(lengths, 1, 32).astype(np.int64))
    tokens = sum(r.sampling.max_tokens for r in requests)
    with tempfile.TemporaryDirectory() as work, ray_cluster() as cluster:
        folder = str(make_tiny_model(Path(work) / "model"))
        spec = HostSpec("engine-0", EngineHost, (embedded, folder), {"OMP_NUM_THREADS": "1"})
        sides: dict[str, Any] = {"alone": embedded(folder)}
        for steps in (8, 64):
            transports: dict[str, Any] = {"inline": InlineTransport(), "process": ProcessTransport()}
            if cluster is not None:
                transports["Ray"] = cluster.transport(None)
            for where, transport in transports.items():
                sides[f"{where}, turns of {steps}"] = EnginePool(transport, [spec], Gate(80, 512), turn_steps=steps)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, engine in sides.items():
                spent = seconds_of(engine, requests)
                if number:  # the first round warms up
                    seconds[name].append(spent)
        for engine in sides.values():
            engine.close()
    rows = []
    for name, spent in seconds.items():
        ratios = [one / alone for one, alone in zip(spent, seconds["alone"], strict=True)]
        rows.append(
            {
                "side": name,
                "tokens_per_second": tokens / statistics.median(spent),
                "ratio": [statistics.median(ratios), min(ratios), max(ratios)],
            }
        )
    return rows


class AtOnce:
    """A host whose engine decodes in no time: only counting steps."""

    def __init__(self, slots: int) -> None:
        self.slots, self.clock, self.active = slots, 0, list[tuple[Key, int, int]]()

    def describe(self) -> HostFacts:
        return HostFacts(self.slots, 0, os.getpid(), "here")

    def turn(self, requests: Sequence[SampleRequest], steps: int, dropped: Sequence[Key] = ()) -> TurnResult:
        """What ends within the turn."""
        self.active += [(r.key, self.clock + r.sampling.max_tokens, r.sampling.max_tokens) for r in requests]
        self.clock += steps
        ended = [row for row in self.active if row[1] <= self.clock]
        self.active = [row for row in self.active if row[1] > self.clock]
        events = [
            Response(
                np.zeros(n, dtype=np.int64),
                np.zeros(n, dtype=np.float32),
                np.zeros(n, dtype=np.int32),
                FinishReason.LENGTH,
                key=key,
                tick=end,
            )
            for key, end, n in ended
        ]
        return self._answer(events)

    def load(self, ticket: Ticket, in_flight: str) -> TurnResult:
        """Nothing to load."""
        return self._answer([])

    def checksums(self) -> None:
        """There are no weights."""

    def _answer(self, events: list[Response]) -> TurnResult:
        made = dict.fromkeys(("decode_steps", "generated_tokens"), float(self.clock))
        return TurnResult(events, self.clock, made, 0.0)

    def close(self) -> None:
        """Nothing to close."""


class Counted(InlineTransport):
    """What travels is pickled; ``elsewhere`` sums up the seconds that would be spent at the far end."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        self.elsewhere, self.together = 0.0, together

    def call(self, host: Any, method: str, *args: Any) -> Any:
        return super().call(host, method, pickle.dumps(args, protocol=pickle.HIGHEST_PROTOCOL))

    def wait(self, calls: Any, *, every: bool = False, timeout: float | None = None) -> list[int]:
        return super().wait(calls, every=every or self.together, timeout=timeout)

    def get(self, call: Any) -> Any:
        return pickle.loads(super().get(call))

    def _compute(self, call: Any) -> None:
        began = time.process_time()
        call.args = pickle.loads(call.args[0])
        super()._compute(call)
        call.value = pickle.dumps(call.value, protocol=pickle.HIGHEST_PROTOCOL)
        self.elsewhere += time.process_time() - began


def driver_seconds(engines: int, responses: int, tokens: int, *, lockstep: bool, together: bool) -> dict[str, Any]:
    """Processor time of one training step: submit everything, hear everything."""
    transport = Counted(together)
    specs = [HostSpec(f"engine-{n}", AtOnce, (-(-responses // engines),)) for n in range(engines)]
    pool = EnginePool(transport, specs, Gate(100, None), lockstep=lockstep)
    pool.load(Ticket(0, "shared", "", ()))
    lengths = np.random.default_rng(0).integers(tokens // 2, tokens + tokens // 2, responses)
    groups = requests_of(lengths)
    transport.elsewhere, began = 0.0, time.process_time()
    for start in range(0, responses, GROUP):  # a group at a time, as the collector does
        pool.submit(groups[start : start + GROUP])
    heard = 0
    while heard < responses:
        heard += len(pool.poll())
    seconds = time.process_time() - began - transport.elsewhere
    turns = pool.metrics()["cluster/turns"]
    return {
        "engines": engines,
        "responses": responses,
        "tokens": int(lengths.sum()),
        "mode": ("lockstep" if lockstep else "free") + (", together" if together else ", one by one"),
        "turns": int(turns),
        "driver_seconds": seconds,
        "microseconds_a_turn": 1e6 * seconds / turns,
    }


def driver_rows(many: int, tokens: int) -> list[dict[str, Any]]:
    """A step of many engines in each mode."""
    return [
        driver_seconds(many, 8 * many, 11, lockstep=False, together=True),
        driver_seconds(many, 8 * many, tokens, lockstep=False, together=True),
        driver_seconds(many, 8 * many, tokens, lockstep=True, together=True),
        driver_seconds(16, 8 * many, tokens, lockstep=False, together=True),
        driver_seconds(many, 8 * many, 11, lockstep=False, together=False),
    ]


def page(found: dict[str, Any]) -> str:
    """The tables."""
    lines = ["# What several processes cost", ""]
    for part, title in TITLES.items():
        if part not in found:
            continue
        machine = found[part]["machine"]
        lines += [
            f"## {title}",
            "",
            f"{machine['cpu']}, Python {machine['python']}, torch {machine['packages']['torch']}, commit "
            f"{machine['commit']}, {machine['date']}: `{machine['command']}`. Load average at the start: "
            f"{found[part]['load']:.1f}.",
            "",
            *TABLES[part](found[part]["rows"]),
            "",
        ]
    return "\n".join(lines)


def overhead_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "One engine (the quickstart's shape, random weights, 512 responses of about 11 tokens, 256 slots), wall-clock "
        "seconds over those of the engine alone: median of the rounds [least, greatest].",
        "",
        "| side | tokens/s | seconds over the engine alone |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        middle, least, greatest = row["ratio"]
        lines.append(
            f"| {row['side']} | {row['tokens_per_second']:,.0f} | {middle:.2f} [{least:.2f}, {greatest:.2f}] |"
        )
    return lines


def driver_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "The driver's seconds of processor time for one training step, turns of 64 decode steps, engines that take no "
        "time:",
        "",
        "| engines | responses | tokens | mode | turns | driver seconds | us a turn |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['engines']:,} | {row['responses']:,} | {row['tokens']:,} | {row['mode']} | {row['turns']:,} | "
            f"{row['driver_seconds']:.2f} | {row['microseconds_a_turn']:.0f} |"
        )
    return lines


TITLES = {
    "overhead": "A pool of one engine",
    "driver": "The driver of many engines",
    "learner": "A learner over ranks",
    "publish": "A publish",
}
TABLES = {"overhead": overhead_table, "driver": driver_table, **cluster_parts.TABLES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--out", type=Path, default=HERE / "results/cluster.md")
    options = parser.parse_args()
    refuse_changes(options.out)
    parts = {
        "overhead": lambda: pool_overhead(options.rounds),
        "driver": lambda: driver_rows(options.engines, options.tokens),
        "learner": lambda: cluster_parts.learner_rows(options.rounds),
        "publish": lambda: cluster_parts.publish_rows(options.rounds),
    }
    kept = options.out.with_suffix(".json")
    before = json.loads(kept.read_text()) if kept.exists() else {}
    found: dict[str, Any] = {part: rows for part, rows in before.items() if part in TITLES and isinstance(rows, dict)}
    for part in options.only:
        load = os.getloadavg()[0]
        found[part] = {"machine": describe_machine(), "load": load, "rows": parts[part]()}
        kept.write_text(json.dumps(found, indent=1) + "\n")
        options.out.write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
