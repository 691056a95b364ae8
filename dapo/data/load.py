"""From the recipe's data section to prompts, with a report of everything that was left out and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from dapo.config.check_data import source_name
from dapo.config.schema import Data, DataSource, TrainSource
from dapo.data.answers import Answers
from dapo.data.conversations import SYSTEM
from dapo.data.formats import RawProblem, to_problems
from dapo.data.leaks import SharedProblems, not_held_out, overlap_key
from dapo.data.mixture import LEVEL, MixturePart
from dapo.data.readers import read_records
from dapo.data.render import make_prompts
from dapo.data.tasks import make_problems
from dapo.data.values import reads_as_nothing
from dapo.errors import DataError
from dapo.types.batch import Prompt, content_id
from dapo.words import counted

_SHOWN = 20  # conflicts that the console lists
_MANY = 0.2  # of a source's problems: if more are not used, the user should look
MANY_PASSES = 100
"""Passes over the training prompts that are doubted; the paper's run makes about 10."""
FEW_HELD_OUT = 30
"""Problems of a held-out set below which it is doubted: an accuracy of 50 % is then uncertain by 18 points."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """One problem that a set holds with several answers."""

    problem: str
    answers: tuple[str, ...]
    rows: tuple[str, ...]  # where each answer stands


@dataclass(slots=True)
class SourceReport:
    """Counts of one source's problems."""

    name: str
    read: int = 0  # problems in the source
    unanswered: int = 0  # records that should have an answer and have none; passed over
    first_unanswered: str = ""  # where the first of them stands
    odd_answers: int = 0  # gold answers such as "nan", which were most likely missing once
    first_odd: str = ""  # the first of them, and where it stands
    repeats: int = 0  # same problem and answer as an earlier one; dropped from files, kept in procedural tasks
    repeats_dropped: bool = True
    in_validation: int = 0  # taken out of training because they stand in a validation set
    worked: str = ""  # the field of worked solutions whose results are the answers
    in_few_shot: int = 0  # taken out because they are solved in ``few_shot``, which every prompt holds
    overlong: int = 0  # prompts over ``max_prompt_tokens``, dropped
    prompts: int = 0  # what is left
    longest: int = 0  # tokens of the longest prompt that is left

    def sentence(self) -> str:
        """One line for the console."""
        parts = [f"{self.name}: {self.prompts:,} prompts of {self.read:,} problems, longest {self.longest} tokens"]
        if self.worked:
            parts.append(f"answers are the results marked in `{self.worked}`")
        if self.unanswered:
            parts.append(f"{self.unanswered:,} records without an answer passed over (first: {self.first_unanswered})")
        if self.odd_answers:
            parts.append(f"{self.odd_answers:,} gold answers read like a missing value (first: {self.first_odd}); kept")
        if self.repeats:
            parts.append(f"{self.repeats:,} repeats {'dropped' if self.repeats_dropped else 'kept (procedural)'}")
        if self.in_validation:
            parts.append(f"{self.in_validation:,} taken out because they are in validation")
        if self.in_few_shot:
            parts.append(f"{self.in_few_shot:,} taken out because they are in data.few_shot")
        if self.overlong:
            parts.append(f"{self.overlong:,} over-long prompts dropped")
        return "; ".join(parts)

    def doubt(self) -> str | None:
        """Return a warning if more than a fifth of the problems is not used, repeats apart."""
        lost = self.unanswered + self.in_validation + self.in_few_shot + self.overlong
        if lost <= _MANY * (self.read + self.unanswered):
            return None
        return (
            f"{lost:,} of {self.read + self.unanswered:,} problems are not used. {self.sentence()}. Correct the source "
            "or raise data.max_prompt_tokens"
        )


@dataclass(slots=True)
class DataReport:
    """Counts of all data."""

    train: list[SourceReport] = field(default_factory=list)
    validation: list[SourceReport] = field(default_factory=list)
    overlap: dict[str, SharedProblems] = field(default_factory=dict)  # by validation set
    conflicts: list[Conflict] = field(default_factory=list)  # in the training data, all sources together

    def doubts(self) -> list[str]:
        """Return a warning for each source that lost many of its problems."""
        return [doubt for source in (*self.train, *self.validation) if (doubt := source.doubt())]

    def lines(self, *, training: bool = True) -> list[str]:
        """Lines for the console; without ``training`` those of the validation sets alone."""
        if not training:
            return [f"validation  {source.sentence()}" for source in self.validation]
        lines = [f"training    {source.sentence()}" for source in self.train]
        lines += [f"validation  {source.sentence()}" for source in self.validation]
        for name, shared in self.overlap.items():
            lines += shared.lines(name)
        if self.conflicts:
            lines.append(
                f"conflicts   {len(self.conflicts):,} training problems stand with several answers; each is kept"
            )
        lines += [
            f"  {' / '.join(c.answers)} for {c.problem[:60]!r} ({'; '.join(c.rows)})" for c in self.conflicts[:_SHOWN]
        ]
        if len(self.conflicts) > _SHOWN:
            lines.append(f"  ... and {len(self.conflicts) - _SHOWN:,} more")
        return lines


