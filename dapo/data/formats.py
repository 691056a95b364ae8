"""From records to problems: named layouts of the public sets, and ``plain`` with a field mapping."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from dapo.config.write_yaml import to_yaml
from dapo.data.answers import Answers, stated_answer, worked_answer
from dapo.data.conversations import DIALOGUES, Message, dialogue, is_answered, read_messages, without_system
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
    worked: str = ""  # the field of a worked solution that the answer is the result of

    @property
    def words(self) -> str:
        """Text that identifies a problem: its own, or all of a conversation before the response."""
        spoken = without_system(self.messages)
        return dialogue(spoken) if len(spoken) > 1 else self.problem


@dataclass(frozen=True, slots=True)
class Format:
    """A named record layout.

    The first of the ``problem`` (``answer``) paths that a record holds is taken; a dot descends into an object. Where
    both are one field, the answer is the last message in it, the assistant's.
    """

    problem: tuple[str, ...]
    answer: tuple[str, ...]
    read_answer: Callable[[Any], str] = plain_text
    worked: bool = False  # the answer is the result of a worked solution


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

_PLAIN = Format(
    ("problem", "question", "prompt", "instruction", "query", "input", *DIALOGUES),
    (
        "answer",
        "target",
        "ground_truth",
        "final_answer",
        "expected_answer",
        "reward_model.ground_truth",  # verl
        "reward_spec.ground_truth",  # SkyRL
    ),
    stated_answer,
)
_WORKED = ("solution", "completion", "response", "output")
"""Fields in which a solution stands, where no field holds the answer."""
_LIKELY_PROBLEM = re.compile(r"(?i)question|problem|prompt|instruct|query|task|text|body|input|messages|conversation")
_LIKELY_ANSWER = re.compile(r"(?i)answer|gold|truth|label|target|result|solution|output|response|completion|reference")


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
    if {"prompt", "reward_model"} <= names and _found(record, FORMATS["dapo_math"].answer):
        return "dapo_math"
    if {"input", "target"} <= names:
        return "multiarith"
    if {"problem", "answer", "url"} <= names:
        return "amc" if isinstance(record["answer"], float) else "aime"
    if {"problem", "answer"} <= names and names & {"level", "subject", "difficulty"}:
        return "math"
    if _found(record, _spelled(_PLAIN.problem, record)):
        return "plain"
    raise DataError(
        f"no known format fits the fields {sorted(names)}; say which are meant, perhaps `{suggested_fields(record)}`"
    )


def fields_line(fields: Mapping[str, str]) -> str:
    """Return the recipe's line of a field mapping."""
    named = ", ".join(f"{ours}: {to_yaml([theirs]).strip().removeprefix('- ')}" for ours, theirs in fields.items())
    return f"fields: {{{named}}}"


def suggested_fields(record: Record) -> str:
    """Return the line ``fields: {...}`` that reads a record, by its fields' names and lengths."""
    found = dict(_scalars(record))
    known = _found(record, _spelled(_PLAIN.problem, record))
    likely = [name for name in found if _LIKELY_PROBLEM.search(name) and not _LIKELY_ANSWER.search(name)]
    problem = known[0] if known else max(likely or found, key=lambda name: len(str(found[name])), default="problem")
    rest = [name for name in found if name != problem or is_answered(found[name])]
    likely = [name for name in rest if name == problem or _LIKELY_ANSWER.search(name)]
    answer = min(likely or rest, key=lambda name: (name != problem, len(str(found[name]))), default="")
    return fields_line({"problem": problem, "answer": answer})


