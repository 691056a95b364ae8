"""Compare plans of passes over ranks on drawn response lengths: as the rows come, sorted, and balanced.

python benchmarks/balance.py            # half a minute; writes benchmarks/results/balance.md

Lengths are lognormal, sigma 0.6 between groups and 0.35 within a group, cut at the limit. A minibatch is 32 groups of
16 responses. Efficiency is the mean cost of a rank over the sum of each pass's most expensive rank. "Times faster" is
rows in order against the balanced plan. Costs are counted by the planner's formula, not timed; means of three seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import describe_machine, refuse_changes

from dapo.learner.balance import Costs, attention_share, price_of
from dapo.learner.plan import deal_groups, pass_cost, plan_passes, split
from dapo.types.batch import TokenRow

OUT = Path(__file__).parent / "results" / "balance.md"
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, its ranks and the lengths of its responses."""

    name: str
    layers: int
    width: int
    parameters: int
    ranks: int
    longest: int
    budget: int
    prompt: int = 300
    mean: float = 0.4  # of the longest response


SETTINGS = (
    Setting("7B, 8 ranks, 8k", 28, 3584, 7_600_000_000, 8, 8_192, 20_480),
    Setting("7B, 16 ranks, 8k", 28, 3584, 7_600_000_000, 16, 8_192, 20_480),
    Setting("32B, 64 ranks, 20k", 64, 5120, 32_800_000_000, 64, 20_480, 22_528),
    Setting("7B, 4 ranks, 1k, prompts of 1,500", 28, 3584, 7_600_000_000, 4, 1_024, 20_480, 1_500),
)


def drawn(setting: Setting, seed: int, groups: int = 32, size: int = 16) -> list[TokenRow]:
    """Return a minibatch of rows with drawn lengths."""
    random = np.random.default_rng(seed)
    centres = np.log(setting.mean * setting.longest) + 0.6 * random.standard_normal(groups) - 0.6**2 / 2
    lengths = np.exp(centres[:, None] + 0.35 * random.standard_normal((groups, size)))
    return [
        TokenRow(group, np.full(setting.prompt, group), np.zeros(int(min(max(n, 8), setting.longest)), np.int64))
        for group in range(groups)
        for n in lengths[group]
    ]


def measured(plan: Sequence[Sequence[Sequence[int]]], costs: Costs) -> tuple[int, float, float]:
    """Return passes a rank, efficiency and price of a plan."""
    most = max(map(len, plan))
    each = [[pass_cost(batch, costs, True) for batch in batches] + [0.0] * (most - len(batches)) for batches in plan]
    price = price_of(each)
    return most, sum(map(sum, each)) / (len(plan) * price), price


def line(setting: Setting) -> str:
    """Return a setting's row of the table."""
    attention = attention_share(setting.layers, setting.width, setting.parameters)
    found: list[list[tuple[int, float, float]]] = []
    seconds = []
    for seed in SEEDS:
        rows = drawn(setting, seed)
        costs = Costs(rows, attention)
        ordered = [
            [[own[n] for n in batch] for batch in split([rows[n] for n in own], setting.budget)]
            for own in deal_groups(rows, range(len(rows)), setting.ranks)
        ]
        by_cost = [sorted(batches, key=lambda batch: -pass_cost(batch, costs, True)) for batches in ordered]
        begin = time.perf_counter()
        planned = plan_passes(rows, setting.budget, ranks=setting.ranks, attention=attention)
        seconds.append(time.perf_counter() - begin)
        balanced = [[list(one.rows) for one in passes] for passes in planned]
        found.append([measured(plan, costs) for plan in (ordered, by_cost, balanced)])
    passes, share, price = (np.array([[one[k] for one in plans] for plans in found]) for k in range(3))
    cells = [f"{passes[:, k].mean():.0f} / {share[:, k].mean():.2f}" for k in range(3)]
    faster = (price[:, 0] / price[:, 2]).mean()
    return f"| {setting.name} | " + " | ".join(cells) + f" | {faster:.2f} | {np.mean(seconds):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="where the table goes")
    out = parser.parse_args().out
    refuse_changes(out)
    machine = describe_machine()
    head = "| passes / efficiency | in order | sorted | balanced | times faster | seconds to plan |"
    lines = [head, "|---" * 6 + "|", *map(line, SETTINGS)]
    text = "\n".join(lines)
    print(text)
    said = f"`{machine['command']}`, commit {machine['commit']}, {machine['date']}."
    out.write_text(f"# Passes over ranks\n\n{said}\n\n{text}\n")


if __name__ == "__main__":
    main()
