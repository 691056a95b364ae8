"""A whole run in milliseconds: real trainer, collector, evaluator, sync check and checkpoints; the rest is scripted.

The engine computes log-probabilities from the weights that it was given last, so that the sync check and the gaps have
something to say. Everything that happens is noted in ``Run.log``, and a hook may act at any of these instants.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from scripted import ScriptedEngine, make_algorithm, make_collector
from scripted_learner import SCORES, ScriptedLearner
from small_recipe import small_recipe

from dapo.algorithms.algorithm import Algorithm, Passes
from dapo.algorithms.keep import judge_group
from dapo.checkpoint.store import CheckpointStore
from dapo.errors import EngineError
from dapo.loop.evaluation import Evaluator
from dapo.loop.overlap import Overlap
from dapo.loop.reinforcement import Reinforcement
from dapo.loop.schedule import Schedule
from dapo.loop.sync_check import SyncCheck
from dapo.loop.trainer import Trainer
from dapo.metrics.phases import Phases
from dapo.observe.metrics import unknown_keys, without_clock
from dapo.observe.sentences import ending_said, notice_said
from dapo.types.batch import Prompt, SamplingParams, TensorSum
from dapo.types.evidence import ClusterLost, HeldOutLoss, Interrupted, LeftAtOnce

STEPS = 4


class Log:
    """What happened, in order, as (call, step); a call that is made many times in a row stands there once."""

    def __init__(self, hooks=()):
        self.entries, self.hooks, self.step = [], dict(hooks), lambda: 0

    def note(self, call):
        entry = (call, self.step())
        if not self.entries or self.entries[-1] != entry:
            self.entries.append(entry)
        if hook := self.hooks.pop(entry, None):
            hook()

    def calls(self, step):
        return [call for call, at in self.entries if at == step]


class NotedPhases(Phases):
    """Knows the phase that goes on."""

    def __init__(self):
        super().__init__()
        self.now = ["other"]

    @contextmanager
    def __call__(self, name):
        self.now.append(name)
        try:
            with super().__call__(name):
                yield
        finally:
            self.now.pop()


class RunEngine(ScriptedEngine):
    """Has a copy of the learner's numbers; is lost once in each of ``lost``: (method, phase, step)."""

    shares_weights = False

    def __init__(self, length, learner, log, phases, lost=(), stale=None):
        super().__init__(length)
        self.learner, self.log, self.phases = learner, log, phases
        self.lost, self.stale = set(lost), stale  # stale: the version that it does not take over
        self.scores = None

    def _may_be_lost(self, method):
        place = (method, self.phases.now[-1], self.phases.step)
        if place in self.lost:
            self.lost.discard(place)
            raise EngineError(f"lost: {place}")

    def load(self, ticket, in_flight="abort"):
        self.log.note("publish")
        self._may_be_lost("publish")
        super().load(ticket, in_flight)
        if ticket.version != self.stale:
            self.scores = self.learner.scores.copy()

    def poll(self, timeout=None):
        self.log.note({"generate": "collect", "publish": "check"}.get(self.phases.now[-1], self.phases.now[-1]))
        self._may_be_lost("poll")
        return super().poll(timeout)

    def sleep(self):
        self.log.note("sleep")
        super().sleep()

    def checksums(self):
        own = ScriptedLearner(len(self.scores))
        own.scores = self.scores
        return {SCORES: TensorSum("float32", own.checksums({SCORES: "float32"})[SCORES])}

    def _event(self, request, tokens, finish):
        event = super()._event(request, tokens, finish)
        log_p = self.scores - self.scores.max()
        log_p = log_p - np.log(np.exp(log_p).sum())
        event.logprobs[:] = log_p[event.token_ids % len(log_p)]
        return event


class Recording:
    """Keeps what it is told. A metric without a line in the glossary fails the test."""

    def __init__(self, log):
        self.log, self.rows, self.traces, self.finished, self.extra = log, {}, {}, {}, {}
        self.evaluations, self.checkpoints, self.stops, self.said, self.warned = [], [], [], [], []

    def step(self, step, metrics, finished, traces):
        self.log.note("record")
        assert unknown_keys(metrics) == [], unknown_keys(metrics)
        if step in self.rows:  # an evaluation that was not due, at the end of the data
            assert step not in self.extra, f"step {step} was recorded three times"
            self.extra[step] = metrics
            return
        self.rows[step], self.finished[step], self.traces[step] = metrics, list(finished), list(traces)

    def traced(self, finished):
        return {group.id for group in finished}

    def span(self, span):
        pass

    def evaluation(self, step, result):
        self.evaluations.append(step)

    def saved(self, step, folder):
        self.checkpoints.append(step)

    def stopped(self, step, judged):
        self.log.note("stopped")
        self.stops.append((step, [group.id for group in judged]))

    def filling(self, progress):
        pass

    def evaluating(self, progress):
        pass

    def stillness(self, stillness):
        pass

    def notice(self, step, notice):
        (self.said if isinstance(notice, HeldOutLoss) else self.warned).append(notice_said(step, notice))

    def ending(self, ending):
        (self.warned if isinstance(ending, Interrupted | LeftAtOnce | ClusterLost) else self.said).append(
            ending_said(ending)
        )

    def state(self):
        return {"rows": len(self.rows)}

    def row(self, step):
        """Without times, and nan as a word, so that equal rows are equal."""
        row = {key: value for key, value in without_clock(self.rows[step]).items() if not key.endswith("_seconds")}
        return {key: "nan" if value != value else value for key, value in row.items()}


