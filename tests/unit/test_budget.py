"""The size of the program: what counts, what is above, and what a lowered budget keeps."""

from __future__ import annotations

import tomllib

import budget
import pytest

MODULE = '''"""Documentation

of two lines."""

# a comment
FIRST = 1
"""What it is."""


class One:
    """A class."""

    field: int = 0
    """A field."""

    def text(self):
        return """two
lines"""
'''


def test_documentation_comments_and_blank_lines_do_not_count():
    # FIRST = 1 | class One : | field : int = 0 | def text ( self ) : | return TEXT
    assert budget.code_of(MODULE) == (6, 3 + 3 + 5 + 6 + 2)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"loop": {"lines": 10, "tokens": 90}}, []),
        ({"loop": {"lines": 11, "tokens": 90}}, ["loop: 11 lines, 1 above the budget"]),
        ({"loop": {"lines": 10, "tokens": 93}}, ["loop: 93 tokens, 3 above the budget"]),
        ({}, ["loop: in budget.toml, and not here any more"]),
        ({"loop": {"lines": 1, "tokens": 1}, "new": {"lines": 1, "tokens": 1}}, ["new: not in budget.toml"]),
    ],
)
def test_what_is_above_the_budget_is_named(sizes, said):
    assert budget.above(sizes, {"loop": {"lines": 10, "tokens": 90}}) == said


def test_a_lowered_budget_raises_nothing_and_keeps_reasons():
    text = "# Why.\n\nloop = { lines = 10, tokens = 90 }  # a new loss\nrun = { lines = 5, tokens = 9 }\n"
    new = budget.lowered(text, {"loop": {"lines": 8, "tokens": 95}})
    assert tomllib.loads(new) == {"loop": {"lines": 8, "tokens": 90}, "run": {"lines": 5, "tokens": 9}}
    assert new.startswith("# Why.\n\n")
    assert "# a new loss" in new


def test_one_plain_step_enters_no_more_than_the_budget_allows():
    allowed = tomllib.loads(budget.FILE.read_text())
    assert budget.above(budget.plain_step(), {"plain_step": allowed["plain_step"]}) == []
