"""The driver's side of a learner: plans for all workers, sends each its share, puts together what they say.

One worker of this process is called directly. Workers of other processes are asked over a transport, so that the driver
hands out the engines' turns while they compute. Either way the worker does the same, so it computes the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dapo.learner.hosts import PendingSave, Workers, all_files
from dapo.learner.plan import Pass, check_in_step, efficiency, plan_passes, plan_step
from dapo.metrics.stats import Stats, merge
from dapo.models.checksum import together
from dapo.types.batch import FloatArray, Learned, LearnStep, Of, SavedFile, Ticket, TokenRow
from dapo.types.protocols import Handle, ProcessState
from dapo.weights.exchange import WeightExchange

T = TypeVar("T")


class LearnerDriver:
    """A learner (``dapo.types.protocols.Learner``) of one worker or several.

    Args:
        workers: that do the work.
        exchange: through which weights are published; None: engines of this process read the very tensors.
        asynchronous: write checkpoints while training goes on.
        rendezvous: where the workers find each other; closed after them.

    Attributes:
        workers: as given.
        notes: what a person should know of the workers' model, each once.
        exchange: as given.
    """

    def __init__(
        self,
        workers: Workers,
        exchange: WeightExchange | None = None,
        *,
        asynchronous: bool = False,
        rendezvous: ExitStack | None = None,
    ) -> None:
        self.workers, self._asynchronous = workers, asynchronous
        self._rendezvous = rendezvous or ExitStack()
        self._facts = workers.facts[0]
        self._sharing = self._facts.context_parallel  # workers that get the same rows
        self.exchange = exchange or WeightExchange()
        self.exchange.open(workers, self._facts.names)
        self.notes = tuple(dict.fromkeys(note for facts in workers.facts for note in facts.notes))

    def learn(self, step: LearnStep) -> Handle[Learned]:
        """Begin a whole training step: each worker gets its rows and passes, in one message.

        Neighbours that share rows get the same ones. Rows in which no token carries loss are not computed at all.

        Raises:
            LearnerError: by ``result``: too many gradients in a row were not finite.
            LearnerLost: by ``result``: a worker was lost, failed or gave no sign.
        """
        self.exchange.moved()
        plans = plan_step(
            step,
            self._facts.microbatch_tokens,
            ranks=self.workers.ranks // self._sharing,
            packed=self._facts.packed,
            zero_advantage_is_free=self._facts.zero_advantage_is_free,
            attention=self._facts.attention,
            whole_responses=self._facts.whole_responses,
        )
        waiting = efficiency(plans, packed=self._facts.packed, attention=self._facts.attention)
        return self.workers.each("learn", [(plan,) for plan in self._shared(plans)], partial(_learned, waiting))

    def logprobs(self, rows: Sequence[TokenRow], of: Of = "policy") -> Handle[list[FloatArray]]:
        """Ask for the log-probability of every response token under the present weights, in the order of ``rows``.

        Raises:
            LearnerError: by ``result``: of a reference or a teacher, where there is none.
        """
        facts = self._facts
        ranks = self.workers.ranks // self._sharing
        planned = plan_passes(
            rows,
            facts.microbatch_tokens,
            ranks=ranks,
            packed=facts.packed and of not in facts.padded,
            attention=facts.attention,
        )
        check_in_step(planned)
        own = [sorted(number for one in passes for number in one.rows) for passes in planned]

        def in_order(answers: Sequence[list[FloatArray]]) -> list[FloatArray]:
            found: dict[int, FloatArray] = {}
            for mine, answer in zip(own, answers[:: self._sharing], strict=True):
                found.update(zip(mine, answer, strict=True))
            return [found[number] for number in range(len(rows))]

        asked = [
            ([rows[n] for n in mine], _renumbered(passes, mine), of) for mine, passes in zip(own, planned, strict=True)
        ]
        return self.workers.each("logprobs", self._shared(asked), in_order)

    def rounding(self, rows: Sequence[TokenRow]) -> FloatArray | None:
        """Return how far rounding moves the tokens of ``rows``; None where that cannot be measured."""
        if self.workers.ranks > 1:
            return None
        found: Handle[FloatArray | None] = self.workers.each("rounding", [(rows,)], lambda answers: answers[0])
        return found.result()

    def processes(self) -> list[ProcessState]:
        """Return the workers' own processes as they are now, with their calls since this was asked last."""
        return self.workers.processes()

    def _shared(self, parts: Sequence[T]) -> list[T]:
        """Return one part for each worker: neighbours that share rows get the same one."""
        return [part for part in parts for _ in range(self._sharing)]

    def publish(self, version: int) -> Ticket:
        """Hand out the present weights by the route of the exchange.

        Raises:
            EngineError: they cannot be written or carried.
        """
        return self.exchange.publish(version)

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Return those of the named weights, added up from the slices where they lie; see the protocol."""
        shares = self.workers.ask("checksums", dict(dtypes))
        return {name: together(share[name] for share in shares) for name in dtypes if name in shares[0]}

    def save(self, folder: Path) -> Handle[list[SavedFile]]:
        """Have each worker write what it holds: ``load`` restores it to the bit.

        Where it is asynchronous, the tensors are copied when this returns, and written one checkpoint after another.
        """
        if not self._asynchronous:
            return self.workers.each("save", [(folder,)] * self.workers.ranks, all_files)
        self.workers.ask("save", folder, True)
        return PendingSave(self.workers)

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, of any number of workers.

        Raises:
            CheckpointError: it is incomplete or belongs to another model; no worker has changed anything.
        """
        self.workers.ask("check", folder)
        self.workers.ask("load", folder)

    def close(self) -> None:
        """End the workers; what they are writing is finished first. Delete published weights."""
        try:
            self.workers.close()
        finally:  # also where another Ctrl-C ends the waiting
            self._rendezvous.close()
            self.exchange.close()


def _learned(planned: Stats, answers: Sequence[Any]) -> Learned:
    """Return what the plan and all workers say together; traces by minibatch, then by worker."""
    minibatches = zip(*(traces for _, traces in answers), strict=True)
    return Learned(
        merge([planned, *(stats for stats, _ in answers)]),
        [trace for parts in minibatches for own in parts for trace in own],
    )


def _renumbered(passes: Sequence[Pass], own: Sequence[int]) -> list[Pass]:
    place = {number: index for index, number in enumerate(own)}
    return [Pass(tuple(place[number] for number in one.rows), one.backward) for one in passes]
