"""CSV, patterns, folders that ``save_to_disk`` wrote, and folders downloaded from the hub."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo.config.schema import TrainSource
from dapo.config.yaml_files import resolve_paths
from dapo.data import load_problems
from dapo.data.readers import read_records
from dapo.errors import DataError


def load(path: Path | str, **settings: Any) -> list[tuple[str, str]]:
    return [(p.problem, p.answer) for p in load_problems(TrainSource(path=str(path), **settings))]


def rows(*numbers: int) -> list[dict[str, str]]:
    return [{"problem": f"{n}+1?", "answer": str(n + 1)} for n in numbers]


def pairs(*numbers: int) -> list[tuple[str, str]]:
    return [(f"{n}+1?", str(n + 1)) for n in numbers]


def put(path: Path, *numbers: int) -> Path:
    """A file of these problems, in the form that its suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows(*numbers))
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    elif path.suffix == ".csv":
        path.write_text("problem,answer\n" + "".join(f"{n}+1?,{n + 1}\n" for n in numbers))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(*numbers)))
    return path


# ---------------------------------------------------------------- CSV


def test_csv_keeps_its_values_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(
        b'\xef\xbb\xbfproblem,answer,level\r\n"How much, is\r\n""it""?",007,3\r\nTwo?,27.0,\r\n\r\nNone?,,1\r\n'
    )
    first, second = load_problems(TrainSource(path=str(file)))
    assert (first.problem, first.answer, first.extra) == ('How much, is\r\n"it"?', "007", {"level": "3"})
    assert (second.answer, second.extra, second.row) == ("27.0", {"level": ""}, f"{file}, line 4")
    (tmp_path / "a.tsv").write_text("problem\tanswer\nA, B?\t1\n")
    assert load(tmp_path / "a.tsv") == [("A, B?", "1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem,answer\na,1\nb,c,2\n", r"a\.csv, line 3: 3 values where the header names 2 columns; found 'b,c,2'"),
        ("problem,answer\na\n", "line 2: 1 values where"),
        ("problem;answer\na;1\n", r"no known format fits the fields \['problem;answer'\]"),
        ("problem,problem\na,1\n", "two columns are called 'problem'"),
        ('problem,answer\na,1\n"b,1\nc,2\n', r"line 3: not CSV .*see to its double quotes"),
        ("", "holds no problem"),
        ("problem,answer\n\xe9,1\n", "not UTF-8"),
    ],
)
def test_broken_csv(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.csv")


def test_long_values_of_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"problem,answer\n{'x' * 300_000},1\n")
    assert len(load(tmp_path / "a.csv")[0][0]) == 300_000


# ---------------------------------------------------------------- patterns


def test_a_pattern_takes_what_fits_in_the_order_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sets [v1]"
    put(folder / "b.jsonl", 2)
    put(folder / "a.csv", 1)
    put(folder / "deep" / "er" / "c.parquet", 3)
    put(folder / "x[1].jsonl", 9)
    monkeypatch.chdir(folder)
    assert load("*.*") == pairs(1, 2, 9)
    assert load("**/[a-c].*") == pairs(1, 2, 3)
    assert load("x[1].jsonl") == pairs(9)  # a file of that very name comes first
    with pytest.raises(DataError, match=r"no file fits the pattern \*\.arrow; the folder \. holds: a\.csv, b\.jsonl"):
        load("*.arrow")
    (folder / "notes.txt").write_text("")
    with pytest.raises(DataError, match=r"notes\.txt: unknown kind of file"):
        load("*.*")


def test_a_recipe_finds_patterns_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "recipes [v1]"
    put(folder / "a.jsonl", 1)
    monkeypatch.chdir(tmp_path)
    given, problems = resolve_paths({"data": {"train": [{"path": "*.jsonl"}, {"path": "*.csv"}]}}, folder)
    assert [p.path for p in problems] == ["data.train.1.path"]
    found = given["data"]["train"][0]["path"]
    assert os.path.isabs(found)
    monkeypatch.chdir("/")
    assert load(found) == pairs(1)


# ---------------------------------------------------------------- folders


