"""Fork a confined process for each program: a server, in a process of its own that holds nothing worth reading.

``dapo.sandbox.fork_server`` starts it with an empty environment and sends one request at a time, with descriptors of
the program, its input, its output and its errors. The server reads none of them. Standard library alone.

With namespaces it first moves into its own (user, network, ipc, mounts), whose root folder holds Python's library and
nothing else. Each request then makes a process namespace: its first process mounts a sized ``/tmp``, forks the program
and ends with it; the kernel kills whatever is left. Without namespaces the program's process group is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dapo.sandbox import kernel
from dapo.system import tasks_of

_PRELOADED = "bisect collections datetime decimal fractions functools heapq itertools math random re string typing"
"""Modules that programs import often: a forked process has them already."""
_MIB = 1 << 20
_NOBODY = 65534
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/run", "/home", "/tmp")
_FILES_MOST = 4096  # files and folders that a program may have
_OPEN_MOST = 64  # descriptors of a process
_KEPT_FLAGS = (getattr(os, "ST_NOEXEC", 8), getattr(os, "ST_NOATIME", 1024), getattr(os, "ST_NODIRATIME", 2048))
_RELATIME = 1 << 21


@dataclass(slots=True)
class _Walls:
    """Restrictions of this process and of its forks."""

    namespaces: bool = False
    landlock: int = 0  # its version; 0: none
    seccomp: bool = False
    user: int | None = None  # whom programs run as, where that is somebody else
    deleter: int = -1  # where the folders are written that are to be deleted


def main(descriptor: int, asked: dict[str, Any]) -> None:
    """Answer requests until the connection ends.

    Args:
        descriptor: the connection.
        asked: which walls to try (``namespaces``, ``landlock``, ``seccomp``), and ``home``, the folder that the package
            was imported from, which programs do not see.
    """
    connection = socket.socket(fileno=descriptor)
    sys.path[:] = [path for path in sys.path if path != asked["home"]]
    for name in _PRELOADED.split():
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    walls, problems = _Walls(), []
    if asked["namespaces"]:
        try:
            _enter_namespaces(walls)
        except OSError as error:
            _send(connection, {"failed": f"namespaces: {error}"})  # nothing half entered goes on
            return
    else:
        walls.deleter = _start_deleter()
        with contextlib.suppress(OSError):
            kernel.adopt_orphans()
        if os.geteuid() == 0 and _nobody_can_read():
            walls.user = _NOBODY
    if asked["landlock"] and kernel.supported():
        walls.landlock = kernel.landlock_version()
        if not walls.landlock:
            problems.append("Landlock: the kernel has none")
    walls.seccomp = asked["seccomp"] and kernel.supported()
    found = {"namespaces": walls.namespaces, "landlock": walls.landlock, "seccomp": walls.seccomp}
    _send(connection, {"walls": found, "problems": problems})
    while True:
        try:
            text, descriptors, _, _ = socket.recv_fds(connection, 4096, 4)
        except OSError:
            return
        if not text:
            return
        _send(connection, _serve(walls, json.loads(text), descriptors, connection))


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the end of the connection is found when it is read
        connection.sendall(json.dumps(message).encode() + b"\n")


# ------------------------------------------------------------------ the server's own namespaces


def _enter_namespaces(walls: _Walls) -> None:
    """Move this process into new namespaces with a root folder of its own.

    Raises:
        OSError: the kernel, or what it runs in, does not allow that.
    """
    if not kernel.supported():
        raise OSError(f"not on {sys.platform}")
    waiting, go = os.pipe()
    helper = os.fork()  # stays outside: only there may somebody say who this process's users are
    if helper == 0:
        os.close(go)
        os.read(waiting, 1)
        os._exit(_map_users(os.getppid()))
    os.close(waiting)
    try:
        kernel.unshare(
            kernel.NEW_USER | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_MOUNTS,
        )
    finally:
        os.close(go)
        _, status = os.waitpid(helper, 0)
    mapped = os.waitstatus_to_exitcode(status)
    if mapped not in (_ONE_USER, _TWO_USERS):
        raise OSError("the users of a namespace cannot be mapped")
    walls.user = _NOBODY if mapped == _TWO_USERS else None
    _make_root()
    walls.namespaces = True


_ONE_USER, _TWO_USERS, _NO_USER = 10, 11, 12


def _map_users(process: int) -> int:
    """Write the users of a process's new namespace: for root itself and one without rights, else the user alone."""
    user, group = os.geteuid(), os.getegid()
    folder = Path("/proc", str(process))
    if user == 0:
        with contextlib.suppress(OSError):
            both = f"0 0 1\n{_NOBODY} {_NOBODY} 1\n"
            (folder / "gid_map").write_text(both)
            (folder / "uid_map").write_text(both)
            return _TWO_USERS
    try:
        (folder / "setgroups").write_text("deny")
        (folder / "gid_map").write_text(f"{group} {group} 1\n")
        (folder / "uid_map").write_text(f"{user} {user} 1\n")
    except OSError:
        return _NO_USER
    return _ONE_USER


