"""Groups of a step as a page shows them: the reason in words, responses side by side, and their tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dapo.errors import DataError
from dapo.observe.parquet import ParquetSource, open_parquet
from dapo.observe.run_files import check_regular
from dapo.report.page_data import GroupView, ResponseView, Tokens, TurnView, Visit
from dapo.report.prompts_file import problems_of
from dapo.report.reader import RunContents
from dapo.report.rollout_index import Summary, opened, read_columns, reading
from dapo.types.enums import Disposition, Verdict

LONGEST = 1_000_000
"""Characters of a response or a prompt."""
_GROUP_COLUMNS = ("born", "prompt_id", "source", "prompt", "answer")
_RESPONSE_COLUMNS = (
    *("sample", "response", "length", "finish", "accuracy", "rewards", "reward", "penalty", "shaped_reward"),
    *("advantage", "voter", "unscored", "logprobs", "generated", "turns", "ended"),
)

_VERDICTS = {
    Verdict.KEPT: "kept: its responses differ, so it can teach",
    Verdict.ALL_CORRECT: "every vote is correct: no gradient",
    Verdict.ALL_WRONG: "every vote is wrong: no gradient",
    Verdict.UNIFORM: "the chosen metric is the same for all: no gradient",
    Verdict.OUT_OF_BAND: "the mean of the chosen metric lies outside the band",
    Verdict.TOO_FEW_SCORED: "fewer than two responses vote",
}
_DISPOSITIONS = {
    Disposition.TRAINED: "trained in this step",
    Disposition.CARRIED: "held for a later step",
    Disposition.FILLED: "trained all the same to fill the batch, with advantage 0",
    Disposition.COPIED: "trained once more in place of a rejected group",
    Disposition.EXPIRED: "dropped at the age limit",
    Disposition.DISCARDED: "dropped",
}


def why(verdict: str | None, disposition: str | None) -> str:
    """In words why a group was kept or dropped. A word that this version does not know stands as it is."""
    said = _VERDICTS.get(verdict, verdict.replace("_", " ")) if verdict else "not judged"  # type: ignore[call-overload]
    if disposition:
        became = _DISPOSITIONS.get(disposition, disposition.replace("_", " "))  # type: ignore[call-overload]
        if verdict == Verdict.KEPT and disposition == Disposition.DISCARDED:
            became = "surplus of this step, thrown away"
        said += f"; {became}"
    return f"{said[:1].upper()}{said[1:]}."


def views(
    run: RunContents, step: int, places: Sequence[int], *, whole: bool = False, tokens: bool = True
) -> list[GroupView]:
    """Return groups by their places in the summary of a step, with their responses if ``whole``, and then with
    ``tokens``.

    Raises:
        DataError: a damaged file.
    """
    recorded, problems = token_groups(run, step), problems_of(run)
    columns = (*_GROUP_COLUMNS, *_RESPONSE_COLUMNS) if whole else _GROUP_COLUMNS
    with opened(run, step) as (file, summary), reading(summary.path):
        made = []
        for place, rows in rows_of(file, summary, places, columns, whole):
            view = _view(summary, place, rows[0], int(summary.group[place]) in recorded)
            view["problem"] = _cut(problems.get(view["prompt_id"], (view["prompt"],))[0])
            if whole:
                view["responses"] = [_response(row) for row in rows]
            made.append(view)
    if whole and tokens and any(view["has_tokens"] for view in made):
        _add_tokens(run, step, made)
    return made


def rows_of(
    source: ParquetSource, summary: Summary, places: Sequence[int], columns: Sequence[str], whole: bool
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the rows of groups (the first alone unless ``whole``), from the row groups that hold them alone."""
    starts = np.concatenate([[0], np.cumsum(source.counts)]).astype(np.int64)
    held: OrderedDict[int, pa.Table] = OrderedDict()
    for place in places:
        first = int(summary.first[place])
        stop = first + (int(summary.size[place]) if whole else 1)
        parts = []
        for n in range(int(np.searchsorted(starts, first, "right")) - 1, int(np.searchsorted(starts, stop, "left"))):
            if n not in held:
                held[n] = _with_means(read_columns(source, columns, [n]))
                while len(held) > 2:
                    held.popitem(last=False)
            low, high = max(first, int(starts[n])), min(stop, int(starts[n + 1]))
            parts += held[n].slice(low - int(starts[n]), high - low).to_pylist()
        yield place, parts


