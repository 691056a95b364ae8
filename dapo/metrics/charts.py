"""Charts of a run: which metrics share one and what it says, as ``charts.yaml`` beside this file has it.

The page and curve.png read that table. On the page a metric that it does not name has a chart of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Required, TypedDict

from ruamel.yaml import YAML

from dapo.metrics.glossary import GLOSSARY, lookup, placeholders

CURVE, OTHER = "curve", "other"
"""Sections: charts of curve.png alone, and metrics that the table does not name."""

Entry = dict[str, Any]
Names = Mapping[str, str]
"""Placeholders, and what stands for each."""
Found = Mapping[str, Sequence[tuple[Names, str]]]
"""Lines of the glossary, and the keys of a run under each."""


class Series(TypedDict, total=False):
    """A line of a chart."""

    key: Required[str]
    label: Required[str]
    low: str  # metrics at the ends of a band
    high: str
    colour: str
    optional: bool  # left out while all its numbers are 0


class Chart(TypedDict, total=False):
    """Metrics that are drawn together."""

    id: Required[str]
    section: Required[str]  # learning | health | cost | other
    title: Required[str]
    unit: Required[str]
    series: Required[list[Series]]  # a run may have few of them
    says: str
    kind: str  # stack
    log: bool
    optional: bool  # every series is


@cache
def table() -> Sequence[Entry]:
    """Return the entries, each with its id, its section, and its series as a list."""
    sections = YAML(typ="safe").load(Path(__file__).with_name("charts.yaml"))
    return [
        entry | {"id": name, "section": section, "series": [_series(*one) for one in entry["series"].items()]}
        for section, entries in sections.items()
        for name, entry in entries.items()
    ]


def _series(key: str, of: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"key": key, **({"label": of} if isinstance(of, str) else of)}


def charts_of(keys: Iterable[str]) -> list[Chart]:
    """Return the charts of the page for runs with these metrics, in their order."""
    known = dict.fromkeys(keys)
    found: dict[str, list[tuple[Names, str]]] = defaultdict(list)
    for key in known:
        metric, names = placeholders(key) or (None, {})
        found[metric.key if metric else key].append((names, key))
    page = [entry for entry in table() if entry["section"] != CURVE]
    made = [
        _chart(entry, names, texts, found)
        for _, alike in groupby(page, lambda entry: entry["id"].rpartition("/")[0])
        for entry, names, texts in _copies(list(alike), found)
        if ("needs" not in entry or entry["needs"] in known) and entry.get("unless") not in known
    ]
    made = [chart for chart in made if any(series["key"] in known for series in chart["series"])]
    return made + [_alone(key) for line, of in found.items() if line not in _named() for _, key in of]


def _copies(alike: Sequence[Entry], found: Found) -> Iterator[tuple[Entry, Names, Names]]:
    """Yield entries with the same placeholder, once for each name in its place, and what replaces it in texts.

    All entries of one data set come before those of the next. Where there is one set, its numbers are those of all.
    """
    first = alike[0]["series"][0]["key"]
    copies: list[tuple[Names, Names]] = [({}, {})]
    if "<" in alike[0]["id"]:
        copies = [(names, {f"<{name}>": text for name, text in names.items()}) for names, _ in found.get(first, ())]
        if (of_all := first.replace("<set>/", "")) != first and of_all in found:
            several = copies if len(copies) > 1 else []
            copies = [({}, {" · <set>": " · mean of the sets" if several else "", "<set>/": ""}), *several]
    yield from ((entry, names, texts) for names, texts in copies for entry in alike)


def _chart(entry: Entry, names: Names, texts: Names, found: Found) -> Chart:
    return {
        **entry,  # type: ignore[typeddict-item]
        "id": _replaced(entry["id"], texts),
        "title": _replaced(entry["title"], texts),
        "unit": GLOSSARY[entry["series"][0]["key"]].unit,
        "series": [series for line in entry["series"] for series in _lines(line, names, texts, found)],
    }


def _lines(line: Series, names: Names, texts: Names, found: Found) -> list[Series]:
    """Return a line of a chart; where a placeholder is left in it, one for each name that a run has in its place."""
    filled: Any = {mark: _replaced(of, texts) if isinstance(of, str) else of for mark, of in line.items()}
    if "<" not in filled["key"]:
        return [filled]
    copies = [
        (of, key)
        for of, key in found.get(line["key"] if names else filled["key"], ())
        if names.items() <= of.items() and not key.endswith("pass@1")  # which is the accuracy
    ]
    copies.sort(key=lambda copy: (len(copy[0].get("k", "")), copy[0].get("k", "")))
    return [
        filled | {"key": key, "label": _replaced(filled["label"], {f"<{name}>": text for name, text in of.items()})}
        for of, key in copies
    ]


def _alone(key: str) -> Chart:
    """Return the chart of a metric that the table does not name."""
    metric = lookup(key)
    return {
        "id": f"{OTHER}/{key}",
        "section": OTHER,
        "title": key,
        "unit": metric.unit if metric else "1",
        "optional": True,
        "series": [{"key": key, "label": key}],
    }


@cache
def _named() -> frozenset[str]:
    """Return the lines of the glossary that the page's charts name, those for a set and those for all of them."""
    page = [line for entry in table() if entry["section"] != CURVE for line in entry["series"]]
    lines = [line[end] for line in page for end in ("key", "low", "high") if end in line]
    return frozenset([*lines, *(line.replace("<set>/", "") for line in lines)])


def _replaced(text: str, texts: Names) -> str:
    for placeholder, of in texts.items():
        text = text.replace(placeholder, of)
    return text
