"""After a publish to an engine with weights of its own: are these the learner's weights?

An engine can keep old weights without an error (a tied output head that is packed once, a cache that is not reset).
A few sampled tokens tell: their log-probabilities must be the learner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dapo.contracts.enums import FinishReason
from dapo.contracts.protocols import Engine, Learner
from dapo.contracts.types import Metrics, Prompt, SampleEvent, SampleRequest, SamplingParams, TrainRow
from dapo.errors import EngineError
from dapo.loop.evaluation import FIRST_EVALUATION_GROUP
from dapo.loop.seeds import SYNC_CHECK, derive_seed

RESPONSES, TOKENS = 4, 16
FIRST_GROUP = FIRST_EVALUATION_GROUP // 2  # ids that neither training nor evaluation uses


def sync_check(
    engine: Engine,
    learner: Learner,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    *,
    step: int,
    seed: int,
    tolerance: float,
) -> Metrics:
    """Sample a few tokens from the idle engine and compare log-probabilities (nats) with the learner's.

    Args:
        engine: Idle; an engine that shares the learner's weights is not asked.
        learner: Holds the weights that were just published.
        prompts: The first few are answered.
        sampling: Its temperature; cuts (top-p, top-k) are left out, as the learner knows none.
        step: The training step whose weights these are.
        seed: The run's.
        tolerance: Largest accepted mean gap.

    Raises:
        EngineError: the mean absolute gap is above ``tolerance``.
    """
    if engine.shares_weights or not prompts:
        return {}
    chosen = list(prompts)[:RESPONSES]
    events = _sampled(engine, chosen, sampling, step, seed)
    rows = [
        TrainRow(
            group=event.key[0],
            prompt_ids=chosen[event.key[0] - FIRST_GROUP].token_ids,
            token_ids=event.token_ids,
            weights=np.zeros(len(event.token_ids), np.float32),
            advantages=np.zeros(len(event.token_ids), np.float32),
            old_logprobs=event.logprobs,
        )
        for event in events
    ]
    learned = np.concatenate(learner.logprobs(rows))
    gap = np.abs(learned - np.concatenate([event.logprobs for event in events]))
    if not gap.mean() <= tolerance:
        raise EngineError(
            f"the sync check after step {step} failed: on {len(gap)} tokens sampled by {type(engine).__name__} right "
            f"after new weights were published, its log-probabilities differ from the learner's by {gap.mean():.4g} "
            f"nats in the mean (largest {gap.max():.4g}; accepted {tolerance:g}). The engine is not running the "
            "published weights, or computes in another precision. Look at its version and options (docs/engines.md), "
            "or set another `rollout.engine`; if the precision explains it, raise `trainer.sync_check_tolerance`."
        )
    return {"train/sync_gap": float(gap.mean())}


def _sampled(
    engine: Engine, chosen: Sequence[Prompt], sampling: SamplingParams, step: int, seed: int
) -> list[SampleEvent]:
    """A short response to each of the prompts.

    Raises:
        EngineError: one was lost, or could not be made.
    """
    short = replace(sampling, max_tokens=min(TOKENS, sampling.max_tokens), top_p=1.0, top_k=0)
    engine.submit(
        [
            SampleRequest((FIRST_GROUP + i, 0), p.token_ids, short, derive_seed(seed, SYNC_CHECK, step, i))
            for i, p in enumerate(chosen)
        ]
    )
    events: list[SampleEvent] = []
    while len(events) < len(chosen):
        came = engine.poll()
        if not came:
            raise EngineError(f"the engine lost {len(chosen) - len(events)} of the sync check's {len(chosen)} requests")
        events += came
    failed = [event for event in events if event.finish is FinishReason.FAILED]
    if failed:
        raise EngineError(
            f"the sync check after step {step} failed: {len(failed)} of {len(events)} short responses did "
            f"({failed[0].reason}). Are the learner's weights finite? If they are, the engine does not run them: look "
            "at its version and options (docs/engines.md), or set another `rollout.engine`"
        )
    return events