def train(trainer):
    """Train to the end; return whether the trainer got there."""
    for _ in trainer.each_step():
        pass
    return trainer.finished


@dataclass
class Run:
    trainer: Trainer
    method: Reinforcement
    engine: RunEngine
    learner: ScriptedLearner
    recorder: Recording
    log: Log

    def __call__(self):
        return train(self.trainer)

    @property
    def saved(self):
        return self.trainer.checkpoints.steps()

    @property
    def trained(self):
        """Ids of the groups of each training step."""
        return [sorted({row.group for rows in step.minibatches for row in rows}) for step in self.learner.steps]

    @property
    def rates(self):
        return [rate for step in self.learner.steps for rate in step.learning_rates]


def held_out(count=3):
    return [Prompt(f"v{n}", "", np.array([1, 2]), f"held out {n}", "", "set") for n in range(count)]


def make_run(
    folder,
    *,
    length=lambda g, i: 3 + (g + i) % 3,
    accuracy=lambda g, i: float(i == 0),
    steps=STEPS,
    evaluate_every=2,
    save_every=2,
    minibatch=2,
    lost=(),
    stale=None,
    hooks=(),
    resume=False,
    prompts=4,
    changes=None,
    kind=Algorithm,
    turns=None,
    learner=None,
    sections=None,
    deadline=None,
    **settings,
) -> Run:
    """A run whose checkpoints are in ``folder``; ``resume``: from the newest of them.

    ``changes``: to the algorithm's functions and facts; ``kind``: its class.
    ``sections``: of the recipe, laid on top.
    ``turns``: generation goes on beside learning, so many turns of the crank in every step.
    """
    log, phases = Log(hooks), NotedPhases()
    log.step = lambda: phases.step
    learner = (learner or ScriptedLearner)(note=lambda call: log.note(f"learner {call}"))
    engine = RunEngine(length, learner, log, phases, lost, stale)

    def shape(rewards, lengths, truncated):
        log.note("shape")
        return 2 * rewards - 1, np.zeros(len(rewards))

    judge = partial(judge_group, metric_is_accuracy=True)
    given = {"judge": judge, "shape": shape, "passes": Passes(minibatch)} | (changes or {})
    algorithm, recorder = make_algorithm(kind=kind, **given), Recording(log)
    collector = make_collector(
        length=length,
        accuracy=accuracy,
        prompts=prompts,
        engine=engine,
        algorithm=algorithm,
        phases=phases,
        overlaps=turns is not None,
        **settings,
    )
    evaluator = Evaluator(
        rollouts=collector.rollouts,
        prompts={"set": held_out()},
        sampling=SamplingParams(max_tokens=100),
        samples=2,
        greedy=False,
        seed=0,
    )
    method = Reinforcement(
        collector=collector,
        learner=learner,
        algorithm=algorithm,
        evaluator=evaluator,
        check_sync=SyncCheck(collector.rollouts, learner, held_out(), SamplingParams(max_tokens=100), seed=0),
        recorder=recorder,
        phases=phases,
        overlap=None if turns is None else Overlap(collector, phases, turns),
    )
    trainer = Trainer(
        method,
        schedule=Schedule(peak=0.1, warmup=3),
        checkpoints=CheckpointStore(folder),
        recorder=recorder,
        recipe=small_recipe(
            **{
                name: own | (sections or {}).get(name, {})
                for name, own in {
                    "data": {},
                    "trainer": {"steps": steps},
                    "rollout": {"prompts_per_step": prompts},
                    "validation": {"every": evaluate_every},
                    "checkpoint": {"every": save_every},
                }.items()
            }
        ),
        fingerprint={"model": "scripted"},
        phases=phases,
        deadline=deadline,
    )
    if resume:
        trainer.load(trainer.checkpoints.path())
    return Run(trainer, method, engine, learner, recorder, log)