@dataclass(slots=True)
class PreparedData:
    """Prompts to train on, prompts to evaluate on by set, and the report."""

    train: list[Prompt]
    validation: dict[str, list[Prompt]]
    report: DataReport
    parts: list[MixturePart] = field(default_factory=list)  # of a mixture: the training prompts by source and level


def many_passes(steps: int, prompts_per_step: int, prompts: int) -> str | None:
    """Return a doubt about a run that takes each of its training prompts many times; None if it does not."""
    passes = steps * prompts_per_step / prompts
    if passes <= MANY_PASSES:
        return None
    return (
        f"the run passes {passes:,.0f} times over its {counted(prompts, 'training prompt')}, which it learns by heart"
    )


def few_held_out(problems: Mapping[str, float]) -> str | None:
    """Return a doubt about small held-out sets; None if there is none.

    Args:
        problems: by set, how many of it an evaluation asks.
    """
    small = [f"{name} has {counted(count, 'problem')}" for name, count in problems.items() if 0 < count < FEW_HELD_OUT]
    return f"of the held-out sets, {', '.join(small)}: an accuracy on so few is mostly chance" if small else None


def load_problems(source: DataSource, answers: Answers = Answers.COMPARED) -> list[RawProblem]:
    """All problems of a source (the first ``size`` of them). Records whose answer is null or empty are passed over,
    unless ``answers`` says that no reward reads it.

    Raises:
        DataError: a missing or malformed file, an unknown task, or no problem at all.
    """
    return _load(source, answers)[0]


def _load(source: DataSource, answers: Answers) -> tuple[list[RawProblem], list[str]]:
    """Return the problems of a source, and the places of records that have no answer."""
    problems: Iterable[RawProblem]
    unanswered: list[str] = []
    if source.task is not None:
        problems = make_problems(source.task, source.options, source.seed, source.size)
    else:
        records = read_records(str(source.path), source.split)
        problems = islice(to_problems(records, source.format, source.fields, unanswered, answers), source.size)
    loaded = list(problems)
    if not loaded:
        without = f" with an answer ({len(unanswered)} without, the first: {unanswered[0]})" if unanswered else ""
        raise DataError(f"{source.path or source.task} holds no problem{without}")
    return loaded, unanswered


def find_conflicts(problems: Iterable[RawProblem]) -> list[Conflict]:
    """Return problems that a set holds with more than one answer, in order of their first appearance."""
    answers: dict[str, dict[str, RawProblem]] = {}
    for problem in problems:
        answers.setdefault(content_id(problem.words), {}).setdefault(problem.answer, problem)
    return [
        Conflict(next(iter(by.values())).problem, tuple(by), tuple(p.row for p in by.values()))
        for by in answers.values()
        if len(by) > 1
    ]


def prepare(
    data: Data,
    tokenizer: Any,
    *,
    answers: Mapping[str, Answers] | None = None,
    ask: bool = True,
    keep_chat: bool = False,
) -> PreparedData:
    """Load, clean, render and tokenise everything the recipe names.

    Repeats (same text and answer) in files are dropped, so that an epoch is one pass over distinct problems; a
    procedural task keeps them, because they belong to its distribution. A problem with several answers is kept with
    each of them and reported. Training problems that are in a validation set are taken out of training.

    Args:
        data: the recipe's section.
        tokenizer: an object with ``__call__`` and ``apply_chat_template`` as transformers' tokenizers have.
        answers: what rewards do with the gold answers of each source (``answers_read``); None: they compare with them.
        ask: a chat template asks for the model's turn at the end of a prompt; False: an environment speaks first.
        keep_chat: prompts hold the messages of which a chat template made them.

    Raises:
        DataError: unreadable data, prompts over the limit with ``overlong_prompts: refuse``, or nothing left to train
            on.
    """
    report = DataReport()
    shown = {overlap_key(shot.problem) for shot in data.few_shot}
    validation: dict[str, list[Prompt]] = {}
    held_out: dict[str, tuple[str, str]] = {}  # overlap key -> name of the validation set, and the problem
    for source in data.validation:
        name = source_name(source)
        problems, entry = _clean(source, shown, answers)
        validation[name] = _finish(problems, entry, data, tokenizer, ask, keep_chat)
        report.validation.append(entry)
        report.overlap[name] = SharedProblems()
        held_out.update((overlap_key(problem.words), (name, problem.words)) for problem in problems)

    train: list[Prompt] = []
    seen: set[tuple[str, ...]] = set()  # a mixture of files may hold a problem twice
    met: set[str] = set()
    from_files: list[RawProblem] = []
    parts: list[MixturePart] = []
    for source, level in _levels(data.train):
        problems, entry = _clean(source, shown, answers, seen)
        kept = not_held_out(problems, held_out, report.overlap, met)
        entry.in_validation = len(problems) - len(kept)
        made = _finish([_of_level(problem, level) for problem in kept], entry, data, tokenizer, ask, keep_chat)
        train += made
        if level is not None:
            entry.name += f", level {level}"
        if level in (None, 1):
            parts.append(MixturePart(source_name(source), source.weight or 1.0, [made]))
        else:
            parts[-1].levels_L.append(made)
        report.train.append(entry)
        if source.task is None:  # a procedural task may ask one question of different hidden data
            from_files += kept
    report.conflicts = find_conflicts(from_files)
    if not train:
        raise DataError("no training prompt is left:\n" + "\n".join(report.lines()))
    mixed = any(source.weight is not None or source.levels for source in data.train)
    return PreparedData(train, validation, report, parts if mixed else [])


