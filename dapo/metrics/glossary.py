"""One line for every number a run reports. A key without a line fails a test; a run logs it and warns.

Keys are ``area/name``. A key may hold a placeholder: ``<set>`` is the name of a validation set, ``<name>`` of a
reward, ``<reason>`` why a response is unscored, ``<k>`` a number of samples, ``<age>`` one of versions. Metrics of
tokens stand with their formulas in ``token_metrics``. docs/metrics.md is made from both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from dapo.metrics.metric import COMPUTING, COUNT, NATS, SECONDS, SHARE, TOKENS, Metric, Reduction
from dapo.metrics.rollouts import (
    cost_metrics,
    environment_metrics,
    group_metrics,
    response_metrics,
    reward_metrics,
    sampling_metrics,
    source_metrics,
)
from dapo.metrics.tokens import TOKEN_METRICS

log = logging.getLogger(__name__)


def _counters() -> Iterator[Metric]:
    yield Metric("step", COUNT, "Training step that the row belongs to; 0 is before the first update.")
    yield Metric("counters/training_steps", COUNT, "Training steps done since the run began.")
    yield Metric("counters/rollout_steps", COUNT, "Rollout batches collected since the run began.")
    yield Metric("counters/optimizer_steps", COUNT, "Optimiser steps done since the run began.")
    yield Metric("counters/decode_steps", COUNT, "Decode steps of the engine since the run began: its logical clock.")
    yield Metric("counters/generated_tokens", TOKENS, "Response tokens generated since the run began.")
    yield Metric(
        "counters/trained_tokens",
        TOKENS,
        "Response tokens that carried loss since the run began, each once however many passes.",
    )


def _supervised() -> Iterator[Metric]:
    yield Metric("sft/epoch", COUNT, "`dapo sft`: passes over the examples so far, the share of the one at hand too.")
    yield Metric("sft/examples", COUNT, "`dapo sft`: examples of this step.")
    yield Metric("sft/tokens", TOKENS, "`dapo sft`: tokens of this step's examples, prompts included.")
    yield Metric(
        "validation/loss", NATS, "`dapo sft`: -log p of the held-out responses, mean over their tokens.", "lower"
    )
    yield Metric("validation/<set>/loss", NATS, "`dapo sft`: the same of one held-out set.", "lower")


def _learner() -> Iterator[Metric]:
    yield Metric("train/loss", "1", "Sum of weight x loss over the tokens of an optimiser step; mean over this step's.")
    yield from (entry.metric for entry in TOKEN_METRICS)
    yield Metric(
        "train/grad_norm", "1", "Norm of the gradient before clipping; mean over the optimiser steps of this step."
    )
    yield Metric(
        "train/grad_norm_max", "1", "Largest such norm among the optimiser steps of this step.", reduction="max"
    )
    yield Metric("train/learning_rate", "1", "Learning rate of the last optimiser step.")
    yield Metric(
        "train/entropy_coefficient", "1", "Coefficient of the entropy term in this step, where the loss has one."
    )
    yield Metric("train/loss_tokens", TOKENS, "N: tokens with loss in one optimiser step; mean over this step's.")
    yield Metric(
        "train/merge_error",
        SHARE,
        "With an adapter: |round(W + D) - (W + D)| / |D|, what rounding loses of its change D when D is merged.",
        "lower",
    )
    yield Metric("train/optimizer_steps", COUNT, "Optimiser steps of this training step.", reduction="sum")
    yield Metric(
        "train/skipped_steps",
        COUNT,
        "Optimiser steps skipped because the gradient was not finite.",
        "lower",
        reduction="sum",
    )
    yield Metric(
        "train/empty_steps",
        COUNT,
        "Optimiser steps in which no token carried loss; no weight moved.",
        "lower",
        reduction="sum",
    )
    yield Metric("train/micro_batches", COUNT, "Forward and backward passes of this training step.", reduction="sum")
    yield Metric(
        "train/lockstep_efficiency",
        SHARE,
        "With several ranks: work of the mean rank over the work that all wait for: each pass takes as long as its "
        "most expensive rank. From the plan of passes, not from a clock.",
        "higher",
    )
    yield Metric(
        "train/expert_load_max",
        COUNT,
        "Mixture of experts: tokens of responses that the most chosen expert gets, over those of a mean expert, in the "
        "layer where that is largest. 1: all experts get equally many.",
        "lower",
    )
    yield Metric(
        "train/experts_unused",
        SHARE,
        "Mixture of experts: experts of all layers to which no token of a response went.",
        "lower",
    )
    yield Metric(
        "train/routes_replayed",
        SHARE,
        "With `learner.router_replay`: tokens of responses whose experts were repeated. `sampler` leaves out those "
        "that other weights routed again, and those whose experts no engine recorded.",
        "higher",
    )
    yield Metric(
        "train/routes_changed",
        SHARE,
        "With `learner.router_replay`: repeated choices, over tokens and layers, that the learner would have made "
        "otherwise.",
        "lower",
    )
    yield Metric(
        "train/packed_tokens",
        TOKENS,
        "Tokens that went through the model in training, each shared prompt once.",
        reduction="sum",
    )
    yield Metric(
        "train/sync_gap", NATS, "Mean |learner - sampler| log-probability of the check after a publish.", "lower"
    )
    yield Metric(
        "train/sync_gap_max", NATS, "Largest |learner - sampler| log-probability of the check after a publish.", "lower"
    )
    yield Metric(
        "train/sync_accepted", NATS, "Mean gap that this check let pass: a smaller error it cannot resolve.", "lower"
    )
    age = "versions by which the weights that made a token with loss are older than those that the step trains"
    yield Metric("policy/staleness_mean", COUNT, f"Mean age: {age}.")
    yield Metric("policy/staleness_max", COUNT, "The largest such age; never above the recipe's `max_age`.")
    yield Metric("policy/staleness_share/<age>", SHARE, "Share of the tokens with loss that have this age.")
    yield Metric("train/sync_tensors", COUNT, "Tensors of the engine whose checksums equal the learner's.", "higher")


def _validation() -> Iterator[Metric]:
    for prefix, of, all_of in (
        ("validation/", ", mean over the sets", ", of all sets"),
        ("validation/<set>/", ", on that set", ", of that set"),
    ):
        yield Metric(
            f"{prefix}accuracy", SHARE, f"avg@k: mean accuracy of k sampled responses per problem{of}.", "higher"
        )
        yield Metric(f"{prefix}accuracy_low", SHARE, f"Lower end of the 95 % interval of the accuracy{of}.", "higher")
        yield Metric(f"{prefix}accuracy_high", SHARE, f"Upper end of the 95 % interval of the accuracy{of}.", "higher")
        yield Metric(
            f"{prefix}accuracy_unscored_wrong",
            SHARE,
            f"The accuracy if every response without one is wrong: what it is at least{of}.",
            "higher",
        )
        yield Metric(f"{prefix}greedy_accuracy", SHARE, f"Accuracy of one greedy response per problem{of}.", "higher")
        yield Metric(
            f"{prefix}pass@<k>",
            SHARE,
            f"Unbiased estimate that one of k sampled responses is correct, of problems with k or more scored{of}.",
            "higher",
        )
        yield Metric(
            f"{prefix}maj@<k>", SHARE, f"Accuracy of the most frequent answer of k sampled responses{of}.", "higher"
        )
        yield Metric(f"{prefix}length_mean", TOKENS, f"Mean length of sampled responses{of}.")
        yield Metric(
            f"{prefix}truncated_share", SHARE, f"Share of sampled responses ended at the length limit{of}.", "lower"
        )
        yield Metric(f"{prefix}greedy_length_mean", TOKENS, f"Mean length of greedy responses{of}.")
        yield Metric(
            f"{prefix}greedy_truncated_share",
            SHARE,
            f"Share of greedy responses ended at the length limit{of}.",
            "lower",
        )
        yield Metric(
            f"{prefix}unscored",
            COUNT,
            f"Responses whose accuracy is unknown, sampled and greedy; they are left out of the means{all_of}.",
            "lower",
        )
        yield Metric(
            f"{prefix}unscored_<reason>",
            COUNT,
            f"Of these, by reason (its text before the first colon){all_of}.",
            "lower",
        )
        yield Metric(
            f"{prefix}failed_rewards",
            COUNT,
            f"Responses whose accuracy is known though another reward failed; they count like any other{all_of}.",
            "lower",
        )
        yield Metric(f"{prefix}responses", COUNT, f"Responses, sampled and greedy{all_of}.")
        yield Metric(f"{prefix}problems", COUNT, f"Problems evaluated{all_of}.")


class Phase(NamedTuple):
    doing: str  # what a run does in it, in a few words
    spent: str  # what its seconds are spent in


PHASES = {
    "generate": Phase("generating", "in the engine"),
    "score": Phase("scoring", "reading responses as text, handing them to verifiers and waiting for their scores"),
    "environment": Phase("waiting for environments", "waiting for replies of environments"),
    "judge": Phase("judging", "judging groups and keeping account of them"),
    "shape": Phase("shaping rewards", "in rewards, advantages and token weights"),
    "learn": Phase("learning", "in forward and backward passes and the optimiser"),
    "publish": Phase("handing over weights", "handing the weights to the engine, the sync check included"),
    "evaluate": Phase("evaluating", "in evaluation"),
    "save": Phase("saving", "writing checkpoints"),
    "report": Phase("reporting", "writing metrics, rollouts and the console"),
    "other": Phase("other work", "outside every named phase"),
}
"""The phases of a step, in the order in which they are shown."""

START = "start"
"""Name of the span from the beginning of an attempt to its first step: models, engines and ranks are made."""
ENGINES_BUSY, LEARNER_BUSY = "engines busy", "learner busy"
BESIDE = (ENGINES_BUSY, LEARNER_BUSY)
"""Names of spans that are no phases: who works beside the driver, where engines go on while the learner learns."""


def _clock() -> Iterator[Metric]:
    for name, phase in PHASES.items():
        yield Metric(f"time/{name}", SECONDS, f"Seconds {phase.spent}.", "lower", clock=True)
    yield Metric(
        "time/step", SECONDS, "Wall-clock seconds of the step, evaluation and saving included.", "lower", clock=True
    )
    yield Metric("time/tokens_per_second", "tokens/s", "Generated tokens / seconds in generate.", "higher", clock=True)
    yield Metric(
        "time/trained_tokens_per_second",
        "tokens/s",
        "Tokens with loss, each once however many passes / seconds in which the learner learnt.",
        "higher",
        clock=True,
    )
    for who, does in (("engine", "made no response (of several engines, their mean)"), ("learner", "learnt nothing")):
        yield Metric(
            f"time/{who}_idle",
            SECONDS,
            f"Seconds in which the {who} {does}. No phase: both may work at once.",
            "lower",
            clock=True,
        )
    yield Metric("memory/peak_rss_mib", "MiB", "Largest resident memory of the process so far.", "lower", clock=True)
    where = "on the GPU, in this step, of the trainer's process; not on a CPU"
    yield Metric("memory/peak_cuda_mib", "MiB", f"Most memory that tensors held {where}.", "lower", clock=True)
    yield Metric(
        "memory/reserved_cuda_mib",
        "MiB",
        "GPU memory that a process of the learner had taken when it had learnt, cached memory included: the "
        "largest of all ranks. It gives back what is cached before engines wake. Not on a CPU.",
        "lower",
        clock=True,
        reduction="max",
    )
    for name in COMPUTING:
        yield Metric(
            f"memory/peak_cuda_mib/{name}",
            "MiB",
            f"`memory/peak_cuda_mib` from the beginning of {name} to the next such phase.",
            "lower",
            clock=True,
        )


def _custom() -> Iterator[Metric]:
    yield Metric("custom/<name>", "1", "Share of the tokens with loss that the flag `<name>` of a loss marks.")


def cluster_metrics() -> Iterator[Metric]:
    """Yield the metrics of a pool of engines; a run with one engine has none of them."""
    yield Metric("cluster/engines", COUNT, "Engines at work when this step was trained.", "higher")
    yield Metric(
        "cluster/engine_losses",
        COUNT,
        "Engines lost since the step before: killed, out of memory, silent for too long.",
        "lower",
    )
    yield Metric(
        "cluster/resubmitted", COUNT, "Responses that a lost engine had begun, and that are made again.", "lower"
    )
    yield Metric("cluster/turns", COUNT, "Turns that came back from engines.")
    yield Metric("cluster/turn_seconds", SECONDS, "Mean seconds that an engine worked in a turn.", clock=True)


AREAS = {
    "Counters": _counters,
    "Groups": group_metrics,
    "Sampling": sampling_metrics,
    "Cost": cost_metrics,
    "Rewards": reward_metrics,
    "Environments": environment_metrics,
    "Responses": response_metrics,
    "Sources": source_metrics,
    "Learner": _learner,
    "Validation": _validation,
    "Time and memory": _clock,
    "Cluster": cluster_metrics,
    "Supervised training": _supervised,
    "Your own": _custom,
}
"""Title of each area, in the order of docs/metrics.md, and its lines."""

GLOSSARY: dict[str, Metric] = {metric.key: metric for lines in AREAS.values() for metric in lines()}

# Names of data sets may hold slashes (reasoning_gym/chain_sum); the word behind them tells where they end.
_PLACEHOLDERS = {
    "<set>": ".+",
    "<name>": "[^/]+",
    "<reason>": "[^/]+",
    "<k>": "[0-9]+",
    "<age>": "[0-9]+",
    "<count>": ".+",
}


def _pattern(key: str) -> re.Pattern[str]:
    parts = re.split(r"(<\w+>)", key)
    named = (f"(?P{part}{_PLACEHOLDERS[part]})" if part in _PLACEHOLDERS else re.escape(part) for part in parts)
    return re.compile("".join(named))


# Longest first, so that reward/<name>_kept is asked before reward/<name>.
_PATTERNS = [(_pattern(key), GLOSSARY[key]) for key in sorted(GLOSSARY, key=len, reverse=True) if "<" in key]


@cache
def reduction_of(key: str) -> Reduction:
    """Return how parts of a key are merged. A key without a line is reported once and taken for a mean."""
    metric = lookup(key)
    if metric is None:
        log.warning("%s", undefined([key]))
        return "mean"
    return metric.reduction


def undefined(keys: Iterable[str]) -> str:
    """Return a message on keys without a definition."""
    return (
        f"no glossary line for {', '.join(map(repr, keys))}: logged without a known "
        "meaning. Add a line to dapo/metrics/glossary.py, or, for a number of your own function, name it 'custom/...'"
    )


@cache
def lookup(key: str) -> Metric | None:
    """Return the glossary line of a logged key, or None when it has none."""
    found = placeholders(key)
    return None if found is None else found[0]


@cache
def placeholders(key: str) -> tuple[Metric, dict[str, str]] | None:
    """Return the glossary line of a logged key and what stands for its placeholders; None when it has no line."""
    if key in GLOSSARY:
        return None if "<" in key else (GLOSSARY[key], {})
    matches = ((metric, pattern.fullmatch(key)) for pattern, metric in _PATTERNS)
    return next(((metric, match.groupdict()) for metric, match in matches if match), None)
