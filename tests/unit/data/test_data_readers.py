"""Files, named formats, field mapping, and what a malformed record is told."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo.config.check_data import source_name
from dapo.config.schema import TrainSource
from dapo.data import load_problems
from dapo.data.readers import read_records
from dapo.errors import DataError


def write(path: Path, *lines: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def load(path: str, **settings: Any) -> list[tuple[str, str]]:
    return [(p.problem, p.answer) for p in load_problems(TrainSource(path=path, **settings))]


# ---------------------------------------------------------------- files

ROWS = [{"problem": "1+1?", "answer": "2"}, {"problem": "2+2?", "answer": "4"}]


def test_all_kinds_of_files_hold_the_same(tmp_path: Path) -> None:
    jsonl = write(tmp_path / "a.jsonl", ROWS[0], "", ROWS[1])
    listed = tmp_path / "a.json"
    listed.write_text("\ufeff" + json.dumps(ROWS))
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), parquet)
    for path in (jsonl, str(listed), str(parquet)):
        assert load(path) == [("1+1?", "2"), ("2+2?", "4")]
        assert load(path, size=1) == [("1+1?", "2")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem": "x", "answer": ', r"bad\.jsonl, line 3: not JSON .*found '{\"problem\": \"x\", \"answer\":'"),
        ("[1, 2]", r"line 3: expected an object with named fields, found list '\[1, 2\]'"),
        ("x" * 500, r"line 3: not JSON .*x\.\.\.'"),
        ({"problem": None, "answer": "1"}, r"line 3, field 'problem': expected text or a number, found None"),
        ({"problem": ["a"], "answer": "1"}, r"line 3, field 'problem': message 1: expected an object with `role`"),
        ({"problem": "", "answer": "1"}, r"line 3, field 'problem': the problem is empty"),
        ({"problem": "x", "answer": {"a": 1}}, r"line 3, field 'answer': expected text or a number, found dict"),
        ({"problem": "x", "anwser": "1"}, r"line 3: .*expects a field 'answer'.*did you mean 'anwser'"),
    ],
)
def test_a_malformed_line_is_named_with_what_was_found(tmp_path: Path, line: Any, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", *ROWS, line)
    with pytest.raises(DataError, match=message):
        load(path)


def test_other_broken_files(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"problem": "\xe9"}\n')
    (tmp_path / "one.json").write_text('{"problem": "x"}')
    (tmp_path / "broken.json").write_text('[{"problem": "x"}')
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "data.txt").write_text("a,b")
    (tmp_path / "data.jsonl.gz").write_bytes(b"")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "list.jsonl").write_text("[\n{}\n]")
    for name, message in (
        ("latin.jsonl", "line 1: not UTF-8"),
        ("one.json", "expected a JSON list of objects, found dict"),
        ("broken.json", "not JSON"),
        ("broken.parquet", "not a readable Parquet file"),
        ("data.txt", "unknown kind of file '.txt'; expected one of .jsonl"),
        ("data.jsonl.gz", "unknown kind of file '.gz'.*unpack it first"),
        ("empty.jsonl", "holds no problem"),
        ("list.jsonl", "needs the suffix .json"),
        ("latin.json", r"not found: .*latin\.json; the folder .* holds: broken.json, .*latin.jsonl"),
        ("none/a.jsonl", r"the folder .*none does not exist either"),
        (".", "holds? .*several|several kinds"),
    ):
        with pytest.raises(DataError, match=message):
            load(str(tmp_path / name))


def test_hub_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="needs the package datasets: pip install 'datasets>="):
        load("hub:openai/gsm8k")


def test_hub_rows_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def load_dataset(name: str, subset: str | None, split: str) -> list[dict[str, str]]:
            if split != "test":
                raise ValueError(f"Unknown split {split!r}")
            return ROWS if (name, subset) == ("owner/name", None) else [{"question": "3+3?", "answer": str(subset)}]

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # do not ask whether there is a network
    assert load("hub:owner/name", split="test") == [("1+1?", "2"), ("2+2?", "4")]
    assert load("hub:owner/name:main", split="test") == [("3+3?", "main")]
    assert next(iter(read_records("hub:owner/name", "test")))[0] == "hub:owner/name[test], row 1"
    with pytest.raises(
        DataError, match=r"hub:owner/name, split 'train' could not be loaded: ValueError: Unknown split"
    ):
        load("hub:owner/name")


# ---------------------------------------------------------------- formats

GSM8K = {"question": "Clips?", "answer": "48/2 = <<48/2=24>>24\n#### 1,072"}
DAPO = {"prompt": [{"role": "user", "content": "Find x."}], "reward_model": {"ground_truth": "34", "style": "rule"}}


@pytest.mark.parametrize(
    ("name", "record", "problem", "answer"),
    [
        ("gsm8k", GSM8K, "Clips?", "1072"),
        ("dapo_math", DAPO, "Find x.", "34"),
        ("dapo_math", {"index": 0, "problem": "Find x.", "answer": "-34"}, "Find x.", "-34"),
        ("aime", {"question": "Find x.", "ref_answer": "336^\\circ", "data_source": "AIME"}, "Find x.", "336"),
        ("aime", {"problem": "Find x.", "answer": "073", "url": "u"}, "Find x.", "073"),
        ("amc", {"problem": "Find x.", "answer": 27.0, "url": "u"}, "Find x.", "27"),
        ("math", {"problem": "Find x.", "answer": "\\frac{1}{2}", "level": 2}, "Find x.", "\\frac{1}{2}"),
        ("math", {"problem": "Find x.", "answer": "0", "difficulty": 2.0, "type": "Algebra"}, "Find x.", "0"),
        (
            "svamp",
            {"Body": "Packs cost 76 .", "Question": "Cost?", "Answer": 51.0, "Type": "T"},
            "Packs cost 76. Cost?",
            "51",
        ),
        ("multiarith", {"input": "Candy?", "target": 39}, "Candy?", "39"),
        ("plain", {"problem": "Find x.", "answer": 2.5}, "Find x.", "2.5"),
        ("plain", {"question": "Find x.", "answer": "7"}, "Find x.", "7"),
    ],
)
def test_formats_by_name_and_by_their_fields(tmp_path: Path, name: str, record: Any, problem: str, answer: str) -> None:
    path = write(tmp_path / "a.jsonl", record)
    assert load(path, format=name) == [(problem, answer)]
    assert load(path) == [(problem, answer)]


def test_an_answer_that_does_not_fit_the_format(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GSM8K, {"question": "x", "answer": "7"})
    with pytest.raises(DataError, match="line 2, field 'answer': a GSM8K answer ends with '#### result'"):
        load(path)


def test_unknown_fields_say_how_to_map_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "x", "label": "y"})
    with pytest.raises(
        DataError, match=r"line 1: no known format fits the fields \['label', 'text'\].*fields: {problem"
    ):
        load(path)


def test_field_mapping(tmp_path: Path) -> None:
    record = {"q": {"text": "Find x."}, "gold": 5, "tests": [1, 2], "rest": "no"}
    path = write(tmp_path / "a.jsonl", record)
    fields = {"problem": "q.text", "answer": "gold", "cases": "tests"}
    (problem,) = load_problems(TrainSource(path=path, fields=fields))
    assert (problem.problem, problem.answer) == ("Find x.", "5")
    assert problem.extra == {"q": {"text": "Find x."}, "rest": "no", "cases": [1, 2]}
    assert load(path, fields={"problem": "q.text", "answer": ""}) == [("Find x.", "")]
    with pytest.raises(DataError, match=r"expects a field 'golden'.*did you mean 'gold'"):
        load(path, fields={"problem": "q.text", "answer": "golden"})
    with pytest.raises(DataError, match="`fields` belongs to `format: plain`"):
        load(path, fields=fields, format="gsm8k")


def test_other_fields_of_a_plain_record_reach_the_verifier(tmp_path: Path) -> None:
    row = {
        "problem": "x",
        "answer": "1",
        "level": None,
        "when": datetime.date(2025, 1, 2),
        "nested": {"a": [1.5], "b": b"z"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (problem,) = load_problems(TrainSource(path=str(tmp_path / "a.parquet"), format="plain"))
    assert problem.extra == {"level": None, "when": "2025-01-02", "nested": {"a": [1.5], "b": "b'z'"}}
    json.dumps(problem.extra)


def test_records_without_an_answer_are_passed_over(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        *ROWS,
        {"problem": "x", "answer": None},
        {"problem": "y", "answer": ""},
        '{"problem": "z", "answer": NaN}',
    )
    assert len(load(path)) == 2
    with pytest.raises(DataError, match=r"no problem with an answer \(1 without, the first: .*b\.jsonl, line 1\)"):
        load(write(tmp_path / "b.jsonl", {"problem": "x", "answer": None}))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"path": "data/gsm8k/train.jsonl"}, "train"),
        ({"path": "data/train-00000-of-00001.parquet"}, "train-00000-of-00001"),
        ({"path": "/sets/dapo-math-v1.5"}, "dapo-math-v1.5"),
        ({"path": "/sets/gsm8k/"}, "gsm8k"),
        ({"path": "/sets/data/train-*.parquet"}, "train"),
        ({"path": "/sets/gsm8k/*.parquet"}, "gsm8k"),
        ({"path": "/sets/gsm8k/**/*.csv"}, "gsm8k"),
        ({"path": "*.csv"}, "data"),
        ({"path": "x/SVAMP.json"}, "SVAMP"),
        ({"path": "hub:owner/set"}, "set"),
        ({"task": "reasoning_gym/chain_sum"}, "chain_sum"),
        ({"task": "signed_sum", "name": "held_out"}, "held_out"),
    ],
)
def test_names_of_sources(settings: dict[str, str], name: str) -> None:
    assert source_name(TrainSource(**settings)) == name


# ---------------------------------------------------------------- tasks


def test_unknown_tasks_and_options_name_the_nearest() -> None:
    pytest.importorskip("reasoning_gym")
    for settings, message in (
        ({"task": "reasoning_gym/chainsum"}, "nearest names are chain_sum"),
        ({"task": "reasoning_gym/chain_sum", "options": {"min_term": 2}}, "no option 'min_term'; .*min_terms"),
        ({"task": "reasoning_gym/chain_sum", "options": {"seed": 2}}, "set `seed` on the data source"),
        ({"task": "reasoning_gym/chain_sum", "options": {"min_terms": 9}}, "refuses {'min_terms': 9}: AssertionError"),
    ):
        with pytest.raises(DataError, match=message):
            load_problems(TrainSource(size=2, **settings))


def test_reasoning_gym_is_a_function_of_its_seed_and_neighbouring_seeds_share_nothing() -> None:
    """The library makes item i of seed s from s + i: used as they are, seeds 0 and 1 would hold the same problems."""
    pytest.importorskip("reasoning_gym")

    def questions(seed: int) -> list[str]:
        return [p.problem for p in load_problems(TrainSource(task="reasoning_gym/chain_sum", seed=seed, size=50))]

    assert questions(0) == questions(0)
    assert len(set(questions(0)) & set(questions(1))) <= 2


def test_reasoning_gym_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"pip install 'reasoning-gym>="):
        load_problems(TrainSource(task="reasoning_gym/chain_sum", size=1))
