"""From records to problems: named layouts of the public sets, and ``plain`` with a field mapping."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dapo.data.messages import Message, dialogue, read_messages, without_system
from dapo.data.readers import Located, Record
from dapo.data.values import answer_text, as_json, check_text, is_missing, plain_text
from dapo.errors import DataError


@dataclass(frozen=True, slots=True)
class RawProblem:
    """One problem before rendering."""

    problem: str  # the raw text; of a conversation its last message
    answer: str  # the gold answer as text; "" where the verifier needs none
    extra: Mapping[str, Any] = field(default_factory=dict)  # all other columns, for the verifier
    row: str = ""  # where it came from, for messages: "data.jsonl, line 7"
    messages: tuple[Message, ...] = ()  # of a conversation; empty where the problem is all that is asked
    conversational: bool = False  # the row held messages, be it one

    @property
    def words(self) -> str:
        """Text that identifies a problem: its own, or all of a conversation before the response."""
        spoken = without_system(self.messages)
        return dialogue(spoken) if len(spoken) > 1 else self.problem


@dataclass(frozen=True, slots=True)
class Format:
    """A named record layout.

    The first of the ``problem`` (``answer``) paths that a record holds is taken; a dot descends into an object.
    """

    problem: tuple[str, ...]
    answer: tuple[str, ...]
    read_answer: Callable[[Any], str] | None = None


def gsm8k_answer(value: Any) -> str:
    """Return the result after the final ``####`` of a worked solution, without thousands commas."""
    _, mark, result = plain_text(value).rpartition("####")
    if not mark:
        raise ValueError("a GSM8K answer ends with '#### result', and this one has no '####'")
    return result.strip().replace(",", "")


def whole_number_answer(value: Any) -> str:
    r"""Return an answer without a degree sign or a trailing ``.0``: ``336^\circ`` is 336, ``27.0`` is 27."""
    text = re.sub(r"\s*(\^\s*\{?\s*\\circ\s*\}?|°)\s*$", "", plain_text(value).strip("$ "))
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


FORMATS: dict[str, Format] = {
    "gsm8k": Format(("question",), ("answer",), read_answer=gsm8k_answer),
    "dapo_math": Format(("problem", "prompt"), ("answer", "reward_model.ground_truth")),
    "aime": Format(("problem", "question"), ("answer", "ref_answer"), read_answer=whole_number_answer),
    "amc": Format(("problem", "question"), ("answer",), read_answer=whole_number_answer),
    "math": Format(("problem",), ("answer",)),
    "svamp": Format(("Body",), ("Answer",), read_answer=whole_number_answer),
    "multiarith": Format(("input",), ("target",), read_answer=whole_number_answer),
}

_PLAIN = Format(("problem", "question", "prompt", "messages"), ("answer", "target", "ground_truth"))


def detect(record: Record) -> str:
    """Return the name of the format a record is in, from its fields.

    Raises:
        DataError: no layout fits.
    """
    names = set(record)
    if {"Body", "Question", "Answer"} <= names:
        return "svamp"
    if {"question", "answer"} <= names and "####" in str(record["answer"]):
        return "gsm8k"
    if {"question", "ref_answer"} <= names:
        return "aime"
    if {"prompt", "reward_model"} <= names:
        return "dapo_math"
    if {"input", "target"} <= names:
        return "multiarith"
    if {"problem", "answer", "url"} <= names:
        return "amc" if isinstance(record["answer"], float) else "aime"
    if {"problem", "answer"} <= names and names & {"level", "subject", "difficulty"}:
        return "math"
    if names & set(_PLAIN.problem) and names & set(_PLAIN.answer):
        return "plain"
    raise DataError(
        f"no known format fits the fields {sorted(names)}; say which are meant, for example "
        "`fields: {problem: question, answer: target}`"
    )


