import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dapo.observe.text import clean, duration, number, percent, shorten, sparkline, utf8

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))  # lone surrogates too


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("plain é 数 🙂", "plain é 数 🙂"),
        ("\x1b[2J\x1b]0;owned\x07", "␛[2J␛]0;owned␇"),
        ("a\tb\r\nc\rd", "a    b\nc␍d"),
        ("\x9b31m", "\ufffd31m"),  # the one-character form of ESC [
        ("ab\u202ecd\u2066", "ab\ufffdcd\ufffd"),
        ("a\u2028b\u00a0c", "a b c"),
        ("\ud800", "\ufffd"),
        ("\x7f\x00", "\ufffd␀"),
    ],
)
def test_clean(given_, expected):
    assert clean(given_) == expected


@given(ANY_TEXT)
def test_clean_text_can_neither_steer_a_terminal_nor_fail_to_encode(text):
    shown = clean(text)
    shown.encode()
    assert all(c == "\n" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in shown)
    assert "\n" not in clean(text, newlines=False)
    assert clean(shown) == shown


@given(ANY_TEXT)
def test_utf8_text_can_be_encoded_and_good_text_is_untouched(text):
    utf8(text).encode()
    if not any(unicodedata.category(c) == "Cs" for c in text):
        assert utf8(text) == text


def test_shorten_keeps_beginning_and_end():
    assert shorten("abc", 3) == "abc"
    assert shorten("a" * 50 + "b" * 50, 20) == "aaaaaaaaaaa … bbbbbb"


@given(st.text(max_size=60), st.integers(min_value=10, max_value=40))
def test_shorten_never_exceeds_its_limit(text, limit):
    assert len(shorten(text, limit)) <= limit


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 8, ""),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0.0, 0.0, 7.0, 7.0], 2, "▁█"),
        ([5.0, 5.0], 8, "▄▄"),
        ([1.0, float("nan"), 0.0], 8, "█▁"),
        ([1e308, -1e308, 1e308, 1e308], 2, "▁█"),  # the difference and the sum overflow
        ([5e-324, 0.0], 2, "█▁"),
    ],
)
def test_sparkline(values, width, expected):
    assert sparkline(values, width) == expected


@given(st.lists(st.floats(), max_size=300), st.integers(min_value=1, max_value=50))
def test_sparkline_fits(values, width):
    assert cell_len(sparkline(values, width)) <= width


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0"),
        (0.05, "0.0500"),
        (11, "11.0"),
        (99.99, "100"),
        (1234.5, "1,234"),
        (3e-6, "3.0e-06"),
        (-0.5, "-0.500"),
    ],
)
def test_number(value, expected):
    assert number(value) == expected


def test_percent_and_duration():
    assert (percent(0.1234), percent(0.5, 0), percent(None), percent(float("inf"))) == ("12.3%", "50%", "–", "–")
    assert [duration(s) for s in (0.2, 59, 65, 3599.6, 7389)] == ["0s", "59s", "1:05", "1:00:00", "2:03:09"]
