"""Programs that attack the sandbox, and what they must not achieve. Standard library alone: it runs as any user.

python attacks.py [WALL ...]      prints {"holds": [...], "found": {attack: what it achieved, or null}}
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dapo.sandbox.fork_server import LocalSandbox
from dapo.sandbox.runs import DISK_MIB, OUTPUT_BYTES, PROCESSES, Ran, SandboxError

SECRET = "the secret of this machine"


@dataclass
class World:
    """What is worth attacking outside."""

    sandbox: LocalSandbox
    secret: Path  # a file that everybody may read
    writable: Path  # a folder that everybody may write to
    port: int  # of a TCP server, and of a UDP socket
    victim: int  # a process of the same user
    memory: int  # of System V, shared by everybody
    heard: Callable[[], bool]  # whether something came by TCP, UDP or a Unix socket
    left: list[Path]  # folders of programs that were there before

    @staticmethod
    def folders() -> list[Path]:
        return list(Path(tempfile.gettempdir()).glob("dapo-sandbox-*"))

    def run(self, program: str, timeout: float = 20.0) -> Ran:
        ready = f"""
import ctypes, os, sys, time, socket, signal, threading
SECRET, FOLDER, PORT, VICTIM = {str(self.secret)!r}, {str(self.writable)!r}, {self.port}, {self.victim}
SOCKET, MEMORY = {str(self.secret.parent / "socket")!r}, {self.memory}
got = []
def attempt(action, what=None):
    try:
        got.append(what or repr(action()))
    except (OSError, MemoryError, RuntimeError):
        pass
def achieve(what, action):
    try:
        action()
    except (OSError, MemoryError, RuntimeError, ImportError):
        return
    got.append(what)
def say():
    print(*got, sep="; ", flush=True)
def call(name, *numbers):
    library = ctypes.CDLL(None, use_errno=True)
    found = library.syscall(*[ctypes.c_long(n) for n in (name, *numbers)])
    if found < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return found
"""
        return self.sandbox.run(ready + program, timeout=timeout)


Attack = Callable[[World], str | None]
ATTACKS: dict[str, tuple[Attack, str]] = {}
"""By name: the attack, and what has to hold for it to fail (one of ``local.HOLDS``; "" always)."""


def attack(needs: str = "") -> Callable[[Attack], Attack]:
    def register(function: Attack) -> Attack:
        ATTACKS[function.__name__] = function, needs
        return function

    return register


def said(ran: Ran) -> str | None:
    """What a program says that it achieved; a program that failed otherwise is no evidence."""
    if ran.exit_code != 0:
        return f"the program did not end well: {ran.exit_code} {ran.errors[-300:]}"
    return ran.output.strip() or None


@attack("files")
def reads_secrets(world: World) -> str | None:
    return said(
        world.run("""
achieve("read the secret", lambda: open(SECRET).read())
achieve("listed its folder", lambda: os.listdir(os.path.dirname(SECRET)))
for path in ("/etc/passwd", "/etc/shadow", "/proc/self/environ", "/proc/1/environ", "/proc/self/maps", "/proc/self/mem",
             "/proc/mounts", "/root/.bashrc", "/home", "/proc/1", "/sys", "/var", "/etc/hosts", "/dev/mem"):
    achieve("opened " + path, lambda: os.close(os.open(path, os.O_RDONLY)))
if os.environ:
    got.append(f"environment {dict(os.environ)}")
for path in ("..", "../..", "../../.."):
    achieve("climbed to " + path, lambda: open(os.path.join("/tmp", path, "etc/passwd")))
say()
""")
    )


@attack("files")
def writes_outside(world: World) -> str | None:
    ran = world.run("""
import tempfile
for folder in (FOLDER, "/", "/dev", "/dev/shm", "/proc/self", "/proc/sys/kernel", "/sys", "/usr/lib", "/var/tmp",
               "/run", os.path.dirname(os.__file__)):
    achieve("wrote to " + folder, lambda: open(os.path.join(folder, "written"), "w").write("x"))
    achieve("made a folder in " + folder, lambda: os.mkdir(os.path.join(folder, "made")))
