"""What a large step costs the driver beside generation and learning: text and bookkeeping, in processor seconds.

    python benchmarks/driver_step.py [--responses 1024] [--tokens 8000] [--rounds 3] [--unread]

Two engines in processes of their own answer at once with drawn tokens of a real tokenizer (8,000 words at most, made
from the pages in docs/). The driver collects them, asks a ``math`` reward in a guarded worker, plans the learner's step
and makes and writes the tables of ``rollouts/``. Verdicts are then replaced, so that every group is mixed. Phases are
processor seconds of the driver's process, its threads included, scaled to 8,192 responses of 8,000 tokens.

``--unread``: the engines leave the texts to the driver, as one that runs in the driver's process does.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from driver_engine import engine_host
from sampling_simulation import GROUP, SEED
from simulated_world import NumberedPrompts
from text_models import make_text_tokenizer

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.keep import judge_group
from dapo.algorithms.reduction import loss_weights
from dapo.config.schema import DynamicSampling, Reward
from dapo.loop.algorithm import Algorithm
from dapo.loop.sampling.collector import BatchShape, StreamingCollector
from dapo.loop.sampling.rollouts import Rollouts
from dapo.models.decode import DecodeSpec, make_decode
from dapo.observe.rollouts import write_rollouts
from dapo.processes.local import ProcessTransport
from dapo.processes.transport import HostSpec
from dapo.rewards.compose import CompositeScorer
from dapo.rollout.pool import EnginePool
from dapo.rollout.requests import Gate
from dapo.types.batch import Key, SamplingParams, Score, Ticket

LARGE = 8192 * 8000
"""Tokens of a large step."""


class Alternating:
    """Asks a scorer, and replaces its verdicts: every second response is right."""

    def __init__(self, scorer: CompositeScorer) -> None:
        self._scorer = scorer
        self.submit, self.close = scorer.submit, scorer.close

    def poll(self, timeout: float | None = None) -> list[tuple[Key, Score]]:
        values = [(key, float(key.sample % 2)) for key, _ in self._scorer.poll(timeout)]
        return [(key, Score({"accuracy": value}, reward=value)) for key, value in values]


def measure(responses: int, tokens: int, rounds: int, unread: bool, work: Path) -> dict[str, float]:
    """Processor seconds of the driver by phase, median of the rounds."""
    folder = Path(__file__).resolve().parents[1] / "docs"
    tokenizer = make_text_tokenizer([page.read_text() for page in sorted(folder.glob("*.md"))], vocabulary=8000)
    tokenizer.save_pretrained(work / "tokenizer")
    decode = None if unread else DecodeSpec(str(work / "tokenizer"))
    specs = [HostSpec(f"engine-{n}", engine_host, (len(tokenizer), decode)) for n in range(2)]
    pool = EnginePool(ProcessTransport(work / "hosts"), specs, Gate(len(tokenizer), None))
    scorer = Alternating(CompositeScorer([Reward(kind="math")], workers=1))
    algorithm = Algorithm(
        judge=lambda values, voters: judge_group(values, voters, metric_is_accuracy=True),
        shape=lambda rewards, lengths, truncated: (rewards, np.zeros(len(rewards))),
        advantages=group_advantages,
        loss_weights=lambda masks, groups: loss_weights(masks, groups, "token_mean"),
        truncated_vote=True,
    )
    collector = StreamingCollector(
        rollouts=Rollouts(pool, scorer, make_decode(tokenizer)),
        stream=NumberedPrompts(),
        algorithm=algorithm,
        sampling=SamplingParams(max_tokens=tokens),
        settings=DynamicSampling(lookahead=0.0),
        shape=BatchShape(responses // GROUP, GROUP),
        run_seed=SEED,
    )
    pool.load(Ticket(0, "shared", "", ()))
    spent: dict[str, list[float]] = {"collect": [], "plan": [], "tables": []}
    for number in range(rounds + 1):
        times = [time.process_time()]
        batch = collector.collect(number + 1)
        times.append(time.process_time())
        algorithm.plan(batch, {}, version=number, rate=lambda _: 1e-5)
        times.append(time.process_time())
        write_rollouts(work / "step.parquet", number, batch.finished)
        times.append(time.process_time())
        collector.commit()
        made = sum(int(group.lengths().sum()) for group in batch.finished)
        if number:
            for name, before, after in zip(spent, times, times[1:], strict=False):
                spent[name].append((after - before) * LARGE / made)
    pool.close()
    scorer.close()
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unread", action="store_true", help="the driver makes the texts")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = measure(asked.responses, asked.tokens, asked.rounds, asked.unread, Path(work))
    for name, seconds in found.items():
        print(f"{name:10} {seconds:6.2f} s")
