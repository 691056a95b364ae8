"""``python -m dapo.observe.glossary_page`` writes docs/metrics.md from the glossary; a test keeps it current."""

from __future__ import annotations

from pathlib import Path

from dapo.contracts.glossary import AREAS
from dapo.contracts.metric import Metric

PAGE = Path("docs/metrics.md")

_HEAD = """\
# Metrics

Every number of `RUN/metrics.jsonl`: one JSON object a line, one line a training step. `null` stands for a number that
was not finite. A key is missing where it was not measured (validation between evaluations, the mean length of correct
responses when there is none). Made from `dapo/contracts/glossary.py` by `python -m dapo.observe.glossary_page`.

`<set>` is the name of a validation set, `<name>` of a reward, `<reason>` why a response is unscored, `<k>` a number of
samples, `<age>` one of versions. ↑ marks numbers that are better when higher, ↓ when lower; ◷ marks times and memory,
which differ between two runs that are otherwise equal to the bit.
"""


def render() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for title, lines in AREAS.items():
        parts.append(f"\n## {title}\n\n| key | unit | | meaning |\n| --- | --- | --- | --- |\n")
        parts.extend(_row(metric) for metric in lines())
    return "".join(parts)


def _row(metric: Metric) -> str:
    marks = {"higher": "↑", "lower": "↓", None: ""}[metric.better] + ("◷" if metric.clock else "")
    meaning = metric.meaning.replace("|", "\\|")  # a bar would end the table's cell
    return f"| `{metric.key}` | {metric.unit} | {marks} | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
