"""Which rollouts go into a report: what a person would look for first, until the bytes are spent.

In this order: one or more of every verdict and disposition; of the first and last step, of steps that a warning names
and of steps spread evenly the groups with token records, then those of different kinds; the prompts with the longest
history; then whatever else there is room for. What was left out is said.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dapo.errors import DataError
from dapo.observe.samples import Sample
from dapo.report.browse import groups, prompt_views, steps_of
from dapo.report.page_data import Advice, GroupView, HeldOut, PromptView, RolloutsView, Thinned
from dapo.report.reader import RunContents
from dapo.report.rollout_index import Index, Summary, index_of
from dapo.report.rollout_views import token_groups, views

Place = tuple[int, int]
"""(place of the summary in the index, place of the group in the summary)."""

SPREAD = 48
"""Steps spread evenly over the run, of which the first groups are shown."""
OF_A_STEP = 12
"""Groups of such a step before others have their turn."""
OF_OTHERS = 8
"""Groups of every other step, as long as there is room."""
OF_A_KIND = 4
"""Groups of each verdict and disposition, spread over the run."""
STORIES, CHAPTERS = 12, 6
"""Prompts with the longest history of which groups are shown, and how many groups of each."""
PROMPTS, VISITS = 400, 20_000
"""Prompts in the report, and visits of them in all."""
ANSWERS = 9
"""Answers to a held-out problem: the first and the last, and evaluations between them."""
TOKEN_SHARE, HELD_OUT_SHARE = 0.5, 0.15
"""Of the bytes, for token records and for held-out answers."""
EXPANDED = 6
"""Text may be this many times its packed size: a browser must hold it."""
_AT_ONCE, _TOO_LARGE = 256, 16


class SizeMeter:
    """Bytes of JSON texts, packed as one stream. ``zlib`` as ``gzip``, so that it is what a page will weigh."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(6)
        self.packed = self.plain = 0

    def add(self, value: Any) -> int:
        """Weigh one more value; returns its packed bytes."""
        text = json.dumps(value, separators=(",", ":")).encode()
        size = len(self._stream.compress(text)) + len(self._stream.flush(zlib.Z_SYNC_FLUSH))
        self.packed += size
        self.plain += len(text)
        return size

    def within(self, limit: float) -> bool:
        return self.packed <= limit and self.plain <= EXPANDED * limit


def live_rollouts(run: RunContents, first: int = 50) -> RolloutsView:
    """Return the first data of a server's page: the newest step's groups. Everything else is asked for."""
    steps, total = steps_of(run), 0
    shown: list[GroupView] = []
    for step in reversed(steps[-3:]):  # a file that is being removed or is damaged: the one before
        try:
            shown, total = groups(run, step, limit=first)
            break
        except DataError:
            continue
    how = f"The first {len(shown)} of {total} groups of the newest step; the others are fetched as you browse."
    return {
        "steps": steps,
        "groups": shown,
        "prompts": [],
        "held_out": held_out_of(run.samples),
        "thinned": {"kept": len(shown), "of": total, "how": how if len(shown) < total else "Nothing was left out."},
    }


def choose_rollouts(run: RunContents, advice: Sequence[Advice], limit: int) -> tuple[RolloutsView, list[str]]:
    """Rollouts for a report in at most about ``limit`` packed bytes, and notes on what could not be read."""
    index, notes = index_of(run), []
    notes += index.problems[:3]
    if len(index.problems) > 3:
        notes.append(f"{len(index.problems) - 3} more rollout files cannot be read.")
    meter = SizeMeter()
    held_out = held_out_of(run.samples)
    kept_held = []
    for problem in held_out:
        meter.add(problem)
        if not meter.within(HELD_OUT_SHARE * limit):
            break
        kept_held.append(problem)
    histories = _histories(run, index, meter, 0.25 * limit)
    chosen, failed = _fill(run, index, _order(run, index, advice), meter, limit)
    notes += failed[:3]
    chosen.sort(key=lambda at: at[0])
    shown = [view for _, view in chosen]
    return {
        "steps": sorted({view["step"] for view in shown}),
        "groups": shown,
        "prompts": histories,
        "held_out": kept_held,
        "thinned": _said(index, shown, histories, len(held_out) - len(kept_held)),
    }, notes


# ---------------------------------------------------------------------------------------------------- the order