achieve("changed Python", lambda: open(os.__file__, "a"))
achieve("set oom_score_adj", lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))
achieve("emptied the secret", lambda: os.truncate(SECRET, 0))
achieve("changed its mode", lambda: os.chmod(SECRET, 0o600) if os.access(SECRET, os.R_OK) else open("/nothing"))
with tempfile.TemporaryFile() as file:
    file.write(b"its own folder is writable")
say()
""")
    if left := os.listdir(world.writable):
        return f"left {left}"
    return said(ran) or (None if world.secret.read_text() == SECRET else "the secret was changed")


@attack("files")
def follows_links(world: World) -> str | None:
    ran = world.run("""
os.symlink(SECRET, "link")
achieve("read through a link", lambda: open("link").read())
os.symlink(FOLDER, "folder")
achieve("wrote through a link", lambda: open("folder/written", "w").write("x"))
achieve("hard link", lambda: os.link(SECRET, "hard"))
achieve("moved the secret", lambda: os.rename(SECRET, "mine"))
achieve("moved a folder out", lambda: (os.mkdir("own"), os.rename("own", FOLDER + "/own")))
achieve("a device", lambda: os.mknod("device", 0o20666, os.makedev(1, 1)))
for name in ("a", "b"):
    os.mkdir(name)
    os.symlink(FOLDER, name + "/out")
say()
""")
    if not world.writable.is_dir() or not world.secret.exists():
        return "the links' targets were deleted with the folder"
    return said(ran) or (f"left {left}" if (left := os.listdir(world.writable)) else None)


@attack("network")
def uses_the_network(world: World) -> str | None:
    ran = world.run("""
def tcp(address):
    socket.create_connection((address, PORT), timeout=1).sendall(b"tcp")
def udp(address):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"udp", (address, PORT))
for address in ("127.0.0.1", "localhost"):
    achieve("TCP", lambda: tcp(address))
    achieve("UDP", lambda: udp(address))
for family in range(46):
    for kind in (1, 2, 3, 5):
        achieve(f"a socket of family {family}", lambda: socket.socket(family, kind))
achieve("listened", lambda: socket.create_server(("127.0.0.1", 0)))
achieve("io_uring", lambda: call(425, 8, 0))
one, other = socket.socketpair()
achieve("connected a pair", lambda: one.connect("/run/docker.sock"))
def datagram(name):
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"unix", name)
achieve("a datagram to a path", lambda: datagram(SOCKET))
achieve("a datagram to a name", lambda: datagram("\\0" + SOCKET))
say()
""")
    return "something arrived" if world.heard() else said(ran)


@attack("processes")
def sees_processes(world: World) -> str | None:
    return said(
        world.run("""
for process in [*range(4, 400), VICTIM]:
    achieve(f"signal to {process}", lambda: os.kill(process, 0))
if os.getppid() != 1:
    got.append("parent")
say()
""")
    )


@attack("files")
def kills_others(world: World) -> str | None:
    """Also where processes are seen, signals reach none outside."""
    ran = world.run("""
for process in [VICTIM, os.getppid(), *range(2, 1000)]:
    if process != os.getpid():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
            try:
                os.kill(process, number)
            except OSError:
                pass
print("still here")
""")
    if not _lives(world.victim):
        return "the victim was killed"
    return None if ran.exit_code == 0 and "still here" in ran.output else f"the run ended: {ran}"


@attack("files")
def signals_everybody(world: World) -> str | None:
    ran = world.run("""
attempt(lambda: os.kill(-1, signal.SIGKILL))
attempt(lambda: os.killpg(0, signal.SIGKILL))
os.kill(os.getpid(), signal.SIGKILL)
""")
    if not _lives(world.victim):
        return "the victim was killed"
    return None if ran.exit_code is not None and ran.exit_code <= 0 else f"the run ended: {ran}"


@attack()
def inspects_processes(world: World) -> str | None:
    return said(
        world.run("""
