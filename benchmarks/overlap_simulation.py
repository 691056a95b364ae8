"""Generation beside learning, simulated: when it wins over our own synchronous mode at equal hardware, and when not.

The very ``StreamingCollector`` that trains is driven by a simulated fleet (``simulated_engine.py`` says what is
assumed). Modes, all with the same number of devices:

- ``turns``: all devices generate, then all learn (``rollout.max_staleness: 0``); carrying over is on. Between the two
  every device hands its memory over and takes it back: ``SWITCH_SECONDS`` a step.
- ``turns+``: the same with a ``lookahead`` of 2 instead of 0.5, as much work ahead as the modes below have.
- ``S = 1, 2, 4``: some devices learn, the others generate meanwhile. A new set of weights holds each engine up for
  ``PUBLISH_SECONDS``. How many learn is chosen by arithmetic: the eighth of the devices with the least step.
- ``drop``: as S = 2, but without admission: what is too old when its step begins is thrown away.

Learning takes ``share`` of a step of turns, publishing apart, on all devices; on n of D devices it takes
(D / n)^``scaling`` times as long: 1 is a learner that divides perfectly, 0.7 one that gains 1.6 times from twice the
devices.

    python benchmarks/overlap_simulation.py [--out FOLDER] [--only main size verifier] [--minutes N]

Rows that are in the results already are not computed again.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from machine import refuse_changes
from overlap_report import plot, report
from sampling_simulation import CAP, GROUP, MEAN, SEED, SLOTS, make_lengths
from simulated_engine import UNIT, SimulatedEngine
from simulated_world import NumberedPrompts, SimulatedScorer

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.keep import judge_group
from dapo.algorithms.reduction import loss_weights
from dapo.config.schema import DynamicSampling
from dapo.loop.algorithm import Algorithm
from dapo.loop.sampling.collector import BatchShape, CollectorTiming, StreamingCollector
from dapo.loop.sampling.rollouts import Rollouts
from dapo.types.batch import Metrics, SamplingParams, StepBatch, Ticket

AHEAD = 2.0
SWITCH_SECONDS, PUBLISH_SECONDS, VERIFIER_SECONDS = 10.0, 3.0, 2.0
STEPS = {8: (3, 12), 16: (3, 8), 64: (3, 6), 256: (3, 4), 1024: (2, 3)}
"""Training steps by devices: warm-up, then measured."""
PROMPTS = {8: 16, 16: 32, 64: 128, 256: 512, 1024: 512}
MODES = ("turns", "turns+", "S=1", "S=2", "S=4", "drop")


@dataclass(frozen=True)
class Case:
    """One simulation."""

    mode: str
    devices: int = 16
    acceptance: float = 0.5
    share: float = 0.3
    scaling: float = 1.0
    verifier: float = VERIFIER_SECONDS

    @property
    def staleness(self) -> int:
        """S of the mode; 0 takes turns."""
        return {"turns": 0, "turns+": 0, "S=1": 1, "S=2": 2, "S=4": 4, "drop": 2}[self.mode]


class OverlappedFleet(SimulatedEngine):
    """Takes new weights while responses are under way: every engine stands still for ``PUBLISH_SECONDS``."""

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        if in_flight == "abort":
            super().load(ticket, in_flight)
            return
        self.version = ticket.version
        for machine in self._machines:
            self._bring(machine, self.time)
            machine.stall += PUBLISH_SECONDS
            self._changed.add(machine.index)


def make_collector(case: Case, engine: SimulatedEngine, prompts: int | None = None) -> StreamingCollector:
    """The collector of ``case`` over the simulated fleet; ``prompts``: of a step, other than the table says."""
    latency = round(case.verifier / engine.tick)
    limit = case.staleness
    settings: dict[str, Any] = {"cap": {"groups": None}, "lookahead": AHEAD if case.mode == "turns+" else 0.5}
    if limit:
        settings |= {"max_age": limit, "lookahead": limit - 0.5 if limit > 1 else 0.5}
    if case.mode == "drop":
        settings |= {"on_max_age": "drop", "lookahead": float(limit)}
    return StreamingCollector(
        rollouts=Rollouts(engine, SimulatedScorer(engine, SEED, case.acceptance, latency), lambda ids: [""] * len(ids)),
        stream=NumberedPrompts(),
        algorithm=Algorithm(
            judge=lambda values, voters: judge_group(values, voters, metric_is_accuracy=True),
            shape=lambda rewards, lengths, truncated: (rewards, np.zeros(len(rewards))),
            advantages=group_advantages,
            loss_weights=lambda masks, groups: loss_weights(masks, groups, "token_mean"),
            truncated_vote=True,  # so that the acceptance is the one asked for
        ),
        sampling=SamplingParams(max_tokens=CAP // UNIT),
        settings=DynamicSampling(**settings),
        shape=BatchShape(prompts or PROMPTS[case.devices], GROUP),
        run_seed=SEED,
        timing=CollectorTiming(latency, overlaps=limit > 0),
    )


@dataclass
class Counts:
    """What the measured steps came to, learning apart where turns are taken."""

    steps: int
    capacity: int  # slots
    trained: float = 0.0  # units
    discarded: float = 0.0
    seconds: float = 0.0
    generated: float = 0.0
    busy: float = 0.0  # slot seconds
    ages: list[int] = field(default_factory=list)

    def add(self, batch: StepBatch, step: int) -> None:
        """A batch that was trained in ``step``."""
        self.trained += sum(int(group.lengths().sum()) for group in batch.groups_P)
        self.discarded += float(batch.metrics["cost/discarded_tokens"] + batch.metrics["cost/expired_tokens"])
        self.ages += [step - group.born for group in batch.groups_P]

    def end(self, began: float, before: Metrics, engine: SimulatedEngine) -> Counts:
        """With what the engines did since the warm-up."""
        after, self.seconds = engine.stats(), engine.time - began
        self.generated = after["generated_tokens"] - before["generated_tokens"]
        self.busy = after["busy_slot_steps"] - before["busy_slot_steps"]
        return self

    def figures(self, seconds: float, devices: int, learning: float) -> dict[str, float]:
        """Of steps that took ``seconds`` in all, over all devices."""
        return {
            "learn_seconds": learning,
            "seconds_per_step": seconds / self.steps,
            "trained_per_device_second": self.trained * UNIT / seconds / devices,
            "engine_slot_use": self.busy / (seconds * self.capacity),
            "learner_use": learning * self.steps / seconds,
            "discarded": self.discarded / self.generated,
            "age_mean": float(np.mean(self.ages)),
            "age_max": float(max(self.ages)),
        }


@cache
def turns(devices: int, acceptance: float, verifier: float, mode: str = "turns") -> Counts:
    """A run whose devices all generate, until a batch is there: learning comes on top, and changes nothing of it."""
    engine = OverlappedFleet(make_lengths("log-normal"), engines=devices, slots=SLOTS)
    collector = make_collector(Case(mode, devices, acceptance, verifier=verifier), engine)
    warm_up, steps = STEPS[devices]
    counts, began, before = Counts(steps, engine.capacity), 0.0, engine.stats()
    for step in range(1, warm_up + steps + 1):
        batch = collector.collect(step)
        engine.load(Ticket(step, "shared", "", ()))
        if step > warm_up:
            counts.add(batch, step)
        elif step == warm_up:
            began, before = engine.time, engine.stats()
    return counts.end(began, before, engine)


def turns_seconds(case: Case) -> float:
    """To collect a batch with all devices and a quick verifier: what shares are shares of."""
    counts = turns(case.devices, case.acceptance, VERIFIER_SECONDS)
    return counts.seconds / counts.steps


def learn_seconds(case: Case, devices: int) -> float:
    """Of a step, on so many devices."""
    generate = turns_seconds(case)
    return generate * case.share / (1.0 - case.share) * (case.devices / devices) ** case.scaling


def split(case: Case) -> int:
    """Devices that learn: of the eighths of all, the one whose longer half of a step is shortest."""
    generate = turns_seconds(case)
    eighth = case.devices // 8

    def longest(devices: int) -> float:
        engines = generate * case.devices / (case.devices - devices) + PUBLISH_SECONDS
        return max(engines, learn_seconds(case, devices) + PUBLISH_SECONDS)

    return min((eighth * n for n in range(1, 8)), key=longest)


def simulate(case: Case) -> dict[str, float]:
    """Figures of a case."""
    if not case.staleness:
        counts = turns(case.devices, case.acceptance, case.verifier, case.mode)
        learning = learn_seconds(case, case.devices)
        seconds = counts.seconds + counts.steps * (learning + SWITCH_SECONDS + PUBLISH_SECONDS)
        return {"learners": 0, **counts.figures(seconds, case.devices, learning)}
    learners = split(case)
    engine = OverlappedFleet(make_lengths("log-normal"), engines=case.devices - learners, slots=SLOTS)
    collector, learning = make_collector(case, engine), learn_seconds(case, learners)
    warm_up, steps = STEPS[case.devices]
    counts, began, before = Counts(steps, engine.capacity), 0.0, engine.stats()
    for step in range(1, warm_up + steps + 1):
        batch = collector.collect(step)
        if step > warm_up:
            counts.add(batch, step)
        overlap(collector, engine, step + 1, learning)
        engine.load(Ticket(step, "shared", "", ()), "keep")
        if step == warm_up:
            began, before = engine.time, engine.stats()
    counts.end(began, before, engine)
    return {"learners": learners, **counts.figures(counts.seconds, case.devices, learning)}


def overlap(collector: StreamingCollector, engine: SimulatedEngine, step: int, seconds: float) -> None:
    """Work for ``step`` until the learner is done; an engine with nothing to do stands still."""
    end = engine.time + seconds
    collector.begin(step)
    while engine.time < end:
        if not collector.pump():
            engine.wait(math.ceil(end / engine.tick))
            return


# ---------------------------------------------------------------------- the whole comparison


def cases(parts: Sequence[str]) -> list[Case]:
    """Everything that is compared, each once."""
    found: list[Case] = []
    for mode in MODES:
        if "main" in parts:
            found += [
                Case(mode, 16, acceptance, share, scaling)
                for acceptance in (0.3, 0.5, 0.9)
                for share in (0.1, 0.3, 0.6)
                for scaling in (1.0, 0.7)
            ]
        if "size" in parts:
            found += [Case(mode, devices, 0.5, 0.3, 0.7) for devices in (8, 64, 256)]
            if mode in ("turns", "turns+", "S=4"):
                found.append(Case(mode, 1024, 0.5, 0.3, 0.7))
        if "verifier" in parts:
            found += [Case(mode, 16, 0.5, 0.3, 0.7, seconds) for seconds in (0.0, 30.0, 120.0, 300.0)]
    return list(dict.fromkeys(found))


def case_of(row: dict[str, Any]) -> Case:
    return Case(**{known.name: row[known.name] for known in fields(Case)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("main", "verifier", "size")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no simulation after so long")
    options = parser.parse_args()
    refuse_changes(options.out)
    started = time.monotonic()
    file = options.out / "overlap_simulation.json"
    known = {case_of(row): row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    assumed = {
        "switch_seconds": SWITCH_SECONDS, "publish_seconds": PUBLISH_SECONDS, "slots_per_engine": SLOTS,
        "responses_per_group": GROUP, "mean_tokens": MEAN, "longest_tokens": CAP, "seed": SEED,
    }  # fmt: skip
    gc.disable()  # hardly anything here is cyclic; each case ends with a collection
    for case in sorted(cases(options.only), key=lambda case: (case.devices, case.acceptance != 0.5)):
        if case in known or time.monotonic() - started > 60 * options.minutes:
            continue
        began = time.process_time()
        known[case] = asdict(case) | {key: round(value, 5) for key, value in simulate(case).items()}
        gc.collect()
        print(f"{case}  {known[case]['seconds_per_step']:.0f} s   ({time.process_time() - began:.0f} s)", flush=True)
        rows = [known[case] for case in cases(parts) if case in known]
        text = json.dumps({"assumed": assumed, "rows": rows}, indent=1)
        file.write_text(text + "\n", encoding="utf-8")
    rows = [known[case] for case in cases(parts) if case in known]
    (options.out / "overlap_simulation.md").write_text(report(rows, assumed), encoding="utf-8")
    plot(rows, options.out / "overlap_simulation.png")


if __name__ == "__main__":
    main()
