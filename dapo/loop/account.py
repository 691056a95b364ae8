"""What a step cost and where it went: the counts behind ``groups/``, ``sampling/``, ``response/`` and ``reward/``."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dapo.algorithms.diagnostics import length_quantiles
from dapo.contracts.enums import Disposition, FinishReason, Verdict
from dapo.contracts.types import Group, Key, Metrics, Score

if TYPE_CHECKING:
    from dapo.loop.collector import StreamingCollector


log = logging.getLogger(__name__)


class Account:
    """Counters of one step (reset by ``begin``) and running totals (saved in checkpoints)."""

    def __init__(self) -> None:
        self.totals: Metrics = {"generated_tokens": 0, "decode_steps": 0}
        self._told: set[str] = set()  # kinds of verifier failures that were told
        self.begin({})

    def begin(self, engine_stats: Metrics) -> None:
        self.scored = self.unscored_responses = 0
        self.dispatched = self.refills = self.generated_tokens = self.cap_reached = 0
        self.unfinished_dropped_tokens = 0
        self.verdicts: Counter[Verdict] = Counter()
        self.dispositions: Counter[Disposition] = Counter()
        self.unscored: Counter[str] = Counter()
        self.groups: list[Group] = []
        self._engine_before = dict(engine_stats)

    def judged(self, group: Group) -> None:
        assert group.verdict is not None
        self.verdicts[group.verdict] += 1
        self.groups.append(group)

    def got_score(self, key: Key, score: Score) -> None:
        """Count one score; the first failure of each kind is told at once."""
        if score.reason is None:
            self.scored += 1
            return
        kind = score.reason.split(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            log.warning(
                "response %d of group %d could not be scored: %s. More failures of this kind are only counted "
                "(reward/unscored in metrics.jsonl, column `unscored` in rollouts/).",
                key[1],
                key[0],
                score.reason,
            )
        self.unscored[score.reason.splitlines()[0][:200]] += 1
        self.unscored_responses += 1

    def disposed(self, group: Group) -> None:
        assert group.disposition is not None
        self.dispositions[group.disposition] += 1

    def redisposed(self, group: Group) -> None:
        """A discarded group was used after all."""
        self.dispositions[Disposition.DISCARDED] -= 1
        self.disposed(group)

    def dropped_unfinished(self, tokens: int) -> None:
        self.unfinished_dropped_tokens += tokens

    def truncated_share(self) -> float:
        """Share of the responses judged in this step that the engine ended for length."""
        return _mean([truncated for group in self.groups for truncated in group.truncated()])

    @property
    def judged_groups(self) -> int:
        return sum(self.verdicts.values())

    @property
    def acceptance(self) -> float:
        return self.verdicts[Verdict.KEPT] / max(1, self.judged_groups)

    def finished_groups(self, batch: Sequence[Group]) -> list[Group]:
        """Groups judged in this step and those carried into its batch, each once, in order of their ids."""
        by_id = {group.id: group for group in [*self.groups, *batch]}
        return [by_id[i] for i in sorted(by_id)]

    def metrics(self, batch: Sequence[Group], collector: StreamingCollector, engine_stats: Metrics) -> Metrics:
        """Everything that algorithm.md section 6 asks of a step's collection."""
        delta = {k: engine_stats[k] - self._engine_before.get(k, 0.0) for k in engine_stats}
        self.totals["generated_tokens"] += self.generated_tokens
        self.totals["decode_steps"] += delta.get("decode_steps", 0.0)
        ages = [collector.step - group.born for group in batch]
        responses = [completion for group in self.groups for completion in group.completions_G]
        out: Metrics = {
            "groups/dispatched": self.dispatched,
            "groups/finished": self.judged_groups,
            "groups/waiting": len(collector.kept),
            "groups/unfinished": len(collector.open),
            "groups/age_mean": _mean(ages),
            "groups/age_max": max(ages, default=0),
            "sampling/acceptance_rate": self.acceptance if self.judged_groups else math.nan,
            "sampling/acceptance_estimate": collector.acceptance,
            "sampling/refills": self.refills,
            "sampling/cap_reached": self.cap_reached,
            "sampling/responses": len(responses),
            "sampling/failed": sum(c.finish is FinishReason.FAILED for c in responses),
            "sampling/generated_tokens": self.generated_tokens,
            "sampling/decode_steps": delta.get("decode_steps", 0.0),
            "sampling/slot_use": delta.get("busy_slot_steps", 0.0) / max(1.0, delta.get("slot_steps", 0.0)),
            "counters/generated_tokens": self.totals["generated_tokens"],
            "counters/decode_steps": self.totals["decode_steps"],
        }
        for verdict in Verdict:
            out[f"groups/{verdict}"] = self.verdicts[verdict]
            out[f"groups/{verdict}_share"] = self.verdicts[verdict] / max(1, self.judged_groups)
        out |= {f"groups/{disposition}": self.dispositions[disposition] for disposition in Disposition}
        out |= {f"reward/unscored/{reason}": count for reason, count in self._unscored_by_kind().items()}
        out |= response_metrics(self.groups)
        return out

    def _unscored_by_kind(self) -> Counter[str]:
        """Counts by the reason's text before the first colon: few kinds, so few metric keys."""
        kinds: Counter[str] = Counter()
        for reason, count in self.unscored.items():
            kinds[reason.split(":")[0].replace("/", " ")] += count
        return kinds


def response_metrics(groups: Sequence[Group]) -> Metrics:
    """Rewards, accuracy and lengths over all finished groups, and apart over the kept ones."""
    out: Metrics = {}
    scores = [s for g in groups for s in g.scores_G]
    scored = [s for s in scores if s.scored]
    kept = [s for g in groups if g.verdict is Verdict.KEPT for s in g.scores_G if s.scored]
    out["reward/unscored"] = len(scores) - len(scored)
    for suffix, chosen in (("", scored), ("_kept", kept)):
        out[f"reward/raw{suffix}"] = _mean([s.reward for s in chosen])
        for name in sorted({name for s in chosen for name in s.values} | {"accuracy"}):
            out[f"reward/{name}{suffix}"] = _mean([s.values[name] for s in chosen if name in s.values])
    lengths = np.concatenate([g.lengths() for g in groups]) if groups else np.zeros(0)
    accuracy = np.concatenate([g.accuracies() for g in groups]) if groups else np.zeros(0)
    scorable = ~np.isnan(accuracy)
    quantiles = length_quantiles(lengths[scorable], accuracy[scorable] >= 1.0, (0.1, 0.5, 0.9, 1.0))
    quantiles["all"] = length_quantiles(lengths, np.zeros(len(lengths)), (0.1, 0.5, 0.9, 1.0))["all"]
    by_name = {"all": lengths, "correct": lengths[accuracy >= 1.0], "wrong": lengths[accuracy < 1.0]}
    for name, values in quantiles.items():
        prefix = "response/length" if name == "all" else f"response/length_{name}"
        out[f"{prefix}_mean"] = _mean(by_name[name])
        out |= {f"{prefix}_{q}": float(v) for q, v in zip(("p10", "p50", "p90", "max"), values, strict=True)}
    out["response/truncated_share"] = _mean([t for g in groups for t in g.truncated()])
    return out


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan
