"""Dynamic sampling: from a prompt stream to a batch of exactly P kept groups.

    stream --> dispatch --> engine --> scorer --> judge --> kept --> batch
                  ^                                 |
                  +------- rejected: replace -------+

A group is judged when its last response is scored, while others still decode; a rejected one is replaced at once.
Nothing here reads the wall clock: a score takes effect ``verdict_lag`` engine steps after its response ended, and the
collector waits for a late one. With an engine in the process a run is then a function of its recipe.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dapo.config.schema import DynamicSampling
from dapo.contracts.enums import Disposition, FinishReason, Verdict
from dapo.contracts.protocols import Engine, PromptStream, Scorer
from dapo.contracts.types import (
    Completion,
    Group,
    IntArray,
    Key,
    Partial,
    SampleEvent,
    SampleRequest,
    SamplingParams,
    Score,
    StepBatch,
)
from dapo.loop.account import Account
from dapo.loop.algorithm import Algorithm
from dapo.loop.open_group import OpenGroup, load_open_group, open_group_state
from dapo.loop.outcomes import stop_message, verifier_fails_on_everything
from dapo.loop.seeds import TRAINING, derive_seed
from dapo.loop.state import (
    empty_partial,
    group_state,
    load_group,
)
from dapo.observe.spans import Phases

# The acceptance estimate forgets: each step the counts behind it are multiplied by this.
ACCEPTANCE_MEMORY = 0.7
# Never plan for less than this acceptance: a run that accepts nothing must meet its cap, not fill the machine.
LOWEST_ACCEPTANCE = 0.05


class StreamingCollector:
    """Owns everything between a prompt and a training batch; see ``dapo.contracts.protocols.Collector``."""

    def __init__(
        self,
        *,
        engine: Engine,
        scorer: Scorer,
        stream: PromptStream,
        algorithm: Algorithm,
        sampling: SamplingParams,
        settings: DynamicSampling,
        prompts_per_step: int,
        group_size: int,
        run_seed: int,
        decode: Callable[[Sequence[IntArray]], list[str]],
        verdict_lag: int = 0,
        phases: Phases | None = None,
    ) -> None:
        self.engine, self.scorer, self.stream, self.algorithm = engine, scorer, stream, algorithm
        self.sampling, self.settings = sampling, settings
        self.prompts_per_step, self.group_size = prompts_per_step, group_size
        self.run_seed, self.decode, self.verdict_lag = run_seed, decode, verdict_lag
        self.phases = phases or Phases()
        self.step = 0
        self.next_group = 0
        self.open: dict[int, OpenGroup] = {}
        self.kept: list[Group] = []
        self.rejected: list[Group] = []  # of this step, for the outcome ``fill``
        self.account = Account()
        self._accepted, self._judged = 0.0, 0.0  # behind the acceptance estimate
        self._exhausted = False
        self._decoding = 0  # responses that the engine has and has not ended
        self._ended: deque[tuple[int, Key]] = deque()  # (tick at which the score takes effect, key)
        self._scores: dict[Key, Score] = {}

    # ------------------------------------------------------------------ the driver's calls

    def collect(self, step: int) -> StepBatch:
        """Collect the batch of training step ``step`` (from 1).

        Raises:
            SamplingStopped: a cap or the end of the data was met with ``on_cap: stop``, or the verifier scores
                nothing. Kept groups stay in ``state()``.
        """
        self._begin(step)
        while not self._full():
            if not self.pump():
                self._meet_cap()
                break
        self._settle_unfinished()
        return self._batch()

    def pump(self) -> bool:
        """Turn the crank once: replace what was rejected, let the engine work, judge. False when nothing is left."""
        self._dispatch()
        if not self.open:
            return False
        self._advance()
        return True

    def state(self) -> dict[str, Any]:
        """Everything the next ``collect`` depends on, as a tree of plain values and arrays. Call between steps."""
        return {
            "next_group": self.next_group,
            "estimate": [self._accepted, self._judged],
            "stream": self.stream.state(),
            "kept": [group_state(group) for group in self.kept],
            "open": [open_group_state(group) for group in self.open.values()],
            "totals": dict(self.account.totals),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state()`` of a collector with the same recipe."""
        self.next_group = state["next_group"]
        self._accepted, self._judged = state["estimate"]
        self.stream.load(state["stream"])
        self.kept = [load_group(tree) for tree in state["kept"]]
        self.open = {tree["id"]: load_open_group(tree) for tree in state["open"]}
        self.account.totals = dict(state["totals"])

    @property
    def exhausted(self) -> bool:
        """The data has ended and nothing is held: there will be no further batch."""
        return self._exhausted and not self.kept and not self.open

    # ------------------------------------------------------------------ dispatch

    @property
    def acceptance(self) -> float:
        """Running estimate of the share of groups that are kept; 1 before anything was judged."""
        return max(LOWEST_ACCEPTANCE, (self._accepted + 1.0) / (self._judged + 1.0))

    def _begin(self, step: int) -> None:
        self.step = step
        self.account.begin(self.engine.stats())
        self.rejected = []
        self._accepted *= ACCEPTANCE_MEMORY
        self._judged *= ACCEPTANCE_MEMORY
        if self.settings.on_max_age == "drop":
            self._expire()
        for group in self.open.values():  # carried: continue behind what there is
            self._submit(group)

    def _expire(self) -> None:
        for group in [g for g in self.kept if self.step - g.born > self.settings.max_age]:
            self.kept.remove(group)
            group.disposition = Disposition.EXPIRED
            self.account.disposed(group)

    def _full(self) -> bool:
        if self.settings.mode == "filter":
            return len(self.kept) >= self.prompts_per_step
        return self.account.dispatched >= self.prompts_per_step and not self.open

    def _wanted(self) -> int:
        """Groups to dispatch now: what is missing over the acceptance estimate, less what is under way."""
        if self.settings.mode != "filter":
            return self.prompts_per_step - self.account.dispatched
        missing = self.prompts_per_step - len(self.kept)
        factor = self.settings.oversample or 1.0 / self.acceptance
        wanted = math.ceil(missing * factor) - len(self.open)
        # Beyond the engine's slots a group would only wait, and by then the estimate is better.
        free = max(0, self.engine.capacity - self._decoding) // self.group_size
        if self.settings.oversample is None:
            wanted = min(wanted, max(free, 0 if self.open else 1))
        return wanted

    def _dispatch(self) -> None:
        wanted = self._wanted()
        if self.settings.mode == "filter":
            if self.settings.max_groups is not None:
                cap = math.ceil(self.settings.max_groups * self.prompts_per_step)
                wanted = min(wanted, cap - self.account.dispatched)
            if self.settings.max_tokens is not None and self.account.generated_tokens >= self.settings.max_tokens:
                wanted = 0
        if wanted <= 0 or self._exhausted:
            return
        prompts = self.stream.take(wanted)
        self._exhausted = len(prompts) < wanted
        if self.account.dispatched and prompts:
            self.account.refills += 1
        for prompt in prompts:
            size = self.group_size
            group = OpenGroup(
                id=self.next_group,
                prompt=prompt,
                born=self.step,
                partials_G=[empty_partial()] * size,
                completions_G=[None] * size,
                scores_G=[None] * size,
            )
            self.next_group += 1
            self.account.dispatched += 1
            self.open[group.id] = group
            self._submit(group)

    def _submit(self, group: OpenGroup) -> None:
        """Ask the engine for what is unfinished of a group, and the scorer for what was never scored."""
        requests = []
        for index, completion in enumerate(group.completions_G):
            key = (group.id, index)
            if completion is None:
                partial = group.partials_G[index]
                requests.append(
                    SampleRequest(
                        key=key,
                        prompt_ids=group.prompt.token_ids,
                        sampling=self.sampling,
                        seed=derive_seed(self.run_seed, TRAINING, *key),
                        prefix=partial if len(partial) else None,
                        priority=group.id,
                    )
                )
            elif group.scores_G[index] is None:
                self._score(key, group, completion, self.engine.clock)
        if requests:
            self._decoding += len(requests)
            self.engine.submit(requests)

    # ------------------------------------------------------------------ receive, score, judge

    def _advance(self) -> None:
        with self.phases("generate"):
            events = self.engine.poll()
        self._receive(events)
        self._judge_ended(self.engine.clock if self._decoding else None)

    def _receive(self, events: Sequence[SampleEvent]) -> None:
        self._decoding -= len(events)
        completions = [self._join(event) for event in events]
        with self.phases("score"):
            for event, completion in zip(events, self._decoded(completions), strict=True):
                group = self.open[event.key[0]]
                group.completions_G[event.key[1]] = completion
                self._score(event.key, group, completion, event.tick, event.reason)

    def _score(self, key: Key, group: OpenGroup, completion: Completion, tick: int, failure: str | None = None) -> None:
        if completion.finish is FinishReason.FAILED:  # unscored, not wrong
            self._scores[key] = Score(reason=f"engine: {failure or 'failed'}")
        else:
            self.scorer.submit(key, group.prompt, completion)
        self._ended.append((tick + self.verdict_lag, key))

    def _join(self, event: SampleEvent) -> Completion:
        partial = self.open[event.key[0]].partials_G[event.key[1]]
        self.account.generated_tokens += len(event.token_ids)
        return Completion(
            token_ids=np.concatenate([partial.token_ids, event.token_ids]),
            logprobs=np.concatenate([partial.logprobs, event.logprobs]),
            versions=np.concatenate([partial.versions, event.versions]),
            finish=event.finish,
        )

    def _decoded(self, completions: Sequence[Completion]) -> list[Completion]:
        """The same completions with their text; the stop token is not part of it."""
        stopped = [c.token_ids[:-1] if c.finish is FinishReason.STOP else c.token_ids for c in completions]
        texts = self.decode(stopped)
        return [
            Completion(c.token_ids, c.logprobs, c.versions, c.finish, text)
            for c, text in zip(completions, texts, strict=True)
        ]

    def _judge_ended(self, until: int | None) -> None:
        """Let scores take effect in order of (tick, key), up to tick ``until`` (None: all); wait for a late one."""
        with self.phases("score"):
            while self._ended and (until is None or self._ended[0][0] <= until):
                _, key = self._ended.popleft()
                while key not in self._scores:
                    self._scores.update(self.scorer.poll(None))
                group = self.open[key[0]]
                score = group.scores_G[key[1]] = self._scores.pop(key)
                self.account.got_score(key, score)
                if all(score is not None for score in group.scores_G):
                    del self.open[group.id]
                    self._judge(group.close())
                verifier_fails_on_everything(self.account)

    def _judge(self, group: Group) -> None:
        verdict = group.verdict = self.algorithm.verdict(group)
        kept = verdict is Verdict.KEPT or (self.settings.mode == "off" and verdict is not Verdict.TOO_FEW_SCORED)
        self.account.judged(group)
        self._judged += 1.0
        if kept:
            self._accepted += verdict is Verdict.KEPT
            self.kept.append(group)
        else:
            group.disposition = Disposition.DISCARDED
            self.account.disposed(group)
            if self.settings.on_cap == "fill":
                self.rejected.append(group)

    # ------------------------------------------------------------------ the end of a step

    def _settle_unfinished(self) -> None:
        if self.settings.unfinished == "carry":
            while any(self.step - group.born >= self.settings.max_age for group in self.open.values()):
                self._advance()  # at the age limit: wait for it
        elif self.settings.unfinished == "drain":
            while self.open:
                self._advance()
        self._take_back()
        if self.settings.unfinished == "discard":
            for group in self.open.values():
                self.account.dropped_unfinished(sum(map(len, group.partials_G)))
            self.open = {}

    def _take_back(self) -> None:
        """Abort what decodes and keep its tokens; score what ended but was not judged before the step is over."""
        self._decoding = 0
        for event in self.engine.abort():
            joined = self._join(event)
            partials = self.open[event.key[0]].partials_G
            partials[event.key[1]] = Partial(joined.token_ids, joined.logprobs, joined.versions)
        self._judge_ended(None)

    def _meet_cap(self) -> None:
        """A cap or the end of the data was met before the batch was full: the recipe's outcome."""
        settings = self.settings
        self.account.cap_reached = 1
        if settings.on_cap == "stop" and not self.exhausted and settings.mode == "filter":
            raise stop_message(self.account, settings, self.prompts_per_step, len(self.kept), self._exhausted)
        if settings.on_cap == "fill" and settings.mode == "filter":
            usable = [g for g in self.rejected if g.verdict is not Verdict.TOO_FEW_SCORED]
            for group in usable[: self.prompts_per_step - len(self.kept)]:
                group.disposition = Disposition.FILLED
                self.account.redisposed(group)
                self.kept.append(group)

    def _batch(self) -> StepBatch:
        """The oldest P kept groups train; the rest is carried or discarded."""
        self.kept.sort(key=lambda group: group.id)
        batch, rest = self.kept[: self.prompts_per_step], self.kept[self.prompts_per_step :]
        self.kept = rest if self.settings.surplus == "carry" else []
        for group in batch:
            if group.disposition is not Disposition.FILLED:
                group.disposition = Disposition.TRAINED
                self.account.disposed(group)
        for group in rest:
            group.disposition = Disposition.CARRIED if self.settings.surplus == "carry" else Disposition.DISCARDED
            self.account.disposed(group)
        finished = self.account.finished_groups(batch)
        metrics = self.account.metrics(batch, self, self.engine.stats())
        return StepBatch(step=self.step, groups_P=batch, finished=finished, metrics=metrics)
