"""Several rewards with weights and names, as one ``Scorer``."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dapo.config.schema import Reward
from dapo.contracts.types import Completion, Key, Prompt, Score
from dapo.errors import RewardError
from dapo.rewards import math, simple
from dapo.rewards.function import describe_error, read_values
from dapo.rewards.pool import WorkerPool
from dapo.rewards.task import SIGNED_SUM, read_answer, task
from dapo.rewards.worker import Outcome, Verifier

ACCURACY = "accuracy"


@dataclass(slots=True)
class _Pending:
    """One response on its way: the outcomes so far, by index of the reward."""

    key: Key
    source: str
    missing: int
    answer: str | None  # what the response answers, as the reward called accuracy reads it
    outcomes: dict[int, Outcome] = field(default_factory=dict)


class CompositeScorer:
    """A ``Scorer`` over the recipe's rewards. Make one with ``build_scorer``.

    Attributes:
        failures: unscored responses by kind of reason: "timeout", "crash", "exception", "not a number", "accuracy".
        scored: responses scored so far.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        workers: int = 1,
        tasks: Iterable[str] | None = None,
        output: Path | None = None,
    ) -> None:
        """See ``build_scorer``, which also checks."""
        self.failures: Counter[str] = Counter()
        self.scored = 0
        self._rewards = list(rewards)
        self._inline: dict[int, Callable[[Prompt, Completion], Any]] = {}
        self._patterns: dict[int, re.Pattern[str] | None] = {}
        self._remote: dict[int, int] = {}  # index of the reward -> index of the verifier in the pool
        verifiers: list[Verifier] = []
        for index, reward in enumerate(self._rewards):
            if reward.kind == "exact":
                self._inline[index] = simple.exact(reward.pattern)
                self._patterns[index] = re.compile(reward.pattern) if reward.pattern else None
            elif reward.kind == "regex":
                self._inline[index] = simple.regex(reward.pattern)
            elif reward.kind == "task" and tasks is not None and set(tasks) <= {SIGNED_SUM}:
                self._inline[index] = task
            else:
                self._remote[index] = len(verifiers)
                verifiers.append(Verifier(reward.kind, reward.name, reward.function or ""))
        self._pool = WorkerPool(verifiers, workers=workers, output=output) if verifiers else None
        self._pending: dict[int, _Pending] = {}
        self._ready: list[tuple[Key, Score]] = []
        self._next = 0

    def submit(self, key: Key, prompt: Prompt, completion: Completion) -> None:
        """Queue one response. Cheap trusted rewards are computed at once, the others go to worker processes."""
        applicable = [i for i, r in enumerate(self._rewards) if r.sources is None or prompt.source in r.sources]
        answers = (self._read_answer(i, prompt, completion) for i in applicable if self._rewards[i].name == ACCURACY)
        pending = _Pending(key, prompt.source, missing=len(applicable), answer=next(answers, None))
        ticket, self._next = self._next, self._next + 1
        self._pending[ticket] = pending
        slim: Completion | None = None
        for index in applicable:
            reward = self._rewards[index]
            inline = self._inline.get(index)
            if inline is not None:
                self._settle(ticket, index, _run_inline(inline, reward.name, prompt, completion))
                continue
            assert self._pool is not None  # a reward that is not inline has a verifier
            if reward.kind != "function":  # ours read the text alone: do not send the arrays
                slim = slim or _text_only(completion)
            sent = completion if reward.kind == "function" or slim is None else slim
            item = ticket * len(self._rewards) + index
            self._pool.submit(item, self._remote[index], reward.timeout, prompt, sent)
        if not applicable:
            self._finish(ticket)

    def poll(self, timeout: float | None = None) -> list[tuple[Key, Score]]:
        """Finished scores, ordered by key. timeout 0: what is there; None: wait until one is (or nothing is pending).

        Raises:
            RewardError: the user's reward function could never be loaded.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._pool is not None and self._pool.pending:
            left = 0.0 if self._ready else None if deadline is None else max(0.0, deadline - time.monotonic())
            for item, outcome in self._pool.poll(left):
                self._settle(*divmod(item, len(self._rewards)), outcome)
            # A response that waits for two verifiers is finished by neither alone: ask again while nothing is.
            if self._ready or left == 0.0:
                break
        ready, self._ready = self._ready, []
        return sorted(ready, key=lambda pair: pair[0])

    @property
    def inline(self) -> bool:
        """Every reward is computed in the driver: a score is there as soon as it is asked for."""
        return self._pool is None

    def start(self) -> None:
        """Start a worker now, if any reward needs one.

        Raises:
            RewardError: the user's reward function cannot be loaded.
        """
        if self._pool is not None:
            self._pool.start()

    def stats(self) -> dict[str, float]:
        """Counters since construction: ``scored``, ``unscored``, ``unscored/REASON``, ``worker_restarts``."""
        counters = {
            "scored": float(self.scored),
            "unscored": float(sum(self.failures.values())),
            "worker_restarts": float(self._pool.restarts if self._pool else 0),
        }
        counters.update({f"unscored/{kind.replace(' ', '_')}": float(n) for kind, n in self.failures.items()})
        return counters

    def close(self) -> None:
        """End the worker processes. Pending responses are forgotten."""
        if self._pool is not None:
            self._pool.close()
        self._pending.clear()
        self._ready.clear()

    def _settle(self, ticket: int, index: int, outcome: Outcome) -> None:
        pending = self._pending[ticket]
        pending.outcomes[index] = outcome
        pending.missing -= 1
        if pending.missing == 0:
            self._finish(ticket)

    def _finish(self, ticket: int) -> None:
        pending = self._pending.pop(ticket)
        score = self._combine(pending)
        if score.reason is None:
            self.scored += 1
        else:
            self.failures[score.reason.partition(":")[0]] += 1
        self._ready.append((pending.key, score))

    def _combine(self, pending: _Pending) -> Score:
        """Weighted sum of all values; unscored when any verifier failed, with what the others said.

        Where several failed, the reason is that of the accuracy, else the first in the recipe's order.
        """
        values: dict[str, float] = {}
        unknown: set[str] = set()  # names of which no value can be told: their reward failed, or two gave one
        reasons: list[str] = []
        total = 0.0
        for index in sorted(pending.outcomes):
            reward, outcome = self._rewards[index], pending.outcomes[index]
            if isinstance(outcome, str):
                own = reward.name == ACCURACY
                unknown.add(reward.name)
                reasons.insert(0 if own else len(reasons), outcome if own else f"{outcome} (reward {reward.name!r})")
                continue
            twice = sorted(values.keys() & outcome.keys())
            if twice:
                reasons.append(f"exception: two rewards are called {twice[0]!r}")
                unknown.update(twice)
            values.update(outcome)
            total += reward.weight * outcome[reward.name]
        values = {name: value for name, value in values.items() if name not in unknown}
        if ACCURACY not in values and not reasons:
            reasons.append(f"accuracy: no reward called accuracy applies to the source {pending.source!r}")
        if not 0.0 <= values.get(ACCURACY, 0.0) <= 1.0:
            reasons.insert(0, f"accuracy: {values.pop(ACCURACY):g} is not in [0, 1]")
        if reasons:
            return Score(values=values, reason=reasons[0], answer=pending.answer)
        return Score(values=values, reward=total, answer=pending.answer)

    def _read_answer(self, index: int, prompt: Prompt, completion: Completion) -> str | None:
        """The answer that a reward reads out of a response, for majority votes; None where the kind knows none."""
        kind = self._rewards[index].kind
        if kind == "exact":
            return simple.read_answer(completion.text, self._patterns[index])
        if kind == "math":
            return math.read_answer(completion.text)
        return read_answer(prompt, completion.text) if kind == "task" else None


def _run_inline(function: Callable[[Prompt, Completion], Any], name: str, prompt: Prompt, done: Completion) -> Outcome:
    try:
        return read_values(function(prompt, done), name)
    except Exception as error:
        return f"exception: {describe_error(error)}"


def _text_only(completion: Completion) -> Completion:
    return replace(
        completion,
        token_ids=np.empty(0, np.int64),
        logprobs=np.empty(0, np.float32),
        versions=np.empty(0, np.int32),
        generated=None,
    )


def build_scorer(
    rewards: Sequence[Reward],
    *,
    workers: int = 1,
    sources: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    output: Path | None = None,
) -> CompositeScorer:
    """The scorer of a recipe.

    ``exact``, ``regex`` and signed_sum's own scorer run in the driver. ``math``, reasoning-gym and the user's functions
    run in worker processes, which start when first needed; with a user's function one starts here, so that a function
    that cannot be loaded is refused before training.

    Args:
        rewards: the recipe's rewards.
        workers: worker processes at most.
        sources: names of all data sources; each must have exactly one reward called ``accuracy``.
        tasks: names of all procedural tasks among the sources; when signed_sum is the only one, reward kind ``task``
            runs in the driver. None: unknown.
        output: file for whatever user code prints; None: it is dropped.

    Raises:
        RewardError: rewards that contradict each other, a bad pattern, a function that cannot be loaded.
    """
    for reward in rewards:
        if (reward.kind == "function") != (reward.function is not None):
            raise RewardError(
                f"reward {reward.name!r}: `kind: function` and `function: package.module:name` belong together, found "
                f"kind {reward.kind!r} and function {reward.function!r}"
            )
        if reward.pattern is not None and reward.kind not in ("exact", "regex"):
            raise RewardError(f"reward {reward.name!r}: `pattern` has no effect with kind {reward.kind!r}; remove it")
    known = None if sources is None else sorted(set(sources))
    for reward in rewards:
        for name in reward.sources or []:
            if known is not None and name not in known:
                raise RewardError(
                    f"reward {reward.name!r} is for the source {name!r}; the sources are {', '.join(known)}"
                )
    for source in [None] if known is None else known:
        names = Counter(r.name for r in rewards if source is None or r.sources is None or source in r.sources)
        where = "" if source is None else f" for the source {source!r}"
        overlapping = source is None and any(reward.sources for reward in rewards)
        if not names[ACCURACY]:
            raise RewardError(
                f"no reward is called `accuracy`{where}; the keep rule needs one. Found: {', '.join(names)}"
            )
        doubled = [name for name, count in names.items() if count > 1]
        if doubled and not overlapping:
            raise RewardError(f"two rewards are called {doubled[0]!r}{where}; names are unique within a source")
    scorer = CompositeScorer(rewards, workers=workers, tasks=tasks, output=output)
    if any(reward.kind == "function" for reward in rewards):
        try:
            scorer.start()
        except BaseException:
            scorer.close()
            raise
    return scorer
