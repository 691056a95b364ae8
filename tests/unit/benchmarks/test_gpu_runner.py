"""``python -m benchmarks.gpu`` gets to its end whatever single parts do, and leaves what it had."""

from __future__ import annotations

import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import burning_for_tests
import parts_for_tests
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import runner as running
from benchmarks.gpu.child import installed, run_parts, warm
from benchmarks.gpu.plan import PLAN, REHEARSAL_SECONDS, TOTAL_SECONDS, WARM, Part
from benchmarks.gpu.results import Results, folder_for
from benchmarks.gpu.room import Room
from benchmarks.gpu.runner import Runner

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All parts for tests, through the runner and real children."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        said: list[str] = []
        runner = Runner(list(parts_for_tests.PLAN), "parts_for_tests", "auto", (600.0, 600.0), out,
                        lambda card: {"card": card, "date": "2026-01-01"}, said.append, grace=1.0)  # fmt: skip
        results = runner.run()
    return results, said


def rows(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.whole
def test_every_part_ends_with_its_own_status_and_the_next_is_run(ran):
    results, said = ran
    ends = {name: row["status"] for name, row in results.ends.items()}
    assert ends == {
        "good": "passed", "bad": "failed", "raises": "error", "killed": "died", "reads": "passed",
        "spoils": "passed", "afterwards": "passed", "needs": "skipped", "skips": "skipped", "hangs": "timeout",
        "late": "not reached",
    }  # fmt: skip
    assert results.bad == ["bad", "raises", "killed", "hangs"]
    assert len(said) == 1 + len(ends)


def test_what_went_wrong_is_said(ran):
    said = {name: row["said"] for name, row in ran[0].ends.items()}
    assert said["bad"] == "too large: 3, expected at most 2; not a number: nan, expected at most 2"
    assert said["raises"].startswith("RuntimeError: the kernel")
    assert "signal SIGSEGV" in said["killed"]
    assert said["needs"] == "not installed here: no_such_module"
    assert re.match(r"no end after \d+ s", said["hangs"])
    assert "does not like | this" in (ran[0].folder / "log.txt").read_text()  # the traceback


def test_rows_are_written_at_once_and_later_parts_read_them_in_another_process(ran):
    found = {(row["part"], row["what"]): row["value"] for row in rows(ran[0].folder) if row["event"] == "row"}
    assert found["killed", "last words"] == 1  # its process died at once
    assert "before it" in {what for _, what in found}
    assert found["reads", "read"] == 14.0  # ``reads`` runs in another process than ``good``


def test_behind_a_part_that_spoils_its_process_comes_another_one(ran):
    processes = {row["part"]: row["value"] for row in rows(ran[0].folder) if row.get("what") == "process"}
    assert processes["spoils"] != processes["afterwards"]


def test_a_rehearsal_says_why_there_is_no_card_unless_it_was_asked_for(tmp_path):
    for device, said in (("auto", "no CUDA device (no paper): a rehearsal"), ("cpu", "no CUDA device: a rehearsal")):
        lines: list[str] = []
        runner = Runner(parts_for_tests.PLAN[:1], "parts_for_tests", device, (600.0, 600.0), tmp_path / device,
                        lambda card: {"card": card, "date": "2026-01-01"}, lines.append)  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(HERE))
            patch.setenv("NO_PAPER", "1")
            results = runner.run()
        assert lines[0].startswith(said)
        assert ("- no card: no paper" in results.lines()) == (device == "auto")


def test_a_part_over_its_limit_takes_its_own_processes_with_it(ran):
    (pid,) = [row["value"] for row in rows(ran[0].folder) if row.get("what") == "before the end"]
    assert ends(pid)  # it was killed, and needs a moment


