"""Call Linux facilities that confine a process and that Python has no functions for. Standard library alone.

Each function raises OSError where the kernel refuses; ``supported`` says whether there is a kernel to ask at all.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
READ_ONLY, NO_SETUID, NO_DEVICES, NO_EXECUTION, REMOUNT, BIND, RECURSIVE, PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
_PARENT_DEATH, _NO_NEW_PRIVILEGES, _SUBREAPER = 1, 38, 36
_SIGCHLD = 17
_DETACH = 2

# The numbers of system calls: of x86-64, then of AArch64. None: the architecture has no such call.
_CALLS: dict[str, tuple[int | None, int]] = {
    "clone": (56, 220),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prlimit64": (302, 261),
    "socketpair": (53, 199),
    "pivot_root": (155, 41),
    "capset": (126, 91),
    "seccomp": (317, 277),
}
_DENIED: dict[str, tuple[int | None, int]] = {
    # the network, and what reaches other processes
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    # memory beside the limit of the address space
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "mq_open": (240, 180),
    # objects of System V and queues of others, by their numbers and names
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "mq_unlink": (241, 181),
    # how others are scheduled, by the numbers of their processes
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    # other programs, namespaces, mounts
    "execve": (59, 221),
    "execveat": (322, 281),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # large or rarely used parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "syslog": (103, 116),
    "personality": (135, 92),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
_X86_ALONE = {"iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156}
_SIGNALS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138)}
_SIGNALS |= {"rt_tgsigqueueinfo": (297, 240)}
_ATTRIBUTES: dict[str, tuple[int | None, int | None]] = {  # which Landlock leaves alone
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "truncate": (76, 45),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
_CLONE3 = 435
_NAMESPACES = NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_USER | NEW_PIDS | NEW_NETWORK | 0x2000000  # the last: cgroups
_IOCTLS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into a terminal
_OWN_BY_IOCTL = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP: the kernel then signals that process
_OWN_BY_FCNTL = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the same
_UNIX, _STREAM, _PACKETS, _KIND = 1, 1, 5, 0xF

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_COLUMN, _AUDIT = _ARCHITECTURES.get(platform.machine(), (None, 0))

_library = ctypes.CDLL(None, use_errno=True)
_holding = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock: for calls that return in two processes


def supported() -> bool:
    """Return whether this is Linux on an architecture whose system calls are known here."""
    return sys.platform == "linux" and _COLUMN is not None


def _number(name: str) -> int:
    assert _COLUMN is not None
    found = _CALLS[name][_COLUMN]
    assert found is not None
    return found


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, what: str) -> None:
    call = getattr(_library, "prctl", None)
    if call is None:
        raise OSError(errno.ENOSYS, f"{what}: this system has no prctl")
    _check(call(option, ctypes.c_ulong(value), 0, 0, 0), what)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PARENT_DEATH, 9, "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended."""
    _prctl(_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_library.unshare(flags), "unshare")


def fork_into(flags: int) -> int:
    """Fork into new namespaces, as ``os.fork`` does without any; the caller has one thread."""
    zero = ctypes.c_void_p(0)
    call = _holding.syscall
    found = int(call(ctypes.c_long(_number("clone")), ctypes.c_ulong(flags | _SIGCHLD), zero, zero, zero, zero))
    if found == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return _check(found, "clone")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount a file system, or bind, remount or make private with ``flags``."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    done = _library.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _check(done, f"mount {target}")


def enter_root(folder: str) -> None:
    """Make ``folder``, a mount point, the root folder and let go of the former one."""
    os.chdir(folder)
    _check(_library.syscall(ctypes.c_long(_number("pivot_root")), b".", b"."), "pivot_root")
    _check(_library.umount2(b".", _DETACH), "umount2")
    os.chdir("/")


def give_up_privileges() -> None:
    """Drop every capability, also those that a program started later would have."""
    _prctl(_NO_NEW_PRIVILEGES, 1, "PR_SET_NO_NEW_PRIVS")
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(_library.syscall(ctypes.c_long(_number("capset")), header, bytes(24)), "capset")


# ------------------------------------------------------------------ Landlock

_CREATE_RULES, _ADD_RULE, _RESTRICT = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_WRITE_FILE, _TRUNCATE, _DEVICE_CALLS = 1 << 1, 1 << 14, 1 << 15
_EXECUTE = 1
_SIGNAL_ABI = 6


def landlock_version() -> int:
    """Return the version of Landlock's interface; 0: the kernel has none, or it is switched off."""
    found = _library.syscall(ctypes.c_long(_CREATE_RULES), None, ctypes.c_size_t(0), 1)
    return max(0, int(found))