def _readable() -> list[str]:
    """Return the folders that Python and its libraries are in."""
    library = os.path.dirname(os.__file__)
    folders = [library, os.path.realpath(library), "/lib", "/lib64", "/usr/lib", "/usr/lib64"]
    if Path(sys.base_prefix) != Path("/usr"):
        folders.append(os.path.join(sys.base_prefix, "lib"))
    return [
        path for path in dict.fromkeys([*folders, "/usr/share/zoneinfo", "/etc/ld.so.cache"]) if os.path.exists(path)
    ]


def _make_root() -> None:
    """Enter a root folder in memory that has Python's library, three devices, and a ``tmp`` to mount on."""
    sources = _readable()
    inside = [os.path.realpath(path) for path in sources]
    base = next(
        (p for p in _MOUNT_POINTS if os.path.isdir(p) and not any(s == p or s.startswith(f"{p}/") for s in inside)),
        None,
    )
    if base is None:
        raise OSError("no folder to mount the root on")
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, "size=1m,mode=755")
    for path in sources:
        if os.path.lexists(base + path):
            continue
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), base + path)
            continue
        if os.path.isdir(path):
            os.mkdir(base + path)
        else:
            Path(base + path).touch()
        kernel.mount(path, base + path, None, kernel.BIND | kernel.RECURSIVE)
        _make_read_only(base + path)
    os.mkdir(base + "/dev")
    for path in _DEVICES:
        Path(base + path).touch()
        kernel.mount(path, base + path, None, kernel.BIND)
    os.mkdir(base + "/tmp", 0o755)
    flags = kernel.REMOUNT | kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES
    kernel.mount("none", base, None, flags | kernel.BIND)
    kernel.enter_root(base)


def _make_read_only(path: str) -> None:
    """Make a bound folder read-only, keeping the flags that a namespace must not take away."""
    given = os.statvfs(path).f_flag
    flags = sum(flag for flag in _KEPT_FLAGS if given & flag)
    if given & 4096:  # relatime has another number here than there
        flags |= _RELATIME
    flags |= kernel.BIND | kernel.REMOUNT | kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES
    kernel.mount("none", path, None, flags)


def _nobody_can_read() -> bool:
    """Return whether another user can read Python's library."""
    path = Path(os.path.realpath(os.__file__))
    return all(each.stat().st_mode & (1 if each.is_dir() else 4) for each in [path, *path.parents])


# ------------------------------------------------------------------ one program


def _serve(
    walls: _Walls, request: dict[str, Any], descriptors: Sequence[int], connection: socket.socket
) -> dict[str, Any]:
    """Run one program to its end or its time limit, and say how it ended."""
    began = time.monotonic()
    reading, writing = os.pipe()
    folder = None if walls.namespaces else _own_folder(walls)
    try:
        first = kernel.fork_into(kernel.NEW_PIDS | kernel.NEW_MOUNTS) if walls.namespaces else os.fork()
    except OSError as error:
        first, failed = -1, f"a process for a program cannot be started: {error}"
    if first == 0:
        os.close(reading)
        connection.close()
        _be_first(walls, request, descriptors, writing, folder)
    for each in (writing, *descriptors):
        os.close(each)
    said, late = b"", False
    if first > 0:
        with contextlib.suppress(OSError):  # the child may have done so itself
            os.setpgid(first, first)
        said, late = _status(reading, connection, began + request["seconds"])
        _end(first)
    os.close(reading)
    if folder is not None:
        os.write(walls.deleter, folder.encode() + b"\n")
    if first < 0:
        return {"failed": failed}
    seconds = time.monotonic() - began
    lines = said.decode(errors="replace").splitlines()
    if lines[:1] != ["confined"]:
        return {"failed": lines[0] if lines else "the process for a program ended before it was confined"}
    return {"exit_code": None if late else int(lines[1]) if len(lines) > 1 else -signal.SIGKILL, "seconds": seconds}


def _own_folder(walls: _Walls) -> str:
    folder = tempfile.mkdtemp(prefix="dapo-sandbox-")
    if walls.user is not None:
        os.chown(folder, walls.user, walls.user)
    return folder


