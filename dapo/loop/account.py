"""What a step cost and where it went: the counts behind ``groups/``, ``sampling/``, ``cost/`` and their totals."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dapo.loop.open_group import OpenGroup
from dapo.loop.response_metrics import response_metrics
from dapo.types.batch import Group, Key, Metrics, Score
from dapo.types.enums import Disposition, FinishReason, Verdict

log = logging.getLogger(__name__)

FATES = ("trained", "filled", "rejected", "discarded", "expired")
"""What became of generated tokens; the rest is held. Together they are everything that was generated."""
WASTED = ("rejected", "discarded", "expired")

ADDITIVE = (
    "groups/dispatched",
    "groups/finished",
    *(f"groups/{verdict}" for verdict in Verdict),
    *(f"groups/{disposition}" for disposition in Disposition),
    "sampling/refills",
    "sampling/cap_reached",
    "sampling/responses",
    "sampling/failed",
    "sampling/skipped_prompts",
    "sampling/generated_tokens",
    "sampling/decode_steps",
    "sampling/prefill_tokens",
    "reward/unscored",
    *(f"cost/{fate}_tokens" for fate in FATES),
)
"""Counts of a step that add up over steps; each has a running total ``total/<key>``, saved in checkpoints."""


class Account:
    """Counts of one step (reset by ``begin``) and running totals."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = dict.fromkeys(ADDITIVE, 0)
        self._told: set[str] = set()  # kinds of verifier failures that were told
        self.barren: Counter[str] = Counter()  # reasons of all unscored responses since the last step that scored any
        self.scored = 0
        self._reset()
        self._engine_before: Metrics = {}

    def _reset(self) -> None:
        if self.scored:
            self.barren.clear()
        self.count: dict[str, float] = dict.fromkeys(ADDITIVE, 0)
        self.scored = self.answered = self._truncated = 0
        self._accuracy = 0.0  # summed over scored responses
        self.unscored: Counter[str] = Counter()  # responses of the groups judged in this step, by reason
        self.groups: list[Group] = []  # judged in this step
        self.settled: list[Group] = []  # whose fate was decided in this step, whenever they were judged
        self._ended = False

    def begin(self, engine_stats: Metrics) -> None:
        """A step begins; ``engine_stats`` is what the engine has counted before it.

        What happened since the last ``take`` counts for it; a step that was given up does not.
        """
        if self._ended:
            self._reset()
        self._engine_before = dict(engine_stats)

    def end(self, engine_stats: Metrics) -> dict[str, float]:
        """The step is over, or was given up: add its counts to the totals. Returns the engine's counts of the step."""
        engine = {k: v - self._engine_before.get(k, 0.0) for k, v in engine_stats.items()}
        for name in ("decode_steps", "prefill_tokens"):
            self.count[f"sampling/{name}"] = engine.get(name, 0)
        for key in ADDITIVE:
            self.totals[key] += self.count[key]
        self._ended = True
        return engine

    def state(self) -> dict[str, dict[str, float]]:
        """Totals, and what happened after the last step ended (an asynchronous driver's ``pause``)."""
        return {"totals": dict(self.totals), "count": {} if self._ended else {k: v for k, v in self.count.items() if v}}

    def load(self, state: Mapping[str, Mapping[str, float]]) -> None:
        self.totals |= state["totals"]
        self.count |= state["count"]

    def step_state(self, engine_stats: Metrics) -> dict[str, Any]:
        """Besides ``state``, in the middle of a step; its groups are not in it."""
        return {
            "scored": self.scored,
            "answered": self.answered,
            "truncated": self._truncated,
            "accuracy": self._accuracy,
            "unscored": dict(self.unscored),
            "barren": dict(self.barren),
            "engine": {key: value - self._engine_before.get(key, 0.0) for key, value in engine_stats.items()},
        }

    def load_step(self, state: Mapping[str, Any], engine_stats: Metrics) -> None:
        """Go on in the middle of a step, with an engine that has counted ``engine_stats`` by now."""
        self.scored, self.answered = state["scored"], state["answered"]
        self._truncated, self._accuracy = state["truncated"], state["accuracy"]
        self.unscored, self.barren = Counter(state["unscored"]), Counter(state["barren"])
        self._engine_before = {key: engine_stats.get(key, 0.0) - value for key, value in state["engine"].items()}

    def leave_out(self, before: Metrics, after: Metrics) -> None:
        """What the engine did between two looks at its counters was no work for the batch."""
        for key, value in after.items():
            self._engine_before[key] = self._engine_before.get(key, 0.0) + value - before.get(key, 0.0)

    # ------------------------------------------------------------------ what happened

    def dispatched(self, groups: int) -> None:
        self.count["sampling/refills"] += self.count["groups/dispatched"] > 0
        self.count["groups/dispatched"] += groups

    def generated(self, tokens: int) -> None:
        self.count["sampling/generated_tokens"] += tokens

    def judged(self, group: Group) -> None:
        self.groups.append(group)
        self._truncated += sum(c.truncated for c in group.completions_G)
        self.count["groups/finished"] += 1
        self.count[f"groups/{group.verdict}"] += 1
        self.count["sampling/responses"] += len(group.completions_G)
        self.count["sampling/failed"] += sum(c.finish is FinishReason.FAILED for c in group.completions_G)
        for score in group.scores_G:  # here, and not when it came: all counts of a step are of the same groups
            if score.reason is not None:
                self.unscored[_first_line(score.reason)] += 1
                self.count["reward/unscored"] += 1

    def got_score(self, key: Key, score: Score) -> None:
        """A score came, whenever its group will be judged; the first failure of each kind is told at once."""
        if score.reason is None:
            self.scored += 1
            self.answered += score.answer is not None
            self._accuracy += score.values["accuracy"]
            return
        reason = _first_line(score.reason)
        kind = reason.split(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            log.warning(
                "response %d of group %d could not be scored: %s. More failures of this kind are only counted "
                "(reward/unscored in metrics.jsonl, column `unscored` in rollouts/).",
                key.sample,
                key.group,
                score.reason,
            )
        self.barren[reason] += 1

    def disposed(self, group: Group, fate: str | None = None) -> None:
        """A group's use was decided. ``fate``: where its tokens go (one of FATES); None: they stay held."""
        self.count[f"groups/{group.disposition}"] += 1
        if fate is not None:
            self.count[f"cost/{fate}_tokens"] += int(group.lengths().sum())
            self.settled.append(group)

    def filled(self, group: Group) -> None:
        """A rejected group, counted as discarded before, was used after all."""
        self.count[f"groups/{Disposition.DISCARDED}"] -= 1
        self.count["cost/rejected_tokens"] -= int(group.lengths().sum())
        self.disposed(group, "filled")

    def dropped(self, disposition: Disposition, tokens: int) -> None:
        """A group that was never judged was dropped with the ``tokens`` it had."""
        self.count[f"groups/{disposition}"] += 1
        self.count[f"cost/{disposition}_tokens"] += tokens

    # ------------------------------------------------------------------ what it comes to

    @property
    def judged_groups(self) -> int:
        return len(self.groups)

    @property
    def generated_tokens(self) -> int:
        return int(self.count["sampling/generated_tokens"])

    def verdicts(self) -> dict[Verdict, int]:
        """Groups judged in this step by verdict."""
        return {verdict: int(self.count[f"groups/{verdict}"]) for verdict in Verdict}

    def share(self, verdict: Verdict) -> float:
        """Share of the groups judged in this step; 0 when there is none."""
        return self.count[f"groups/{verdict}"] / max(1, len(self.groups))

    def accuracy(self) -> float:
        """Mean accuracy of the responses scored in this step; 0 when there is none."""
        return self._accuracy / max(1, self.scored)

    def truncated_share(self) -> float:
        """Share of the responses judged in this step that the engine ended for length."""
        return self._truncated / max(1.0, self.count["sampling/responses"])

    def finished_groups(self, batch: Sequence[Group]) -> list[Group]:
        """Groups judged or ended in this step, the batch included, each once, in order of their ids."""
        by_id = {group.id: group for group in [*self.groups, *self.settled, *batch]}
        return [by_id[i] for i in sorted(by_id)]

    def metrics(self, step: int, batch: Sequence[Group], engine: Mapping[str, float]) -> Metrics:
        """What algorithm.md section 6 asks of a step's collection. ``engine``: what ``end`` returned."""
        ages = [step - group.born for group in batch]
        out: Metrics = dict(self.count)
        out |= {f"total/{key}": self.totals[key] for key in ADDITIVE}
        out |= {f"groups/{verdict}_share": self.share(verdict) for verdict in Verdict}
        out |= {
            "groups/age_mean": float(np.mean(ages)) if ages else math.nan,
            "groups/age_max": max(ages, default=0),
            "sampling/acceptance_rate": self.share(Verdict.KEPT) if self.groups else math.nan,
            "sampling/slot_use": engine.get("busy_slot_steps", 0.0) / max(1.0, engine.get("slot_steps", 0.0)),
            "counters/generated_tokens": self.totals["sampling/generated_tokens"],
            "counters/decode_steps": self.totals["sampling/decode_steps"],
        }
        out |= {f"reward/unscored/{reason}": count for reason, count in self._unscored_by_kind().items()}
        return out | response_metrics(self.groups)

    def _unscored_by_kind(self) -> Counter[str]:
        """Counts by the reason's text before the first colon: few kinds, so few metric keys."""
        kinds: Counter[str] = Counter()
        for reason, count in self.unscored.items():
            kinds[reason.split(":")[0].replace("/", " ")] += count
        return kinds


def _first_line(reason: str) -> str:
    return (reason.strip() or "no reason given").splitlines()[0][:200]


def wasted_seconds(metrics: Mapping[str, float], seconds: Mapping[str, float]) -> Metrics:
    """Seconds of work that trained nothing, by its tokens' share of what the step generated.

    Args:
        metrics: of a step's collection.
        seconds: ``time/<phase>`` of the step.
    """
    generated = metrics.get("sampling/generated_tokens")
    if not generated:
        return {}
    collecting = sum(seconds.get(f"time/{phase}", 0.0) for phase in ("generate", "score", "judge"))
    per_token = collecting / generated
    return {f"cost/{fate}_seconds": metrics[f"cost/{fate}_tokens"] * per_token for fate in WASTED}


def held_tokens(kept: Iterable[Group], unfinished: Iterable[OpenGroup]) -> int:
    """Response tokens in groups that wait to be trained and in responses that are not finished."""
    return sum(int(g.lengths().sum()) for g in kept) + sum(group.tokens() for group in unfinished)
