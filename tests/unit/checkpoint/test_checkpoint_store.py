"""Checkpoints are whole or absent, whatever instant a crash picks."""

import itertools
import json
import os
import zlib

import numpy as np
import pytest
from between import between_its_calls
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dapo.checkpoint import store as store_module
from dapo.checkpoint.store import CheckpointStore, reading
from dapo.checkpoint.tree import load_tree, save_tree
from dapo.errors import CheckpointError
from dapo.types.batch import SavedFile


def writer(text):
    """Of two files, one described and one not."""

    def write(folder):
        (folder / "data.txt").write_text(text)
        (folder / "part").mkdir()
        (folder / "part" / "rank0").write_text(text)
        return [SavedFile("part/rank0", len(text), zlib.crc32(text.encode()))]

    return write


def test_newest_are_kept_and_the_newest_is_found(tmp_path):
    store = CheckpointStore(tmp_path / "c", keep=2)
    for step in (2, 4, 6):
        store.save(step, writer(str(step)))
    assert store.steps() == [4, 6]
    assert (store.path() / "data.txt").read_text() == "6"
    assert (store.path(4) / "data.txt").read_text() == "4"
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 2.*\[4, 6\]"):
        store.path(2)


def test_none_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* start it again"):
        CheckpointStore(tmp_path / "none").path()


def test_a_described_file_is_not_read_again_and_the_manifest_is_that_of_reading_everything(tmp_path, monkeypatch):
    read = []
    checksum = store_module._checksum
    monkeypatch.setattr(store_module, "_checksum", lambda path: read.append(path.name) or checksum(path))
    folder = CheckpointStore(tmp_path).save(1, writer("whole"))
    assert read == ["data.txt"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert list(manifest.items()) == [(n, [5, zlib.crc32(b"whole")]) for n in ("data.txt", "part/rank0")]
    CheckpointStore(tmp_path).path(1)  # and everything is looked at before it is used
    assert read == ["data.txt", "data.txt", "rank0"]


@pytest.mark.parametrize(
    ("name", "said"), [("data.txt", "has 5 bytes, and its writer counted 4"), ("other", "is not there")]
)
def test_a_description_that_is_wrong_makes_no_checkpoint(tmp_path, name, said):
    store = CheckpointStore(tmp_path)
    store.save(1, writer("whole"))
    with pytest.raises(CheckpointError, match=said):
        store.save(2, lambda folder: [*writer("whole")(folder), SavedFile(name, 4, 0)])
    assert store.steps() == [1]


class Crash(BaseException):
    pass


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
@pytest.mark.parametrize("operation", ["rename", "rmtree", "fsync", "write"])
def test_a_crash_at_every_operation_leaves_the_previous_checkpoint_whole(tmp_path, monkeypatch, operation, again):
    """Crash at the first, second, ... call of each operation; afterwards a fresh store finds an intact checkpoint."""
    crashed = 0
    for call in range(40):
        folder = tmp_path / f"{operation}{call}"
        store = CheckpointStore(folder, keep=1)
        store.save(1, writer("old"))
        count = iter(range(1000))

        def counting(real, count=count, call=call):
            def wrapped(*args, **kwargs):
                if next(count) == call:
                    raise Crash
                return real(*args, **kwargs)

            return wrapped

        write = writer("new")
        with monkeypatch.context() as patch:
            if operation == "rename":
                patch.setattr(store_module.Path, "rename", counting(store_module.Path.rename))
            elif operation == "rmtree":
                patch.setattr(store_module.shutil, "rmtree", counting(store_module.shutil.rmtree))
            elif operation == "fsync":
                patch.setattr(os, "fsync", counting(os.fsync))
            else:
                write = counting(write)
            try:
                store.save(1 if again else 2, write)
                break
            except Crash:
                crashed += 1
        found = CheckpointStore(folder, keep=1).path()  # as another process, which mends nothing
        assert (found / "data.txt").read_text() in ("old", "new")
        owner = CheckpointStore(folder, keep=1)
        owner.mend()
        assert found.name.endswith(owner.path().name)
        assert (owner.path() / "data.txt").read_text() in ("old", "new")
        CheckpointStore(folder, keep=1).save(3, writer("after"))
        assert [p.name for p in folder.iterdir()] == ["step_000003"]
    assert crashed


def test_whoever_looks_leaves_a_save_under_way_alone(tmp_path):
    """``dapo export`` of a run that is saving just then: neither of them may hear of the other."""
    store = CheckpointStore(tmp_path)
    store.save(1, writer("old"))

    def looked_at(folder):
        described = writer("new")(folder)
        assert (CheckpointStore(tmp_path).path() / "data.txt").read_text() == "old"
        return described

    assert (store.save(2, looked_at) / "data.txt").read_text() == "new"


@pytest.mark.parametrize("step", [2, 1], ids=["a new step, and the old one goes", "the same step again"])
@pytest.mark.parametrize("reads_first", [True, False], ids=["reader", "run"])
def test_whenever_a_run_saves_a_reader_finds_a_whole_checkpoint(tmp_path, monkeypatch, step, reads_first):
    numbers = itertools.count()

    def before():
        folder = tmp_path / str(next(numbers))
        CheckpointStore(folder, keep=1).save(1, writer("old"))
        return (folder,)

    def looks(folder):
        return CheckpointStore(folder, keep=1).path()

    def saves(folder):
        return CheckpointStore(folder, keep=1).save(step, writer("new"))

    monkeypatch.setattr(os, "fsync", lambda _: None)  # for the sake of time: nothing is lost here
    pair = (looks, saves) if reads_first else (saves, looks)
    for folder, *found in between_its_calls(monkeypatch, before, *pair):
        assert found[0 if reads_first else 1].name.endswith(("step_000001", f"step_{step:06d}"))
        assert [path.name for path in folder.iterdir()] == [f"step_{step:06d}"]
        assert (looks(folder) / "data.txt").read_text() == "new"


def test_one_that_is_removed_while_it_is_read_is_not_called_damaged(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    saved = store.save(1, writer("old"))
    with pytest.raises(ValueError, match="of its own"), reading(saved):
        raise ValueError("of its own")

    @reading(saved)
    def reads():
        store.save(2, writer("new"))
        return (saved / "data.txt").read_text()

    with pytest.raises(CheckpointError, match=r"removed while it was read: .*checkpoint.keep") as raised:
        reads()
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    with reading(saved := store.path()):
        assert (saved / "data.txt").read_text() == "new"


def test_damage_is_named(tmp_path):
    store = CheckpointStore(tmp_path)
    folder = store.save(1, writer("whole"))
    (folder / "data.txt").write_text("wh")
    with pytest.raises(CheckpointError, match=r"data.txt has 2 bytes, 5 bytes were written"):
        store.path()
    (folder / "data.txt").write_text("whale")
    with pytest.raises(CheckpointError, match=r"its checksum differs.*delete this folder"):
        store.path()
    manifest = (folder / "manifest.json").read_text()
    for damage in ("", "[1]", '{"data.txt": 5}', manifest[:-3]):
        (folder / "manifest.json").write_text(damage)
        with pytest.raises(CheckpointError, match=r"manifest.json cannot be read"):
            store.path()
    (folder / "manifest.json").write_text(manifest)
    (folder / "data.txt").unlink()
    with pytest.raises(CheckpointError, match=r"data.txt is missing"):
        store.path()


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | hnp.arrays(st.sampled_from([np.int64, np.float32, np.int32, np.bool_]), st.integers(0, 5))
)
keys = st.text(max_size=5)
trees = st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(keys, t, max_size=3), max_leaves=12)


def equal(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@given(tree=trees)
def test_any_tree_comes_back_as_it_was(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    save_tree({"tree": tree}, folder, "x")
    assert equal(load_tree(folder, "x")["tree"], tree)