def to_problems(
    records: Iterable[Located], format_name: str, fields: Mapping[str, str], unanswered: list[str] | None = None
) -> Iterator[RawProblem]:
    """Turn located records into problems.

    A record whose answer is null, NaN or empty is passed over: no verifier could judge it. Every column that neither
    problem nor answer was read from goes to ``extra`` under its own name.

    Args:
        records: what a reader yields.
        format_name: a name in ``FORMATS``, ``plain``, or ``auto``: decided by the first record.
        fields: for ``plain``, our name to the record's: ``problem``, ``answer`` ("" for none) and any further names,
            under which those columns go to ``extra``. Dots descend into objects.
        unanswered: a list that receives where each record stands that was passed over.

    Raises:
        DataError: a record without the expected fields, or a field of the wrong kind; the message says where.
    """
    layout: Format | None = None
    for where, record in records:
        if layout is None:
            layout, format_name = _choose(record, format_name, fields, where)
        problem = _convert(record, where, layout, format_name, fields)
        if problem is not None:
            yield problem
        elif unanswered is not None:
            unanswered.append(where)


def _choose(record: Record, name: str, fields: Mapping[str, str], where: str) -> tuple[Format, str]:
    if fields:
        if name not in ("auto", "plain"):
            raise DataError(
                f"`fields` belongs to `format: plain`, and this source has `format: {name}`; remove one of them"
            )
        problem = (fields["problem"],) if "problem" in fields else _PLAIN.problem
        answer = _PLAIN.answer if "answer" not in fields else (fields["answer"],) if fields["answer"] else ()
        return Format(problem, answer), "plain"
    if name == "auto":
        try:
            name = detect(record)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    return (_PLAIN if name == "plain" else FORMATS[name]), name


def _convert(record: Record, where: str, layout: Format, name: str, fields: Mapping[str, str]) -> RawProblem | None:
    """Return the problem of a record; None when it should have an answer and that is null or empty."""
    problem_field, raw_problem = lookup(record, layout.problem, where, name)
    used = {problem_field}
    with _named(where, problem_field):
        messages = read_messages(raw_problem) or []
        problem = plain_text(messages[-1]["content"] if messages else raw_problem)
        if name == "svamp":  # the one layout whose text is in two fields
            problem = f"{problem.rstrip('. ')}. {plain_text(record.get('Question'))}"
            used.add("Question")
        check_text(problem)
        messages = as_json(messages)
    if not problem:
        raise DataError(f"{where}, field {problem_field!r}: the problem is empty")
    answer = ""
    if layout.answer:
        answer_field, raw_answer = lookup(record, layout.answer, where, name)
        used.add(answer_field)
        if is_missing(raw_answer):
            return None
        with _named(where, answer_field):
            answer = answer_text(raw_answer, layout.read_answer or plain_text)
            check_text(answer)
        if not answer:
            return None
    extra = _extra(record, fields, used, where, name)
    alone = len(messages) == 1 and set(messages[0]) == {"role", "content"}
    return RawProblem(problem, answer, extra, where, () if alone else tuple(messages), conversational=bool(messages))


@contextmanager
def _named(where: str, field: str) -> Iterator[None]:
    """Name the place of a wrong value in its error."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{where}, field {field!r}: {error}") from error


def _extra(record: Record, fields: Mapping[str, str], used: set[str], where: str, name: str) -> dict[str, Any]:
    """All columns that neither problem nor answer came from; mapped ones under our name, which goes first."""
    mapped = {ours: theirs for ours, theirs in fields.items() if ours not in ("problem", "answer")}
    found = {key: value for key, value in record.items() if key not in used and key not in mapped.values()}
    for ours, theirs in mapped.items():
        found[ours] = lookup(record, (theirs,), where, name)[1]
    extra = {}
    for key, value in found.items():
        with _named(where, key):
            check_text(key)
            extra[key] = as_json(value)
    return extra


def lookup(record: Record, paths: tuple[str, ...], where: str, name: str) -> tuple[str, Any]:
    """Return the first of ``paths`` that the record holds, and its value. The value may be null."""
    for path in paths:
        if path in record:
            return path, record[path]
        value: Any = record
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
        else:
            return path, value
    near = get_close_matches(paths[0], list(record), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    expected = " or ".join(repr(path) for path in paths)
    raise DataError(f"{where}: format `{name}` expects a field {expected}, found {sorted(record)}{hint}")
