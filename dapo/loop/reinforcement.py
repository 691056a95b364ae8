"""Training by reward: the step of the paper's algorithm 1, as the loop of ``dapo.loop.trainer`` calls it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dapo.algorithms.algorithm import Algorithm
from dapo.config.schema import Recipe
from dapo.errors import CheckpointError
from dapo.loop.evaluation import Evaluator
from dapo.loop.idle import Idle, staleness
from dapo.loop.method import Counters, Work
from dapo.loop.overlap import Overlap
from dapo.loop.sampling.account import wasted_seconds
from dapo.loop.sampling.collector import StreamingCollector
from dapo.loop.sync_check import SyncCheck
from dapo.metrics.phases import Phases
from dapo.metrics.stats import values
from dapo.types.batch import Learned, LearnStep, Metrics, Of, StepBatch
from dapo.types.codec import fill, to_tree
from dapo.types.enums import Disposition
from dapo.types.evaluation import EvaluationResult
from dapo.types.evidence import Awaited, Clamping, DataEnded, LeftInStep, PoorBatch
from dapo.types.protocols import EngineGroup, Judge, Learner, Recorder


class Reinforcement:
    """Collect groups, plan, learn, publish, evaluate. Keeps ``dapo.loop.method.Method``.

    Args:
        collector: makes the batches, with the engine that gets the weights.
        learner: trains.
        algorithm: turns a batch into the learner's work.
        evaluator: answers the held-out problems; None: there are none.
        check_sync: called with the step after each publish.
        recorder: gets poor batches and evaluations.
        phases: measures how long each part takes.
        overlap: engines work while the learner does; None: they wait for it.
        teachers: that the learner does not hold.
    """

    def __init__(
        self,
        *,
        collector: StreamingCollector,
        learner: Learner,
        algorithm: Algorithm,
        evaluator: Evaluator | None,
        check_sync: SyncCheck,
        recorder: Recorder,
        phases: Phases,
        overlap: Overlap | None = None,
        teachers: Mapping[Of, Judge] | None = None,
    ) -> None:
        self.teachers = teachers or {}
        self.collector, self.learner, self.engine = collector, learner, collector.engine
        self.algorithm, self.evaluator, self.check_sync = algorithm, evaluator, check_sync
        self.recorder, self.phases, self.overlap = recorder, phases, overlap
        self.notices = Notices(recorder, algorithm)
        self.idle = Idle(
            lambda: collector.rollouts.busy_seconds(), phases.clock, None if overlap is None else phases.beside
        )
        if overlap is not None:
            collector.rollouts.watch = self.idle.look_at_engines

    def start(self, look: Callable[[], None]) -> None:
        self.idle.take(0.0)
        self.collector.rollouts.look = look

    # ------------------------------------------------------------------ before the learner works

    def prepare(self, step: int, done: Counters, rate: Callable[[int], float]) -> Work | DataEnded:
        """Collect the batch of ``step``, and let the algorithm plan what the learner does with it."""
        if self.overlap is not None:
            self.overlap.check()
        batch = self.collector.collect(step)
        if not batch.groups_P and self.collector.exhausted:
            if batch.finished:
                self.recorder.stopped(step, batch.finished)  # judged on the way to a batch that there was not
            return DataEnded(step - 1, self.collector.selector.ended == "retired", len(batch.finished))
        self.notices.poor_batch(batch)
        return Work(self._plan(batch, done.training_steps, rate), batch.metrics, batch.finished)

    def _plan(self, batch: StepBatch, version: int, rate: Callable[[int], float]) -> LearnStep:
        """Give the algorithm the log-probabilities that it asks for, and return what the learner does in this step."""
        if self.overlap is None:
            self.engine.sleep()
        logprobs = {}
        if asked := self.algorithm.asks(batch):
            elsewhere, look = {of: asked.pop(of) for of in self.teachers if of in asked}, self.collector.rollouts.look
            with self.phases("learn"):
                with self.idle.learner():
                    logprobs = {of: self.learner.logprobs(rows, of).result() for of, rows in asked.items()}
                logprobs |= {of: self.teachers[of].logprobs(rows, look) for of, rows in elsewhere.items()}
        with self.phases("shape"):
            return self.algorithm.plan(
                batch, logprobs, version=version, rate=rate, traced=self.recorder.traced(batch.finished)
            )

    def give_up(self, step: int, error: Exception) -> None:
        self.collector.give_up(error)
        self.recorder.stopped(step, self.collector.abandoned)

    def leave(self) -> LeftInStep:
        return self.collector.leave()

    # ------------------------------------------------------------------ learn, publish, evaluate

    def learn(self, work: Work, *, last: bool) -> Learned:
        """Train. The engines generate for the next step meanwhile, if they may."""
        self.collector.commit()
        with self.phases("learn"), self.idle.learner():
            handle = self.learner.learn(work.plan)
            if self.overlap is None or last:
                return handle.result()
            return self.overlap.result(handle, work.plan.version + 2)

    def measure(self, work: Work, learned: Learned) -> Metrics:
        plan = work.plan
        metrics = work.metrics | values(learned.stats)
        metrics |= self.algorithm.learned(plan, metrics)
        metrics |= staleness(plan.first_pass, plan.version)
        self.notices.clamping(plan.version + 1, metrics)
        metrics["counters/rollout_steps"] = plan.version + 1  # every batch that is collected is trained on
        if isinstance(self.engine, EngineGroup):
            metrics |= self.engine.metrics()
        return metrics

    def publish(self, version: int) -> Metrics:
        """Give the learner's weights to the engine, and check that they arrived."""
        with self.phases("publish"):
            self.engine.load(self.learner.publish(version), "abort" if self.overlap is None else "keep")
            with self.collector.aside():
                return self.check_sync(version)

    def evaluates_every(self, recipe: Recipe) -> int:
        return 0 if self.evaluator is None else recipe.validation.every

    def evaluate(self, step: int) -> EvaluationResult:
        """Answer the held-out problems with the weights of ``step``, the last one done; there must be some."""
        assert self.evaluator is not None
        with self.phases("evaluate"), self.collector.aside():
            result = self.evaluator.evaluate()
            self.recorder.evaluation(step, result)
        return result

    def awaited(self) -> Awaited:
        return self.collector.awaited()

    def timing(self, metrics: Metrics, seconds: Mapping[str, float]) -> Metrics:
        took = self.idle.take(seconds["time/step"]) | wasted_seconds(metrics, seconds)
        learnt = seconds["time/step"] - took["time/learner_idle"]
        for name, tokens, spent in (
            ("time/tokens_per_second", "sampling/generated_tokens", seconds.get("time/generate")),
            ("time/trained_tokens_per_second", "sampling/trained_tokens", learnt),
        ):
            if spent and tokens in metrics:
                took[name] = metrics[tokens] / spent
        return took

    # ------------------------------------------------------------------ what a checkpoint has

    def state(self) -> dict[str, Any]:
        """Return the state, after unfinished responses were taken back from the engine."""
        if self.overlap is not None:
            self.overlap.rest()
        return {
            "collector": self.collector.state(),
            "sync_check": to_tree(self.check_sync.healthy),
            "algorithm": self.algorithm.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        if "examples" in state:
            raise CheckpointError("the checkpoint is of `dapo sft`, and this run trains by reward")
        self.collector.load(state["collector"])
        fill(self.check_sync.healthy, state["sync_check"])
        self.algorithm.load(state["algorithm"])


class Notices:
    """Report poor batches and clamped rewards to the recorder, without repeating it in each step."""

    def __init__(self, recorder: Recorder, algorithm: Algorithm) -> None:
        self._recorder, self._algorithm = recorder, algorithm
        self._poor_batches = 0  # in a row
        self._told_of_clamping = False

    def poor_batch(self, batch: StepBatch) -> None:
        """Report a batch that ``train_partial`` or ``fill`` accepts: the first, second, fourth, eighth... in a row."""
        useful = sum(group.disposition is not Disposition.FILLED for group in batch.groups_P)
        poor = not useful or batch.metrics["sampling/cap_reached"]
        self._poor_batches = self._poor_batches + 1 if poor else 0
        if self._poor_batches and self._poor_batches.bit_count() == 1:
            self._recorder.notice(batch.step, PoorBatch(useful, self._poor_batches, batch.shares))

    def clamping(self, step: int, metrics: Metrics) -> None:
        """Report once that scaling clamps rewards: what is clamped away teaches nothing, whatever its weight."""
        if self._told_of_clamping or not metrics["reward/clamped"] > 0:  # nan: nothing was scored
            return
        self._told_of_clamping = True
        low, high = self._algorithm.source_range or (-math.inf, math.inf)
        least, greatest = metrics["reward/raw_min"], metrics["reward/raw_max"]
        self._recorder.notice(step, Clamping(metrics["reward/clamped"], low, high, least, greatest))
