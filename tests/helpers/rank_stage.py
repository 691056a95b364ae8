"""Several learners in one set of rank processes: starting processes for each would take most of a test's time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from exchanges import by_folder
from forked import ForkedTransport
from inline_transport import InlineTransport

from dapo.algorithms.objective import Objective, clip_objective, with_terms
from dapo.algorithms.teacher import TeacherTerm
from dapo.config import schema
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import LearnerHosts
from dapo.learner.sharding import Shape
from dapo.learner.worker import RankPlace, make_worker
from dapo.metrics.stats import merge
from dapo.processes.transport import HostSpec

MODELS = {
    "tied": {"hidden": 16, "heads": 2, "ffn": 24},
    "untied": {"hidden": 16, "heads": 2, "ffn": 24, "tied": False},
    "qwen3": {"architecture": "qwen3", "hidden": 16, "heads": 2, "ffn": 24, "kv_heads": 1},
}
OBJECTIVES = {
    "clip": lambda: clip_objective(low=0.2, high=0.28),
    "taught": lambda: with_terms(clip_objective(low=0.2, high=0.28), teacher=TeacherTerm(0.7)),
    "explosive": lambda: Objective(lambda inputs: (inputs.logprobs * math.inf, {})),
}


class RankStage:
    """In a rank's process: has joined the others, and holds one rank of each learner."""

    def __init__(self, rank: int, ranks: int, rendezvous: str) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        RankPlace(rank, Shape(ranks), rendezvous, 120.0).join(torch.device("cpu"))
        self.held = {}

    def make(
        self, number: int, model: dict, learner: dict, objective: str, shape: Shape, reference=None, **teachers
    ) -> None:
        place = RankPlace(self.rank, shape, "", 120.0)
        self.held[number] = make_worker(
            place,
            schema.Model(**model),
            schema.LearnerSection(**learner),
            1.0,
            OBJECTIVES[objective](),
            reference=reference,
            **teachers,
            device=torch.device("cpu"),
        )

    def named(self, method: str, args, named):
        return getattr(self, method)(*args, **named)

    def ask(self, number: int, method: str, *args):
        if method == "close":
            return None  # the others go on
        return getattr(self.held[number], method)(*args)

    def run(self, function, *args):
        """Anything else, in this process."""
        return function(self, *args)


class Staged:
    """A ``Transport`` of one learner over the processes of another one."""

    def __init__(self, transport, hosts, number: int) -> None:
        self._transport, self._hosts, self._number = transport, hosts, number

    def start(self, spec: HostSpec):
        (rank,) = spec.args
        return self._hosts[rank]

    def call(self, host, method: str, *args):
        return self._transport.call(host, "ask", self._number, method, *args)

    def wait(self, calls, *, every=False, timeout=None):
        return self._transport.wait(calls, every=every, timeout=timeout)

    def get(self, call):
        return self._transport.get(call)

    def kill(self, host) -> None:
        """The processes are others' too."""


class Stage:
    """The driver's side: rank processes that stay, and learners made in them."""

    def __init__(self, transport, ranks: int, folder: Path) -> None:
        self.transport, self.ranks, self.folder = transport, ranks, folder
        self.numbers = itertools.count()
        rendezvous = f"file://{folder}/rendezvous-{ranks}"
        self.hosts = [
            transport.start(
                HostSpec(f"rank-{rank}-of-{ranks}", RankStage, (rank, ranks, rendezvous), {"OMP_NUM_THREADS": "1"})
            )
            for rank in range(ranks)
        ]

    def learner(
        self,
        model: dict,
        *,
        objective: str = "clip",
        asynchronous: bool = False,
        shape=None,
        reference: schema.ReferenceSection | None = None,
        teachers: dict | None = None,
        **settings,
    ):
        number = next(self.numbers)
        made = (number, model, settings, objective, shape or Shape(self.ranks), reference)
        self.all("make", *made, **(teachers or {}))
        staged = Staged(self.transport, self.hosts, number)
        specs = [HostSpec(f"rank-{rank}", RankStage, (rank,)) for rank in range(self.ranks)]
        hosts = LearnerHosts(staged, specs, schema.LearnerSection(**settings).timeout)
        group = LearnerDriver(hosts, by_folder(self.folder / f"weights-{number}"), asynchronous=asynchronous)
        group.number = number
        return group

    def all(self, method: str, *args, **named):
        calls = [self.transport.call(host, "named", method, args, named) for host in self.hosts]
        return [self.transport.get(call) for call in calls]

    def together(self, function, *args, **options):
        """Return statistics of all ranks, and gradients and weights of rank 0, of a function such as ``sharded``."""
        answers = self.all("run", partial(function, **options), *args)
        return merge(stats for stats, _, _ in answers), answers[0][1], answers[0][2]


@contextmanager
def open_stages(folder: Path) -> Iterator[Callable[[int], Stage]]:
    """Sets of so many ranks, started when a test wants them; one alone lives in this process."""
    transport, made = ForkedTransport(folder / "output"), {}

    def stage(ranks: int) -> Stage:
        if ranks not in made:
            made[ranks] = Stage(InlineTransport() if ranks == 1 else transport, ranks, folder)
        return made[ranks]

    try:
        yield stage
    finally:
        transport.close()
        if dist.is_initialized():
            dist.destroy_process_group()
