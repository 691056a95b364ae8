"""What dynamic sampling costs: our streaming collector against rules that other trainers publish.

    python benchmarks/dynamic_sampling.py                                          # all settings, some five minutes
    python benchmarks/dynamic_sampling.py --settings short-0.5 --slots 512 --scale 0.25
    python benchmarks/dynamic_sampling.py --variants lookahead=0 lookahead=1.0     # more rows of ours

Every arm has the same weights, engine class, slots, prompts, sampling and, group by group, the same random numbers. The
weights stay fixed, so that the share of groups kept does; they are published between steps as in a run, and the engine
then computes again whatever our collector carries over. Nothing is trained. Arms take turns, step by step, in one
process. The first steps are not counted: in them ours builds up what it carries from step to step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import yaml
from machine import describe_machine, refuse_changes
from published_rules import LimitedResampling, Rounds, RoundsUntilFull
from pydantic import ValidationError

import dapo
from dapo.config.schema import DynamicSampling, Recipe
from dapo.data.stream import EpochStream
from dapo.engines.embedded import EmbeddedEngine
from dapo.loop.sampling.collector import BatchShape, StreamingCollector
from dapo.loop.sampling.rollouts import Rollouts
from dapo.models.builtin import ensure_builtin_model
from dapo.models.decode import make_decode
from dapo.models.loaded import LoadedModel
from dapo.observe.console import Console
from dapo.run.algorithm import make_algorithm
from dapo.run.reinforcement import RewardParts, reward_session
from dapo.run.sampling import make_sampling
from dapo.run.session import Session
from dapo.types.batch import Group, Metrics, StepBatch, Ticket
from dapo.types.enums import Verdict
from dapo.weights.shared import offer

HERE = Path(__file__).resolve().parent
OURS = "ours"
FLOOR_BAR = 1.03  # generated tokens per trained token over the floor
UNCOUNTED = 3  # first steps of every run
A_RUN = 30  # steps from which on the whole run is held to the floor, too


@dataclass(frozen=True)
class Setting:
    """One acceptance rate. The task's options set it: how many terms, and how many of them are subtracted."""

    name: str  # kind of lengths, and the acceptance rate aimed at
    model: str
    max_response_tokens: int
    problems: tuple[int, int, float]  # fewest terms, most terms, chance of a minus
    slots: dict[int | None, int]  # counted training steps by slots of the engine; None: its own choice


# The warmed-up model misreads most minus signs: without any it is nearly always right, with many nearly always wrong.
WARM, RAMBLER = "builtin/signed-sum", "builtin/signed-sum-rambler"
SETTINGS = (
    Setting("short-0.9", WARM, 32, (4, 5, 0.8), {None: 30, 1536: 10}),
    Setting("short-0.5", WARM, 32, (3, 8, 0.02), {None: 30, 1536: 10, 128: 10}),
    Setting("short-0.2", WARM, 32, (3, 5, 0.0), {None: 27, 1536: 6}),
    Setting("tail-0.9", RAMBLER, 256, (4, 5, 0.8), {None: 10}),
    Setting("tail-0.5", RAMBLER, 256, (3, 6, 0.0), {None: 12}),
)


class Arm(Protocol):
    """Ours or a published rule."""

    def collect(self, step: int) -> StepBatch: ...


class CountingEngine(EmbeddedEngine):
    """Counts prefill passes too: each costs about as much as a decode step."""

    def __init__(self, loaded: LoadedModel, slots: int | None) -> None:
        super().__init__(loaded, slots=slots)
        self.prefill_passes = 0
        self.address = offer(loaded.model)
        prefill = self.decoder.prefill

        def counted(*arguments: Any) -> Any:
            self.prefill_passes += 1
            return prefill(*arguments)

        self.decoder.prefill = counted  # type: ignore[assignment, method-assign]

    def stats(self) -> Metrics:
        return super().stats() | {"prefill_passes": float(self.prefill_passes)}


