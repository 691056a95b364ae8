"""Every error of the package: one base class, one subclass per layer.

A message says what was given, what was expected, and the next move. ``exit_code`` is what the command line
returns: 2 for input that was refused before work started, 3 for a package that is not installed, 1 for a failure while
working.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Self

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""A disk that takes no more: full, over a quota or a limit, or read-only."""


class DapoError(Exception):
    """Base of every error raised on purpose by this package."""

    exit_code = 1


class RecipeError(DapoError, ValueError):
    """A recipe, a preset or an override that cannot mean what its author wants."""

    exit_code = 2


class NotInstalled(RecipeError):
    """A package that the recipe needs and this machine does not have: the recipe itself may be good."""

    exit_code = 3


class DataError(DapoError, ValueError):
    """A data set that is missing, malformed, empty, or in conflict with the recipe."""

    exit_code = 2


class Unreachable(DapoError):
    """A model or data set of the hub, which this machine cannot reach: the recipe itself may be good."""

    exit_code = 3


class DataUnreachable(Unreachable, DataError):
    """A data set of the hub that this machine cannot reach, or has no package to read."""


class RewardError(DapoError, ValueError):
    """A verifier that cannot be loaded or set up. (A verifier that fails on one response makes it unscored.)"""

    exit_code = 2


class EpisodeError(DapoError, RuntimeError):
    """An environment whose replies cannot be used: scores that no reward reads, or episodes that do not repeat."""


class HookError(DapoError, ValueError):
    """A function of the user's (loss, advantage, shaping, keep rule) that raised or returned something else than it
    must."""

    exit_code = 2


class ModelError(DapoError, ValueError):
    """A model folder or tokenizer that cannot be used as it is."""

    exit_code = 2


class ModelUnreachable(Unreachable, ModelError):
    """A model of the hub that this machine cannot reach."""


class CheckpointError(DapoError, ValueError):
    """A checkpoint that is missing, damaged, or belongs to another model or recipe."""

    exit_code = 2


class EngineError(DapoError, RuntimeError):
    """A rollout engine that failed, or whose numbers disagree with the learner's."""


class SchedulerError(DapoError, RuntimeError):
    """A queue of jobs that is not there, or does not take a job."""


class ClusterError(DapoError, RuntimeError):
    """A cluster that cannot be started or reached, or is too small for the recipe."""


class LearnerError(DapoError, RuntimeError):
    """Training cannot go on: for example too many non-finite gradients in a row."""


class CallbackError(DapoError, RuntimeError):
    """A callback failed whose author wants the run to end with it (``on_error = "stop"``)."""


class Terminated(KeyboardInterrupt):
    """SIGTERM where no step is under way: as Ctrl-C there, with the exit code of that signal."""


class LearnerLost(DapoError, RuntimeError):
    """A rank of the learner was lost, failed or gave no sign: all of them were ended, and the last checkpoint has what
    they knew."""


class DiskError(DapoError, RuntimeError):
    """The run's folder takes no more: a full disk, a limit on files, or a file system that was made read-only."""

    def __init__(self, message: str, reason: str = "") -> None:
        """``reason``: the system's own word for it."""
        super().__init__(message)
        self.reason = reason


class MachineError(DapoError, RuntimeError):
    """The machine refuses memory, threads or processes: nothing that was given is wrong."""


def of_the_machine(error: BaseException, doing: str = "") -> DapoError | None:
    """Return the machine's refusal as an error that says so; None for any other error.

    Libraries pass such refusals on inside errors of their own, and who catches those would blame a model or a file.

    Args:
        error: what was caught.
        doing: what failed by it, for the message; "": nothing in particular.
    """
    failed = f"{doing} failed, and not because of what was given: " if doing else ""
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if found := re.search(r"\(os error (\d+)\)", str(cause)):  # how safetensors tells it
            number = int(found[1])
        if number in DISK_FULL:
            where = getattr(cause, "filename", None)
            place = f"{where} cannot be written" if where else "a file cannot be written"
            reason = os.strerror(number)
            return DiskError(f"{failed}{place}: {reason}. Make room (or the disk writable), and try again", reason)
        text = str(cause).lower()
        if number in (errno.EMFILE, errno.ENFILE):
            return MachineError(f"{failed}too many files are open here ({cause}): raise the limit (`ulimit -n`)")
        if any(sign in text for sign in _NO_THREAD) or number == errno.EAGAIN:
            return MachineError(
                f"{failed}this machine starts no further thread or process ({cause}): its limit is met (`ulimit -u`, "
                "a container's pids limit, or other programs). Nothing is wrong with recipe, model or data; try again "
                "when there is room, or with fewer run.reward_workers and run.threads"
            )
        if type(cause).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            return MachineError(
                f"{failed}the device has no memory left ({first_line(cause)}). Free it, use a smaller model or type, "
                "fewer rollout.slots, or smaller learner.microbatch_tokens; `dapo check` estimates the need"
            )
        if isinstance(cause, MemoryError) or number == errno.ENOMEM or any(sign in text for sign in _NO_MEMORY):
            return MachineError(
                f"{failed}this machine has no memory left ({type(cause).__name__}: {cause}). Use a smaller model, "
                "fewer rollout.slots, or smaller learner.microbatch_tokens; `dapo check` estimates the need"
            )
    return None


_NO_THREAD = ("can't start new thread", "unable to create new thread", "resource temporarily unavailable")
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory")


def raise_for_machine(error: BaseException, doing: str) -> None:
    """Name a cause that lies with the machine and not with what was given; returns if it does not.

    Raises:
        DiskError, MachineError: see ``of_the_machine``.
    """
    if told := of_the_machine(error, doing):
        raise told from error


def first_line(error: BaseException) -> str:
    """Return the beginning of an error's message, in at most 300 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class WithEvidence(DapoError):
    """An error that carries its evidence as data (``dapo.types.evidence``); its sentences are found later."""

    def __init__(self, evidence: object, told: str = "") -> None:
        """Take the evidence, and ``told``: its sentences, from the code that knows where the run is."""
        super().__init__(evidence, told)
        self.evidence, self.told = evidence, told

    def __str__(self) -> str:
        return self.told or repr(self.evidence)

    def in_words(self, told: str) -> Self:
        """Return the same error with sentences."""
        return type(self)(self.evidence, told)


class SamplingStopped(WithEvidence, RuntimeError):
    """Dynamic sampling met its cap or the end of the data with the outcome ``stop``.

    Raised after the step-boundary state was saved; the run can be resumed with changed settings.
    """


class NothingScored(SamplingStopped):
    """No response of a step could be scored: the verifier or the engine fails on everything.

    State and evidence are saved as for any ``SamplingStopped``, but it is not the batch that did not fill.
    """


class RunStuck(WithEvidence, RuntimeError):
    """Groups are held whose verdict can never come: a defect of dapo, of an engine or of a scorer.

    Raised with everything held in a state that can be saved; a resume asks for the scores again.
    """


class AccuracyUnknown(WithEvidence, RewardError):
    """Not one response of a held-out set has an accuracy, so that the run could not be judged by it."""


class ClusterEnded(WithEvidence, ClusterError):
    """The run's Ray cluster was lost, and the step at hand with it. The last checkpoint has what came before."""
