"""CI runs one of four suites in turn, all of them for a release, and says which and why. A stub stands for make."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci/run"
ALWAYS = ["check", "test", "test-whole", "site", "test-wheel", "combinations-clock"]
SUITES = {"test-cluster", "test-vllm", "test-browser", "test-real"}
MAKE = """#!/bin/sh
echo "$1" >> "$MADE"
case " $FAILS " in *" $1 "*) exit 2;; esac
"""


def git(folder, *words, second=0):
    """Run git at a fixed time: hashes of commits repeat."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"2026-01-01T00:00:{second:02}Z")
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=os.environ | dates)


@pytest.fixture
def checkout(tmp_path):
    """A repository of one commit with the script, and a make that writes down its targets."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(RUN, folder / ".ci/run")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/make").write_text(MAKE)
    (tmp_path / "bin/make").chmod(0o755)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def run(folder, fails="", seconds=0):
    """Run the script; return its exit code, the targets that were made, and what it said."""
    bins = folder.parent / "bin"
    made = bins.parent / "made"
    made.unlink(missing_ok=True)
    known = {"PATH": f"{bins}{os.pathsep}{os.environ['PATH']}", "MADE": str(made), "FAILS": fails}
    done = subprocess.run(
        ["bash", str(folder / ".ci/run")],
        env=os.environ | known | {"SECONDS": str(seconds)},
        capture_output=True,
        text=True,
    )
    return done.returncode, made.read_text().split(), done.stdout


def at(folder, suite):
    """Add commits until it is the suite's turn."""
    for _ in range(4):
        if suite in run(folder)[1]:
            return
        git(folder, "commit", "-qm", "next", "--allow-empty")
    pytest.fail(f"{suite} had no turn in four commits")


def test_suites_take_turns_and_everything_else_runs_always(checkout):
    turns = []
    for number in range(1, 6):
        code, made, said = run(checkout)
        assert code == 0
        assert made[: len(ALWAYS)] == ALWAYS
        (suite,) = SUITES & {*made}
        assert f"Suite: {suite} (the turn of commit {number};" in said
        turns.append(suite)
        git(checkout, "commit", "-qm", "next", "--allow-empty")
    assert set(turns[:4]) == SUITES
    assert turns[4] == turns[0]


def test_a_release_runs_all_and_another_tag_does_not(checkout):
    git(checkout, "tag", "tried")
    assert len(SUITES & {*run(checkout)[1]}) == 1
    git(checkout, "tag", "v0.1.0")
    code, made, said = run(checkout)
    assert code == 0
    assert {*made} >= SUITES
    assert "all, since v0.1.0 is a release" in said


def test_a_shallow_clone_draws_by_the_hash_of_its_commit(checkout, tmp_path):
    """Its count is 1 at every commit: the same suite would run for ever."""
    drawn = set()
    for number in range(6):
        git(checkout, "commit", "-qm", "next", "--allow-empty", second=number)
        clone = tmp_path / f"clone-{number}"
        git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout}", str(clone))
        _, made, said = run(clone)
        assert "shallow clone" in said
        drawn |= SUITES & {*made}
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("suite", "needs", "why"),
    [("test-real", "download-smollm2", "(its model"), ("test-browser", "setup-chromium", "(no Chromium")],
)
def test_what_a_suite_cannot_get_is_said_and_fails_nothing(checkout, suite, needs, why):
    at(checkout, suite)
    code, made, said = run(checkout, fails=needs)
    assert code == 0
    assert suite not in made
    assert [line for line in said.splitlines() if line.startswith(f"NOT RUN: make {suite} {why}")]


@pytest.mark.parametrize("suite", ["test-real", "test-vllm", "check"])
def test_a_failed_target_fails(checkout, suite):
    if suite in SUITES:
        at(checkout, suite)
    assert run(checkout, fails=suite)[0] != 0


def test_what_is_late_is_named_and_not_begun(checkout):
    at(checkout, "test-cluster")
    code, made, said = run(checkout, seconds=56 * 60)
    assert code == 0
    assert "NOT RUN: make test-cluster (after 56 minutes" in said
    assert made == ALWAYS
