"""``dapo data``: what a run made of its prompts, and where the generated tokens went. Reads only, imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dapo.cli.run_data import RunData, load_run, recent_shares
from dapo.errors import CheckpointError
from dapo.observe.columns import changes_by_value, fallen_said
from dapo.observe.evaluations import read_held_out
from dapo.observe.held_out import accuracy_of
from dapo.observe.live_view import ACCENT, BAD, GOOD, QUIET
from dapo.observe.metrics import Row, series
from dapo.observe.prompts import History, Standing
from dapo.observe.run_folder import RunFolder
from dapo.observe.text import clean, number, percent, shorten, sparkline
from dapo.observe.why import LATER, by_verdict, heartbeat, start_said, why
from dapo.types.batch import BoolArray, IntArray
from dapo.types.enums import Verdict
from dapo.types.evidence import HEALTHY

Show = Literal["solved", "hopeless", "useful", "unseen", "all"]

EXAMPLES = 3
"""Prompts of each kind in the overview."""
LISTED = 20
"""Prompts that ``--show`` lists unless ``--limit`` says otherwise."""
_COLUMNS = 120
"""Wider lines are harder to read: the rest of a broad terminal stays empty."""

_STANDINGS = {
    Standing.SOLVED: (GOOD, "all correct"),
    Standing.USEFUL: (ACCENT, "mixed"),
    Standing.HOPELESS: (BAD, "all wrong"),
    Standing.UNJUDGED: ("yellow", "too few votes"),
}
_SPENT = {
    "trained": "in the batches",
    "filled": "rejected, yet trained to fill a batch",
    "rejected": "groups that the keep rule rejected",
    "discarded": "kept surplus and unfinished, not carried",
    "expired": "held back, and dropped at the age limit",
    "held": "waiting for the next steps",
}
"""What became of the generated tokens: ``total/cost/<name>_tokens``, and ``cost/held_tokens``, of the last row."""


def show_data(run: Path, show: Show | None, limit: int | None, step: int | None) -> None:
    """Print the overview of a run, or with ``show`` the list of its prompts of one kind.

    Args:
        run: the run's folder; the run may be going on, and nothing is written.
        show: the kind of prompts to list; None: the overview.
        limit: prompts to list of each kind; None: 3 in the overview, 20 in a list.
        step: the checkpoint to read, and the last step of the metrics; None: the newest.

    Raises:
        RecipeError: there is no run in the folder.
        CheckpointError: no checkpoint of ``step``; a damaged one; or no history, which ``show`` needs.
        DataError: files of the run that are damaged.
    """
    console, data = Console(highlight=False), load_run(RunFolder.open(run), step)
    if show is not None:
        if data.history is None:
            raise CheckpointError(f"no prompts to list: {' '.join(data.notes)}")
        parts = list(_listed(data, data.history, show, LISTED if limit is None else limit))
    else:
        parts = [_head(data)]
        if data.history is not None:
            parts += _prompts(data, data.history)
            parts += _examples(data, data.history, EXAMPLES if limit is None else limit)
        parts += [*_account(data), *_acceptance(data), *_by_column(data)]
    width = min(console.width, _COLUMNS)
    console.print(Group(*parts), width=width)


# ---------------------------------------------------------------------------------------------------- the prompts


def _head(data: RunData) -> RenderableType:
    name = clean(data.folder.path.resolve().name, newlines=False)
    head = Text.assemble((name, "bold"))
    if data.rows:
        of = f" of {data.recipe.trainer.steps}" if data.recipe else ""
        head.append(f"  step {data.rows[-1]['step']}{of}", style=QUIET)
    if data.history is not None:
        passes = f", passed over {data.passes} times" if data.passes else ""
        head.append(f"  {data.history.size:,} prompts{passes}, as of step {data.step}", style=QUIET)
    for note in data.notes:
        head.append("\n" + clean(note, newlines=False), style="yellow")
    return head


def _section(title: str) -> list[RenderableType]:
    return [Text(), Text(title, style="bold")]


def _say(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def _table(*columns: str) -> Table:
    """Names at the left, numbers at the right, an optional remark."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=QUIET)
    table.add_column("  " + columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(style=QUIET)  # the one that gives way where it is narrow
    return table


def _prompts(data: RunData, history: History) -> list[RenderableType]:
    lasts = history.last_pass_rates()

    def numbers(chosen: BoolArray) -> list[str]:
        visits = f"{history.visits[chosen].mean():.1f}" if chosen.any() else "–"
        share = percent(chosen.sum() / max(1, history.size))
        return [f"{chosen.sum():,}", share, visits, percent(_mean(lasts[chosen]))]

    table = _table("", "prompts", "share", "visits each", "pass rate")
    for standing, (style, meaning) in _STANDINGS.items():
        chosen = history.standing(standing)
        if chosen.any() or standing is not Standing.UNJUDGED:
            table.add_row(Text(f"  {standing}", style=style), *numbers(chosen), meaning)
        for verdict in (Verdict.UNIFORM, Verdict.OUT_OF_BAND) if standing is Standing.USEFUL else ():
            if (apart := history.having(verdict)).any():
                table.add_row(f"    {verdict.replace('_', ' ')}", *numbers(apart), "of these, rejected all the same")
    share = percent(history.unseen / max(1, history.size))
    table.add_row(Text("  never seen", style=QUIET), f"{history.unseen:,}", share, "0", "–", "")
    everyone = np.ones(len(history.ids), np.bool_)
    table.add_row("  seen", *numbers(everyone), f"over all visits {percent(_mean(history.pass_rates()))}")
    parts = [*_section("The prompts, by their last visit"), table, *_selection(data, history)]
    return [*parts, *_histogram(lasts), *_sources(data, history)]


def _selection(data: RunData, history: History) -> Iterator[RenderableType]:
    """Retired and skipped prompts, where the recipe asks for that."""
    settings = data.recipe.algorithm.dynamic_sampling.selection if data.recipe else None
    if settings is None:
        return
    if settings.retire is not None:
        count = int(history.retired(settings.retire.at).sum())
        share = settings.retire.review
        review = f"one in {1 / share:.0f} of their turns is a review" if share else "none is taken again"
        yield _say(
            f"{count:,} of them are retired (pass rate of the last visit at least {percent(settings.retire.at, 0)}); "
            f"{review}.",
            QUIET,
        )
    if settings.greso is not None:
        yield _say(
            f"GRESO: p_easy {history.greso.p_easy:.2f}, p_hard {history.greso.p_hard:.2f}; "
            f"{int((history.streak > 0).sum()):,} prompts are skipped at times (no variance at their last visits).",
            QUIET,
        )


def _histogram(rates: np.ndarray) -> Iterator[RenderableType]:
    """Prompts by the pass rate of their last visit; nothing and everything correct are apart from the rest."""
    rates = rates[~np.isnan(rates)]
    if not len(rates):
        return
    edges = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    inner = [((rates >= a) & (rates < b) & (rates > 0.0)).sum() for a, b in itertools.pairwise(edges)]
    counts = [int((rates == 0.0).sum()), *map(int, inner), int((rates >= 1.0).sum())]
    names = ["0%", "0–20%", "20–40%", "40–60%", "60–80%", "80–100%", "100%"]
    styles = [BAD, *[ACCENT] * 5, GOOD]
    table = _table("pass rate", "prompts")
    for name, count, style in zip(names, counts, styles, strict=True):
        bar = "█" * round(40 * count / max(counts)) or ("▏" if count else "")
        table.add_row(f"  {name}", f"{count:,}", Text(bar, style=style))
    yield Text()
    yield table


def _sources(data: RunData, history: History) -> Iterator[RenderableType]:
    """Yield the same by data source, when there are several."""
    if len(data.sources) < 2:
        return
    source_of = np.array([data.problems[name][2] if name in data.problems else "" for name in history.ids], object)
    rates = history.last_pass_rates()
    table = _table("source", "prompts", "solved", "useful", "hopeless", "never seen", "pass rate, last")
    for source, count in data.sources.most_common():
        mine = np.asarray(source_of == source, np.bool_)
        three = [history.standing(s) & mine for s in (Standing.SOLVED, Standing.USEFUL, Standing.HOPELESS)]
        shares = [percent(chosen.sum() / count) for chosen in three]
        unseen = percent(1 - mine.sum() / count)
        name = shorten(clean(source, newlines=False), 30)
        table.add_row(f"  {name}", f"{count:,}", *shares, unseen, percent(_mean(rates[mine])))
    yield Text()
    yield table


# ---------------------------------------------------------------------------------------------------- examples


def _order(history: History, standing: Standing) -> IntArray:
    """Return the indices of the prompts of one standing, the most informative first."""
    index = np.flatnonzero(history.standing(standing))
    keys: dict[Standing, tuple[IntArray, ...]] = {  # the last key counts first
        Standing.SOLVED: (-history.visits, history.last_step),  # longest ago: are they still?
        Standing.USEFUL: (-history.last_step, -history.visits),
        Standing.HOPELESS: (history.correct, -history.visits),  # most effort for nothing
        Standing.UNJUDGED: (-history.visits,),
    }
    return index[np.lexsort(tuple(key[index] for key in keys[standing]))]


_ORDER_NAMES = {
    Standing.SOLVED: "judged longest ago first",
    Standing.USEFUL: "most visits first",
    Standing.HOPELESS: "most visits first",
    Standing.UNJUDGED: "most visits first",
}


def _examples(data: RunData, history: History, limit: int) -> Iterator[RenderableType]:
    for standing in (Standing.HOPELESS, Standing.SOLVED, Standing.UNJUDGED):
        index = _order(history, standing)[:limit]
        if len(index):
            yield from _section(f"{standing}, {_ORDER_NAMES[standing]}")
            yield from (_example(data, history, i) for i in index)


def _listed(data: RunData, history: History, show: Show, limit: int) -> Iterator[RenderableType]:
    yield _head(data)
    for standing in Standing:
        if show in (standing, "all"):
            index = _order(history, standing)
            if len(index) or show != "all":
                shown = f"the first {limit:,} of " if len(index) > limit else ""
                yield from _section(f"{standing}: {shown}{len(index):,} prompts, {_ORDER_NAMES[standing]}")
            yield from (_example(data, history, i, named=True) for i in index[:limit])
    if show in ("unseen", "all"):
        seen = set(history.ids)
        unseen = [name for name in data.problems if name not in seen]
        shown = f"the first {limit:,} of " if history.unseen > limit else ""
        yield from _section(f"never seen: {shown}{history.unseen:,} prompts, in the order of the data")
        if history.unseen and not unseen:
            yield _say("Without prompts.parquet they are not known by name.", "yellow")
        yield from (_problem(data, name, "", named=True) for name in unseen[:limit])


def _example(data: RunData, history: History, i: int, named: bool = False) -> RenderableType:
    visits = "1 visit" if history.visits[i] == 1 else f"{history.visits[i]:,} visits"
    said = (
        f"{history.last_correct[i]} of {history.last_responses[i]} correct" if history.last_responses[i] else "no vote"
    )
    said += f" at step {history.last_step[i]}, {visits}"
    if history.visits[i] > 1 and history.responses[i]:
        said += f", {history.correct[i]:,} of {history.responses[i]:,} in all"
    return _problem(data, history.ids[i], said, named)


def _problem(data: RunData, name: str, said: str, named: bool) -> RenderableType:
    """Return a problem in about two lines, then what is known of it; all of it is untrusted text."""
    name = clean(name, newlines=False)
    if name not in data.problems:
        return Group(_say(f"prompt {name}"), Padding(Text(said, style=QUIET), (0, 0, 0, 4), expand=False))
    problem, answer, source = (clean(text, newlines=False).strip() for text in data.problems[name])
    details = [said] if said else []
    details += [f"answer {shorten(answer, 30)}"] if answer else []
    details += [shorten(source, 30)] if len(data.sources) > 1 else []
    details += [name] if named else []
    return Group(
        _say(shorten(problem, 140)), Padding(Text(" · ".join(details), style=QUIET), (0, 0, 0, 4), expand=False)
    )


# ---------------------------------------------------------------------------------------------------- the account


def _spent(data: RunData) -> tuple[dict[str, float], float]:
    """Tokens by what became of them, and all generated tokens: of the last step, or of a later checkpoint.

    A step that was stopped has no row; its tokens are in the checkpoint that was saved then.
    """
    last: Row = data.rows[-1] if data.rows else {}
    total, held = last.get("counters/generated_tokens") or 0.0, last.get("cost/held_tokens")
    counts: Mapping[str, float | None] = {k.removeprefix("total/"): v for k, v in last.items()}
    if data.totals.get("sampling/generated_tokens", 0.0) > total:
        total, held, counts = data.totals["sampling/generated_tokens"], None, data.totals
    spent = {name: counts.get(f"cost/{name}_tokens") or 0.0 for name in _SPENT if name != "held"}
    return spent | {"held": total - sum(spent.values()) if held is None else held}, total


def _account(data: RunData) -> Iterator[RenderableType]:
    yield from _section("Where the generated tokens went")
    rows = data.rows
    spent, total = _spent(data)
    if data.last_step and not data.totals and not any(key.startswith("total/") for key in rows[-1]):
        yield _say("Not known: these steps were recorded by a version that kept no account.", "yellow")
        return
    if not total:
        so_far = data.filling.generated_tokens if data.filling is not None else 0
        said = f"{so_far:,} tokens so far: their account is made when the step is done." if so_far else ""
        yield _say(said or "No token was generated yet.", "yellow")
        return
    table = _table("", "tokens", "share", "seconds")
    for name, tokens in spent.items():
        if tokens or name in ("trained", "rejected"):
            seconds = sum(series(rows, f"cost/{name}_seconds")[1])
            style = GOOD if name == "trained" else "" if name in ("held", "filled") else BAD
            table.add_row(
                Text(f"  {name}", style=style),
                f"{tokens:,.0f}",
                percent(tokens / total),
                number(seconds or None),
                _SPENT[name],
            )
    worked = sum(sum(series(rows, key)[1]) for key in ("time/generate", "time/score", "time/judge"))
    table.add_row(
        "  generated", f"{total:,.0f}", percent(1.0), number(worked or None), "seconds: generating and scoring"
    )
    yield table


_MODES = {
    "mask": "rejected groups are dropped and not replaced",
    "replace": "copies of kept groups train in place of rejected ones",
}


def _acceptance(data: RunData) -> Iterator[RenderableType]:
    """Yield the acceptance rate over the run, and its parts."""
    _, rates = series(data.rows, "sampling/acceptance_rate")
    shares, when = recent_shares(data)
    yield from _section("Why a batch takes as long to fill as it does")
    if rates:
        mean = percent(sum(rates) / len(rates))
        yield _say(
            f"groups kept: {percent(rates[0])} in the first step, {percent(rates[-1])} in the last, {mean} on average"
        )
        yield _say(sparkline(rates, 60), ACCENT)
    mode = data.recipe.algorithm.dynamic_sampling.mode if data.recipe is not None else "filter"
    if mode == "off":
        yield _say("Dynamic sampling is off: every group with two voters trains.")
        return
    if shares.judged:
        said = [f"{percent(share)} {name}" for name, share in by_verdict(shares) if share]
        yield _say(f"{shares.judged:,} groups judged {when}: {', '.join(said)}.")
    if data.filling is not None:
        yield _say(f"{heartbeat(data.filling)}.", "yellow" if data.filling.starves else "")
    if foretold := _foretold(data):
        yield _say(foretold, "yellow")
    if mode != "filter" and shares.kept >= HEALTHY:  # these do not refill to P
        yield _say(f"Mode {mode}: {_MODES[mode]}.")
        return
    yield _say(why(shares, LATER if data.filling is not None else clean(str(data.folder.rollouts), newlines=False)))


def _foretold(data: RunData) -> str:
    """Return what the evaluation before training says of a first step that is not done, and does not starve yet."""
    starves = data.filling is not None and data.filling.starves
    held_out = None if data.last_step or starves else read_held_out(data.folder.evaluation_file(0))
    return start_said(held_out, data.recipe) if held_out is not None and data.recipe is not None else ""


def _by_column(data: RunData) -> Iterator[RenderableType]:
    """Yield held-out accuracy by the columns of the data, at the first and the last evaluation."""
    found = (accuracy_of(row, lambda step: read_held_out(data.folder.evaluation_file(step))) for row in data.rows)
    points = [point for point in found if point is not None]
    changes = changes_by_value(points)
    if not changes:
        return
    yield from _section("Held-out accuracy, by columns of the data")
    table = _table("", "problems", f"step {points[0].step}", f"step {points[-1].step}", "change")
    for one in changes:
        style = GOOD if one.change.low > 0 else BAD if one.fell else ""
        change = Text(f"{100 * one.change.mean:+.1f}", style=style)
        name = shorten(clean(one.value.set, newlines=False), 30)
        table.add_row(f"  {one.value}", f"{one.problems:,}", percent(one.before), percent(one.after), change, name)
    yield table
    if said := fallen_said(changes, points):
        yield _say(said, "yellow")


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of measured values; None if there are none."""
    measured = values[~np.isnan(values)]
    return float(measured.mean()) if len(measured) else None
