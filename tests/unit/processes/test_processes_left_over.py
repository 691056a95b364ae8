"""Temporary folders of killed processes go, and those of others stay, also where process numbers mean nothing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from between import between_its_calls

from dapo.processes import left_over
from dapo.processes.left_over import claim, delete_left, leave

PREFIX = "dapo-test-"


def makes(parent, owner=None):
    numbers = itertools.count()

    def make():
        folder = parent / f"{PREFIX}{owner or os.getpid()}-{next(numbers)}"
        folder.mkdir()
        return str(folder)

    return make


@pytest.fixture
def other_container(monkeypatch):
    """None of its process numbers is known here."""
    monkeypatch.setattr(left_over, "process_exists", lambda process: False)


def test_what_nobody_holds_goes_and_what_is_not_of_such_a_name_stays(tmp_path, other_container):
    makes(tmp_path, 7)()
    for name in (f"{PREFIX}mine-1", "dapo-other-7-1", f"{PREFIX}"):
        (tmp_path / name).mkdir()
    (tmp_path / f"{PREFIX}8-1").symlink_to(tmp_path / "dapo-other-7-1")
    delete_left(tmp_path, PREFIX)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dapo-other-7-1", PREFIX, f"{PREFIX}8-1", f"{PREFIX}mine-1"]
    delete_left(tmp_path / "gone", PREFIX)


def test_a_folder_of_a_living_process_stays_though_nobody_holds_it(tmp_path):
    folder = makes(tmp_path)()
    delete_left(tmp_path, PREFIX)
    assert os.path.isdir(folder)


def test_a_folder_of_another_container_stays_until_its_process_ends(tmp_path, other_container):
    code = f"""
import sys
from dapo.processes.left_over import claim
import os
folder = {str(tmp_path)!r} + "/{PREFIX}" + str(os.getpid()) + "-1"
print(claim(lambda: os.mkdir(folder) or folder), flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        folder = Path(owner.stdout.readline().strip())
        assert folder.parent == tmp_path
        delete_left(tmp_path, PREFIX)
        assert folder.is_dir()
    finally:
        owner.kill()
        owner.communicate()
    delete_left(tmp_path, PREFIX)
    assert not folder.exists()


@pytest.mark.parametrize("claims_first", [True, False])
def test_whenever_another_process_clears_up_a_new_folder_is_there(tmp_path, monkeypatch, other_container, claims_first):
    numbers = itertools.count()

    def before():
        parent = tmp_path / str(next(numbers))
        parent.mkdir()
        makes(parent, 7)()
        return (parent,)

    def claims(parent):
        return claim(makes(parent, 8))

    def clears(parent):
        delete_left(parent, PREFIX)

    pair = (claims, clears) if claims_first else (clears, claims)
    for parent, *found in between_its_calls(monkeypatch, before, *pair):
        folder = found[0 if claims_first else 1]
        delete_left(parent, PREFIX)
        assert [str(path) for path in parent.iterdir()] == [folder]
        leave(folder)
        delete_left(parent, PREFIX)
        assert [str(p) for p in parent.iterdir()] == []
