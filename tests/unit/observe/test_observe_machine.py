"""machine.jsonl: on what a run was computed, from its start and from each resume on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version

import pytest

from dapo import __version__
from dapo.observe.jsonl import read_jsonl
from dapo.observe.machine import append_machine, describe_machine, git_state


def git(folder, *arguments):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "reward.py").write_text("1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "a")
    return folder


def test_the_commit_and_whether_tracked_files_were_changed(repository):
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "runs").mkdir()  # what a run writes makes nothing dirty
    (repository / "runs/metrics.jsonl").write_text("{}\n")
    assert git_state(repository) == (commit, False)
    (repository / "reward.py").write_text("2\n")
    assert git_state(repository) == (commit, True)
    below = repository / "below"
    below.mkdir()
    assert git_state(below) == (commit, True)


def test_without_a_repository_a_commit_or_git_nothing_is_said(tmp_path, repository, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    outside = tmp_path / "outside"
    outside.mkdir()
    assert git_state(outside) == ("", None)
    git(outside, "init", "-q")
    assert git_state(outside) == ("", None)
    monkeypatch.setenv("PATH", str(outside))
    assert git_state(repository) == ("", None)


def test_a_line_for_the_start_and_one_for_a_resume(tmp_path, monkeypatch, repository):
    monkeypatch.chdir(repository)
    for step, devices in ((0, []), (7, ["H200, 139 GiB, CUDA 13.0"])):
        append_machine(tmp_path / "machine.jsonl", describe_machine(step, "embedded", 3, devices))
    first, second = read_jsonl(tmp_path / "machine.jsonl")
    assert (first["step"], second["step"], first["accelerators"], len(second["accelerators"])) == (0, 7, [], 1)
    assert first["versions"]["dapo"] == __version__
    assert first["versions"]["torch"] == version("torch")
    assert first["versions"]["transformers"] == version("transformers")
    assert first["versions"]["python"] == platform.python_version()
    assert (first["threads"], first["engine"], first["dirty"]) == ("3", "embedded", False)
    assert first["commit"] == git(repository, "rev-parse", "HEAD")
    assert first["cores"] == len(os.sched_getaffinity(0))
    assert 0.1 < first["memory_gib"] < 1e5
    assert first["cpu"]
    assert os.uname().nodename not in str(first).replace(first["cpu"], "")