def _levels(sources: Iterable[TrainSource]) -> Iterator[tuple[TrainSource, int | None]]:
    """Each source, or each level of it (from 1) as a source with options of its own."""
    for source in sources:
        if not source.levels:
            yield source, None
        for number, options in enumerate(source.levels, start=1):
            yield source.model_copy(update={"options": {**source.options, **options}}), number


def _of_level(problem: RawProblem, level: int | None) -> RawProblem:
    return problem if level is None else replace(problem, extra={**problem.extra, LEVEL: level})


def _identity(problem: RawProblem) -> tuple[str, ...]:
    """Return what makes a problem a repeat. Without an answer the task may be in ``extra``, so that counts too."""
    system = [message["content"] for message in problem.messages if message["role"] in SYSTEM]
    key = (content_id(problem.words), problem.answer, *system)
    return key if problem.answer else (*key, repr(sorted(problem.extra.items())))


def _clean(
    source: DataSource,
    shown: set[str],
    answers: Mapping[str, Answers] | None,
    seen: set[tuple[str, ...]] | None = None,
) -> tuple[list[RawProblem], SourceReport]:
    """``shown``: what every prompt holds with its solution; ``seen``: problems of the sources before."""
    problems, unanswered = _load(source, (answers or {}).get(source_name(source), Answers.COMPARED))
    procedural = source.task is not None
    entry = SourceReport(
        source_name(source),
        read=len(problems),
        unanswered=len(unanswered),
        first_unanswered=next(iter(unanswered), ""),
        repeats_dropped=not procedural,
        worked=next((problem.worked for problem in problems if problem.worked), ""),
    )
    odd = [] if procedural else [problem for problem in problems if reads_as_nothing(problem.answer)]
    if odd:
        entry.odd_answers, entry.first_odd = len(odd), f"{odd[0].answer!r}, {odd[0].row}"
    seen = set() if seen is None else seen
    kept = []
    for problem in problems:
        if shown and overlap_key(problem.words) in shown:
            entry.in_few_shot += 1
            continue
        identity = _identity(problem)
        if identity in seen:
            entry.repeats += 1
            if not procedural:
                continue
        seen.add(identity)
        kept.append(problem)
    return kept, entry


def _finish(
    problems: Sequence[RawProblem], entry: SourceReport, data: Data, tokenizer: Any, ask: bool, keep_chat: bool
) -> list[Prompt]:
    prompts = make_prompts(problems, entry.name, data, tokenizer, ask=ask, keep_chat=keep_chat)
    limit = data.max_prompt_tokens
    kept = [prompt for prompt in prompts if len(prompt.token_ids) <= limit]
    entry.overlong = len(prompts) - len(kept)
    if entry.overlong and data.overlong_prompts == "refuse":
        rows = [p.row for p, q in zip(problems, prompts, strict=True) if len(q.token_ids) > limit]
        raise DataError(
            f"{entry.name}: {entry.overlong} prompts are longer than `data.max_prompt_tokens: {limit}` (the longest "
            f"has {max(len(p.token_ids) for p in prompts)} tokens; the first is {rows[0]}); raise the limit, or set "
            "`data.overlong_prompts: drop`"
        )
    entry.prompts = len(kept)
    entry.longest = max((len(prompt.token_ids) for prompt in kept), default=0)
    return kept