def spread(count: int, wanted: int) -> list[int]:
    """``wanted`` of ``count`` places, spread evenly, the first and the last among them."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(n * (count - 1) / max(1, wanted - 1)) for n in range(wanted)})


def _order(run: RunContents, index: Index, advice: Sequence[Advice]) -> Iterator[Place]:
    """Every group once, what matters most first."""
    seen: set[Place] = set()
    for place in itertools.chain(
        _of_each_kind(index),
        _turns(run, index, _steps_first(index, advice), 4),
        _stories(index),
        _turns(run, index, _steps_first(index, advice), OF_A_STEP),
        _step_by_step(run, index, OF_OTHERS),
        _step_by_step(run, index, None),
    ):
        if place not in seen:
            seen.add(place)
            yield place


def _of_each_kind(index: Index) -> Iterator[Place]:
    kinds: dict[tuple[str | None, str | None], list[Place]] = defaultdict(list)
    for s, summary in enumerate(index.summaries):
        for g, kind in enumerate(zip(summary.verdict, summary.disposition, strict=True)):
            kinds[kind].append((s, g))
    for turn in range(OF_A_KIND):
        for places in kinds.values():
            picks = spread(len(places), OF_A_KIND)
            if turn < len(picks):
                yield places[picks[turn]]


def _steps_first(index: Index, advice: Sequence[Advice]) -> list[int]:
    """Places of the steps that are shown first: the ends, those of warnings, those spread evenly."""
    number = {summary.step: s for s, summary in enumerate(index.summaries)}
    count = len(index.summaries)
    if not count:
        return []
    named = [number[a[end]] for a in advice for end in ("first_step", "last_step") if a[end] in number]  # type: ignore[literal-required]
    return list(dict.fromkeys([0, count - 1, *named, *spread(count, SPREAD)]))


def _halving(count: int) -> Iterator[int]:
    """0 .. count - 1 so that every beginning of the sequence is spread evenly."""
    bits = max(1, (count - 1).bit_length())
    for n in range(1 << bits):
        place = int(f"{n:0{bits}b}"[::-1], 2)
        if place < count:
            yield place


def _turns(run: RunContents, index: Index, steps: Iterable[int], most: int) -> Iterator[Place]:
    """Yield the first group of each step, then the second, and so on."""
    queues = [(s, _within(run, index.summaries[s])) for s in steps]
    for turn in range(most):
        for s, queue in queues:
            if turn < len(queue):
                yield s, queue[turn]


def _step_by_step(run: RunContents, index: Index, most: int | None) -> Iterator[Place]:
    """Yield some groups of one step, then of another: a step of which there is one group alone says little."""
    for s in _halving(len(index.summaries)):
        yield from ((s, g) for g in _within(run, index.summaries[s])[:most])


def _within(run: RunContents, summary: Summary) -> list[int]:
    """Order the groups of a step: those with token records, then one of each kind, then the others in their order."""
    recorded = token_groups(run, summary.step)
    kinds: dict[tuple[str | None, str | None], int] = {}
    for g, kind in enumerate(zip(summary.verdict, summary.disposition, strict=True)):
        kinds.setdefault(kind, g)
    first = [g for g, group in enumerate(summary.group.tolist()) if group in recorded] if recorded else []
    return list(dict.fromkeys([*first, *kinds.values(), *range(len(summary))]))


def _stories(index: Index) -> Iterator[Place]:
    longest = sorted(index.by_prompt.values(), key=lambda visits: -len(visits))[:STORIES]
    for visits in longest:
        if len(visits) > 1:
            for n in spread(len(visits), CHAPTERS):
                yield visits[n]


# ---------------------------------------------------------------------------------------------------- the bytes


def _fill(
    run: RunContents, index: Index, order: Iterator[Place], meter: SizeMeter, limit: int
) -> tuple[list[tuple[Place, GroupView]], list[str]]:
    """Return groups in their order until the bytes are spent. Token records are left out first, once they have had
    theirs."""
    chosen: list[tuple[Place, GroupView]] = []
    failed: dict[int, str] = {}
    tokens, too_large, more_tokens = 0, 0, True
    while limit > 0 and (places := list(itertools.islice(order, _AT_ONCE))):
        for place, view in _load(run, index, places, failed, more_tokens):
            records = [response["tokens"] for response in view["responses"]]
            for response in view["responses"]:
                response["tokens"] = None
            before = meter.packed, meter.plain
            meter.add(view)
            if not meter.within(limit):
                meter.packed, meter.plain = before
                if (too_large := too_large + 1) > _TOO_LARGE:
                    return chosen, list(failed.values())
                continue  # a smaller one may fit
            if view["has_tokens"] and more_tokens:
                before, size = (meter.packed, meter.plain), meter.add(records)
                if meter.within(limit) and tokens + size <= TOKEN_SHARE * limit:
                    tokens += size
                    for response, record in zip(view["responses"], records, strict=True):
                        response["tokens"] = record
                else:
                    meter.packed, meter.plain = before
                    more_tokens = False
            view["has_tokens"] = any(response["tokens"] for response in view["responses"])
            chosen.append((place, view))
    return chosen, list(failed.values())


def _load(
    run: RunContents, index: Index, places: Sequence[Place], failed: dict[int, str], tokens: bool
) -> Iterator[tuple[Place, GroupView]]:
    """Whole groups in the order of ``places``; every file is opened once."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for s, g in places:
        if s not in failed:
            by_step[s].append(g)
    loaded: dict[Place, GroupView] = {}
    for s, wanted in by_step.items():
        wanted.sort()
        try:
            made = views(run, index.summaries[s].step, wanted, whole=True, tokens=tokens)
        except (DataError, IndexError) as error:  # replaced since: by a resume, say
            failed[s] = str(error)
            continue
        loaded |= {(s, g): view for g, view in zip(wanted, made, strict=True)}
    yield from ((place, loaded[place]) for place in places if place in loaded)


