"""Worker processes: what they may take, what they leave behind, and what they can do to the driver."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import alive
from quick import quick
from scoring import completion, prompt, score_all

from dapo.config.schema import Reward
from dapo.errors import RewardError
from dapo.processes.wire import Inbox, WireError, frame
from dapo.processes.workers import OutputFile
from dapo.rewards.compose import CompositeScorer, build_scorer

HERE = Path(__file__).parent
OBEY = "verifiers_for_tests:obey"


@pytest.fixture
def make() -> Iterator[Callable[..., CompositeScorer]]:
    made: list[CompositeScorer] = []

    def build(function: str = OBEY, timeout: float = 60.0, **options: Any) -> CompositeScorer:
        made.append(build_scorer([Reward(kind="function", function=function, timeout=timeout)], **options))
        return made[-1]

    yield build
    for scorer in made:
        scorer.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """For what the kernel and the guard do on their own; two minutes are far beyond it."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---------------------------------------------------------------- what a worker writes to its connection


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("huge header", "crash: something that is no answer came from the worker (a message of 2147483648 bytes"),
        pytest.param("half a message", "timeout", marks=pytest.mark.whole),
        ("evil pickle", "crash: something that is no answer came from the worker (1 faults in a message"),
        pytest.param("not json", "crash: something that is no answer", marks=pytest.mark.whole),
        pytest.param("brackets", "crash: something that is no answer", marks=pytest.mark.whole),
        pytest.param(
            "other item",
            "crash: something that is no answer came from the worker (a message that is not due: done",
            marks=pytest.mark.whole,
        ),
        pytest.param(
            "no failure",
            "crash: something that is no answer came from the worker (a message that is not due: failed",
            marks=pytest.mark.whole,
        ),
        ("flood", "crash: something that is no answer"),
    ],
)
def test_writing_to_the_connection_loses_one_verdict(make: Any, order: str, reason: str) -> None:
    scorer = make(timeout=2.0 if reason == "timeout" else 60.0)
    scores = score_all(scorer, ["half", order, "half"])
    assert [s.reward for s in scores[::2]] == [0.5, 0.5]
    assert scores[1].reason is not None
    assert scores[1].reason.startswith(reason)
    assert "PWNED_DRIVER" not in os.environ


@pytest.mark.whole
def test_a_clock_that_runs_ahead_does_not_lift_the_time_limit(make: Any) -> None:
    scores = score_all(make(timeout=2.0), ["future", "hang"])
    assert scores[0].reward == 1.0
    assert scores[1].reason == "timeout: no answer within 2 s"


@pytest.mark.whole
def test_a_worker_that_does_not_read_holds_up_nobody(make: Any) -> None:
    """Batches far beyond what a socket holds go to a stopped process; its items fail by their time limit."""
    scorer = make(timeout=2.0)
    assert score_all(scorer, ["half"])[0].reward == 0.5
    assert scorer._pool is not None
    guard = scorer._pool._workers[0].process.pid
    (worker,) = children_of(guard)
    os.kill(worker, signal.SIGSTOP)
    (lost, *rest) = score_all(scorer, ["half"] * 4, prompt("x" * 4_000_000))
    assert lost.reason == "timeout: no answer within 2 s"
    assert [s.reward for s in rest] == [0.5] * 3


def test_a_worker_waits_for_the_rest_of_a_batch_while_the_driver_is_away(make: Any, monkeypatch: Any) -> None:
    """The learner works for minutes, and nobody sends what no socket holds: that is no time of the worker's."""
    scorer = make()  # a minute for each
    assert score_all(scorer, ["half"])[0].reward == 0.5
    assert scorer._pool is not None
    (worker,) = scorer._pool._workers
    for index in range(4):
        scorer.submit((7, index), prompt("x" * 1_000_000), completion("half"))
    found = scorer.poll(0)
    assert worker.outbox
    assert select.select([], [worker.process.connection], [], 120)[1]  # the worker has read what there was
    away = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000, sleep=time.sleep)
    monkeypatch.setattr("dapo.rewards.pool.time", away)
    monkeypatch.setattr("dapo.processes.workers.time", away)
    while len(found) < 4:
        found += scorer.poll(120)
    assert [(score.reason, score.reward) for _, score in found] == [(None, 0.5)] * 4
    assert scorer.stats()["worker_restarts"] == 0


def test_frames_are_cut_wherever_the_stream_is() -> None:
    inbox, stream = Inbox(limit=10), frame(b"one") + frame(b"") + frame(b"0123456789")
    found = []
    for index in range(len(stream)):
        inbox.feed(stream[index : index + 1])
        found += inbox.frames()
    assert found == [b"one", b"", b"0123456789"]
    inbox.feed(frame(b"0123456789a")[:8])
    with pytest.raises(WireError, match="11 bytes; at most 10"):
        list(inbox.frames())


