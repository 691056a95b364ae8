"""Hostile and odd values: each is refused with its place, or handled and counted; none ends in a traceback."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_data_load import WordTokenizer

from dapo.config.schema import Data, TrainSource
from dapo.data import load_problems, prepare
from dapo.errors import DataError

GOOD = {"problem": "1+1?", "answer": "2"}


def write(path: Path, *lines: Any) -> TrainSource:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return TrainSource(path=str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            r'{"problem": "a\ud800b", "answer": "1"}',
            r"field 'problem': half of a surrogate pair, '\\ud800' at character 1",
        ),
        (r'{"problem": "a", "answer": "\udfff"}', "field 'answer': half of a surrogate pair"),
        (r'{"problem": "a", "answer": "1", "note": {"x": ["\ud83d"]}}', "field 'note': half of a surrogate pair"),
        (r'{"problem": "a", "answer": "1", "\ud83d": 1}', "half of a surrogate pair"),
        ('{"problem": "a", "answer": ' + "7" * 6000 + "}", r"not JSON .Exceeds the limit \(4300 digits"),
        ('{"problem": "a", "answer": "1", "id": -' + "7" * 6000 + "}", r"limit \(4300 digits"),
        ('{"problem": "a", "answer": Infinity}', r"field 'answer': expected text or a finite number, found inf"),
        ('{"problem": "a", "answer": -1e400}', "field 'answer': expected text or a finite number, found -inf"),
        ('{"problem": NaN, "answer": "1"}', "field 'problem': expected text or a finite number, found nan"),
        ('{"problem": "a", "answer": "1", "x": ' + "[" * 90 + "]" * 90 + "}", "field 'x': objects more than 64 deep"),
        ('{"problem": "a", "answer": ' + "[" * 90_000, "maximum recursion depth"),
        ("7" * 6000, r"limit \(4300 digits"),
    ],
)
def test_refused_with_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2.*{message}"):
        load_problems(write(tmp_path / "a.jsonl", GOOD, line))
    (tmp_path / "a.json").write_text(f"[{line}]")
    with pytest.raises(DataError, match=message if "deep within each" not in message else "a.json"):
        load_problems(TrainSource(path=str(tmp_path / "a.json")))


def test_a_pair_of_surrogates_is_a_character(tmp_path: Path) -> None:
    (problem,) = load_problems(write(tmp_path / "a.jsonl", r'{"problem": "a\ud83d\ude00", "answer": "1"}'))
    assert problem.problem == "a\U0001f600"


def test_long_numbers_are_answers_to_the_digit(tmp_path: Path) -> None:
    digits = "7" * 4000
    found = load_problems(
        write(
            tmp_path / "a.jsonl", '{"problem": "a", "answer": ' + digits + "}", {"problem": "b", "answer": "7" * 9000}
        )
    )
    assert [p.answer for p in found] == [digits, "7" * 9000]


def test_nothing_in_the_answer_is_counted_and_what_reads_like_nothing_is_said(tmp_path: Path) -> None:
    rows = [
        GOOD,
        '{"problem": "a", "answer": NaN}',
        {"problem": "b", "answer": "  "},
        {"problem": "c", "answer": "NaN"},
    ]
    made = prepare(Data(train=[write(tmp_path / "a.jsonl", *rows)]), WordTokenizer())
    assert [prompt.answer for prompt in made.train] == ["2", "NaN"]
    (line,) = made.report.lines()
    assert f"2 records without an answer passed over (first: {tmp_path}/a.jsonl, line 2)" in line
    assert f"1 gold answers read like a missing value (first: 'NaN', {tmp_path}/a.jsonl, line 4); kept" in line


def test_decimals_of_parquet(tmp_path: Path) -> None:
    answers = [Decimal("2.50"), Decimal("100.00"), Decimal("-0.07"), None]
    pq.write_table(pa.table({"problem": list("abcd"), "answer": answers}), tmp_path / "a.parquet")
    assert [p.answer for p in load_problems(TrainSource(path=str(tmp_path / "a.parquet")))] == ["2.5", "100", "-0.07"]


def test_parquet_that_lies_about_its_text(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"problem": bad, "answer": ["1"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file \(behind row 0: .*utf-8"):
        load_problems(TrainSource(path=str(tmp_path / "a.parquet")))


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        ({}, {"id": 1, "meta": {"level": 3}}),
        ({"fields": {"problem": "problem", "answer": "answer"}}, {"id": 1, "meta": {"level": 3}}),
        ({"fields": {"level": "meta.level"}}, {"id": 1, "meta": {"level": 3}, "level": 3}),
        ({"fields": {"number": "id"}}, {"number": 1, "meta": {"level": 3}}),
        ({"fields": {"meta": "id"}}, {"meta": 1}),  # the name in the recipe goes before a column of that name
        ({"fields": {"answer": "id"}}, {"answer": "2", "meta": {"level": 3}}),
        ({"format": "math"}, {"id": 1, "meta": {"level": 3}}),
        ({"format": "aime"}, {"id": 1, "meta": {"level": 3}}),
    ],
)
def test_every_other_column_reaches_the_reward(tmp_path: Path, settings: dict[str, Any], extra: dict[str, Any]) -> None:
    source = write(tmp_path / "a.jsonl", {**GOOD, "id": 1, "meta": {"level": 3}})
    (problem,) = load_problems(source.model_copy(update=settings))
    assert problem.extra == extra


def test_several_right_answers_are_one_text(tmp_path: Path) -> None:
    source = write(
        tmp_path / "a.jsonl",
        {"problem": "a", "answer": ["1/2", 0.5, None]},
        {"problem": "b", "answer": [3.0]},
        {"problem": "c", "answer": []},
        {"problem": "d", "answer": '["x", "y"]'},
    )
    assert [problem.answer for problem in load_problems(source)] == ['["1/2", "0.5"]', "3", '["x", "y"]']
    with pytest.raises(DataError, match="field 'answer': expected text or a number, found dict"):
        load_problems(write(tmp_path / "b.jsonl", {"problem": "a", "answer": [{"x": 1}]}))
