"""The rules as a table: ``python tests/helpers/warnings_page.py`` rewrites that of docs/warnings.md."""

from __future__ import annotations

from pathlib import Path

from dapo.report.rules import RULES

PAGE = Path(__file__).parents[2] / "docs" / "warnings.md"
BEGIN, END = "<!-- rules: made by python tests/helpers/warnings_page.py -->\n", "<!-- end of rules -->\n"


def table() -> str:
    """Return the rules in Markdown, a row each."""
    first: dict[str, str] = {}  # the rule that gave an advice first; a later one refers to it
    rows = []
    for rule in RULES:
        named = first.setdefault(rule.move, rule.name)
        move = rule.move if named == rule.name else f"as for `{named}`"
        rows.append(f"| `{rule.name}` | {rule.trigger} | {rule.matters} | {move} |")
    return "\n".join(["| rule | warns at | why it matters | what to do |", "| --- | --- | --- | --- |", *rows]) + "\n"


def with_table(page: str) -> str:
    """Return the page with its table made anew.

    Raises:
        ValueError: the page has no place for it.
    """
    before, found, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()!r} and {END.strip()!r} to put the table between")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
