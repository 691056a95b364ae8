"""What the package asks of the operating system has an answer where Linux's facilities are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from dapo import system
from dapo.config.load import recipe_from_dict
from dapo.errors import ModelError, RecipeError
from dapo.models.load import find_device
from dapo.processes import guard
from dapo.rewards.pool import WorkerPool

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}


def test_cores_without_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert system.core_count() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert system.core_count() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert system.core_count() == 1


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/box\n", {"box/memory.max": "3000\n", "memory.max": "max\n"}, 3000),
        ("0::/box/inner\n", {"box/inner/memory.max": "max\n", "box/memory.max": "2000\n"}, 2000),
        ("0::/unseen/from/here\n", {"memory.max": "1000\n"}, 1000),
        ("4:cpu:/box\n5:memory:/box\n", {"memory/box/memory.limit_in_bytes": "4000\n", "box/memory.max": "1\n"}, 4000),
        ("5:memory:/box\n", {"memory/box/memory.limit_in_bytes": "9223372036854771712\n"}, 80 * 4096),
        ("", {"memory.max": "1\n"}, 80 * 4096),
        (None, {}, 80 * 4096),
    ],
)
def test_a_container_has_no_more_memory_than_its_limit(monkeypatch, tmp_path, own, files, limit):
    monkeypatch.setattr(system, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(system, "_OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 80, "SC_PAGE_SIZE": 4096}.__getitem__)
    if own is not None:
        (tmp_path / "cgroup").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert system.memory_size() == limit


def test_a_process_is_known_without_proc(monkeypatch):
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert system.process_exists(os.getpid())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not system.process_exists(ended.pid)
    assert not system.process_exists(10**30)

    def of_another_user(process, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", of_another_user)
    assert system.process_exists(ended.pid)


def test_memory_without_its_file_systems(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "_SHARED_MEMORY", tmp_path)
    assert system.shared_memory() == tmp_path
    monkeypatch.setattr(system, "_SHARED_MEMORY", tmp_path / "none")
    assert system.shared_memory() is None
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    monkeypatch.setattr(system, "_MEMORY_FACTS", facts)
    assert system.available_memory() == 7 * 1024
    monkeypatch.setattr(system, "_MEMORY_FACTS", tmp_path / "none")
    assert system.available_memory() is None


WATCHING = """
import os, sys, time
if sys.argv[1] == "poll":
    del os.pidfd_open
from dapo import system
system._LOOK = 0.01
child = os.fork()
if child == 0:
    os.environ[system.WATCH_PARENT] = "1"
    system.end_with_parent_if_asked()
    assert system.WATCH_PARENT not in os.environ
    print("watching", flush=True)
    time.sleep(3600)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["pidfd", "poll"])
def test_a_process_ends_with_its_parent_when_asked(way):
    """The pipe of its output ends with the last process that holds it."""
    command = [sys.executable, "-W", "ignore", "-c", WATCHING, way]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "watching\n"
        parent.kill()
        assert parent.stdout.read() == ""


def test_the_guard_and_the_package_mean_the_same_variable():
    assert guard._WATCH_PARENT == system.WATCH_PARENT


def test_a_memory_limit_that_does_nothing_is_reported(monkeypatch, caplog):
    monkeypatch.setattr(sys, "platform", "darwin")
    pool = WorkerPool([], memory_mib=512)
    try:
        pool.start()
    finally:
        pool.close()
    (record,) = [one for one in caplog.records if "reward_memory_mib" in one.message]
    assert "512 has no effect: this system does not limit" in record.message


@pytest.mark.parametrize("device", ["mps", "mps:0"])
def test_apples_gpu_is_refused_in_words(device, monkeypatch):
    with pytest.raises(RecipeError, match=r"Apple's GPU is not supported: it has no float64.*set it to cpu"):
        recipe_from_dict(SMALL, [f"model.device={device}"])
    for seen, words in ((True, "torch sees one here"), (False, "torch sees none here")):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda seen=seen: seen)
        with pytest.raises(ModelError, match=rf"Apple's GPU \({words}\); it has no float64"):
            find_device(device)


def test_no_two_files_differ_in_case_alone():
    """A disk of a Mac would keep one of them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    files = listed.stdout.splitlines() or [str(file.relative_to(ROOT)) for file in (ROOT / "dapo").rglob("*.py")]
    assert "dapo/system.py" in files
    assert [name for name, count in Counter(map(str.casefold, files)).items() if count > 1] == []