library = ctypes.CDLL(None, use_errno=True)
for process in (1, os.getppid(), VICTIM):
    for request in (16, 0x4206):
        if library.ptrace(request, process, None, None) == 0:
            got.append(f"ptrace of {process}")
    room = ctypes.create_string_buffer(64)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(room), 64)
    if library.process_vm_readv(process, vector, 1, vector, 1, 0) > 0:
        got.append(f"memory of {process}")
achieve("pidfd", lambda: os.pidfd_open(os.getppid()))
say()
""")
    )


@attack()
def enters_namespaces(world: World) -> str | None:
    return said(
        world.run("""
import platform
library = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000, 0x40000000, 0x20000000):
    if library.unshare(flags) == 0:
        got.append(f"unshare {flags:x}")
if library.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
    got.append("mount")
if library.umount2(b"/tmp", 2) == 0:
    got.append("umount")
achieve("chroot", lambda: os.chroot("/tmp"))
achieve("root", lambda: os.setuid(0) if os.getuid() else open("/nothing"))
clone, bpf = (56, 321) if platform.machine() == "x86_64" else (220, 280)
def clone_into_namespace():
    if call(clone, 0x10000000 | 17, 0, 0, 0, 0) == 0:
        os._exit(0)
achieve("clone into a user namespace", clone_into_namespace)
achieve("clone3", lambda: call(435, 0, 0))
achieve("bpf", lambda: call(bpf, 0, 0, 0))
for program in ("/bin/sh", "/usr/bin/env", sys.executable, "/lib64/ld-linux-x86-64.so.2"):
    child = os.fork()
    if child == 0:
        try:
            os.execv(program, [program, "--version"])
        except OSError:
            os._exit(77)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 77:
        got.append("started " + program)
say()
""")
    )


@attack("files")
def changes_others(world: World) -> str | None:
    """Limits, priorities and memory of the same user's processes can be named without a signal."""
    ran = world.run("""
import platform, resource
column = 0 if platform.machine() == "x86_64" else 1
def numbered(*numbers):
    return numbers[column]
achieve("set a limit", lambda: resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0)))
achieve("read a limit", lambda: resource.prlimit(VICTIM, resource.RLIMIT_CORE))
achieve("set a priority", lambda: os.setpriority(os.PRIO_PROCESS, VICTIM, 19))
achieve("set a priority for I/O", lambda: call(numbered(251, 30), 1, VICTIM, 3 << 13))
achieve("chose processors", lambda: os.sched_setaffinity(VICTIM, {0}))
achieve("chose a scheduler", lambda: os.sched_setscheduler(VICTIM, os.SCHED_BATCH, os.sched_param(0)))
achieve("removed shared memory", lambda: call(numbered(31, 195), MEMORY, 0, 0))
say()
""")
    return said(ran) or (None if _ipc().shmctl(world.memory, 2, bytes(512)) == 0 else "shared memory is gone")


@attack()
def signals_through_a_file(world: World) -> str | None:
    """The kernel signals the owner of a descriptor, and a process may name another as its owner."""
    ran = world.run("""
import fcntl
reading, writing = os.pipe()
def own(who):
    fcntl.fcntl(reading, fcntl.F_SETOWN, who)
    fcntl.fcntl(reading, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writing, b"x")
attempt(lambda: own(VICTIM), "signals go to another")
attempt(lambda: fcntl.ioctl(reading, 0x8901, VICTIM.to_bytes(4, "little")), "another owns the file")
time.sleep(0.1)
""")
    if not _lives(world.victim):
        return "the victim was killed"
    return None if ran.exit_code == 0 else f"the program did not end well: {ran}"


@attack()
def takes_what_all_share(world: World) -> str | None:
    return said(
        world.run("""
import platform
room = ctypes.c_long(0)
achieve("asynchronous I/O, which all users share", lambda: call(206 if platform.machine() == "x86_64" else 0, 4096,
        ctypes.addressof(room)))
say()
""")
    )


