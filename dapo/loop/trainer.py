"""The step, as the paper's algorithm 1 has it; everything else in this package serves these calls."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import as_damage
from dapo.config.schema import Recipe
from dapo.errors import LearnerLost
from dapo.loop.algorithm import Algorithm
from dapo.loop.best import follow
from dapo.loop.boundary import begin_boundary, load_learner, open_state
from dapo.loop.counters import Counters, StepDone
from dapo.loop.evaluation import Evaluator
from dapo.loop.idle import Idle, staleness
from dapo.loop.notices import Notices
from dapo.loop.overlap import Overlap
from dapo.loop.recording import Evaluations, StepRecords
from dapo.loop.sampling.collector import StreamingCollector
from dapo.loop.saving import Saver
from dapo.loop.schedule import Schedule
from dapo.loop.stopping import Deadline, Stopping
from dapo.loop.sync_check import SyncCheck
from dapo.metrics.phases import Phases
from dapo.metrics.stats import values
from dapo.types.batch import (
    Group,
    Learned,
    LearnStep,
    Metrics,
    SavedFile,
    StepBatch,
    TokenTrace,
)
from dapo.types.evaluation import EvaluationResult
from dapo.types.evidence import DataEnded
from dapo.types.protocols import Engine, EngineGroup, Handle, Learner, Recorder

log = logging.getLogger(__name__)


class Trainer:
    """Runs the training loop over a collector, a learner and an engine."""

    def __init__(
        self,
        *,
        collector: StreamingCollector,
        learner: Learner,
        engine: Engine,
        algorithm: Algorithm,
        schedule: Schedule,
        evaluator: Evaluator | None,
        checkpoints: CheckpointStore,
        recorder: Recorder,
        recipe: Recipe,
        fingerprint: dict[str, Any],
        phases: Phases,
        check_sync: SyncCheck,
        facts: Mapping[str, Any] | None = None,
        overlap: Overlap | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """``check_sync`` is called with the step after each publish; ``overlap``: engines work while the learner does.

        ``deadline``: of ``trainer.max_hours``, begun with the command; None: with this object.
        ``facts``: what a checkpoint shall say of its run, JSON-able; ``load`` returns what the saved one says.
        """
        self.collector, self.learner, self.engine = collector, learner, engine
        self.algorithm, self.schedule = algorithm, schedule
        self.checkpoints, self.recorder, self.recipe = checkpoints, recorder, recipe
        self.steps = recipe.trainer.steps
        self.fingerprint, self.phases, self.check_sync = fingerprint, phases, check_sync
        self.facts, self.overlap = dict(facts or {}), overlap
        self.counters = Counters()
        self.idle = Idle(
            lambda: collector.rollouts.busy_seconds(), phases.read_clock, None if overlap is None else phases.beside
        )
        if overlap is not None:
            collector.rollouts.watch = self.idle.look_at_engines
        self.notices = Notices(recorder, algorithm)
        early, kept = recipe.trainer.early_stop, recipe.checkpoint
        self.saver = Saver(checkpoints, recorder, phases, follow(kept.best, kept.best_is))
        self.stopping = Stopping(
            recorder,
            checkpoints,
            deadline or Deadline(recipe.trainer.max_hours),
            follow(early.metric, early.best_is, early.min_change),
            early.patience,
        )
        self.records = StepRecords(recorder, phases, self.idle)
        self.evaluations = Evaluations(
            evaluator, recorder, phases, collector.aside, every=recipe.validation.every, steps=self.steps
        )

    def run(self) -> bool:
        """Train to ``trainer.steps``. True when it got there, False when it was stopped early (state saved).

        Raises:
            SamplingStopped: the batch could not be filled.
            Exception: whatever failed. Unless the learner itself did, the finished steps were saved first.
        """
        for _ in self.each_step():
            pass
        return self.finished

    @property
    def finished(self) -> bool:
        """The run is at its end: nothing is left for a resume to do."""
        return self.stopping.finished(self.steps - self.counters.training_steps)

    def each_step(self) -> Iterator[StepDone]:
        """Train as ``run``, and give out each training step when it is recorded and, if due, saved.

        Closing the iterator in the middle saves the state.
        """
        self.records.start()
        self.stopping.start()
        self.saver.start()
        with self.stopping.interrupts:
            if self.counters.training_steps == 0:
                self._publish()
                self._first_evaluation()
            elif metrics := self.evaluations.make_up(self.counters.training_steps):
                self._record(self.counters.training_steps, metrics)  # a line of its own, which readers join
            try:
                while self.counters.training_steps < self.steps and not self.stopping.due(self.saver.longest):
                    done = self._train_step()
                    if done is None:
                        break
                    yield done
            except GeneratorExit:
                self.stopping.stop("its caller")
            if self.stopping.early:
                self._evaluate_last()
            if self.saver.wants(self.counters.training_steps):
                self.save()
            self.saver.finish()

    def adopt(self, recipe: Recipe, schedule: Schedule) -> None:
        """Go on with settings that are read anew in each step: intervals, and the learning rate's schedule."""
        self.recipe, self.schedule = recipe, schedule
        self.steps = self.evaluations.steps = recipe.trainer.steps
        self.evaluations.every = recipe.validation.every

    # ------------------------------------------------------------------ the step

    def _train_step(self) -> StepDone | None:
        """Train on one batch: collect, plan, learn, publish, evaluate, record, save. None: no data left."""
        step = self.phases.step = self.counters.training_steps + 1
        with self._steps_before_saved(step):
            batch = self._collect(step)
            if batch is None:
                return None
            plan = self._plan(batch)
        self.collector.commit()
        self.counters.rollout_steps += 1
        learned = self._learn(plan)
        metrics = batch.metrics | values(learned.stats)
        metrics |= self.algorithm.learned(plan, metrics)
        metrics |= staleness(plan.minibatches, plan.version)
        self.notices.clamping(batch.step, metrics)
        metrics |= {
            "train/learning_rate": plan.learning_rates[-1] if plan.learning_rates else 0.0,
            "counters/training_steps": self.counters.training_steps,
            "counters/rollout_steps": self.counters.rollout_steps,
            "counters/optimizer_steps": self.counters.optimizer_steps,
            "counters/trained_tokens": self.counters.trained_tokens,
        }
        if isinstance(self.engine, EngineGroup):
            metrics |= self.engine.metrics()
        try:
            metrics |= self._publish()
            metrics |= self.evaluations.if_due(step)
        except LearnerLost:
            raise
        except Exception:
            self._record(step, metrics, batch.finished, learned.traces)  # the step itself is done
            self._try_to_save()
            raise
        self._record(step, metrics, batch.finished, learned.traces)
        self.saver.step_done(step, self.recipe.checkpoint, self._write)
        return StepDone(step, metrics, batch.finished)

    @contextmanager
    def _steps_before_saved(self, step: int) -> Iterator[None]:
        """Whatever fails in here, save the finished steps; the error then ends the run.

        The learner has not seen anything of ``step`` yet. If it is lost itself, nothing can be saved: the run goes on
        from its last checkpoint.
        """
        try:
            yield
        except LearnerLost:
            raise
        except Exception as error:
            self.collector.give_up(error)
            if not self.collector.rolled_back:
                self.recorder.stopped(step, self.collector.account.groups)
            self._try_to_save()
            raise

    def _try_to_save(self) -> None:
        """Save while an error is handled, which is the one to report."""
        try:
            self.save()
        except Exception as error:
            log.warning(
                "the finished steps could not be saved (%s: %s): a resume goes on from the checkpoint before",
                type(error).__name__,
                error,
            )

    def _collect(self, step: int) -> StepBatch | None:
        """Collect the batch of ``step``; None: there is no data left."""
        if self.overlap is not None:
            self.overlap.check()
        batch = self.collector.collect(step)
        if not batch.groups_P and self.collector.exhausted:
            retired = self.collector.selector.ended == "retired"
            self.stopping.end(DataEnded(step - 1, retired))
            if batch.finished:
                self.recorder.stopped(step, batch.finished)  # judged on the way to a batch that there was not
            return None
        self.notices.poor_batch(batch)
        return batch

    def _plan(self, batch: StepBatch) -> LearnStep:
        """Give the algorithm the log-probabilities that it asks for, and return what the learner does in this step."""
        if self.overlap is None:
            self.engine.sleep()
        logprobs = {}
        if asked := self.algorithm.asks(batch):
            with self.phases("learn"), self.idle.learner():
                logprobs = {of: self.learner.logprobs(rows, of).result() for of, rows in asked.items()}
        with self.phases("shape"):
            done = self.counters
            return self.algorithm.plan(
                batch,
                logprobs,
                version=done.training_steps,
                rate=lambda number: self.schedule.at(done.training_steps, done.optimizer_steps + number),
                traced=self.recorder.traced(batch.finished),
            )

    def _learn(self, plan: LearnStep) -> Learned:
        """Train, and count what was trained. The engines generate for the next step meanwhile, if they may."""
        with self.phases("learn"), self.idle.learner():
            handle, following = self.learner.learn(plan), plan.version + 2
            if self.overlap is None or following > self.steps:
                learned = handle.result()
            else:
                learned = self.overlap.result(handle, following)
        self.counters.training_steps += 1
        self.counters.optimizer_steps += len(plan.minibatches)
        self.counters.trained_tokens += sum(int(row.loss_mask.sum()) for rows in plan.minibatches for row in rows)
        return learned

    def _publish(self) -> Metrics:
        """The learner's weights to the engine, and a look at whether they arrived."""
        version = self.counters.training_steps
        with self.phases("publish"):
            self.engine.load(self.learner.publish(version), "abort" if self.overlap is None else "keep")
            with self.collector.aside():
                return self.check_sync(version)

    # ------------------------------------------------------------------ evaluate, record, save

    def _first_evaluation(self) -> None:
        """Step 0: what the model could do before training.

        Raises:
            AccuracyUnknown: of a whole set no response has an accuracy, so that the run could never be judged by it.
        """
        if self.evaluations.wanted:
            self._record(0, self.evaluate(0).metrics)
            self.evaluations.check_known()

    def _evaluate_last(self) -> None:
        """Where the run is at its end before ``trainer.steps``: the last step is evaluated too."""
        step = self.phases.step = self.counters.training_steps
        if self.evaluations.at != step and self.evaluations.wanted:
            self._record(step, self.evaluate(step).metrics)

    def _record(
        self, step: int, metrics: Metrics, finished: Sequence[Group] = (), traces: Sequence[TokenTrace] = ()
    ) -> None:
        """A step's line, and what follows from it."""
        self.records.step(step, metrics, finished, traces)
        self.saver.seen(step, metrics)
        self.stopping.seen(step, metrics)

    def evaluate(self, step: int) -> EvaluationResult:
        """Answer the held-out problems with the weights of ``step``, the last one done; there must be some."""
        return self.evaluations.evaluate(step)

    def save(self) -> Path:
        """Write a checkpoint of the step that is done; returns its folder."""
        return self.saver.save(self.counters.training_steps, self._write)

    def _write(self, folder: Path) -> Handle[list[SavedFile]]:
        if self.overlap is not None:
            self.overlap.rest()
        state = {
            "fingerprint": self.fingerprint,
            "facts": self.facts,
            "counters": asdict(self.counters),
            "collector": self.collector.state(),
            "sync_check": self.check_sync.state(),
            "algorithm": self.algorithm.state(),
            **self.evaluations.state(self.counters.training_steps),
            "best": self.saver.state(),
            "early_stop": self.stopping.state(),
            "recorder": self.recorder.state(),
        }
        return begin_boundary(folder, self.learner, state)

    def load(self, folder: Path) -> dict[str, Any]:
        """Continue from a checkpoint folder. Nothing of the run's files is touched.

        Returns:
            What was saved: ``recorder`` (its state) and ``facts``.

        Raises:
            CheckpointError: it is damaged, or belongs to another model; the message names the difference.
            DataError: the training data are not those that it was saved with.
        """
        state, counters = open_state(folder, self.fingerprint)
        with as_damage(folder):
            self.collector.load(state["collector"])
            self.check_sync.load(state["sync_check"])
            self.algorithm.load(state["algorithm"])
            self.evaluations.load(state)
            self.saver.load(state.get("best"))
            self.stopping.load(state.get("early_stop"))
            saved = {"recorder": dict(state["recorder"]), "facts": dict(state.get("facts", {}))}
        load_learner(folder, self.learner)
        self.counters = counters
        self.phases.step = counters.training_steps
        self._publish()
        return saved
