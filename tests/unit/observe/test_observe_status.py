"""status.json and whether a run's folder is held: hand-worked, half-written, foreign, and across processes."""

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dapo.errors import AccuracyUnknown, EngineError, NothingScored, RunStuck, SamplingStopped, Terminated
from dapo.observe import run_lock
from dapo.observe.commands import record_given, resume_said
from dapo.observe.run_folder import RunFolder
from dapo.observe.run_lock import is_held
from dapo.observe.sentences import PARTIAL, stop_said
from dapo.observe.status import RunStatus, StatusWriter, ending, read_evidence, read_filling, read_status
from dapo.types.evidence import (
    Awaited,
    Cause,
    ClusterLost,
    CollectProgress,
    DataEnded,
    Example,
    Hopeless,
    NoGain,
    OutOfTime,
    Shares,
    SilentEvidence,
    StopEvidence,
    StuckEvidence,
    UnscoredEvidence,
)


class Clock:
    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def path(tmp_path):
    return tmp_path / "status.json"


def test_that_nothing_happens_stays_beside_what_the_run_does_until_something_does(path):
    clock = Clock()
    status = StatusWriter(path, steps=9, clock=clock)
    said = []
    for act in (
        lambda: status.doing("1 of 4 kept"),
        lambda: status.stillness("nothing happened for 1 min"),
        lambda: status.doing("2 of 4 kept"),
        lambda: status.stillness(""),
        lambda: status.stillness("nothing happened for 1 min"),
        lambda: status.step(1),
        lambda: status.doing("0 of 4 kept"),
    ):
        clock.now += 2.0
        act()
        said.append(read_status(path).doing)
    still = "nothing happened for 1 min"
    beside = ["1 of 4 kept", f"1 of 4 kept; {still}", f"2 of 4 kept; {still}"]
    assert said == [*beside, "2 of 4 kept", f"2 of 4 kept; {still}", "", "0 of 4 kept"]


def test_that_something_happens_again_is_written_at_once_since_no_further_write_may_come_for_long(path):
    clock = Clock()
    status = StatusWriter(path, steps=9, clock=clock)
    clock.now += 2.0
    status.stillness("nothing happened for 1 min")
    clock.now += 2.0
    status.doing("2 of 4 kept")
    status.stillness("")
    assert read_status(path).doing == "2 of 4 kept"


def test_a_run_says_how_it_stands_at_most_once_a_second(path):
    clock = Clock()
    status = StatusWriter(path, steps=9, clock=clock)
    assert json.loads(path.read_text()) == {
        "state": "running",
        "said": "",
        "step": 0,
        "steps": 9,
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "started": 1000.0,
        "updated": 1000.0,
        "doing": "",
        "folder": str(path.parent),
        "evidence": None,
        "filling": None,
    }
    clock.now = 1000.9
    status.doing("1 of 4 kept")
    assert read_status(path).doing == ""
    status.step(1)  # at once: no further word may come while the caller of the steps holds the run
    assert (read_status(path).step, read_status(path).updated) == (1, 1000.9)
    status.step(2)
    assert (read_status(path).step, read_status(path).updated) == (2, 1000.9)
    clock.now = 900.0  # the machine's clock was set back
    status.step(3)
    assert (read_status(path).step, read_status(path).updated) == (3, 900.0)
    status.step(4)
    status.end("finished")
    us = (os.getpid(), os.uname().nodename)
    assert read_status(path) == RunStatus("finished", "", 4, 9, *us, 1000.0, 900.0, folder=str(path.parent))
    assert [p.name for p in path.parent.iterdir()] == ["status.json"]


def test_a_resumed_run_says_running_again_and_keeps_its_first_start(path):
    StatusWriter(path, steps=9, clock=Clock(1000.0)).end("failed", "OSError: disk full")
    StatusWriter(path, steps=12, step=5, clock=Clock(2000.0))
    found = read_status(path)
    assert (found.state, found.said, found.step, found.steps) == ("running", "", 5, 12)
    assert (found.started, found.updated) == (1000.0, 2000.0)


def test_the_facts_of_a_batch_that_fills_outlive_the_process_and_not_the_step(path):
    clock = Clock()
    status = StatusWriter(path, steps=9, clock=clock)
    shares = Shares(all_wrong=1.0, judged=32, answered=0.0, unscored={"timeout \ud800": 3})
    filling = CollectProgress(1, 0, 8, 32, shares, generated_tokens=900, cap_groups=160.0)
    clock.now = 1001.0
    status.doing("0 of 8 kept", filling)
    clean = replace(filling, shares=replace(shares, unscored={"timeout \ufffd": 3}))
    assert read_filling(read_status(path).filling) == clean  # of a process that is killed here
    status.doing("1 of 8 kept", replace(filling, kept=1))  # within the same second
    status.end("interrupted", "stopped")
    assert read_filling(read_status(path).filling) == replace(clean, kept=1)
    status.step(1)
    assert read_status(path).filling is None
    for odd in ({}, {"step": 1}, {**asdict(filling), "judged": 1e300}, {**asdict(filling), "shares": 3}, 7, None):
        assert read_filling(odd) is None


