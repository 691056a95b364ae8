"""After a publish: does the engine compute with the learner's weights?

An engine can keep an old tensor without an error (a tied output head that is packed once, a cache that is not reset, a
fused matrix that is not made again). Two looks, after every publish:

* Checksums, wherever the engine's tensors can be read: exact, and they name the tensor.
* A few sampled tokens, whose log-probabilities must be the learner's as closely as they were before. What that is
  depends on engine, precision and model, so the accepted gap follows the healthy ones, and knows from how many tokens
  each was measured. A larger gap is accepted only if the model's precision explains it: transformers' own forward pass,
  in the run's precision and in float32, says how far rounding moves the very tokens.

Of several engines each is asked: one that was passed over would sample from old weights for the rest of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dapo.errors import EngineError
from dapo.loop.sampling.rollouts import Rollouts
from dapo.types.batch import (
    FloatArray,
    Key,
    Metrics,
    Prompt,
    Response,
    SampleRequest,
    SamplingParams,
    TensorSum,
    TokenRow,
)
from dapo.types.enums import FinishReason
from dapo.types.protocols import Engine, EngineGroup, Learner
from dapo.types.seeds import SYNC_CHECK, derive_seed

RESPONSES, TOKENS = 4, 16

# Mean gaps in nats. Measured between healthy computations in float32: 1e-7 (a model of 0.1 million parameters) to 8e-6
# (SmolLM2, 135 million); in bfloat16: 0.005 (0.1 million) to 0.05 (SmolLM2).
MOST = 0.05  # accepted by the first check, which knows no healthy gap yet, and at most by a later one
MOST_OF_8_BITS = 0.2
"""The same where the engine keeps keys and values in 8 bits. With vLLM's CPU build and a random model the gap was 6.5
times that of bfloat16."""
MOST_OF_FLOAT32 = 3e-4
"""The same where engine and learner are both this program's and compute in float32. A tenfold epsilon of the norms
gives 5e-4 with the model of 0.1 million parameters, and 0.004 with SmolLM2."""
EXPLAINED = 0.3  # never accepted, unless the recipe says so: a gap as large as the rounding of the model itself
LEAST = 1e-5  # always accepted
RATIO = 3.0  # times the healthy mean gap, or the model's own rounding
SPREAD = 4.0  # standard errors that two means of few tokens may differ by
MEMORY = 16  # checks: the healthy gap may drift, as a policy grows surer or less sure, but not jump
LARGEST = 20.0  # times the accepted mean: of a single token. Healthy gaps reach about 12 times their mean


@dataclass(slots=True)
class Healthy:
    """Running means of the checks that passed, which checkpoints have."""

    gap: float = 0.0  # nats
    square: float = 0.0  # of the gaps of single tokens
    tokens: float = 0.0  # of one check
    checks: int = 0  # so many


class SyncCheck:
    """Called after each publish; remembers what a healthy gap is.

    Args:
        rollouts: Of the engine. One that shares the learner's memory is asked for what it derived, no more.
        learner: Holds the weights that were just published.
        prompts: The first few are answered.
        sampling: Its temperature; cuts (top-p, top-k) are left out, as the learner knows none.
        seed: The run's.
        tolerance: Largest accepted mean gap, nats. None: it follows the healthy gaps, at most ``most``, or the model's
            own rounding where that is larger, at most ``EXPLAINED``.
        most: Accepted by the first check, nats.
        near_ties: Rounding may send a token to other experts, which changes it by a nat and more: the largest gap says
            nothing, and the mean alone is bounded.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        learner: Learner,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        *,
        seed: int,
        tolerance: float | None = None,
        most: float = MOST,
        near_ties: bool = False,
    ) -> None:
        self._rollouts, self._learner, self._prompts = rollouts, learner, list(prompts[:RESPONSES])
        self._sampling, self._seed, self._tolerance, self._most = sampling, seed, tolerance, most
        self._largest = np.inf if near_ties else LARGEST
        self.healthy = Healthy()

    def accepted(self, tokens: int) -> float:
        """Return the largest mean gap of so many tokens, nats, that looks like rounding by the checks before."""
        if self._tolerance is not None:
            return self._tolerance
        healthy = self.healthy
        if not healthy.checks:
            return self._most
        behind = healthy.tokens * min(healthy.checks, MEMORY)
        variance = max(0.0, healthy.square - healthy.gap**2)
        error = math.sqrt(variance * (1 / max(1, tokens) + (1 / behind if behind else 0.0)))
        return min(self._most, max(LEAST, RATIO * healthy.gap + SPREAD * error))

    def _explained(self, rows: Sequence[TokenRow]) -> float:
        """Return the largest mean gap of these rows, nats, that the model's own rounding explains; 0: none."""
        if self._tolerance is not None:
            return 0.0
        rounding = self._learner.rounding(rows)
        mean = math.nan if rounding is None or not rounding.size else float(rounding.mean())
        return min(EXPLAINED, RATIO * mean) if math.isfinite(mean) else 0.0

    def __call__(self, step: int) -> Metrics:
        """Compare engine and learner, which both have the weights of training step ``step``.

        Raises:
            EngineError: a tensor differs, or the mean or the largest gap is above what is accepted.
        """
        compared = _compare_tensors(self._rollouts.engine, self._learner, step)
        if self._rollouts.engine.shares_weights or not self._prompts:
            return {}
        compared_with = self._compared(step)
        limit = 0.0
        for number, (gap, rows) in compared_with.items():
            accepted = self.accepted(len(gap))
            if not self._passes(gap, accepted):
                accepted = max(accepted, self._explained(rows))
                if not self._passes(gap, accepted):
                    raise EngineError(self._complaint(step, number, gap, accepted))
            limit = max(limit, accepted)
        together = np.concatenate([gap for gap, _ in compared_with.values()])
        mean, largest = float(together.mean()), float(together.max())
        healthy = self.healthy
        healthy.checks += 1
        share = 1 / min(healthy.checks, MEMORY)
        healthy.gap += (mean - healthy.gap) * share
        healthy.square += (float(np.square(together, dtype=np.float64).mean()) - healthy.square) * share
        healthy.tokens += (len(together) - healthy.tokens) * share
        return {
            "train/sync_gap": mean,
            "train/sync_gap_max": largest,
            "train/sync_accepted": limit,
            "train/sync_tensors": float(compared),
        }

    def _passes(self, gap: FloatArray, accepted: float) -> bool:
        return bool(gap.mean() <= accepted and gap.max() <= self._largest * accepted)  # false for nan as well

    def _compared(self, step: int) -> dict[int | None, tuple[FloatArray, list[TokenRow]]]:
        """Return |engine - learner| log-probability of each sampled token, nats, and the rows, by engine.

        The key None stands for an engine that is one.
        """
        engine = self._rollouts.engine
        asked: Sequence[int | None] = engine.members() if isinstance(engine, EngineGroup) else [None]
        responses = _sampled(self._rollouts, asked, self._prompts, self._sampling, step, self._seed)
        rows: dict[tuple[int, bytes], TokenRow] = {}  # engines with the same weights mostly say the same
        for r in responses:
            which = r.key.group % len(self._prompts)
            row = TokenRow(which, self._prompts[which].token_ids, r.token_ids)
            rows.setdefault((which, r.token_ids.tobytes()), row)
        learned = dict(zip(rows, self._learner.logprobs(list(rows.values())).result(), strict=True))
        found: dict[int | None, list[tuple[FloatArray, TokenRow]]] = {}
        for r in responses:
            place, which = divmod(r.key.group, len(self._prompts))
            said = which, r.token_ids.tobytes()
            gap = np.abs(learned[said] - r.logprobs)
            # no engine drew the tokens that end a thinking budget
            found.setdefault(asked[place], []).append((gap[r.sampled], rows[said]))
        return {
            number: (np.concatenate([gap for gap, _ in parts]), [row for _, row in parts])
            for number, parts in found.items()
        }

    def _complaint(self, step: int, number: int | None, gap: FloatArray, accepted: float) -> str:
        name = _name(self._rollouts.engine, number)
        before = f"; before, a healthy check differed by {self.healthy.gap:.2g}" if self.healthy.checks else ""
        return (
            f"the sync check after step {step} failed: on {len(gap)} tokens sampled by {name} "
            f"right after new weights were published, its log-probabilities differ from the learner's by "
            f"{gap.mean():.4g} nats in the mean (accepted {accepted:.2g}{before}) and {gap.max():.4g} at most "
            f"(accepted {self._largest * accepted:.2g}). The engine is not running the published weights, or computes "
            "in another precision. Look at its version and options (docs/engines.md), or set another `rollout.engine`; "
            "if the precision explains it, set `trainer.sync_check_tolerance` to the mean gap to accept."
        )


