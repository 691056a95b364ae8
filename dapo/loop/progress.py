"""How far a collector's batch is: for whoever watches, for the end of the step, for the error that ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dapo.loop.account import held_tokens
from dapo.loop.outcomes import filling
from dapo.loop.source_metrics import source_metrics
from dapo.types.batch import Group
from dapo.types.enums import Verdict
from dapo.types.evidence import CollectProgress, Shares

if TYPE_CHECKING:
    from dapo.loop.collector import StreamingCollector

PULSE = 5.0
"""Seconds after which a watcher hears of a batch in which no further group was judged."""


class Watching:
    """Tells a watcher at every judged group, and now and then where none is."""

    def __init__(self, collector: StreamingCollector, watch: Callable[[CollectProgress], None] | None) -> None:
        self._collector, self._watch = collector, watch
        self._told_at = time.monotonic()

    def tell(self) -> None:
        if self._watch is not None:
            self._told_at = time.monotonic()
            c = self._collector
            self._watch(filling(c.step, len(c.kept), shares(c), c.scores.waiting))

    def pulse(self) -> None:
        """As ``tell``, where nothing was judged for a while: long responses, or a slow verifier."""
        if time.monotonic() - self._told_at >= PULSE:
            self.tell()


def shares(collector: StreamingCollector) -> Shares:
    """What became of the groups that were judged in this step, for ``dapo.observe.why``."""
    account, ended = collector.account, collector.selector.ended
    named = collector.reads_answers and account.scored
    return Shares(
        kept=account.share(Verdict.KEPT),
        all_correct=account.share(Verdict.ALL_CORRECT),
        all_wrong=account.share(Verdict.ALL_WRONG),
        uniform=account.share(Verdict.UNIFORM),
        out_of_band=account.share(Verdict.OUT_OF_BAND),
        too_few_scored=account.share(Verdict.TOO_FEW_SCORED),
        judged=account.judged_groups,
        truncated=account.truncated_share(),
        accuracy=account.accuracy(),
        correct_at=collector.settings.correct_at,
        answered=account.answered / account.scored if named else None,
        truncated_vote=collector.algorithm.truncated_vote,
        unscored=dict(account.unscored.most_common()),
        prompts_per_step=collector.prompts_per_step,
        group_size=collector.group_size,
        dispatched=int(account.count["groups/dispatched"]),
        generated_tokens=account.generated_tokens,
        data_ended=ended == "data",
        all_retired=ended == "retired",
    )


def end_step(collector: StreamingCollector, batch: Sequence[Group]) -> dict[str, float]:
    """Close the books of a step whose batch is taken: its metrics. What comes from now on counts for the next one."""
    account, selector = collector.account, collector.selector
    account.count["sampling/skipped_prompts"] = selector.skipped
    engine = account.end(collector.engine.stats())
    selector.end_step(account.verdicts())
    metrics = account.metrics(collector.step, batch, engine)
    metrics |= source_metrics(account.groups, selector.sources, selector.levels())
    metrics |= {
        "groups/waiting": len(collector.kept),
        "groups/unfinished": len(collector.open),
        "cost/held_tokens": held_tokens(collector.kept, collector.open.values()),
        "sampling/acceptance_estimate": collector.refill.acceptance,
        "sampling/retired_prompts": selector.retired(),
    }
    account.begin(collector.engine.stats())
    return metrics
