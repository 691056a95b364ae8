"""Every error of the package: one base class, one subclass per layer.

A message says what was given, what was expected, and the next move. ``exit_code`` is what the command line
returns: 2 for input that was refused before work started, 1 for a failure while working.
"""

from __future__ import annotations


class DapoError(Exception):
    """Base of every error raised on purpose by this package."""

    exit_code = 1


class RecipeError(DapoError, ValueError):
    """A recipe, a preset or an override that cannot mean what its author wants."""

    exit_code = 2


class DataError(DapoError, ValueError):
    """A data set that is missing, malformed, empty, or in conflict with the recipe."""

    exit_code = 2


class RewardError(DapoError, ValueError):
    """A verifier that cannot be loaded or set up. (A verifier that fails on one response makes it unscored.)"""

    exit_code = 2


class ModelError(DapoError, ValueError):
    """A model folder or tokenizer that cannot be used as it is."""

    exit_code = 2


class CheckpointError(DapoError, ValueError):
    """A checkpoint that is missing, damaged, or belongs to another model or recipe."""

    exit_code = 2


class EngineError(DapoError, RuntimeError):
    """A rollout engine that failed, or whose numbers disagree with the learner's."""


class LearnerError(DapoError, RuntimeError):
    """Training cannot go on: for example too many non-finite gradients in a row."""


class DiskError(DapoError, RuntimeError):
    """The run's folder takes no more: a full disk, a limit on files, or a file system that was made read-only."""


class SamplingStopped(DapoError, RuntimeError):
    """Dynamic sampling met its cap or the end of the data with the outcome ``stop``.

    Raised after the step-boundary state was saved; the run can be resumed with changed settings.
    """


class NothingScored(SamplingStopped):
    """No response of a step could be scored: the verifier or the engine fails on everything.

    State and evidence are saved as for any ``SamplingStopped``, but it is not the batch that did not fill.
    """
