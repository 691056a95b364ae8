"""Costs of lost verdicts and lost workers, and when they are worth a message."""

from __future__ import annotations

import logging

log = logging.getLogger("dapo.rewards.pool")

TOLD_SECONDS = 60.0  # lost, after which that is said, and again at each doubling


class Losses:
    """Counts of a pool. The run goes on whatever is lost: the verdicts are unscored, and metrics count them.

    Attributes:
        restarts: workers lost to a hang or a crash.
        timeouts: items that ran into their time limit.
    """

    def __init__(self, workers: int) -> None:
        """``workers``: processes at most."""
        self.restarts = self.timeouts = 0
        self._workers = workers
        self._limits, self._starts = 0.0, 0.0  # seconds lost to time limits; to starting others in lost workers' place
        self._tell_limits_at = self._tell_starts_at = TOLD_SECONDS

    def timed_out(self, seconds: float) -> None:
        """Count an item that ran into its time limit of ``seconds``."""
        self.timeouts += 1
        self._limits += seconds
        if self._limits >= self._tell_limits_at:
            self._tell_limits_at = 2 * self._limits
            log.warning(
                "%d responses ran into the time limit of their reward, which took %.0f s of %d worker(s). A lower "
                "`timeout` of that reward, or a higher run.reward_workers, bounds what such responses cost.",
                self.timeouts,
                self._limits,
                self._workers,
            )

    def started(self, seconds: float) -> None:
        """Count a worker that is ready ``seconds`` after its start; when others were lost, it replaces one."""
        if not self.restarts:
            return
        self._starts += seconds
        if self._starts >= self._tell_starts_at:
            self._tell_starts_at = 2 * self._starts
            log.warning(
                "%d worker processes for rewards were lost, %d of them to a time limit, and starting others took "
                "%.0f s. What ends a process (a crash, exit, too much memory) is better caught in the reward; modules "
                "that import quickly make a loss cheaper.",
                self.restarts,
                self.timeouts,
                self._starts,
            )
