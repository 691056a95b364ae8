"""Parts of ``cluster.py`` that concern learners, weights and whole fleets.

*Learner*: one training step over 1, 2 and 4 ranks in processes of one thread each, with layers that stay gathered and
with layers that are freed; tokens a second by the clock, and processor seconds of all ranks together, which tell what
the split costs where cores are few.

*Publish*: from a learner of one process to two engines in processes of their own, by files and by broadcast over gloo,
for models of several sizes: wall-clock seconds until both engines have them.

*Fleet*: the collector that trains over a simulated fleet (``overlap_simulation.py``), two prompts of a batch for every
device: how much of a device's work is left when there are 64 times as many, and what the collector costs.

*Texts*: token ids of responses to texts, which the driver does for each of them: as it does, and beside it all of them
as lists of numbers; in turn, processor time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from learner_step import CASES, make_rows, minibatches
from overlap_simulation import Case, OverlappedFleet, make_collector
from sampling_simulation import SLOTS, make_lengths
from simulated_engine import UNIT
from text_models import make_text_tokenizer

from dapo.config import schema
from dapo.config.deployment import Deployment
from dapo.config.load import recipe_from_dict
from dapo.models.decode import make_decode
from dapo.models.facts import read_facts
from dapo.models.rendezvous import LOOPBACK
from dapo.models.tiny import make_tiny_model
from dapo.processes.local import ProcessTransport
from dapo.processes.transport import HostSpec
from dapo.rollout.factory import EngineSpec, engine_host
from dapo.rollout.pool import EnginePool
from dapo.rollout.requests import Gate
from dapo.run.learners import make_learner
from dapo.types.batch import LearnStep, Ticket
from dapo.weights.exchange import WeightExchange
from dapo.weights.routes import ROUTES
from dapo.weights.sets import WeightSets

CASE = "3m-tail"
PROMPTS_A_DEVICE = 2
FLEETS = (16, 64, 256, 1024)
SIZES = {"4 M": (256, 4), "16 M": (512, 4), "67 M": (1024, 4)}
"""Width and layers by about the number of parameters, in float32."""
RESPONSES = {8: 4096, 64: 512, 1000: 64, 8000: 16}
"""How many there are of each length in tokens."""
STEP = 8192 * 8000
"""Tokens of a large step."""


def recipe_of(folder: str, **sections: Any) -> Any:
    given = {"model": {"path": folder, "device": "cpu"}, "data": {"train": [{"task": "signed_sum"}]}}
    return recipe_from_dict({**given, "run": {"threads": 1}, **sections}).recipe


def elsewhere(recipe: Any) -> Deployment:
    """With a learner in processes of its own, also where it is one that takes turns with the engines."""
    place = "ranks" if recipe.learner.ranks > 1 else "apart"
    return type("Elsewhere", (Deployment,), {"learner": place})(recipe)  # type: ignore[no-any-return]


def processor_seconds(process: int) -> float:
    """Of a process and its threads, so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def learner_rows(rounds: int) -> list[dict[str, Any]]:
    """Tokens a second by ranks and by what is gathered."""
    case, rows = CASES[CASE], []
    step = LearnStep(minibatches(make_rows(case)), [1e-5] * len(minibatches(make_rows(case))), 0)
    tokens = sum(len(row.prompt_ids) + len(row.token_ids) for batch in step.minibatches for row in batch)
    with tempfile.TemporaryDirectory() as work:
        folder = str(make_tiny_model(Path(work) / "model", hidden=case.hidden, heads=4, ffn=2 * case.hidden))
        for ranks, reshard in ((1, "auto"), (2, "false"), (2, "true"), (4, "false"), (4, "true")):
            recipe = recipe_of(folder, learner={"ranks": ranks, "reshard_after_forward": reshard})
            deployment = elsewhere(recipe)
            learner = make_learner(
                recipe,
                deployment,
                read_facts(folder, "float32"),
                None,
                exchange=WeightExchange.by_folder(Path(work) / "weights"),
                run=None,
            )
            processes = [facts.process for facts in learner.workers.facts]
            seconds, spent = [], []
            for number in range(rounds + 1):
                before, began = [processor_seconds(process) for process in processes], time.perf_counter()
                learner.learn(step).result()
                if number:  # the first round warms up
                    seconds.append(time.perf_counter() - began)
                    spent.append(sum(processor_seconds(process) for process in processes) - sum(before))
            learner.close()
            gathered = {"auto": "one process", "false": "stay", "true": "are freed"}[reshard]
            rows.append(
                {
                    "ranks": ranks,
                    "layers": gathered,
                    "tokens_per_second": tokens / statistics.median(seconds),
                    "processor_seconds": statistics.median(spent),
                    "tokens": tokens,
                }
            )
    return rows


def publish_rows(rounds: int) -> list[dict[str, Any]]:
    """Seconds from the publish to both engines' answer."""
    rows = []
    for name, (hidden, layers) in SIZES.items():
        with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
            sizes = {"hidden": hidden, "layers": layers, "heads": 4, "ffn": 4 * hidden}
            folder = str(make_tiny_model(Path(work) / "model", **sizes))
            facts = read_facts(folder, "float32")
            order = EngineSpec(schema.Rollout(), schema.Model(path=folder, device="cpu"), facts, 64, 4)
            specs = [HostSpec(f"engine-{n}", engine_host, (order,), {"OMP_NUM_THREADS": "1"}) for n in range(2)]
            for route in ("folder", "broadcast"):
                recipe = recipe_of(folder)
                exchange = WeightExchange(ROUTES[route](WeightSets(Path(work) / f"weights-{route}"), LOOPBACK, 600.0))
                pool = EnginePool(ProcessTransport(), specs, Gate(facts.vocabulary, 64), exchange=exchange)
                learner = make_learner(recipe, elsewhere(recipe), facts, None, exchange=exchange, run=None)
                seconds = []
                for version in range(rounds + 1):
                    began = time.perf_counter()
                    pool.load(learner.publish(version))
                    seconds.append(time.perf_counter() - began)
                learner.close()
                pool.close()
                rows.append(
                    {
                        "parameters": facts.parameters,
                        "named": name,
                        "route": route,
                        "first": seconds[0],
                        "seconds": statistics.median(seconds[1:]),
                    }
                )
    return rows


