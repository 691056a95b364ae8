"""The order in which prompts are used: shuffled anew each epoch, resumable from a state of a few numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.errors import DataError
from dapo.types.batch import Prompt


class EpochStream:
    """A ``PromptStream`` over a list: every prompt once per epoch, in an order that depends on (seed, epoch) alone."""

    def __init__(
        self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool = True, epochs: int | None = None
    ) -> None:
        """Start at the first prompt of epoch 0.

        Args:
            prompts: the data; not copied.
            seed: of the shuffling.
            shuffle: a new order each epoch; False: the order of the data, every time.
            epochs: passes over the data; None: endless.

        Raises:
            DataError: there are no prompts.
        """
        if not prompts:
            raise DataError("a prompt stream needs at least one prompt")
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._epoch = 0
        self._position = 0  # prompts taken of this epoch
        self._order = self._make_order()
        self._content = content(prompts)
        self._sources = tuple(dict.fromkeys(prompt.source for prompt in prompts))

    @property
    def progress(self) -> float:
        """Epochs, the share of the one at hand included."""
        return self._epoch + self._position / len(self._prompts)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the data sources."""
        return self._sources

    @property
    def size(self) -> int:
        """Prompts in the data."""
        return len(self._prompts)

    def take(self, n: int) -> list[Prompt]:
        """Return the next ``n`` prompts, across epochs; fewer only when the last epoch has ended."""
        taken: list[Prompt] = []
        while len(taken) < n and (self._epochs is None or self._epoch < self._epochs):
            stop = min(self._position + n - len(taken), len(self._prompts))
            taken += [self._prompts[i] for i in self._order[self._position : stop]]
            self._position = stop
            if stop == len(self._prompts):
                self._epoch += 1
                self._position = 0
                self._order = self._make_order()
        return taken

    def state(self) -> dict[str, Any]:
        """Return the position, with the identity of the data."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "content": self._content,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            DataError: the state belongs to other data, another seed or another order.
        """
        mine = self.state()
        for key, meaning in (
            ("content", "training data (number, order, rendered prompts, answers, sources, other columns)"),
            ("seed", "`run.seed`"),
            ("shuffle", "`data.shuffle`"),
        ):
            if state[key] != mine[key]:
                raise DataError(
                    f"the saved position belongs to other data: the {meaning} was {state[key]}, now it is {mine[key]}. "
                    "Resume with the data, prompt limit and seed of the first run, or start a new run"
                )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._order = self._make_order()

    def _make_order(self) -> NDArray[np.int64]:
        count = len(self._prompts)
        if not self._shuffle:
            return np.arange(count)
        # Raw counter-based bits, sorted: unlike Generator.permutation they are the same in every numpy version.
        bits = np.random.Philox(key=[self._seed % 2**64, self._epoch]).random_raw(count)
        return np.argsort(bits, kind="stable")


def content(prompts: Sequence[Prompt]) -> str:
    """16 hex digits over all that rewards and the model get of the prompts, in their order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        extra = json.dumps(dict(prompt.extra), sort_keys=True, default=repr)
        for part in (prompt.text, prompt.answer, prompt.source, extra):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        digest.update(np.asarray(prompt.token_ids, np.int64).tobytes())
    return digest.hexdigest()[:16]