# ---------------------------------------------------------------- memory


def test_a_reward_beyond_its_memory_is_unscored(make: Any) -> None:
    scorer = make(memory_mib=512)
    scores = score_all(scorer, ["half", "memory", "half"])
    assert [s.reward for s in scores[::2]] == [0.5, 0.5]
    assert scores[1].reason is not None
    assert scores[1].reason.startswith("exception: MemoryError: (run.reward_memory_mib is the limit) (raised by ")


def test_a_worker_is_the_first_to_go_when_memory_runs_out(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "look.py").write_text(
        "import resource\n"
        "def score(prompt, completion):\n"
        "    oom = int(open('/proc/self/oom_score_adj').read())\n"
        "    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "    core = resource.getrlimit(resource.RLIMIT_CORE)[0]\n"
        "    return {'accuracy': 1.0, 'oom': oom, 'soft': soft >> 20, 'hard': hard >> 20, 'core': core}\n"
    )
    monkeypatch.chdir(tmp_path)
    for given, found in (({}, 4096), ({"memory_mib": 777}, 777)):
        (score,) = score_all(make("look:score", **given), ["x"])
        assert dict(score.values) == {"accuracy": 1.0, "oom": 1000, "soft": found, "hard": found, "core": 0}
    (free,) = score_all(make("look:score", memory_mib=None), ["x"])
    assert free.values["hard"] > 1 << 30 or free.values["hard"] < 0
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000", "the driver is as it was"


def test_a_verdict_whose_worker_was_killed_from_outside_is_tried_once_more(make: Any, tmp_path: Path) -> None:
    scorer = make()
    scores = score_all(scorer, ["half", "killed", "one"], prompt(mark=str(tmp_path / "mark")))
    assert [score.reward for score in scores] == [0.5, 1.0, 1.0]
    assert scorer.stats()["worker_restarts"] == 1
    (lost,) = score_all(scorer, ["killed"])
    assert lost.reason == "crash: the process ended with code -9"
    assert scorer.stats()["worker_restarts"] == 3
    (lost,) = score_all(scorer, ["crash"])  # its own doing: it would do it again
    assert scorer.stats()["worker_restarts"] == 4


