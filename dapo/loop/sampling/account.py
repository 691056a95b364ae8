"""Account for a step: what was generated and where each token went, what its line says, why it did not fill.

``Account`` has the counts of ``groups/``, ``sampling/``, ``cost/`` and their totals. The functions after it compute
``reward/``, ``response/`` and ``source/`` from finished groups. ``stopped`` gathers the evidence of a batch that could
not be filled, without sentences: ``dapo.observe`` has those.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dapo.algorithms.diagnostics import length_quantiles
from dapo.config.schema import DynamicSampling
from dapo.errors import NothingScored, SamplingStopped
from dapo.types.batch import MODEL, Group, Key, Metrics, Response, Score
from dapo.types.codec import NOT_SAVED, fill
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.evidence import ENGINE, Example, Met, Shares, StopEvidence, UnscoredEvidence, cause_of

log = logging.getLogger(__name__)

HOPELESS = 32
"""Unscored responses, and not a scored one, after which a step gives up: few, for each may have cost a time limit."""
COMMONEST = 3
"""Reasons of unscored responses that are evidence, by their number."""
FATES = ("trained", "filled", "rejected", "discarded", "expired")
"""Uses of generated tokens. Together with the tokens still held they are all that were generated."""
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


def _zeros() -> dict[str, float]:
    return dict.fromkeys(ADDITIVE, 0)


@dataclass(slots=True)
class Account:
    """Keep the counts of one step and running totals. What happens between two steps counts for the second."""

    totals: dict[str, float] = field(default_factory=_zeros)
    count: dict[str, float] = field(default_factory=_zeros)
    barren: Counter[str] = field(default_factory=Counter)
    """Reasons of all unscored responses since the last step that scored any."""
    unscored: Counter[str] = field(default_factory=Counter)  # responses of the groups judged in this step, by reason
    scored: int = 0
    answered: int = 0
    truncated: int = 0
    correct: float = 0.0  # accuracy, summed over scored responses
    groups: list[Group] = field(default_factory=list, metadata=NOT_SAVED)  # judged in this step
    settled: list[Group] = field(default_factory=list, metadata=NOT_SAVED)
    """Groups whose fate was decided in this step, whenever they were judged."""
    warned: set[str] = field(default_factory=set, metadata=NOT_SAVED)  # kinds of verifier failures that were reported
    engine_before: Metrics = field(default_factory=dict, metadata=NOT_SAVED)  # its counts when the step began

    def clear(self) -> None:
        """Forget a step whose counts ``end`` added to the totals."""
        if self.scored:
            self.barren.clear()
        self.count, self.unscored, self.groups, self.settled = _zeros(), Counter(), [], []
        self.scored = self.answered = self.truncated = 0
        self.correct = 0.0

    def begin(self, engine_stats: Metrics) -> None:
        """Begin a step; ``engine_stats`` is what the engine has counted before it."""
        self.engine_before = dict(engine_stats)

    def of_step(self, engine_stats: Metrics) -> Metrics:
        """Return what the engine has counted in this step."""
        return {key: value - self.engine_before.get(key, 0.0) for key, value in engine_stats.items()}

    def end(self, engine_stats: Metrics) -> Metrics:
        """End the step, also one given up: add its counts to the totals. Returns the engine's counts of the step."""
        engine = self.of_step(engine_stats)
        for name in ("decode_steps", "prefill_tokens"):
            self.count[f"sampling/{name}"] = engine.get(name, 0)
        for key in ADDITIVE:
            self.totals[key] += self.count[key]
        return engine

    def load(self, state: Any, of_step: Metrics, engine_stats: Metrics) -> None:
        """Go on from the tree of an account and its ``of_step``, with an engine that has counted ``engine_stats``."""
        fill(self, state)
        self.totals, self.count = _zeros() | self.totals, _zeros() | self.count
        self.engine_before = {key: engine_stats.get(key, 0.0) - value for key, value in of_step.items()}

    def leave_out(self, before: Metrics, after: Metrics) -> None:
        """Leave out the engine's work between two looks at its counters: it was no work for the batch."""
        for key, value in after.items():
            self.engine_before[key] = self.engine_before.get(key, 0.0) + value - before.get(key, 0.0)

    # ------------------------------------------------------------------ what happened

    def dispatched(self, groups: int) -> None:
        """Count groups that were dispatched together."""
        self.count["sampling/refills"] += self.count["groups/dispatched"] > 0
        self.count["groups/dispatched"] += groups

    def generated(self, tokens: int) -> None:
        """Count tokens that the engine made."""
        self.count["sampling/generated_tokens"] += tokens

    def judged(self, group: Group) -> None:
        """Count a group that has its verdict, and its responses."""
        self.groups.append(group)
        self.truncated += sum(c.truncated for c in group.completions_G)
        self.count["groups/finished"] += 1
        self.count[f"groups/{group.verdict}"] += 1
        self.count["sampling/responses"] += len(group.completions_G)
        self.count["sampling/failed"] += sum(c.finish is FinishReason.FAILED for c in group.completions_G)
        for score in group.scores_G:  # here, and not when it came: all counts of a step are of the same groups
            if score.reason is not None:
                self.unscored[_first_line(score.reason)] += 1
                self.count["reward/unscored"] += 1

    def got_score(self, key: Key, score: Score) -> None:
        """Count a score when it comes, whenever its group is judged; warn of the first failure of each kind."""
        if score.reason is None:
            self.scored += 1
            self.answered += score.answer is not None
            self.correct += score.values.get("accuracy", math.nan)
            return
        reason = _first_line(score.reason)
        kind = reason.split(":")[0]
        if kind not in self.warned:
            self.warned.add(kind)
            log.warning(
                "response %d of group %d could not be scored: %s. More failures of this kind are only counted "
                "(reward/unscored in metrics.jsonl, column `unscored` in rollouts/).",
                key.sample,
                key.group,
                score.reason,
            )
        self.barren[reason] += 1

    def check_scored(self) -> None:
        """Raise NothingScored if nothing at all could be scored in this step and those right before it.

        A broken verifier or engine must not loop for ever.
        """
        failures = self.barren
        if self.scored or failures.total() < HOPELESS:
            return
        engine = sum(n for reason, n in failures.items() if reason.startswith(ENGINE)) > failures.total() / 2
        raise NothingScored(UnscoredEvidence(failures.total(), dict(failures.most_common(COMMONEST)), engine))

    def disposed(self, group: Group, fate: str | None = None) -> None:
        """Book the use of a group. ``fate``: where its tokens go (one of FATES); None: they remain held."""
        self.count[f"groups/{group.disposition}"] += 1
        if fate is not None:
            self.count[f"cost/{fate}_tokens"] += int(group.lengths().sum())
            self.settled.append(group)

    def filled(self, group: Group) -> None:
        """Book that a rejected group, counted as discarded before, is used after all."""
        self.count[f"groups/{Disposition.DISCARDED}"] -= 1
        self.count["cost/rejected_tokens"] -= int(group.lengths().sum())
        self.disposed(group, "filled")

    def dropped(self, disposition: Disposition, tokens: int) -> None:
        """Book that a group which was never judged is dropped with the ``tokens`` it had."""
        self.count[f"groups/{disposition}"] += 1
        self.count[f"cost/{disposition}_tokens"] += tokens

    # ------------------------------------------------------------------ what it comes to

    @property
    def generated_tokens(self) -> int:
        return int(self.count["sampling/generated_tokens"])

    def verdicts(self) -> dict[Verdict, int]:
        """Count the groups judged in this step by verdict."""
        return {verdict: int(self.count[f"groups/{verdict}"]) for verdict in Verdict}

    def share(self, verdict: Verdict) -> float:
        """Return the share of a verdict among the groups judged in this step; 0 when there is none."""
        return self.count[f"groups/{verdict}"] / max(1, len(self.groups))

    def accuracy(self) -> float:
        """Return the mean accuracy of the responses scored in this step; 0 when there is none."""
        return self.correct / max(1, self.scored)

    def truncated_share(self) -> float:
        """Return the share of responses judged in this step that the engine ended for length."""
        return self.truncated / max(1.0, self.count["sampling/responses"])

    def finished_groups(self, batch: Sequence[Group]) -> list[Group]:
        """Return the groups judged or ended in this step, the batch included, each once, ordered by id."""
        by_id = {group.id: group for group in [*self.groups, *self.settled, *batch]}
        return [by_id[i] for i in sorted(by_id)]

    def metrics(self, step: int, batch: Sequence[Group], engine: Mapping[str, float]) -> Metrics:
        """Return the metrics of the step's collection; ``engine`` is what ``end`` returned."""
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
        """Count by the reason's text before the first colon: few kinds, so few metric keys."""
        kinds: Counter[str] = Counter()
        for reason, count in self.unscored.items():
            kinds[reason.split(":")[0].replace("/", " ")] += count
        return kinds


