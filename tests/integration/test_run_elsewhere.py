"""Without Linux's own facilities a run trains, resumes, is reported and viewed, and its digits are the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from small_run import command, dapo, environment, write_recipe

from dapo.observe.metrics import read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts

pytestmark = pytest.mark.whole
SHIM = Path(__file__).resolve().parents[1] / "helpers" / "elsewhere"
REWARD = """
import os, sys

def score(prompt, completion):
    assert getattr(sys, "dapo_elsewhere", False) == ("ELSEWHERE" in os.environ)
    return len(completion.text) / 1000
"""
WORKER = ["rewards.2.name=length", "rewards.2.kind=function", "rewards.2.function=mine:score", "rewards.2.weight=0"]
STEPS = [*WORKER, "trainer.steps=3", "run.reward_workers=1"]


@pytest.fixture
def elsewhere(tmp_path):
    """The environment of a process elsewhere; its folder for temporary files is longer than a socket's path may be."""
    temporary = tmp_path / ("t" * 120)
    temporary.mkdir()
    path = os.pathsep.join([str(SHIM), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**environment(), "PYTHONPATH": path, "TMPDIR": str(temporary), "ELSEWHERE": "1"}


def rows(run):
    return [without_clock(row) for row in read_metrics(run / "metrics.jsonl")]


def test_the_shim_takes_away_what_it_names(elsewhere):
    """Otherwise the test below shows nothing."""
    code = """
import ctypes, multiprocessing, os, pathlib, tempfile
assert not hasattr(os, "sched_getaffinity") and not hasattr(os, "pidfd_open")
assert not pathlib.Path("/proc").exists() and not os.access("/dev/shm", os.W_OK)
assert multiprocessing.get_start_method() == "spawn" and len(tempfile.gettempdir()) > 108
for broken in (lambda: open("/proc/self/stat"), lambda: os.listdir("/proc"), lambda: ctypes.CDLL(None).prctl):
    try:
        broken()
    except (FileNotFoundError, AttributeError):
        continue
    raise AssertionError(broken)
"""
    subprocess.run([sys.executable, "-c", code], env=elsewhere, check=True)


COMMANDS = """
import runpy, sys
for line in sys.argv[1:]:
    sys.argv = ["dapo", *line.split("|")]
    try:  # as the main module, which spawned processes look for
        runpy.run_module("dapo", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, (line, end.code)
"""


@pytest.mark.timeout(600)
def test_training_resume_report_and_view(tmp_path, elsewhere):
    recipe = write_recipe(tmp_path)
    (tmp_path / "mine.py").write_text(REWARD)
    train = "|".join(["train", str(recipe), *STEPS, "run.name=there"])
    code = [sys.executable, "-c", COMMANDS, train, "train|--resume|there|trainer.steps=4", "report|there"]
    done = subprocess.run(code, cwd=tmp_path, env=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    dapo("train", recipe, *STEPS, "trainer.steps=4", "run.name=here", cwd=tmp_path)
    found, expected = rows(tmp_path / "there"), rows(tmp_path / "here")
    assert len(found) == 5
    assert found == expected
    last = tmp_path / "there/rollouts/step_000004.parquet"
    scores = [dict(row["rewards"])["length"] for row in read_rollouts(last).to_pylist()]
    assert min(scores) > 0
    assert (tmp_path / "there/report/report.html").stat().st_size > 10_000
    files = [str(file.relative_to(tmp_path)) for file in (tmp_path / "there").rglob("*")]
    assert [name for name, count in Counter(map(str.casefold, files)).items() if count > 1] == []
    assert "there" in looked_at(tmp_path, elsewhere)


def looked_at(folder: Path, variables: dict[str, str]) -> str:
    """Return the list of runs that ``dapo view`` serves; Ctrl-C then ends it."""
    server = subprocess.Popen(
        command("view", folder, "--port", "0"), cwd=folder, env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = next(match[0] for line in server.stdout if (match := re.search(r"http://[\d.:]+/", line)))
        with urllib.request.urlopen(f"{address}api/runs", timeout=120) as answer:
            listed = answer.read().decode()
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 0
    finally:
        server.kill()
        server.wait()
    return listed
