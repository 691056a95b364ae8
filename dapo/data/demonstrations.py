"""Make demonstrations of records: a prompt, a response in tokens, and which of its tokens carry loss.

The prompt's tokens are those that a model sees that is asked; a response has the tokens that the whole text adds to
them (``dapo.data.encode``). The loss is of what the assistant writes, its end token included, and of nothing
else: neither of a user's later turn nor of what a template writes after that token. A response that would be learnt in
part alone is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from dapo.config.check_sft import sft_source_name
from dapo.config.schema import Data, Sft, SftSource
from dapo.data.answers import Answers
from dapo.data.chat import chat_text, has_template
from dapo.data.conversations import ASSISTANT, DIALOGUES, LAST, Message, message_list
from dapo.data.encode import CutError, encode, encode_pieces
from dapo.data.formats import RawProblem, lookup, with_input
from dapo.data.leaks import overlap_key
from dapo.data.load import load_problems
from dapo.data.readers import Record, read_records
from dapo.data.render import make_prompts
from dapo.data.values import as_json
from dapo.errors import DataError
from dapo.types.batch import BoolArray, IntArray, Prompt
from dapo.words import counted

PROMPTS = ("prompt", "problem", "question", "instruction", "input")
RESPONSES = ("response", "completion", "solution", "output", "answer", "target")
"""Usual names of fields, the likeliest first."""
_REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message in which data sets keep the thinking apart; many templates read none of them."""
_END_OF_THINKING = "</think>"
_SHOWN = 60  # characters of a text that an error quotes


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One example to imitate. What follows the first prompt is [response tokens], later turns of a user's included."""

    prompt: Prompt  # ``answer`` is the response as text
    token_ids: IntArray
    loss_mask: BoolArray  # tokens that the assistant writes

    def __len__(self) -> int:
        return len(self.prompt.token_ids) + len(self.token_ids)


@dataclass(slots=True)
class DemonstrationReport:
    """Counts of one source's records."""

    name: str
    read: int = 0
    overlong: int = 0
    kept: int = 0
    tokens: int = 0  # of what is kept
    loss_tokens: int = 0
    longest: int = 0

    def sentence(self) -> str:
        """One line for the console."""
        said = (
            f"{self.name}: {counted(self.kept, 'example')} of {counted(self.read, 'record')}, {self.tokens:,} tokens, "
            f"{self.loss_tokens:,} of them with loss, longest {self.longest:,}"
        )
        return f"{said}; {self.overlong:,} over sft.max_tokens dropped" if self.overlong else said