def restrict_files(version: int, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> None:
    """Allow this process and its children these paths alone, no TCP, and no signals to others where it can be said.

    Args:
        version: of Landlock's interface.
        readable: folders and files that may be read.
        writable: folders in which everything but execution is allowed.
        devices: files that may be read and written.
    """
    every = (1 << 13) - 1
    every |= (1 << 13 if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    every |= _DEVICE_CALLS if version >= 5 else 0
    attributes = struct.pack("=Q", every)
    if version >= 4:
        attributes += struct.pack("=Q", 3)  # binding and connecting TCP
    if version >= _SIGNAL_ABI:
        attributes += struct.pack("=Q", 3)  # abstract sockets of others, and signals to them
    rules = _library.syscall(ctypes.c_long(_CREATE_RULES), attributes, ctypes.c_size_t(len(attributes)), 0)
    _check(rules, "landlock_create_ruleset")
    of_files = _READ_FILE | _WRITE_FILE | _EXECUTE | _TRUNCATE | _DEVICE_CALLS
    asked = [(path, _READ_FILE | _READ_FOLDER) for path in readable]
    asked += [(path, every & ~_EXECUTE) for path in writable]
    asked += [(path, _READ_FILE | _WRITE_FILE) for path in devices]
    try:
        for path, rights in asked:
            try:
                descriptor = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            if not os.path.isdir(path):
                rights &= of_files
            rule = struct.pack("=Qi", rights & every, descriptor)
            _check(_library.syscall(ctypes.c_long(_ADD_RULE), rules, 1, rule, 0), f"landlock_add_rule {path}")
            os.close(descriptor)
        _check(_library.syscall(ctypes.c_long(_RESTRICT), rules, 0), "landlock_restrict_self")
    finally:
        os.close(rules)


def signals_are_scoped(version: int) -> bool:
    """Return whether ``restrict_files`` keeps signals from processes outside."""
    return version >= _SIGNAL_ABI


# ------------------------------------------------------------------ seccomp

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


_REFUSE, _PASS = _instruction(_RETURN, _ERROR | errno.EPERM), _instruction(_RETURN, _ALLOW)


def _argument(position: int) -> bytes:
    """Load the lower half of a call's argument; no argument that is looked at here is longer."""
    return _instruction(_LOAD, 16 + 8 * position)


def _filter(signals: bool, attributes: bool) -> Iterator[bytes]:
    """Give the filter's instructions: a deny list, and refusals that depend on an argument."""
    assert _COLUMN is not None
    yield _instruction(_LOAD, 4)
    yield _instruction(_EQUAL, _AUDIT, 1, 0)
    yield _instruction(_RETURN, _KILL)  # a call of another architecture, whose numbers mean other things
    yield _instruction(_LOAD, 0)
    if _COLUMN == 0:  # the same for x32
        yield _instruction(_AT_LEAST, 0x40000000, 0, 1)
        yield _REFUSE
    denied = {call[_COLUMN] for call in _DENIED.values()}
    denied |= set(_X86_ALONE.values()) if _COLUMN == 0 else set()
    denied |= set() if signals else {call[_COLUMN] for call in _SIGNALS.values()}
    denied |= set() if attributes else {call[_COLUMN] for call in _ATTRIBUTES.values()}
    for number in sorted(number for number in denied if number is not None):
        yield _instruction(_EQUAL, number, 0, 1)
        yield _REFUSE
    yield _instruction(_EQUAL, _CLONE3, 0, 1)  # its flags cannot be read here; the C library then calls clone
    yield _instruction(_RETURN, _ERROR | errno.ENOSYS)
    yield from _unless("clone", _argument(0), _instruction(_ANY_BIT, _NAMESPACES, 0, 1))
    yield from _unless("prlimit64", _argument(0), _instruction(_EQUAL, 0, 1, 0))  # its own limits alone
    yield from _unless(  # connected pairs alone: a datagram goes to any name, also to a path outside
        "socketpair",
        _argument(0),
        _instruction(_EQUAL, _UNIX, 0, 4),
        _argument(1),
        _instruction(_AND, _KIND),
        _instruction(_EQUAL, _STREAM, 2, 0),
        _instruction(_EQUAL, _PACKETS, 1, 0),
    )
    yield from _unless("ioctl", _argument(1), *_one_of(*_IOCTLS, *(() if signals else _OWN_BY_IOCTL)))
    if not signals:
        yield from _unless("fcntl", _argument(1), *_one_of(*_OWN_BY_FCNTL))
    yield _PASS


def _unless(name: str, *tests: bytes) -> Iterator[bytes]:
    """Look at the arguments of a call; the tests jump to a refusal, which follows them, or over it."""
    yield _instruction(_EQUAL, _number(name), 0, len(tests) + 2)
    yield from tests
    yield _REFUSE
    yield _PASS


def _one_of(*values: int) -> Iterator[bytes]:
    """Go on at the next instruction but these if the loaded value is one of them, and else one further."""
    for position, value in enumerate(values, 1 - len(values)):
        yield _instruction(_EQUAL, value, -position, int(position == 0))


def deny_calls(*, signals: bool, attributes: bool) -> None:
    """Refuse system calls that no honest program needs, here and in all children.

    Args:
        signals: allow signals, where something else bounds whom they reach.
        attributes: allow changes of a file's mode, owner and times, where a root folder bounds which files there are.
    """
    program = b"".join(_filter(signals, attributes))
    buffer = ctypes.create_string_buffer(program)
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _check(_library.syscall(ctypes.c_long(_number("seccomp")), 1, 0, described), "seccomp")