def _with_means(table: pa.Table) -> pa.Table:
    """Put ``logprob``, the mean of the tokens that the policy sampled, in place of ``logprobs`` and ``generated``.

    No Python object is made for each token.
    """
    if "logprobs" not in table.column_names or pa.types.is_null(table["logprobs"].type):
        return table
    column = table["logprobs"].combine_chunks()
    starts = column.offsets.to_numpy()
    values = np.array(column.values.to_numpy(zero_copy_only=False), np.float64)
    odd = ~np.isfinite(values) | _put_in(table, column, len(values))
    sums = np.concatenate([[0.0], np.cumsum(np.where(odd, 0.0, values))])[starts]
    known = np.diff(starts) - np.diff(np.concatenate([[0], np.cumsum(odd)])[starts])
    means = np.full(len(column), np.nan)
    np.divide(np.diff(sums), known, out=means, where=known > 0)
    return table.drop_columns(["logprobs", "generated"]).append_column("logprob", pa.array(means))


def _put_in(table: pa.Table, logprobs: pa.ListArray, count: int) -> NDArray[np.bool_]:
    """Return which of the ``count`` tokens of ``logprobs`` the program put in, by the column ``generated``."""
    put_in = np.zeros(count, np.bool_)
    if pa.types.is_null(table["generated"].type):
        return put_in
    generated = table["generated"].combine_chunks()
    lengths = np.diff(logprobs.offsets.to_numpy())
    here = np.repeat(generated.is_valid().to_numpy(zero_copy_only=False), lengths)
    flags = generated.flatten().to_numpy(zero_copy_only=False)
    if here.sum() == len(flags):  # else the file is damaged
        put_in[here] = ~flags.astype(np.bool_)
    return put_in


def visit_of(summary: Summary, place: int) -> Visit:
    """Return what a summary says of one of its groups."""
    return {
        "step": summary.step,
        "group": int(summary.group[place]),
        "verdict": summary.verdict[place],
        "disposition": summary.disposition[place],
        "correct": int(summary.correct[place]),
        "scored": int(summary.scored[place]),
        "length_mean": round(float(summary.length_mean[place]), 3),
    }


def _view(summary: Summary, place: int, row: dict[str, Any], has_tokens: bool) -> GroupView:
    visit = visit_of(summary, place)
    return {
        **visit,
        "born": row["born"] if row["born"] is not None else summary.step,
        "prompt_id": summary.prompt_id[place],
        "source": summary.source[place],
        "problem": "",
        "prompt": _cut(row["prompt"]),
        "answer": _cut(row["answer"]),
        "why": why(visit["verdict"], visit["disposition"]),
        "responses": [],
        "size": int(summary.size[place]),
        "truncated": int(summary.truncated[place]),
        "has_tokens": has_tokens,
    }


def _response(row: dict[str, Any]) -> ResponseView:
    rewards = row["rewards"] or []
    return {
        "sample": row["sample"] or 0,
        "text": _cut(row["response"]),
        "length": row["length"] or 0,
        "finish": row["finish"] or "",
        "accuracy": _finite(row["accuracy"]),
        "rewards": {name: _finite(value) for name, value in rewards},
        "reward": _finite(row["reward"]),
        "penalty": _finite(row["penalty"]),
        "shaped": _finite(row["shaped_reward"]),
        "advantage": _finite(row["advantage"]),
        "voter": row["voter"],
        "unscored": row["unscored"],
        "logprob": _finite(row.get("logprob")),
        "turns": None if row.get("turns") is None else [_turn(turn) for turn in row["turns"]],
        "ended": row.get("ended"),
        "tokens": None,
    }


def _turn(row: dict[str, Any]) -> TurnView:
    calls = [call or "" for call in row["calls"] or []]
    return {
        "who": row["who"] or "",
        "text": _cut(row["text"]),
        "reward": _finite(row["reward"]),
        "calls": calls,
        "facts": {name: _finite(value) for name, value in row.get("facts") or []},
    }


def _cut(text: str | None) -> str:
    """No model writes millions of characters in one response, and no browser shows them."""
    text = text or ""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST:,} characters are left out)"


def _finite(value: Any) -> float | None:
    return round(float(value), 6) if value is not None and np.isfinite(value) else None


# ---------------------------------------------------------------------------------------------------- tokens


def token_groups(run: RunContents, step: int) -> frozenset[int]:
    """Return the groups of a step with token records; none if the file is missing or damaged."""
    path = run.folder.tokens_file(step)
    try:
        check_regular(path, run.within)
        stat = path.stat()
        return _token_groups(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, DataError):
        return frozenset()


@lru_cache(maxsize=20_000)
def _token_groups(path: Path, changed: int, size: int) -> frozenset[int]:
    with reading(path), open_parquet(path) as source:
        return frozenset(g for g in source.read(["group"])["group"].to_pylist() if g is not None)


def _add_tokens(run: RunContents, step: int, made: list[GroupView]) -> None:
    """Token records into the responses of groups. A damaged file leaves them without."""
    path, by_group = run.folder.tokens_file(step), {view["group"]: view for view in made}
    try:
        with reading(path), open_parquet(path, run.within) as source:
            table = source.read()
            table = table.filter(pc.is_in(table["group"], pa.array(list(by_group), table["group"].type)))
            columns = {name: table[name] for name in table.column_names}
            for at, (group, sample) in enumerate(
                zip(table["group"].to_pylist(), table["sample"].to_pylist(), strict=True)
            ):
                for response in by_group[group]["responses"]:
                    if response["sample"] == sample:
                        response["tokens"] = _tokens(columns, at)
    except DataError:
        pass
    for view in made:
        view["has_tokens"] = any(response["tokens"] for response in view["responses"])


def _tokens(columns: dict[str, pa.ChunkedArray], at: int) -> Tokens | None:
    """One row of a token file, or None where its lists differ in length."""
    pieces = columns["pieces"][at].as_py() or []
    made: Tokens = {
        "pieces": [piece or "" for piece in pieces],
        "sampler": _rounded(columns, "sampler", at) or [None] * len(pieces),
        "learner": _rounded(columns, "learner", at),
        "ratio": _rounded(columns, "ratio", at),
        "entropy": _rounded(columns, "entropy", at),
        "clip": columns["clip"][at].as_py() if "clip" in columns else None,
        "versions": columns["versions"][at].as_py() or [-1] * len(pieces),
        "given": None,
    }
    own = columns["generated"][at].as_py() if "generated" in columns else None
    lists: list[Any] = [values for values in [*made.values(), own] if values is not None]
    if any(len(values) != len(pieces) for values in lists):
        return None
    made["given"] = None if own is None else [place for place, sampled in enumerate(own) if sampled is False]
    return made


def _rounded(columns: dict[str, pa.ChunkedArray], name: str, at: int) -> list[float | None] | None:
    """In four decimals: enough for a colour, and a third of the bytes."""
    values = columns[name][at].values if name in columns else None
    if values is None:
        return None
    numbers = np.round(np.asarray(values.to_numpy(zero_copy_only=False), np.float64), 4)
    if np.isfinite(numbers).all():
        return numbers.tolist()  # type: ignore[no-any-return]
    return [value if np.isfinite(value) else None for value in numbers.tolist()]