def _first_line(reason: str) -> str:
    return (reason.strip() or "no reason given").splitlines()[0][:200]


def wasted_seconds(metrics: Mapping[str, float], seconds: Mapping[str, float]) -> Metrics:
    """Estimate the seconds of work that trained nothing, by its tokens' share of what the step generated.

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


def response_metrics(groups: Sequence[Group]) -> Metrics:
    """Compute rewards, accuracy and lengths over all finished groups, and separately over the kept ones."""
    out: Metrics = {}
    scores = [s for g in groups for s in g.scores_G]
    scored = [s for s in scores if s.scored]
    kept = [s for g in groups if g.verdict is Verdict.KEPT for s in g.scores_G if s.scored]
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
    out |= _thinking([c for g in groups for c in g.completions_G if c.thinking is not None])
    return out | _episodes([(c, g.scores_G[n]) for g in groups for n, c in enumerate(g.completions_G) if c.ended])


def _episodes(played: Sequence[tuple[Response, Score]]) -> Metrics:
    """Compute what the environments of finished groups did; see the glossary's ``environment/``."""
    if not played:
        return {}
    own_E = [[turn for turn in made.turns if turn.who == MODEL] for made, _ in played]
    own = [turn for turns in own_E for turn in turns]
    replies = [turn for made, _ in played for turn in made.turns if turn.who != MODEL]
    seconds = np.array([turn.seconds for turn in own] or [math.nan])
    failed = [score.reason or "" for made, score in played if made.ended == "error"]
    out: Metrics = {
        "environment/turns_mean": _mean([len(turns) for turns in own_E]),
        "environment/turns_max": max(map(len, own_E)),
        "environment/calls": sum(len(turn.calls) for turn in own),
        "environment/tool_errors": sum(turn.tool_errors for turn in own),
        "environment/errors": len(failed),
        "environment/turn_limit_share": _mean([made.ended == "turns" for made, _ in played]),
        "environment/ended_by_reply_share": _mean([made.ended == "reply" for made, _ in played]),
        "environment/reply_tokens": sum(turn.stop - turn.first for turn in replies),
        "environment/reply_cut_share": _mean([turn.cut for turn in replies]),
        "environment/reward_mean": _mean([sum(turn.reward for turn in turns) for turns in own_E]),
        "environment/seconds_mean": float(seconds.mean()),
        "environment/seconds_p90": float(np.quantile(seconds, 0.9)),
    }
    for name in sorted({name for turn in own for name in turn.facts}):
        out[f"environment/fact/{name}"] = _mean([turn.facts[name] for turn in own if name in turn.facts])
    return out