@attack()
def leaves_a_folder(world: World) -> str | None:
    """A folder that is too deep, or that its owner must not list, does not end the server and is deleted, too."""
    ran = world.run("""
os.mkdir("closed", 0o300)
with open("closed/data", "w") as file:
    file.write("x")
os.mkdir("open")
os.symlink(FOLDER, "open/link")
os.mkdir("open/closed", 0)
for _ in range(1100):
    os.mkdir("deep")
    os.chdir("deep")
print("made")
""")
    if (ran.output, ran.exit_code) != ("made\n", 0):
        return f"the program did not end well: {ran}"
    until = time.monotonic() + 60
    while left := [each for each in world.folders() if each not in world.left]:
        if time.monotonic() > until:
            return f"left {left}"
        time.sleep(0.05)
    return None


@attack("forks")
def forks_300_times(world: World) -> str | None:
    ran = world.run("""
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
""")
    if ran.exit_code != 0:
        return f"the program did not end well: {ran}"
    # Without a namespace the limit counts what else the user runs: each of those that ends leaves room for one more.
    most = PROCESSES if "processes" in world.sandbox.holds else 299
    if int(ran.output) > most:
        return f"{ran.output.strip()} processes"
    return _left_over(world)


@attack()
def takes_3_gb(world: World) -> str | None:
    return said(
        world.run("""
import mmap
kept = []
def fill(take):
    for _ in range(12):
        kept.append(take())
achieve("3 GB", lambda: kept.append(bytearray(3 << 30)))
achieve("3 GB in pieces", lambda: fill(lambda: bytearray(256 << 20)))
kept.clear()
achieve("3 GB shared", lambda: fill(lambda: mmap.mmap(-1, 256 << 20)))
kept.clear()
achieve("a file in memory", lambda: os.memfd_create("x"))
import resource
for name in ("RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
    def lift():
        try:
            resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY,) * 2)
        except ValueError as error:
            raise OSError from error
    achieve("lifted " + name, lift)
say()
""")
    )


@attack("disk")
def fills_the_disk(world: World) -> str | None:
    ran = world.run("""
total = 0
try:
    for number in range(60):
        with open(f"file{number}", "wb", buffering=0) as file:
            for _ in range(5):
                total += file.write(bytes(1 << 20))
except OSError:
    pass
print(total)
""")
    if ran.exit_code != 0:
        return f"the program did not end well: {ran}"
    return None if 0 < int(ran.output) <= DISK_MIB << 20 else f"{ran.output.strip()} bytes"


@attack("disk")
def fills_inodes(world: World) -> str | None:
    ran = world.run("""
count = 0
try:
    while count < 100_000:
        os.close(os.open(f"file{count}", os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError:
    pass
print(count)
""")
    return None if ran.exit_code == 0 and 0 < int(ran.output) < 5000 else f"{ran}"


@attack()
def writes_a_large_file(world: World) -> str | None:
    ran = world.run("""
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = os.open("sparse", os.O_CREAT | os.O_RDWR)
achieve("a sparse file", lambda: os.truncate(file, 300 << 20))
achieve("bytes far away", lambda: os.pwrite(file, b"x", 300 << 20))
say()
""")
    return said(ran)


@attack()
def leaves_a_daemon(world: World) -> str | None:
    began = time.monotonic()
    ran = world.run("""
for _ in range(3):
    if os.fork() == 0:
        try:
            os.setsid()
        except OSError:
            pass
        if os.fork() == 0:
            for number in range(1, 65):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            time.sleep(1000)
        os._exit(0)
print("left them")
""")
    if ran.exit_code != 0 or time.monotonic() - began > 15:
        return f"held up by them: {ran}"
    return _left_over(world)


@attack()
def never_ends(world: World) -> str | None:
    ran = world.run("""
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
threading.Thread(target=time.sleep, args=(1000,)).start()
os.fork()
while True:
    pass
""", timeout=1.0)  # fmt: skip
    return _left_over(world) if ran.exit_code is None else f"{ran}"


@attack()
def stops_itself(world: World) -> str | None:
    ran = world.run("os.kill(0, signal.SIGSTOP)\nprint('went on')", timeout=1.0)
    return f"{ran}" if "went on" in ran.output else _left_over(world)


