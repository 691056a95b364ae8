"""A frozen model beside the policy, which judges the tokens that the policy made (``algorithm.teacher``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dapo.errors import LearnerError
from dapo.learner.forward import ForwardPasses
from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch
from dapo.types.batch import TokenRow

if TYPE_CHECKING:
    from dapo.config import schema
    from dapo.learner.sharding import Sharding


class Teacher(ForwardPasses):
    """A model that computes log-probabilities and nothing else.

    Args:
        loaded: The model; its parameters are frozen.
        settings: As of ``ForwardPasses``, and so are ``temperature`` and ``sharding``.
        offload: Keep the weights in the CPU's memory between passes. A sharded model is loaded so.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: schema.LearnerSection,
        temperature: float,
        sharding: Sharding | None = None,
        *,
        offload: bool = False,
    ) -> None:
        super().__init__(loaded, settings, temperature, sharding)
        loaded.model.requires_grad_(False)
        self._offload = offload and sharding is None
        if self._offload:
            loaded.model.to("cpu")

    @contextmanager
    def at_work(self) -> Iterator[Teacher]:
        """Have the weights on the device meanwhile."""
        if self._offload:
            self.loaded.model.to(self.loaded.device)
        try:
            yield self
            self.release()
        finally:
            if self._offload:
                self.loaded.model.to("cpu")

    def _batch(self, rows: Sequence[TokenRow]) -> PackedBatch:
        """Lay the rows out.

        Raises:
            LearnerError: a token that the teacher's embedding does not have.
        """
        known = self.loaded.model.config.get_text_config().vocab_size
        largest = max(int(ids.max()) for row in rows for ids in (row.prompt_ids, row.token_ids) if len(ids))
        if largest >= known:
            raise LearnerError(
                f"the student wrote token {largest}, which is no text, and the teacher {self.loaded.name} has {known} "
                "embeddings: take a teacher with more, or a student that does not write this token"
            )
        return super()._batch(rows)
