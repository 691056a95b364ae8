"""Training prompts of a run: RUN/prompts.parquet, and the history in its checkpoints as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dapo.algorithms.variants.greso import Greso
from dapo.errors import CheckpointError, DataError
from dapo.observe.parquet import read_parquet
from dapo.observe.tables import repeated, table_of, texts, write_table_file
from dapo.types.batch import BoolArray, IntArray, Prompt
from dapo.types.codec import from_tree
from dapo.types.enums import Verdict

SCHEMA = pa.schema(
    [
        ("id", pa.string()),  # content hash, the same as ``prompt_id`` in rollouts/
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("problem", pa.string()),
        ("answer", pa.string()),  # gold
    ],
    metadata={"dapo.prompts": "1"},
)


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write the training prompts in their order (zstd). A crash at any instant leaves no half file under this name."""
    columns = {name: texts([getattr(prompt, name) for prompt in prompts]) for name in ("id", "problem", "answer")}
    columns["source"] = repeated([prompt.source for prompt in prompts], [1] * len(prompts))
    write_table_file(path, SCHEMA, [table_of(SCHEMA, columns)])


def read_prompts(path: Path) -> pa.Table:
    """Return the training prompts of a run, in their order; columns as in ``SCHEMA``.

    Raises:
        DataError: no such file, or not a file of this kind.
    """
    if not path.exists():
        raise DataError(f"no prompts at {path}. A run writes them when it starts or is resumed.")
    try:
        return read_parquet(path).select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, OSError, KeyError, ValueError, DataError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} cannot be read as prompts: {reason}. Remove it and resume the run: it is written again."
        ) from None


def read_problems(path: Path) -> dict[str, tuple[str, str, str]]:
    """Id of each training prompt -> problem as the data has it, answer and source; raises as ``read_prompts`` does."""
    table = read_prompts(path)
    ids, *texts_of = (table[name].to_pylist() for name in ("id", "problem", "answer", "source"))
    return dict(zip(ids, zip(*texts_of, strict=True), strict=True))


class Standing(StrEnum):
    """Result of a prompt's last judged group."""

    SOLVED = "solved"  # all correct
    USEFUL = "useful"  # mixed, or rejected by another rule than all correct or all wrong
    HOPELESS = "hopeless"  # all wrong
    UNJUDGED = "unjudged"  # too few scored


_STANDING = {
    Verdict.ALL_CORRECT: Standing.SOLVED,
    Verdict.ALL_WRONG: Standing.HOPELESS,
    Verdict.TOO_FEW_SCORED: Standing.UNJUDGED,
}


@dataclass(frozen=True, slots=True)
class History:
    """Every prompt that was judged, in columns of equal length [prompts seen]."""

    ids: list[str]
    visits: IntArray  # groups judged
    responses: IntArray  # voters so far
    correct: IntArray  # correct voters so far
    last_responses: IntArray  # voters of the last visit
    last_correct: IntArray
    streak: IntArray  # visits in a row without variance
    last_step: IntArray
    verdict: IntArray  # of the last visit, index into ``verdicts``
    verdicts: list[Verdict]
    size: int  # prompts in the training data
    greso: Greso

    @classmethod
    def from_state(cls, state: Any) -> History:
        """From ``state["collector"]["history"]`` of a checkpoint.

        Raises:
            CheckpointError: a column is missing, or columns differ in length.
        """
        try:
            history = from_tree(cls, state)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"the prompt history of this checkpoint cannot be read: {error}") from None
        columns = [getattr(history, name) for name in cls.__dataclass_fields__]
        if any(isinstance(one, np.ndarray) and one.shape != (len(history.ids),) for one in columns):
            raise CheckpointError("the prompt history of this checkpoint has columns of different lengths")
        if ((history.verdict < 0) | (history.verdict >= len(history.verdicts))).any():
            raise CheckpointError("the prompt history of this checkpoint holds verdicts that it does not name")
        return history

    @property
    def unseen(self) -> int:
        """Prompts of the data that were never judged."""
        return self.size - len(self.ids)

    def having(self, *verdicts: Verdict) -> BoolArray:
        """Prompts whose last visit ended with one of ``verdicts``."""
        return np.isin(self.verdict, [n for n, verdict in enumerate(self.verdicts) if verdict in verdicts])

    def standing(self, standing: Standing) -> BoolArray:
        """Prompts of one standing; the four parts make up all that were judged."""
        return self.having(*(v for v in Verdict if _STANDING.get(v, Standing.USEFUL) is standing))

    def pass_rates(self) -> NDArray[np.float64]:
        """Correct share of all voters so far; nan where none voted."""
        return _ratio(self.correct, self.responses)

    def last_pass_rates(self) -> NDArray[np.float64]:
        """Correct share of the last visit's voters; nan where none voted."""
        return _ratio(self.last_correct, self.last_responses)

    def retired(self, at: float | None) -> BoolArray:
        """Prompts that are retired from this pass rate of the last visit."""
        return np.nan_to_num(self.last_pass_rates(), nan=-1.0) >= (np.inf if at is None else at)


def _ratio(part: IntArray, whole: IntArray) -> NDArray[np.float64]:
    ratio = np.full(len(part), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio
