"""Groups, responses, tokens and prompts of a run, as a page shows them; what a person looks for is found by file.

Groups are in the order of their steps and files. The texts of a step are read when they are asked for; only a few
numbers a group stay in memory (``rollout_index``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dapo.errors import DataError
from dapo.observe.text import utf8
from dapo.report.page_data import GroupView, PromptView
from dapo.report.prompts_file import problems_of
from dapo.report.reader import RunContents
from dapo.report.recent import Recent
from dapo.report.rollout_index import THREADS, Index, Summary, files_of, index_of, opened, read_columns, reading
from dapo.report.rollout_views import rows_of, token_groups, views, visit_of
from dapo.types.batch import BoolArray

MOST = 200
"""Groups or prompts of one answer."""
LONGEST_SEARCH = 1000
"""Characters of a text to look for."""


def steps_of(run: RunContents) -> list[int]:
    """Return the steps whose groups can be read."""
    return list(files_of(run))


# ---------------------------------------------------------------------------------------------------- groups


def groups(
    run: RunContents,
    step: int | None,
    *,
    verdict: str | None = None,
    disposition: str | None = None,
    text: str | None = None,
    prompt_id: str | None = None,
    source: str | None = None,
    has_tokens: bool | None = None,
    limit: int = 50,
    offset: int = 0,
) -> tuple[list[GroupView], int]:
    """Return groups of a step without their responses, and how many there are in all.

    Args:
        run: the run.
        step: None: of every step. With ``text``, that reads every file.
        verdict: only groups of this verdict; likewise ``disposition``, ``prompt_id`` and ``source``.
        text: only groups with this in the prompt, the answer or a response; capitals do not count.
        has_tokens: only groups with (or without) token records.
        limit: at most this many, and at most ``MOST``.
        offset: leave out this many first.

    Raises:
        DataError: no rollouts of that step, or a damaged file.
    """
    limit, offset = max(0, min(limit, MOST)), max(0, offset)
    wanted = {"verdict": verdict, "disposition": disposition, "prompt_id": prompt_id, "source": source}
    found: list[tuple[int, int]] = []  # step, place in its summary
    for summary in _summaries(run, step, prompt_id):
        chosen = np.ones(len(summary), np.bool_)
        for name, value in wanted.items():
            if value:
                chosen &= np.array([v == value for v in getattr(summary, name)], np.bool_)
        if has_tokens is not None and chosen.any():
            chosen &= np.isin(summary.group, list(token_groups(run, summary.step))) == has_tokens
        if text and chosen.any():
            chosen &= _having(run, summary, text)
        found += [(summary.step, int(g)) for g in np.flatnonzero(chosen)]
    page = found[offset : offset + limit]
    shown: list[GroupView] = []
    for at in dict.fromkeys(s for s, _ in page):
        shown += views(run, at, [g for s, g in page if s == at])
    return shown, len(found)


def group(run: RunContents, step: int, group: int) -> GroupView:
    """One group whole: its responses, and their tokens where those were recorded.

    Raises:
        DataError: no such group, or a damaged file.
    """
    with opened(run, step) as (_, summary):
        place = summary.find(group)
    if place is None:
        raise DataError(f"step {step} of {run.name} has no group {group} in its rollouts, but {len(summary)} others.")
    return views(run, step, [place], whole=True)[0]


def _summaries(run: RunContents, step: int | None, prompt_id: str | None) -> Iterator[Summary]:
    if step is None:
        index = index_of(run)
        if prompt_id:
            places = dict.fromkeys(s for s, _ in index.by_prompt.get(prompt_id, []))
            yield from (index.summaries[s] for s in places)
        else:
            yield from index.summaries
    else:
        with opened(run, step) as (_, summary):
            yield summary


def _having(run: RunContents, summary: Summary, text: str) -> BoolArray:
    """Return which groups contain a text anywhere."""
    pattern = utf8(text)[:LONGEST_SEARCH]
    hit = np.zeros(int(summary.size.sum()), np.bool_)
    with opened(run, summary.step) as (file, now), reading(summary.path):
        table = read_columns(file, ("prompt", "answer", "response"))
        for column in table.columns:
            for at, part in _chunks(column):
                hit[at : at + len(part)] |= _matches(part, pattern)
        if len(now) != len(summary) or len(table) != len(hit):
            raise DataError(f"{summary.path.name} was replaced while it was read; ask again.")
    return np.logical_or.reduceat(hit, summary.first) if len(summary) else np.zeros(0, np.bool_)


def _chunks(column: pa.ChunkedArray) -> Iterator[tuple[int, pa.Array]]:
    at = 0
    for part in column.chunks:
        yield at, part
        at += len(part)


def _matches(part: pa.Array, pattern: str) -> BoolArray:
    if pa.types.is_null(part.type):
        return np.zeros(len(part), np.bool_)
    if pa.types.is_dictionary(part.type):  # each text once
        hit = _matches(part.dictionary, pattern)
        codes = pc.fill_null(part.indices, -1).to_numpy(zero_copy_only=False)
        return np.asarray(np.append(hit, False)[codes], np.bool_)
    found = pc.match_substring(part, pattern, ignore_case=True)
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


# ---------------------------------------------------------------------------------------------------- prompts


def prompts(
    run: RunContents, text: str | None = None, limit: int = 50, offset: int = 0
) -> tuple[list[PromptView], int]:
    """Prompts that were visited, those of the longest history first, and how many there are in all.

    Args:
        run: the run.
        text: only prompts with this in the problem, the answer or the source; capitals do not count.
        limit: at most this many, and at most ``MOST``.
        offset: leave out this many first.
    """
    limit, offset = max(0, min(limit, MOST)), max(0, offset)
    index = index_of(run)
    names = sorted(index.by_prompt, key=lambda name: -len(index.by_prompt[name]))
    if text:
        known, wanted = texts_of(run, index, names), utf8(text)[:LONGEST_SEARCH].casefold()
        names = [n for n in names if any(wanted in part.casefold() for part in (*known.get(n, ()), n))]
    page = names[offset : offset + limit]
    return prompt_views(run, page), len(names)


def prompt(run: RunContents, prompt_id: str) -> PromptView:
    """Return a prompt and its result in each step.

    Raises:
        DataError: no step has a group of it.
    """
    if prompt_id not in index_of(run).by_prompt:
        raise DataError(f"no rollouts of {run.name} have a group of the prompt {prompt_id!r}.")
    return prompt_views(run, [prompt_id])[0]


def prompt_views(run: RunContents, names: Sequence[str]) -> list[PromptView]:
    """Prompts by their ids, in that order."""
    if not names:
        return []
    index = index_of(run)
    known = texts_of(run, index, names)
    return [_prompt_view(index, name, *known.get(name, ("", "", ""))) for name in names]


def _prompt_view(index: Index, name: str, problem: str, answer: str, source: str) -> PromptView:
    visits = [visit_of(index.summaries[s], g) for s, g in index.by_prompt[name]]
    return {"id": name, "source": source, "prompt": problem, "answer": answer, "visits": visits}


def texts_of(run: RunContents, index: Index, names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Prompt -> problem, answer and source: of prompts.parquet, or of the rollouts where that file has it not."""
    known = dict(problems_of(run))
    missing = [name for name in names if name not in known]
    return {**known, **_texts_of_rollouts(run, index, missing)} if missing else known


_MOST_RUNS = 16  # whose texts are kept
_found_texts: Recent[Path, dict[str, tuple[str, str, str]]] = Recent(_MOST_RUNS)
"""A prompt's id is a hash of its problem, so its text never changes."""


def _texts_of_rollouts(run: RunContents, index: Index, names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Return prompts as the model saw them, from the last group of each, where prompts.parquet lacks them."""
    known = _found_texts.keep(run.folder.rollouts, _found_texts.get(run.folder.rollouts, {}))
    missing: dict[int, list[tuple[str, int]]] = {}
    for name in names:
        if name not in known and name in index.by_prompt:
            s, g = index.by_prompt[name][-1]
            missing.setdefault(index.summaries[s].step, []).append((name, g))

    def read(job: tuple[int, list[tuple[str, int]]]) -> None:
        step, wanted = job
        try:
            with opened(run, step) as (file, summary), reading(summary.path):
                columns = ("prompt_id", "prompt", "answer", "source")
                for (name, _), (_, rows) in zip(
                    wanted, rows_of(file, summary, [g for _, g in wanted], columns, False), strict=True
                ):
                    if rows[0]["prompt_id"] == name:
                        known[name] = tuple(rows[0][column] or "" for column in columns[1:])  # type: ignore[assignment]
        except DataError:
            pass

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, missing.items()))
    return known