def _thinking(completions: Sequence[Response]) -> Metrics:
    if not completions:
        return {}
    own = [[slice(t.first, t.stop) for t in c.turns if t.who == MODEL] or [slice(None)] for c in completions]
    forced = [
        c.generated is not None and not all(c.generated[turn].all() for turn in turns)
        for c, turns in zip(completions, own, strict=True)
    ]
    return {
        "response/thinking_tokens_mean": _mean([float(c.thinking or 0) for c in completions]),
        "response/thinking_unclosed_share": _mean([not c.closed for c in completions]),
        "response/thinking_forced_share": _mean(forced),
    }


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def source_metrics(groups: Sequence[Group], sources: Sequence[str], levels: Mapping[str, int]) -> Metrics:
    """Compute accuracy and verdicts by data source, ``source/<set>/...``, of the groups judged in a step.

    Args:
        groups: all of them.
        sources: names of the training sources; one alone has no metrics of its own.
        levels: of those that have levels.
    """
    out: Metrics = {f"source/{name}/level": float(level) for name, level in levels.items()}
    if len(sources) < 2:
        return out
    for name in sources:
        own = [group for group in groups if group.prompt.source == name]
        accuracies = np.concatenate([group.accuracies() for group in own]) if own else np.zeros(0)
        scored = accuracies[~np.isnan(accuracies)]
        out[f"source/{name}/groups"] = float(len(own))
        out[f"source/{name}/accuracy"] = float(scored.mean()) if len(scored) else math.nan
        for verdict in (Verdict.KEPT, Verdict.ALL_CORRECT, Verdict.ALL_WRONG):
            share = sum(group.verdict is verdict for group in own) / len(own) if own else math.nan
            out[f"source/{name}/{verdict}_share"] = share
    return out


def stopped(account: Account, settings: DynamicSampling, kept: int, shares: Shares) -> SamplingStopped:
    """Make the error of the outcome ``stop``, with the counts so far."""
    met, limit = _met(settings, shares)
    wanted = shares.prompts_per_step
    return SamplingStopped(StopEvidence(met, limit, kept, wanted, shares, cause_of(shares), _example(account)))


def _met(settings: DynamicSampling, shares: Shares) -> tuple[Met, float | None]:
    """Return what the step met, and what a cap allows."""
    if shares.data_ended:
        return "data", None
    if shares.all_retired:
        return "retired", None
    if settings.cap.groups is not None and shares.dispatched >= settings.cap.groups * shares.prompts_per_step:
        return "cap.groups", settings.cap.groups
    return "cap.tokens", settings.cap.tokens


def _example(account: Account) -> Example | None:
    """Choose a response that shows the commonest reason for rejection, so that a wrong prompt or verifier is seen."""
    rejected = [group for group in account.groups if group.verdict is not Verdict.KEPT] or account.groups
    if not rejected:
        return None
    commonest = Counter(group.verdict for group in rejected).most_common(1)[0][0]
    group = [group for group in rejected if group.verdict is commonest][-1]
    index = next((i for i, score in enumerate(group.scores_G) if not score.scored), 0)
    score = group.scores_G[index]
    accuracy = score.accuracy if score.scored else None
    text = group.completions_G[index].shown
    return Example(group.prompt.problem, group.prompt.answer, text, accuracy, score.reason)
