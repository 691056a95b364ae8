"""Every transport keeps the contract; processes leave nothing behind, whatever becomes of the driver."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from desk import Desk
from inline_transport import InlineTransport
from processes import alive
from transport_contract import CHECKS, Subject

from dapo.processes.guarded import GuardedProcess, end
from dapo.processes.local import ProcessTransport
from dapo.processes.threads import ThreadTransport
from dapo.processes.transport import HostLost, HostSpec

MAKE = {
    "inline": lambda folder: Subject(InlineTransport(), folder, parallel=False, apart=False),
    "threads": lambda folder: Subject(ThreadTransport(), folder, apart=False),
    "processes": lambda folder: Subject(ProcessTransport(folder / "output"), folder),
}


@pytest.fixture(params=MAKE)
def subject(request, tmp_path):
    subject = MAKE[request.param](tmp_path)
    yield subject
    subject.transport.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, subject):
    check(subject)


@pytest.fixture
def processes(tmp_path):
    transport = ProcessTransport(tmp_path / "output")
    yield transport
    transport.close()


def test_what_a_process_prints_is_in_its_file(processes, tmp_path):
    for text in ("good morning", "good evening"):  # a second one of that name writes behind the first
        host = processes.start(HostSpec("engine-1", Desk))
        processes.get(processes.call(host, "print", text))
        with pytest.raises(Exception, match="full"):
            processes.get(processes.call(host, "fail", "plain"))
        processes.kill(host)
    printed = (tmp_path / "output" / "engine-1.txt").read_text()
    assert printed.index("good morning") < printed.index("Traceback") < printed.index("good evening")


def test_who_is_lost_sends_nobody_to_an_empty_file(processes, tmp_path):
    for name, text, told in (("engine-1", "", "; it printed nothing"), ("engine-2", "good morning", "what it printed")):
        host = processes.start(HostSpec(name, Desk))
        processes.get(processes.call(host, "print", text) if text else processes.call(host, "note", "a"))
        os.kill(host.process, signal.SIGKILL)
        with pytest.raises(HostLost, match="was ended by SIGKILL; ") as lost:
            processes.get(processes.call(host, "note", "b"))
        assert told in str(lost.value)
        assert (str(tmp_path / "output" / f"{name}.txt") in str(lost.value)) == bool(text)


def test_what_cannot_travel_is_refused_at_once(processes):
    with pytest.raises(Exception, match=r"(?i)pickle"):
        processes.start(HostSpec("engine-1", lambda: None))
    host = processes.start(HostSpec("engine-1", Desk))
    with pytest.raises(Exception, match=r"(?i)pickle"):
        processes.call(host, "echo", lambda: None)
    assert processes.get(processes.call(host, "note", "a")) == ["a"]


DRIVER = """
    import os, signal, sys
    from pathlib import Path
    from desk import Desk
    from dapo.processes.local import ProcessTransport
    from dapo.processes.transport import HostSpec

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    transport = ProcessTransport()
    hosts = [transport.start(HostSpec(f"host-{n}", Desk)) for n in range(2)]
    found = [transport.get(transport.call(host, "process")) for host in hosts]
    os.kill(found[1], 19)  # one of them frozen
    never = sys.argv[1]
    call = transport.call(hosts[0], "await_other", never, never)  # and one at work
    print(*found, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGINT", "leaves"])
def test_hosts_end_with_their_driver(end, tmp_path):
    os.mkfifo(tmp_path / "never")
    contracts = Path(sys.modules["desk"].__file__).parent
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path / "never")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(contracts), *filter(None, sys.path)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    processes = [int(word) for word in driver.stdout.readline().split()]
    assert len(processes) == 2
    assert all(map(alive, processes))
    watched = [os.pidfd_open(process) for process in processes]
    if end == "leaves":
        driver.stdin.write("go\n")
        driver.stdin.flush()
    else:
        driver.send_signal(getattr(signal, end))
    driver.wait()
    for descriptor in watched:
        wait_for_end(descriptor)
    assert not any(map(alive, processes))
    driver.stdin.close()
    driver.stdout.close()


def wait_for_end(descriptor: int) -> None:
    """Until the process of this file descriptor has ended; the test's own time limit is the only one."""
    select.select([descriptor], [], [])
    os.close(descriptor)


def test_a_process_finds_modules_where_its_driver_was_called(tmp_path, monkeypatch):
    """``python -c`` and notebooks name that folder ``""`` among those where modules are looked for."""
    (tmp_path / "hook_beside.py").write_text("print('found beside')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *filter(None, sys.path)])
    with (tmp_path / "said.txt").open("wb") as sink:
        process = GuardedProcess(lambda _: [sys.executable, "-P", "-c", "import hook_beside"], sink, {})
    assert process.exit_code(600) == 0, (tmp_path / "said.txt").read_text()
    assert "found beside" in (tmp_path / "said.txt").read_text()
    end([process], 10)
