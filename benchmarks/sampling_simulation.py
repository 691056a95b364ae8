"""Dynamic sampling on fleets of 16 to 1,024 engines, simulated: our collector against the rules that others publish.

The very ``StreamingCollector`` that trains is driven by a simulated fleet (``simulated_engine.py`` says what is
assumed), as are the rules of ``published_rules.py`` and verl 0.9's streaming below. Measured, after steps of warm-up:
seconds per training step against ``bound``, the time that the groups which had to be finished would take the fleet at
full speed; use of the slots; tokens generated per token trained; age of what is trained. Learning and publishing take
no time here, so these are seconds of generation.

    python benchmarks/sampling_simulation.py [--only 16 64] [--acceptance 0.5] [--out FOLDER] [--profile]

Part of the cases replaces their rows in the results that are there.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from machine import refuse_changes
from published_rules import LimitedResampling, Rounds, RoundsUntilFull
from simulated_engine import UNIT, Lengths, SimulatedEngine, Speed
from simulated_world import NumberedPrompts, SimulatedScorer, group_accuracy, log_normal_lengths, resampled_lengths
from simulation_report import plot, report

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.keep import judge_group
from dapo.algorithms.reduction import loss_weights
from dapo.config.schema import DynamicSampling
from dapo.loop.algorithm import Algorithm
from dapo.loop.sampling.collector import BatchShape, CollectorTiming, StreamingCollector
from dapo.loop.sampling.rollouts import Rollouts
from dapo.types.batch import Completion, Group, SampleRequest, SamplingParams, Score, StepBatch, Ticket
from dapo.types.enums import Disposition, Verdict

GROUP, SLOTS, CAP, MEAN, SEED = 16, 32, 20480, 3500.0, 1
VERIFIER_SECONDS = 2.0
PROMPTS = {16: 32, 64: 128, 256: 512, 1024: 512}
"""P by number of engines: one slot for every response of a batch up to 256 engines, the paper's batch from there on."""
STEPS = {16: (5, 32), 64: (4, 16), 256: (3, 6), 1024: (3, 6)}
"""Training steps by number of engines: warm-up, then measured."""
ACCEPTANCE = (0.8, 0.5, 0.2)
LOOKAHEAD = (0.0, 0.5, 1.0)
TRADE_OFF = (64, (0.0, 0.1, 0.25, 0.5, 1.0, 2.0))
"""Engines and lookaheads of the comparison of speed with age."""

# Responses of 1, 2, ... 32 tokens (the limit) in the first 5 steps of the quickstart.
QUICKSTART = (
    0, 0, 0, 0, 482, 1, 379, 0, 516, 20, 730, 2, 411, 13, 490, 2,
    0, 18, 2, 4, 11, 13, 0, 4, 5, 5, 4, 3, 1, 14, 0, 134,
)  # fmt: skip


class Collects(Protocol):
    """Our collector, or a rule."""

    def collect(self, step: int) -> StepBatch: ...


@dataclass(frozen=True)
class Case:
    """One simulation. ``rule`` is one of ``RULES`` or ``ours`` with a lookahead."""

    engines: int
    acceptance: float
    rule: str
    lengths: str = "log-normal"
    lookahead: float = 0.0

    @property
    def name(self) -> str:
        return f"ours, lookahead {self.lookahead:g}" if self.rule == "ours" else self.rule


@dataclass
class VerlStreaming:
    """verl 0.9, synchronous: P groups to start; two more for each rejected one, at most P under way at once.

    Once P are kept nothing more is started, what is under way is waited for, and kept groups beyond P are thrown away.
    (Its polling interval of 2 seconds is left out.)
    """

    rounds: Rounds
    prompts_per_step: int

    def collect(self, step: int) -> StepBatch:
        """The batch of training step ``step``: the first P kept groups by id."""
        rounds, under_way, owed = self.rounds, dict[int, Group](), self.prompts_per_step
        scores: dict[int, list[Score | None]] = {}
        finished: list[Group] = []
        kept: list[Group] = []
        while under_way or len(kept) < self.prompts_per_step:
            if len(kept) < self.prompts_per_step:
                start = min(owed, self.prompts_per_step - len(under_way))
                owed -= start
                under_way |= self._start(start, step)
            events = rounds.engine.poll()
            for event in events:
                completion = Completion(event.token_ids, event.logprobs, event.versions, event.finish)
                group = under_way[event.key[-2]]
                group.completions_G.append(completion)  # the order within a group does not matter here
                rounds.scorer.submit(event.key, group.prompt, completion)
            for key, score in rounds.scorer.poll(0 if events else None):
                scores.setdefault(key[-2], []).append(score)
                group = under_way[key[-2]]
                group.scores_G.append(score)
                if len(group.scores_G) == rounds.group_size:
                    del under_way[group.id]
                    group.verdict, group.disposition = rounds.algorithm.verdict(group), Disposition.DISCARDED
                    finished.append(group)
                    if group.verdict is Verdict.KEPT:
                        kept.append(group)
                    else:
                        owed += 2
        batch = sorted(kept, key=lambda group: group.id)[: self.prompts_per_step]
        for group in batch:
            group.disposition = Disposition.TRAINED
        return StepBatch(step=step, groups_P=batch, finished=finished)

    def _start(self, prompts: int, step: int) -> dict[int, Group]:
        rounds = self.rounds
        groups = {
            rounds.next_group + i: Group(rounds.next_group + i, prompt, [], [], born=step)
            for i, prompt in enumerate(rounds.stream.take(prompts))
        }
        rounds.next_group += prompts
        rounds.engine.submit(
            [
                SampleRequest((group.id, i), group.prompt.token_ids, rounds.sampling, 0, None, group.id)
                for group in groups.values()
                for i in range(rounds.group_size)
            ]
        )
        return groups


