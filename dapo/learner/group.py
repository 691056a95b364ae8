"""The driver's side of a learner over ranks: plans for all, sends each its share, puts together what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo.config import schema
from dapo.contracts.handle import Done, Handle
from dapo.contracts.remote import HostSpec, Transport
from dapo.contracts.stats import merge
from dapo.contracts.types import FloatArray, HasTokens, Learned, LearnStep, Of, SavedFile, Ticket
from dapo.learner.hosts import LearnerHosts, Pending
from dapo.learner.plan import Pass, check_in_step, plan_passes, plan_step
from dapo.models.checksum import together
from dapo.models.weights import WeightFolder


class LearnerGroup:
    """A learner (``dapo.contracts.protocols.Learner``) of several ranks.

    Args:
        transport: on which the ranks live.
        specs: one for each rank, in order; what they make is a ``dapo.learner.rank.Rank``.
        settings: the recipe's ``learner`` section.
        weights_folder: through which weights are published.
        asynchronous: write checkpoints while training goes on.
        meeting: what has to live as long as the ranks do: where they met.

    Raises:
        LearnerLost: a rank could not be started.
        DapoError: what the ranks raised: a model that cannot be loaded, say.
    """

    def __init__(
        self,
        transport: Transport,
        specs: Sequence[HostSpec],
        settings: schema.Learner,
        weights_folder: Path,
        *,
        asynchronous: bool = False,
        meeting: object = None,
    ) -> None:
        self._meeting = meeting
        self.settings, self._asynchronous = settings, asynchronous
        self._folder = WeightFolder(weights_folder)
        self._saving: _Saving | None = None
        self._hosts = LearnerHosts(transport, specs, settings.timeout)
        self.ranks, self.facts = self._hosts.ranks, self._hosts.facts

    def learn(self, step: LearnStep) -> Handle[Learned]:
        """A whole training step: each rank gets its own rows and passes, in one message.

        Raises:
            LearnerError: by ``result``: too many gradients in a row were not finite.
            LearnerLost: by ``result``: a rank was lost, failed or gave no sign.
        """
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
        """Every rank writes its slices into one new folder; no rank waits for another.

        Raises:
            EngineError: they cannot be written.
        """
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
            return self._hosts.each("save", [(folder,)] * self.ranks, _files)
        self._hosts.ask("save", folder, True)
        self._saving = _Saving(self._hosts)
        return self._saving

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, here, over another number of ranks, or in one process.

        Raises:
            CheckpointError: it is incomplete or belongs to another model; no rank has changed anything.
        """
        self._hosts.ask("check", folder)
        self._hosts.ask("load", folder)

    def export(self, folder: Path) -> None:
        """A Hugging Face folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load."""
        self._hosts.ask("export", folder)

    def close(self) -> None:
        """End the ranks; what they are writing is finished first. Delete published weights."""
        self._hosts.close()
        self._folder.clear()


class _Saving:
    """A checkpoint that is written while training goes on."""

    def __init__(self, hosts: LearnerHosts) -> None:
        self._hosts = hosts
        self._asked: Pending[bool] | None = None
        self._files: list[SavedFile] | None = None

    def done(self) -> bool:
        """Whether every rank has written its part. The ranks answer behind what they do; the asker does not wait."""
        if self._files is not None:
            return True
        if self._asked is None:
            self._asked = self._hosts.each("is_saved", [()] * self._hosts.ranks, all)
        if not self._asked.done():
            return False
        found, self._asked = self._asked.result(), None
        return found

    def result(self, timeout: float | None = None) -> list[SavedFile]:
        """The files, waited for."""
        if self._files is None:
            self._files = self._hosts.each("saved", [()] * self._hosts.ranks, _files).result(timeout)
        return self._files


def _learned(answers: Sequence[Any]) -> Learned:
    """Sums of all ranks; traces by minibatch, then by rank."""
    minibatches = zip(*(traces for _, traces in answers), strict=True)
    return Learned(
        merge(stats for stats, _ in answers),
        [trace for parts in minibatches for own in parts for trace in own],
    )


def _files(answers: Sequence[list[SavedFile]]) -> list[SavedFile]:
    return [file for files in answers for file in files]


def _renumbered(passes: Sequence[Pass], own: Sequence[int]) -> list[Pass]:
    place = {number: index for index, number in enumerate(own)}
    return [Pass(tuple(place[number] for number in one.rows), one.backward) for one in passes]
