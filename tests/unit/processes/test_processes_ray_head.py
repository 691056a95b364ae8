"""A Ray cluster of this machine that does not start at once, or not at all: Ray's own process is a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dapo.errors import ClusterError
from dapo.processes import ray_head
from dapo.processes.ray_head import OwnCluster

_STAND_IN = """
import json, os, socket, sys
tries = open(os.environ["TRIES"], "a+")
tries.write(os.environ["DAPO_RAY_FOLDER"] + "\\n")
tries.seek(0)
if len(tries.readlines()) < int(os.environ["UP_AT"]):
    print("Traceback (most recent call last):")
    sys.exit("Exception: The current node timed out during startup.")
tries.close()
connection = socket.socket(fileno=int(sys.argv[1]))
connection.sendall(json.dumps("192.0.2.1:6379").encode() + b"\\n")
connection.recv(1)
"""


@pytest.fixture
def tries(tmp_path, monkeypatch):
    """Where each start notes its folder."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", ray_head.OUTLIVING, ray_head.TOLD):
        monkeypatch.setenv(name, "token")  # what is set beside them is put back
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(ray_head, "_HEAD", _STAND_IN)
    monkeypatch.setenv("TRIES", str(tmp_path / "tries.txt"))
    return tmp_path / "tries.txt"


def test_what_is_not_up_in_time_is_tried_again_in_a_folder_of_its_own(tries, monkeypatch, caplog):
    monkeypatch.setenv("UP_AT", "3")
    cluster = OwnCluster()
    folders = tries.read_text().splitlines()
    assert cluster.address == "192.0.2.1:6379"
    assert len(folders) == len(set(folders)) == 3
    assert [Path(folder).is_dir() for folder in folders] == [False, False, True]
    assert cluster.folder == folders[2]
    told = [record.getMessage() for record in caplog.records if "did not start" in record.getMessage()]
    assert len(told) == 2
    assert all("The current node timed out during startup. It is tried again" in line for line in told)
    cluster.close()
    assert not Path(cluster.folder).exists()


def test_after_a_bounded_number_it_is_told_what_was_tried_and_what_to_do(tries, monkeypatch):
    monkeypatch.setenv("UP_AT", "99")
    with pytest.raises(ClusterError) as told:
        OwnCluster()
    folders = tries.read_text().splitlines()
    assert len(folders) == 5
    assert not any(Path(folder).exists() for folder in folders)
    for words in (
        "did not start in 5 attempts; the last one ended with: Exception: The current node timed out during startup. ",
        "load average",
        "cluster.address=HOST:PORT",
        "launch.backend=local",
    ):
        assert words in str(told.value)