def ends(pid):
    """Whether a process ends, waited for; one that waits for init to notice it has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 120)[0])
    finally:
        os.close(watched)


def test_the_table_can_be_read(ran):
    text = (ran[0].folder / "table.md").read_text()
    assert text.startswith("# Card of Paper 3000, 2026-01-01\n")
    assert "No card was here" not in text
    assert "| `bad` | too large | 3 |  | ≤ 2: **no** |" in text
    assert "| `good` | passed |" in text
    assert r"RuntimeError: the kernel does not like \| this" in text
    hidden = text.partition("## Not shown by this run")[2]
    assert re.findall(r"^- `(\w+)` \(", hidden, re.M) == ["raises", "killed", "needs", "skips", "hangs", "late"]


@pytest.mark.whole
def test_a_killed_command_leaves_its_rows_and_no_process(tmp_path):
    """The child ends with its parent, even one that could say nothing."""
    code = command_line("--only", "hangs", "--out", str(tmp_path), "--plan", "parts_for_tests")
    process = subprocess.Popen(code, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "Card of Paper" in line:
            break
    (folder,) = tmp_path.iterdir()
    file = (folder / "results.jsonl").open()
    text = ""
    while "before the end" not in text:  # the reader's time limit is pytest's own
        text += file.read()
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(children) == 1
    gone = subprocess.run(["tail", f"--pid={children[0]}", "-f", "/dev/null"], timeout=240, check=False)
    assert gone.returncode == 0
    assert [row["event"] for row in rows(folder)] == ["machine", "row"]


@pytest.mark.whole
def test_a_card_that_is_gone_is_not_replaced_by_the_cpu(tmp_path):
    """The next process would find none and rehearse the other parts: a CPU's numbers in the card's table."""
    said: list[str] = []
    runner = Runner(list(burning_for_tests.PLAN), "burning_for_tests", "auto", (600.0, 600.0), tmp_path / "out",
                    lambda card: {"card": card, "date": "2026-01-01"}, said.append)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("ASHES", str(tmp_path / "ashes"))
        results = runner.run()
    ends = {name: (row["status"], row["said"]) for name, row in results.ends.items()}
    assert ends["good"][0] == "passed"
    assert "signal SIGSEGV" in ends["burns"][1]
    assert ends["behind"] == ends["last"] == ("died", "the card does not answer any more: burnt")
    assert results.bad == ["burns", "behind", "last"]
    assert [row["value"] for row in rows(results.folder) if row["event"] == "row"] == [True]
    short = results.short()
    assert short[0] == "- `good`: on the card: yes"
    assert "`burns` died: its process ended with signal SIGSEGV" in short[1]  # where an end alone is kept, the reasons
    assert [line.split("`")[1] for line in short[1:]] == results.bad
    assert "good: on the card: yes" in said[1]  # at once, before the part has ended
    assert "## In short\n\n- `good`: on the card: yes\n- `burns` died: " in (results.folder / "table.md").read_text()


@pytest.mark.parametrize(("device", "told"), [("cpu", ["seen"]), ("cuda", ["seen", "speed"])])
def test_rates_of_a_rehearsal_are_told_to_nobody(monkeypatch, device, told):
    """Later parts find them all the same: their code runs as on a card."""
    found, rows = [], []

    def run(part, room):
        if part.name == "first":
            room.note("seen", 1)
            room.rate("speed", 7.0, "tokens/s", main=True)
        else:
            found.append(room.found("first", "speed"))

    monkeypatch.setattr("benchmarks.gpu.child.call", run)
    parts = [Part(name, "check", 60.0, "") for name in ("first", "second")]
    run_parts(parts, device, math.inf, rows.append, [], lambda device: True)
    assert [row["what"] for row in rows if row["event"] == "row"] == told
    assert found == [7.0]


def made(tmp_path, ends, results=True):
    """A runner that has begun: ``ends`` seconds are left."""
    parts = list(parts_for_tests.PLAN)
    runner = Runner(parts, "parts_for_tests", "auto", (600.0, 600.0), tmp_path, lambda card: {}, lambda line: None)
    runner._since = time.monotonic()
    if results:
        runner.results = Results(tmp_path, {"card": "Card of Paper 3000", "date": "today"}, parts)
        runner._ends = runner._since + ends
    return runner


def test_no_process_is_started_once_the_time_is_over(tmp_path, monkeypatch):
    """Each would import torch for seconds; where the card hangs, none would ever come up."""
    monkeypatch.setattr(Runner, "_child", lambda self, parts: pytest.fail("a process was started"))
    results = made(tmp_path, ends=2.0).run()
    assert {row["status"] for row in results.ends.values()} == {"not reached"}
    assert [*results.ends] == [part.name for part in parts_for_tests.PLAN]


def test_a_process_that_does_not_come_up_takes_no_more_than_the_time_that_is_left(tmp_path):
    runner = made(tmp_path, ends=10.0)
    assert runner._limit() == runner._ends + runner.grace
    assert made(tmp_path / "a", ends=500.0, results=False)._limit() > runner._since + 200  # the first, from a cold disk


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch):
    """One that waits inside the driver ignores every signal; the command goes on without it."""

    class Stuck:
        pid, stdin = 2**22 + 1, open(os.devnull, "wb")  # noqa: SIM115

        def wait(self, seconds):  # to ask without a limit is an error here
            raise subprocess.TimeoutExpired("child", seconds)

    killed = []
    monkeypatch.setattr(os, "killpg", lambda *asked: killed.append(asked))
    assert running._end(Stuck(), 0.0) == -signal.SIGKILL
    assert killed == [(2**22 + 1, signal.SIGKILL)]


def test_a_second_run_of_a_day_has_a_folder_of_its_own(tmp_path):
    names = [folder_for(tmp_path, "NVIDIA H200 (SXM)").name for _ in range(3)]
    assert all(re.fullmatch(r"nvidia-h200-sxm-\d{4}-\d\d-\d\d(-[23])?", name) for name in names)
    assert len(set(names)) == 3


def test_a_rehearsal_names_every_part_as_not_shown_on_a_card(tmp_path):
    results = Results(tmp_path, {"card": "", "date": "today"}, PLAN)
    results.end({"event": "end", "part": "greedy", "status": "passed", "said": "", "seconds": 1.0})
    named = [line.split("`")[1] for line in results.not_shown()]
    assert named == [*(part.name for part in PLAN if part.name != "greedy"), "greedy"]  # what was not run stands first
    assert "`greedy` on a card: here its code ran" in "\n".join(results.not_shown())
    assert (tmp_path / "table.md").read_text().startswith("# Rehearsal without a card, today\n\n**No card was here.**")


def test_the_plan_fits_into_nine_minutes_and_starts_with_what_tells_most():
    assert TOTAL_SECONDS < 9 * 60
    assert REHEARSAL_SECONDS < 2 * 60
    names = [part.name for part in PLAN]
    assert len({*names}) == len(names)
    assert names[:3] == ["preflight", "card_limits", "packed_attention"]
    reached = 0.0
    for part in PLAN:  # whatever takes all of its time: these are reached
        if part.name in ("decode_0.5b", "learn_7b_layers"):
            assert reached + part.seconds < TOTAL_SECONDS
        reached += part.seconds


def test_what_is_read_before_the_first_part_is_there_and_may_fail():
    assert all(installed(module) for module in WARM)
    warm(["no.such.module", "benchmarks.gpu.plan"])


def test_bounds_are_two_sided_and_nan_lies_between_none():
    room = Room("cpu", Path())
    assert room.expect("a", 1.0, at_least=1.0, at_most=1.0)
    assert not room.expect("b", 0.5, at_least=1.0)
    assert not room.expect("c", 1.5, at_most=1.0)
    assert not room.expect("d", float("nan"))
    assert [text.partition(":")[0] for text in room.failed] == ["b", "c", "d"]


def test_missing_core_dependencies_are_named_as_pip_knows_them(monkeypatch):
    modules = command.core_dependencies()
    assert modules["ruamel.yaml"] == "ruamel.yaml"
    assert modules["math-verify"] == "math_verify"
    assert command.missing_dependencies() == []
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    assert command.missing_dependencies() == ["ruamel.yaml", "math-verify"]


def command_line(*arguments):
    return [sys.executable, "-m", "benchmarks.gpu", *arguments]


def environment():
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}


def test_an_unknown_part_is_refused_with_those_there_are(tmp_path):
    done = subprocess.run(command_line("--only", "decode"), cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "no part is called decode; there are" in done.stderr
    assert "decode_0.5b" in done.stderr
