"""Dynamic sampling: from a prompt stream to a batch of exactly P kept groups.

    stream --> dispatch --> engine --> scorer --> judge --> kept --> batch
                  ^                                 |
                  +------- rejected: replace -------+

A group is judged when its last response is scored, while others still decode; a rejected one is replaced at once.
Nothing here reads the wall clock: a score takes effect ``verdict_lag`` engine steps after its response ended, and the
collector waits for a late one. With an engine in the process a run is then a function of its recipe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

from dapo.config.schema import DynamicSampling
from dapo.errors import EngineError, SamplingStopped
from dapo.loop.account import Account
from dapo.loop.algorithm import Algorithm
from dapo.loop.collector_state import collector_state, load_collector
from dapo.loop.copies import copies
from dapo.loop.fates import divide, expired
from dapo.loop.history import PromptHistory
from dapo.loop.open_group import OpenGroup
from dapo.loop.outcomes import fails_on_everything, stopped, warn_of_old_groups
from dapo.loop.progress import Watching, end_step, shares
from dapo.loop.refill import Refill, is_full
from dapo.loop.rollouts import Response, Rollouts
from dapo.loop.scores import Scores
from dapo.loop.selection import PromptSelector
from dapo.metrics.phases import Phases
from dapo.types.batch import Group, SamplingParams, StepBatch
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.evidence import CollectProgress, hopeless_of
from dapo.types.protocols import PromptStream

KEEPS = (EngineError, SamplingStopped)
"""Errors that are raised only where everything the collector holds is whole."""


class StreamingCollector:
    """Owns everything between a prompt and a training batch; see ``dapo.types.protocols.Collector``."""

    def __init__(
        self,
        *,
        rollouts: Rollouts,
        stream: PromptStream,
        algorithm: Algorithm,
        sampling: SamplingParams,
        settings: DynamicSampling,
        prompts_per_step: int,
        group_size: int,
        run_seed: int,
        verdict_lag: int = 0,
        phases: Phases | None = None,
        watch: Callable[[CollectProgress], None] | None = None,
        reads_answers: bool = False,
        overlaps: bool = False,
        turn: float | None = None,
    ) -> None:
        """
        Args (of the last four, the others are settings):
            watch: hears of every judged group, and now and then.
            reads_answers: the verifier of the accuracy names the answers that it reads.
            overlaps: engines work on while the learner learns: ``collect`` neither begins a step that has begun nor
                pauses at its end.
            turn: seconds after which ``collect`` looks at scores again though no response ended; then no score is
                waited for while anything decodes. None: everything happens in an order that no clock decides.
        """
        self.rollouts, self.engine, self.algorithm = rollouts, rollouts.engine, algorithm
        self.sampling, self.settings = sampling, settings
        self.prompts_per_step, self.group_size = prompts_per_step, group_size
        self.run_seed = run_seed
        self.phases, self.reads_answers = phases or Phases(), reads_answers
        self.overlaps, self.turn = overlaps, turn
        self.watching = Watching(self, watch)
        self.scores = Scores(rollouts, verdict_lag, self.phases, self.watching.pulse, waits=turn is None)
        self.history = PromptHistory(settings.correct_at)
        self.selector = PromptSelector(stream, self.history, settings, run_seed)
        self.refill = Refill(settings, prompts_per_step)
        self.account = Account()
        self.step = 0
        self.begun = False  # between ``begin`` and ``take``
        self.next_group = 0
        self.open: dict[int, OpenGroup] = {}
        self.kept: list[Group] = []
        self.rejected: list[Group] = []  # of this step, for the outcome ``fill``
        self.carried = 0  # groups held when the step began
        self.given_up: Exception | None = None  # why the step at hand has no batch
        self.rolled_back = False  # by ``give_up``: ``state()`` is the one from before this collection
        self._before: dict[str, Any] | None = None  # that state; None: its batch was handed to the learner
        self._restored = False  # loaded from a state, perhaps with other settings
        self._paused = True  # the engine holds nothing of ours

    # ------------------------------------------------------------------ the driver's calls

    def collect(self, step: int) -> StepBatch:
        """Collect the batch of training step ``step`` (from 1).

        Raises:
            EngineError: the engine is lost.
            SamplingStopped: a cap or the end of the data was met with ``on_cap: stop``, or the verifier scores
                nothing.
            Exception: whatever a scorer, a stream or a hook raised. See ``give_up`` for what ``state()`` is then.
        """
        try:
            if self.begun and self.step == step:
                self._before = self._state()
            else:
                self.begin(step)
            while not self.ready():
                if not self.pump(self.turn):
                    self.meet_cap()
                    break
            if not self.overlaps:
                self.pause()
        except Exception as error:
            self.give_up(error)
            raise
        return self.take()

    def give_up(self, error: Exception) -> None:
        """End the step without a batch because of ``error``, so that ``state()`` can be saved.

        An error of ``KEEPS`` leaves everything held as it is, and ``state()`` has it. Any other error may have come
        between two changes that belong together: ``state()`` is then the one from before this collection, and a resume
        collects again, to the same batch. Further calls before the next ``begin`` change nothing.
        """
        if self.given_up is not None:
            return
        self.given_up = error
        if not (isinstance(error, KEEPS) and self.begun):
            self.rolled_back = self._before is not None
            return
        if isinstance(error, EngineError):
            with suppress(Exception):  # the engine's loss is the error to report
                self.pause()  # keep the tokens that it had made
        self.account.end(self.engine.stats())
        self.begun = False

    def commit(self) -> None:
        """Forget the state from before this collection: the learner is about to change its weights by the batch."""
        self._before = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What the engine does in here, such as an evaluation, is no work for the batch: its counts leave it out."""
        before = self.engine.stats()
        try:
            yield
        finally:
            self.account.leave_out(before, self.engine.stats())

    def begin(self, step: int) -> None:
        """From now on work counts for training step ``step``."""
        self.given_up, self.rolled_back = None, False
        self._before = self._state()
        self.step, self.begun = step, True
        self.account.begin(self.engine.stats())
        self.carried = len(self.kept) + len(self.open)
        self.rejected = []
        self.refill.begin()
        if self.settings.on_max_age == "drop":
            self._expire()
        elif self._restored:
            births = [g.born for g in self.kept] + [g.born for g in self.open.values()]
            warn_of_old_groups(self.settings, self.prompts_per_step, step, births)
        self._restored = False

    def pump(self, timeout: float | None = None) -> bool:
        """Turn the crank once: replace what was rejected, let the engine work, judge. False when nothing is left.

        Args:
            timeout: seconds that the engine may take; None: until a response ends.
        """
        if self._paused:
            self._paused = False
            for group in self.open.values():  # carried: continue behind what there is
                self._submit(group)
        self._dispatch()
        if not self.open:
            return False
        self._advance(timeout)
        return True

    def ready(self) -> bool:
        """The batch is there, and nothing that stays behind would grow too old by it."""
        if self.settings.mode == "filter" and len(self.kept) < self.prompts_per_step:
            return False
        tried = int(self.account.count["groups/dispatched"]) + self.carried
        kept, unfinished = [g.born for g in self.kept], [g.born for g in self.open.values()]
        return is_full(self.settings, self.prompts_per_step, self.step, kept, unfinished, tried)

    def pause(self) -> None:
        """Abort what decodes and keep its tokens; score what ended but was not judged before the step is over."""
        self.hold()
        self._judge_ended(None)

    def rest(self) -> None:
        """Take back what is under way at the engine, so that ``state`` can be taken; the next ``pump`` goes on."""
        if not self.rolled_back:
            self.pause() if self.turn is None else self.hold()

    def hold(self) -> None:
        """As ``pause``, but scores stay awaited: the engine stands still no longer than a state takes to be written."""
        if self._paused:
            return
        recalled = self.rollouts.recall("train")
        for response in recalled:
            self.account.generated(response.new_tokens)
        part = [response for response in recalled if response.completion.finish is FinishReason.ABORTED]
        for response in part:  # what the engine continues behind
            self.open[response.key.group].partials_G[response.key.sample] = response.partial()
        if over := [response for response in recalled if response.completion.finish is not FinishReason.ABORTED]:
            with self.phases("score"):
                self._ask(over)
        self._paused = True

    def take(self) -> StepBatch:
        """The oldest P kept groups train; the rest is carried or discarded."""
        settings, account = self.settings, self.account
        if settings.unfinished == "discard":
            self._discard_unfinished()
        batch, self.kept = divide(self.kept, self.prompts_per_step, settings, account)
        if settings.mode == "replace" and not account.count["sampling/cap_reached"]:
            copied = copies(batch, self.prompts_per_step, first_id=self.next_group, seed=(self.run_seed, self.step))
            self.next_group += len(copied)
            for group in copied:
                account.disposed(group)
            batch += copied
        finished, judged = account.finished_groups(batch), shares(self)
        self.begun = False
        return StepBatch(self.step, batch, finished, end_step(self, batch), judged)

    def state(self) -> dict[str, Any]:
        """Everything the next batch depends on, as a tree of plain values and arrays.

        Call between steps, or, after ``hold``, ``pause`` or ``give_up``, in the middle of one.
        """
        return self._before if self.rolled_back and self._before is not None else self._state()

    def _state(self) -> dict[str, Any]:
        state = collector_state(self)
        return state | {"stream": deepcopy(state["stream"])}  # a stream of the user's may return what it goes on with

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state()`` of a collector with the same recipe."""
        load_collector(self, state)
        self._restored = True

    @property
    def exhausted(self) -> bool:
        """There is no further prompt and nothing is held: there will be no further batch."""
        return self.selector.ended is not None and not self.kept and not self.open

    # ------------------------------------------------------------------ dispatch

    def _expire(self) -> None:
        """``on_max_age: drop``: what would be too old when it trains."""
        old = [group for group in self.open.values() if self.step - group.born > self.settings.max_age]
        if old:
            self.pause()
        for open_group in old:
            if self.open.pop(open_group.id, None) is not None:  # still unfinished after the pause
                self.account.dropped(Disposition.EXPIRED, open_group.tokens())
        for group in expired(self.kept, self.step, self.settings.max_age, self.account):
            self.kept.remove(group)

    def _dispatch(self) -> None:
        # rounded up: the rest of a group queues, and no slot idles while work is missing
        free = -(-max(0, self.engine.capacity - self.rollouts.under_way("train")) // self.group_size)
        dispatched = int(self.account.count["groups/dispatched"])
        wanted = self.refill.wanted(
            len(self.kept), len(self.open), free, dispatched, self.carried, lag=self.step - 1 - self.engine.version
        )
        if self.settings.max_tokens is not None and self.account.generated_tokens >= self.settings.max_tokens:
            wanted = 0
        if wanted <= 0 or self.selector.ended is not None:
            return
        prompts = self.selector.take(wanted)
        if prompts:
            self.account.dispatched(len(prompts))
        born = self.engine.version + 1  # the step that trains the weights which make the first token
        groups = [OpenGroup.new(self.next_group + n, p, born, self.group_size) for n, p in enumerate(prompts)]
        self.next_group += len(groups)
        self.open |= {group.id: group for group in groups}  # all of them, before an engine can fail at one
        for group in groups:
            self._submit(group)

    def _submit(self, group: OpenGroup) -> None:
        """Ask the engine for what is unfinished of a group, and the scorer for what was never scored."""
        for key, completion in group.unscored_completions():
            self.scores.submit(key, group.prompt, completion, self.engine.clock)
        if requests := group.requests(self.sampling, self.run_seed):
            self.rollouts.submit(requests)

    # ------------------------------------------------------------------ receive, score, judge

    def _advance(self, timeout: float | None) -> None:
        with self.phases("generate"):
            self.rollouts.pump(timeout)
        if lost := self.rollouts.lost("train"):
            raise EngineError(
                f"the engine has nothing left to do, and {len(lost)} responses never came back, among them "
                f"{', '.join(f'{key.sample} of group {key.group}' for key in lost[:5])}; "
                "what was kept is in the last checkpoint: continue with `dapo train --resume`"
            )
        self.watching.pulse()
        if self.rollouts.has_ended("train"):
            with self.phases("score"):  # one stretch for all of them: a phase costs as much as asking for a score
                ended = self.rollouts.ended("train")
                for response in ended:
                    self.account.generated(response.new_tokens)
                self._ask(ended)
        if self.rollouts.under_way("train") or self.turn is not None:
            if not self.rollouts.under_way("train"):
                self.scores.wait(timeout or self.turn or 0.0)
            self._judge_ended(self.engine.clock)
        else:
            self._judge_ended(None)

    def _ask(self, responses: Sequence[Response]) -> None:
        """Responses are whole: ask for their scores."""
        for response in responses:
            group = self.open[response.key.group]
            group.completions_G[response.key.sample] = response.completion
            self.scores.submit(response.key, group.prompt, response.completion, response.tick, response.reason)

    def _judge_ended(self, until: int | None) -> None:
        """Let scores take effect, up to tick ``until`` (None: all); wait for a late one of a group that is whole."""
        with self.phases("judge"):
            for key, score in self.scores.due(until, lambda group: self.open[group].unscored):
                group = self.open[key.group]
                self.account.got_score(key, score)
                if group.scored(key.sample, score):
                    del self.open[group.id]
                    self._judge(group.close())
                fails_on_everything(self.account)

    def _judge(self, group: Group) -> None:
        verdict = group.verdict = self.algorithm.verdict(group)
        accepted = verdict is Verdict.KEPT
        self.account.judged(group)
        self.refill.judged(accepted)
        self.selector.visited(group, self.algorithm.voters(group), self.step)
        if accepted or (self.settings.mode == "off" and verdict is not Verdict.TOO_FEW_SCORED):
            self.kept.append(group)
        else:
            group.disposition = Disposition.DISCARDED
            self.account.disposed(group, "rejected")
            if self.settings.on_cap == "fill":
                self.rejected.append(group)
        self.watching.tell()

    # ------------------------------------------------------------------ the end of a step

    def _discard_unfinished(self) -> None:
        self.pause()
        for group in self.open.values():
            self.account.dropped(Disposition.DISCARDED, group.tokens())
        self.open = {}

    def meet_cap(self) -> None:
        """``pump`` has nothing left and the batch is not full: the recipe's outcome. Then ``take`` what there is.

        Raises:
            SamplingStopped: with ``on_cap: stop``, unless the data had ended before this step or all of it is retired.
        """
        settings, missing = self.settings, self.prompts_per_step - len(self.kept)
        if settings.mode not in ("filter", "replace"):
            return
        self.account.count["sampling/cap_reached"] = 1
        clean_end = self.exhausted and (self.selector.ended == "retired" or not self.account.groups)
        if settings.on_cap == "stop" and not clean_end:
            hopeless = hopeless_of(self.history.hopeless_rates(), self.group_size)
            seen = dataclasses.replace(shares(self), hopeless=hopeless)
            raise stopped(self.account, settings, len(self.kept), seen)
        if settings.on_cap == "fill":
            usable = [g for g in self.rejected if g.verdict is not Verdict.TOO_FEW_SCORED]
            for group in usable[:missing]:
                group.disposition = Disposition.FILLED
                self.account.filled(group)
                self.kept.append(group)