def _scalars(record: Record, above: str = "") -> Iterator[tuple[str, Any]]:
    """Texts, numbers and lists of a record by their paths."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{above}{name}.")
        elif isinstance(value, str | int | float | list) and not isinstance(value, bool) and not is_missing(value):
            yield f"{above}{name}", value


def to_problems(
    records: Iterable[Located],
    format_name: str,
    fields: Mapping[str, str],
    unanswered: list[str] | None = None,
    answers: Answers = Answers.COMPARED,
) -> Iterator[RawProblem]:
    """Turn located records into problems.

    A record whose answer is null, NaN or empty is passed over where rewards may read it. Every column that neither
    problem nor answer was read from goes to ``extra`` under its own name, and so does a worked solution.

    Args:
        records: what a reader yields.
        format_name: a name in ``FORMATS``, ``plain``, or ``auto``: decided by the first record.
        fields: for ``plain``, our name to the record's: ``problem``, ``answer`` ("" for none) and any further names,
            under which those columns go to ``extra``. Dots descend into objects.
        unanswered: a list that receives where each record stands that was passed over.
        answers: what rewards do with gold answers.

    Raises:
        DataError: a record without the expected fields, or a field of the wrong kind; the message says where.
    """
    layout: Format | None = None
    for where, record in records:
        if layout is None:
            layout, format_name = _choose(record, format_name, fields, where, answers)
        problem = _convert(record, where, layout, format_name, fields, answers)
        if isinstance(problem, RawProblem):
            yield problem
        elif unanswered is not None:
            unanswered.append(problem)


def _choose(record: Record, name: str, fields: Mapping[str, str], where: str, answers: Answers) -> tuple[Format, str]:
    """Return the layout of a source, by its first record."""
    if fields:
        if name not in ("auto", "plain"):
            raise DataError(
                f"`fields` belongs to `format: plain`, and this source has `format: {name}`; remove one of them"
            )
        problem = (fields["problem"],) if "problem" in fields else _PLAIN.problem
        if "answer" in fields:
            return Format(problem, (fields["answer"],) if fields["answer"] else ()), "plain"
        return _plain(replace(_PLAIN, problem=problem), record, where, answers), "plain"
    if name == "auto":
        try:
            name = detect(record)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    return (_plain(_PLAIN, record, where, answers) if name == "plain" else FORMATS[name]), name


def _plain(layout: Format, record: Record, where: str, answers: Answers) -> Format:
    """Return ``layout`` as a record spells its names, and with the answer where the record has one.

    Raises:
        DataError: it has none, and the rewards compare with it.
    """
    problem, stated = _spelled(layout.problem, record), _spelled(layout.answer, record)
    if _found(record, stated):
        return replace(layout, problem=problem, answer=stated)
    worked: tuple[str, ...] = ()
    asked = _found(record, problem)
    if answers is not Answers.UNREAD and asked is not None:
        solutions = _spelled(_WORKED, record)
        told = asked[0] in DIALOGUES and is_answered(asked[1])
        worked = asked[:1] if told else solutions * bool(_found(record, solutions))
    if not worked and answers is Answers.COMPARED:
        raise DataError(
            f"{where}: none of the fields {sorted(record)} is known to hold the gold answer, with which the rewards "
            f"compare; say which does, perhaps `{suggested_fields(record)}`"
        )
    return Format(problem, worked, partial(worked_answer, answers=answers), worked=bool(worked))


def _spelled(names: tuple[str, ...], record: Record) -> tuple[str, ...]:
    """Return names of fields as a record spells them: ``Problem`` for ``problem``."""
    spelled = {name.lower(): name for name in record}
    return tuple(name if name in record else spelled.get(name, name) for name in names)


def _convert(
    record: Record, where: str, layout: Format, name: str, fields: Mapping[str, str], answers: Answers
) -> RawProblem | str:
    """Return the problem of a record; where the record stands when it should have an answer and has none."""
    problem_field, raw_problem = lookup(record, layout.problem, where, name)
    used = {problem_field}
    answered = problem_field in DIALOGUES or layout.answer == (problem_field,)
    with _named(where, problem_field):
        messages, said = read_messages(raw_problem, problem_field, answered=answered)
        problem = plain_text(messages[-1]["content"] if messages else raw_problem)
        if name == "svamp":  # the one layout whose text is always in two fields
            problem = f"{problem.rstrip('. ')}. {plain_text(record.get('Question'))}"
            used.add("Question")
        problem, more = with_input(record, problem_field, problem, fields)
        used |= more
        check_text(problem)
        messages = as_json(messages or [])
    if not problem:
        raise DataError(f"{where}, field {problem_field!r}: the problem is empty")
    field, answer = _answer(record, where, layout, name, problem_field, said)
    if field and not answer and answers is not Answers.UNREAD:
        whole = fields_line({"problem": problem_field, "answer": field})
        return f"{where}; no result is marked in `{field}`: `{whole}` takes all of it" if layout.worked else where
    if field and not layout.worked:
        used.add(field)
    extra = _extra(record, fields, used, where, name)
    alone = len(messages) == 1 and set(messages[0]) == {"role", "content"}
    return RawProblem(
        problem,
        answer,
        extra,
        where,
        () if alone else tuple(messages),
        conversational=bool(messages),
        worked=field if layout.worked else "",
    )


def _answer(record: Record, where: str, layout: Format, name: str, problem: str, said: str | None) -> tuple[str, str]:
    """Return the field that the answer is in, and the answer; both are "" where the layout has none.

    Args:
        record: of the source.
        where: it stands.
        layout: of the source.
        name: of the layout.
        problem: the field that the problem was in.
        said: by the assistant at the end of that field's messages.
    """
    if not layout.answer:
        return "", ""
    field, value = (problem, said) if layout.answer == (problem,) else lookup(record, layout.answer, where, name)
    if is_missing(value):
        return field, ""
    with _named(where, field):
        answer = layout.read_answer(value) if layout.worked else answer_text(value, layout.read_answer)
        check_text(answer)
    return field, answer


def with_input(
    record: Record, field: str, problem: str, fields: Mapping[str, str] | None = None
) -> tuple[str, set[str]]:
    """Return a problem with the ``input`` that follows an ``instruction`` in Alpaca's rows, and the fields of that."""
    given = record.get("input")
    if field.lower() != "instruction" or not isinstance(given, str) or "input" in (fields or {}).values():
        return problem, set()
    return f"{problem}\n\n{given.strip()}".strip(), {"input"}


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
    """Return the first of ``paths`` that the record holds, and its value. The value may be null.

    Raises:
        DataError: it holds none of them.
    """
    found = _found(record, paths)
    if found is not None:
        return found
    near = get_close_matches(paths[0], list(record), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    expected = " or ".join(repr(path) for path in paths)
    raise DataError(f"{where}: format `{name}` expects a field {expected}, found {sorted(record)}{hint}")


def _found(record: Record, paths: tuple[str, ...]) -> tuple[str, Any] | None:
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
    return None