@dataclass(slots=True)
class Demonstrations:
    """Everything that the section names."""

    train: list[Demonstration] = field(default_factory=list)
    validation: dict[str, list[Demonstration]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # for the console


def prepare_demonstrations(sft: Sft, data: Data, tokenizer: Any, stops: Sequence[int]) -> Demonstrations:
    """Read, render and tokenise all that ``sft`` names. Examples that are in a held-out set, of examples or of
    problems, are taken out of training.

    Args:
        sft: the recipe's section.
        data: how a problem becomes a prompt.
        tokenizer: an object with ``__call__`` and ``apply_chat_template`` as transformers' tokenizers have.
        stops: tokens that end a response; the tokenizer's own end token comes first where it is among them.

    Raises:
        DataError: unreadable data, a record that is no example, a template that cannot show one, two held-out sets of
            one name, or nothing left to train on.
    """
    end = getattr(tokenizer, "eos_token_id", None)
    stops = [end, *stops] if end is not None and end in stops else list(stops)
    found = Demonstrations()
    for source in sft.train:
        found.train += _source(source, "training", sft, data, tokenizer, stops, found.lines)
    for source in sft.validation:
        name = sft_source_name(source)
        if name in found.validation:
            raise DataError(f"two held-out sets are called {name!r}; give one of them another `name`")
        found.validation[name] = _source(source, "validation", sft, data, tokenizer, stops, found.lines)
    held_out = [problem for source in data.validation for problem in load_problems(source, Answers.UNREAD)]
    asked = {overlap_key(problem.words) for problem in held_out}
    if answered := sum(overlap_key(one.prompt.problem) in asked for one in found.train):
        found.train = [one for one in found.train if overlap_key(one.prompt.problem) not in asked]
        found.lines.append(
            f"overlap     {answered:,} training examples answer held-out problems (data.validation), and were taken out"
        )
    known = {_content(one) for ones in found.validation.values() for one in ones}
    if shared := sum(_content(one) in known for one in found.train):
        found.train = [one for one in found.train if _content(one) not in known]
        found.lines.append(f"overlap     {shared:,} training examples are in validation too, and were taken out")
    if not found.train:
        raise DataError("no example is left to train on:\n" + "\n".join(found.lines))
    return found


def _content(one: Demonstration) -> tuple[bytes, bytes]:
    return one.prompt.token_ids.tobytes(), one.token_ids.tobytes()


def _source(
    source: SftSource, what: str, sft: Sft, data: Data, tokenizer: Any, stops: Sequence[int], lines: list[str]
) -> list[Demonstration]:
    entry = DemonstrationReport(sft_source_name(source))
    records = list(islice(read_records(source.path, source.split), source.size))
    entry.read = len(records)
    if not records:
        raise DataError(f"{source.path} holds no record")
    drafts = [draft for where, record in records for draft in _drafts(where, record, source, sft, data, tokenizer)]
    made = _encoded(drafts, entry.name, data, tokenizer, stops)
    kept = [one for one in made if len(one) <= sft.max_tokens]
    entry.overlong, entry.kept = len(made) - len(kept), len(kept)
    if entry.overlong and sft.overlong == "refuse":
        first = next(draft.where for draft, one in zip(drafts, made, strict=True) if len(one) > sft.max_tokens)
        raise DataError(
            f"{entry.name}: {counted(entry.overlong, 'example is', 'examples are')} longer than `sft.max_tokens: "
            f"{sft.max_tokens}` (the longest "
            f"has {max(map(len, made))} tokens; the first is {first}); raise the limit, or set `sft.overlong: drop`"
        )
    entry.tokens, entry.longest = sum(map(len, kept)), max(map(len, kept), default=0)
    entry.loss_tokens = sum(int(one.loss_mask.sum()) for one in kept)
    lines.append(f"{what:<11} {entry.sentence()}")
    return kept


# ---------------------------------------------------------------------------------------------------- one record


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text after the prompt."""

    text: str
    own: str | None  # what the assistant says in it, all of which is learnt; None: the piece carries no loss


@dataclass(frozen=True, slots=True)
class _Draft:
    """An example as text: a prompt, or a problem that becomes one, and pieces that follow it."""

    where: str
    problem: RawProblem | None  # rendered as ``data`` says
    prompt: str  # of a conversation: what the template wrote
    asked: str  # what the user said last before the first answer that is learnt
    pieces: tuple[_Piece, ...]


def _drafts(where: str, record: Record, source: SftSource, sft: Sft, data: Data, tokenizer: Any) -> Iterable[_Draft]:
    _check_record(where, record)
    key = source.fields.get("messages") or (
        None if source.fields else next((name for name in DIALOGUES if record.get(name)), None)
    )
    if key is not None:
        messages = _read(where, key, lookup(record, (key,), where, "messages")[1])
        return [_conversation(where, messages, 0, sft, data, tokenizer)]
    key, asked = _field(where, record, source, "prompt", PROMPTS)
    answer = _field(where, record, source, "response", RESPONSES)[1]
    if isinstance(asked, str):
        asked = with_input(record, key, asked, source.fields)[0]
    if isinstance(asked, list) or isinstance(answer, list):  # as TRL's conversational data have it
        first = _read(where, "prompt", asked) if isinstance(asked, list) else [{"role": "user", "content": str(asked)}]
        then = (
            _read(where, "response", answer) if isinstance(answer, list) else [{"role": ASSISTANT, "content": answer}]
        )
        return [_conversation(where, [*first, *then], len(first), sft, data, tokenizer)]
    if not isinstance(asked, str) or not isinstance(answer, str) or not answer:
        raise DataError(
            f"{where}: expected a prompt and a response as text, found {type(asked).__name__} {str(asked)[:60]!r} and "
            f"{type(answer).__name__} {str(answer)[:60]!r}"
        )
    prefix = data.response_prefix or ""
    if not answer.startswith(prefix):
        raise DataError(
            f"{where}: its response does not begin with `data.response_prefix` = {prefix!r}, with which every response "
            f"begins; found {answer[:60]!r}"
        )
    problem = RawProblem(problem=asked, answer=answer, row=where)
    own = answer.removeprefix(prefix)
    return [_Draft(where, problem, "", asked, (_Piece(own, own),))]


def _check_record(where: str, record: Record) -> None:
    """Refuse text that no tokenizer takes.

    Raises:
        DataError: half of a surrogate pair in a field, or objects too deep within each other.
    """
    for name, value in record.items():
        try:
            as_json({name: value})
        except ValueError as error:
            raise DataError(f"{where}, field {name!a}: {error}") from None


def _field(where: str, record: Record, source: SftSource, ours: str, names: Sequence[str]) -> tuple[str, Any]:
    """Return the field that holds a part of an example, and its value."""
    if ours in source.fields:
        return lookup(record, (source.fields[ours],), where, ours)
    name = next((name for name in names if record.get(name) is not None), None)
    if name is None:
        raise DataError(
            f"{where}: no {ours} (nor messages) among the fields {sorted(record)}; say which is meant, for example "
            "`fields: {prompt: question, response: solution}`"
        )
    return name, record[name]


def _read(where: str, key: str, value: Any) -> list[Message]:
    try:
        messages = message_list(value)
    except ValueError as error:
        raise DataError(f"{where}, field {key!r}: {error}") from None
    if not messages:
        raise DataError(f"{where}, field {key!r}: expected a list of messages, found {str(value)[:60]!r}")
    return messages


def _conversation(where: str, messages: list[Message], given: int, sft: Sft, data: Data, tokenizer: Any) -> _Draft:
    """Return the draft of a conversation. The first ``given`` messages are the prompt's; of the others the assistant's
    carry loss.

    Raises:
        DataError: there is no chat template, no turn to learn, or a template that writes turns otherwise once others
            follow.
    """
    if not has_template(data, tokenizer):
        raise DataError(
            f"{where}: messages need a chat template, and the tokenizer has none; give one (`data.chat_template`), or "
            "a prompt and a response"
        )
    turns = [n for n, message in enumerate(messages) if message["role"] == ASSISTANT and n >= given]
    if not turns or turns[-1] != len(messages) - 1:
        roles = [message["role"] for message in messages]
        raise DataError(f"{where}: expected messages whose last one is the assistant's, found {roles}")
    learnt = turns if sft.loss_on == "all" else turns[-1:]
    done = prompt = chat_text(where, messages[: learnt[0]], data, tokenizer, ask=True)
    pieces: list[_Piece] = []
    for number in learnt:
        begun = chat_text(where, messages[:number], data, tokenizer, ask=True)
        whole = chat_text(where, messages[: number + 1], data, tokenizer, ask=False)
        _check_shown(f"{where}, message {number + 1}", messages[number], begun, whole)
        if not begun.startswith(done) or not whole.startswith(begun):
            move = (
                "it writes earlier turns otherwise once others follow (thinking is taken out, perhaps): "
                "`sft.loss_on: last` learns the last one alone"
                if begun != done and not begun.startswith(done)
                else "an answer does not begin where the template asks for one: give a prompt and a response instead"
            )
            raise DataError(f"{where}: the chat template cannot show message {number + 1} as an answer; {move}")
        if begun != done:
            pieces.append(_Piece(begun[len(done) :], None))
        pieces.append(_Piece(whole[len(begun) :], str(messages[number]["content"])))
        done = whole
    said = [message["content"] for message in messages[: learnt[0]] if message["role"] == LAST]
    return _Draft(where, None, prompt, said[-1] if said else "", tuple(pieces))


def _check_shown(where: str, message: Message, begun: str, whole: str) -> None:
    """Refuse a template that leaves out some of a message that is learnt. White space does not count.

    Args:
        where: the message is, for errors.
        message: of the assistant.
        begun: the conversation up to where the answer begins.
        whole: the conversation with the answer at its end.

    Raises:
        DataError: content, thinking or a tool call of the message is missing from its turn.
    """
    start = len(begun)
    if not whole.startswith(begun):
        start = next((n for n, (a, b) in enumerate(zip(begun, whole, strict=False)) if a != b), min(start, len(whole)))
    calls = message.get("tool_calls")
    functions = (
        [call.get("function", call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    expected = [
        ("content", message["content"]),
        *((key, message.get(key)) for key in _REASONING),
        *(("tool_calls", one.get("name")) for one in functions if isinstance(one, dict)),
    ]
    for name, text in expected:
        if not isinstance(text, str) or not text.strip() or _holds(whole, start, text):
            continue
        if name != "content":
            what = f"does not write its field `{name}`"
        elif _END_OF_THINKING in text and _holds(whole, start, text.split(_END_OF_THINKING)[-1]):
            what = f"takes the thinking (all up to {_END_OF_THINKING!r}) out of the assistant's turns"
        else:
            what = "leaves out or changes some of its content"
        raise DataError(
            f"{where}: the chat template {what}, so it would not be learnt; expected {_quoted(text)}, and the template "
            f"writes {_quoted(whole[start:])}. Give a template that writes it (`data.chat_template`), or records with "
            "a prompt and a response: no template changes a response"
        )


def _holds(whole: str, start: int, text: str) -> bool:
    """Return whether ``whole`` has the text, white space aside, with its end after ``start``.

    The template may write the first words of every answer (``<think>``) where it asks for one.
    """
    own = "".join(text.split())
    squeezed = "".join(whole[:start].split())
    return own in squeezed[max(0, len(squeezed) - len(own) + 1) :] + "".join(whole[start:].split())


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


# ---------------------------------------------------------------------------------------------------- tokens


def _encoded(
    drafts: Sequence[_Draft], source: str, data: Data, tokenizer: Any, stops: Sequence[int]
) -> list[Demonstration]:
    plain = [draft.problem for draft in drafts if draft.problem is not None]
    asked = iter(make_prompts(plain, source, data, tokenizer) if plain else [])
    prompts = [None if draft.problem is None else next(asked) for draft in drafts]
    rows = [
        [draft.prompt if prompt is None else prompt.text, *(piece.text for piece in draft.pieces)]
        for draft, prompt in zip(drafts, prompts, strict=True)
    ]
    encoded = encode_pieces(rows, tokenizer)
    made = []
    for draft, prompt in zip(drafts, prompts, strict=True):
        try:
            first, *ids = next(encoded)
        except CutError as error:
            raise DataError(
                f"{draft.where}: {error}; move white space from the prompt's end to the response's beginning, or give "
                "a template (`data.prompt_template`, `data.chat_template`) that ends in another character"
            ) from None
        if prompt is None:
            digest = hashlib.sha256(draft.prompt.encode()).hexdigest()[:16]
            answer = "".join(piece.text for piece in draft.pieces)
            prompt = Prompt(digest, draft.prompt, np.asarray(first, np.int64), draft.asked, answer, source)
        for piece, own in zip(draft.pieces, ids, strict=True):
            if piece.own is not None:
                _check_end(draft.where, piece.own, own, tokenizer, stops)
        token_ids, mask = masked([(own, p.own is not None) for p, own in zip(draft.pieces, ids, strict=True)], stops)
        made.append(Demonstration(prompt, token_ids, mask))
    return made


def _check_end(where: str, text: str, ids: Sequence[int], tokenizer: Any, stops: Sequence[int]) -> None:
    """Refuse a response with a token in its midst that ends a response: what follows the token would not be learnt.

    Raises:
        DataError: there is one.
    """
    end = next((n for n, token in enumerate(ids) if token in stops), len(ids))
    if not str(tokenizer.decode(ids[end + 1 :], skip_special_tokens=True)).strip():
        return
    own = encode([text], tokenizer)[0]  # what follows may be the template's alone
    end = next((n for n, token in enumerate(own) if token in stops), len(own))
    if rest := str(tokenizer.decode(own[end + 1 :], skip_special_tokens=True)).strip():
        raise DataError(
            f"{where}: the response holds {tokenizer.decode(own[end : end + 1])!r}, which ends a response, before "
            f"{_quoted(rest)}, so that would not be learnt; take it out of the text, or its number "
            f"{own[end]} out of `rollout.stop_token_ids`"
        )


def masked(pieces: Sequence[tuple[Sequence[int], bool]], stops: Sequence[int]) -> tuple[IntArray, BoolArray]:
    """Tokens of the pieces in a row, and which of them carry loss: what the assistant wrote, up to the first token that
    ends a response. Where its last piece has none, the first of ``stops`` is added: the model has to learn to end.

    Args:
        pieces: tokens, and whether the assistant wrote them.
        stops: tokens that end a response.
    """
    ids: list[int] = []
    mask: list[bool] = []
    for number, (tokens, learnt) in enumerate(pieces):
        end = next((n for n, token in enumerate(tokens) if token in stops), None)
        own = list(tokens)
        if learnt and end is None and number == len(pieces) - 1:
            own, end = [*own, stops[0]], len(own)
        ids += own
        mask += [learnt and (end is None or n <= end) for n in range(len(own))]
    last = max((n for n, learnt in enumerate(mask) if learnt), default=-1)
    return np.asarray(ids[: last + 1], np.int64), np.asarray(mask[: last + 1], np.bool_)