def test_where_every_try_ends_its_worker_there_are_no_further_tries(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("dapo.rewards.pool.MOST_ENDS", 4)
    scorer = make()
    assert [score.scored for score in score_all(scorer, ["killed"] * 5)] == [False] * 5
    assert scorer.stats()["worker_restarts"] == 2 + 2 + 1 + 1 + 1
    assert [score.scored for score in score_all(scorer, ["one", "killed"])] == [True, False]
    assert scorer.stats()["worker_restarts"] == 7 + 2, "an answer begins the count anew"


# ---------------------------------------------------------------- what they leave behind


FAMILY = """
import verifiers_for_tests as v
from pathlib import Path
HERE = Path({folder!r})
if not any(HERE.iterdir()):  # at import, whose time is no verdict's; a worker that comes after one has none
    v.child(HERE)
    v.child(HERE, start_new_session=True)
    v.orphan(HERE)
score = v.obey
"""


def family(tmp_path: Path) -> list[int]:
    return [int(path.name) for path in (tmp_path / "pids").iterdir()]


@pytest.fixture
def with_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "pids").mkdir()
    (tmp_path / "parent.py").write_text(FAMILY.format(folder=str(tmp_path / "pids")))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for pid in filter(alive, family(tmp_path)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("order", quick(["hang", "hang in c", "crash", "segfault", "evil pickle"], ["crash"]))
def test_children_end_with_their_worker(make: Any, with_family: Path, order: str) -> None:
    """Also those in sessions of their own, and those whose parent is gone."""
    scorer = make("parent:score", timeout=2.0)
    (score,) = score_all(scorer, [order])
    assert score.reason is not None
    assert len(family(with_family)) == 3
    assert not any(map(alive, family(with_family)))


def test_children_end_with_the_run(make: Any, with_family: Path) -> None:
    scorer = make("parent:score")
    assert score_all(scorer, ["one"])[0].reward == 1.0
    assert len(family(with_family)) == 3
    assert all(map(alive, family(with_family)))
    scorer.close()
    assert not any(map(alive, family(with_family)))


@pytest.mark.parametrize("order", quick(["one", "hang in c"], ["one"]))
def test_workers_and_their_children_die_with_a_killed_driver(with_family: Path, order: str) -> None:
    code = f"""
import sys, time; sys.path.insert(0, {str(HERE)!r})
from scoring import completion, prompt
from dapo.config.schema import Reward
from dapo.rewards.compose import build_scorer
scorer = build_scorer([Reward(kind="function", function="parent:score", timeout=3600)])
scorer.submit((0, 0), prompt(), completion({order!r}))
print(scorer._pool._workers[0].process.pid, flush=True)
while True:
    scorer.poll(1)
    time.sleep(0.1)
"""
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        guard = int(driver.stdout.readline())
        wait_until(lambda: len(family(with_family)) == 3)
        (worker,) = [pid for pid in children_of(guard) if pid not in family(with_family)]
        everyone = [guard, worker, *family(with_family)]
        assert all(map(alive, everyone))
        driver.kill()
        driver.wait()
        wait_until(lambda: not any(map(alive, everyone)))
    finally:
        driver.kill()
        driver.wait()


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(entry.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_a_worker_dies_with_its_guard(make: Any) -> None:
    """A reward may well kill its parent process; the item is lost, and the next worker goes on."""
    scorer = make(timeout=60.0)
    assert score_all(scorer, ["half"])[0].reward == 0.5
    assert scorer._pool is not None
    guard = scorer._pool._workers[0].process.pid
    (worker,) = children_of(guard)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not alive(worker))
    assert [s.reward for s in score_all(scorer, ["half"] * 2)][1] == 0.5


# ---------------------------------------------------------------- without prctl and /proc


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards find children in the table of `ps`, and the kernel ends nobody for them."""
    file = HERE.parents[1] / "helpers" / "elsewhere" / "guard_elsewhere.py"
    monkeypatch.setattr("dapo.processes.guard.__file__", str(file))


def survivors(folder: Path) -> int:
    return sum(map(alive, family(folder)))


@pytest.mark.whole
@pytest.mark.parametrize("order", ["hang", "hang in c"])
def test_elsewhere_children_of_a_stuck_worker_end_with_it(
    make: Any, with_family: Path, order: str, elsewhere: None
) -> None:
    """Also in a session of their own; the one process that stays is the daemon, whose parent ended long ago."""
    scorer = make("parent:score", timeout=2.0)
    (score,) = score_all(scorer, [order])
    assert score.reason is not None
    assert len(family(with_family)) == 3
    wait_until(lambda: survivors(with_family) == 1)


@pytest.mark.parametrize("order", ["crash", "segfault"])
def test_elsewhere_the_group_of_a_crashed_worker_ends(
    make: Any, with_family: Path, order: str, elsewhere: None
) -> None:
    """Its children in other sessions have no parent any more, and stay."""
    scorer = make("parent:score", timeout=2.0)
    (score,) = score_all(scorer, [order])
    assert score.reason is not None
    assert len(family(with_family)) == 3
    wait_until(lambda: survivors(with_family) == 2)


def test_elsewhere_children_end_with_the_run(make: Any, with_family: Path, elsewhere: None) -> None:
    scorer = make("parent:score")
    assert score_all(scorer, ["one"])[0].reward == 1.0
    scorer.close()
    wait_until(lambda: survivors(with_family) == 1)


def test_elsewhere_a_worker_dies_with_its_guard(make: Any, elsewhere: None) -> None:
    """Also while a reward hangs: a thread of the worker watches its parent."""
    scorer = make(timeout=3600.0)
    assert score_all(scorer, ["half"])[0].reward == 0.5
    assert scorer._pool is not None
    guard = scorer._pool._workers[0].process.pid
    (worker,) = children_of(guard)
    scorer.submit((1, 0), prompt(), completion("hang"))
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not alive(worker))


# ---------------------------------------------------------------- output and start


def test_output_stops_at_its_limit(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapo.processes.workers.OutputFile", lambda path: OutputFile(path, limit=1 << 20))
    scorer = make(output=tmp_path / "rewards.txt")  # "noisy" prints 2 MB
    assert [s.reward for s in score_all(scorer, ["noisy", "one", "noisy"])] == [1, 1, 1]
    scorer.close()
    written = (tmp_path / "rewards.txt").read_bytes()
    assert 1 << 20 <= len(written) < (1 << 20) + 100
    assert written.endswith(b"[the limit of 1 MiB is reached; the rest is dropped]\n")
    again = OutputFile(tmp_path / "rewards.txt", limit=1 << 20)  # a resumed run
    os.write(again.descriptor, b"more")
    again.close()
    assert (tmp_path / "rewards.txt").read_bytes() == written


@pytest.mark.whole
def test_a_module_that_hangs_at_import_is_told_and_then_refused(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, not three times: it would hang again."""
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dapo.rewards.pool._START_TOLD", 2.0)
    monkeypatch.setattr("dapo.rewards.pool.START_LIMIT", 4.0)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(RewardError, match=r"not loaded within 4 s: (accuracy \(stuck:score\)|starting)"),
    ):
        make("stuck:score")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "a worker for rewards is still starting" in told[0]
    assert "given 4 s" in told[0]
