"""Parts of ``cluster.py`` that concern learners and weights.

*Learner*: one training step over 1, 2 and 4 ranks in processes of one thread each, with layers that stay gathered and
with layers that are freed; tokens a second by the clock, and processor seconds of all ranks together, which tell what
the split costs where cores are few.

*Publish*: from a learner of one process to two engines in processes of their own, by files and by broadcast over gloo,
for models of several sizes: wall-clock seconds until both engines have them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dapo.config import schema
from dapo.config.deployment import Deployment
from dapo.config.load import recipe_from_dict
from dapo.engines.factory import EngineSpec, engine_host
from dapo.engines.pool import EnginePool
from dapo.engines.requests import Gate
from dapo.models.facts import read_facts
from dapo.models.rendezvous import LOOPBACK
from dapo.models.tiny import make_tiny_model
from dapo.processes.local import ProcessTransport
from dapo.processes.transport import HostSpec
from dapo.run.learners import make_learner
from dapo.types.batch import LearnStep, Row
from dapo.weights.exchange import WeightExchange
from dapo.weights.routes import ROUTES
from dapo.weights.sets import WeightSets

GROUPS, GROUP_SIZE, MINIBATCHES = 32, 16, 4
HIDDEN = 256
"""Width of the learner's model."""
SIZES = {"4 M": (256, 4), "16 M": (512, 4), "67 M": (1024, 4)}
"""Width and layers by about the number of parameters, in float32."""


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


def make_step() -> LearnStep:
    """Return one training step: groups of responses with log-normal lengths of 15 tokens in the mean, 256 at most."""
    random = np.random.default_rng(0)
    groups: list[list[Row]] = []
    for group in range(GROUPS):
        prompt, rows = random.integers(3, 78, 9), list[Row]()
        for _ in range(GROUP_SIZE):
            length = int(np.clip(round(random.lognormal(np.log(15) - 0.5, 1.0)), 2, 256))
            rows.append(
                Row(
                    group=group,
                    sample=0,
                    prompt_ids=prompt,
                    token_ids=random.integers(3, 78, length),
                    loss_mask=np.ones(length, np.bool_),
                    sampler_logprobs=np.full(length, -4.4, dtype=np.float32),
                    versions=np.zeros(length, np.int32),
                    loss_weight=0.0,
                    advantage=float(random.normal()),
                )
            )
        groups.append(rows)
    minibatches = []
    for first in range(0, GROUPS, GROUPS // MINIBATCHES):
        batch = [row for rows in groups[first : first + GROUPS // MINIBATCHES] for row in rows]
        total = sum(len(row.token_ids) for row in batch)
        minibatches.append([replace(row, loss_weight=1 / total) for row in batch])
    return LearnStep(minibatches, [1e-5] * MINIBATCHES, 0)


def learner_rows(rounds: int) -> list[dict[str, Any]]:
    """Tokens a second by ranks and by what is gathered."""
    step, rows = make_step(), []
    tokens = sum(len(row.prompt_ids) + len(row.token_ids) for batch in step.minibatches for row in batch)
    with tempfile.TemporaryDirectory() as work:
        folder = str(make_tiny_model(Path(work) / "model", hidden=HIDDEN, heads=4, ffn=2 * HIDDEN))
        for ranks, reshard in ((1, "auto"), (2, "false"), (2, "true"), (4, "false"), (4, "true")):
            recipe = recipe_of(folder, learner={"ranks": ranks, "reshard_after_forward": reshard})
            deployment = elsewhere(recipe)
            learner = make_learner(
                recipe,
                deployment,
                read_facts(folder, "float32"),
                None,
                exchange=WeightExchange(ROUTES["folder"](WeightSets(Path(work) / "weights"), LOOPBACK, 0.0)),
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


def _learner_table(rows: list[dict[str, Any]]) -> list[str]:
    first = rows[0]
    lines = [
        f"A step of {first['tokens']:,} tokens on {HIDDEN} columns; each rank has one thread. Seconds by the "
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


TABLES = {"learner": _learner_table, "publish": _publish_table}
