"""What a machine refuses is told as that, whoever passes it on."""

from __future__ import annotations

import errno
import os

import pytest
from each import each

from dapo.cli.main import main
from dapo.errors import DiskError, MachineError, of_the_machine


def wrapped(cause: BaseException) -> BaseException:
    """As a library hands it on."""
    try:
        try:
            raise cause
        except BaseException as error:
            raise ValueError("cannot load the model") from error
    except ValueError as error:
        return error


THREADS = [
    RuntimeError("can't start new thread"),
    BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
]
MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12"),
]


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


DISK = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x/y"),
    OSError(errno.EROFS, os.strerror(errno.EROFS)),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@each("wrap", [lambda e: e, wrapped])
@each(
    ("cause", "kind", "said"),
    [(c, MachineError, "no further thread or process") for c in THREADS]
    + [(c, MachineError, "no memory left") for c in MEMORY]
    + [(OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MachineError, "the device has no memory left")]
    + [(OSError(errno.EMFILE, "Too many open files"), MachineError, "ulimit -n")]
    + [(c, DiskError, "cannot be written") for c in DISK],
)
def test_a_refusal_of_the_machine_is_told_as_that(cause, kind, said, wrap):
    told = of_the_machine(wrap(cause))
    assert type(told) is kind
    assert said in str(told)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), OSError(errno.ENOENT, "no such file"), RuntimeError("shape mismatch"), KeyError("thread")],
)
def test_other_errors_are_not_the_machines(error):
    assert of_the_machine(error) is None
    assert of_the_machine(wrapped(error)) is None


def test_an_error_that_was_raised_in_place_of_another_is_judged_alone():
    def fails() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("told otherwise") from None

    with pytest.raises(ValueError, match="told otherwise") as caught:
        fails()
    assert of_the_machine(caught.value) is None


@pytest.mark.parametrize(("error", "said"), [(THREADS[0], "thread"), (MEMORY[0], "memory"), (DISK[0], "/x/y cannot")])
@pytest.mark.parametrize("command", [["check", "quickstart"], ["train", "quickstart"]])
def test_every_command_says_it_in_one_line(monkeypatch, capsys, command, error, said):
    def refuse(*arguments: object, **more: object) -> None:
        raise error

    monkeypatch.setattr("dapo.config.load_recipe", refuse)
    assert main(command) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert said in told
    assert len(told.splitlines()) == 1
