"""Where a run shows itself: every step to the metrics file, the rollout files, the console and the trackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dapo.config.schema import Logging
from dapo.contracts.types import Group, Metrics
from dapo.loop.evaluation import Evaluated, EvaluationResult
from dapo.observe.console import Console
from dapo.observe.metrics import MetricWriter
from dapo.observe.rollouts import select_groups, write_rollouts
from dapo.observe.run_folder import RunFolder
from dapo.observe.samples import Sample, write_samples
from dapo.observe.trackers import Trackers
from dapo.observe.why import Filling

SAMPLED_PROBLEMS = 24
"""Validation problems per set whose responses are kept at every evaluation."""


class RunRecorder:
    """Implements ``dapo.loop.trainer.Recorder`` with the files of a run folder."""

    def __init__(self, folder: RunFolder, console: Console, trackers: Trackers, settings: Logging) -> None:
        self.folder, self.console, self.trackers, self.settings = folder, console, trackers, settings
        self.writer = MetricWriter(folder.metrics)

    def filling(self, progress: Filling) -> None:
        """A group was judged while a batch is collected. Called for every group, so it does next to nothing."""
        self.console.filling(progress)

    def step(self, step: int, metrics: Metrics, finished: Sequence[Group]) -> None:
        """Rollouts first, then the metrics line: a step with a line has its rollouts."""
        chosen = select_groups(finished, self.settings.rollouts, self.settings.rollouts_sample)
        if chosen:
            write_rollouts(self.folder.rollout_file(step), step, chosen)
        self.writer.write(step, metrics)
        self.trackers.log(step, metrics)
        if step > 0:
            self.console.step(step, metrics)
        every = self.settings.samples_every
        if every and step and step % every == 0 and finished:
            self._show_sample(finished)

    def evaluation(self, step: int, result: EvaluationResult) -> None:
        write_samples(self.folder.samples, [_sample(step, r) for r in result.responses if r.problem < SAMPLED_PROBLEMS])
        self.console.evaluation(step, result.metrics)

    def stopped(self, step: int, judged: Sequence[Group]) -> None:
        """``rollouts/stopped_NNNNNN.parquet``; a resume leaves it, and a further stop at the same step adds to it."""
        if judged and self.settings.rollouts != "none":
            write_rollouts(self.folder.rollouts / f"stopped_{step:06d}.parquet", step, judged, add=True)

    def say(self, message: str) -> None:
        self.console.say(message)

    def warn(self, message: str) -> None:
        self.console.warn(message)

    def state(self) -> dict[str, Any]:
        return self.trackers.state()

    def close(self) -> None:
        self.writer.close()
        self.trackers.close()

    def _show_sample(self, finished: Sequence[Group]) -> None:
        group = finished[-1]
        score = group.scores_G[0]
        self.console.sample(group.prompt.text, group.completions_G[0].text, score.reward if score.scored else None)


def _sample(step: int, response: Evaluated) -> Sample:
    return Sample(
        step=step,
        set=response.dataset,
        prompt_id=response.prompt.id,
        prompt=response.prompt.text,
        answer=response.prompt.answer,
        response=response.completion.text,
        accuracy=response.score.values["accuracy"] if response.score.scored else None,
        length=len(response.completion),
        truncated=response.completion.truncated,
        greedy=response.sample < 0,
    )
