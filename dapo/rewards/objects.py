"""Reward functions that were given as objects: how they get into the processes that judge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import cloudpickle

from dapo.hooks import given, is_object
from dapo.rewards.function import describe_error

log = logging.getLogger(__name__)


def pickled(function: str, reward: str) -> bytes | None:
    """Return the function of ``python:NAME`` in a form that can be sent to a worker.

    Functions of a script or a notebook go whole, those of modules by name. None where it cannot be sent, which is said:
    it is then asked in the driver.

    Args:
        function: the hook; one that names a module's function gives None as well.
        reward: name of the reward.
    """
    found = given(function) if is_object(function) else None
    if found is None:
        return None
    try:
        return cloudpickle.dumps(found)  # type: ignore[no-any-return]
    except Exception as error:  # whatever it holds on to: a lock, an open file, a connection
        log.warning(
            "the reward %r runs in this process, since it cannot be sent to another (%s): there it has no time limit "
            "(rewards.timeout), no memory limit (run.reward_memory_mib), what it prints stays here, a crash of it ends "
            "the run, and training waits for it. A function that holds no lock, file or connection is sent.",
            reward,
            describe_error(error),
        )
        return None


def runs_in_the_driver(function: str, sent: bytes | None) -> Callable[..., Any] | None:
    """Return the function itself if it was given as an object that cannot be sent."""
    return given(function) if is_object(function) and sent is None else None
