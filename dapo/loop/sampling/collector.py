"""Dynamic sampling: from a prompt stream to a batch of exactly P kept groups.

    stream --> dispatch --> engine --> scorer --> judge --> kept --> batch
                  ^                                 |
                  +------- rejected: replace -------+

A group is judged when its last response is scored, while others still decode; a rejected one is replaced at once.
One of two rules says when a score takes effect. Without a clock, ``verdict_lag`` engine steps after its response ended,
and the collector waits for a late one: with an engine in the process a run is then a function of its recipe. Where
generation overlaps learning by the wall clock (``CollectorTiming.turn``), as soon as all scores of its group are there.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from dapo.algorithms.algorithm import Algorithm
from dapo.config.schema import DynamicSampling
from dapo.errors import EngineError, RunStuck, SamplingStopped
from dapo.loop.sampling.account import Account, source_metrics, stopped
from dapo.loop.sampling.groups import OpenGroup, Scores, copies, divide, expired
from dapo.loop.sampling.prompts import PromptHistory, PromptSelector, Refill, in_time, is_full
from dapo.loop.sampling.rollouts import Rollouts
from dapo.metrics.phases import Phases
from dapo.types.batch import Group, Key, Metrics, Response, SamplingParams, StepBatch
from dapo.types.codec import fill, from_tree, to_tree
from dapo.types.enums import Disposition, Verdict
from dapo.types.evidence import Awaited, CollectProgress, LeftInStep, Shares, StuckEvidence, hopeless_of
from dapo.types.protocols import PromptStream

log = logging.getLogger(__name__)

KEEPS = (EngineError, SamplingStopped, RunStuck)
"""Errors that are raised only where everything the collector holds is whole."""
PULSE = 5.0
"""Seconds after which ``watch`` is called though no further group was judged."""
PATIENCE = 60.0
"""Seconds without any event after which ``collect`` waits for the next one as long as it takes: engine and scorer then
say at once if they owe nothing more."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The size of a training batch: P groups of G responses."""

    prompts: int  # P
    group_size: int  # G


@dataclass(frozen=True, slots=True)
class CollectorTiming:
    """Settings that decide the order of events in a collector."""

    verdict_lag: int = 0  # engine steps after which a verdict takes effect, without ``turn``
    overlaps: bool = False
    """Engines work while the learner does: ``collect`` neither begins a step that has begun nor pauses at its end."""
    turn: float | None = None
    """Seconds after which ``collect`` looks at scores again though no response ended; it then waits for no score while
    a response decodes, and a group is judged when its scores are there. None: no clock decides the order of events."""
    repeats: bool = True
    """The digits of a run repeat: a stop in the middle of a step keeps nothing that would change them."""