def saved(folder: Path, *shards: tuple[int, ...]) -> Path:
    """As ``datasets.Dataset.save_to_disk`` writes it."""
    names = [f"data-{n:05d}-of-{len(shards):05d}.arrow" for n in range(len(shards))]
    for name, numbers in zip(names, shards, strict=True):
        put(folder / name, *numbers)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    assert load(saved(tmp_path / "one", (1, 2, 3), (4,))) == pairs(1, 2, 3, 4)
    both = tmp_path / "both"
    saved(both / "train", (1,))
    saved(both / "test", (2,))
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert load(both) == pairs(1)
    assert load(both, split="test") == pairs(2)
    with pytest.raises(DataError, match="has no split 'validation'; it has train, test: set `split`"):
        load(both, split="validation")
    (both / "test" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow is missing, which .*state\.json names"):
        load(both, split="test")
    (both / "test" / "state.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        load(both, split="test")


def test_arrow_in_both_forms_and_broken(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows(1, 2))
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as file:
        file.write_table(table)
    assert load(tmp_path / "a.arrow") == load(put(tmp_path / "b.arrow", 1, 2)) == pairs(1, 2)
    for content in (b"", b"ARROW1 no", b"no arrow at all"):
        (tmp_path / "c.arrow").write_bytes(content)
        with pytest.raises(DataError, match=r"c\.arrow: not a readable Arrow file"):
            load(tmp_path / "c.arrow")


def test_a_folder_downloaded_from_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    put(folder / "data" / "train-00000-of-00002.parquet", 1)
    put(folder / "data" / "train-00001-of-00002.parquet", 2)
    put(folder / "data" / "test-00000-of-00001.parquet", 3)
    put(folder / ".cache" / "train.parquet", 9)
    (folder / "README.md").write_text("about")
    (folder / "dataset_infos.json").write_text("{}")
    assert load(folder) == pairs(1, 2)
    assert load(folder, split="test") == pairs(3)
    assert load(folder / "data", split="test") == pairs(3)
    with pytest.raises(DataError, match=r"no files of the split 'validation'; it has test \(data/test-.*, train \("):
        load(folder, split="validation")


def test_other_layouts_of_folders(tmp_path: Path) -> None:
    put(tmp_path / "plain" / "part-1.jsonl", 1)
    put(tmp_path / "plain" / "part-2.jsonl", 2)
    assert load(tmp_path / "plain") == pairs(1, 2)  # nothing says what split: all of it is for training
    put(tmp_path / "words" / "latest" / "gsm_train.csv", 1)
    put(tmp_path / "words" / "latest" / "gsm_dev.csv", 2)
    assert load(tmp_path / "words") == pairs(1)
    assert load(tmp_path / "words", split="validation") == load(tmp_path / "words", split="dev") == pairs(2)
    put(tmp_path / "by_folder" / "hard" / "0.jsonl", 1)
    put(tmp_path / "by_folder" / "train" / "0.jsonl", 2)
    assert load(tmp_path / "by_folder", split="hard") == pairs(1)
    cache = tmp_path / "datasets--owner--name"  # as the hub client caches it
    put(cache / "blobs" / "0123.parquet", 5)
    (cache / "snapshots" / "abc" / "data").mkdir(parents=True)
    (cache / "snapshots" / "abc" / "data" / "train-0.parquet").symlink_to(cache / "blobs" / "0123.parquet")
    assert load(cache) == pairs(5)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["main/train.parquet", "socratic/train.parquet"],
            r"in several folders; give the one you mean: .*/main, .*/soc",
        ),
        (["train.jsonl", "train.parquet"], r"files of several kinds: train\.jsonl, train\.parquet; give one of them"),
        (["test.jsonl"], r"no files of the split 'train'; it has test \(test\.jsonl\): set `split`"),
        (["notes.txt"], "holds no data files"),
    ],
)
def test_a_folder_is_not_guessed_at(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        put(tmp_path / name, 1)
    with pytest.raises(DataError, match=message):
        load(tmp_path)


# ---------------------------------------------------------------- what cannot be read


def test_pipes_and_devices_are_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c.jsonl"))
        for path in ("a.jsonl", "b.jsonl", "c.jsonl", "*.jsonl", "."):
            with pytest.raises(DataError, match="is no regular file but a pipe, device or socket"):
                load(tmp_path / path)
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(DataError, match=r"state\.json|no regular file"):
        load(tmp_path)


@pytest.mark.parametrize("path", ["x" * 300 + ".jsonl", "a\0b.jsonl", "~nobody-has-this-name/a.jsonl", ""])
def test_impossible_paths(path: str) -> None:
    with pytest.raises(DataError):
        load(path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.jsonl", 1)

    def denied(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: Permission denied"):
        load(tmp_path / "a.jsonl")


# ---------------------------------------------------------------- the hub without a network


class Hub:
    """Stands in for the library ``datasets``; a real one would try for more than half a minute."""

    asked: list[str]

    def __init__(self) -> None:
        self.asked = []

    def load_dataset(self, name: str, subset: str | None, split: str) -> list[dict[str, str]]:
        self.asked.append(name)
        return rows(1)


def test_the_hub_without_a_network_names_the_local_way(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with socket.socket() as closed:  # bound, never listening: a connection is refused at once
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(
            DataError, match=r"cannot be reached .*refused.*`hf download owner/name --repo-type dataset"
        ):
            list(read_records("hub:owner/name"))
        assert hub.asked == []
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the user says that the copy in the cache is meant
        assert len(list(read_records("hub:owner/name"))) == 1


def test_a_hub_that_answers_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert len(list(read_records("hub:owner/name:subset"))) == 1
    assert hub.asked == ["owner/name"]
