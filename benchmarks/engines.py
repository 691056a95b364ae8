"""The embedded engine against vLLM in the process, on a CPU: model sizes x short and tailed lengths.

    make bench-engines        # about ten minutes; writes benchmarks/results/engines.{json,md}

Both engines get the same 512 requests (32 prompts x 16; for the largest model 128) over the same random weights, with
256 slots and one thread, in turns within one process. A response ends at a stop token; how many tokens of the
vocabulary are stop tokens decides how long responses are. Rates are medians of the turns, their ranges beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine, refuse_changes

from dapo.config.schema import Vllm
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.vllm import VllmEngine
from dapo.models.facts import facts_of
from dapo.models.load import load_model
from dapo.models.loaded import LoadedModel
from dapo.models.tiny import make_tiny_model
from dapo.models.weight_files import model_tensors
from dapo.types.batch import SampleRequest, SamplingParams, Ticket
from dapo.weights.shared import offer

HERE = Path(__file__).resolve().parent
GROUP, SLOTS = 16, 256


@dataclass(frozen=True)
class Size:
    name: str
    prompts: int
    turns: int
    model: dict[str, int]


@dataclass(frozen=True)
class Lengths:
    name: str
    prompt: int
    stop_share: float  # of the vocabulary
    limit: int


SIZES = (
    Size("0.1 M (quickstart)", 32, 7, {"hidden": 64, "layers": 2, "heads": 2, "ffn": 192, "vocabulary": 80}),
    Size("3.4 M", 32, 5, {"hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 768, "vocabulary": 1024}),
    Size("27 M", 8, 3, {"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 1536, "vocabulary": 4096}),
)
LENGTHS = (
    Lengths("short", 8, 0.09, 32),
    Lengths("tailed", 8, 0.0125, 512),
    Lengths("short, prompts of 256", 256, 0.09, 32),
)


def requests(size: Size, lengths: Lengths, turn: int) -> list[SampleRequest]:
    """One training step's work. Stop tokens are the first ones behind the padding token."""
    rng, vocabulary = np.random.default_rng(turn), size.model["vocabulary"]
    stops = tuple(range(1, 1 + max(1, round(lengths.stop_share * vocabulary))))
    sampling = SamplingParams(lengths.limit, stop_token_ids=stops)
    prompts = rng.integers(len(stops) + 1, vocabulary, (size.prompts, lengths.prompt))
    return [
        SampleRequest((turn * size.prompts + p, g), prompts[p], sampling, seed=1000 * turn + p * GROUP + g)
        for p in range(size.prompts)
        for g in range(GROUP)
    ]


def work_off(engine: Any, work: Sequence[SampleRequest]) -> dict[str, float]:
    """Seconds, processor seconds and tokens of one batch of requests."""
    wall, cpu = time.perf_counter(), time.process_time()
    engine.submit(work)
    lengths: list[int] = []
    while events := engine.poll():
        lengths += [len(event.token_ids) for event in events]
    assert len(lengths) == len(work)
    seconds, processor = time.perf_counter() - wall, time.process_time() - cpu
    return {"rate": sum(lengths) / seconds, "cpu": processor, "mean": float(np.mean(lengths)), "longest": max(lengths)}


def ticket(version: int, loaded: LoadedModel) -> Ticket:
    """As a learner in this process publishes."""
    return Ticket(version, "shared", offer(loaded.model), tuple(model_tensors(loaded.model)))


def publish_seconds(engine: Any, loaded: LoadedModel) -> float:
    times = []
    for version in range(1, 6):
        start = time.perf_counter()
        engine.load(ticket(version, loaded))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(size: Size, folder: Path) -> list[dict[str, Any]]:
    loaded = load_model(str(make_tiny_model(folder / size.name, "llama", **size.model)), device="cpu")
    facts = facts_of(loaded)
    longest = max(lengths.prompt + lengths.limit for lengths in LENGTHS)
    engines: dict[str, Any] = {}
    starts = {}
    for name, make in (
        ("embedded", lambda: EmbeddedEngine(loaded, slots=SLOTS)),
        ("vllm", lambda: VllmEngine(facts, cuda=False, longest=longest, slots=SLOTS, settings=Vllm())),
    ):
        start = time.perf_counter()
        engines[name] = make()
        engines[name].load(ticket(0, loaded))
        starts[name] = time.perf_counter() - start
    rows = []
    for lengths in LENGTHS:
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
        for turn in range(size.turns + 1):
            for name in sorted(engines, reverse=bool(turn % 2)):
                found = work_off(engines[name], requests(size, lengths, turn))
                if turn:  # the first is a warm-up
                    turns[name].append(found)
        for name, found_in in turns.items():
            rates = sorted(turn["rate"] for turn in found_in)
            rows.append(
                {
                    "size": size.name,
                    "lengths": lengths.name,
                    "engine": name,
                    "rate": statistics.median(rates),
                    "range": [rates[0], rates[-1]],
                    "cpu": statistics.median(turn["cpu"] for turn in found_in),
                    "mean": statistics.fmean(turn["mean"] for turn in found_in),
                    "longest": max(turn["longest"] for turn in found_in),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    for name, engine in engines.items():
        rows.append(
            {"size": size.name, "engine": name, "start": starts[name], "publish": publish_seconds(engine, loaded)}
        )
        print(json.dumps(rows[-1]), flush=True)
        engine.close()
    return rows


def table(rows: list[dict[str, Any]], machine: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# Embedded engine and vLLM on a CPU",
        "",
        f"{machine['cpu']}, one thread, float32; {json.dumps(machine['packages'])}; commit {machine['commit']}; "
        f"{machine['date']}. `make bench-engines`. 512 responses at a time (27 M: 128), 256 slots; medians, ranges in"
        " brackets.",
        "",
        "| model | lengths | mean (longest) | embedded, tokens/s | vLLM, tokens/s | embedded / vLLM |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rates = {(r["size"], r["lengths"], r["engine"]): r for r in rows if "rate" in r}
    for size in SIZES:
        for lengths in LENGTHS:
            ours, theirs = (rates[size.name, lengths.name, name] for name in ("embedded", "vllm"))
            cells = [f"{r['rate']:,.0f} ({r['range'][0]:,.0f} to {r['range'][1]:,.0f})" for r in (ours, theirs)]
            made, ratio = f"{ours['mean']:.0f} ({ours['longest']:.0f})", f"{ours['rate'] / theirs['rate']:.2f}"
            lines.append("| " + " | ".join([size.name, lengths.name, made, *cells, ratio]) + " |")
    lines += ["", "| model | engine | start, s | publish, ms |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {r['size']} | {r['engine']} | {r['start']:.1f} | {1000 * r['publish']:.1f} |" for r in rows if "start" in r
    ]
    return "\n".join([*lines, "", "vLLM's first start in a process includes its imports.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of engines.json and engines.md")
    options = parser.parse_args()
    refuse_changes(options.out)
    torch.set_num_threads(1)
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for size in SIZES for row in measure(size, Path(folder))]
    setting = {"sizes": [asdict(s) for s in SIZES], "lengths": [asdict(x) for x in LENGTHS], "slots": SLOTS}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "engines.json").write_text(
        json.dumps({"machine": machine, "setting": setting, "rows": rows}, indent=1) + "\n"
    )
    (options.out / "engines.md").write_text(table(rows, machine))
    print(table(rows, machine))


if __name__ == "__main__":
    main()