class StreamingCollector:
    """Own everything between a prompt and a training batch.

    ``collect`` is ``begin``, ``pump`` until ``ready``, ``pause``, ``take``. A synchronous trainer calls ``collect``.
    With overlap the same calls come from two places of one thread, never at once::

        Trainer, one thread                     StreamingCollector                  others
        -------------------                     ------------------                  ------
        learner.learn(step k) --------------------------------------------------->  learner: works
        Overlap.result, until it is done:
          begin(k + 1), pump, pump ...  ----->  dispatch, submit ---------------->  engine: decodes
                                                poll  <------------- responses ---  engine
                                                submit, poll  <--------- scores --  verifiers
        handle.result()  <--------------------------------------------------------  learner: done
        engine.load(ticket), record, save
        collect(k + 1): pump until ready, take

    ==================  =========================================  ================================================
    who waits           for what                                   what unblocks it
    ==================  =========================================  ================================================
    ``collect``         a batch of P kept groups (``ready``)       ``pump`` judges groups; if it returns False,
                                                                   ``meet_cap`` ends the wait, or ``RunStuck`` is
                                                                   raised where groups are held all the same
    ``pump``            a response that ends (``engine.poll``)     the engine, or ``timeout``
    ``Scores.due``      a late score of a whole group              a verifier, or its time limit; with ``turn`` set
                                                                   only ``pause`` waits here
    ``ready``           open groups that could grow too old        their last score
    ``Refill.wanted``   free slots; published weights (``lag``)    a judged group; ``engine.load``
    ``Overlap.result``  the learner's handle                       the learner, which waits for nothing meanwhile
    the engine          requests                                   dispatch, in the next ``pump``
    the learner         a batch                                    ``take``
    ==================  =========================================  ================================================

    The collector has no thread and no lock. Engine and verifiers work by themselves or within ``poll``, and the
    collector sees what they did when the driver calls ``pump``. Waiting for engine and learner at once is the driver's
    part (``loop/overlap.py``).
    """

    def __init__(
        self,
        *,
        rollouts: Rollouts,
        stream: PromptStream,
        algorithm: Algorithm,
        sampling: SamplingParams,
        settings: DynamicSampling,
        shape: BatchShape,
        run_seed: int,
        timing: CollectorTiming | None = None,
        phases: Phases | None = None,
        watch: Callable[[CollectProgress], None] | None = None,
    ) -> None:
        """Begin with nothing held.

        Args:
            rollouts: asks the engine and the verifiers.
            stream: gives the prompts.
            algorithm: judges groups.
            sampling: parameters of every response.
            settings: of dynamic sampling.
            shape: of a batch.
            run_seed: the seed of samples, selection and copies.
            timing: what decides the order of events; None: the engine's clock alone.
            phases: measures how long each part takes.
            watch: called after every judged group, and every ``PULSE`` seconds without one.
        """
        self.rollouts, self.engine, self.algorithm = rollouts, rollouts.engine, algorithm
        self.sampling, self.settings = sampling, settings
        self.prompts_per_step, self.group_size = shape.prompts, shape.group_size
        self.run_seed, self.phases = run_seed, phases or Phases()
        self.timing = timing = timing or CollectorTiming()
        self._watch, self._watched_at = watch, time.monotonic()
        self.scores = Scores(rollouts, timing.verdict_lag, self.phases, self._pulse, waits=timing.turn is None)
        self.history = PromptHistory(settings.correct_at)
        self.selector = PromptSelector(stream, self.history, settings.selection, run_seed)
        self.refill = Refill(settings, shape.prompts)
        self.account = Account()
        self.step = 0
        self.begun = False  # between ``begin`` and ``take``
        self.next_group = 0
        self.open: dict[int, OpenGroup] = {}
        self.kept: list[Group] = []
        self.carried = 0  # groups held when the step began
        self.given_up: Exception | None = None  # why the present step has no batch
        self.abandoned: list[Group] = []  # judged or ended in it: the totals have them, and no step will
        self.rolled_back = False  # by ``give_up``: ``state()`` is the one from before this collection
        self._before: dict[str, Any] | None = None  # that state; None: its batch was handed to the learner
        self._restored = False  # loaded from a state, perhaps with other settings
        self._at: Literal["poll", "judge", "pause"] | None = None
        """What ``collect`` may wait for now; None: nothing has begun."""
        self._suspended: dict[str, Any] | None = None  # how a stop left the engine and the scores
        self._paused = True  # the engine holds nothing of ours
        self._environment_before: Metrics = {}  # counts of environments when the last step ended
        self._moved, self._moved_at = self._standing(), time.monotonic()
        if rollouts.episodes is not None:
            rollouts.episodes.phases = self.phases

    # ------------------------------------------------------------------ the driver's calls

    def collect(self, step: int) -> StepBatch:
        """Collect the batch of training step ``step`` (from 1).

        Raises:
            EngineError: the engine failed.
            SamplingStopped: a cap or the end of the data was met with ``cap.then: stop``, or the verifier scores
                nothing.
            RunStuck: groups are held, and nothing is awaited that could change them.
            BaseException: whatever ``Rollouts.look`` raised. ``leave`` is to be called then.
            Exception: whatever a scorer, a stream or a hook raised. See ``give_up`` for what ``state()`` is then.
        """
        try:
            self._at = None
            if self.begun and self.step == step:
                self._before = self._state()
                self._go_on()
            else:
                self.begin(step)
            while not self.ready():
                if not self.pump(self._patience()):
                    if self.open:
                        raise self._stuck()
                    self.meet_cap()
                    break
            self._at = "pause"
            if not self.timing.overlaps:
                self.pause()
                if self.rollouts.look is not None:
                    self.rollouts.look()  # a batch that is ready is learnt after a resume
        except Exception as error:
            self.give_up(error)
            raise
        return self.take()

    def leave(self) -> LeftInStep:
        """Make ``state()`` one from which a resume goes on in the middle of the step, after ``look`` ended ``collect``.

        Responses in progress are kept. Where the digits of a run repeat, so does the order of what is left to happen;
        if the engine cannot say how it stands, or the batch was taken already, ``state()`` is the one from before this
        collection.
        """
        engine = None if self._paused or self.timing.turn is not None else self.rollouts.suspended()
        kept = self.begun and self._at is not None and (self._paused or engine is not None or not self.timing.repeats)
        groups, wanted = len(self.kept), self.prompts_per_step
        if kept:
            scores, part = self.scores.state(self.engine.clock), self._recalled()
            new = [[*response.key, response.new_tokens] for response in part]
            self._suspended = {"at": self._at, "scores": scores, "engine": engine, "new": new}
        else:
            self.rolled_back = True
        unfinished = sum(len(group.missing()) for group in self.open.values())
        return LeftInStep(self.step, kept or self._at is None, groups, wanted, unfinished)

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
        with suppress(Exception):  # the first failure is the error to report
            if isinstance(error, EngineError):
                self.pause()  # keep the tokens that it had made
            elif isinstance(error, RunStuck):
                self.hold()
        self.account.end(self.engine.stats())
        self.abandoned = self.account.finished_groups(())
        self.account.clear()
        self.begun = False

    def commit(self) -> None:
        """Forget the state from before this collection: the learner is about to change its weights by the batch."""
        self._before = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the engine's work in this context, such as an evaluation, out of the batch's counts."""
        before = self.engine.stats()
        try:
            yield
        finally:
            self.account.leave_out(before, self.engine.stats())

    def begin(self, step: int) -> None:
        """Begin training step ``step``: from now on work counts for it."""
        self.given_up, self.abandoned, self.rolled_back = None, [], False
        self._before = self._state()
        self.step, self.begun = step, True
        self.account.begin(self.engine.stats())
        self.carried = len(self.kept) + len(self.open)
        self.refill.begin()
        if self.settings.on_max_age == "drop":
            self._expire()
        elif self._restored:
            self._warn_of_old_groups()
        self._restored = False

    def pump(self, timeout: float | None = None) -> bool:
        """Replace rejected groups, let the engine work, judge.

        Args:
            timeout: seconds that the engine may take; None: until a response ends.

        Returns:
            Whether a later call may change anything. False: no group is held, or what is held waits for nothing; only
            other weights can bring further groups then.
        """
        before = self._standing()
        if self._paused:
            self._paused = False
            for group in self.open.values():  # carried: continue from their tokens
                self._submit(group)
        self._dispatch()
        if not self.open:
            return False
        self._advance(timeout)
        moved = self._standing() != before
        return moved or self.rollouts.under_way("train") > 0 or self.scores.waiting > 0

    def ready(self) -> bool:
        """Return whether the batch is complete and no group left after it would grow too old."""
        if self.settings.mode == "filter" and len(self.kept) < self.prompts_per_step:
            return False
        tried = int(self.account.count["groups/dispatched"]) + self.carried
        kept, unfinished = [g.born for g in self.kept], [g.born for g in self.open.values()]
        return is_full(self.settings, self.prompts_per_step, self.step, kept, unfinished, tried)

    def pause(self) -> None:
        """Abort what decodes and keep its tokens; judge what ended before the step is over.

        The next ``pump`` submits unfinished responses again, with their prefix.
        """
        self.hold()
        self._judge_ended(None)

    def rest(self) -> None:
        """Take back what the engine has, so that ``state`` can be taken; the next ``pump`` goes on."""
        if not self.rolled_back and self._suspended is None:
            self.pause() if self.timing.turn is None else self.hold()

    def hold(self) -> None:
        """Pause without waiting for scores: the engine rests no longer than it takes to write a state."""
        self._recalled()

    def _recalled(self) -> list[Response]:
        """As ``hold``; return the responses that are not finished."""
        if self._paused:
            return []
        recalled = self.rollouts.recall("train")
        for response in recalled:
            self.account.generated(response.new_tokens)
        part = [response for response in recalled if response.finish is None]
        for response in part:  # the engine continues from these
            self.open[response.key.group].interrupted(response)
        if over := [response for response in recalled if response.finish is not None]:
            with self.phases("score"):
                self._ask(over)
        self._paused = True
        return part

    def _go_on(self) -> None:
        """Go on where ``leave`` left the step, if there. An engine that is another one goes on behind the prefixes."""
        left, self._suspended = self._suspended, None
        if left is None:
            return
        self.scores.load(left["scores"], self.engine.clock, self.open)
        if left["engine"] is None:
            return
        self._paused = False
        for group in self.open.values():
            self._submit(group)
        earlier = {Key(*key): tokens for *key, tokens in left["new"]}
        if not self.rollouts.resume(left["engine"], earlier):
            return
        self.account.generated(-sum(earlier.values()))  # they count when their responses end
        for key, tokens in earlier.items():
            self.open[key.group].uncounted[key.sample] = tokens
        if left["at"] == "poll":
            self._advance(self._patience())
        else:
            self._judge_due()

    def take(self) -> StepBatch:
        """Take the batch of this step: the oldest P kept groups train; the rest is carried or discarded."""
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
        # with overlap the next step begins before this one is recorded, and may end a group that is carried here
        carried = {group.id for group in self.kept}
        finished = [dataclasses.replace(g) if g.id in carried else g for g in account.finished_groups(batch)]
        judged = self._shares()
        self.begun = False
        return StepBatch(self.step, batch, finished, self._end_step(batch), judged)

    def state(self) -> dict[str, Any]:
        """Return everything the next batch depends on, as a tree of plain values and arrays.

        Call between steps, or, after ``hold``, ``pause`` or ``give_up``, in the middle of one.
        """
        return self._before if self.rolled_back and self._before is not None else self._state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of a collector with the same recipe."""
        self.step, self.begun = state["step"], state["begun"]
        self.next_group, self.carried = state["next_group"], state["carried"]
        fill(self.refill, state["refill"])
        self.selector.load(state)
        self.kept = from_tree(list[Group], state["kept"])
        self.open = {group.id: group for group in from_tree(list[OpenGroup], state["open"])}
        self.account.load(state["account"], state["engine"], self.engine.stats())
        groups = {group.id: group for group in [*self.kept, *from_tree(list[Group], state["others"])]}
        self.account.groups = [groups[number] for number in state["judged"]]
        self.account.settled = [groups[number] for number in state["settled"]]
        self._suspended = state.get("suspended")
        self._restored = True

    @property
    def exhausted(self) -> bool:
        """Return whether there will be no further batch: no prompt is left and no group is held."""
        return self.selector.ended is not None and not self.kept and not self.open

    # ------------------------------------------------------------------ whether anything moves

    def awaited(self) -> Awaited:
        """Return what is owed to this collector and to others of the same engine. Any thread may call it."""
        scored, effect_at = self.scores.held()
        return dataclasses.replace(self.rollouts.awaited(), scored=scored, effect_at=effect_at)

    def _standing(self) -> tuple[int, ...]:
        """Return counts of which at least one changes with every event."""
        judged = len(self.account.groups)
        return (self.next_group, len(self.open), judged, self.scores.waiting, self.rollouts.happened)

    def _patience(self) -> float | None:
        """Return the seconds of a pump; None once nothing happened for ``PATIENCE`` seconds and one thing is awaited.

        An empty answer of the engine, or of the scorer, then proves that what it owes is lost.
        """
        now, standing = time.monotonic(), (*self._standing(), self.engine.clock)
        if standing != self._moved:
            self._moved, self._moved_at = standing, now
        if now - self._moved_at >= PATIENCE and bool(self.rollouts.under_way("train")) != bool(self.scores.waiting):
            return None
        return self.timing.turn

    def _stuck(self) -> RunStuck:
        held = len(self.open)
        return RunStuck(StuckEvidence(self.step, len(self.kept), self.prompts_per_step, held, self.awaited()))

    # ------------------------------------------------------------------ dispatch

    def _expire(self) -> None:
        """Drop the groups that would be too old when they train (``on_max_age: drop``)."""
        old = [group for group in self.open.values() if self.step - group.born > self.settings.max_age]
        if old:
            self.pause()
        for open_group in old:
            if self.open.pop(open_group.id, None) is not None:  # still unfinished after the pause
                self.account.dropped(Disposition.EXPIRED, open_group.tokens())
                self.rollouts.drop(open_group.missing())
        for group in expired(self.kept, self.step, self.settings.max_age, self.account):
            self.kept.remove(group)

    def _warn_of_old_groups(self) -> None:
        """Warn if a resume with a lower ``max_age`` or fewer prompts a step holds more than can train in time."""
        births = [g.born for g in self.kept] + [g.born for g in self.open.values()]
        in_step, max_age = self.prompts_per_step, self.settings.max_age
        if self.settings.surplus == "carry" and not in_time(births, self.step - 1, in_step, max_age):
            log.warning(
                "%d groups are held from before, more than can train within max_age = %d versions of %d groups: the "
                "oldest train first, some of them older than that. algorithm.dynamic_sampling.on_max_age=drop drops "
                "them.",
                len(births),
                max_age,
                in_step,
            )

    def _dispatch(self) -> None:
        # rounded up: the rest of a group queues, and no slot idles while work is missing
        free = -(-max(0, self.engine.capacity - self.rollouts.under_way("train")) // self.group_size)
        dispatched = int(self.account.count["groups/dispatched"])
        wanted = self.refill.wanted(
            len(self.kept), len(self.open), free, dispatched, self.carried, lag=self.step - 1 - self.engine.version
        )
        if self.settings.cap.tokens is not None and self.account.generated_tokens >= self.settings.cap.tokens:
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
        """Ask the engine for a group's unfinished responses, and the scorer for the scores that it lacks."""
        self.scores.submit(group, group.unscored_completions(), self.engine.clock)
        if requests := group.requests(self.sampling, self.run_seed):
            self.rollouts.submit(requests, lambda key: self.open[key.group].prompt)

    # ------------------------------------------------------------------ receive, score, judge

    def _advance(self, timeout: float | None) -> None:
        self._at = "poll"
        with self.phases("generate"):
            self.rollouts.pump(timeout)
        if lost := self.rollouts.lost("train"):
            raise EngineError(
                f"the engine has nothing left to do, and {len(lost)} responses never came back, among them "
                f"{', '.join(f'{key.sample} of group {key.group}' for key in lost[:5])}; "
                "what was kept is in the last checkpoint: continue with `dapo train --resume`"
            )
        self._pulse()
        if self.rollouts.has_ended("train"):
            with self.phases("score"):  # one stretch for all of them: a phase costs as much as asking for a score
                ended = self.rollouts.ended("train")
                for response in ended:
                    self.account.generated(response.new_tokens)
                self._ask(ended)
        self._at = "judge"
        if self.timing.turn is not None and not self.rollouts.under_way("train"):
            self.scores.wait(timeout)
        self._judge_due()

    def _judge_due(self) -> None:
        """Let the scores take effect whose time has come; all, where nothing decodes that others could wait for."""
        decodes = self.rollouts.under_way("train") or self.timing.turn is not None
        self._judge_ended(self.engine.clock if decodes else None)

    def _ask(self, responses: Sequence[Response]) -> None:
        """Take in whole responses and ask for their scores."""
        for response in responses:
            group = self.open[response.key.group]
            group.completions_G[response.key.sample] = response
            self.scores.submit(group, [(response.key, response)], response.tick)

    def _judge_ended(self, until: int | None) -> None:
        """Let scores take effect, up to tick ``until`` (None: all); wait for a late one of a whole group."""
        with self.phases("judge"):
            for key, score in self.scores.due(until, lambda group: self.open[group].unscored):
                group = self.open[key.group]
                self.account.got_score(key, score)
                if group.scored(key.sample, score):
                    del self.open[group.id]
                    self._judge(group.close())
                self.account.check_scored()

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
        self._tell()

    # ------------------------------------------------------------------ the end of a step

    def _discard_unfinished(self) -> None:
        self.pause()
        for group in self.open.values():
            self.account.dropped(Disposition.DISCARDED, group.tokens())
            self.rollouts.drop(group.missing())
        self.open = {}

    def meet_cap(self) -> None:
        """Act as ``cap.then`` says when ``pump`` has nothing left and the batch is not full; then ``take`` the rest.

        Raises:
            SamplingStopped: with ``cap.then: stop``, unless the data had ended before this step or is all retired.
        """
        settings, missing = self.settings, self.prompts_per_step - len(self.kept)
        if settings.mode not in ("filter", "replace"):
            return
        self.account.count["sampling/cap_reached"] = 1
        clean_end = self.exhausted and (self.selector.ended == "retired" or not self.account.groups)
        if settings.cap.then == "stop" and not clean_end:
            hopeless = hopeless_of(self.history.hopeless_rates(), self.group_size)
            seen = dataclasses.replace(self._shares(), hopeless=hopeless)
            raise stopped(self.account, settings, len(self.kept), seen)
        if settings.cap.then == "fill":
            young = [g for g in self.account.groups if self.step - g.born <= settings.max_age]
            usable = [g for g in young if g.verdict not in (Verdict.KEPT, Verdict.TOO_FEW_SCORED)]
            for group in usable[:missing]:
                group.disposition = Disposition.FILLED
                self.account.filled(group)
                self.kept.append(group)

    def _end_step(self, batch: Sequence[Group]) -> Metrics:
        """Close the account of a step whose batch is taken, and return its metrics. Later work counts for the next."""
        account, selector = self.account, self.selector
        account.count["sampling/skipped_prompts"] = selector.skipped
        engine = account.end(self.engine.stats())
        selector.end_step(account.verdicts())
        metrics = account.metrics(self.step, batch, engine)
        metrics |= source_metrics(account.groups, selector.sources, selector.levels())
        metrics |= self._environment_counts(account.count["sampling/prefill_tokens"])
        held = sum(int(group.lengths().sum()) for group in self.kept) + sum(g.tokens() for g in self.open.values())
        metrics |= {
            "groups/waiting": len(self.kept),
            "groups/unfinished": len(self.open),
            "cost/held_tokens": held,
            "sampling/acceptance_estimate": self.refill.acceptance,
            "sampling/retired_prompts": selector.retired(),
        }
        account.clear()
        account.begin(self.engine.stats())
        return metrics

    def _environment_counts(self, prefilled: float) -> Metrics:
        """Return what happened in episodes since the last step, in which the engine prefilled so many tokens.

        {} without an environment.
        """
        if self.rollouts.episodes is None:
            return {}
        before, self._environment_before = self._environment_before, self.rollouts.episodes.counters()
        now = self._environment_before.items()
        counts = {f"environment/{name}": value - before.get(name, 0.0) for name, value in now}
        given = counts["environment/given_tokens"]
        return counts | {"environment/prefill_ratio": prefilled / given if given else math.nan}

    # ------------------------------------------------------------------ how far the batch is

    def _tell(self) -> None:
        """Report the progress of the batch to ``watch``."""
        if self._watch is None:
            return
        self._watched_at = time.monotonic()
        seen = self._shares()
        cap = self.settings.cap if self.settings.mode == "filter" else None  # other modes do not search
        groups = None if cap is None else cap.groups
        self._watch(
            CollectProgress(
                self.step,
                len(self.kept),
                self.prompts_per_step,
                seen.judged,
                seen,
                seen.generated_tokens,
                self.scores.waiting,
                cap_groups=None if groups is None else groups * self.prompts_per_step,
                cap_tokens=None if cap is None else cap.tokens,
            )
        )

    def _pulse(self) -> None:
        """Report progress though no group was judged for a while: long responses, or a slow verifier."""
        if time.monotonic() - self._watched_at >= PULSE:
            self._tell()

    def _shares(self) -> Shares:
        """Return what became of the groups judged in this step, for ``dapo.observe.why``."""
        account, ended = self.account, self.selector.ended
        named = self.rollouts.names_answers and account.scored
        return Shares(
            kept=account.share(Verdict.KEPT),
            all_correct=account.share(Verdict.ALL_CORRECT),
            all_wrong=account.share(Verdict.ALL_WRONG),
            uniform=account.share(Verdict.UNIFORM),
            out_of_band=account.share(Verdict.OUT_OF_BAND),
            too_few_scored=account.share(Verdict.TOO_FEW_SCORED),
            judged=len(account.groups),
            truncated=account.truncated_share(),
            accuracy=account.accuracy(),
            correct_at=self.settings.correct_at,
            answered=account.answered / account.scored if named else None,
            truncated_vote=self.algorithm.truncated_vote,
            unscored=dict(account.unscored.most_common()),
            prompts_per_step=self.prompts_per_step,
            group_size=self.group_size,
            dispatched=int(account.count["groups/dispatched"]),
            generated_tokens=account.generated_tokens,
            data_ended=ended == "data",
            all_retired=ended == "retired",
        )

    # ------------------------------------------------------------------ what a checkpoint has

    def _state(self) -> dict[str, Any]:
        account, selected = self.account, self.selector.state()
        kept = {group.id for group in self.kept}
        others = {group.id: group for group in [*account.groups, *account.settled] if group.id not in kept}
        return {
            **selected,
            "stream": deepcopy(selected["stream"]),  # a stream of the user's may return what it goes on with
            "step": self.step,
            "begun": self.begun,
            "next_group": self.next_group,
            "carried": self.carried,
            "refill": to_tree(self.refill),
            "kept": to_tree(self.kept),
            "open": to_tree(list(self.open.values())),
            "others": to_tree(list(others.values())),  # of this step; every group is one object, here and once loaded
            "judged": [group.id for group in account.groups],
            "settled": [group.id for group in account.settled],
            "account": to_tree(account),
            "engine": account.of_step(self.engine.stats()),
            "suspended": self._suspended,
        }