UNSCORED = UnscoredEvidence(32, {"timeout": 30, "crash": 2}, engine=False)
UNFILLED = StopEvidence(
    "cap.groups",
    4.0,
    31,
    32,
    Shares(
        kept=0.2, all_correct=0.8, judged=154, answered=None, unscored={"timeout": 3}, hopeless=Hopeless(3, 1, 0.1, 0.3)
    ),
    Cause.SOLVED,
    Example("6 + 7", "13", "12", 0.0),
)
STUCK = StuckEvidence(2, 3, 4, 1, Awaited(scored=4, effect_at=32, clock=30))
SILENT = SilentEvidence({"held out": "timeout"}, engine=False)


def test_a_run_that_is_left_before_its_first_checkpoint_names_none(path):
    status = StatusWriter(path, steps=9, clock=Clock())
    with pytest.raises(KeyboardInterrupt), ending(status, list):
        raise Terminated
    assert read_status(path).said == "left at once, before the first checkpoint; a resume starts from the beginning"


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (AccuracyUnknown(SILENT, "cannot be told"), "failed", "AccuracyUnknown: cannot be told"),
        (NothingScored(UNSCORED, "the verifier fails on everything"), "failed", "the verifier fails on everything"),
        (
            SamplingStopped(UNFILLED, "step 3: full of\nhopeless prompts"),
            "unfilled",
            "step 3: full of\nhopeless prompts",
        ),
        (RunStuck(STUCK, "step 2 cannot go on"), "failed", "RunStuck: step 2 cannot go on"),
        (KeyboardInterrupt(), "interrupted", "left at once; a resume goes on from the checkpoint of step 4"),
        (EngineError("gone\n\n  for good \ud800"), "failed", "EngineError: gone for good \ufffd"),
        (SystemExit(3), "failed", "SystemExit: 3"),
    ],
)
def test_how_a_run_ended_is_told_and_the_error_goes_on(path, error, state, said):
    status = StatusWriter(path, steps=9, clock=Clock())
    with pytest.raises(type(error)) as raised, ending(status, lambda: [2, 4]):
        raise error
    assert raised.value is error
    found = read_status(path)
    assert found.state == state
    assert found.said.startswith(said)
    assert read_evidence(found.evidence) == getattr(error, "evidence", None)
    assert found.folder == str(path.parent)


@pytest.mark.parametrize(
    "ending",
    [
        DataEnded(25, retired=False),
        NoGain("a", 3, 3, 0.5, 20),
        OutOfTime(1.5, 5000.0, None),
        OutOfTime(1.5, 5e3, 40.0),
        ClusterLost("head", "192.0.2.1:6379"),
        ClusterLost("machine", "192.0.2.1:6379"),
        ClusterLost("head", "192.0.2.1:6379", silent=True),
    ],
)
def test_an_end_before_the_last_step_is_written_as_data(path, ending):
    StatusWriter(path, steps=9).end("finished", "said", ending)
    assert read_evidence(read_status(path).evidence) == ending


def test_secrets_that_an_error_quotes_are_hidden(path):
    with pytest.raises(EngineError), ending(StatusWriter(path, steps=4), list):
        raise EngineError("it redirects to http://me:s3cr3t@host/x")
    assert read_status(path).said == "EngineError: it redirects to http://<hidden-secret>@host/x"


def test_without_an_error_the_caller_says_it(path):
    status = StatusWriter(path, steps=9, clock=Clock())
    with ending(status, lambda: [2, 4]):
        pass
    assert read_status(path).state == "running"


def test_on_a_full_disk_the_end_is_written_over_the_old_status(path, monkeypatch):
    status = StatusWriter(path, steps=9, clock=Clock())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dapo.observe.status.write_atomically", full)
    status.end("failed", "x" * 3000)
    found = read_status(path)
    assert (found.state, len(found.said) < 300) == ("failed", True)


def test_a_status_that_cannot_be_written_hides_no_error(tmp_path):
    status = StatusWriter(tmp_path / "gone" / "status.json", steps=9)
    with pytest.raises(EngineError), ending(status, lambda: [2, 4]):
        raise EngineError("the engine is what to speak of")


def test_evidence_stays_small_whatever_a_response_says(path):
    """Of a long text the ends are kept, of many reasons the first; what is read back has words."""
    long = Example("p" * 9999, "\ud800", "r" * 10**6, None, "timeout")
    reasons = {f"reason {n} {'x' * 999}": 1000 - n for n in range(900)}
    shares = replace(UNFILLED.shares, unscored=reasons)
    StatusWriter(path, steps=9).end("unfilled", "said " * 2000, replace(UNFILLED, example=long, shares=shares))
    assert path.stat().st_size < 64 * 1024
    found = read_evidence(read_status(path).evidence)
    assert found.example.response.startswith("rrr")
    assert len(found.example.response) == 200
    assert next(iter(found.shares.unscored.values())) == 1000
    assert stop_said(found, Path("RUN")).count("\n") == 4