@attack()
def floods_its_output(world: World) -> str | None:
    ran = world.run("""
while True:
    os.write(1, b"x" * 65536)
    os.write(2, b"y" * 65536)
""", timeout=1.0)  # fmt: skip
    if not ran.cut or len(ran.output) != OUTPUT_BYTES or len(ran.errors) != OUTPUT_BYTES:
        return f"{len(ran.output)} and {len(ran.errors)} characters, cut: {ran.cut}"
    return _left_over(world)


@attack()
def looks_for_descriptors(world: World) -> str | None:
    return said(
        world.run("""
for number in range(3, 1024):
    achieve(f"descriptor {number}", lambda: os.fstat(number))
achieve("wrote to its input", lambda: os.write(0, b"x"))
say()
""")
    )


@attack()
def looks_into_the_server(world: World) -> str | None:
    """Whatever the interpreter of the server holds is there to be read: nothing of other runs is in it."""
    world.sandbox.run("marker = 'the tests of ' + 'another program'", "the input of " + "another program")
    return said(
        world.run("""
import gc
names = ("another " + "program", SECRET)
for value in gc.get_objects():
    if isinstance(value, dict):
        for each in list(value.values()):
            if isinstance(each, (str, bytes)) and each is not SECRET:
                text = each if isinstance(each, str) else each.decode(errors="replace")
                if names[0] in text:
                    got.append("found " + text[:80])
if os.path.exists("left"):
    got.append("a file of the run before")
open("left", "w").write("x")
import os as patched
patched.getpid = None
say()
""")
    )


@attack()
def crashes_the_interpreter(world: World) -> str | None:
    ran = world.run("ctypes.string_at(0)")
    return None if ran.exit_code is not None and ran.exit_code < 0 else f"{ran}"


@attack()
def ends_the_server(world: World) -> str | None:
    """After all of them an honest program still runs, with a fresh interpreter."""
    ran = world.run("print(os.getpid() > 0, os.path.exists('left'))")
    return None if (ran.output, ran.exit_code) == ("True False\n", 0) else f"{ran}"


def _lives(process: int) -> bool:
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] not in "ZTt"
    except OSError:
        return False


def _ipc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _left_over(world: World) -> str | None:
    """Say how many processes of the server live though no program runs."""
    server = world.sandbox._process
    assert server is not None
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
    left = [process for process, parent in parents.items() if parent == server.pid]
    return f"{len(left)} processes are left" if left else None


@contextlib.contextmanager
def world_of(sandbox: LocalSandbox) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        secret, writable = folder / "secret", folder / "writable"
        secret.write_text(SECRET)
        writable.mkdir()
        writable.chmod(0o777)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        port = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        tcp.setblocking(False)
        udp.setblocking(False)
        unix = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in range(2)]
        for each, name in zip(unix, (f"{folder}/socket", f"\0{folder}/socket"), strict=True):
            each.bind(name)
            each.setblocking(False)
        Path(folder, "socket").chmod(0o777)

        def heard() -> bool:
            for listening in (tcp, udp, *unix):
                with contextlib.suppress(BlockingIOError):
                    listening.accept() if listening is tcp else listening.recv(64)
                    return True
            return False

        victim = subprocess.Popen(["sleep", "600"])
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        memory = _ipc().shmget(0, 4096, 0o1666)
        stack.callback(_ipc().shmctl, memory, 0, None)
        yield World(sandbox, secret, writable, port, victim.pid, memory, heard, World.folders())


def run_all(sandbox: LocalSandbox) -> dict[str, str | None]:
    """What each attack achieved whose wall holds here; None: nothing."""
    found: dict[str, str | None] = {}
    with world_of(sandbox) as world:
        for name, (function, needs) in ATTACKS.items():
            if not needs or needs in sandbox.holds:
                try:
                    found[name] = function(world)
                except SandboxError as error:  # then a wrong program would have no verdict
                    found[name] = str(error)
    return found


def main(walls: list[str]) -> None:
    sandbox = LocalSandbox("none", walls=walls)
    line = sandbox.start()
    try:
        print(json.dumps({"line": line, "holds": sandbox.holds, "user": os.getuid(), "found": run_all(sandbox)}))
    finally:
        sandbox.close()


if __name__ == "__main__":
    main(sys.argv[1:])