def _name(engine: Engine, number: int | None) -> str:
    return type(engine).__name__ if number is None else f"engine {number} of {type(engine).__name__}"


def _compare_tensors(engine: Engine, learner: Learner, step: int) -> int:
    """How many of the engine's tensors, of each engine of a group, equal the learner's; 0 where they cannot be read.

    Raises:
        EngineError: some do not, or the learner has none of that name.
    """
    each: Mapping[int | None, Mapping[str, TensorSum] | None]
    each = dict(engine.checksums_each().items()) if isinstance(engine, EngineGroup) else {None: engine.checksums()}
    expected: Mapping[str, int] = {}
    types: dict[str, str] = {}  # for which it was asked
    for number, found in each.items():
        if found is None:
            continue
        if types != (own := {name: one.dtype for name, one in found.items()}):
            types, expected = own, learner.checksums(own)
        strange = [name for name in found if name not in expected]
        stale = [name for name, one in found.items() if name in expected and expected[name] != one.value]
        if stale or strange:
            what = (
                f"{len(stale)} of {len(found)} tensors" if stale else f"{len(strange)} tensors, which the model lacks,"
            )
            raise EngineError(
                f"the sync check after step {step} failed: {what} of {_name(engine, number)} are not those that were "
                f"just published ({', '.join((stale or strange)[:4])}{', ...' if len(stale or strange) > 4 else ''}). "
                "It would sample from other weights than the learner trains. Look at its version and options "
                "(docs/engines.md), or set another `rollout.engine`"
            )
    return sum(len(found) for found in each.values() if found is not None)


