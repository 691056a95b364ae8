"""``python tests/helpers/metrics_page.py`` writes docs/metrics.md from the glossary; a test keeps it current."""

from __future__ import annotations

from pathlib import Path

from dapo.config.peer_names import PEER_METRICS, PeerMetric
from dapo.metrics.glossary import AREAS, GLOSSARY
from dapo.metrics.metric import Metric

PAGE = Path("docs/metrics.md")

_HEAD = """\
# Metrics

Every number of `RUN/metrics.jsonl`: one JSON object a line, one line a training step. A number is of its step unless
its meaning says otherwise. `null` was not finite. A key is missing where it was not measured: validation between
evaluations, the mean length of correct responses when there is none. `dapo explain WORD` knows every word that a run
prints. Each key `validation/...` also exists for each set: `validation/<set>/...`.

`<set>` is the name of a data set, `<name>` of a reward, `<reason>` why a response is unscored, `<k>` a number of
samples, `<age>` one of versions. ↑ marks numbers that are better when higher, ↓ when lower; ◷ marks times, memory and
work done again, which differ between two runs that are otherwise equal to the bit.
"""
_ELSEWHERE = """
## Names elsewhere

P and G are prompts of a step and responses of a prompt. `dapo explain NAME` knows these names too.

| elsewhere | here |
| --- | --- |
"""


def render() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, lines in AREAS.items():
        parts.append(f"\n## {title}\n\n| key | unit | meaning |\n| --- | --- | --- |\n")
        # a number that another line has over all sets is left out
        parts.extend(_row(m) for m in lines() if "<set>" not in m.key or m.key.replace("<set>/", "") not in GLOSSARY)
    parts.append(_ELSEWHERE)
    names: dict[str, list[str]] = {}
    for metric in PEER_METRICS:
        names.setdefault(_here(metric), []).append(f"`{metric.key}` ({', '.join(metric.who)})")
    parts.extend(f"| {', '.join(theirs)} | {here} |\n" for here, theirs in names.items())
    return "".join(parts)


def _here(metric: PeerMetric) -> str:
    """Our keys, or the formula where it names all of them."""
    keys = ", ".join(f"`{key}`" for key in metric.ours)
    if not metric.how or all(f"`{key}`" in metric.how for key in metric.ours):
        return metric.how or keys
    return f"{keys}: {metric.how}"


def _row(metric: Metric) -> str:
    marks = {"higher": " ↑", "lower": " ↓", None: ""}[metric.better] + (" ◷" if metric.clock else "")
    meaning = metric.meaning.replace("|", "\\|")  # a bar would end the table's cell
    return f"| `{metric.key}` | {metric.unit}{marks} | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