def _histories(run: RunContents, index: Index, meter: SizeMeter, limit: float) -> list[PromptView]:
    """Return the prompts with the longest histories."""
    names = sorted(index.by_prompt, key=lambda name: -len(index.by_prompt[name]))[:PROMPTS]
    visits = list(itertools.accumulate(len(index.by_prompt[name]) for name in names))
    kept, before = [], meter.packed
    for view in prompt_views(run, [name for name, sofar in zip(names, visits, strict=True) if sofar <= VISITS]):
        meter.add(view)
        if meter.packed - before > limit:
            break
        kept.append(view)
    return kept


def held_out_of(samples: Sequence[Sample]) -> list[HeldOut]:
    """Return validation problems with their answers over time, those that changed most first.

    Of several sampled answers of one evaluation the first; of many evaluations the ends and some between.
    """
    found: dict[tuple[str, str, bool], dict[int, Sample]] = defaultdict(dict)
    for sample in samples:
        found[sample.set, sample.prompt_id, sample.greedy].setdefault(sample.step, sample)

    def change(answers: dict[int, Sample]) -> float:
        first, last = answers[min(answers)], answers[max(answers)]
        return abs((last.accuracy or 0.0) - (first.accuracy or 0.0))

    made: list[HeldOut] = []
    for answers in sorted(found.values(), key=change, reverse=True):
        steps = sorted(answers)
        shown = [answers[steps[n]] for n in spread(len(steps), ANSWERS)]
        last = shown[-1]
        made.append(
            {
                "set": last.set,
                "prompt_id": last.prompt_id,
                "problem": last.problem or last.prompt,
                "prompt": last.prompt,
                "answer": last.answer,
                "greedy": last.greedy,
                "answers": [(s.step, s.response, s.accuracy, s.length, s.truncated) for s in shown],
            }
        )
    return made


def _said(index: Index, shown: Sequence[GroupView], prompts: Sequence[PromptView], problems_left: int) -> Thinned:
    parts = []
    if len(shown) < index.groups:
        steps = len({view["step"] for view in shown})
        parts.append(
            f"{len(shown):,} of {index.groups:,} groups, of {steps:,} of {len(index.summaries):,} steps: the first, "
            "the last, those that a warning names, others spread evenly"
        )
        there = {(v, d) for each in index.summaries for v, d in zip(each.verdict, each.disposition, strict=True)}
        if there == {(view["verdict"], view["disposition"]) for view in shown}:
            parts[-1] += ", every verdict and disposition among them"
    if len(prompts) < len(index.by_prompt):
        parts.append(f"{len(prompts):,} of {len(index.by_prompt):,} prompts, those of the longest history")
    if problems_left:
        parts.append(f"{problems_left} held-out problems were left out")
    how = f"{'; '.join(parts)}. `dapo view` shows all." if parts else "Nothing was left out."
    return {"kept": len(shown), "of": index.groups, "how": how}
