"""Run training steps of any method: when to stop, save, record, evaluate and resume, and what follows a failure.

``Trainer`` knows no engine, no loss and no data. A ``Method`` (``dapo.loop.method``) does the step itself:
``Reinforcement`` and ``Supervised`` are the two. A run has four loops. Only the first two share a thread::

    driver: Trainer.each_step     overlap: Overlap.result       engines: EnginePool turns    learner processes
    -------------------------     -----------------------       -------------------------    -----------------
    prepare(k)
      collect: pump until ready ------------------ submit --->  decode turn_steps
                              <--- poll: responses -----------
    learn(k) --------------------------------------------------------------- LearnStep --->  forward, backward
      waits for the handle  --->  pump for step k + 1 ------->  decode
                                  until the handle is done  <---- statistics --------------
    publish(k) ------------------------------------------------------------- Ticket ------>  send weights
      engine.load(ticket) ------------------------------------> receive weights <----------
      sync check ---------------------------------------------> sample a few tokens
    evaluate(k) if due, record(k), save(k) if due

    =====================  ==========================================  ==========================================
    who waits              for what                                    what unblocks it
    =====================  ==========================================  ==========================================
    ``prepare``            a full batch                                a response (the engine) or a score (a
                                                                       verifier); at a cap, ``cap.then``
    ``learn``              the learner's handle                        the learner, which waits for no engine
    ``Overlap.result``     the same handle; it pumps meanwhile         the learner, or its number of turns
    ``EnginePool.poll``    the turns under way: all of them in         each engine; one that fails is started
                           lockstep, else the first                    again, and its requests are repeated
    ``publish``            engines that load the ticket                the learner sends; with overlap, responses
                                                                       under way stay and go on after it
    an engine              requests, or weights                        ``pump``; ``publish``
    the learner            a step, or a call to send weights           ``learn``; ``publish``
    ``Saver``              the checkpoint before; with asynchronous    the learner's writer
                           checkpoints at the next save
    a signal               the learner's step and a publish; no        ``each_step`` asks ``Stopping`` between steps;
                           batch, no evaluation                        what waits otherwise calls ``Stopping.look``
    =====================  ==========================================  ==========================================

``dapo.loop.sampling.collector`` shows the same for the parts of ``collect``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import as_damage
from dapo.config.schema import Recipe
from dapo.errors import AccuracyUnknown
from dapo.loop.best import follow, go_on
from dapo.loop.method import Counters, Method, StepDone, on_leaving
from dapo.loop.saving import Saver, begin_checkpoint, load_learner, open_state
from dapo.loop.schedule import Schedule
from dapo.loop.stillness import StillnessWatch
from dapo.loop.stopping import Deadline, Stopped, Stopping
from dapo.metrics.phases import Phases
from dapo.observe.spans import peak_rss_mib
from dapo.types.batch import Group, Metrics, SavedFile, TokenTrace
from dapo.types.codec import to_tree
from dapo.types.evaluation import EvaluationResult
from dapo.types.evidence import DataEnded, silent_of
from dapo.types.protocols import Handle, Recorder

log = logging.getLogger(__name__)


class Trainer:
    """Runs a method's steps from the first, or from a checkpoint, to ``trainer.steps``.

    Attributes:
        counters: what is trained so far.
        evaluated_at: the step after which the last evaluation took place; -1: none has.
    """

    def __init__(
        self,
        method: Method,
        *,
        checkpoints: CheckpointStore,
        recorder: Recorder,
        recipe: Recipe,
        schedule: Schedule,
        phases: Phases,
        fingerprint: dict[str, Any],
        facts: Mapping[str, Any] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Begin before the first step.

        Args:
            method: does the steps.
            checkpoints: where they are saved.
            recorder: hears of every step.
            recipe: its ``trainer.steps`` are those of this run.
            schedule: the learning rate.
            phases: measures how long each part takes.
            fingerprint: of the model; a checkpoint of another one is refused.
            facts: what a checkpoint shall say of its run, JSON-able; ``load`` returns what the saved one says.
            deadline: of ``trainer.max_hours``, begun with the command; None: with this object.
        """
        self.method, self.checkpoints, self.recorder = method, checkpoints, recorder
        self.recipe, self.schedule, self.phases = recipe, schedule, phases
        self.fingerprint, self.facts = fingerprint, dict(facts or {})
        self.counters = Counters()
        early, kept = recipe.trainer.early_stop, recipe.checkpoint
        self.saver = Saver(checkpoints, recorder, phases, follow(kept.best, kept.best_is))
        self.stopping = Stopping(
            recorder,
            checkpoints,
            deadline or Deadline(recipe.trainer.max_hours),
            follow(early.metric, early.best_is, early.min_change),
            early.patience,
        )
        self.evaluated_at = -1
        self._evaluation_lost = False  # the step that was loaded misses its evaluation
        self._evaluation_left = False  # a stop left one out, or left it in its middle
        self._silent_sets: dict[str, str] = {}  # of the last evaluation: sets without an accuracy, and why

    @property
    def steps(self) -> int:
        """Return the training steps of the whole run."""
        return self.recipe.trainer.steps

    @property
    def finished(self) -> bool:
        """Return whether the run is at its end: nothing is left for a resume to do."""
        return self.stopping.finished(self.steps - self.counters.training_steps) and not self._evaluation_left

    def each_step(self) -> Iterator[StepDone]:
        """Train to ``trainer.steps``, and give out each training step when it is recorded and, if due, saved.

        Closing the iterator in the middle saves the state.

        Raises:
            SamplingStopped: the batch could not be filled.
            BaseException: whatever left the loop, a callback's ``SystemExit`` too. Unless the learner itself failed,
                or a second Ctrl-C came, the finished steps were saved first.
        """
        self.phases.take()  # what came before is no part of the first step
        self.method.start(self.stopping.look)
        self.stopping.start()
        self.saver.start()
        with self.stopping.interrupts, self._stillness as watch:
            with _no_generator_exit():
                self.begin()
            while self.counters.training_steps < self.steps and not self.stopping.due(self.saver.longest):
                done = None
                with _no_generator_exit(), suppress(Stopped):
                    done = self.train_step()
                if done is None:
                    break
                try:
                    with watch.resting():
                        yield done
                except GeneratorExit:
                    self.stopping.stop("its caller")
            if self.stopping.early:
                with on_leaving(self._after_learning):
                    self._evaluate_last()
            if self.saver.wants(self.counters.training_steps):
                self.save()
            self.saver.finish()

    @property
    def _stillness(self) -> StillnessWatch:
        return StillnessWatch(self.phases, self.method.awaited, self.recorder.stillness)

    def adopt(self, recipe: Recipe, schedule: Schedule) -> None:
        """Go on with settings that are read anew in each step: intervals, and the learning rate's schedule."""
        self.recipe, self.schedule = recipe, schedule

    # ------------------------------------------------------------------ the step

    def begin(self) -> None:
        """Publish and evaluate the model before its first training step; make up a lost evaluation after a resume.

        Raises:
            AccuracyUnknown: no response of a whole set has an accuracy, so the run could never be judged by it.
        """
        step = self.counters.training_steps
        if step == 0:
            self.method.publish(0)
            if self._every and self.evaluated_at != 0 and (result := self._evaluated(0)) is not None:
                self._record(0, result.metrics)
                if self._silent_sets:
                    raise AccuracyUnknown(silent_of(self._silent_sets))
        elif self._evaluation_lost and self._is_due(step) and (result := self._evaluated(step)) is not None:
            self._record(step, result.metrics)  # a line of its own, which readers join

    def train_step(self) -> StepDone | None:
        """Prepare, learn, publish, evaluate, record, save. None: no data is left.

        Raises:
            Stopped: the run was asked to end before the learner began; what was sampled is saved.
        """
        step = self.phases.step = self.counters.training_steps + 1
        with on_leaving(lambda error: self._before_learning(step, error)), self.stopping.may_leave():
            work = self.method.prepare(step, self.counters, self._rate)
        if isinstance(work, DataEnded):
            self.stopping.end(work)
            return None
        learned = self.method.learn(work, last=step >= self.steps)
        counters, plan = self.counters, work.plan
        counters.training_steps += 1
        counters.optimizer_steps += len(plan.minibatches)
        counters.trained_tokens += sum(int(row.loss_mask.sum()) for rows in plan.first_pass for row in rows)
        metrics = self.method.measure(work, learned)
        metrics |= {
            "train/learning_rate": plan.learning_rates[-1] if plan.learning_rates else 0.0,
            "counters/training_steps": counters.training_steps,
            "counters/optimizer_steps": counters.optimizer_steps,
            "counters/trained_tokens": counters.trained_tokens,
        }

        with on_leaving(self._after_learning):
            with on_leaving(lambda _: self._record(step, metrics, work.finished, learned.traces)):
                metrics |= self.method.publish(step)
                if self._is_due(step) and (result := self._evaluated(step)) is not None:
                    metrics |= result.metrics
            self._record(step, metrics, work.finished, learned.traces)
            self.saver.step_done(step, self.recipe.checkpoint, self._write)
        return StepDone(step, metrics, work.finished)

    def _rate(self, number: int) -> float:
        """Return the learning rate of optimizer step ``number`` of the next training step, from 0."""
        return self.schedule.at(self.counters.training_steps, self.counters.optimizer_steps + number)

    def _before_learning(self, step: int, error: BaseException) -> None:
        """Save the finished steps: the learner has seen nothing of ``step``. After a stop also what was sampled."""
        if self._leaves_at_once(error):
            return
        if isinstance(error, Stopped):
            if (left := self.method.leave()) is not None:
                self.stopping.leave(left)
            self.save()
            return
        self.method.give_up(step, error if isinstance(error, Exception) else RuntimeError(repr(error)))
        self._try_to_save()

    def _after_learning(self, error: BaseException) -> None:
        """Save the finished steps, unless the last one is saved: all of it is done and has its line."""
        if not self._leaves_at_once(error):
            self._try_to_save(again=False)

    def _leaves_at_once(self, error: BaseException) -> bool:
        """Whether a second Ctrl-C came, which waits for nothing."""
        return isinstance(error, KeyboardInterrupt) and self.stopping.interrupts.requested

    def _try_to_save(self, *, again: bool = True) -> None:
        """Save while an error is handled, which is the one to report; ``again``: also where the step is saved."""
        try:
            if again or self.saver.wants(self.counters.training_steps):
                self.save()
            self.saver.finish()
        except Exception as error:
            log.warning(
                "the finished steps could not be saved (%s: %s): a resume goes on from the checkpoint before",
                type(error).__name__,
                error,
            )

    # ------------------------------------------------------------------ evaluate, record

    @property
    def _every(self) -> int:
        return self.method.evaluates_every(self.recipe)

    def _is_due(self, step: int) -> bool:
        """Return whether ``step`` is to be evaluated."""
        return bool(self._every) and (step % self._every == 0 or step == self.steps)

    def evaluate(self, step: int) -> EvaluationResult:
        """Measure the weights of ``step``, the last one done, on held-out data; there must be some."""
        result = self.method.evaluate(step)
        self._silent_sets = {name: result.reasons[name] for name in result.silent}
        if self._silent_sets and step:
            self.recorder.notice(step, silent_of(self._silent_sets))
        self.evaluated_at = step
        return result

    def _evaluated(self, step: int) -> EvaluationResult | None:
        """As ``evaluate``; None: the run is asked to end, and a resume makes it up."""
        with suppress(Stopped), self.stopping.may_leave():
            self.stopping.look()
            return self.evaluate(step)
        self._evaluation_left = True
        return None

    def _evaluate_last(self) -> None:
        """Evaluate the last step of a run that is at its end before ``trainer.steps``."""
        step = self.phases.step = self.counters.training_steps
        if self.evaluated_at != step and self._every and (result := self._evaluated(step)) is not None:
            self._record(step, result.metrics)

    def _record(
        self, step: int, metrics: Metrics, finished: Sequence[Group] = (), traces: Sequence[TokenTrace] = ()
    ) -> None:
        """Complete a step's metrics with its timings, and write its line.

        The line is written before the step's checkpoint, which never knows more than the files beside it: ``report``
        and ``save`` of a step therefore count in the next one's seconds.
        """
        seconds = self.phases.take()
        metrics |= self.method.timing(metrics, seconds)
        metrics |= seconds | {"memory/peak_rss_mib": peak_rss_mib()} | self.phases.peaks()
        try:
            with self.phases("report"):
                self.recorder.step(step, metrics, finished, traces)
        finally:  # also where a callback leaves: the step's checkpoint knows what the step was like
            self.saver.seen(step, metrics)
            self.stopping.seen(step, metrics)

    # ------------------------------------------------------------------ save, resume

    def save(self) -> Path:
        """Write a checkpoint of the step that is done; returns its folder."""
        return self.saver.save(self.counters.training_steps, self._write)

    def _write(self, folder: Path) -> Handle[list[SavedFile]]:
        step = self.counters.training_steps
        state = {
            **self.method.state(),
            "fingerprint": self.fingerprint,
            "facts": self.facts,
            "counters": to_tree(self.counters),
            "evaluated_at": self.evaluated_at,
            "evaluation_lost": self._is_due(step) and self.evaluated_at != step,
            "best": to_tree(self.saver.best),
            "early_stop": to_tree(self.stopping.best),
            "recorder": self.recorder.state(),
        }
        return begin_checkpoint(folder, self.method.learner, state)

    def load(self, folder: Path) -> dict[str, Any]:
        """Continue from a checkpoint folder. Nothing of the run's files is touched.

        Returns:
            What was saved: ``recorder`` (its state) and ``facts``.

        Raises:
            CheckpointError: it is damaged, or belongs to another model or method; the message names the difference.
            DataError: the training data are not those that it was saved with.
        """
        state, counters = open_state(folder, self.fingerprint)
        with as_damage(folder):
            self.method.load(state)
            self.evaluated_at = int(state["evaluated_at"])
            self._evaluation_lost = bool(state["evaluation_lost"])
            go_on(self.saver.best, state["best"])
            go_on(self.stopping.best, state["early_stop"])
            saved = {"recorder": dict(state["recorder"]), "facts": dict(state["facts"])}
        load_learner(folder, self.method.learner)
        self.counters = counters
        self.phases.step = counters.training_steps
        self.method.publish(counters.training_steps)
        return saved


@contextmanager
def _no_generator_exit() -> Iterator[None]:
    """Raise RuntimeError for a GeneratorExit out of a hook: outside it would pass for the end by the steps' caller."""
    try:
        yield
    except GeneratorExit as error:
        raise RuntimeError("GeneratorExit was raised within a step, by a part or a hook of yours") from error
