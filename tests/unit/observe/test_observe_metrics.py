import json
import math
import resource
import signal
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.errors import DataError
from dapo.observe.jsonl import JsonlWriter, cut_jsonl, read_jsonl
from dapo.observe.metrics import MetricWriter, read_metrics, series, without_clock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, steps):
    with MetricWriter(path) as writer:
        for step in steps:
            writer.write(step, {"train/loss": step / 2})


def test_rows_come_back_as_written(path):
    with MetricWriter(path) as writer:
        writer.write(1, {"train/loss": 0.1, "groups/kept": 3, "train/entropy": np.float32(0.5)})
    assert read_metrics(path) == [{"step": 1, "train/loss": 0.1, "groups/kept": 3, "train/entropy": 0.5}]
    assert path.read_text().count("\n") == 1
    assert '"groups/kept": 3,' in path.read_text()  # counts stay integers


def test_a_line_is_on_the_disk_before_the_writer_is_closed(path):
    writer = MetricWriter(path)
    writer.write(1, {"train/loss": 1.0})
    assert len(read_metrics(path)) == 1
    writer.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_not_finite_becomes_null(path, value):
    with MetricWriter(path) as writer:
        writer.write(1, {"train/loss": value})
    assert json.loads(path.read_text()) == {"step": 1, "train/loss": None}


def test_a_key_without_a_glossary_line_is_written_and_told_once(path, caplog):
    """It fails a test (the runs of tests/integration hold every key to the glossary), not a run."""
    with MetricWriter(path) as writer:
        for step in (1, 2):
            writer.write(step, {"train/loss": 1.0, "train/los": 1.0})
    assert read_metrics(path) == [{"step": step, "train/loss": 1.0, "train/los": 1.0} for step in (1, 2)]
    (told,) = [record.message for record in caplog.records]
    assert "'train/los'" in told
    assert "dapo/metrics/glossary.py" in told


@given(cut=st.integers(min_value=0, max_value=80))
def test_a_file_cut_anywhere_is_read_as_its_whole_lines_and_goes_on(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    write(path, [1, 2, 3])
    whole = path.read_bytes()
    cut = min(cut, len(whole))
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3][:lines]
    write(path, [9])
    assert [row["step"] for row in read_metrics(path)] == [*[1, 2, 3][:lines], 9]


def test_later_rows_and_the_half_line_are_cut(path):
    write(path, [0, 1, 2, 3])
    with path.open("a") as file:
        file.write('{"step": 4, "train/lo')
    before = path.read_bytes().splitlines(keepends=True)
    assert cut_jsonl(path, lambda row: row["step"] <= 1) == 2
    assert path.read_bytes().splitlines(keepends=True) == before[:2]  # what stays is the same to the byte
    assert cut_jsonl(path, lambda row: row["step"] <= 1) == 0
    assert list(path.parent.iterdir()) == [path]


def test_to_cut_a_missing_file_makes_none(path):
    assert cut_jsonl(path, lambda row: row["step"] <= 3) == 0
    assert not path.exists()


def test_a_damaged_line_in_the_middle_is_named(path):
    path.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(DataError, match="line 2"):
        read_metrics(path)
    path.write_text('{"step": 1}\n[2]\n')
    with pytest.raises(DataError, match="line 2 holds list"):
        read_metrics(path)


def test_series_leaves_out_what_was_not_measured(path):
    rows = [{"step": 0, "a": 1.0}, {"step": 1}, {"step": 2, "a": None}, {"step": 3, "a": 4}]
    assert series(rows, "a") == ([0, 3], [1.0, 4.0])


def test_without_clock_drops_times_and_memory_only():
    row = {"step": 1, "train/loss": 1.0, "time/step": 2.0, "memory/peak_rss_mib": 3.0, "time/tokens_per_second": 4.0}
    assert without_clock(row) == {"step": 1, "train/loss": 1.0}


@contextmanager
def files_up_to(size):
    """A disk that takes a part of a write, and then none: what a limit on the size of files does, too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_does_not_fit_is_an_error_and_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with JsonlWriter(path) as file:
        file.append({"step": 1})
        with files_up_to(100), pytest.raises(OSError):
            file.append({"step": 2, "text": "x" * 200})  # the first 87 of its bytes fit
        assert path.read_text() == '{"step": 1}\n'
        file.append({"step": 3})
    assert [record["step"] for record in read_jsonl(path)] == [1, 3]


def test_jsonl_keeps_hostile_text_on_one_line(tmp_path):
    path = tmp_path / "x.jsonl"
    text = "a\nb\u2028c\x85d\x00\ud800"
    with JsonlWriter(path) as file:
        file.append({"text": text}, {"text": "next"})
    assert [record["text"] for record in read_jsonl(path)] == [text, "next"]
    assert cut_jsonl(path, lambda record: record["text"] != "next") == 1
    assert read_jsonl(path) == [{"text": text}]
