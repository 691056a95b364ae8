"""A frozen model beside the policy, which judges the tokens that the policy made (``algorithm.teacher``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dapo.errors import LearnerError
from dapo.learner.forward import ForwardPasses
from dapo.models.packing import PackedBatch
from dapo.types.batch import TokenRow


@dataclass(eq=False)
class Teacher(ForwardPasses):
    """A model that computes log-probabilities and nothing else; its parameters are frozen.

    Args:
        offload: Keep the weights in the CPU's memory between passes. A sharded model is loaded so.
    """

    offload: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loaded.model.requires_grad_(False)
        self.offload = self.offload and self.sharding is None
        if self.offload:
            self.loaded.model.to("cpu")

    @contextmanager
    def at_work(self) -> Iterator[Teacher]:
        """Have the weights on the device meanwhile."""
        if self.offload:
            self.loaded.model.to(self.loaded.device)
        try:
            yield self
            self.release()
        finally:
            if self.offload:
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
