"""What every transport promises (``dapo.processes.transport.Transport``), as one list of checks over a factory.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, subject):
        check(subject)

Hosts are made from ``desk.Desk``, which has to be importable where they live.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desk import Desk

from dapo.errors import EngineError
from dapo.processes.transport import HostLost, HostSpec


@dataclass
class Subject:
    """One transport under test."""

    transport: Any
    folder: Path  # of the test's own
    parallel: bool = True  # hosts work by themselves, at the same time
    apart: bool = True  # hosts have processes of their own
    made: list[str] = field(default_factory=list)

    def start(self, *args: Any, environment: dict[str, str] | None = None) -> Any:
        self.made.append(f"desk-{len(self.made)}")
        return self.transport.start(HostSpec(self.made[-1], Desk, args, environment or {}))

    def ask(self, host: Any, method: str, *args: Any) -> Any:
        return self.transport.get(self.transport.call(host, method, *args))


def a_host_answers_and_keeps_its_state(s: Subject) -> None:
    one, two = s.start(), s.start()
    values = (1, "zwei", None, {"a": [1.5]}, b"\x00")
    assert s.ask(one, "echo", *values) == values
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    (back,) = s.ask(one, "echo", array)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == np.int32
    assert s.ask(one, "note", "a") == ["a"]
    assert s.ask(two, "note", "b") == ["b"]
    assert s.ask(one, "note", "c") == ["a", "c"]


def calls_of_a_host_are_answered_in_order(s: Subject) -> None:
    host = s.start()
    calls = [s.transport.call(host, "note", str(n)) for n in range(20)]
    assert s.transport.get(calls[-1]) == [str(n) for n in range(20)]
    for n in (7, 0, 18):  # in whatever order they are asked for
        assert s.transport.get(calls[n]) == [str(m) for m in range(n + 1)]


def what_a_method_raises_is_raised_and_the_host_lives(s: Subject) -> None:
    host = s.start()
    with pytest.raises(EngineError, match="the desk is full"):
        s.ask(host, "fail", "plain")
    with pytest.raises(Exception, match="a word of it"):
        s.ask(host, "fail", "stubborn")
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        s.ask(host, "nothing_of_the_kind")
    if s.apart:
        with pytest.raises(Exception, match=r"(?i)pickle"):
            s.ask(host, "bad_answer")
    assert s.ask(host, "note", "a") == ["a"]


def what_making_raises_every_call_raises(s: Subject) -> None:
    host = s.start("desk", "no room for a desk")
    for method in ("process", "note"):
        with pytest.raises(EngineError, match="no room for a desk"):
            s.ask(host, method)


def waiting_names_what_is_answered(s: Subject) -> None:
    one, two = s.start(), s.start()
    assert s.transport.wait([]) == [] == s.transport.wait([], every=True, timeout=0.0)
    calls = [s.transport.call(host, "process") for host in (one, two, one)]
    some = s.transport.wait(calls)
    assert some
    assert set(some) <= {0, 1, 2}
    assert s.transport.wait(calls, every=True) == [0, 1, 2]
    assert s.transport.wait(calls, timeout=0.0) == [0, 1, 2]
    assert s.transport.wait(calls[1:2]) == [0]


def hosts_work_at_the_same_time(s: Subject) -> None:
    if not s.parallel:
        return
    mine, other = (str(s.folder / name) for name in ("mine", "other"))
    os.mkfifo(mine)
    os.mkfifo(other)
    one, two = s.start("one"), s.start("two")
    calls = [s.transport.call(one, "meet", mine, other)]
    assert s.transport.wait(calls, timeout=0.0) == []  # waits for the second one, which has not been asked
    calls.append(s.transport.call(two, "await_other", other, mine))
    assert s.transport.wait(calls, every=True) == [0, 1]
    assert [s.transport.get(call) for call in calls] == ["two", "one"]


def much_may_travel_both_ways(s: Subject) -> None:
    host = s.start()
    much = np.arange(2**20, dtype=np.float64)  # 8 MiB: more than any pipe holds
    calls = [s.transport.call(host, "echo", much) for _ in range(3)]
    for call in calls:
        np.testing.assert_array_equal(s.transport.get(call)[0], much)


def what_was_put_is_found_in_its_place(s: Subject) -> None:
    one, two = s.start(), s.start()
    kept = s.transport.put(np.arange(1000.0))
    calls = [s.transport.call(host, "total", kept, n) for n in range(3) for host in (one, two)]
    assert [s.transport.get(call) for call in calls] == [499500.0 + n for n in range(3) for _ in range(2)]


def the_environment_comes_before_anything(s: Subject) -> None:
    if not s.apart:
        return
    host = s.start(environment={"OMP_NUM_THREADS": "3", "DESK": "of oak"})
    assert [s.ask(host, "variable", name) for name in ("OMP_NUM_THREADS", "DESK")] == ["3", "of oak"]
    assert os.environ.get("DESK") is None


def a_killed_host_is_lost(s: Subject) -> None:
    host, other = s.start(), s.start()
    answered = s.transport.call(host, "note", "a")
    assert s.transport.wait([answered]) == [0]
    if s.parallel:  # under way: reads from a pipe that nobody writes to
        never = str(s.folder / "never")
        os.mkfifo(never)
        call = s.transport.call(host, "await_other", never, never)
    else:
        call = s.transport.call(host, "process")
    behind = s.transport.call(host, "process")
    s.transport.kill(host)
    s.transport.kill(host)
    assert s.transport.get(answered) == ["a"]  # before it was killed
    later = s.transport.call(host, "process")
    assert s.transport.wait([call, behind, later], every=True) == [0, 1, 2]
    for one in (call, behind, later):
        with pytest.raises(HostLost, match=s.made[0]):
            s.transport.get(one)
    assert s.ask(other, "note", "b") == ["b"]


def a_host_that_ends_by_itself_is_lost(s: Subject) -> None:
    if not s.apart:
        return
    for method, arg, word in (("die", int(signal.SIGKILL), "SIGKILL"), ("leave", 3, "code 3")):
        host, other = s.start(), s.start()
        process = s.ask(host, "process")
        calls = [s.transport.call(host, method, arg), s.transport.call(other, "process")]
        assert s.transport.wait(calls, every=True) == [0, 1]
        for call in (calls[0], s.transport.call(host, "process")):
            with pytest.raises(HostLost, match=rf"{s.made[-2]} \(process {process}\).*{word}"):
                s.transport.get(call)
        assert s.transport.get(calls[1]) != process


def a_frozen_host_holds_up_nobody_and_can_be_killed(s: Subject) -> None:
    if not s.apart:
        return
    host, other = s.start(), s.start()
    process = s.ask(host, "process")
    os.kill(process, signal.SIGSTOP)
    call = s.transport.call(host, "total", np.zeros(2**20))  # it does not read
    assert s.ask(other, "note", "a") == ["a"]
    assert s.transport.wait([call], timeout=0.0) == []
    s.transport.kill(host)
    with pytest.raises(HostLost, match=s.made[0]):
        s.transport.get(call)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def closing_ends_every_host(s: Subject) -> None:
    hosts = [s.start() for _ in range(3)]
    processes = [s.ask(host, "process") for host in hosts]
    s.transport.close()
    s.transport.close()
    for host in hosts:
        with pytest.raises(HostLost):
            s.ask(host, "process")
    if s.apart:
        for process in processes:
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)


CHECKS: list[Callable[[Subject], None]] = [
    a_host_answers_and_keeps_its_state,
    calls_of_a_host_are_answered_in_order,
    what_a_method_raises_is_raised_and_the_host_lives,
    what_making_raises_every_call_raises,
    waiting_names_what_is_answered,
    hosts_work_at_the_same_time,
    much_may_travel_both_ways,
    what_was_put_is_found_in_its_place,
    the_environment_comes_before_anything,
    a_killed_host_is_lost,
    a_host_that_ends_by_itself_is_lost,
    a_frozen_host_holds_up_nobody_and_can_be_killed,
    closing_ends_every_host,
]