@dataclass
class Tally:
    """What one arm did over its steps; ``totals`` are sums since the first one."""

    engine: CountingEngine
    collector: Arm
    steps: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    uncounted: dict[str, float] = field(default_factory=dict)  # ``totals`` after the last step that is not counted
    judged: set[int] = field(default_factory=set)  # groups counted as finished
    age_max: int = 0

    def step(self) -> None:
        """Collect one batch, then publish (which every rule does, and is not timed)."""
        wall, cpu = time.perf_counter(), time.process_time()
        batch = self.collector.collect(self.steps + 1)
        self._add(steps=1, seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu)
        self.steps += 1
        for group in batch.finished:  # carried ones come twice: when judged, and when trained
            if group.id not in self.judged:
                self.judged.add(group.id)
                kept = group.verdict is Verdict.KEPT
                self._add(finished_groups=1, kept_groups=kept)
                self._add(finished_tokens=_tokens(group), kept_tokens=kept * _tokens(group))
        # A group without variance has no gradient: where a rule trains one, its tokens do not count as trained.
        for group in (g for g in batch.groups_P if g.verdict is Verdict.KEPT):
            self._add(trained_groups=1, trained_tokens=_tokens(group), ages=batch.step - group.born)
            self.age_max = max(self.age_max, batch.step - group.born)
        self.engine.load(Ticket(self.steps, "shared", self.engine.address, ()))
        if self.steps == UNCOUNTED:
            self.uncounted = self._all()

    def _add(self, **values: float) -> None:
        for key, value in values.items():
            self.totals[key] = self.totals.get(key, 0.0) + value

    def _all(self) -> dict[str, float]:
        return {**self.totals, **self.engine.stats()}

    def row(self) -> dict[str, float]:
        """One row of the table; ``COLUMNS`` says what stands in it."""
        whole = self._all()
        n = {key: value - self.uncounted[key] for key, value in whole.items()}
        floor = n["finished_tokens"] / n["kept_tokens"]
        unused = whole["generated_tokens"] - whole["finished_tokens"] + whole["kept_tokens"] - whole["trained_tokens"]
        return {
            "acceptance": n["kept_groups"] / n["finished_groups"],
            "groups": n["trained_groups"] / n["steps"],
            "cost": n["generated_tokens"] / n["trained_tokens"],
            "floor": floor,
            "over_floor": n["generated_tokens"] / n["trained_tokens"] / floor,
            "whole_run": (whole["generated_tokens"] / whole["trained_tokens"])
            / (whole["finished_tokens"] / whole["kept_tokens"]),
            "unused": unused / whole["generated_tokens"],
            "decode_steps": n["decode_steps"] / n["steps"],
            "idle": 1.0 - n["busy_slot_steps"] / n["slot_steps"],
            "passes": (n["decode_steps"] + n["prefill_passes"]) / n["steps"],
            "prefill_tokens": n["prefill_tokens"] / n["steps"],
            "cpu_seconds": n["cpu_seconds"] / n["steps"],
            "seconds": n["seconds"] / n["steps"],
            "age_mean": n["ages"] / n["trained_groups"],
            "age_max": float(self.age_max),
        }


COLUMNS = {
    "groups": ("kept groups trained per step", "{:.1f}"),
    "cost": ("generated tokens per trained token", "{:.3f}"),
    "floor": ("tokens of all finished groups over tokens of the kept ones", "{:.3f}"),
    "over_floor": ("cost over floor", "{:.3f}"),
    "whole_run": ("the same from the first step on, tokens held for later at the end counted as spent", "{:.3f}"),
    "unused": ("share of the whole run's tokens in kept groups and partial responses that never trained", "{:.1%}"),
    "decode_steps": ("decode steps per training step", "{:.1f}"),
    "idle": ("idle share of the slots while decoding", "{:.0%}"),
    "passes": ("decode steps and prefill passes per training step", "{:.1f}"),
    "prefill_tokens": ("prefill tokens per training step", "{:,.0f}"),
    "cpu_seconds": ("CPU seconds per training step", "{:.3f}"),
    "time": ("CPU seconds over ours", "{:.2f}"),
    "age_mean": ("mean age of trained groups, steps", "{:.2f}"),
    "age_max": ("greatest age", "{:.0f}"),
}


