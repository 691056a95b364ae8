"""The table of a test: one case that names every row that fails."""

from __future__ import annotations

import inspect

import pytest
from each import each


def test_every_row_that_fails_is_named_and_the_others_are_run():
    seen = []

    @each(("number", "word"), [(1, "one"), (2, "two"), (3, "three")])
    def check(number, word, fixture):
        seen.append((number, word, fixture))
        assert number != 1
        if number == 3:
            pytest.fail("no three")

    assert list(inspect.signature(check).parameters) == ["fixture"]
    with pytest.raises(pytest.fail.Exception, match="2 of 3 rows") as caught:
        check(fixture="f")
    assert seen == [(1, "one", "f"), (2, "two", "f"), (3, "three", "f")]
    assert "number=1, word='one': AssertionError" in str(caught.value)
    assert "number=3, word='three': Failed: no three" in str(caught.value)


def test_tables_multiply_and_an_empty_one_is_refused():
    seen = []

    @each("a", "xy")
    @each("b", [1, 2])
    def check(a, b):
        seen.append(f"{a}{b}")

    check()
    assert sorted(seen) == ["x1", "x2", "y1", "y2"]
    with pytest.raises(AssertionError, match="no rows"):
        each("a", [])(lambda a: None)
