"""Files that came from other machines: who takes them, who lays them out, and who deletes them."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from between import between_its_calls

from dapo.processes.shared_folders import SharedFolders
from dapo.processes.transport import SHARED_FOLDER


@pytest.fixture
def shared(tmp_path):
    return tmp_path / f"{SHARED_FOLDER}one"


def write(folder, **files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)


def lie(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_taken_away_is_laid_out_elsewhere(shared):
    write(shared / "set-1", a=b"some", b=b"more", empty=b"")
    here, there = SharedFolders(), SharedFolders()
    parts = [here.collect(str(shared / "set-1")), here.collect(str(shared / "set-1"))]
    assert sorted(parts[0]) == ["a.safetensors", "b.safetensors", "empty.safetensors"]
    assert parts[1] == {}  # each file has one taker
    assert not (shared / "set-1").exists()
    for _ in range(2):  # by two hosts of one machine
        there.lay_out(str(shared / "set-1"), parts)
    assert lie(shared / "set-1") == {"a.safetensors": b"some", "b.safetensors": b"more", "empty.safetensors": b""}


def test_the_last_two_sets_stay(shared):
    folders = SharedFolders()
    for number in range(4):
        folders.lay_out(str(shared / f"set-{number}"), [{"a.safetensors": np.full(3, number, np.uint8)}])
    assert sorted(path.name for path in shared.iterdir() if path.is_dir()) == ["set-2", "set-3"]


def test_the_last_one_that_leaves_deletes_the_folder(shared):
    first, second = SharedFolders(), SharedFolders()
    for folders in (first, second):
        folders.lay_out(str(shared / "set"), [{"a.safetensors": np.zeros(3, np.uint8)}])
    first.leave()
    assert (shared / "set" / "a.safetensors").is_file()
    second.leave()
    assert not shared.exists()
    second.leave()
    second.lay_out(str(shared / "set"), [{"a.safetensors": np.zeros(3, np.uint8)}])  # and it can be made again
    assert (shared / "set" / "a.safetensors").is_file()


def test_a_room_whose_users_were_killed_goes_and_one_in_use_stays(tmp_path):
    program = """
    import os, sys, signal
    import numpy as np
    from dapo.processes.shared_folders import SharedFolders
    SharedFolders().lay_out(sys.argv[1], [{"a.safetensors": np.zeros(3, np.uint8)}])
    os.kill(os.getpid(), signal.SIGKILL)
    """
    killed, used, mine = (tmp_path / f"{SHARED_FOLDER}{name}" for name in ("killed", "used", "mine"))
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(killed / "set")], check=False)
    assert (killed / "set" / "a.safetensors").is_file()
    using = SharedFolders()
    using.collect(str(used / "set"))
    SharedFolders().collect(str(mine / "set"))
    assert not killed.exists()
    assert used.exists()
    using.leave()
    assert not used.exists()


def test_whenever_another_taker_comes_each_file_has_one(tmp_path, monkeypatch):
    numbers = itertools.count()

    def before():
        folder = tmp_path / f"{SHARED_FOLDER}{next(numbers)}" / "set"
        write(folder, a=b"some", b=b"more")
        return SharedFolders(), SharedFolders(), folder

    def first(mine, _, folder):
        return mine.collect(str(folder))

    def second(_, other, folder):
        return other.collect(str(folder))

    for *_, folder, mine, others in between_its_calls(monkeypatch, before, first, second):
        assert sorted([*mine, *others]) == ["a.safetensors", "b.safetensors"]
        assert not folder.exists()


@pytest.mark.parametrize("set_of_other", [2, 3])
def test_whenever_another_host_lays_out_the_set_is_whole_and_old_ones_go(tmp_path, monkeypatch, set_of_other):
    """The same set, or already the next one."""
    numbers = itertools.count()

    def part(number):
        return [{"a.safetensors": np.full(3, number, np.uint8), "b.safetensors": np.full(2, number, np.uint8)}]

    def before():
        shared, mine, other = tmp_path / f"{SHARED_FOLDER}{next(numbers)}", SharedFolders(), SharedFolders()
        for number in range(2):
            mine.lay_out(str(shared / f"set-{number}"), part(number))
        return mine, other, shared

    def first(mine, _, shared):
        mine.lay_out(str(shared / "set-2"), part(2))

    def second(_, other, shared):
        other.lay_out(str(shared / f"set-{set_of_other}"), part(set_of_other))

    for *_, shared, _, _ in between_its_calls(monkeypatch, before, first, second):
        sets = {path.name for path in shared.iterdir() if path.is_dir()}
        assert {"set-2", f"set-{set_of_other}"} <= sets
        assert len(sets) == 2
        assert lie(shared / "set-2") == {"a.safetensors": bytes([2] * 3), "b.safetensors": bytes([2] * 2)}


def test_whenever_the_last_one_leaves_another_can_come(tmp_path, monkeypatch):
    numbers = itertools.count()

    def before():
        shared, leaving = tmp_path / f"{SHARED_FOLDER}{next(numbers)}", SharedFolders()
        leaving.lay_out(str(shared / "set"), [{"a.safetensors": np.zeros(3, np.uint8)}])
        return SharedFolders(), leaving, shared

    def first(coming, _, shared):
        coming.lay_out(str(shared / "next"), [{"a.safetensors": np.ones(3, np.uint8)}])

    def second(_, leaving, __):
        leaving.leave()

    for coming, _, shared, _, _ in between_its_calls(monkeypatch, before, first, second):
        assert lie(shared / "next") == {"a.safetensors": bytes([1] * 3)}
        coming.leave()
        assert not shared.exists()