def _sampled(
    rollouts: Rollouts,
    asked: Sequence[int | None],
    chosen: Sequence[Prompt],
    sampling: SamplingParams,
    step: int,
    seed: int,
) -> list[Response]:
    """Return a short response of each engine to each of the prompts: group i of the n-th engine is n x prompts + i.

    Raises:
        EngineError: one was lost, or could not be made.
    """
    short = replace(sampling, max_tokens=min(TOKENS, sampling.max_tokens), top_p=1.0, top_k=0)
    requests = [
        SampleRequest(
            Key("check", place * len(chosen) + i, 0),
            p.token_ids,
            short,
            derive_seed(seed, SYNC_CHECK, step, i),
            engine=number,
        )
        for place, number in enumerate(asked)
        for i, p in enumerate(chosen)
    ]
    rollouts.submit(requests)
    responses: list[Response] = []
    while len(responses) < len(requests):
        rollouts.pump()
        responses += rollouts.ended("check")
        if lost := rollouts.lost("check"):
            raise EngineError(f"the engine lost {len(lost)} of the sync check's {len(requests)} requests")
    failed = [r for r in responses if r.finish is FinishReason.FAILED]
    if failed:
        raise EngineError(
            f"the sync check after step {step} failed: {len(failed)} of {len(responses)} short responses did "
            f"({failed[0].reason}). Are the learner's weights finite? If they are, the engine does not run them: look "
            "at its version and options (docs/engines.md), or set another `rollout.engine`"
        )
    return responses