def _tokens(group: Group) -> int:
    return int(group.lengths().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--settings", nargs="+", choices=names, default=names)
    parser.add_argument("--slots", nargs="+", type=int, help="only these; the engine's own choice is 512")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of training steps")
    parser.add_argument(
        "--variants", nargs="*", default=[], metavar="KEY=VALUE[,KEY=VALUE]", help="more rows of ours, other settings"
    )
    parser.add_argument("--models", type=Path, default=HERE.parent / "runs" / ".models", help="cache of base models")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "dynamic_sampling.json")
    options = parser.parse_args()
    refuse_changes(options.out)
    torch.set_num_threads(1)

    started = time.perf_counter(), time.process_time()
    results: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for setting in SETTINGS:
        if setting.name in options.settings:
            results += compare(setting, options)
            wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
            # a CPU share well below 1: the machine was not idle
            machine = describe_machine() | {"cpu_share": cpu / wall}
            report = {"machine": machine, "wall_seconds": wall, "results": results}
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(markdown(report))
    found = [passed for result in results for passed in result["bars"].values()]
    print(f"{sum(found)} of {len(found)} bars hold; tables: {options.out.with_suffix('.md')}")


def compare(setting: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every arm at every number of slots."""
    recipe = make_recipe(setting, options.models)
    with Console("quiet") as console:
        session = reward_session(recipe, console)
    results = []
    for slots, steps in setting.slots.items():
        arms = make_arms(session, slots, options.variants)
        capacity = arms[OURS].engine.capacity
        if options.slots and capacity not in options.slots:
            continue
        take_turns(list(arms.values()), UNCOUNTED + max(1, round(steps * options.scale)))
        rows = {name: arm.row() for name, arm in arms.items()}
        for row in rows.values():
            row["time"] = row["cpu_seconds"] / rows[OURS]["cpu_seconds"]
        result = asdict(setting) | {
            "slots": capacity,
            "steps": arms[OURS].steps - UNCOUNTED,
            "rows": rows,
            "bars": bars(rows, arms[OURS].steps),
        }
        results.append(result)
        print("\n".join(table(result)), file=sys.stderr, flush=True)
    session.close()
    return results


def make_recipe(setting: Setting, models: Path) -> Recipe:
    """The quickstart with the setting's model, limit and difficulty."""
    options = dict(zip(("min_terms", "max_terms", "minus_probability"), setting.problems, strict=True))
    data = [{"task": "signed_sum", "seed": 1, "size": 6000, "options": options}]
    overrides = [
        f"model.path={ensure_builtin_model(setting.model, models)}",
        f"rollout.max_response_tokens={setting.max_response_tokens}",
        f"data.train={json.dumps(data)}",
        "data.validation=[]",
        "validation.every=0",
    ]
    return dapo.load_recipe(str(HERE.parent / "dapo/recipes" / "quickstart.yaml"), overrides).recipe


def make_arms(session: Session[RewardParts], slots: int | None, variants: list[str]) -> dict[str, Tally]:
    """Ours, the published rules, and further rows of ours; each with an engine and a place in the data of its own."""
    recipe, prompts = session.recipe, session.recipe.rollout.prompts_per_step
    sampling = make_sampling(recipe, session.facts)
    common: dict[str, Any] = {
        "scorer": session.parts.rollouts.scorer,  # scores at once, so the arms cannot meet in it
        "algorithm": make_algorithm(recipe),
        "sampling": sampling,
        "group_size": recipe.rollout.group_size,
        "run_seed": recipe.run.seed,
        "decode": make_decode(session.loaded.tokenizer),
    }

    def tally(make: Callable[[dict[str, Any]], Arm]) -> Tally:
        engine = CountingEngine(session.loaded, slots)
        stream = EpochStream(session.parts.data.train, seed=recipe.run.seed)
        return Tally(engine, make(common | {"engine": engine, "stream": stream}))

    def streaming(settings: DynamicSampling) -> Tally:
        def collector(parts: dict[str, Any]) -> Arm:
            rollouts = Rollouts(*(parts.pop(name) for name in ("engine", "scorer", "decode")))
            shape = BatchShape(prompts, parts.pop("group_size"))
            return StreamingCollector(settings=settings, shape=shape, rollouts=rollouts, **parts)

        return tally(collector)

    arms = {
        OURS: streaming(recipe.algorithm.dynamic_sampling),
        "rounds of P": tally(lambda parts: RoundsUntilFull(Rounds(**parts), prompts, prompts)),
        "rounds of 3P": tally(lambda parts: RoundsUntilFull(Rounds(**parts), prompts, 3 * prompts, max_rounds=10)),
        "ms-swift resample": tally(lambda parts: LimitedResampling(Rounds(**parts), prompts)),
    }
    for variant in variants:
        settings = read_variant(variant)
        if settings is not None:
            arms[f"{OURS}, {variant}"] = streaming(settings)
    return arms


def read_variant(text: str) -> DynamicSampling | None:
    """``key=value,key=value`` as settings; None where this version has no such setting."""
    pairs = (part.partition("=") for part in text.split(","))
    try:
        return DynamicSampling(**{key: yaml.safe_load(value) for key, _, value in pairs})
    except ValidationError as error:
        print(f"left out {text}: {error.errors()[0]['msg']}", file=sys.stderr)
        return None


def take_turns(arms: list[Tally], steps: int) -> None:
    """``steps`` batches of each arm, another one first each time."""
    for step in range(steps):
        for arm in arms[step % len(arms) :] + arms[: step % len(arms)]:
            arm.step()


def bars(rows: dict[str, dict[str, float]], steps: int) -> dict[str, bool]:
    """What has to hold, by a short name."""
    ours, bar = rows[OURS], f"within {FLOOR_BAR - 1:.0%} of the floor"
    found = {bar: ours["over_floor"] <= FLOOR_BAR}
    if steps >= A_RUN:
        found[f"{bar}, whole run of {steps} steps"] = ours["whole_run"] <= FLOOR_BAR
    for name, row in rows.items():
        if not name.startswith(OURS):
            found[f"fewer decode steps than {name}"] = ours["decode_steps"] < row["decode_steps"]
            found[f"fewer tokens than {name}"] = ours["cost"] < row["cost"]
    return found


def markdown(report: dict[str, Any]) -> str:
    machine = report["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    found = [passed for result in report["results"] for passed in result["bars"].values()]
    lines = [
        "# Dynamic sampling against published rules",
        "",
        f"{machine['cpu']}, 1 thread ({machine['cpu_share']:.2f} of it ours); Python {machine['python']}, {packages}; "
        f"commit {machine['commit']}, {machine['date']}; {report['wall_seconds']:.0f} s.",
        "",
        f"`{machine['command']}`",
        "",
        f"Bars: {sum(found)} of {len(found)} hold. Columns:",
        "",
        *(f"- `{key}`: {meaning}" for key, (meaning, _) in COLUMNS.items()),
    ]
    for result in report["results"]:
        lines += ["", *table(result)]
    return "\n".join(lines) + "\n"


def table(result: dict[str, Any]) -> list[str]:
    ours = result["rows"][OURS]
    fewest, most, minus = result["problems"]
    lines = [
        f"## {result['name']}, {result['slots']} slots: {ours['acceptance']:.3f} of the groups kept",
        "",
        f"{result['model']}, at most {result['max_response_tokens']} tokens; {fewest} to {most} terms, "
        f"{minus:.0%} of them subtracted where possible; {result['steps']} counted steps.",
        "",
        "| | " + " | ".join(COLUMNS) + " |",
        "| --- " * (len(COLUMNS) + 1) + "|",
    ]
    for name, row in result["rows"].items():
        lines.append(f"| {name} | " + " | ".join(form.format(row[key]) for key, (_, form) in COLUMNS.items()) + " |")
    return [*lines, "", *(f"- {'pass' if passed else '**FAIL**'}: {name}" for name, passed in result["bars"].items())]


if __name__ == "__main__":
    main()