def _start_deleter() -> int:
    """Start a process that deletes folders, which may take longer than their programs did; return a pipe to it."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            os.dup2(reading, 0)
            os.closerange(3, 1024)  # the connection ends with the server, and so does this process
            for line in sys.stdin:
                _delete(line.rstrip("\n"))
        os._exit(0)
    os.close(reading)
    os.waitpid(between, 0)
    return writing


def _delete(folder: str) -> None:
    """Delete a program's folder. Folders in it are moved up first: it may be too deep to walk, or closed."""
    count, waiting = 0, [folder]
    with tempfile.TemporaryDirectory(prefix="dapo-sandbox-", ignore_cleanup_errors=True) as flat:
        while waiting:
            path = waiting.pop()
            with contextlib.suppress(OSError):
                os.chmod(path, 0o700)
                for entry in list(os.scandir(path)):
                    if entry.is_dir(follow_symlinks=False):
                        count += 1
                        waiting.append(f"{flat}/{count}")
                        os.chmod(entry.path, 0o700)  # a folder that moves is written to
                        os.rename(entry.path, waiting[-1])
                    else:
                        os.unlink(entry.path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _finish(code: int) -> NoReturn:
    """End as a script ends: wait for threads, call what is registered, write what is buffered.

    The interpreter's own end would touch the memory that this process shares with the server, and take four times as
    long.
    """
    with contextlib.suppress(BaseException):
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def _status(reading: int, connection: socket.socket, until: float) -> tuple[bytes, bool]:
    """Return what the first process said, and whether the time ended before it did.

    The end of the connection ends this process, and with it the program.
    """
    said = b""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    poller.register(connection, 0)
    while True:
        ready = dict(poller.poll(max(0.0, until - time.monotonic()) * 1000))
        if connection.fileno() in ready:
            return said, True
        if reading not in ready:
            return said, True
        data = os.read(reading, 4096)
        if not data:
            return said, False
        said += data


def _end(first: int) -> None:
    """Kill a program with all that it started, and collect what ended."""
    with contextlib.suppress(OSError):
        os.killpg(first, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(first, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(first, 0)
        while True:  # orphans that this process adopted; without seccomp they may have left the group
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            orphans = _children()
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
            for orphan in orphans or [-1]:
                os.waitpid(orphan, 0)


def _children() -> list[int]:
    """Return the children of this process, also those that have ended; none where there is no /proc."""
    found = []
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if int(Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def _be_first(
    walls: _Walls, request: dict[str, Any], descriptors: Sequence[int], status: int, folder: str | None
) -> NoReturn:
    """Be the first process of a program's namespace: fork the program, and end when it has ended."""
    try:
        os.setpgid(0, 0)
        if kernel.supported():
            kernel.die_with_parent()
        if folder is None:
            options = f"size={request['disk_mib']}m,nr_inodes={_FILES_MOST},mode=777"
            kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXECUTION, options)
            folder = "/tmp"
        os.chdir(folder)
        program = os.fork()
    except OSError as error:
        _fail(status, error)
    if program == 0:
        _be_program(walls, request, descriptors, status, folder)
    for each in descriptors:
        os.close(each)
    ended = None
    with contextlib.suppress(ChildProcessError):
        while ended is None:
            process, found = os.waitpid(-1, 0)
            if process == program:
                ended = os.waitstatus_to_exitcode(found)
    os.write(status, b"%d\n" % (-signal.SIGKILL if ended is None else ended))
    os._exit(0)


def _fail(status: int, error: BaseException) -> NoReturn:
    os.write(status, " ".join(f"{error}".split()).encode()[:400] + b"\n")
    os._exit(1)


def _be_program(
    walls: _Walls, request: dict[str, Any], descriptors: Sequence[int], status: int, folder: str
) -> NoReturn:
    """Confine this process, read the program, and run it as a script."""
    code, *standard = descriptors
    try:
        for number, each in enumerate(standard):
            os.dup2(each, number)
        kept = os.dup2(code, 3), os.dup2(status, 4)
        os.closerange(5, 1024)
        _limit(walls, request)
        _confine(walls, folder)
        with open(kept[0], "rb") as file:
            source = file.read()
        os.write(kept[1], b"confined\n")
        os.close(kept[1])
    except BaseException as error:
        _fail(4, error)
    del walls, request, descriptors
    tempfile.tempdir = folder
    for name in list(os.environ):
        del os.environ[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _finish(_run(source))


def _limit(walls: _Walls, request: dict[str, Any]) -> None:
    seconds = int(request["seconds"]) + 2
    user = os.geteuid() if walls.user is None else walls.user
    others = tasks_of(user) if user and not walls.namespaces else 0  # root has no such limit
    memory, disk = request["memory_mib"] * _MIB, request["disk_mib"] * _MIB
    limits = {
        "CORE": 0,
        "CPU": seconds,
        "FSIZE": disk,
        "NOFILE": _OPEN_MOST,
        "AS": memory,
        "DATA": memory,
        "NPROC": request["processes"] + others,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "NICE": 0,
        "RTPRIO": 0,
    }
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some; what does not hold is found by the trial
            resource.setrlimit(number, (bound, bound))


def _confine(walls: _Walls, folder: str) -> None:
    os.umask(0o077)
    if walls.user is not None:
        os.setgroups([])
        os.setgid(walls.user)
        os.setuid(walls.user)
    if not kernel.supported():
        return
    kernel.give_up_privileges()
    if walls.landlock:
        kernel.restrict_files(walls.landlock, _readable(), [folder], _DEVICES)
    if walls.seccomp:
        signals = walls.namespaces or kernel.signals_are_scoped(walls.landlock)
        kernel.deny_calls(signals=signals, attributes=walls.namespaces)


def _run(source: bytes) -> int:
    """Run a script in a module of its own; return its exit code."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    try:
        exec(compile(source, "program.py", "exec"), module.__dict__)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace.tb_next if trace is not None else None)
        return 1
    return 0