RULES: dict[str, Callable[[Rounds, int], Collects]] = {
    "rounds of P": lambda rounds, p: RoundsUntilFull(rounds, p, p, max_rounds=None),
    "rounds of 3P": lambda rounds, p: RoundsUntilFull(rounds, p, 3 * p, max_rounds=None),
    "ms-swift": lambda rounds, p: LimitedResampling(rounds, p),
    "verl 0.9 streaming": lambda rounds, p: VerlStreaming(rounds, p),
}


def make_lengths(name: str) -> Lengths:
    if name == "log-normal":
        return log_normal_lengths(SEED, GROUP, mean=MEAN, cap=CAP)
    return resampled_lengths(SEED, GROUP, QUICKSTART, mean=MEAN, cap=CAP)


def make_collector(case: Case, engine: SimulatedEngine, prompts: int, group_size: int = GROUP) -> Collects:
    """The collector or rule of ``case`` over the simulated fleet."""
    latency = round(VERIFIER_SECONDS / engine.tick)
    scorer = SimulatedScorer(engine, SEED, case.acceptance, latency)
    algorithm = Algorithm(
        judge=partial(judge_group, metric_is_accuracy=True),
        shape=lambda rewards, lengths, truncated: (rewards, np.zeros(len(rewards))),
        advantages=group_advantages,
        loss_weights=partial(loss_weights, reduction="token_mean"),
        truncated_vote=True,  # so that the acceptance is the one asked for
    )
    sampling = SamplingParams(max_tokens=CAP // UNIT)

    def no_text(ids: Sequence[object]) -> list[str]:
        return [""] * len(ids)

    if case.rule != "ours":
        rounds = Rounds(engine, scorer, NumberedPrompts(), algorithm, sampling, group_size, SEED, no_text)
        return RULES[case.rule](rounds, prompts)
    return StreamingCollector(
        rollouts=Rollouts(engine, scorer, no_text),
        stream=NumberedPrompts(),
        algorithm=algorithm,
        sampling=sampling,
        settings=DynamicSampling(cap={"groups": None}, lookahead=case.lookahead),
        shape=BatchShape(prompts, group_size),
        run_seed=SEED,
        timing=CollectorTiming(latency),
    )


def simulate(case: Case, *, warm_up: int, steps: int, prompts: int) -> dict[str, float]:
    """Figures of ``steps`` training steps after ``warm_up`` others."""
    lengths = make_lengths(case.lengths)
    engine = SimulatedEngine(lengths, engines=case.engines, slots=SLOTS)
    collector = make_collector(case, engine, prompts)
    before, began, trained, taught, ages = engine.stats(), 0.0, 0.0, 0, list[int]()
    for step in range(1, warm_up + steps + 1):
        batch = collector.collect(step)
        engine.load(Ticket(step, "shared", "", ()))
        if step == warm_up:
            before, began = engine.stats(), engine.time
        elif step > warm_up:
            kept = [group for group in batch.groups_P if group.verdict is Verdict.KEPT]
            taught += len(kept)
            trained += sum(int(group.lengths().sum()) for group in kept)
            ages += [step - group.born for group in kept]
    after, seconds = engine.stats(), engine.time - began
    spent = {key: after[key] - before[key] for key in after}
    batches = taught / prompts  # full batches of groups that teach
    bound = needed_units(case, lengths, prompts, warm_up, steps) / steps / engine.best
    return {
        "seconds_per_step": seconds / steps,
        "seconds_per_batch": seconds / batches,
        "bound_seconds": bound,
        "relative": seconds / batches / bound,
        "kept_share_of_batch": batches / steps,
        "slot_use": spent["busy_slot_steps"] / spent["slot_steps"],
        "speed_use": spent["generated_tokens"] / seconds / engine.best,
        "generated_per_trained": spent["generated_tokens"] / trained,
        "prefilled_per_generated": spent["prefill_tokens"] / spent["generated_tokens"],
        "age_mean": float(np.mean(ages)),
        "age_max": float(max(ages)),
    }


def needed_units(case: Case, lengths: Lengths, prompts: int, warm_up: int, steps: int) -> float:
    """Units of the groups that a schedule without waste finishes in the measured steps: the prompts in their order,
    from the one behind the last kept of the warm-up to the last kept of the last step."""
    needed, kept, group = 0, 0, 0
    while kept < prompts * (warm_up + steps):
        if kept >= prompts * warm_up:
            needed += int(lengths(group).sum())
        even, odd = group_accuracy(SEED, case.acceptance, group)
        kept += even != odd
        group += 1
    return float(needed)


# ---------------------------------------------------------------------- the whole comparison


def cases(engines: Sequence[int]) -> list[Case]:
    """Everything that is compared, each once."""
    out = []
    for count in engines:
        for acceptance in ACCEPTANCE:
            lookaheads = sorted({*LOOKAHEAD, *(TRADE_OFF[1] if count == TRADE_OFF[0] else ())})
            out += [Case(count, acceptance, "ours", lookahead=value) for value in lookaheads]
            out += [Case(count, acceptance, rule) for rule in RULES]
    if TRADE_OFF[0] in engines:
        out += [Case(TRADE_OFF[0], 0.5, "ours", "quickstart", value) for value in LOOKAHEAD]
        out += [Case(TRADE_OFF[0], 0.5, rule, "quickstart") for rule in RULES]
    return out


def steps_of(case: Case) -> tuple[int, int]:
    """Warm-up and measured steps. A rule starts every step from nothing: fewer will do."""
    warm_up, steps = STEPS[case.engines]
    return (warm_up, steps) if case.rule == "ours" else (0, max(4, steps // 2))


def run(case: Case) -> dict[str, Any]:
    warm_up, steps = steps_of(case)
    began = time.process_time()
    figures = simulate(case, warm_up=warm_up, steps=steps, prompts=PROMPTS[case.engines])
    gc.collect()
    print(
        f"{case.engines:5d} engines  acceptance {case.acceptance}  {case.name:22s} {case.lengths:10s}"
        f"  {figures['relative']:6.2f} x bound   age {figures['age_mean']:.2f}"
        f"   ({time.process_time() - began:.0f} s of computing)",
        flush=True,
    )
    size = {"prompts": PROMPTS[case.engines], "warm_up": warm_up, "steps": steps}
    return asdict(case) | {"name": case.name} | size | {key: round(value, 5) for key, value in figures.items()}


def case_of(row: dict[str, Any]) -> Case:
    return Case(**{field.name: row[field.name] for field in fields(Case)})


def profile(case: Case) -> None:
    """Where the computing goes; seconds under the profiler, which makes every call dearer."""
    recorded = cProfile.Profile()
    recorded.runcall(simulate, case, warm_up=1, steps=2, prompts=PROMPTS[case.engines])
    pstats.Stats(recorded).sort_stats("tottime").print_stats(30)
    pstats.Stats(recorded).sort_stats("cumtime").print_stats("dapo/loop|simulated_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", type=int, choices=PROMPTS, default=list(PROMPTS), metavar="ENGINES")
    parser.add_argument("--acceptance", nargs="+", type=float, choices=ACCEPTANCE, default=list(ACCEPTANCE))
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    parser.add_argument("--profile", action="store_true", help="profile one case and write nothing")
    options = parser.parse_args()
    if options.profile:
        profile(Case(options.only[0], 0.5, "ours", lookahead=0.25))
        return
    refuse_changes(options.out)
    gc.disable()  # hardly anything here is cyclic; each case ends with a collection
    file = options.out / "sampling_simulation.json"
    known = {case_of(row): row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    known |= {case: run(case) for case in cases(options.only) if case.acceptance in options.acceptance}
    rows = [known[case] for case in cases(list(PROMPTS)) if case in known]
    assumed = {
        "slots_per_engine": SLOTS, "responses_per_group": GROUP, "mean_tokens": MEAN, "longest_tokens": CAP,
        "verifier_seconds": VERIFIER_SECONDS, "seed": SEED, "unit_tokens": UNIT, **asdict(Speed()),
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"assumed": assumed, "rows": rows}, indent=1) + "\n")
    (options.out / "sampling_simulation.md").write_text(report(rows))
    plot(rows, options.out / "sampling_simulation.png", TRADE_OFF[0])


if __name__ == "__main__":
    main()
