"""The learner of one process, in a process of its own: the driver is free while it computes.

It computes what ``LocalLearner`` computes, to the bit, because it is one: steps, rows and answers travel, and the
weights leave by a folder. The driver's side stands on a ``Transport`` and knows no way in particular.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.learner.hosts import LearnerHosts, Saving
from dapo.learner.local import LocalLearner
from dapo.learner.publisher import Audience, Publisher
from dapo.models.weights import model_tensors
from dapo.processes.transport import HostSpec, Transport
from dapo.types.batch import FloatArray, HasTokens, Learned, LearnStep, Meeting, Of, SavedFile, Ticket
from dapo.types.protocols import Done, Handle


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a learner says of itself once it is there."""

    notes: tuple[str, ...]  # what a person should know of its model
    names: tuple[str, ...]  # of what is published


class LearnerHost:
    """In the learner's process: what the driver asks, and answers instead of handles.

    Args:
        learner: that publishes through a folder.
    """

    def __init__(self, learner: LocalLearner) -> None:
        self._learner = learner
        self._saving: Handle[list[SavedFile]] = Done([])

    def describe(self) -> HostFacts:
        return HostFacts(self._learner.loaded.notes, tuple(model_tensors(self._learner.loaded.model)))

    def learn(self, step: LearnStep) -> Learned:
        """A training step, done."""
        return self._learner.learn(step).result()

    def logprobs(self, rows: Sequence[HasTokens], of: Of) -> list[FloatArray]:
        """Of each of ``rows``, in their order."""
        return self._learner.logprobs(rows, of).result()

    def publish(self, version: int) -> Ticket:
        """The weights, written."""
        return self._learner.publish(version)

    def send(self, meeting: Meeting) -> bool:
        """The weights, broadcast; whether every engine took part."""
        return self._learner.send(meeting)

    def lend(self) -> tuple[str, list[tuple[str, Any]]]:
        """The device, and handles of weights in its memory."""
        return self._learner.lend()

    def give_back(self) -> None:
        """Return cached device memory, before engines that share the device wake."""
        self._learner.give_back()

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Of the named weights."""
        return self._learner.checksums(dtypes)

    def save(self, folder: Path, asynchronous: bool = False) -> list[SavedFile]:
        """Write weights and optimiser state; the files, once they are there. With ``asynchronous`` none yet."""
        self._saving = self._learner.save(folder)
        return [] if asynchronous else self._saving.result()

    def is_saved(self) -> bool:
        """Whether ``saved`` would not wait."""
        return self._saving.done()

    def saved(self) -> list[SavedFile]:
        """The files of the last ``save``, waited for."""
        return self._saving.result()

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, or ranks."""
        self._learner.load(folder)

    def close(self) -> None:
        """Finish what is being written; delete published weights that no engine came for."""
        self._learner.close()


class LearnerApart:
    """The driver's side: a learner (``dapo.types.protocols.Learner``) that lives elsewhere.

    It answers its calls in their order, so a step that follows ``save`` changes nothing that is still to be written.

    Args:
        transport: on which it lives.
        spec: what it makes is a ``LearnerHost``.
        asynchronous: its learner writes checkpoints while training goes on.
        audience: the engines, and the route to them; None: through a folder.

    Raises:
        LearnerLost: its process did not start.
        DapoError: the model cannot be loaded.

    Attributes:
        notes: what a person should know of its model.
        publisher: of its weights, also for engines that come late.
    """

    def __init__(
        self, transport: Transport, spec: HostSpec, *, asynchronous: bool = False, audience: Audience | None = None
    ) -> None:
        self._asynchronous = asynchronous
        self._host = LearnerHosts(transport, [spec])
        (facts,) = self._host.facts
        self.notes: tuple[str, ...] = facts.notes
        self.publisher = Publisher(self._host, facts.names, self._in_folder, audience or Audience())
        self._published: list[Path] = []

    def learn(self, step: LearnStep) -> Handle[Learned]:
        """A whole training step, under way.

        Raises:
            LearnerError: by ``result``: too many gradients in a row were not finite.
            LearnerLost: by ``result``: its process is gone.
        """
        self.publisher.moved()
        return self._host.each("learn", [(step,)], _only)

    def logprobs(self, rows: Sequence[HasTokens], of: Of = "policy") -> Handle[list[FloatArray]]:
        """Log-probability of every response token under the present weights, in the order of ``rows``."""
        return self._host.each("logprobs", [(rows, of)], _only)

    def publish(self, version: int) -> Ticket:
        """By the route of the audience; else written to a folder of their own.

        Raises:
            EngineError: they cannot be written.
        """
        return self.publisher.publish(version)

    def _in_folder(self, version: int) -> Ticket:
        ticket: Ticket = _only(self._host.ask("publish", version))
        self._published = [*(folder for folder in self._published if folder.exists()), Path(ticket.address)]
        return ticket

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Of the named weights; see the protocol."""
        sums: dict[str, int] = _only(self._host.ask("checksums", dict(dtypes)))
        return sums

    def save(self, folder: Path) -> Handle[list[SavedFile]]:
        """Weights, optimiser state and the count of skipped steps, in the files of ``LocalLearner``."""
        if self._asynchronous:
            self._host.ask("save", folder, True)
            return Saving(self._host)
        return self._host.each("save", [(folder,)], _only)

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, here or anywhere.

        Raises:
            CheckpointError: the folder is incomplete, or belongs to another model; nothing has changed.
        """
        self._host.ask("load", folder)

    def close(self) -> None:
        """End it. Delete published weights, also of one that was killed."""
        self._host.close()
        for folder in self._published:
            shutil.rmtree(folder, ignore_errors=True)


def _only(answers: Sequence[Any]) -> Any:
    (answer,) = answers
    return answer