@pytest.mark.parametrize(
    "change",
    [
        {"kept": "many"},
        {"kind": "other"},
        {"limit": float("nan")},
        {"wanted": 10**30},
        {"shares": {"kept": []}},
        {"cause": "bad luck"},
        {"met": None},
    ],
)
def test_evidence_that_no_run_writes_is_none(change):
    whole = json.loads(json.dumps(asdict(UNFILLED)))
    assert read_evidence(whole) == UNFILLED
    assert read_evidence(whole | {"later": "field"}) == UNFILLED
    assert read_evidence(whole | change) is None


WHOLE = {"state": "running", "said": "", "step": 1, "steps": 2, "pid": 3, "host": "h", "started": 1.5, "updated": 2}


def test_every_whole_status_is_read(path):
    path.write_text(json.dumps(WHOLE | {"later": "field"}))
    assert read_status(path) == RunStatus("running", "", 1, 2, 3, "h", 1.5, 2.0)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        json.dumps(WHOLE)[:40],
        "[1]",
        "7",
        "null",
        "\x00\xff",
        "[" * 100_000,
        json.dumps(WHOLE | {"state": "dancing"}),
        json.dumps(WHOLE | {"state": ["running"]}),
        json.dumps(WHOLE | {"step": None}),
        json.dumps(WHOLE | {"step": "many"}),
        json.dumps(WHOLE | {"step": float("inf")}),
        json.dumps(WHOLE | {"started": float("nan")}),
        json.dumps({k: v for k, v in WHOLE.items() if k != "pid"}),
    ],
)
def test_what_is_no_status_is_none(path, content):
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    assert read_status(path) is None


def test_a_folder_in_the_place_of_the_file_is_none(path):
    path.mkdir()
    assert read_status(path) is None


# ---------------------------------------------------------------------------------------------- who holds the folder

ASK = "import sys; from dapo.observe.run_lock import is_held; print(is_held(sys.argv[1]))"
HOLD = """
import sys
from dapo.observe.run_folder import RunFolder
RunFolder.create(sys.argv[1], "r")
print("held", flush=True)
sys.stdin.read()
"""


def ask(path):
    """Another process's answer."""
    done = subprocess.run([sys.executable, "-c", ASK, str(path)], capture_output=True, text=True, check=True)
    return {"True\n": True, "False\n": False}[done.stdout]


def test_a_folder_is_held_while_its_process_lives(tmp_path):
    assert not is_held(tmp_path / "r")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    assert is_held(tmp_path / "r")
    assert is_held(str(tmp_path / "r"))
    holder.kill()
    holder.wait()
    assert not is_held(tmp_path / "r")


def test_asking_in_the_holding_process_does_not_drop_its_lock(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    for _ in range(3):
        assert not is_held(run.path)  # no OTHER process
    (tmp_path / "link").symlink_to(run.path)
    assert not is_held(tmp_path / "link")
    assert ask(run.path)
    moved = run.path.rename(tmp_path / "moved")  # the same lock file under another name
    assert not is_held(moved)
    assert ask(moved)
    run.release()
    assert not ask(moved)
    assert not is_held(moved)


def test_asking_from_a_fork_of_the_holder_sees_the_holder(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    child = os.fork()
    if child == 0:
        os._exit(0 if is_held(run.path) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(run.path)  # and it is still held
    run.release()


def test_asking_disturbs_nobody_who_wants_the_folder(tmp_path, monkeypatch):
    """A reader holds a shared lock for an instant; a run that begins in that instant looks again."""
    RunFolder.create(tmp_path, "r").release()
    reader = (tmp_path / "r" / "lock").open("rb")
    fcntl.flock(reader, fcntl.LOCK_SH)
    monkeypatch.setattr(run_lock.time, "sleep", lambda seconds: reader.close())
    run = RunFolder(tmp_path / "r")
    run.lock()
    assert reader.closed
    assert ask(run.path)
    run.release()


def test_a_folder_without_a_lock_file_is_not_held(tmp_path):
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []  # and none is made


def test_how_to_go_on_is_said_as_the_run_was_started(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    assert resume_said(run) == f"dapo train --resume '{run}'"
    assert resume_said(run, "KEY=VALUE", supervised=True) == f"dapo sft --resume '{run}' KEY=VALUE"
    record_given(run, ["rewards=[score]"], {})
    assert resume_said(run) == f'dapo.resume("{run}", rewards=[score])'
    assert resume_said(run, "a.b=c") == f'dapo.resume("{run}", rewards=[score], **{{"a.b": "c"}})'
    record_given(run, ["x`\n\x1b[2J"], {})  # a folder of anyone
    assert resume_said(run).isprintable()
    assert "`" not in resume_said(run)
    for text in ("[]", '{"resume": 3}', '{"resume": [3]}', "{"):
        (run / "given.json").write_text(text)
        assert resume_said(run) == f"dapo train --resume '{run}'"


def test_no_groups_are_no_partial_batch():
    shares = Shares(judged=64, all_wrong=1.0, group_size=16)
    for kept, told in ((0, False), (3, True)):
        evidence = StopEvidence("cap.groups", 2.0, kept, 32, shares, Cause.TOO_HARD)
        assert (PARTIAL in stop_said(evidence, Path("RUN"))) is told
