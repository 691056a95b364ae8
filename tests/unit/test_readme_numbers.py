"""Every number in README's text is one of a committed result, or no measurement."""

from __future__ import annotations

import json
import re
from statistics import mean
from typing import Any

from pages import FENCE, ROOT

NUMBER = re.compile(r"(?<![\w./-])\d[\d.,]*\d|(?<![\w./-])\d")
STATED = {
    "3.11",  # Python
    "8",  # bits of AdamW, GPUs of a page
    "93 MB",  # of the download, whose checksum the Makefile has
    "1.16",  # TRL
    "0.9",  # verl
    "128",  # GPUs of the paper's run
    "2.0",  # licence
}


def result(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def measured() -> set[str]:
    """Return what README may say of results, as it writes numbers."""
    quickstart, chat = result("quickstart"), result("chat_model")["runs"]
    half = next(one for one in result("dynamic_sampling")["results"] if one["name"] == "short-0.5")["rows"]
    held_out = list(quickstart["held_out"].values())
    chat_ends = [mean(run["sampled"][at] for run in chat) for at in (0, -1)]
    shares = [held_out[0], held_out[-1], *chat_ends, half["ours"]["acceptance"]]
    return {
        *(f"{100 * share:.0f} %" for share in shares),
        *(f"{half[row]['cost']:.2f}" for row in ("ours", "rounds of P")),
        str(quickstart["processor_seconds"]),
        f"{max(run['cost']['processor'] for run in chat) / 60:.0f}",
    }


def unknown(text: str, known: set[str]) -> list[str]:
    """Return the numbers of a page's text, outside of code, links and headings, that are not known."""
    prose = re.sub(r"\]\([^)]*\)|`[^`]*`|^    .*$|^#.*$|\"[^\"]*\"", "", FENCE.sub("", text), flags=re.MULTILINE)
    found = []
    for match in NUMBER.finditer(prose):
        unit = re.match(r" (?:%|MB)", prose[match.end() :])
        number = match[0] + (unit[0] if unit else "")
        if number not in known:
            found.append(number)
    return found


def test_numbers_of_the_readme_are_those_of_committed_results():
    readme = (ROOT / "README.md").read_text()
    known = measured() | STATED
    assert unknown(readme, known) == []
    example = result("quickstart")["example"]
    assert all(example[key] in readme for key in ("problem", "answer", "before", "after"))
    answers = result("chat_model")["runs"][0]["answers"]
    assert any(all(a[key] in readme for key in ("problem", "before", "after")) for a in answers)


def test_a_number_that_no_result_has_is_seen():
    assert unknown("In 46 seconds from 41 % to 93 %; `7` and [a](b/9.md).", {"41 %"}) == ["46", "93 %"]