def fleet_rows(largest: int) -> list[dict[str, Any]]:
    """A step of every fleet up to ``largest`` devices."""
    rows: list[dict[str, Any]] = []
    for devices in [number for number in FLEETS if number <= largest]:
        engine = OverlappedFleet(make_lengths("log-normal"), engines=devices, slots=SLOTS)
        collector = make_collector(Case("turns", devices), engine, PROMPTS_A_DEVICE * devices)
        warm_up, steps = 2, 3
        trained, began, spent, busy = 0, 0.0, 0.0, 0.0
        for step in range(1, warm_up + steps + 1):
            if step == warm_up + 1:
                began, spent = engine.time, time.process_time()
                busy = engine.stats()["busy_slot_steps"]
            batch = collector.collect(step)
            engine.load(Ticket(step, "shared", "", ()))
            if step > warm_up:
                trained += sum(int(group.lengths().sum()) for group in batch.groups_P) * UNIT
        seconds = engine.time - began
        rows.append(
            {
                "devices": devices,
                "prompts": PROMPTS_A_DEVICE * devices,
                "seconds_per_step": seconds / steps,
                "per_device_second": trained / seconds / devices,
                "slot_use": (engine.stats()["busy_slot_steps"] - busy) / (seconds * engine.capacity),
                "driver_seconds": (time.process_time() - spent) / steps,
            }
        )
    return rows


def text_rows(rounds: int) -> list[dict[str, Any]]:
    """Microseconds of processor time a token, median of the rounds."""
    folder = Path(__file__).resolve().parents[1] / "docs"
    tokenizer = make_text_tokenizer([page.read_text() for page in sorted(folder.glob("*.md"))], vocabulary=4096)
    decode, rng, rows = make_decode(tokenizer), np.random.default_rng(0), []

    def as_lists(ids: list[Any]) -> list[str]:
        return list(tokenizer.batch_decode([row.tolist() for row in ids], skip_special_tokens=True))

    for length, count in RESPONSES.items():
        ids = [rng.integers(2, len(tokenizer), length) for _ in range(count)]
        assert decode(ids) == as_lists(ids)
        spent: dict[str, list[float]] = {"own": [], "lists": []}
        for _ in range(rounds):
            for name, way in (("own", decode), ("lists", as_lists)):
                began = time.process_time()
                way(ids)
                spent[name].append(1e6 * (time.process_time() - began) / (length * count))
        rows.append({"length": length} | {name: statistics.median(seconds) for name, seconds in spent.items()})
    return rows


def _learner_table(rows: list[dict[str, Any]]) -> list[str]:
    first = rows[0]
    lines = [
        f"A step of {first['tokens']:,} tokens (`{CASE}` of learner_step.py); each rank has one thread. Seconds by the "
        "clock are those of a machine with fewer cores than some of these learners have ranks.",
        "",
        "| ranks | gathered layers | tokens/s by the clock | processor seconds of all ranks | of one process |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        share = row["processor_seconds"] / first["processor_seconds"]
        lines.append(
            f"| {row['ranks']} | {row['layers']} | {row['tokens_per_second']:,.0f} | {row['processor_seconds']:.2f} | "
            f"{share:.2f} |"
        )
    return lines


def _publish_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "From a learner of one process to two engines, float32, seconds by the clock: the first publish (a broadcast "
        "makes its group there) and the median of those after it.",
        "",
        "| parameters | MB | route | first | later | MB/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        size = row["parameters"] * 4 / 1e6
        lines.append(
            f"| {row['named']} | {size:,.0f} | {row['route']} | {row['first']:.2f} | {row['seconds']:.2f} | "
            f"{size / row['seconds']:,.0f} |"
        )
    return lines


def _fleet_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{PROMPTS_A_DEVICE} prompts of a batch for every device, half of the groups accepted, generation alone; "
        "the driver's seconds are processor time of the collector and of the simulation together.",
        "",
        "| devices | prompts a step | simulated s a step | trained tokens per device second | of the smallest | slot "
        "use | driver seconds a step |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        share = row["per_device_second"] / rows[0]["per_device_second"]
        lines.append(
            f"| {row['devices']:,} | {row['prompts']:,} | {row['seconds_per_step']:,.0f} | "
            f"{row['per_device_second']:,.0f} | {share:.1%} | {row['slot_use']:.2f} | {row['driver_seconds']:.2f} |"
        )
    return lines


def _text_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "Random ids of a byte-level tokenizer of 4,096 pieces; for scale, "
        f"{STEP / 1e6:.0f} million tokens, 8,192 responses of 8,000, at that price.",
        "",
        "| tokens of a response | us a token | all as lists | ratio | seconds of such a step |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['length']:,} | {row['own']:.2f} | {row['lists']:.2f} | {row['own'] / row['lists']:.2f} | "
            f"{STEP * row['own'] / 1e6:.0f} |"
        )
    return lines


TABLES = {"learner": _learner_table, "publish": _publish_table, "fleet": _fleet_table, "texts": _text_table}
