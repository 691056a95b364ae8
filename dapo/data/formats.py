"""From records to problems: named layouts of the public sets, and ``plain`` with a field mapping."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dapo.data.readers import Located, Record
from dapo.errors import DataError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem before rendering."""

    problem: str  # the raw text
    answer: str  # the gold answer as text; "" where the verifier needs none
    extra: Mapping[str, Any] = field(default_factory=dict)  # further fields, for the verifier
    row: str = ""  # where it came from, for messages: "data.jsonl, line 7"


@dataclass(frozen=True, slots=True)
class Format:
    """A named record layout.

    The first of the ``problem`` (``answer``) paths that a record holds is taken; a dot descends into an object.
    """

    problem: tuple[str, ...]
    answer: tuple[str, ...]
    extra: tuple[str, ...] = ()
    read_problem: Callable[[Any], str] | None = None
    read_answer: Callable[[Any], str] | None = None


def plain_text(value: Any) -> str:
    """A field as text. Whole floats lose their ``.0``: sets that store 27.0 mean 27."""
    if isinstance(value, bool) or value is None:
        raise ValueError(f"expected text or a number, found {value!r}")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    raise ValueError(f"expected text or a number, found {type(value).__name__}")


def gsm8k_answer(value: Any) -> str:
    """The result behind the last ``####`` of a worked solution, without thousands commas."""
    _, mark, result = plain_text(value).rpartition("####")
    if not mark:
        raise ValueError("a GSM8K answer ends with '#### result', and this one has no '####'")
    return result.strip().replace(",", "")


def whole_number_answer(value: Any) -> str:
    r"""An answer without a degree sign or a trailing ``.0``: ``336^\circ`` is 336, ``27.0`` is 27."""
    text = re.sub(r"\s*(\^\s*\{?\s*\\circ\s*\}?|°)\s*$", "", plain_text(value).strip("$ "))
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def message_text(value: Any) -> str:
    """The problem text of a field that is text, or a list of chat messages with a single user message."""
    if isinstance(value, list):
        if len(value) != 1 or not isinstance(value[0], dict) or value[0].get("role") != "user":
            roles = [m.get("role") if isinstance(m, dict) else type(m).__name__ for m in value]
            raise ValueError(f"expected a single user message, found {roles}")
        value = value[0].get("content")
    return plain_text(value)


FORMATS: dict[str, Format] = {
    "gsm8k": Format(("question",), ("answer",), read_answer=gsm8k_answer),
    "dapo_math": Format(("problem", "prompt"), ("answer", "reward_model.ground_truth"), read_problem=message_text),
    "aime": Format(("problem", "question"), ("answer", "ref_answer"), read_answer=whole_number_answer),
    "amc": Format(("problem", "question"), ("answer",), read_answer=whole_number_answer),
    "math": Format(("problem",), ("answer",), extra=("level", "subject", "difficulty", "type")),
    "svamp": Format(("Body",), ("Answer",), extra=("Type",), read_answer=whole_number_answer),
    "multiarith": Format(("input",), ("target",), read_answer=whole_number_answer),
}

_PLAIN = Format(("problem", "question", "prompt"), ("answer", "target", "ground_truth"), read_problem=message_text)


def detect(record: Record) -> str:
    """The name of the format a record is in, from its fields.

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
) -> Iterator[Problem]:
    """Turn located records into problems.

    A record whose answer is null or empty is passed over: no verifier could judge it.

    Args:
        records: what a reader yields.
        format_name: a name in ``FORMATS``, ``plain``, or ``auto``: decided by the first record.
        fields: for ``plain``, our name to the record's: ``problem``, ``answer`` ("" for none) and any further names,
            which go to ``extra``. Dots descend into objects. Without it, all other fields of a plain record go there.
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
        return Format(problem, answer, read_problem=message_text), "plain"
    if name == "auto":
        try:
            name = detect(record)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    return (_PLAIN if name == "plain" else FORMATS[name]), name


def _convert(record: Record, where: str, layout: Format, name: str, fields: Mapping[str, str]) -> Problem | None:
    """The problem of a record; None when it should have an answer and that is null or empty."""
    problem_field, raw_problem = _lookup(record, layout.problem, where, name)
    try:
        problem = (layout.read_problem or plain_text)(raw_problem)
        if name == "svamp":  # the one layout whose text is in two fields
            problem = f"{problem.rstrip('. ')}. {plain_text(record.get('Question'))}"
    except ValueError as error:
        raise DataError(f"{where}, field {problem_field!r}: {error}") from error
    if not problem:
        raise DataError(f"{where}, field {problem_field!r}: the problem is empty")
    answer = ""
    answer_field = ""
    if layout.answer:
        answer_field, raw_answer = _lookup(record, layout.answer, where, name)
        if raw_answer is None or raw_answer == "" or raw_answer != raw_answer:  # the last: not a number, as in pandas
            return None
        try:
            answer = (layout.read_answer or plain_text)(raw_answer)
        except ValueError as error:
            raise DataError(f"{where}, field {answer_field!r}: {error}") from error
    return Problem(problem, answer, _extra(record, layout, name, fields, {problem_field, answer_field}, where), where)


def _extra(
    record: Record, layout: Format, name: str, fields: Mapping[str, str], used: set[str], where: str
) -> dict[str, Any]:
    if name != "plain":
        return {key: _jsonable(record[key]) for key in layout.extra if key in record}
    if fields:
        wanted = {ours: theirs for ours, theirs in fields.items() if ours not in ("problem", "answer")}
        return {ours: _jsonable(_lookup(record, (theirs,), where, name)[1]) for ours, theirs in wanted.items()}
    return {key: _jsonable(value) for key, value in record.items() if key not in used}


def _lookup(record: Record, paths: tuple[str, ...], where: str, name: str) -> tuple[str, Any]:
    """The first of ``paths`` that the record holds, and its value. The value may be null."""
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


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)
