"""The driver's side of a learner over ranks: plans for all, sends each its share, puts together what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dapo.config import schema
from dapo.learner.hosts import LearnerHosts, Saving, all_files
from dapo.learner.plan import Pass, check_in_step, plan_passes, plan_step
from dapo.learner.publisher import Audience, Publisher
from dapo.metrics.stats import merge
from dapo.models.checksum import together
from dapo.models.weights import WeightFolder
from dapo.processes.transport import HostSpec, Transport
from dapo.types.batch import FloatArray, HasTokens, Learned, LearnStep, Of, SavedFile, Ticket
from dapo.types.protocols import Done, Handle


class LearnerGroup:
    """A learner (``dapo.types.protocols.Learner``) of several ranks.

    Args:
        transport: on which the ranks live.
        specs: one for each rank, in order; what they make is a ``dapo.learner.rank.Rank``.
        settings: the recipe's ``learner`` section.
        weights_folder: through which weights are published.
        asynchronous: write checkpoints while training goes on.
        meeting: where the ranks meet, which has to live as long as they do: closed behind them; where they do not
            start, by the caller.
        audience: the engines, and the route to them; None: through a folder.

    Raises:
        LearnerLost: a rank could not be started.
        DapoError: what the ranks raised: a model that cannot be loaded, say.

    Attributes:
        notes: what a person should know of the ranks' model, each once.
        publisher: of its weights, also for engines that come late.
    """

    def __init__(
        self,
        transport: Transport,
        specs: Sequence[HostSpec],
        settings: schema.Learner,
        weights_folder: Path,
        *,
        asynchronous: bool = False,
        meeting: ExitStack | None = None,
        audience: Audience | None = None,
    ) -> None:
        self._meeting = meeting or ExitStack()
        self.settings, self._asynchronous = settings, asynchronous
        self._folder = WeightFolder(weights_folder)
        self._saving: Saving | None = None
        self._hosts = LearnerHosts(transport, specs, settings.timeout)
        self.ranks, self.facts = self._hosts.ranks, self._hosts.facts
        self._audience = audience or Audience()
        self.publisher = Publisher(self._hosts, self.facts[0].names, self._in_folder, self._audience)
        self.notes = tuple(dict.fromkeys(note for rank in self.facts for note in rank.notes))

    def learn(self, step: LearnStep) -> Handle[Learned]:
        """A whole training step: each rank gets its own rows and passes, in one message.

        Raises:
            LearnerError: by ``result``: too many gradients in a row were not finite.
            LearnerLost: by ``result``: a rank was lost, failed or gave no sign.
        """
        self.publisher.moved()
        plans = plan_step(
            step,
            self.settings.microbatch_tokens,
            ranks=self.ranks,
            packed=self.facts[0].packed,
            zero_advantage_is_free=self.facts[0].zero_advantage_is_free,
        )
        return self._hosts.each("learn", [(plan,) for plan in plans], _learned)

    def logprobs(self, rows: Sequence[HasTokens], of: Of = "policy") -> Handle[list[FloatArray]]:
        """Log-probability of every response token under the present weights, in the order of ``rows``."""
        if not rows:
            return Done([])
        planned = plan_passes(rows, self.settings.microbatch_tokens, ranks=self.ranks, packed=self.facts[0].packed)
        check_in_step(planned)
        own = [sorted(number for one in passes for number in one.rows) for passes in planned]

        def in_order(answers: Sequence[list[FloatArray]]) -> list[FloatArray]:
            found: dict[int, FloatArray] = {}
            for mine, answer in zip(own, answers, strict=True):
                found.update(zip(mine, answer, strict=True))
            return [found[number] for number in range(len(rows))]

        asked = [
            ([rows[n] for n in mine], _renumbered(passes, mine), of) for mine, passes in zip(own, planned, strict=True)
        ]
        return self._hosts.each("logprobs", asked, in_order)

    def publish(self, version: int) -> Ticket:
        """By the route of the audience. Through a folder every rank writes its slices; no rank waits for another.

        Raises:
            EngineError: they cannot be written.
        """
        return self.publisher.publish(version)

    def _in_folder(self, version: int) -> Ticket:
        if not self._audience.deletes:
            self._folder.keep_newest()
        folder = self._folder.new(version)
        self._hosts.ask("publish", folder)
        return Ticket(version, "folder", str(folder), self.facts[0].names)

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Of the named weights, added up from the slices where they lie; see the protocol."""
        shares = self._hosts.ask("checksums", dict(dtypes))
        return {name: together(share[name] for share in shares) for name in dtypes if name in shares[0]}

    def save(self, folder: Path) -> Handle[list[SavedFile]]:
        """Each rank writes what it holds. Where it is asynchronous, the tensors are copied when this returns."""
        if not self._asynchronous:
            return self._hosts.each("save", [(folder,)] * self.ranks, all_files)
        self._hosts.ask("save", folder, True)
        self._saving = Saving(self._hosts)
        return self._saving

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, here, over another number of ranks, or in one process.

        Raises:
            CheckpointError: it is incomplete or belongs to another model; no rank has changed anything.
        """
        self._hosts.ask("check", folder)
        self._hosts.ask("load", folder)

    def close(self) -> None:
        """End the ranks; what they are writing is finished first. Delete published weights."""
        try:
            self._hosts.close()
        finally:  # also where another Ctrl-C ends the waiting
            self._meeting.close()
            self._folder.clear()


def _learned(answers: Sequence[Any]) -> Learned:
    """Sums of all ranks; traces by minibatch, then by rank."""
    minibatches = zip(*(traces for _, traces in answers), strict=True)
    return Learned(
        merge(stats for stats, _ in answers),
        [trace for parts in minibatches for own in parts for trace in own],
    )


def _renumbered(passes: Sequence[Pass], own: Sequence[int]) -> list[Pass]:
    place = {number: index for index, number in enumerate(own)}
    return [Pass(tuple(place[number] for number in one.rows), one.backward) for one in passes]
