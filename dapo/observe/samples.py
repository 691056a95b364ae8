"""RUN/samples.jsonl: what the policy answered to a few validation problems, at every evaluation.

The same problems each time, so that a reader can put the answers before and after training side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dapo.errors import DataError
from dapo.observe.jsonl import JsonlWriter, read_jsonl


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to one validation problem."""

    step: int
    set: str  # validation set
    prompt_id: str  # content hash of the problem
    prompt: str
    answer: str  # gold
    response: str
    accuracy: float | None  # None: unknown, ``unscored`` says why
    length: int  # tokens
    truncated: bool
    greedy: bool
    unscored: str | None = None  # why a verifier failed on it: that of the accuracy, or (accuracy known) another
    problem: str = ""  # without the template that ``prompt`` has around it


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Append the samples of one evaluation."""
    with JsonlWriter(path) as file:
        file.append(*(asdict(sample) for sample in samples))
        file.sync()


def read_samples(path: Path) -> list[Sample]:
    """All samples in order of writing; [] when none were written.

    Raises:
        DataError: a line lacks a field or has one too many.
    """
    try:
        return [Sample(**record) for record in read_jsonl(path)]
    except TypeError as error:
        raise DataError(f"{path} holds a line that is no sample: {error}") from None


def before_and_after(samples: Sequence[Sample], count: int = 3, *, lost: bool = False) -> list[tuple[Sample, Sample]]:
    """Responses of the first and the last step to the same problems, those that gained most first.

    Each problem once: of its sampled and greedy responses the pair that gained most. With ``lost`` those that lost
    most, and only those that did.
    """
    if not samples or samples[0].step == samples[-1].step:
        return []
    first, last = min(s.step for s in samples), max(s.step for s in samples)
    before = {(s.set, s.prompt_id, s.greedy): s for s in reversed(samples) if s.step == first}
    after = {(s.set, s.prompt_id, s.greedy): s for s in reversed(samples) if s.step == last}
    pairs = [(before[key], after[key]) for key in reversed(before) if key in after]
    best: dict[tuple[str, str], tuple[Sample, Sample]] = {}
    for pair in sorted(pairs, key=lambda pair: gain(*pair) if lost else -gain(*pair)):
        best.setdefault((pair[0].set, pair[0].prompt_id), pair)
    return [pair for pair in best.values() if not lost or gain(*pair) < 0][:count]


def gain(before: Sample, after: Sample) -> float:
    """Accuracy that was won; an unknown one counts as 0."""
    return (after.accuracy or 0.0) - (before.accuracy or 0.0)
