"""A file of a few kilobytes that unpacks to gigabytes is refused before the memory is spent, whatever it says."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo.errors import DataError
from dapo.observe import parquet
from dapo.observe.parquet import TooLarge, open_parquet, read_parquet
from dapo.observe.prompts import SCHEMA as PROMPTS
from dapo.observe.prompts import read_prompts
from dapo.observe.rollouts import read_rollouts


def write(path, table, **how):
    pq.write_table(table, path, compression="zstd", **how)
    return path


def test_an_ordinary_table_is_read_whole_with_its_types(tmp_path):
    names = pa.array(["a", "b", None] * 300).dictionary_encode()
    table = pa.table({"n": np.arange(900), "names": names, "lists": [[n, n] for n in range(900)]})
    path = write(tmp_path / "t", table, row_group_size=300)
    assert read_parquet(path).equals(pq.read_table(path))
    assert read_parquet(path, ["lists", "not there"]).equals(pq.read_table(path, columns=["lists"]))
    with open_parquet(path) as source:
        assert (source.names, source.counts) == (["n", "names", "lists"], [300, 300, 300])
        assert source.read(["n"], [2])["n"].to_pylist() == list(range(600, 900))
        assert source.read(["n"], []).num_rows == 0
    empty = write(tmp_path / "empty", table.slice(0, 0))
    assert read_parquet(empty).schema.names == ["n", "names", "lists"]
    assert read_parquet(empty).num_rows == 0


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_bomb_is_refused_whether_it_says_its_size_or_not(tmp_path, monkeypatch, dictionary):
    """Of one long text many times over: packed as pages, or named by a dictionary, where the file seems small."""
    monkeypatch.setattr(parquet, "FREE", 2**22)
    path = write(tmp_path / "bomb", pa.table({"response": ["x" * 2**16] * 400}), use_dictionary=dictionary)
    assert path.stat().st_size < 50_000
    said = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    assert (said < 2**20) == dictionary
    with pytest.raises(TooLarge, match=r"its [\d,]+ bytes unpack to more than"):
        read_parquet(path)
    assert read_parquet(path, []).num_columns == 0
    monkeypatch.setattr(parquet, "FREE", 2**25)
    assert read_parquet(path).num_rows == 400


def test_a_large_file_may_unpack_to_many_times_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "FREE", 0)
    noise = np.random.default_rng(1).normal(size=100_000)
    path = write(tmp_path / "large", pa.table({"noise": noise}))
    assert read_parquet(path).num_rows == 100_000
    monkeypatch.setattr(parquet, "MOST", 700_000)
    with pytest.raises(TooLarge):
        read_parquet(path)
    monkeypatch.undo()
    monkeypatch.setattr(parquet, "MOST_ROWS", 99_999)
    with pytest.raises(TooLarge, match="100,000 rows"):
        read_parquet(path)


def test_readers_name_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "FREE", 2**20)
    text = pa.array(["x" * 2**16] * 400)
    prompts = write(tmp_path / "prompts.parquet", pa.table([text] * 4, names=PROMPTS.names))
    with pytest.raises(DataError, match=r"prompts\.parquet cannot be read as prompts: its [\d,]+ bytes unpack"):
        read_prompts(prompts)
    rollouts = write(tmp_path / "step_000001.parquet", pa.table({"response": text}))
    with pytest.raises(DataError, match=r"step_000001\.parquet cannot be read as rollouts: its [\d,]+ bytes unpack"):
        read_rollouts(rollouts)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "step_000001.parquet")
    for read in (read_prompts, read_rollouts):
        with pytest.raises(DataError, match="no regular file"):
            read(tmp_path / "step_000001.parquet")
